r"""The format of a cassette: one JSON object per line, with both directions of the protocol unchanged.

Owns the words of the format, conversion between protocol lines and entries, and errors in a file. Pure: bytes in,
entries out. Must not know what a frame means, or how files are written.

The first line is the header; every other one is an entry of a connection, `conn`::

    {"cassette":1,"pilothouse":"0.14.0","recorded":"2026-11-22T08:20:00Z"}
    {"t":0.0000,"conn":1,"dir":"meta","msg":{"event":"spawn","args":["--print"],"cwd":"/home/me"}}
    {"t":0.0004,"conn":1,"dir":"in","msg":{"type":"user",…}}
    {"t":0.5301,"conn":1,"dir":"out","msg":{"type":"system",…}}
    {"t":0.5302,"conn":1,"dir":"err","msg":"a line of standard error"}

`t` is in seconds since the start of the connection; `in` is what was sent to the CLI. A protocol line that is a JSON
object is kept byte for byte. Any other line is `{"_raw": text}`, or `{"_base64": …}` if it is not text; with
`"_open": true` it has no newline at its end. Recordings of one connection by other tools, without a header, `conn`
and `_open`, can be read as well.
"""

from __future__ import annotations

import base64
import binascii
import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from pilothouse.errors import CassetteError, LineDecodeError, PilothouseError, UsageError
from pilothouse.support import MASK, Redactor, decode_line, encode_json
from pilothouse.transports import ExitInfo

FORMAT: Final = 1
HEADER_START: Final = b'{"cassette":'
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a line that are kept together; a longer line is split into several entries."""

Direction = Literal["in", "out", "err", "meta"]

_ESCAPE_FIELDS: Final = frozenset({"_raw", "_base64", "_open"})
_is_json = msgspec.json.Decoder(msgspec.Raw).decode
_dump = msgspec.json.Encoder().encode


class CassetteEntry(Struct, frozen=True):
    """One line of a recording.

    Args:
        time: seconds since the start of its connection.
        direction: "in" to the CLI, "out" from it, "err" its standard error, "meta" an event.
        data: for "in" and "out" the bytes of the protocol; for "err" the text; for "meta" JSON.
        line: its line in the file, counted from 1.
    """

    time: float
    direction: Direction
    data: bytes
    line: int

    @property
    def frame(self) -> dict[str, Any] | None:
        """The frame in this entry; None if there is none."""
        return decode_frame(self.data)

    @property
    def event(self) -> dict[str, Any]:
        """The event, for "meta"."""
        return decode_frame(self.data, typed=False) or {}

    @property
    def text(self) -> str:
        """The text, for "err"."""
        return self.data.decode("utf-8", "replace")


class RecordedConnection(Struct, frozen=True):
    """One connection of a cassette, from its start to its end."""

    number: int
    entries: tuple[CassetteEntry, ...]

    def event(self, name: str) -> dict[str, Any]:
        """Return the first event of this name; empty if there is none."""
        for entry in self.entries:
            if entry.direction == "meta" and entry.event.get("event") == name:
                return entry.event
        return {}

    def exit_info(self) -> ExitInfo:
        """Return how the CLI ended, without its standard error."""
        event = self.event("exit")
        code, signal = event.get("returncode"), event.get("signal")
        if isinstance(code, int) and code < 0:
            known = -code in signals.valid_signals()
            code, signal = None, signals.Signals(-code).name if known else f"signal {-code}"
        if not event and self.event("closed"):
            code = 0  # the program had closed the connection before
        return ExitInfo(code, signal, detail=str(event.get("detail") or ""))

    @property
    def args(self) -> tuple[str, ...]:
        """The arguments that the CLI was started with."""
        given = self.event("spawn").get("args")
        return tuple(map(str, cast("list[Any]", given))) if isinstance(given, list) else ()


class Cassette(Struct, frozen=True):
    """The recorded connections of a program.

    Args:
        path: where it was read from, for messages.
        connections: in the order of their starts.
        version: of the format; 0 for a recording without a header.
        is_truncated: whether the last line is incomplete, because a crash ended the recording.
    """

    path: str
    connections: tuple[RecordedConnection, ...]
    version: int = FORMAT
    is_truncated: bool = False

    @classmethod
    def load(cls, path: str | Path) -> Cassette:
        """Read a file. Blocking.

        Raises:
            CassetteError: the file does not exist, cannot be read, is not a cassette, or is damaged; says where.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CassetteError(f"{path}: the cassette cannot be read: {reason}", path=str(path)) from None
        return read_cassette(data, str(path))


