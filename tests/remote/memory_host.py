"""A small host in memory, and a proxy that breaks connections, for what the client's side of the link has to stand.

The host keeps all output, so that everything can be compared; it runs on either event loop, next to the client.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.abc
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pilothouse.options import Invocation, PrivateFile
from pilothouse.remote.address import ConnectionLostError
from pilothouse.remote.link import CompleteLines, Link, ReceiveWindow, SendBuffer
from pilothouse.remote.messages import (
    MAX_MESSAGE_BYTES,
    SUBPROTOCOL,
    Ack,
    Attach,
    Close,
    DataChunk,
    Detach,
    Ended,
    EndInput,
    LaunchMessage,
    LinkError,
    Ready,
    Refused,
    Start,
    StderrLine,
    decode_item,
    encode_item,
)
from pilothouse.remote.websocket import WebSocketStream
from pilothouse.transports import Transport

MakePeer = Callable[[LaunchMessage], tuple[Transport, Invocation]]


class HostedSession:
    def __init__(self, launch: LaunchMessage, make: MakePeer, client: str, *, acknowledges: bool) -> None:
        self.id, self.client, self.launch = str(uuid.uuid4()), client, launch
        self.inner, self.invocation = make(launch)
        self.journal = bytearray()
        self.input = ReceiveWindow()
        self.input_ended = False
        self.keep_from = 0
        self.ended: Ended | None = None
        self.gone = anyio.Event()
        self.changed = anyio.Event()
        self.attachment: Attachment | None = None
        self.attached = 0
        self.stderr: list[str] = []
        self.scope = anyio.CancelScope()
        self.acknowledges = acknowledges
        self._whole = CompleteLines()
        self._queue: list[tuple[int, bytes] | None] = []

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def taken_over(self) -> None:
        self.input.received -= self._whole.drop()
        self.input.rewind()

    def complain(self, line: str) -> None:
        self.stderr.append(line)
        self.notify()

    def take(self, data: bytes) -> None:
        self._queue.append((len(data), self._whole.feed(data)))
        self.notify()

    def end_input(self) -> None:
        if not self.input_ended:
            self.input_ended = True
            self._queue.append((0, self._whole.flush()))
            self._queue.append(None)
            self.notify()

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.inner.serve)
                group.start_soon(self._feed)
                with self.scope:
                    await self._read()
                    await anyio.sleep_forever()
                group.cancel_scope.cancel()
        finally:
            await self.inner.close()
            self.gone.set()
            self.notify()

    async def _feed(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                while not self._queue:
                    await self.changed.wait()
                item = self._queue.pop(0)
                if item is None:
                    await self.inner.end_input()
                    return
                count, lines = item
                if lines:
                    await self.inner.send(lines)
                if self.acknowledges:
                    self.input.mark_delivered(count)
                    self.notify()

    async def _read(self) -> None:
        while data := await self.inner.receive():
            self.journal += data
            self.notify()
        ending = await self.inner.exit_info()
        self.ended = Ended(len(self.journal), ending.exit_code, ending.signal, ending.stderr, ending.detail)
        self.notify()


class Attachment:
    """One connection to a session."""

    def __init__(self, socket: WebSocketStream, session: HostedSession, start: int, heartbeat: float) -> None:
        self.socket, self.session = socket, session
        self.link = Link(SendBuffer(start), session.input, heartbeat_seconds=heartbeat)
        self.link.start_connection(start, anyio.current_time())
        self.replaced = False
        self._stderr_said = 0

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for work in (self._speak, self._listen):
                group.start_soon(self._until_lost, work, group.cancel_scope)

    async def _until_lost(self, work: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        with suppress(ConnectionLostError):
            await work()
        scope.cancel()

    async def _speak(self) -> None:
        session, link = self.session, self.link
        while not self.replaced:
            news = session.changed
            while (room := link.send_buffer.free_bytes) and link.send_buffer.end < len(session.journal):
                link.send_buffer.append(bytes(session.journal[link.send_buffer.end : link.send_buffer.end + room]))
            if session.ended is not None and not link.has_finished and link.send_buffer.end == len(session.journal):
                link.finish_with(session.ended)
            for line in session.stderr[self._stderr_said :]:
                await self.socket.send(encode_item(StderrLine(line)))
            self._stderr_said = len(session.stderr)
            while (said := link.next_item(anyio.current_time())) is not None:
                await self.socket.send(encode_item(said))
            with anyio.move_on_after(max(0.0, link.next_deadline() - anyio.current_time())):
                await news.wait()
        await self.socket.send(encode_item(LinkError("replaced", "another client took over")))

    async def _listen(self) -> None:
        session = self.session
        while True:
            said = self.link.receive_item(decode_item(await self.socket.receive()), anyio.current_time())
            match said:
                case DataChunk(data=data):
                    session.take(data)
                case Ack(keep_from=int(line)):
                    session.keep_from = line
                case EndInput():
                    session.end_input()
                case Close():
                    session.scope.cancel()
                    await session.gone.wait()
                    return
                case Detach():
                    return
                case _:
                    pass
            session.notify()


class SmallHost:
    """Attributes say what it did, and let a test spoil it."""

    def __init__(self, make: MakePeer, *, heartbeat: float = 0.0, token: str | None = None) -> None:
        self._make = make
        self._heartbeat = heartbeat
        self._token = token
        self.sessions: dict[str, HostedSession] = {}
        self.openings: list[Start | Attach] = []
        self.refuse: Refused | None = None
        self.conversation: str | None = None
        self.acknowledges = True
        self.breaks_before_ready = 0
        self.port = 0
        self._group: anyio.abc.TaskGroup

    @property
    def session(self) -> HostedSession:
        (session,) = self.sessions.values()
        return session

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[SmallHost]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as self._group:
            self._group.start_soon(partial(listener.serve, self._serve))
            yield self
            self._group.cancel_scope.cancel()

    async def _serve(self, stream: anyio.abc.ByteStream) -> None:
        with suppress(ConnectionLostError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            async with stream:
                socket = await self._accept(stream)
                if socket is None:
                    return
                try:
                    await self._talk(socket)
                finally:
                    await socket.close()

    async def _accept(self, stream: anyio.abc.ByteStream) -> WebSocketStream | None:
        protocol = ServerProtocol(subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MAX_MESSAGE_BYTES)
        while not (events := protocol.events_received()):
            protocol.receive_data(await stream.receive())
        request = events[0]
        assert isinstance(request, Request)
        is_known = self._token is None or request.headers.get("Authorization") == f"Bearer {self._token}"
        response = protocol.accept(request) if is_known else protocol.reject(401, "no")
        protocol.send_response(response)
        for data in protocol.data_to_send():
            if data:
                await stream.send(data)
        if not is_known:
            await stream.aclose()
            return None
        return WebSocketStream(stream, protocol)  # pyright: ignore[reportArgumentType]

    async def _talk(self, socket: WebSocketStream) -> None:
        opening = decode_item(await socket.receive())
        assert isinstance(opening, Start | Attach)
        self.openings.append(opening)
        found = self.refuse or await self._find(opening)
        if isinstance(found, Refused):
            await socket.send(encode_item(found))
            return
        if self.breaks_before_ready:
            self.breaks_before_ready -= 1
            await socket.abort()
            return
        begin = self._begin(found, opening)
        before, found.attachment = found.attachment, Attachment(socket, found, begin, self._heartbeat)
        if before is not None:
            before.replaced = True
        found.attached += 1
        ready = Ready(
            found.id,
            found.input.received,
            begin,
            len(found.journal),
            input_ended=found.input_ended,
            conversation=self.conversation,
        )
        await socket.send(encode_item(ready))
        found.notify()
        try:
            await found.attachment.run()
        finally:
            self._left(found, socket)

    @staticmethod
    def _left(session: HostedSession, socket: WebSocketStream) -> None:
        if session.attachment is not None and session.attachment.socket is socket:
            session.attachment = None

    def _begin(self, session: HostedSession, opening: Start | Attach) -> int:
        if isinstance(opening, Attach) and opening.received is not None:
            return opening.received
        if opening.client != session.client:
            session.client = opening.client
            session.taken_over()
        return session.keep_from

    async def _find(self, opening: Start | Attach) -> HostedSession | Refused:
        if isinstance(opening, Attach):
            session = self.sessions.get(opening.session)
            if session is None:
                return Refused("unknown_session", "there is no such session")
            if session.attachment is not None and opening.client != session.client and not opening.take_over:
                return Refused("attached_elsewhere", "another client is attached")
            return session
        for session in self.sessions.values():
            if session.client == opening.client:
                return session
        session = HostedSession(opening.invocation, self._make, opening.client, acknowledges=self.acknowledges)
        await session.inner.start(_told(session))
        self.sessions[session.id] = session
        self._group.start_soon(session.run)
        return session


def _told(session: HostedSession) -> Invocation:
    from msgspec.structs import replace

    return replace(session.invocation, on_stderr=session.complain)


def invocation_of(launch: LaunchMessage, cli: str, base: dict[str, str] | None = None) -> Invocation:
    """What a host with no rules makes of the wishes of a client."""
    env: dict[str, Any] = {**(base or {}), **launch.env}
    return Invocation(
        cli=cli,
        argv=launch.argv,
        trailing_args=launch.tail,
        files=tuple(PrivateFile(file.flag, file.suffix, file.content) for file in launch.files),
        env={name: value for name, value in env.items() if value is not None},
        cwd=launch.cwd,
        is_isolated=launch.isolated,
    )


class Proxy:
    """Between client and host. Each connection gets the next of `plans`; without one it is let through.

    Attributes:
        plans: for each connection a function that makes of (direction, number of bytes so far, data) what passes; None
            cuts the connection, b"" swallows.
    """

    def __init__(self, host: SmallHost) -> None:
        self._host = host
        self.plans: list[Callable[[str, int, bytes], bytes | None]] = []
        self.connections = 0
        self.is_down = False
        self.port = 0
        self._open: set[anyio.CancelScope] = set()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Cut all connections."""
        for scope in list(self._open):
            scope.cancel()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Proxy]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(partial(listener.serve, self._serve))
            yield self
            group.cancel_scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        self.connections += 1
        plan = self.plans.pop(0) if self.plans else _let_through
        async with client:
            if self.is_down:
                return
            there = await anyio.connect_tcp("127.0.0.1", self._host.port)
            async with there as host, anyio.create_task_group() as group:
                self._open.add(group.cancel_scope)
                try:
                    group.start_soon(self._pass, "up", client, host, plan, group.cancel_scope)
                    await self._pass("down", host, client, plan, group.cancel_scope)
                finally:
                    self._open.discard(group.cancel_scope)

    async def _pass(
        self,
        direction: str,
        source: anyio.abc.SocketStream,
        target: anyio.abc.SocketStream,
        plan: Callable[[str, int, bytes], bytes | None],
        scope: anyio.CancelScope,
    ) -> None:
        count = 0
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            while True:
                data = await source.receive()
                passed = plan(direction, count, data)
                if passed is None:
                    break
                count += len(data)
                if passed:
                    await target.send(passed)
        scope.cancel()


def _let_through(direction: str, count: int, data: bytes) -> bytes:
    return data


def cut_after(direction: str, limit: int) -> Callable[[str, int, bytes], bytes | None]:
    """Pass `limit` bytes in that direction, at any place in a frame; the connection is gone after that."""
    over = False

    def plan(which: str, count: int, data: bytes) -> bytes | None:
        nonlocal over
        if which != direction:
            return None if over else data
        if over or count >= limit:
            return None
        over = count + len(data) >= limit
        return data[: limit - count]

    return plan


def swallow_after(limit: int) -> Callable[[str, int, bytes], bytes | None]:
    """Half open: after `limit` bytes down nothing arrives any more, in either direction, and nobody is told."""
    over = False

    def plan(which: str, count: int, data: bytes) -> bytes:
        nonlocal over
        over = over or (which == "down" and count + len(data) > limit)
        return b"" if over else data

    return plan
