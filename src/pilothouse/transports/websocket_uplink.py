"""A client's connection to one session of a host, reconnected whenever it breaks.

Owns connecting, the opening, sending and receiving, giving up, and the closing message. `remote` keeps the byte
counts, `websocket_connection` the WebSocket. Must not know what the bytes mean or which request they belong to.
"""

from __future__ import annotations

import logging
import random
import ssl
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from pilothouse.errors import CLIStartError, PilothouseError, ProtocolError, RemoteError
from pilothouse.remote import (
    MAX_MESSAGE,
    MISSED,
    SUBPROTOCOL,
    VERSION,
    Attach,
    Backoff,
    Close,
    Data,
    Ended,
    EndInput,
    Inbound,
    Launch,
    Link,
    LinkError,
    Op,
    Outbound,
    Ready,
    Refused,
    Start,
    StderrLine,
    decode,
    encode,
)
from pilothouse.remote.ops import Said
from pilothouse.transports.websocket_address import Address, ConnectionLostError

if TYPE_CHECKING:
    from pilothouse.transports.websocket_connection import WebSocket

log = logging.getLogger("pilothouse.transports")

CONNECT_SECONDS: Final = 15.0
"""Seconds for TCP, TLS and the opening handshake."""
READY_SECONDS: Final = 90.0
"""Seconds for the host to start a child or to find the session."""
CLOSE_SECONDS: Final = 6.5
"""Seconds for closing: until the host reports that the child is gone."""
RECONNECT_TO_CLOSE_SECONDS: Final = 3.0
"""Seconds, within `CLOSE_SECONDS`, to reconnect to a lost host for the closing message."""
GIVE_BACK_SECONDS: Final = 2.0
"""Seconds to tell a host to end a session whose start was abandoned."""
SHORTEST_TRY: Final = 1.0
"""Minimum seconds for an attempt to reconnect, even for the last one."""
LONGEST_SLEEP: Final = 3600.0
"""Maximum seconds between checks, because there may be no next heartbeat."""
LATER: Final = frozenset({"limit", "draining"})
"""Codes of refusals that may be temporary."""