class _EntryLine(Struct):
    """An entry as written in the file."""

    dir: Direction
    msg: msgspec.Raw
    t: float = 0.0
    conn: int = 1


_decode_entry = msgspec.json.Decoder(_EntryLine).decode


def read_cassette(data: bytes, name: str) -> Cassette:
    """Parse the content of a cassette.

    Args:
        data: the content.
        name: the name of the file, for messages.

    Raises:
        CassetteError: the content is empty, of another version, or damaged.
    """
    lines = data.split(b"\n")
    ended = not lines[-1]  # whether the last line has its newline
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise CassetteError(f"{name}: the file is empty: nothing was recorded", path=name)
    version = 0
    if numbered[0][1].startswith(HEADER_START):
        version = _read_version(numbered.pop(0)[1], name)
    connections: dict[int, list[CassetteEntry]] = {}
    cut = False
    for number, line in numbered:
        try:
            conn, entry = _read_entry(number, line, name)
        except CassetteError:
            if ended or number != len(lines):
                raise
            cut = True
            break
        connections.setdefault(conn, []).append(entry)
    recorded = tuple(RecordedConnection(number, tuple(connections[number])) for number in sorted(connections))
    if not recorded:
        raise CassetteError(f"{name}: the file holds no connection: nothing was recorded", path=name)
    return Cassette(name, recorded, version, cut)


def _read_version(line: bytes, name: str) -> int:
    try:
        version = decode_line(line)["cassette"]
    except (LineDecodeError, TypeError, KeyError):
        raise CassetteError(f"{name}, line 1: the header is damaged", path=name, line=1) from None
    if version != FORMAT:
        words = f"is a cassette of version {version}; this pilothouse reads version {FORMAT}: record it again"
        raise CassetteError(f"{name}, line 1: {words}", path=name, line=1)
    return FORMAT


def _read_entry(number: int, line: bytes, name: str) -> tuple[int, CassetteEntry]:
    try:
        try:
            read = _decode_entry(line)
        except ValueError:  # the standard library reads more, such as half a surrogate pair
            fields = decode_line(line)
            read = msgspec.convert({**fields, "msg": msgspec.Raw(encode_json(fields["msg"]))}, _EntryLine)
    except (PilothouseError, ValueError, KeyError, TypeError) as error:
        problem = f"{name}, line {number}: not a line of a cassette: {error.__context__ or error}"
        raise CassetteError(problem, path=name, line=number) from None
    data = bytes(read.msg)
    if read.dir in ("in", "out"):
        data = decode_wire_line(data)
    elif read.dir == "err":
        data = str(decode_line(data)).encode("utf-8", "surrogatepass")
    return read.conn, CassetteEntry(read.t, read.dir, data, number)


def decode_frame(line: bytes, *, typed: bool = True) -> dict[str, Any] | None:
    """Return the JSON object in a protocol line; None if there is none, or if `typed` and it has no type."""
    try:
        value: Any = decode_line(line) if line.lstrip()[:1] == b"{" else None
    except LineDecodeError:
        return None
    if not isinstance(value, dict) or (typed and "type" not in value):
        return None
    return cast("dict[str, Any]", value)


def decode_wire_line(message: bytes) -> bytes:
    """Return the protocol line that an entry holds, with its newline if it had one."""
    if not message.startswith(b'{"_'):
        value = None if message[:1] == b"{" else decode_line(message)
        return (value.encode("utf-8", "surrogatepass") if isinstance(value, str) else message) + b"\n"
    fields = decode_frame(message, typed=False) or {}
    if not _ESCAPE_FIELDS.issuperset(fields):
        return message + b"\n"
    text = fields.get("_raw", "")
    try:
        data = str(text).encode("utf-8", "surrogatepass") or base64.b64decode(str(fields.get("_base64", "")))
    except (ValueError, binascii.Error):
        data = b""
    return data.removesuffix(b"\n") + (b"" if fields.get("_open") else b"\n")


def encode_wire_line(line: bytes, *, is_open: bool = False) -> bytes:
    """Convert a protocol line, without its newline, to the message of an entry.

    Args:
        line: the bytes.
        is_open: whether the line has no newline at its end.
    """
    more: dict[str, Any] = {"_open": True} if is_open else {}
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return _dump({"_base64": base64.b64encode(line).decode(), **more})
    if not is_open and line[:1] == b"{" and line[-1:] == b"}" and not line.startswith(b'{"_'):
        with suppress(ValueError):
            _is_json(line)
            return line
    return _dump({"_raw": text, **more}) if line else _dump({"_base64": "", **more})


