"""A session that runs on a host, reached over a WebSocket that may break at any time.

Owns the stream that the engine sees, and which parts of an invocation are sent. `remote_connection` keeps the
connection up. Must not know what the bytes mean, except where lines begin, in case another client takes over.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from pilothouse.errors import UsageError
from pilothouse.options import Invocation
from pilothouse.support import Redactor, invocation_secrets
from pilothouse.transports import Delivery, ExitInfo, Health, HealthState, StderrLog, Transport, TransportFacts
from pilothouse_remote.link import HEARTBEAT_SECONDS, Backoff, ReplayFilter
from pilothouse_remote.messages import LINK_VERSION, Close, Detach, HostAddress, LaunchMessage, Start, encode_item
from pilothouse_remote.remote_connection import RemoteConnection

_APPROVER_FLAGS: Final = ("--permission-prompt-tool=", "--permission-prompts=none")
DETACH_SECONDS: Final = 5.0
"""Seconds that `detach` waits until sent data has arrived."""
MAX_RECEIVE_BYTES: Final = 256 * 1024
"""Bytes that `receive` returns at most."""


class WebSocketTransport(Transport):
    """Reaches a session on a host, `pilothouse serve`.

    The CLI runs there and sends requests for this process's hooks, permissions and tools over the same connection. A
    broken connection is made again without losing or repeating data; meanwhile `health` is "degraded". Of the
    environment, only the variables that the settings name are sent, nothing inherited. `close` ends the session.
    `detach`, or the death of this process, leaves it running: another process attaches with `session`.

    Args:
        url: of the host: `ws://127.0.0.1:8750`, `wss://host.example`; `http://` and `https://` do as well.
        token: what the host printed at its start, or was given.
        session: id of an existing session to attach to; None: start a new one.
        take_over: attach even if another client is attached; that client gets an error.
        reconnect: when to connect again, and when to give up.
        heartbeat: seconds of silence after which the host is pinged; after three of them the connection is dropped
            and made again. 0: never.
        tls: for `wss://`; default: certificates are checked as the system does.
        inbox: leave permissions, questions, plans and elicitations to the host's inbox: people decide in its console or
            over REST, also while no program is attached.

    Attributes:
        address: of the host.

    Raises:
        UsageError: the address is invalid or holds a secret; `heartbeat` is negative.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        session: str | None = None,
        take_over: bool = False,
        reconnect: Backoff | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
        tls: ssl.SSLContext | None = None,
        inbox: bool = False,
    ) -> None:
        if not heartbeat >= 0:
            raise UsageError(f"heartbeat: expected 0 or more seconds, got {heartbeat}")
        self.address = HostAddress.parse(url)
        self._token = token
        self._inbox = inbox
        self._connection = RemoteConnection(
            self.address,
            token=token,
            tls=tls,
            session=session,
            take_over=take_over,
            backoff=reconnect or Backoff(),
            heartbeat=heartbeat,
        )
        self.facts = TransportFacts(
            session_files="there",
            is_attached=session is not None,
            request_prefix="ph" if session is None else f"ph_{self._connection.client[:8]}",
        )
        self._closed: anyio.Event | None = None
        self._sending = anyio.Lock(fast_acquire=True)
        self._waiting_to_send = 0
        self._ready_chunks: deque[bytes] = deque()  # to be returned by `receive`
        self._next_line_start: int | None = None  # offset of the line after the last one that `receive` returned
        self._replay_filter = ReplayFilter(0, 0)
        self._is_detaching = False
        self._redactor: Callable[[], Redactor] = partial(Redactor, ())
        self._stderr = StderrLog(self._redactor)

    def __repr__(self) -> str:
        return f"WebSocketTransport({self.address.url!r}, session={self.session!r})"

    @property
    def session(self) -> str | None:
        """The id of the session at the host, once known."""
        return self._connection.session

    @property
    def round_trip(self) -> float | None:
        """Seconds that the last heartbeat took; None before the first."""
        return self._connection.link.round_trip

    def delivery(self) -> Delivery:
        """Return how much was sent since the beginning of the session, and how much the host has given to the CLI."""
        sent = self._connection.link.send_buffer
        return Delivery(sent.end, sent.acknowledged)

    # Starting.

    async def start(self, invocation: Invocation) -> None:
        """Make the host start a session, or attach to one.

        Raises:
            RemoteError: the host cannot be reached, or refuses; `.code` says why.
            CLIStartError: the host could not start the child.
            UsageError: a key would be sent unencrypted; the settings are too large for a message; the options name
                somebody else to decide than the `inbox`; the transport was started before.
        """
        self._mark_started(is_closed=self._closed is not None)
        launch = make_launch_message(invocation, inbox=self._inbox)
        self._check_secrets(invocation)
        encode_item(Start(LINK_VERSION, self._connection.client, launch))  # raises now if it is too large
        secrets = replace(invocation, env={**invocation.env, "PILOTHOUSE_HOST_TOKEN": self._token or ""})
        self._redactor = lambda: Redactor(invocation_secrets(secrets))
        self._stderr = StderrLog(self._redactor, invocation.on_stderr)
        self._connection.on_stderr = self._on_stderr_line
        await self._connection.open(launch)
        ready = self._connection.ready
        assert ready is not None
        if self.facts.is_attached:
            self._replay_filter = ReplayFilter(ready.begin, ready.end)
            self.facts = replace(self.facts, session_id=ready.conversation)
        if self._closed is not None:  # closed meanwhile
            with anyio.CancelScope(shield=True):
                await self._connection.close(Close(), reconnects=False)
            raise anyio.ClosedResourceError

    def _check_secrets(self, invocation: Invocation) -> None:
        if self.address.is_secure or self.address.is_loopback:
            return
        own = {name: value for name, value in invocation.explicit_env.items() if value is not None}
        found = (self._token is not None, "the token"), (bool(invocation_secrets(replace(invocation, env=own))), "keys")
        for applies, what in found:
            if applies:
                raise UsageError(
                    f"{what} would travel in the clear to {self.address.host}: use wss://, or a tunnel to "
                    "ws://127.0.0.1, and let the host have the key of the API"
                )

    def _on_stderr_line(self, line: str) -> None:
        self._stderr.feed(line.encode("utf-8", "replace") + b"\n")

    async def serve(self) -> None:
        """Keep the connection up until the session ends or the host is given up."""
        if self._closed is None and self._connection.ready is not None:
            await self._connection.serve()

    # The byte stream.

    async def send(self, data: bytes) -> None:
        """Queue `data` for sending; waits while a full window is unacknowledged by the host."""
        self._check_open()
        connection, outbound = self._connection, self._connection.link.send_buffer
        if connection.link.last_message is not None:
            raise anyio.ClosedResourceError
        self._waiting_to_send += 1
        try:
            async with self._sending:
                await connection.wait_until(lambda: outbound.free_bytes > 0 or connection.ended is not None)
                self._check_writable()
                connection.send(data)
                if outbound.free_bytes < 0:
                    await connection.wait_until(lambda: outbound.free_bytes >= 0 or connection.ended is not None)
                    self._check_writable()
        finally:
            self._waiting_to_send -= 1

    def _check_writable(self) -> None:
        self._check_open()
        if self._connection.failure is not None or self._connection.ended is not None:
            raise anyio.BrokenResourceError

    async def receive(self) -> bytes:
        """Return the next bytes; b"" once the CLI's output has ended.

        Raises:
            RemoteError: the host was lost for good.
        """
        self._check_open()
        connection = self._connection
        if self._ready_chunks:
            await anyio.lowlevel.checkpoint()
        while not self._ready_chunks:
            if self._next_line_start is not None:
                # A client that takes over begins with the last line that was returned: this process may die before
                # processing it. Asking for more shows that the line was processed.
                connection.link.receive_window.keep_from, self._next_line_start = self._next_line_start, None
                connection.mark_delivered(0)
            await connection.wait_until(lambda: bool(connection.received_chunks) or connection.is_finished)
            self._check_open()
            if connection.received_chunks:
                self._take_chunk(connection.received_chunks.popleft())
            elif connection.failure is not None and not connection.is_complete:
                raise connection.failure
            elif rest := self._replay_filter.flush():
                self._ready_chunks.append(rest)
            else:
                return b""
        return self._ready_chunks.popleft()

    def _take_chunk(self, raw: bytes) -> None:
        if cut := raw.rfind(b"\n") + 1:
            self._next_line_start = self._connection.link.receive_window.received + cut
        self._connection.mark_delivered(len(raw))
        data = self._replay_filter.feed(raw)
        self._ready_chunks.extend(data[at : at + MAX_RECEIVE_BYTES] for at in range(0, len(data), MAX_RECEIVE_BYTES))

    async def end_input(self) -> None:
        """End the CLI's input, after what was sent."""
        self._check_open()
        self._connection.end_input()
        await anyio.lowlevel.checkpoint()

    async def exit_info(self) -> ExitInfo:
        """Return how the CLI ended, as reported by the host."""
        ended = self._connection.ended
        if ended is None:
            return ExitInfo(stderr=self._stderr.tail(), detail=str(self._connection.failure or "still running"))
        tail = self._redactor().redact(ended.stderr) or self._stderr.tail()
        return ExitInfo(ended.exit_code, ended.signal, tail, ended.detail)

    # Closing.

    async def detach(self) -> str:
        """Leave the session running at the host; returns its id, for another `WebSocketTransport`.

        Data sent before arrives if the host can be reached within 5 s.

        Raises:
            UsageError: the transport was not started, or was closed.
        """
        connection = self._connection
        if connection.ready is None or self._closed is not None:
            raise UsageError("there is no session to detach from: it was not started, or was closed")
        outbound = connection.link.send_buffer
        with anyio.CancelScope(shield=True), anyio.move_on_after(DETACH_SECONDS), suppress(anyio.ClosedResourceError):
            await connection.wait_until(lambda: outbound.acknowledged == outbound.end or connection.is_finished)
        self._is_detaching = True
        await self.close()
        return connection.ready.session

    async def close(self) -> None:
        """End the session and wait, for at most 7 s, until the host reports that the child is gone."""
        if self._closed is not None:
            with anyio.CancelScope(shield=True):
                await self._closed.wait()
            return
        self._closed = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):
                await self._connection.close(
                    Detach() if self._is_detaching else Close(), reconnects=not self._is_detaching
                )
                self._stderr.finish()
        finally:
            self._closed.set()

    def health(self) -> Health:
        """Return whether the session is healthy, or why not; degraded while there is no connection."""
        connection = self._connection
        states: tuple[tuple[bool, HealthState, str], ...] = (
            (self._closed is not None, "unhealthy", "closed"),
            (connection.ready is None, "unhealthy", "not started"),
            (connection.failure is not None, "unhealthy", str(connection.failure)),
            (connection.ended is not None, "unhealthy", "the child ended"),
            (not connection.is_connected, "degraded", f"connecting to the host again: {connection.last_error}"),
            (connection.link.last_message is not None, "degraded", "input ended"),
            (self._waiting_to_send > 0, "degraded", "the host or the child is slow to read its input"),
        )
        return next((Health(state, reason) for applies, state, reason in states if applies), Health("healthy"))

    def _check_open(self) -> None:
        if self._closed is not None or self._connection.ready is None:
            raise anyio.ClosedResourceError


