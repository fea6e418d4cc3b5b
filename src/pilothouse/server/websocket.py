"""The host's side of the link: one WebSocket that carries one session.

Owns a connection: who may attach, the concurrent tasks that read and write, and when to give up. `pilothouse.remote`
keeps the byte counts; the session's output comes from its `OutputLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from pilothouse.errors import PilothouseError, ProtocolError, UsageError
from pilothouse.options import PrivateFile
from pilothouse.remote.link import Link, SendBuffer
from pilothouse.remote.messages import (
    LINK_VERSION,
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
    LinkMessage,
    Ready,
    Refused,
    Start,
    StderrLine,
    decode_item,
    encode_item,
)
from pilothouse.server.auth import find_request_owner
from pilothouse.server.host import Host
from pilothouse.server.journal import OutputPrunedError
from pilothouse.server.policy import LaunchRequest, RefusedRequestError
from pilothouse.server.sessions import WebSocketSession
from pilothouse.transports import ExitInfo

_log = logging.getLogger("pilothouse.server")

FIRST_MESSAGE_SECONDS = 15.0
"""Seconds for a client's first message."""
LAST_MESSAGE_SECONDS = 2.0
"""Seconds to tell a client why the connection is closed."""
WIRE_READ_BYTES = 256 * 1024
"""Bytes per read of the output."""
OK, GOING_AWAY, POLICY, FAILED = 1000, 1001, 1008, 1011
"""Close codes of a WebSocket."""


async def serve_websocket(host: Host, socket: WebSocket) -> None:
    """Serve a WebSocket until it ends. The token was checked before.

    Args:
        host: owner of the sessions.
        socket: not accepted yet.
    """
    if SUBPROTOCOL not in socket.scope.get("subprotocols", ()):
        await socket.close(POLICY, f"this host speaks {SUBPROTOCOL}")
        return
    await socket.accept(subprotocol=SUBPROTOCOL)
    try:
        try:
            session, link, ready = await _open_session(host, await _receive_first(socket), find_request_owner(socket))
        except (RefusedRequestError, PilothouseError) as error:
            await socket.send_text(str(encode_item(_make_refused(error))))
            await socket.close(POLICY)
            return
        await _ClientConnection(host, socket, session, link).run(ready)
    except (WebSocketDisconnect, OSError):
        return  # the client has gone


async def _receive_first(socket: WebSocket) -> LinkMessage | DataChunk:
    with anyio.move_on_after(FIRST_MESSAGE_SECONDS):
        return await _receive_item(socket)
    raise RefusedRequestError("bad_request", f"the client sent no message for {FIRST_MESSAGE_SECONDS:g} s")


async def _receive_item(socket: WebSocket) -> LinkMessage | DataChunk:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", OK))
    text, data = message.get("text"), message.get("bytes")
    return decode_item(text if text is not None else data or b"")


def _make_refused(error: PilothouseError) -> Refused:
    if isinstance(error, RefusedRequestError):
        return Refused(error.code, str(error))
    if isinstance(error, ProtocolError | UsageError):
        return Refused("bad_request", str(error))
    return Refused("start_failed", str(error))


async def _open_session(host: Host, item: LinkMessage | DataChunk, owner: str) -> tuple[WebSocketSession, Link, Ready]:
    """Return the session that a client starts or attaches to, with the link and the response.

    Raises:
        RefusedRequestError: the client may not have the session.
        PilothouseError: the child could not be started.
    """
    if not isinstance(item, Start | Attach):
        raise RefusedRequestError("bad_request", "the first message must be start or attach")
    if item.version != LINK_VERSION:
        raise RefusedRequestError(
            "version", f"this host speaks version {LINK_VERSION} of the link, and not {item.version}"
        )
    if not 0 < len(item.client) <= 200:
        raise RefusedRequestError("bad_request", "client: expected an id")
    if isinstance(item, Start):
        session = await host.start_websocket_session(item.client, _make_launch_request(item.invocation), owner)
        item = Attach(LINK_VERSION, item.client, session.id, 0)
    found = host.get(item.session, owner)
    if not isinstance(found, WebSocketSession):
        raise RefusedRequestError("forbidden", "the host itself drives this session: use REST for it")
    return _attach_client(host, found, item)


