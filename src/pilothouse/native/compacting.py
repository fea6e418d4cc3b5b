"""Compaction: a summary by the model takes the place of a conversation that has become too long.

Owns when it is due and what it does to the history. (2.1.330: `system/compact_boundary`.)
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

from pilothouse.native import frames
from pilothouse.native.api import ApiError
from pilothouse.native.asking import Asking, Connect, Marks
from pilothouse.native.failures import is_too_long
from pilothouse.native.models import context_tokens, model_of
from pilothouse.native.prompts import COMPACT, COMPACTED
from pilothouse.native.shapes import JSON
from pilothouse.native.state import State
from pilothouse.native.wire import HostGoneError

RESERVED: Final = 33_000
"""Tokens of the window that are kept free for the next reply and for the summary."""
SHARE: Final = 0.8
"""Of a small window, at most."""
CUTS: Final = 3
"""How often the older half is left out when the conversation does not even fit to be summarised."""
_SUMMARY: Final = re.compile(r"<summary>(.*?)(?:</summary>|\Z)", re.DOTALL)
_ANALYSIS: Final = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)


def is_due(state: State, usage: JSON) -> bool:
    """Whether the next request may not fit."""
    if state.env.get("DISABLE_AUTO_COMPACT") or state.env.get("DISABLE_COMPACT"):
        return False
    given = state.env.get("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "")
    window = int(given) if given.isdigit() else model_of(state.model).window
    return context_tokens(usage) > max(window - RESERVED, window * SHARE)


async def compact(state: State, connect: Connect, trigger: str, instructions: str = "", request: str = "") -> int:
    """Compact the conversation.

    Args:
        state: the session.
        connect: gives the API.
        trigger: "auto" or "manual".
        instructions: what the user wants the summary to heed.
        request: what is being worked on; it is kept word by word.

    Returns:
        The tokens of the conversation before; -1: a hook said no.

    Raises:
        ApiError: there is no summary; the conversation is as it was.
    """
    about = {"trigger": trigger, "custom_instructions": instructions or None}
    verdict = await _fire(state, "PreCompact", about, trigger)
    if verdict is not None and verdict.blocks:
        return -1
    instructions = "\n".join([instructions, *(verdict.contexts if verdict is not None else ())]).strip()
    began = time.monotonic()
    await state.wire.say(frames.system("status", status="compacting"))
    try:
        summary, before = await _summarise(state, connect, instructions)
    except ApiError as error:
        await state.wire.say(frames.system("status", status=None, compact_result="failed", compact_error=error.message))
        raise
    text = COMPACTED.format(summary=summary, path=state.history.path)
    if request:
        text += f"\n\nThe request that is being worked on, word by word:\n\n{request}"
    milliseconds = round((time.monotonic() - began) * 1000)
    metadata = {"trigger": trigger, "preTokens": before, "durationMs": milliseconds}
    name = state.history.compacted(text, metadata)
    state.workplace.read.clear()
    await state.wire.say(frames.system("status", status=None, compact_result="success"))
    boundary = {"trigger": trigger, "pre_tokens": before, "duration_ms": milliseconds}
    await state.wire.say(frames.system("compact_boundary", compact_metadata=boundary, uuid=name))
    await state.wire.say(frames.user(text, isSynthetic=True))
    started = await _fire(state, "SessionStart", {"source": "compact", "model": state.model}, "compact")
    if started is not None and started.contexts:
        state.history.user("\n".join(started.contexts))
    await _fire(state, "PostCompact", {"trigger": trigger, "compact_summary": summary}, trigger)
    return before


async def _fire(state: State, event: str, about: JSON, subject: str) -> Any:
    try:
        return await state.hooks.fire(event, state.about() | about, subject=subject)
    except HostGoneError:
        return None


async def _summarise(state: State, connect: Connect, instructions: str) -> tuple[str, int]:
    wanted = COMPACT + (f"\n\nHeed as well: {instructions}" if instructions else "")
    messages = state.history.shown()
    for cut in range(CUTS + 1):
        asked = [*messages, {"role": "user", "content": [{"type": "text", "text": wanted}]}]
        if messages and messages[-1]["role"] == "user":
            last = messages[-1]
            asked = [*messages[:-1], last | {"content": [*last["content"], *asked[-1]["content"]]}]
        asking = Asking(state, connect, Marks(()), quiet=True)
        try:
            reply = await asking.run(lambda asked=asked: state.request(asked))
        except ApiError as error:
            if not is_too_long(error) or cut == CUTS:
                raise
            messages = _newer_half(messages)
            continue
        text = "\n".join(block["text"] for block in reply.blocks if block.get("type") == "text")
        if not text.strip():
            raise ApiError("the model gave no summary")
        return _summary_in(text), context_tokens(reply.usage)
    raise AssertionError("the last round returns or raises")


def _summary_in(text: str) -> str:
    found = _SUMMARY.search(text)
    return (found[1] if found else _ANALYSIS.sub("", text)).strip() or text.strip()


def _newer_half(messages: list[JSON]) -> list[JSON]:
    """The newer half, from a message of the user on that answers no call of the older one."""
    for place in range(len(messages) // 2, len(messages)):
        message = messages[place]
        if message["role"] == "user" and all(b.get("type") != "tool_result" for b in message["content"]):
            return messages[place:]
    return messages[-1:]