def on_host(
    url: str, *, session: str | None = None, take_over: bool = False, **settings: Any
) -> Callable[[], WebSocketTransport]:
    """Return a factory of `WebSocketTransport`: `Agent(transport=on_host("wss://host.example", token=…))`.

    Every query and session of the agent then runs there. A session whose child has ended, alone or together with its
    host, continues with a new child.

    Args:
        url: of the host.
        session: id of an existing session that the first transport attaches to; use it for one session only.
        take_over: as for `WebSocketTransport`, for the first one.
        **settings: `token`, `reconnect`, `heartbeat`, `tls`, `inbox`, as for `WebSocketTransport`.

    Raises:
        UsageError: as for `WebSocketTransport`.
    """
    transports = [WebSocketTransport(url, session=session, take_over=take_over, **settings)]

    def make() -> WebSocketTransport:
        return transports.pop() if transports else WebSocketTransport(url, **settings)

    return make


def make_launch_message(invocation: Invocation, *, inbox: bool = False) -> LaunchMessage:
    """Select what is sent of an invocation: no inherited environment, and no executable.

    Raises:
        UsageError: an option that only the host decides, or one that does not go with its inbox.
    """
    if invocation.keep_detached:
        raise UsageError("option 'keep_detached': the host decides what its children leave running; leave it out")
    argv = tuple(invocation.argv)
    if inbox:
        if rival := next((argument for argument in argv if argument.startswith(_APPROVER_FLAGS)), None):
            raise UsageError(
                f"inbox=True leaves decisions to people at the host, but the options have {rival}: leave out "
                "can_use_tool, confirm, asks, on_question, on_plan, permission_prompts and permission_prompt_tool_name"
            )
        argv = (*argv, "--permission-prompt-tool=stdio")
    return LaunchMessage(
        argv=argv,
        files=tuple(invocation.files),
        tail=tuple(invocation.trailing_args),
        env=dict(invocation.explicit_env),
        cwd=invocation.cwd,
        user=invocation.user,
        isolated=invocation.is_isolated,
        inbox=inbox,
    )
