"""Reads the transcript of a conversation and cuts it into turns, whose events the tables of the protocols take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from msgspec import Struct, field, to_builtins

from pilothouse.client import Agent, EventReader
from pilothouse.events import QueryEvent, TextDelta
from pilothouse.messages import AssistantMessage, Message, UserMessage
from pilothouse_access.on_behalf import ConfinedTransports
from pilothouse_transcripts import get_session_messages
from pilothouse_transcripts.stores import StoredSessions

LOST_PROMPT = (
    "The process that waited for the user's decision has ended, so the last tool call was not run. If it is still "
    "needed, make it again; the user will be asked again. Do not claim that it was run."
)
"""What the model is told instead of a decision."""
CONTEXT_START, CONTEXT_END = "<context>\n", "\n</context>"
"""Around what a front end says about itself, which is no part of the user's message."""
# The CLI adds these as messages of the user.
_ADDED = re.compile(r"\s*(?:<(?:local-command|system-reminder|task-notification)|\[Request interrupted by user)")


class PastTurn(Struct):
    """A prompt and what came of it.

    Args:
        id: of the prompt, in the transcript.
        content: the blocks of the prompt, without what this package has added.
        events: of the answer.
    """

    id: str
    content: Sequence[Mapping[str, Any]]
    events: list[QueryEvent] = field(default_factory=list[QueryEvent])


async def read_messages(agent: Agent, session_id: str) -> list[Message] | None:
    """Return the messages of a conversation, with those that a compaction has replaced; empty if there is none yet.

    Returns:
        None: its transcript is on another machine, and no `session_store` has a copy.
    """
    options = agent.options
    if options.session_store is not None:
        stored = StoredSessions(options.session_store, directory=options.cwd or ".", load_timeout=options.load_timeout)
        return await stored.messages(session_id, include_compacted=True)
    if not ConfinedTransports(agent).facts.is_local:
        return None
    env = options.env or {}
    given: Any = options.config_dir or env.get("CLAUDE_CONFIG_DIR")
    config_dir = given or (Path(home) / ".claude" if (home := env.get("HOME")) else None)
    read = partial(get_session_messages, config_dir=config_dir, include_compacted=True)
    return await anyio.to_thread.run_sync(read, session_id)


def is_prompt(message: Message) -> bool:
    """Whether somebody has written this message: it is no result of a tool, and the CLI has not added it."""
    if not isinstance(message, UserMessage) or message.is_meta or message.is_compact_summary:
        return False
    return not message.tool_results and not _ADDED.match(message.text)


def is_steering(message: Message) -> bool:
    """Whether a message of a transcript was sent into a turn that ran."""
    return isinstance(message, UserMessage) and "attachment" in message.raw


def read_turns(messages: Iterable[Message]) -> list[PastTurn]:
    """Cut a conversation into turns."""
    turns: list[PastTurn] = []
    reader = EventReader()
    for message in messages:
        if isinstance(message, UserMessage) and is_prompt(message):
            turns.append(PastTurn(message.uuid or "", clean_content(to_builtins(message.content))))
        elif turns and isinstance(message, AssistantMessage) and message.is_api_error_message:
            turns[-1].events.append(TextDelta(message.text))  # the CLI writes an error of the API as an answer
        elif turns:
            turns[-1].events.extend(reader.read(message))
    return turns


def clean_content(content: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the blocks of a prompt that the user has written."""
    return [block for block in content if not _is_added(str(block.get("text") or ""))]


def _is_added(text: str) -> bool:
    return text == LOST_PROMPT or (text.startswith(CONTEXT_START) and text.endswith(CONTEXT_END))