class Uplink:
    """Connection of one client to one session. Call `open`, `serve` and `shut` once each, in this order.

    Args:
        address: of the host.
        token: of the host.
        tls: see `WebSocketTransport`.
        session: id of an existing session; None: start a new one.
        take_over: see `WebSocketTransport`.
        backoff: when to try again, and when to give up.
        heartbeat: seconds; see `WebSocketTransport`.

    Attributes:
        client: id of this client, the same for all its connections.
        attaches: whether the session existed before.
        session: id of the session, once known.
        link: byte counts of both directions.
        ready: the host's first description of the session; None before.
        raw: received bytes that were not handed on yet.
        ended: how the child ended, if it did.
        failure: why the host was given up, if it was.
        trouble: why there is no connection.
        on_stderr: called with each line of the child's standard error.
        is_shut: whether `shut` was called; all waits end then.
    """

    def __init__(
        self,
        address: Address,
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
        self.attaches = session is not None
        self.session = session
        self.link = Link(heartbeat=heartbeat)
        self.ready: Ready | None = None
        self.raw: deque[bytes] = deque()
        self.ended: Ended | None = None
        self.failure: PilothouseError | None = None
        self.trouble = ""
        self.on_stderr: Callable[[str], object] = len
        self.is_shut = False
        self._token, self._tls, self._take_over, self._backoff = token, tls, take_over, backoff
        self._launch: Launch | None = None
        self._has_answered = False
        self._socket: WebSocket | None = None
        self._changed: anyio.Event | None = None  # wakes the waits for a condition
        self._to_say: anyio.Event | None = None  # wakes the sending task
        self._scope: anyio.CancelScope | None = None  # scope of `serve`
        self._served: anyio.Event | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._socket is not None

    @property
    def is_complete(self) -> bool:
        """Whether all output has arrived."""
        return self.ended is not None and self.link.inbound.is_complete

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.failure is not None or self.is_complete

    # Opening.

    async def open(self, launch: Launch) -> None:
        """Connect to the host, and start or attach to the session.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
            CLIStartError: the host could not start the child.
        """
        self._launch, self._changed = launch, anyio.Event()
        try:
            await self._reach()
        except ConnectionLostError as error:
            if not self._has_answered:
                raise RemoteError(f"{self.address.url} cannot be reached: {error}", code="unreachable") from error
            self.trouble = str(error)
            if not await self._reconnect():
                assert self.failure is not None
                raise self.failure from error

    async def _reach(self) -> None:
        """Connect once, and start or attach to the session.

        Raises:
            RemoteError, CLIStartError: the host refuses.
            ConnectionLostError: the host cannot be reached for now.
        """
        from pilothouse.transports.websocket_connection import WebSocket  # an extra, imported on demand

        try:
            with anyio.fail_after(CONNECT_SECONDS):
                socket = await WebSocket.connect(
                    self.address, subprotocol=SUBPROTOCOL, token=self._token, max_message=MAX_MESSAGE, tls=self._tls
                )
        except TimeoutError:
            raise ConnectionLostError(f"no answer within {CONNECT_SECONDS:g} s") from None
        self._has_answered = True
        try:
            self.link.inbound.rewind()
            self.raw.clear()
            await socket.send(encode(self._opening()))
            with anyio.move_on_after(READY_SECONDS):
                self._take_ready(decode(await socket.receive()))
                self._socket = socket
                return
            raise ConnectionLostError(f"the host said nothing for {READY_SECONDS:g} s")
        except ProtocolError as error:
            raise self._broken_rules(error) from error
        finally:
            if self._socket is not socket:
                await self._give_back(socket)

    async def _give_back(self, socket: WebSocket) -> None:
        """Drop an unused connection, and end a session that was possibly started over it."""
        if self.session is None and not socket.is_broken:
            with anyio.move_on_after(GIVE_BACK_SECONDS, shield=True), suppress(ConnectionLostError):
                await socket.send(encode(Close()))
        await socket.drop()

    def _opening(self) -> Op:
        if self.session is None:
            assert self._launch is not None
            return Start(VERSION, self.client, self._launch)
        received = None if self.ready is None else self.link.inbound.received
        return Attach(VERSION, self.client, self.session, received, self._take_over and self.ready is None)

    def _take_ready(self, said: Said) -> None:
        match said:
            case Ready():
                pass
            case Refused(code="start_failed", message=message):
                raise CLIStartError(f"the host could not start the CLI: {message}")
            case Refused(code=code, message=message) if code in LATER and self.ready is not None:
                raise ConnectionLostError(message)
            case Refused(code=code, message=message) | LinkError(code=code, message=message):
                raise RemoteError(f"the host refuses: {message} ({code})", code=code)
            case _:
                raise ProtocolError(f"{type(said).__name__} instead of an answer")
        if self.ready is None:
            self.link = Link(Outbound(said.received), Inbound(said.begin), heartbeat=self.link.pulse.interval)
            if said.input_ended:
                self.link.finish(EndInput(said.received))
            self.ready, self.session = said, said.session
        elif said.begin != self.link.inbound.received:
            raise ProtocolError(f"the host goes on at {said.begin}, not at {self.link.inbound.received}")
        self.link.connected(said.received, anyio.current_time())

    # Serving.

    async def serve(self) -> None:
        """Keep the connection up until the session ends or the host is given up."""
        self._served = anyio.Event()
        try:
            with anyio.CancelScope() as self._scope:
                while self._socket is not None:
                    await self._talk(self._socket)
                    if self.is_over or not await self._reconnect():
                        return
        finally:
            self._scope = None
            self._served.set()

    async def _talk(self, socket: WebSocket) -> None:
        """Send and receive until the connection ends."""

        async def run(work: Callable[[WebSocket], Awaitable[None]]) -> None:
            try:
                await work(socket)
            except ConnectionLostError as error:
                self.trouble = self.trouble or str(error)
            except ProtocolError as error:
                self._fail(self._broken_rules(error))
            group.cancel_scope.cancel()

        self.trouble = ""
        async with anyio.create_task_group() as group:
            for work in (self._speak, self._listen, self._watch):
                group.start_soon(run, work)
        self._socket = None
        self.notify()
        await socket.drop()

    async def _speak(self, socket: WebSocket) -> None:
        link = self.link
        while True:
            news = self._to_say = anyio.Event()
            while (said := link.say(anyio.current_time())) is not None:
                await socket.send(encode(said))
            with anyio.move_on_after(max(0.0, link.wake_at() - anyio.current_time())):
                await news.wait()

    async def _listen(self, socket: WebSocket) -> None:
        while True:
            message = await socket.receive()
            if (said := self.link.hear(decode(message), anyio.current_time())) is not None:
                self._take(said)
            if not isinstance(said, Data):  # there may be a reply to send, or new window space
                self.speak_up()

    async def _watch(self, _: WebSocket) -> None:
        # Not in `_speak`: a half-open connection may block that task in the middle of a message.
        pulse = self.link.pulse
        while (left := pulse.lost_at - anyio.current_time()) > 0:  # noqa: ASYNC110 - `lost_at` moves each time
            await anyio.sleep(min(left, LONGEST_SLEEP))
        raise ConnectionLostError(f"the host said nothing for {MISSED * pulse.interval:g} s")

    def _take(self, said: Said) -> None:
        self.notify()
        match said:
            case Data(data=data):
                self.raw.append(data)
            case Ended():
                self.ended = said
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
        log.info("the connection to %s broke: %s", self.address.url, self.trouble)
        while (left := lost_at + self._backoff.give_up_after - anyio.current_time()) > 0:
            delay = self._backoff.delay(tries, random.random())  # noqa: S311 - it only spreads clients
            await anyio.sleep(min(delay, left))
            tries += 1
            try:
                with anyio.move_on_after(max(left - delay, SHORTEST_TRY)):
                    await self._reach()
            except ConnectionLostError as error:
                self.trouble = str(error)
            except (RemoteError, CLIStartError) as error:
                self._fail(error)
                return False
            if self._socket is not None:
                log.info("connected to %s again, after %d tries", self.address.url, tries)
                self.notify()
                return True
        self._fail(self._given_up())
        return False

    def _given_up(self) -> RemoteError:
        return RemoteError(
            f"the connection to {self.address.url} broke, and there was none again within "
            f"{self._backoff.give_up_after:g} s: {self.trouble}; the session may still run there: "
            f"WebSocketTransport(…, session={self.session!r})",
            code="lost",
        )

    def _broken_rules(self, error: ProtocolError) -> RemoteError:
        return RemoteError(f"the host {self.address.host} broke the rules of the link: {error}", code="protocol")

    def _fail(self, error: PilothouseError) -> None:
        self.failure = self.failure or error
        self.notify()

    # Closing.

    async def shut(self, farewell: Op, *, tries: bool) -> None:
        """Send the closing message, and wait until the host has closed the connection. Call it shielded.

        Args:
            farewell: the closing message.
            tries: whether to reconnect for it, if there is no connection.
        """
        self.is_shut = True
        self.notify()
        if self._scope is not None and self._served is not None:
            self._scope.cancel()
            await self._served.wait()
        with anyio.move_on_after(CLOSE_SECONDS), suppress(ConnectionLostError):
            if self._socket is not None and self._socket.is_broken:
                broken, self._socket = self._socket, None
                await broken.drop()
            if self._socket is None and tries and self.ready is not None and self.failure is None:
                with anyio.move_on_after(RECONNECT_TO_CLOSE_SECONDS), suppress(PilothouseError):
                    await self._reach()
            if self._socket is not None:
                if self.link.inbound.has_news:  # acks are delayed; a client that takes over must not get all again
                    await self._socket.send(encode(self.link.ack()))
                await self._socket.send(encode(farewell))
                while True:  # discard what still arrives
                    await self._socket.receive()
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.close()

    # Waiting.

    def _news(self) -> anyio.Event:
        assert self._changed is not None
        return self._changed

    def speak_up(self) -> None:
        """Wake the sending task: there may be something to send."""
        if self._to_say is not None:
            self._to_say.set()

    def notify(self) -> None:
        """Wake the waits for a condition: some state has changed."""
        if self._changed is not None:
            self._changed.set()
            self._changed = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Also returns once it can no longer hold: after `shut` or a failure."""
        await anyio.lowlevel.checkpoint()
        while not condition() and not self.is_shut and self.failure is None:
            await self._news().wait()