def _make_launch_request(launch: LaunchMessage) -> LaunchRequest:
    if launch.user is not None:
        raise RefusedRequestError("forbidden", "user: this host runs children as its own user")
    return LaunchRequest(
        argv=launch.argv,
        tail=launch.tail,
        files=tuple(PrivateFile(file.flag, file.suffix, file.content) for file in launch.files),
        env=launch.env,
        cwd=launch.cwd,
        isolated=launch.isolated,
    )


def _attach_client(host: Host, session: WebSocketSession, item: Attach) -> tuple[WebSocketSession, Link, Ready]:
    record, output = session.record, session.output
    is_same = item.client == record.client
    if session.replace is not None and not is_same and not item.take_over:
        raise RefusedRequestError("attached_elsewhere", "another client is attached; take_over replaces it")
    begin = record.acknowledged if item.received is None else item.received
    if begin > output.end and session.has_child:
        raise RefusedRequestError("bad_request", f"the output has {output.end} bytes, and not {begin}")
    try:
        output.check_available(begin)
    except OutputPrunedError as error:
        raise RefusedRequestError("pruned", str(error)) from None
    if session.replace is not None:
        session.replace()
    if not is_same:
        session.reset_input()
        record.client = item.client
        session.journal.update_later(session.id, client=item.client)
    link = Link(SendBuffer(begin), session.receive_window, heartbeat_seconds=host.settings.heartbeat)
    link.start_connection(begin, anyio.current_time())
    ready = Ready(
        session=session.id,
        received=session.receive_window.received,
        begin=begin,
        end=output.end,
        input_ended=record.input_ended,
        conversation=record.conversation or None,
    )
    return session, link, ready


