"""The rows of a transcript, read as far as their order and their ids need it; and as messages when they are wanted.

Owns the fields of CLI 2.1.330 that matter here, and what becomes of a line that is not one. Reads each line once for
its ids; a message is decoded only when somebody wants it. Knows nothing of the order of a conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from pilothouse.errors import LineDecodeError, MessageParseError
from pilothouse.messages import AssistantMessage, CompactBoundaryMessage, Message, UserMessage, decode
from pilothouse.messages.incidents import CompactMetadata
from pilothouse.messages.jsonline import load_line
from pilothouse.messages.lenient import Unfit, fit_struct
from pilothouse.transcripts.lines import OnProblem, TranscriptProblem, ignore, read_lines, read_part

CHAINED = frozenset({"user", "assistant", "attachment", "system", "progress"})
"""Types of the rows that name their predecessor. All other rows are notes about the session."""
SPOKEN = frozenset({"user", "assistant"})

# A crash leaves half a line, and the next row is glued to it. Rows begin like this; so do parts of them, behind one of
# three characters.
_BEGINNING = re.compile(rb'(?<![:,\[])\{"(?:type":"|parentUuid":)')


_TRIED = 4
"""How many beginnings in a broken line are tried, so that junk full of them costs little."""


class BlockIds(Struct, gc=False):
    """What a content block says about calls: its own id, or the call that it answers."""

    type: str = ""
    id: str | None = None
    tool_use_id: str | None = None


class Body(Struct, gc=False):
    """What a message says about itself."""

    id: str | None = None
    content: str | list[BlockIds] = ""


class Kept(Struct, gc=False, rename="camel"):
    """Messages that a compaction has kept: a list of ids, or a stretch from head to tail, and what they follow now."""

    anchor_uuid: str | None = None
    uuids: list[str] | None = None
    head_uuid: str | None = None
    tail_uuid: str | None = None


class Compaction(Struct, gc=False, rename="camel"):
    """What a compaction boundary says."""

    trigger: str = ""
    pre_tokens: int = 0
    post_tokens: int | None = None
    duration_ms: int | float | None = None
    preserved_messages: Kept | None = None
    preserved_segment: Kept | None = None


class Row(Struct, gc=False, rename="camel"):
    """One line of a transcript.

    Attributes:
        number, place, size: where its line stands: number from 1, first byte, length.
    """

    type: str = ""
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    subtype: str | None = None
    timestamp: str | None = None
    is_sidechain: bool = False
    is_meta: bool = False
    is_compact_summary: bool = False
    is_api_error_message: bool = False
    team_name: str | None = None
    agent_id: str | None = None
    request_id: str | None = None
    logical_parent_uuid: str | None = None
    compact_metadata: Compaction | None = None
    leaf_uuid: str | None = None
    explicit: bool = False
    message: Body | None = None
    number: int = field(default=0, name="<number>")
    place: int = field(default=0, name="<place>")
    size: int = field(default=0, name="<size>")

    @property
    def is_boundary(self) -> bool:
        """Whether a compaction stands here."""
        return self.subtype == "compact_boundary" and self.type == "system"

    @property
    def is_visible(self) -> bool:
        """Whether it is something that a person or the model has said, in the main conversation."""
        return self.type in SPOKEN and not self.is_meta and not self.team_name

    def ids_of(self, kind: str) -> list[str]:
        """Ids of the calls that it makes ("tool_use") or answers ("tool_result")."""
        blocks = self.message.content if self.message is not None else ""
        if isinstance(blocks, str):
            return []
        ids = (block.id if kind == "tool_use" else block.tool_use_id for block in blocks if block.type == kind)
        return [key for key in ids if key is not None]


_strict = msgspec.json.Decoder(Row).decode
_STRICT_FAILURES = (ValueError, RecursionError)


def decode_row(line: bytes) -> Row | str:
    """Read a line; what is wrong with it, if it is none."""
    try:
        row = _strict(line)
    except _STRICT_FAILURES:
        fitted = _leniently(line)
        if isinstance(fitted, str):
            return fitted
        row = fitted
    return row if row.type else "an object without a type"


def _leniently(line: bytes) -> Row | str:
    data = load_object(line)
    if data is None:
        return "not a JSON object"
    try:
        return fit_struct(Row, data)
    except (Unfit, RecursionError):
        return "not readable as a row"


def load_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None if there is none."""
    try:
        data = load_line(line)
    except LineDecodeError:
        return None
    return cast("dict[str, Any]", data) if isinstance(data, dict) else None


