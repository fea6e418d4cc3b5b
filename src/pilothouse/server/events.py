"""The messages of a session as server-sent events. An event's id is the output offset after it, for resuming.

Owns the format of the stream. Reads an `Output`; knows no child, and of a line only its message type.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator

import anyio
import msgspec

from pilothouse.server.hosted import HostedSession
from pilothouse.server.journal import JournalError
from pilothouse.server.output import PrunedError

READ = 256 * 1024
"""Bytes per read."""
LONGEST_LINE = 16 * 1024 * 1024
"""Maximum bytes of a message; a longer one becomes an event "oversize" that says where it is."""
HEARTBEAT = b": still here\n\n"
_NO_MESSAGES = frozenset({"", "control_request", "control_response", "control_cancel_request", "keep_alive"})
_ASKS = frozenset({"can_use_tool", "elicitation", "request_user_dialog"})
"""Control requests that wait for a person. Programs respond to the others, such as hooks and tools."""


class _Request(msgspec.Struct):
    subtype: str = ""


class _Typed(msgspec.Struct):
    type: str = ""
    request: msgspec.Raw = msgspec.Raw(b"{}")


_typed = msgspec.json.Decoder(_Typed)


class Lines:
    """Splits bytes into lines, with the offset after each; a line that is too long is only counted.

    Args:
        place: offset of the first byte that is fed.
    """

    def __init__(self, place: int) -> None:
        self._place = place
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield each complete line without its end, after its end's offset; None for a line that was too long."""
        *ends, rest = data.split(b"\n")
        for part in ends:
            self._hold(part)
            self._place += len(part) + 1
            yield self._place, None if self._size > LONGEST_LINE else b"".join(self._held)
            self._held, self._size = [], 0
        self._place += len(rest)
        self._hold(rest)

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LONGEST_LINE:
            self._held.clear()
        elif part:
            self._held.append(part)


async def event_stream(session: HostedSession, place: int, heartbeat: float) -> AsyncGenerator[bytes, None]:
    """Yield the events from an offset on, until the session is over.

    Args:
        session: source of the messages.
        place: offset in its output to begin at.
        heartbeat: seconds of silence after which a comment is sent, so that a broken connection is detected.
    """
    lines = Lines(place)
    session.attached += 1
    try:
        while True:
            data: bytes | None = None
            with anyio.move_on_after(heartbeat):
                data = await session.output.read(place, READ)
            if data is None:
                yield HEARTBEAT
                continue
            if not data:
                break
            place += len(data)
            events = b"".join(event for end, line in lines.feed(data) if (event := _event(end, line)))
            if events:
                yield events
        ending = session.record.ending
        yield _named("end", place, {"detail": "closed" if ending is None else ending.detail})
    except (PrunedError, JournalError) as error:
        yield _named("error", place, {"message": str(error)})
    finally:
        session.attached -= 1
        session.used()


def _event(end: int, line: bytes | None) -> bytes:
    if line is None:
        return _named("oversize", end, {"message": f"a message is longer than {LONGEST_LINE:,} bytes"})
    try:
        said = _typed.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""
    kind = said.type
    if kind == "control_request" and _asks(said.request):
        return b"id: %d\nevent: asked\ndata: %s\n\n" % (end, line.replace(b"\r", b""))
    if kind in _NO_MESSAGES:
        return b""
    return b"id: %d\ndata: %s\n\n" % (end, line.replace(b"\r", b""))


def _asks(request: msgspec.Raw) -> bool:
    try:
        return msgspec.json.decode(request, type=_Request).subtype in _ASKS
    except msgspec.DecodeError:
        return False


def _named(name: str, place: int, body: dict[str, str]) -> bytes:
    return f"id: {place}\nevent: {name}\ndata: {json.dumps(body)}\n\n".encode()
