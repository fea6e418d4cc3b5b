"""The commands `/clear` and `/compact`, and compaction.

Compaction also runs automatically before the context window is full. All other text goes to the model unchanged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from pilothouse.native import frames
from pilothouse.native.api import ApiError, ConnectApi, PromptIds, ReplyRequest, describe_failure, is_prompt_too_long
from pilothouse.native.models import context_tokens, get_model
from pilothouse.native.prompts import COMPACTED_MESSAGE, COMPACTION_PROMPT
from pilothouse.native.state import SessionState
from pilothouse.native.wire import HostDisconnectedError, JsonObject

COMMAND_NAMES: Final = frozenset({"clear", "compact"})


def find_command(state: SessionState, text: str, frame: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the command in a prompt and its arguments, or None."""
    if not text.startswith("/") or frame.get("client_composed") or not state.arguments.has_commands:
        return None
    name, _, arguments = text[1:].strip().partition(" ")
    return (name, arguments.strip()) if name in COMMAND_NAMES else None


async def run_command(
    state: SessionState, connect: ConnectApi, name: str, arguments: str, user_uuid: str | None
) -> JsonObject:
    """Run a command; returns the fields of the result."""
    await state.servers.wait()
    await state.wire.send(frames.init(state))
    if name == "clear":
        return await _run_clear(state, user_uuid)
    if not state.history.messages:
        return _make_result("compact", "There is nothing to compact yet.")
    try:
        before = await compact(state, connect, "manual", arguments)
    except ApiError as error:
        return _make_result("compact", f"Error during compaction: {describe_failure(error).text}", is_error=True)
    return _make_result("compact", "Compacted" if before >= 0 else "Compaction was blocked by a hook.")


async def _run_clear(state: SessionState, user_uuid: str | None) -> JsonObject:
    new = state.start_new_session()
    reset = {"type": "conversation_reset", "new_conversation_id": new, "trigger": "clear"}
    await state.wire.send(reset | ({"user_message_uuid": user_uuid} if user_uuid else {}))
    try:
        about = state.make_hook_fields() | {"source": "clear", "model": state.model}
        verdict = await state.hooks.run("SessionStart", about, subject="clear")
    except HostDisconnectedError:
        return _make_result("clear", "")
    if verdict.contexts:
        state.history.add_user_message("\n".join(verdict.contexts))
    return _make_result("clear", "")


def _make_result(command: str, text: str, *, is_error: bool = False) -> JsonObject:
    about = {"subtype": "success", "is_error": is_error, "result": text, "local_command": command}
    return about | {"terminal_reason": "api_error" if is_error else "completed", "api_error_status": None}


RESERVED_TOKENS: Final = 33_000
"""Tokens of the context window that stay free for the next reply and the summary."""
MAX_WINDOW_SHARE: Final = 0.8
"""Share of a small window that may be used before compaction."""
MAX_CUTS: Final = 3
"""How often the older half is dropped when the conversation is too long even for the summary request."""
_SUMMARY: Final = re.compile(r"<summary>(.*?)(?:</summary>|\Z)", re.DOTALL)
_ANALYSIS: Final = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)


def needs_compaction(state: SessionState, usage: JsonObject) -> bool:
    """Whether the next request may not fit into the context window."""
    if state.env.get("DISABLE_AUTO_COMPACT") or state.env.get("DISABLE_COMPACT"):
        return False
    given = state.env.get("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "")
    window = int(given) if given.isdigit() else get_model(state.model).window
    return context_tokens(usage) > max(window - RESERVED_TOKENS, window * MAX_WINDOW_SHARE)


async def compact(
    state: SessionState, connect: ConnectApi, trigger: str, instructions: str = "", request: str = ""
) -> int:
    """Compact the conversation.

    Args:
        state: the session.
        connect: returns the API.
        trigger: "auto" or "manual".
        instructions: the user's instructions for the summary.
        request: the current request; it is kept verbatim.

    Returns:
        The tokens of the conversation before; -1 if a hook blocked the compaction.

    Raises:
        ApiError: there is no summary; the conversation is unchanged.
    """
    about = {"trigger": trigger, "custom_instructions": instructions or None}
    verdict = await _run_hooks(state, "PreCompact", about, trigger)
    if verdict is not None and verdict.is_blocking:
        return -1
    instructions = "\n".join([instructions, *(verdict.contexts if verdict is not None else ())]).strip()
    began = time.monotonic()
    await state.wire.send(frames.system("status", status="compacting"))
    try:
        summary, before = await _make_summary(state, connect, instructions)
    except ApiError as error:
        await state.wire.send(
            frames.system("status", status=None, compact_result="failed", compact_error=error.message)
        )
        raise
    text = COMPACTED_MESSAGE.format(summary=summary, path=state.history.path)
    if request:
        text += f"\n\nThe request that is being worked on, word by word:\n\n{request}"
    milliseconds = round((time.monotonic() - began) * 1000)
    metadata = {"trigger": trigger, "preTokens": before, "durationMs": milliseconds}
    name = state.history.replace_with_summary(text, metadata)
    state.workplace.files_read.clear()
    await state.wire.send(frames.system("status", status=None, compact_result="success"))
    boundary = {"trigger": trigger, "pre_tokens": before, "duration_ms": milliseconds}
    await state.wire.send(frames.system("compact_boundary", compact_metadata=boundary, uuid=name))
    await state.wire.send(frames.user(text, isSynthetic=True))
    started = await _run_hooks(state, "SessionStart", {"source": "compact", "model": state.model}, "compact")
    if started is not None and started.contexts:
        state.history.add_user_message("\n".join(started.contexts))
    await _run_hooks(state, "PostCompact", {"trigger": trigger, "compact_summary": summary}, trigger)
    return before


async def _run_hooks(state: SessionState, event: str, fields: JsonObject, subject: str) -> Any:
    try:
        return await state.hooks.run(event, state.make_hook_fields() | fields, subject=subject)
    except HostDisconnectedError:
        return None


async def _make_summary(state: SessionState, connect: ConnectApi, instructions: str) -> tuple[str, int]:
    wanted = COMPACTION_PROMPT + (f"\n\nHeed as well: {instructions}" if instructions else "")
    messages = state.history.make_request_messages()
    for cut in range(MAX_CUTS + 1):
        asked = [*messages, {"role": "user", "content": [{"type": "text", "text": wanted}]}]
        if messages and messages[-1]["role"] == "user":
            last = messages[-1]
            asked = [*messages[:-1], last | {"content": [*last["content"], *asked[-1]["content"]]}]
        asking = ReplyRequest(state, connect, PromptIds(()), is_silent=True)
        try:
            reply = await asking.run(lambda asked=asked: state.make_request(asked))
        except ApiError as error:
            if not is_prompt_too_long(error) or cut == MAX_CUTS:
                raise
            messages = _take_newer_half(messages)
            continue
        text = "\n".join(block["text"] for block in reply.blocks if block.get("type") == "text")
        if not text.strip():
            raise ApiError("the model gave no summary")
        return _find_summary(text), context_tokens(reply.usage)
    raise AssertionError("the last round returns or raises")


def _find_summary(text: str) -> str:
    found = _SUMMARY.search(text)
    return (found[1] if found else _ANALYSIS.sub("", text)).strip() or text.strip()


def _take_newer_half(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the newer half, starting at a user message without tool results."""
    for place in range(len(messages) // 2, len(messages)):
        message = messages[place]
        if message["role"] == "user" and all(b.get("type") != "tool_result" for b in message["content"]):
            return messages[place:]
    return messages[-1:]
