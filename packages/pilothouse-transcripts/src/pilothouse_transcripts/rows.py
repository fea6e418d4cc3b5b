"""Reads the lines of a transcript file, also while it is being written, and decodes them as rows and messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw, Struct, field

from pilothouse.errors import LineDecodeError
from pilothouse.messages import (
    AssistantMessage,
    CompactBoundaryMessage,
    CompactMetadata,
    FrameDecoder,
    Message,
    UserMessage,
)
from pilothouse.messages.decoder import CoercionFailure, coerce_struct
from pilothouse.support import decode_line, encode_json
from pilothouse_transcripts.paths import StrPath, open_file

CHUNK_BYTES = 1 << 18
"""Number of bytes per read."""
MAX_LINE_BYTES = 256 << 20
"""Maximum bytes of a line; a longer one is reported and skipped, so that memory stays bounded."""
PADDING = b"\0 \t\r\n\xef\xbb\xbf"
"""Bytes that may surround a row: whitespace, a byte order mark, and zeros in place of what a crash has lost."""
EDGE_BYTES = 1 << 16
"""Bytes at each end of a file that contain what a list shows: the CLI repeats titles and tags within them."""


class TranscriptProblem(Struct, frozen=True):
    """A part of a transcript that could not be read and was skipped.

    Args:
        path: the file.
        line: the line number, from 1; 0: the whole file.
        reason: what is wrong.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}" if self.line else f"{self.path}: {self.reason}"


OnProblem: TypeAlias = Callable[[TranscriptProblem], object]


def ignore_problem(problem: TranscriptProblem) -> None:
    """Ignore the problem."""


def open_transcript(path: StrPath) -> BufferedReader:
    """Open a transcript file for reading.

    Raises:
        OSError: the path cannot be opened, is not a regular file, or is a link.
    """
    descriptor, _ = open_file(path)
    return BufferedReader(FileIO(descriptor), CHUNK_BYTES)