def read_rows(descriptor: int, path: Path, on_problem: OnProblem = ignore) -> Iterator[Row]:
    """The rows that stand in a file now. A line that is none is told and skipped."""
    for number, place, line in read_lines(descriptor, path, on_problem):
        stripped = line.strip(b"\0 \t\r")
        if not stripped:
            continue
        row = decode_row(stripped)
        if isinstance(row, str):
            on_problem(TranscriptProblem(str(path), number, row))
            place, stripped, row = _glued(place, line)
            if row is None:
                continue
        else:
            place += line.find(stripped[:1])
        row.number, row.place, row.size = number, place, len(stripped)
        yield row


def _glued(place: int, line: bytes) -> tuple[int, bytes, Row | None]:
    """The whole row at the end of a line that begins with half of another one."""
    beginnings = [found.start() for found in _BEGINNING.finditer(line)][-_TRIED:]
    for at in beginnings:
        row = decode_row(line[at:])
        if at > 0 and not isinstance(row, str):
            return place + at, line[at:], row
    return place, line, None


class _Beside(Struct, gc=False, rename="camel"):
    """What stands beside a message under names that the wire spells in another way."""

    tool_use_result: Any = None
    api_error_status: int | None = None
    api_error_type: str | None = None


_beside = msgspec.json.Decoder(_Beside).decode
_set = msgspec.structs.force_setattr


def as_message(descriptor: int, row: Row, parent_tool_use_id: str | None = None) -> Message | None:
    """The message of a row; None if it cannot be read any more.

    Args:
        descriptor: of its file.
        row: the row.
        parent_tool_use_id: the call that started the sub-agent that it belongs to.
    """
    line = read_part(descriptor, row.place, row.size)
    try:
        message = decode(line)
    except (LineDecodeError, MessageParseError):
        return None
    # The object was made a line above and nobody has it yet; a copy of every message would cost as much as reading it.
    _set(message, "session_id", row.session_id)
    if isinstance(message, AssistantMessage | UserMessage):
        _set(message, "parent_tool_use_id", parent_tool_use_id)
        _set(message, "agent_id", row.agent_id)
        _fill(message, row, line)
    elif isinstance(message, CompactBoundaryMessage):
        told = row.compact_metadata or Compaction()
        size = (told.pre_tokens, told.post_tokens)
        _set(message, "compact_metadata", CompactMetadata(told.trigger, *size, duration_ms=told.duration_ms))
        _set(message, "logical_parent_uuid", row.logical_parent_uuid)
    return message


def _fill(message: AssistantMessage | UserMessage, row: Row, line: bytes) -> None:
    if isinstance(message, UserMessage):
        _set(message, "is_meta", row.is_meta)
        _set(message, "is_compact_summary", row.is_compact_summary)
        if b'"toolUseResult"' in line:
            _set(message, "tool_use_result", _read_beside(line).tool_use_result)
        return
    _set(message, "request_id", row.request_id)
    if row.is_api_error_message:
        beside = _read_beside(line)
        _set(message, "is_api_error_message", True)
        _set(message, "api_error_status", beside.api_error_status)
        _set(message, "api_error_type", beside.api_error_type)


def _read_beside(line: bytes) -> _Beside:
    try:
        return _beside(line)
    except _STRICT_FAILURES:
        return fit_struct(_Beside, load_object(line) or {})
