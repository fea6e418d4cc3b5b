"""A client's connection to one session of a host, reconnected whenever it breaks.

Owns connecting, the opening, sending and receiving, giving up, and the closing message. `link` keeps the
byte counts, `websocket` the WebSocket. Must not know what the bytes mean or which request they belong to.
"""

from __future__ import annotations

import logging
import random
import ssl
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
import anyio.lowlevel

from pilothouse.errors import CLIStartError, PilothouseError, ProtocolError, RemoteError
from pilothouse.support import LoopCondition
from pilothouse_remote.link import MAX_MISSED_HEARTBEATS, Backoff, Link, ReceiveWindow, SendBuffer
from pilothouse_remote.messages import (
    LINK_VERSION,
    Attach,
    Close,
    ConnectionLostError,
    DataChunk,
    Ended,
    EndInput,
    HostAddress,
    LaunchMessage,
    LinkError,
    LinkItem,
    LinkMessage,
    Ready,
    Refused,
    Start,
    StderrLine,
    decode_item,
    encode_item,
)
from pilothouse_remote.websocket import WebSocketStream

log = logging.getLogger("pilothouse.transports")

CONNECT_SECONDS: Final = 15.0
"""Seconds for TCP, TLS and the opening handshake; and again for the host to find the session after a break."""
READY_SECONDS: Final = 90.0
"""Seconds for the host to start a child, or to find the session for the first time."""
CLOSE_SECONDS: Final = 6.5
"""Seconds for closing: until the host reports that the child is gone."""
FINISH_SENDING_SECONDS: Final = 0.5
"""Seconds, before those of `CLOSE_SECONDS`, for the message that is being sent."""
RECONNECT_TO_CLOSE_SECONDS: Final = 3.0
"""Seconds, within `CLOSE_SECONDS`, to reconnect to a lost host for the closing message."""
ABANDON_SECONDS: Final = 2.0
"""Seconds to tell a host to end a session whose start was abandoned."""
MIN_CONNECT_SECONDS: Final = 1.0
"""Minimum seconds for an attempt to reconnect, even for the last one."""
MAX_SLEEP_SECONDS: Final = 3600.0
"""Maximum seconds between checks, because there may be no next heartbeat."""
TRANSIENT_REFUSALS: Final = frozenset({"limit", "draining"})
"""Codes of refusals that may be temporary."""