class _ClientConnection:
    """One client attached to one session: tasks that read, write, copy output, and watch for a lost client."""

    def __init__(self, host: Host, socket: WebSocket, session: WebSocketSession, link: Link) -> None:
        self._host = host
        self._socket = socket
        self._session = session
        self._link = link
        self._read_position = link.send_buffer.end
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope()
        self._last_message: LinkError | None = None
        self._code = FAILED
        self._second = self._count = 0
        # Set before the first await: no other client may find the session free.
        session.replace = self._on_replaced
        session.on_change = self._wake
        session.on_delivered = self._mark_delivered
        session.is_ending_sent = False
        session.attached_count += 1

    async def run(self, ready: Ready) -> None:
        """Serve until the client leaves, is replaced, or is lost."""
        try:
            with self._scope:
                await self._socket.send_text(str(encode_item(ready)))
                async with anyio.create_task_group() as tasks:
                    for work in (self._receive_loop, self._send_loop, self._fill_loop, self._watch_heartbeat):
                        tasks.start_soon(self._run_task, work)
        finally:
            self._detach()
        # Starlette raises RuntimeError for a WebSocket that has failed before.
        with (
            anyio.move_on_after(LAST_MESSAGE_SECONDS, shield=True),
            suppress(WebSocketDisconnect, OSError, RuntimeError),
        ):
            if self._last_message is not None:
                await self._socket.send_text(str(encode_item(self._last_message)))
            await self._socket.close(self._code)

    def _detach(self) -> None:
        session = self._session
        session.attached_count -= 1
        session.mark_used()
        if session.replace == self._on_replaced:  # else another connection has it
            session.on_detached()

    async def _run_task(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one of the tasks; the first that ends cancels all."""
        try:
            await work()
        except (WebSocketDisconnect, OSError):
            pass
        except (PilothouseError, OutputPrunedError) as error:
            self._give_up("bad_request" if isinstance(error, ProtocolError) else "failed", str(error))
        except Exception:  # noqa: BLE001 - one connection must not end the others
            _log.exception("a connection of session %s failed", self._session.id)
            self._give_up("failed", "the host failed", FAILED)
        self._scope.cancel()

    def _give_up(self, code: str, message: str, status: int = POLICY) -> None:
        self._last_message, self._code = LinkError(code, message), status
        self._scope.cancel()

    def _on_replaced(self) -> None:
        self._give_up("replaced", "another connection took its place", GOING_AWAY)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _mark_delivered(self, count: int) -> None:
        self._link.mark_delivered(count, anyio.current_time())
        self._wake()

    # The four tasks.

    async def _receive_loop(self) -> None:
        while True:
            item = await _receive_item(self._socket)
            await self._throttle()
            if self._scope.cancel_called:
                return
            unhandled = self._link.receive_item(item, anyio.current_time())
            if unhandled is not None and not await self._handle_item(unhandled):
                self._code = OK
                return
            self._wake()

    async def _throttle(self) -> None:
        """Slow down a client that sends too many messages; the WebSocket makes it wait."""
        now = anyio.current_time()
        self._count = self._count + 1 if int(now) == self._second else 1
        self._second = int(now)
        if self._count > self._host.settings.messages_per_second:
            await anyio.sleep(self._second + 1 - now)

    async def _handle_item(self, item: LinkMessage | DataChunk) -> bool:
        """Process a message; False if it was the last one."""
        session = self._session
        match item:
            case DataChunk(data=data):
                session.accept(data)
            case EndInput(at=at):
                session.end_input(at)
            case Ack(received=received, keep_from=keep_from):
                await session.output.acknowledge(received if keep_from is None else min(keep_from, received))
            case Close():
                await self._host.close(session)
                return False
            case Detach():
                return False
            case LinkError(code=code, message=message):
                _log.warning("the client of session %s gives up: %a: %a", session.id, code[:80], message[:200])
                return False
            case _:
                raise ProtocolError(f"a client does not send {type(item).__name__!r} here")
        return True

    async def _send_loop(self) -> None:
        link, session = self._link, self._session
        while True:
            while session.stderr:
                await self._send(StderrLine(session.stderr.popleft()))
            item = link.next_item(anyio.current_time())
            if item is not None:
                await self._send(item)
                session.is_ending_sent = session.is_ending_sent or isinstance(item, Ended)
                continue
            changed = self._changed
            with anyio.move_on_after(max(0.01, link.next_deadline() - anyio.current_time())):
                await changed.wait()

    async def _send(self, item: Any) -> None:
        message = encode_item(item)
        if isinstance(message, str):
            await self._socket.send_text(message)
        else:
            await self._socket.send_bytes(message)

    async def _fill_loop(self) -> None:
        link, output = self._link, self._session.output
        while True:
            while not link.send_buffer.free_bytes:
                await self._changed.wait()
            data = await output.read(self._read_position, min(WIRE_READ_BYTES, link.send_buffer.free_bytes))
            if not data:
                break
            self._read_position += len(data)
            link.send_buffer.append(data)
            self._wake()
        link.finish_with(self._make_ended())
        self._wake()
        await anyio.sleep_forever()

    def _make_ended(self) -> Ended:
        ending = self._session.record.ending or ExitInfo()
        detail = ending.detail
        if self._read_position > self._session.output.end:  # a power cut lost what the client has
            detail = f"{detail}; the output after byte {self._session.output.end} is lost here".lstrip("; ")
        return Ended(self._read_position, ending.exit_code, ending.signal, ending.stderr, detail)

    async def _watch_heartbeat(self) -> None:
        pulse = self._link.heartbeat
        while (left := pulse.lost_at - anyio.current_time()) > 0:  # noqa: ASYNC110 - it moves with every message
            await anyio.sleep(left)
        _log.info("session %s: its client sent nothing for %g s", self._session.id, self._host.settings.heartbeat * 3)
