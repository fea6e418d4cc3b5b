"""One WebSocket over an anyio byte stream, so that it works on asyncio and trio.

Wraps the I/O-free part of the package `websockets`; no other module imports that package. Owns
connecting, the opening handshake, messages and closing. Must not know what the messages mean.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from contextlib import suppress
from typing import Final, Self

import anyio
import anyio.abc
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from pilothouse.errors import RemoteError
from pilothouse_remote.messages import MAX_MESSAGE_BYTES, SUBPROTOCOL, ConnectionLostError, HostAddress

_SILENT_LOGGER: Final = logging.Logger("pilothouse.silent", logging.CRITICAL + 1)  # noqa: LOG001 - outside the logger tree
"""Logger for `websockets`, which would log headers (with the token) and messages."""
_STREAM_ERRORS: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)  # `ssl.SSLError` too
_DATA: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
READ_BYTES: Final = 256 * 1024
"""Bytes per read."""
CLOSE_HANDSHAKE_SECONDS: Final = 1.0
"""Seconds that the closing handshake may take."""


class WebSocketStream:
    """An open connection. One task sends at a time, and one receives. Made by `connect`.

    Attributes:
        is_broken: nothing can be sent any more: the connection ended, or a call was cancelled in mid-message.
    """

    def __init__(self, stream: anyio.abc.ByteStream, protocol: ClientProtocol) -> None:
        self._stream = stream
        self._protocol = protocol
        self._sending = anyio.Lock(fast_acquire=True)
        self._parts: list[bytes] = []
        self._is_text = False
        self._events: deque[Frame | Response] = deque()
        self.is_broken = False

    @classmethod
    async def connect(cls, address: HostAddress, *, token: str | None, tls: ssl.SSLContext | None = None) -> Self:
        """Connect, with the opening handshake.

        Raises:
            RemoteError: the host refuses ("unauthorized", "forbidden"), or does not speak this protocol.
            ConnectionLostError: the host does not respond, or is unavailable for the moment.
        """
        subprotocol = Subprotocol(SUBPROTOCOL)
        protocol = ClientProtocol(
            parse_uri(address.url), subprotocols=[subprotocol], max_size=MAX_MESSAGE_BYTES, logger=_SILENT_LOGGER
        )
        try:
            stream = await anyio.connect_tcp(
                address.host, address.port, tls=address.is_secure, ssl_context=tls, tls_standard_compatible=False
            )
        except (*_STREAM_ERRORS, anyio.EndOfStream) as error:
            raise ConnectionLostError(_describe_error(error)) from error
        socket = cls(stream, protocol)
        try:
            await socket._open_handshake(token)
            if protocol.subprotocol != SUBPROTOCOL:
                raise RemoteError(f"{address.url}: no pilothouse host answers there", code="protocol")
        except BaseException:
            await socket.abort()
            raise
        return socket

    async def _open_handshake(self, token: str | None) -> None:
        request = self._protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)
        async with self._sending:
            await self._flush()
        while not isinstance(response := await self._next_event(), Response):
            pass
        failure = self._protocol.handshake_exc
        if isinstance(failure, InvalidStatus):
            raise _make_status_error(response.status_code)
        if failure is not None:
            raise RemoteError(f"no WebSocket answers there: {failure}", code="protocol")

    async def _next_event(self) -> Frame | Response:
        while not self._events:
            if self._is_over:
                raise self._make_lost_error()
            try:
                self._protocol.receive_data(await self._stream.receive(READ_BYTES))
            except anyio.EndOfStream:
                self._protocol.receive_eof()
            except _STREAM_ERRORS as error:
                raise self._note_lost(error) from error
            events = self._protocol.events_received()
            self._events.extend(event for event in events if isinstance(event, Frame | Response))  # pyright: ignore[reportArgumentType]
            has_reply = not events or not all(isinstance(event, Frame) and event.opcode in _DATA for event in events)
            if has_reply and not self._sending.locked():  # a pong, or the response to a close
                async with self._sending:
                    await self._flush()
        return self._events.popleft()

    @property
    def _is_over(self) -> bool:
        protocol = self._protocol
        if protocol.handshake_exc is not None or protocol.state is State.CLOSED:
            return True
        return protocol.close_rcvd is not None and protocol.close_sent is not None  # either side may end TCP first

    def _note_lost(self, error: Exception) -> ConnectionLostError:
        self.is_broken = True
        return ConnectionLostError(_describe_error(error))

    def _make_lost_error(self) -> ConnectionLostError:
        self.is_broken = True
        protocol = self._protocol
        if protocol.handshake_exc is not None:
            return ConnectionLostError(f"the opening handshake broke off: {protocol.handshake_exc}")
        if protocol.close_rcvd is not None:
            return ConnectionLostError(f"closed by the host ({protocol.close_rcvd})")
        return ConnectionLostError(f"closed: {protocol.close_sent or 'without a reason'}")

    async def _flush(self) -> None:
        """Send all pending bytes of the protocol. Needs the lock; one flush serves all waiting callers."""
        while pieces := self._protocol.data_to_send():
            for data in filter(None, pieces):  # an empty piece means half-closing TCP, which TLS cannot do
                try:
                    await self._stream.send(data)
                except _STREAM_ERRORS as error:
                    raise self._note_lost(error) from error
                except BaseException:
                    self.is_broken = True  # half a frame was sent
                    raise

    async def send(self, message: str | bytes) -> None:
        """Send a message.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        async with self._sending:
            if self.is_broken or self._protocol.state is not State.OPEN:
                raise self._make_lost_error()
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
            await self._flush()

    async def wait_until_sent(self) -> None:
        """Wait until no message is on its way."""
        async with self._sending:
            pass

    async def receive(self) -> str | bytes:
        """Return the next message.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        while True:
            frame = await self._next_event()
            if isinstance(frame, Response) or frame.opcode not in _DATA:
                continue  # the protocol responds to pings; a close shows up as the end
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._parts.append(bytes(frame.data))
            if not frame.fin:
                continue
            message = b"".join(self._parts)
            self._parts.clear()
            return message.decode("utf-8", "replace") if self._is_text else message

    async def close(self) -> None:
        """Close with the closing handshake; drops what still arrives. Bounded in time, shielded; raises nothing."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSE_HANDSHAKE_SECONDS), suppress(ConnectionLostError):
                async with self._sending:
                    if not self.is_broken and self._protocol.state is State.OPEN:
                        self._protocol.send_close(1000)
                        await self._flush()
                while True:
                    await self.receive()
            await self.abort()

    async def abort(self) -> None:
        """Close without a handshake; raises nothing."""
        self.is_broken = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSE_HANDSHAKE_SECONDS), suppress(Exception):
                await self._stream.aclose()


_STATUS_ERRORS: Final = {
    401: ("unauthorized", "the token is missing or wrong"),
    403: ("forbidden", "it does not have the host name of this address (`--name` adds one), or not its path"),
}
_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Of a host, or a proxy before it, that may recover."""


def _make_status_error(status: int) -> Exception:
    if status in _TRANSIENT_STATUSES:
        return ConnectionLostError(f"the host is busy or not available (HTTP {status})")
    code, why = _STATUS_ERRORS.get(status, ("protocol", "no pilothouse host answers there"))
    return RemoteError(f"the host refuses: {why} (HTTP {status})", code=code)


def _describe_error(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