def read_lines(
    file: BufferedReader, path: Path, on_problem: OnProblem = ignore_problem
) -> Iterator[tuple[int, int, bytes]]:
    """Yield the current lines of a file: number from 1, byte offset, content with its newline.

    Lines appended meanwhile are not read. The last line may be incomplete: it has no newline yet.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    number = offset = 0
    while offset < size and (line := file.readline(min(size - offset, MAX_LINE_BYTES + 1))):
        number += 1
        if len(line) <= MAX_LINE_BYTES or line.endswith(b"\n"):
            yield number, offset, line
            offset += len(line)
            continue
        on_problem(TranscriptProblem(str(path), number, f"a line of more than {MAX_LINE_BYTES} bytes is too long"))
        while line and not line.endswith(b"\n"):
            line = file.readline(CHUNK_BYTES)
        offset = file.tell()


def read_part(file: BufferedReader, row: TranscriptRow) -> bytes:
    """Read a row again; less of it if the file has become shorter."""
    file.seek(row.offset)
    return file.read(row.size)


def read_edges(path: StrPath) -> tuple[int, bytes, bytes]:
    """Return the size of a file, and its start and end: both all of a short file, else the end starts with a line.

    Raises:
        OSError: the path cannot be opened, is not a regular file, or is a link.
    """
    descriptor, size = open_file(path)
    try:
        head = _read_bytes(descriptor, min(size, EDGE_BYTES))
        if size <= EDGE_BYTES:
            return size, head, head
        os.lseek(descriptor, size - EDGE_BYTES, os.SEEK_SET)
        tail = _read_bytes(descriptor, EDGE_BYTES)
    finally:
        os.close(descriptor)
    return size, head, tail[tail.find(b"\n") + 1 :]


def _read_bytes(descriptor: int, size: int) -> bytes:
    part = os.read(descriptor, size)
    while len(part) < size and (more := os.read(descriptor, size - len(part))):
        part += more
    return part


CHAINED_TYPES = frozenset({"user", "assistant", "attachment", "system", "progress"})
"""Types of rows that name their predecessor. All other rows are metadata of the session."""
SPOKEN_TYPES = frozenset({"user", "assistant"})

# A crash leaves half a line, and the next row is appended to it. Rows start like this; so do parts of them, after one
# of three characters.
_ROW_START = re.compile(rb'(?<![:,\[])\{"(?:type":"|parentUuid":)')


_MAX_ROW_STARTS = 4
"""Maximum number of row starts tried in a broken line, to limit the time spent on corrupt data."""


class BlockIds(Struct, gc=False):
    """The call ids of a content block: its own, or that of the call it answers."""

    type: str = ""
    id: str | None = None
    tool_use_id: str | None = None


class RowMessage(Struct, gc=False):
    """The metadata of a message. Of a content that is a text, nothing is kept."""

    id: str | None = None
    content: str | tuple[BlockIds, ...] = ""

    def __post_init__(self) -> None:
        if self.content.__class__ is str:
            self.content = ""


class PreservedMessages(Struct, gc=False, rename="camel"):
    """Messages kept by a compaction: a list of ids, or a range from head to tail, and what they follow now."""

    anchor_uuid: str | None = None
    uuids: list[str] | None = None
    head_uuid: str | None = None
    tail_uuid: str | None = None


class RowCompaction(Struct, gc=False, rename="camel"):
    """The content of a compaction boundary."""

    trigger: str = ""
    pre_tokens: int = 0
    post_tokens: int | None = None
    duration_ms: int | float | None = None
    preserved_messages: PreservedMessages | None = None
    preserved_segment: PreservedMessages | None = None


class RowAttachment(Struct, gc=False):
    """What the CLI adds to a turn. Of those, only words that the user sent meanwhile are messages."""

    type: str = ""
    command_mode: Any = field(default=None, name="commandMode")
    is_meta: Any = field(default=None, name="isMeta")
    origin: Any = None
    source_uuid: str | None = None

    @property
    def is_said(self) -> bool:
        """Whether a person said it: not a task, a hook or another agent."""
        if self.type != "queued_command" or self.is_meta or self.command_mode not in (None, "prompt"):
            return False
        origin: Any = self.origin
        return not isinstance(origin, dict) or cast("dict[str, Any]", origin).get("kind") in (None, "human")


class TranscriptRow(Struct, gc=False, rename="camel"):
    """One line of a transcript.

    Attributes:
        number, offset, size: its line number from 1, byte offset, and length.
        tool_use_result: not empty if the line has such a field; from `read_rows` without its content.
    """

    type: str = ""
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    subtype: str | None = None
    is_sidechain: bool = False
    is_meta: bool = False
    is_compact_summary: bool = False
    is_api_error_message: bool = False
    team_name: str | None = None
    agent_id: str | None = None
    request_id: str | None = None
    logical_parent_uuid: str | None = None
    compact_metadata: RowCompaction | None = None
    leaf_uuid: str | None = None
    explicit: bool = False
    message: RowMessage | None = None
    attachment: RowAttachment | None = None
    tool_use_result: Raw = Raw()
    number: int = field(default=0, name="<number>")
    offset: int = field(default=0, name="<offset>")
    size: int = field(default=0, name="<size>")

    @property
    def is_boundary(self) -> bool:
        """Whether the row is a compaction boundary."""
        return self.subtype == "compact_boundary" and self.type == "system"

    @property
    def source_uuid(self) -> str | None:
        """The uuid with which words were sent into a running turn."""
        return None if self.attachment is None else self.attachment.source_uuid

    @property
    def is_steering(self) -> bool:
        """Whether the row has words that were sent into a running turn."""
        return self.type == "attachment" and self.attachment is not None and self.attachment.is_said

    @property
    def is_visible(self) -> bool:
        """Whether the row is a message of a person or the model in the main conversation."""
        return (self.type in SPOKEN_TYPES or self.is_steering) and not self.is_meta and not self.team_name

    def get_call_ids(self, kind: str) -> list[str]:
        """Return the ids of the calls that the row makes ("tool_use") or answers ("tool_result")."""
        blocks = self.message.content if self.message is not None else ""
        if isinstance(blocks, str):
            return []
        ids = (block.id if kind == "tool_use" else block.tool_use_id for block in blocks if block.type == kind)
        return [key for key in ids if key is not None]


_ANY_RESULT = Raw(b"null")

S = TypeVar("S", bound=Struct)
_decode_strictly = msgspec.json.Decoder(TranscriptRow).decode


def decode_struct(decode_strictly: Callable[[bytes], S], kind: type[S], line: bytes) -> S | str:
    """Decode a line, field by field if needed; return a text that says what is wrong if that is not possible."""
    try:
        return decode_strictly(line)
    except (ValueError, RecursionError):
        data = load_object(line)
    if data is None:
        return "not a JSON object"
    try:
        return coerce_struct(kind, data)
    except (CoercionFailure, RecursionError):
        return "not readable as a row"


def decode_row(line: bytes) -> TranscriptRow | str:
    """Decode a line to a row; return a text that says what is wrong if it is not a row."""
    row = decode_struct(_decode_strictly, TranscriptRow, line)
    return row if isinstance(row, str) or row.type else "an object without a type"


def list_visible(rows: Sequence[TranscriptRow]) -> list[TranscriptRow]:
    """Return the visible rows, each message once: words given to a turn may also become a prompt, with their uuid."""
    said = {row.uuid for row in rows if row.type == "user"}
    return [row for row in rows if row.is_visible and not (row.is_steering and row.source_uuid in said)]


def write_message(row: TranscriptRow, line: bytes) -> bytes:
    """Return the line of a row as a message: words that were sent into a running turn as a row of the user."""
    data = load_object(line) if row.is_steering else None
    if data is None:  # or the file has become shorter: whoever decodes the line reports that
        return line
    attachment: dict[str, Any] = data.get("attachment") or {}
    rest = {name: value for name, value in attachment.items() if name != "prompt"}
    message = {"role": "user", "content": attachment.get("prompt") or ""}
    return encode_json({**data, "type": "user", "message": message, "attachment": rest})


def load_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None."""
    try:
        data = decode_line(line)
    except LineDecodeError:
        return None
    return cast("dict[str, Any]", data) if isinstance(data, dict) else None


