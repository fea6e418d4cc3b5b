"""The host's side of the link: one WebSocket that carries one session.

Owns a connection: who may attach, the concurrent tasks that read and write, and when to give up. `pilothouse_remote`
keeps the byte counts; the session's output comes from its `OutputLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from pilothouse.errors import PilothouseError, ProtocolError, UsageError
from pilothouse.transports import ExitInfo
from pilothouse_access.guard import RefusedRequestError, find_access
from pilothouse_host.host import Host
from pilothouse_host.journal import OutputPrunedError
from pilothouse_host.server_sessions import WebSocketSession
from pilothouse_remote.messages import (
    LINK_VERSION,
    SUBPROTOCOL,
    Ack,
    Attach,
    Close,
    DataChunk,
    Detach,
    Ended,
    EndInput,
    LinkError,
    LinkItem,
    Ready,
    Refused,
    Start,
    StderrLine,
    decode_item,
    encode_item,
)

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
        opening = None
        with anyio.move_on_after(FIRST_MESSAGE_SECONDS):
            opening = await _receive_item(socket)
        connection = await _open_session(host, socket, opening)
        await connection.run()
    except PilothouseError as error:
        with suppress(WebSocketDisconnect, OSError):
            await _send_item(socket, Refused(_find_refusal_code(error), str(error)))
            await socket.close(POLICY)
    except (WebSocketDisconnect, OSError):
        return  # the client has gone


async def _receive_item(socket: WebSocket) -> LinkItem:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", OK))
    text, data = message.get("text"), message.get("bytes")
    return decode_item(text if text is not None else data or b"")


async def _send_item(socket: WebSocket, item: LinkItem) -> None:
    message = encode_item(item)
    if isinstance(message, str):
        await socket.send_text(message)
    else:
        await socket.send_bytes(message)


def _find_refusal_code(error: PilothouseError) -> str:
    if isinstance(error, RefusedRequestError):
        return error.code
    if isinstance(error, OutputPrunedError):
        return "pruned"
    return "bad_request" if isinstance(error, ProtocolError | UsageError) else "start_failed"


async def _open_session(host: Host, socket: WebSocket, item: LinkItem | None) -> _ClientConnection:
    """Start a session, or attach to one.

    Raises:
        RefusedRequestError, OutputPrunedError: the client may not have the session.
        PilothouseError: the child could not be started.
    """
    if item is None:
        raise RefusedRequestError("bad_request", f"the client sent no message for {FIRST_MESSAGE_SECONDS:g} s")
    if not isinstance(item, Start | Attach):
        raise RefusedRequestError("bad_request", "the first message must be start or attach")
    if item.version != LINK_VERSION:
        raise RefusedRequestError(
            "version", f"this host speaks version {LINK_VERSION} of the link, and not {item.version}"
        )
    if not 0 < len(item.client) <= 200:
        raise RefusedRequestError("bad_request", "client: expected an id")
    owner = find_access(socket).owner
    if isinstance(item, Start):
        session = await host.start_websocket_session(item.client, item.invocation, owner)
        item = Attach(LINK_VERSION, item.client, session.id, 0)
    found = host.get(item.session, owner)
    if not isinstance(found, WebSocketSession):
        raise RefusedRequestError("forbidden", "the host itself drives this session: use REST for it")
    if found.client_scope is not None and item.client != found.record.client and not item.take_over:
        raise RefusedRequestError("attached_elsewhere", "another client is attached; take_over replaces it")
    begin = found.record.acknowledged if item.received is None else item.received
    if begin > found.output.end and found.has_child:
        raise RefusedRequestError("bad_request", f"the output has {found.output.end} bytes, and not {begin}")
    found.output.check_available(begin)
    return _ClientConnection(host, socket, found, item.client, begin)  # at once: no other client may find it free


class _ClientConnection:
    """One client attached to one session: tasks that read, write, copy output, and watch for a lost client."""

    def __init__(self, host: Host, socket: WebSocket, session: WebSocketSession, client: str, begin: int) -> None:
        self._host = host
        self._socket = socket
        self._session = session
        self._scope = anyio.CancelScope()
        self._link = session.attach(client, begin, host.settings.heartbeat, self._scope)
        self._read_position = begin
        self._last_message: LinkError | None = None
        self._code = FAILED
        self._second = self._count = 0
        session.attached_count += 1

    async def run(self) -> None:
        """Serve until the client leaves, is replaced, or is lost."""
        session, record = self._session, self._session.record
        ready = Ready(
            session=session.id,
            received=self._link.receive_window.received,
            begin=self._read_position,
            end=session.output.end,
            input_ended=record.input_ended,
            conversation=record.conversation or None,
        )
        try:
            with self._scope:
                await _send_item(self._socket, ready)
                async with anyio.create_task_group() as tasks:
                    for work in (self._receive_loop, self._send_loop, self._fill_loop, self._watch_heartbeat):
                        tasks.start_soon(self._run_task, work)
        finally:
            session.attached_count -= 1
            session.mark_used()
            if session.client_scope is self._scope:
                session.client_scope = None
            else:
                self._give_up("replaced", "another connection took its place", GOING_AWAY)
        # Starlette raises RuntimeError for a WebSocket that has failed before.
        with (
            anyio.move_on_after(LAST_MESSAGE_SECONDS, shield=True),
            suppress(WebSocketDisconnect, OSError, RuntimeError),
        ):
            if self._last_message is not None:
                await _send_item(self._socket, self._last_message)
            await self._socket.close(self._code)

    async def _run_task(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one of the tasks; the first that ends cancels all."""
        try:
            await work()
        except (WebSocketDisconnect, OSError):
            pass
        except PilothouseError as error:
            self._give_up("bad_request" if isinstance(error, ProtocolError) else "failed", str(error))
        except Exception:  # noqa: BLE001 - one connection must not end the others
            _log.exception("a connection of session %s failed", self._session.id)
            self._give_up("failed", "the host failed", FAILED)
        self._scope.cancel()

    def _give_up(self, code: str, message: str, status: int = POLICY) -> None:
        self._last_message, self._code = LinkError(code, message), status
        self._scope.cancel()

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
            self._session.changed.notify_all()

    async def _throttle(self) -> None:
        """Slow down a client that sends too many messages; the WebSocket makes it wait."""
        now = anyio.current_time()
        self._count = self._count + 1 if int(now) == self._second else 1
        self._second = int(now)
        if self._count > self._host.settings.messages_per_second:
            await anyio.sleep(self._second + 1 - now)

    async def _handle_item(self, item: LinkItem) -> bool:
        """Process a message; False if it was the last one."""
        session = self._session
        match item:
            case DataChunk(data=data):
                session.accept(data)
            case EndInput():
                session.end_input()
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
                await _send_item(self._socket, StderrLine(session.stderr.popleft()))
            item = link.next_item(anyio.current_time())
            if item is not None:
                await _send_item(self._socket, item)
            elif not session.stderr:
                with anyio.move_on_after(max(0.01, link.next_deadline - anyio.current_time())):
                    await session.changed.wait()

    async def _fill_loop(self) -> None:
        session, outbound = self._session, self._link.send_buffer
        while True:
            await session.changed.wait_until(lambda: outbound.free_bytes > 0)
            data = await session.output.read(self._read_position, min(WIRE_READ_BYTES, outbound.free_bytes))
            if not data:
                break
            self._read_position += len(data)
            outbound.append(data)
            session.changed.notify_all()
        self._link.last_message = self._make_ended()
        session.changed.notify_all()
        await anyio.sleep_forever()

    def _make_ended(self) -> Ended:
        ending = self._session.record.ending or ExitInfo()
        detail = ending.detail
        if self._read_position > self._session.output.end:  # a power cut lost what the client has
            detail = f"{detail}; the output after byte {self._session.output.end} is lost here".lstrip("; ")
        return Ended(self._read_position, ending.exit_code, ending.signal, ending.stderr, detail)

    async def _watch_heartbeat(self) -> None:
        while (left := self._link.lost_at - anyio.current_time()) > 0:  # noqa: ASYNC110 - it moves with every message
            await anyio.sleep(left)
        _log.info("session %s: its client sent nothing for %g s", self._session.id, self._host.settings.heartbeat * 3)