class RemoteConnection:
    """Connection of one client to one session. Call `open`, `serve` and `close` once each, in this order.

    Arguments as for `WebSocketTransport`, whose `reconnect` is `backoff` here.

    Attributes:
        client: id of this client, the same for all its connections.
        session: id of the session, once known.
        link: byte counts of both directions.
        ready: the host's first description of the session; None before.
        received_chunks: received bytes that were not handed on yet.
        ended: how the child ended, if it did.
        failure: why the host was given up, if it was.
        last_error: why there is no connection.
        on_stderr: called with each line of the child's standard error.
        is_closed: whether `close` was called; all waits end then.
    """

    def __init__(
        self,
        address: HostAddress,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        session: str | None,
        take_over: bool,
        backoff: Backoff,
        heartbeat: float,
    ) -> None:
        self.address = address
        self.client = str(uuid.uuid4())
        self.session = session
        self.link = Link(heartbeat_seconds=heartbeat)
        self.ready: Ready | None = None
        self.received_chunks: deque[bytes] = deque()
        self.ended: Ended | None = None
        self.failure: PilothouseError | None = None
        self.last_error = ""
        self.on_stderr: Callable[[str], object] = len
        self.is_closed = False
        self._token, self._tls, self._take_over, self._backoff = token, tls, take_over, backoff
        self._launch: LaunchMessage | None = None
        self._has_answered = False
        self._socket: WebSocketStream | None = None
        self._condition = LoopCondition()  # wakes the waits for a condition
        self._sending = LoopCondition()  # wakes the sending task
        self._scope: anyio.CancelScope | None = None  # scope of `serve`
        self._serve_finished = anyio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._socket is not None

    @property
    def is_complete(self) -> bool:
        """Whether all output has arrived."""
        return self.ended is not None and self.link.receive_window.is_complete

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will arrive."""
        return self.failure is not None or self.is_complete

    # Opening.

    async def open(self, launch: LaunchMessage) -> None:
        """Connect to the host, and start or attach to the session.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
            CLIStartError: the host could not start the child.
        """
        self._launch = launch
        try:
            await self._connect()
        except ConnectionLostError as error:
            if not self._has_answered:
                text = f"{self.address.url} cannot be reached: {error}; check the address, and that the host runs there"
                raise RemoteError(text, code="unreachable") from error
            self.last_error = str(error)
            if not await self._reconnect():
                assert self.failure is not None
                raise self.failure from error

    async def _connect(self) -> None:
        """Connect once, and start or attach to the session.

        Raises:
            RemoteError, CLIStartError: the host refuses.
            ConnectionLostError: the host cannot be reached for now.
        """
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                socket = await WebSocketStream.connect(self.address, token=self._token, tls=self._tls)
        except TimeoutError:
            raise ConnectionLostError(f"no answer within {CONNECT_SECONDS:g} s") from None
        self._has_answered = True
        try:
            self.link.receive_window.rewind()
            self.received_chunks.clear()
            await socket.send(encode_item(self._make_opening_message()))
            limit = READY_SECONDS if self.ready is None else CONNECT_SECONDS  # the connection may be half open
            with anyio.move_on_after(limit):
                self._accept_ready(decode_item(await socket.receive()))
                self._socket = socket
                return
            raise ConnectionLostError(f"the host sent nothing for {limit:g} s")
        except ProtocolError as error:
            raise self._make_protocol_error(error) from error
        finally:
            if self._socket is not socket:
                if self.session is None and not socket.is_broken:  # a session was possibly started
                    with anyio.move_on_after(ABANDON_SECONDS, shield=True), suppress(ConnectionLostError):
                        await socket.send(encode_item(Close()))
                await socket.abort()

    def _make_opening_message(self) -> LinkMessage:
        if self.session is None:
            assert self._launch is not None
            return Start(LINK_VERSION, self.client, self._launch)
        received = None if self.ready is None else self.link.receive_window.received
        return Attach(LINK_VERSION, self.client, self.session, received, self._take_over and self.ready is None)

    def _accept_ready(self, item: LinkItem) -> None:
        match item:
            case Ready():
                pass
            case Refused(code="start_failed", message=message):
                raise CLIStartError(f"the host could not start the CLI: {message}")
            case Refused(code=code, message=message) if code in TRANSIENT_REFUSALS and self.ready is not None:
                raise ConnectionLostError(message)
            case Refused(code=code, message=message) | LinkError(code=code, message=message):
                raise RemoteError(f"the host refuses: {message} ({code})", code=code)
            case _:
                raise ProtocolError(f"the host sent {type(item).__name__} instead of an answer")
        if self.ready is None:
            inbound = ReceiveWindow(item.begin)
            inbound.keep_from = item.begin
            self.link = Link(SendBuffer(item.received), inbound, heartbeat_seconds=self.link.heartbeat_seconds)
            if item.input_ended:
                self.link.last_message = EndInput(item.received)
            self.ready, self.session = item, item.session
        elif item.begin != self.link.receive_window.received:
            raise ProtocolError(
                f"the host continues at byte {item.begin}, not at byte {self.link.receive_window.received}"
            )
        self.link.start_connection(item.received, anyio.current_time())

    # Serving.

    async def serve(self) -> None:
        """Keep the connection up until the session ends or the host is given up."""
        try:
            with anyio.CancelScope() as self._scope:
                while self._socket is not None:
                    await self._run_connection(self._socket)
                    if self.is_finished or not await self._reconnect():
                        return
        finally:
            self._scope = None
            self._serve_finished.set()

    async def _run_connection(self, socket: WebSocketStream) -> None:
        """Send and receive until the connection ends."""

        async def run(work: Callable[[WebSocketStream], Awaitable[None]]) -> None:
            try:
                await work(socket)
            except ConnectionLostError as error:
                self.last_error = self.last_error or str(error)
            except ProtocolError as error:
                self._fail(self._make_protocol_error(error))
            group.cancel_scope.cancel()

        self.last_error = ""
        async with anyio.create_task_group() as group:
            for work in (self._send_loop, self._receive_loop, self._watch_heartbeat):
                group.start_soon(run, work)
        self._socket = None
        self._condition.notify_all()
        await socket.abort()

    async def _send_loop(self, socket: WebSocketStream) -> None:
        link = self.link
        while True:
            while (item := link.next_item(anyio.current_time())) is not None:
                await socket.send(encode_item(item))
            with anyio.move_on_after(max(0.0, link.next_deadline - anyio.current_time())):
                await self._sending.wait()

    async def _receive_loop(self, socket: WebSocketStream) -> None:
        while True:
            message = await socket.receive()
            if (item := self.link.receive_item(decode_item(message), anyio.current_time())) is not None:
                self._handle_item(item)
            if not isinstance(item, DataChunk):  # there may be a reply to send, or new window space
                self._sending.notify_all()

    async def _watch_heartbeat(self, _: WebSocketStream) -> None:
        # Not in `_send_loop`: a half-open connection may block that task in the middle of a message.
        link = self.link
        while (remaining := link.lost_at - anyio.current_time()) > 0:  # noqa: ASYNC110 - `lost_at` moves each time
            await anyio.sleep(min(remaining, MAX_SLEEP_SECONDS))
        raise ConnectionLostError(f"the host sent nothing for {MAX_MISSED_HEARTBEATS * link.heartbeat_seconds:g} s")

    def _handle_item(self, item: LinkItem) -> None:
        self._condition.notify_all()
        match item:
            case DataChunk(data=data):
                self.received_chunks.append(data)
            case Ended():
                self.ended = item
            case StderrLine(line=line):
                self.on_stderr(line)
            case LinkError(code=code, message=message):
                self._fail(RemoteError(f"the host ended the link: {message} ({code})", code=code))
                raise ConnectionLostError(message)
            case _:
                pass

    async def _reconnect(self) -> bool:
        """Connect again. Returns whether that succeeded; if not, `failure` says why."""
        lost_at, tries = anyio.current_time(), 0
        log.info("the connection to %s broke: %s", self.address.url, self.last_error)
        while (remaining := lost_at + self._backoff.give_up_after - anyio.current_time()) > 0:
            delay = self._backoff.delay(tries, random.random())  # noqa: S311 - it only spreads clients
            await anyio.sleep(min(delay, remaining))
            tries += 1
            try:
                with anyio.move_on_after(max(remaining - delay, MIN_CONNECT_SECONDS)):
                    await self._connect()
            except ConnectionLostError as error:
                self.last_error = str(error)
            except (RemoteError, CLIStartError) as error:
                self._fail(error)
                return False
            if self._socket is not None:
                log.info("connected to %s again, after %d tries", self.address.url, tries)
                self._condition.notify_all()
                return True
        message = (
            f"the connection to {self.address.url} broke, and the client could not connect again within "
            f"{self._backoff.give_up_after:g} s: {self.last_error}; the session may still run there: "
            f"WebSocketTransport(…, session={self.session!r})"
        )
        self._fail(RemoteError(message, code="lost"))
        return False

    def _make_protocol_error(self, error: ProtocolError) -> RemoteError:
        return RemoteError(f"the host {self.address.host} broke the rules of the link: {error}", code="protocol")

    def _fail(self, error: PilothouseError) -> None:
        self.failure = self.failure or error
        self._condition.notify_all()

    # The stream, for the transport.

    def send(self, data: bytes) -> None:
        """Queue bytes for sending, whole, so that a cancelled call leaves no partial line."""
        self.link.send_buffer.append(data)
        self._sending.notify_all()

    def end_input(self) -> None:
        """End the input after what was sent. Idempotent."""
        if self.link.last_message is None:
            self.link.last_message = EndInput(self.link.send_buffer.end)
            self._sending.notify_all()

    def mark_delivered(self, count: int) -> None:
        """Record that the next `count` received bytes were handed on; see `Link.mark_delivered`."""
        if self.link.mark_delivered(count, anyio.current_time()):
            self._sending.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Also returns once it can no longer hold: after `close` or a failure."""
        await anyio.lowlevel.checkpoint()
        await self._condition.wait_until(lambda: condition() or self.is_closed or self.failure is not None)

    # Closing.

    async def close(self, last_message: LinkMessage, *, reconnects: bool) -> None:
        """Send the closing message, and wait until the host has closed the connection. Call it shielded.

        Args:
            last_message: the closing message.
            reconnects: whether to reconnect for it, if there is no connection.
        """
        self.is_closed = True
        self._condition.notify_all()
        if self._scope is not None:
            if self._socket is not None:
                with anyio.move_on_after(FINISH_SENDING_SECONDS):
                    await self._socket.wait_until_sent()  # a message that is cut off breaks the connection
            self._scope.cancel()
            await self._serve_finished.wait()
        with anyio.move_on_after(CLOSE_SECONDS), suppress(ConnectionLostError):
            if self._socket is not None and self._socket.is_broken:
                broken, self._socket = self._socket, None
                await broken.abort()
            if self._socket is None and reconnects and self.ready is not None and self.failure is None:
                with anyio.move_on_after(RECONNECT_TO_CLOSE_SECONDS), suppress(PilothouseError):
                    await self._connect()
            if self._socket is not None:
                await self._socket.send(encode_item(self.link.make_ack()))  # the next client must not get all again
                await self._socket.send(encode_item(last_message))
                while True:  # discard what still arrives
                    await self._socket.receive()
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.close()