def read_rows(file: BufferedReader, path: Path, on_problem: OnProblem = ignore_problem) -> Iterator[TranscriptRow]:
    """Yield the current rows of a file. Other lines are reported and skipped."""
    for number, start, line in read_lines(file, path, on_problem):
        row, part, problem = find_row(line)
        if problem:
            on_problem(TranscriptProblem(str(path), number, problem))
        if row is None:
            continue
        row.number, row.offset, row.size = number, start + row.offset, len(part)
        if row.tool_use_result:
            row.tool_use_result = _ANY_RESULT  # the decoded one keeps the whole line in memory
        yield row


def find_row(line: bytes) -> tuple[TranscriptRow | None, bytes, str]:
    """Return the row in a line, its bytes, and what is wrong with the line, if anything.

    A line may start with half of another row: then the row at its end is returned, and a problem as well. The row's
    `offset` is its place in the line. There is neither a row nor a problem in an empty line.
    """
    begun = line.lstrip(PADDING)
    part = begun.rstrip(PADDING)
    if not part:
        return None, part, ""
    start = len(line) - len(begun)
    row = decode_row(part)
    if not isinstance(row, str):
        row.offset = start
        return row, part, ""
    for at in [found.start() for found in _ROW_START.finditer(part)][-_MAX_ROW_STARTS:]:
        glued = decode_row(part[at:]) if at > 0 else ""
        if not isinstance(glued, str):
            glued.offset = start + at
            return glued, part[at:], row
    return None, part, row


class _MessageFields(Struct, gc=False, rename="camel"):
    """Fields beside a message whose names differ from those in the CLI's output."""

    tool_use_result: Any = None
    api_error_status: int | None = None
    api_error_type: str | None = None


_decode_message_fields = msgspec.json.Decoder(_MessageFields).decode
_set_field = msgspec.structs.force_setattr
_ROWS_PER_DECODING = 64


def read_messages(
    file: BufferedReader,
    path: Path,
    rows: Sequence[TranscriptRow],
    parent_tool_use_id: str | None = None,
    on_problem: OnProblem = ignore_problem,
) -> Iterator[Message]:
    """Yield the messages of rows; those that can no longer be read are reported and skipped.

    Args:
        file: their file.
        path: its path.
        rows: the rows.
        parent_tool_use_id: the call that started their sub-agent.
        on_problem: called with each row that cannot be read.
    """
    decode_lines = FrameDecoder().decode_lines
    for start in range(0, len(rows), _ROWS_PER_DECODING):
        part = rows[start : start + _ROWS_PER_DECODING]
        messages, _ = decode_lines([write_message(row, read_part(file, row)) for row in part])
        for row, message in zip(part, messages, strict=True):
            if isinstance(message, Message):
                _complete_message(message, row, parent_tool_use_id)
                yield message
            else:
                on_problem(TranscriptProblem(str(path), row.number, "it has changed while it was read"))


def _complete_message(message: Message, row: TranscriptRow, parent_tool_use_id: str | None) -> None:
    """Fill the fields of a message whose names differ in a transcript. The message is new, and not shared yet.

    A copy of every message would cost as much as decoding it.
    """
    _set_field(message, "session_id", row.session_id)
    if isinstance(message, UserMessage):
        _set_field(message, "parent_tool_use_id", parent_tool_use_id)
        _set_field(message, "agent_id", row.agent_id)
        _set_field(message, "is_meta", row.is_meta)
        _set_field(message, "is_compact_summary", row.is_compact_summary)
        if row.tool_use_result:
            _set_field(message, "tool_use_result", _read_message_fields(message.raw_line).tool_use_result)
    elif isinstance(message, AssistantMessage):
        _set_field(message, "parent_tool_use_id", parent_tool_use_id)
        _set_field(message, "agent_id", row.agent_id)
        _set_field(message, "request_id", row.request_id)
        if row.is_api_error_message:
            beside = _read_message_fields(message.raw_line)
            _set_field(message, "is_api_error_message", True)
            _set_field(message, "api_error_status", beside.api_error_status)
            _set_field(message, "api_error_type", beside.api_error_type)
    elif isinstance(message, CompactBoundaryMessage):
        compaction = row.compact_metadata or RowCompaction()
        size = (compaction.pre_tokens, compaction.post_tokens)
        metadata = CompactMetadata(compaction.trigger, *size, duration_ms=compaction.duration_ms)
        _set_field(message, "compact_metadata", metadata)
        _set_field(message, "logical_parent_uuid", row.logical_parent_uuid)


def _read_message_fields(line: bytes) -> _MessageFields:
    found = decode_struct(_decode_message_fields, _MessageFields, line)
    return _MessageFields() if isinstance(found, str) else found
