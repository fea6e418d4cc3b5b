"""What is fuzzed: functions that take any bytes, and raise when a promise is broken. One row in `TARGETS` for each.

Owns the promises. Where inputs come from is in `fuzz_seeds.py`; atheris and pytest call these functions alike, so
nothing here knows either. Of an input the first two bytes say how it is cut and used, the rest is what the peer says.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import anyio

import pilothouse as ph
from pilothouse.errors import LineDecodeError, MessageParseError, PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import FrameDecoder, Message, decode, encode
from pilothouse.messages.json_lines import decode_line, encode_json
from pilothouse.protocol import Connection, RequestReceived
from pilothouse.protocol.control_frames import encode_line
from pilothouse.protocol.frame_reader import LineFramer
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_models.xml import StreamParser
from pilothouse_testing import frames

LIMITS: Final = (5, 64, 1000, 64 * 1024 * 1024)  # bytes of a line
CUTS: Final = (1, 2, 7, 100, 4096, 1 << 30)  # bytes of a chunk
PROMPT: Final = b"00000000-0000-4000-8000-00000000feed"  # stands in inputs where the uuid of the prompt belongs
HANG: Final = 10.0  # seconds; all waits of a query below together take far less
SPLITTING: Final = 4_000  # bytes; a longer input is not cut into single bytes


def pieces(body: bytes, how: int) -> list[bytes]:
    size = CUTS[how % len(CUTS)] if len(body) < SPLITTING else CUTS[-2]
    return [body[at : at + size] for at in range(0, len(body), size)]


def opened(data: bytes) -> tuple[int, int, bytes]:
    """The two choices, and the rest."""
    return (data[0], data[1], data[2:]) if len(data) > 1 else (0, 0, data)


# the wire


def framing(data: bytes) -> None:
    how, which, body = opened(data)
    limit = LIMITS[which % len(LIMITS)]
    framer = LineFramer(limit)
    kept: list[bytes] = []
    dropped: list[int] = []
    for piece in pieces(body, how):
        kept += framer.feed(piece)
        dropped += [each.size for each in framer.oversize]
    last = framer.flush()
    dropped += [each.size for each in framer.oversize]
    *whole, rest = body.split(b"\n")
    assert kept == [line + b"\n" for line in whole if len(line) <= limit]
    assert last == (rest if len(rest) <= limit else b"")
    assert dropped == [len(line) for line in (*whole, rest) if len(line) > limit]
    assert framer.flush() == b""


def connection(data: bytes) -> None:
    how, which, body = opened(data)
    limit = LIMITS[which % len(LIMITS)]
    here, there = Connection(max_line_bytes=limit), Connection(max_line_bytes=limit)
    received = [message for piece in pieces(body, how) for message in here.feed(piece)]
    received += here.end_output().messages
    reported = [*there.feed(body), *there.end_output().messages]
    assert [(type(m), m.raw_line) for m in received] == [(type(m), m.raw_line) for m in reported]
    assert [type(event) for event in here.events] == [type(event) for event in there.events]
    assert not here.pending
    assert not here.open_requests
    busy(Connection(max_line_bytes=limit), body, how, which)


def busy(connection: Connection, body: bytes, how: int, which: int) -> None:
    """A host that asks and answers meanwhile; every line that it sends is one line of JSON."""
    sent: list[bytes] = []
    for number, piece in enumerate(pieces(body, how)[:200]):
        if number % 3 == 0:
            sent.append(connection.request(f"subtype{which}", {"number": number})[1])
        connection.feed(piece)
        for event in list(connection.events):
            if isinstance(event, RequestReceived):
                repr((event.subtype, event.body))
                act = (which + number) % 3
                if act == 0:
                    sent.append(connection.respond(event.request_id, {"body": event.body}))
                    assert connection.respond(event.request_id, {}) == b""
                elif act == 1:
                    sent.append(connection.respond_error(event.request_id, "no", "code"))
        connection.events.clear()
        if which % 4 == 1 and connection.pending:
            sent.append(connection.cancel_request(next(iter(connection.pending))))
    assert all(line.count(b"\n") == 1 and json.loads(line) for line in sent if line)
    assert set(connection.end_output().unanswered) <= {f"ph_{n}" for n in range(1, 1 + len(sent))}
    try:
        connection.feed(b"{}\n")
    except SessionClosedError:
        return
    raise AssertionError("it went on after its end")


# messages


def decoder(data: bytes) -> None:
    lines = opened(data)[2].split(b"\n")
    for line, found in zip(lines, FrameDecoder().decode_lines(lines)[0], strict=True):
        message = _decoded(line)
        assert type(found) is type(message)
        if isinstance(message, Exception):
            str(message)
            continue
        look(message)
        again = decode(encode(message))
        assert type(again) is type(message)
        assert same(again.raw, message.raw)


def _decoded(line: bytes) -> Message | PilothouseError:
    try:
        return decode(line)
    except (LineDecodeError, MessageParseError) as error:
        return error


def look(thing: object) -> None:
    """Every public view of a message, of its blocks, or of a result."""
    repr(thing)
    for name in dir(type(thing)):
        if not name.startswith("_"):
            value = getattr(thing, name)
            if isinstance(value, tuple | list):
                for each in value[:20]:
                    repr(each)


def same(one: object, other: object) -> bool:
    """Whether they are equal; NaN is, here."""
    return one == other or repr(one) == repr(other)


# JSON out


def jsontext(data: bytes) -> None:
    _, which, body = opened(data)
    value = Builder(body).value() if which % 2 else _loaded(body)
    try:
        line = encode_line(value)
    except UsageError as error:
        str(error)
    else:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert not any(odd in line for odd in (b"\r", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85"))
        json.loads(line, parse_constant=_no_constant)
    try:
        written = encode_json(value)
    except MessageParseError as error:
        str(error)
    else:
        decode_line(written)


def _loaded(body: bytes) -> object:
    try:
        return decode_line(body)
    except LineDecodeError as error:
        str(error)
        return body.decode("utf-8", "surrogateescape")


def _no_constant(name: str) -> object:
    raise AssertionError(f"{name} is no JSON")


class Builder:
    """Any Python value out of any bytes, those that no JSON has included."""

    def __init__(self, body: bytes) -> None:
        self._bytes: Iterator[int] = iter(body)
        self._depth = 0

    def _next(self) -> int:
        return next(self._bytes, 0)

    def value(self) -> Any:
        kind = self._next() % 16
        if kind < 6 and self._depth < 200:
            self._depth += 1
            made = self._container(kind)
            self._depth -= 1
            return made
        return self._leaf(kind)

    def _container(self, kind: int) -> Any:
        if kind == 0:
            return [self.value()]
        if kind == 1:
            return {self._text(): self.value()}
        if kind == 2:
            return tuple(self.value() for _ in range(self._next() % 4))
        if kind == 3:
            return {self._leaf(self._next() % 16): self.value() for _ in range(self._next() % 4)}
        return [self.value() for _ in range(self._next() % 5)]

    def _text(self) -> str:
        return "".join(chr(self._next() * 257 % 0x11000) for _ in range(self._next() % 6))

    def _leaf(self, kind: int) -> Any:
        table: dict[int, Callable[[], Any]] = {
            6: self._text,
            7: lambda: self._next() << self._next(),
            8: lambda: -(self._next() << self._next()),
            9: lambda: math.inf,
            10: lambda: math.nan,
            11: lambda: self._next() / 7,
            12: lambda: bytes([self._next()]),
            13: lambda: frozenset([self._next()]),
            14: lambda: object,
            15: lambda: True,
        }
        return table.get(kind, lambda: None)()


# tools in text

TOOLS: Final = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "mcp__files__Read": {"type": "object", "properties": {"path": {"type": "string"}, "all": {"type": "boolean"}}},
    "nest": {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "number"}}, "map": {}}},
}


def merged(events: list[Any]) -> list[Any]:
    """The events with neighbouring deltas of one kind, and of one call, as one text."""
    found: list[Any] = []
    for (kind, _), group in itertools.groupby(events, lambda each: (type(each), getattr(each, "id", None))):
        several = list(group)
        found += [(kind, "".join([each.text for each in several]))] if kind.__name__.endswith("Delta") else several
    return found


def xml(data: bytes) -> None:
    how, which, body = opened(data)
    text = body.decode("utf-8", "surrogateescape")
    tools = TOOLS if which & 1 else None
    nonce = "k7" if which & 2 else None
    parser = StreamParser(tools, nonce)
    size = CUTS[how % len(CUTS)] if len(text) < SPLITTING else CUTS[-2]
    events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
    events += parser.close()
    assert parser.close() == []
    whole = StreamParser(tools, nonce)
    assert merged(events) == merged([*whole.feed(text), *whole.close()])
    if which & 4:  # a call that is longer than allowed
        small = StreamParser(tools, nonce, max_call_chars=50)
        repr([*small.feed(text), *small.close()])


# a whole query


def query(data: bytes) -> None:
    """An answer or an error of the tree, soon; whatever the peer says."""
    how, which, body = opened(data)
    end = ENDS[how // 16 % len(ENDS)]

    async def play(peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
            elif frame["type"] == "user":
                await peer.write(body.replace(PROMPT, (frame.get("uuid") or "").encode()))
                break
        peer.end(**end)

    def transport() -> MemoryTransport:
        return MemoryTransport(play, chunk=CUTS[how % len(CUTS)] if len(body) < SPLITTING else CUTS[-2])

    async def main() -> None:
        noise: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(str(context)))
        try:
            with anyio.fail_after(HANG):
                await USES[which % len(USES)](transport, **SETTINGS[which // 8 % len(SETTINGS)])
        except PilothouseError as error:
            repr((error, str(error)))
        assert noise == []

    _runner().run(main())


ENDS: Final[tuple[dict[str, Any], ...]] = ({}, {"exit_code": 1, "stderr": "it broke"}, {"signal": "SIGKILL"})
WAITS: Final[dict[str, Any]] = {"timeout": 0.4, "idle_timeout": 0.05, "control_timeout": 0.05}
_kept_runner: list[asyncio.Runner] = []


def _runner() -> asyncio.Runner:
    if not _kept_runner:
        _kept_runner.append(asyncio.Runner())
    return _kept_runner[0]


def end_runner() -> None:
    """Close the event loop that queries ran in."""
    while _kept_runner:
        _kept_runner.pop().close()


@ph.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def allow(request: ph.PermissionRequest) -> bool:
    return len(request.tool_name) % 2 == 0


async def watch(event: Any) -> None:
    assert isinstance(event.event_name, str)


async def decline(request: Any) -> None:
    return None


SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {
        "can_use_tool": allow,
        "hooks": {"PreToolUse": [ph.HookMatcher(None, [watch])], "Stop": [ph.HookMatcher(None, [watch])]},
        "custom_tools": [add],
        "on_elicitation": decline,
    },
    {"custom_tools": [add], "tool_bridge": "deferred"},
    {"custom_tools": [add], "tool_bridge": "xml"},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
)


async def awaited(transport: Any, **options: Any) -> None:
    result = await ph.query("go", transport=transport, **WAITS, **options)
    for thing in (result, *result.messages):
        look(thing)


async def streamed(transport: Any, **options: Any) -> None:
    asked = ph.query("go", transport=transport, **WAITS, **options)
    async for event in asked.events():
        repr(event)
    look(await asked.result())


async def read(transport: Any, **options: Any) -> None:
    async for message in ph.query("go", transport=transport, **WAITS, **options):
        assert isinstance(message, Message)


USES: Final[tuple[Callable[..., Awaitable[None]], ...]] = (awaited, streamed, read)

SHORT: Final = 0.05  # seconds; in place of those that are given to a peer that does not let go
SHORTENED: Final = (
    "interrupt.INTERRUPT_SECONDS", "activity.WAKE_SECONDS", "child.CLOSE_SECONDS", "child.INTERRUPT_SECONDS",
    "child.EXIT_NOTICE_SECONDS", "child.SEND_SECONDS", "run.DECISION_SECONDS", "child.EXIT_SECONDS",
    "child.INTERRUPT_RESPONSE_SECONDS", "child.SAVE_SECONDS",
    "channel.CANCEL_SEND_SECONDS",
)  # fmt: skip


def shorten_waits(set_to: Callable[[Any, str, float], object] = setattr) -> None:
    for place in SHORTENED:
        module, name = place.split(".")
        set_to(importlib.import_module(f"pilothouse.engine.{module}"), name, SHORT)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "connection": connection,
    "decoder": decoder,
    "framing": framing,
    "jsontext": jsontext,
    "query": query,
    "xml": xml,
}