def encode_entry(time: float, conn: int, direction: Direction, message: bytes) -> bytes:
    """Format an entry as a line of the file; `message` is JSON."""
    return b'{"t":%.4f,"conn":%d,"dir":"%s","msg":%s}\n' % (time, conn, direction.encode(), message)


def encode_header(version: str, recorded: str) -> bytes:
    """Format the header: the version of pilothouse, and the time of recording as an ISO time."""
    return _dump({"cassette": FORMAT, "pilothouse": version, "recorded": recorded}) + b"\n"


def encode_event(event: str, fields: Mapping[str, Any]) -> bytes:
    """Format an event for a "meta" entry."""
    return encode_json({"event": event, **fields})


MIN_SECRET_PREFIX: Final = 8
"""Characters of a secret at the end of a text that count as its beginning."""
_DELTA_FIELDS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class DeltaRedactor:
    """Removes secrets from streamed text, also where chunks of the text split a secret.

    Only known values. Up to seven characters of the beginning may remain.

    Args:
        secrets: the values.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        # Block → the end of its text so far that may begin a secret.
        self._tails: dict[tuple[Any, Any], str] = {}

    def redact(self, line: bytes) -> bytes:
        """Return the line without the parts of secrets in it. Lines must be passed in order."""
        if not self._secrets or b"_delta" not in line:
            return line
        frame = _as_mapping(decode_frame(line, typed=False))
        event = _as_mapping(frame.get("event"))
        delta = _as_mapping(event.get("delta"))
        field = _DELTA_FIELDS.get(str(delta.get("type")), "")
        if not isinstance(delta.get(field), str):
            return line
        block = (str(frame.get("parent_tool_use_id")), str(event.get("index")))
        before, text = self._tails.get(block, ""), delta[field]
        whole = before + text
        self._tails[block] = end = self._find_secret_prefix(whole)
        shown = self._redact_text(whole, len(before), len(end))
        if shown == text:
            return line
        delta[field] = shown
        return encode_json(frame)

    def _find_secret_prefix(self, text: str) -> str:
        """Return the longest end of a text with which a secret begins."""
        longest = ""
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(text)), len(longest), -1):
                if text.endswith(secret[:size]):
                    longest = secret[:size]
                    break
        return longest

    def _redact_text(self, whole: str, start: int, end: int) -> str:
        """Return the text from `start` on, redacted; its last `end` characters may begin a secret."""
        spans = [(len(whole) - end, len(whole))] if end >= MIN_SECRET_PREFIX else []
        for secret in self._secrets:
            at = whole.find(secret)
            while at >= 0:
                spans.append((at, at + len(secret)))
                at = whole.find(secret, at + 1)
        shown, place = "", start
        for first, last in sorted(spans):
            if last > place:
                shown += whole[place : max(first, place)] + MASK
                place = last
        return shown + whole[place:]


def _as_mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


# Of a login at Claude: nobody knows it before. Codes in addresses are recognised by themselves.
_LOGIN_CODE = re.compile(rb'("authorizationCode"\s*:\s*")[^"\\]+')


def redact_line(line: bytes, redactor: Redactor) -> bytes:
    """Return `line` without the secrets. JSON stays JSON, even where a secret is a number.

    Args:
        line: one protocol line.
        redactor: knows the secrets.
    """
    line = _LOGIN_CODE.sub(rb"\1" + MASK.encode(), line)
    text = line.decode("utf-8", "surrogateescape")
    hidden = redactor.redact(text)
    if hidden == text:
        return line
    data = hidden.encode("utf-8", "surrogateescape")
    frame = decode_frame(line, typed=False)
    if frame is None or decode_frame(data, typed=False) is not None:
        return data
    return encode_json(_redact_values(frame, redactor))


def _redact_values(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {redactor.redact(k): _redact_values(v, redactor) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_redact_values(item, redactor) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool):
        return value
    hidden = redactor.redact(str(value))
    return value if hidden == str(value) else hidden


def read_names(setting: str, given: object) -> tuple[str, ...]:
    """Return the texts of a setting, which may be secret.

    Raises UsageError for a single text, each letter of which would count, and for a list with other values.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{setting}: expected a list of texts, got {type(given).__name__}")
    items = tuple(cast("Iterable[Any]", given))
    if wrong := [type(item).__name__ for item in items if not isinstance(item, str)]:
        raise UsageError(f"{setting}: expected a list of texts, got one with {wrong[0]}")
    return items
