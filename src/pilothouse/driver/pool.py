"""`Pool`: peers that are started ahead, so that the next query or session need not wait for a start.

Owns how many there are, who gets which, and when they go. It is a way to reach a peer like any other (`transport=`), so
that nothing above it knows of it. One peer alone is in `ahead`.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, cast
from weakref import ref

import anyio
import anyio.lowlevel

from pilothouse.driver.ahead import PeerAhead
from pilothouse.driver.kinds import Kind, kind_of
from pilothouse.driver.tasks import caller_into_loop, spawn
from pilothouse.errors import OptionsError, UsageError
from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, Ending, Health, Transport
from pilothouse.transports.changes import Changes

log = logging.getLogger("pilothouse.pool")

REMEMBERED_KINDS = 64
CHUNK_BYTES = 256 * 1024
ASKED_BEFORE = 2
"""A kind of child is started ahead by itself from the second time on that it is asked for; not every query is like
one before."""


class Pool:
    """Children that are started and have answered the handshake before they are needed. (E33)

    ::

        async with ph.Pool(min_idle=2) as pool:
            agent = ph.Agent(model="haiku", transport=pool)
            await agent.prewarm(2)
            result = await agent.query("…")            # no start to wait for

    A child serves one query, or one session, and ends with it. It is given only to what would have started the very
    same child: arguments, environment, directory, handshake, files and user are compared. Queries that go on with a
    conversation, and those in the argv form, always start one of their own. `Agent.prewarm` makes a pool by itself.

    A pool belongs to the event loop that uses it first; on others, and once it is closed, queries start children of
    their own. What the CLI reads when it starts (settings, `CLAUDE.md`, the state of the repository) is as old as the
    child, and hooks of a settings file for the start of a session run then.

    Args:
        min_idle: how many children of a kind are kept ready, from the second time on that it is asked for, and after
            `Agent.prewarm`. Default 1.
        max_live: how many may live at once, those in use included; a query waits for its turn, first come, first
            served. None (default): no limit.
        idle_ttl: seconds after which a child that nobody has asked for is ended. Default 300; None: never.
        transport: makes what children are reached by; default: local processes.

    Raises:
        OptionsError: numbers that cannot work.
    """

    _call: Callable[[Callable[[], object]], None] | None = None  # for `__del__` where `__init__` was not reached

    def __init__(
        self,
        *,
        min_idle: int = 1,
        max_live: int | None = None,
        idle_ttl: float | None = 300.0,
        transport: Callable[[], Transport] = CliTransport,
    ) -> None:
        self._made = os.getpid()
        self._kinds: OrderedDict[bytes, Kind] = OrderedDict()
        _check(min_idle=min_idle, max_live=max_live, idle_ttl=idle_ttl)
        self.min_idle = min_idle
        self.max_live = max_live
        self.idle_ttl = idle_ttl
        self._transport = transport
        self._peers: set[PeerAhead] = set()
        self._in_use = 0
        self._waiting = 0
        self._queue = anyio.Lock()
        self._changes = Changes()
        self._loop: object = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool: {self.idle} idle, {self.in_use} in use>"

    def __call__(self) -> Transport:
        """A transport that takes its peer from here; the option `transport` calls this for each child."""
        return PooledTransport(self)

    @property
    def is_local(self) -> bool:
        """Whether the children are processes of this machine."""
        return self._transport is CliTransport

    @property
    def idle(self) -> int:
        """How many children wait to be used, those that are being started included."""
        return sum(not peer.is_taken for peer in self._peers)

    @property
    def in_use(self) -> int:
        """How many children are in use."""
        return self._in_use

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def warm(self, invocation: Invocation, count: int) -> None:
        """Have `count` children of this kind ready, as far as there is room, and wait for that. For `Agent.prewarm`.

        Raises:
            OptionsError: such a child cannot be started ahead, or there may not be so many.
            UsageError: the pool is closed, or belongs to another event loop.
            PilothouseError: a child could not be started.
        """
        if not isinstance(cast("object", count), int) or isinstance(count, bool) or count < 1:
            raise UsageError(f"count: expected a whole number of at least 1, got {count!r:.80}")
        if self.max_live is not None and count > self.max_live:
            raise OptionsError(f"{count} children cannot be kept ready: max_live is {self.max_live}")
        if not self._is_here():
            raise UsageError("the pool is closed" if self._closed else "the pool belongs to another event loop")
        kind = self._kind(invocation)
        if kind is None:
            raise OptionsError(
                "a child like this cannot be started ahead: it goes on with a conversation, does something at its "
                "start, or takes its prompt as an argument"
            )
        kind.wanted = max(count, kind.wanted)
        self._refill(kind)
        try:
            async with anyio.create_task_group() as tasks:
                for peer in list(kind.idle):
                    tasks.start_soon(peer.settled)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As `aclose`, from any thread, and without waiting for the end of the children."""
        self._closed = True
        if self._call is not None and self._made == os.getpid():
            self._call(self._let_go)

    async def aclose(self) -> None:
        """End the children that nobody uses, and start no more ahead. Those in use go on. Idempotent, bounded."""
        self._closed = True
        idle = [peer for peer in self._peers if not peer.is_taken]
        self._let_go()
        with anyio.CancelScope(shield=True):
            for peer in idle:
                await peer.freed()

    def __del__(self) -> None:
        if self._call is not None and self._made == os.getpid():
            for peer in list(self._peers):
                if not peer.is_taken:
                    self._call(peer.release)

    # What its transports call.

    async def obtain(self, invocation: Invocation) -> tuple[PeerAhead | Transport, bool]:
        """A peer that was started ahead, or a transport that was started now, and whether to `put_back`.

        Raises:
            PilothouseError: it cannot be started.
        """
        if not self._is_here():
            return await self._started(invocation), False
        kind = self._kind(invocation)
        if kind is not None:
            kind.asked += 1
            if kind.asked >= ASKED_BEFORE and not kind.is_asking:
                kind.wanted = max(self.min_idle, kind.wanted)
        await self._admit(kind)
        try:
            peer = await self._from(kind, invocation) if kind is not None else None
            return peer or await self._started(invocation), True
        except BaseException:
            self.put_back()
            raise
        finally:
            if kind is not None:
                self._refill(kind)

    def put_back(self) -> None:
        """A child that was in use has ended."""
        self._in_use -= 1
        self._changes.tell()

    async def _started(self, invocation: Invocation) -> Transport:
        transport = self._transport()
        await transport.start(invocation)
        return transport

    async def _from(self, kind: Kind, invocation: Invocation) -> PeerAhead | None:
        while (peer := kind.pop()) is not None:
            peer.take()
            try:
                if await peer.handed_over(invocation.on_stderr):
                    return peer
            except BaseException:
                peer.release()
                raise
            log.info("a child that was started ahead cannot be used: %s", peer.failure)
            peer.release()
        return None

    async def _admit(self, kind: Kind | None) -> None:
        """Wait until one more may be in use."""
        if self.max_live is None:
            self._in_use += 1
            return
        self._waiting += 1
        try:
            async with self._queue:  # first come, first served
                while not self._has_room(kind):
                    self._end_oldest()
                    await self._changes.wait()
                self._in_use += 1
        finally:
            self._waiting -= 1

    def _has_room(self, kind: Kind | None) -> bool:
        is_there = kind is not None and kind.has_fit
        return self.max_live is None or self._in_use + self.idle + (0 if is_there else 1) <= self.max_live

    def _end_oldest(self) -> None:
        for kind in self._kinds.values():  # the one that was asked for longest ago comes first
            if (peer := kind.pop()) is not None:
                peer.release()
                return

    # What is kept.

    def _is_here(self) -> bool:
        """Whether it can be used on this loop, in this process."""
        if self._made != os.getpid():
            return False
        loop = anyio.lowlevel.current_token().native_token
        if self._loop is not loop:
            if self._peers or self._in_use:
                return False
            self._loop, self._call = loop, caller_into_loop()
            self._queue, self._changes = anyio.Lock(), Changes()
        return not self._closed

    def _kind(self, invocation: Invocation) -> Kind | None:
        key = kind_of(invocation)
        if key is None:
            return None
        kind = self._kinds.pop(key, None) or Kind(invocation)
        self._kinds[key] = kind
        while len(self._kinds) > REMEMBERED_KINDS:
            self._kinds.popitem(last=False)[1].end()
        return kind

    def _refill(self, kind: Kind) -> None:
        while not self._closed and len(kind.idle) < kind.wanted and self._has_spare():
            session_id, invocation = kind.next_invocation()
            gone = partial(_gone, ref(self), ref(kind))
            peer = PeerAhead(
                self._transport(), invocation, session_id=session_id, idle_seconds=self.idle_ttl, gone=gone
            )
            kind.idle.append(peer)
            self._peers.add(peer)
            spawn(peer.run, "pilothouse child started ahead")

    def _has_spare(self) -> bool:
        return self.max_live is None or (not self._waiting and self._in_use + self.idle < self.max_live)

    def _let_go(self) -> None:
        for kind in self._kinds.values():
            kind.end()
        self._kinds.clear()

    def gone(self, peer: PeerAhead, kind: Kind | None) -> None:
        """A peer that was started ahead has ended."""
        self._peers.discard(peer)
        if kind is not None and peer in kind.idle:
            kind.idle.remove(peer)
            kind.wanted = kind.asked = 0  # not asked for in time, or cannot be started: wait until it is, twice
            kind.is_asking = peer.is_asking
            if peer.failure is not None:
                log.info("a child that was started ahead has ended: %s", peer.failure)
        self._changes.tell()


class PooledTransport(Transport):
    """One child of a pool. Made by calling the pool.

    Attributes:
        session_id: that of a child that was started ahead for a session.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._peer: PeerAhead | None = None
        self._inner: Transport | None = None
        self._opened = anyio.Event()  # the driver has said what the peer has heard already
        self._is_open = False
        self._was_started = False
        self._is_counted = False
        self._closed = False
        self.session_id: str | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child, where it is a local process."""
        return getattr(self._inner, "pid", None)

    @property
    def executable(self) -> str | None:
        """Path of the executable of the child, where it is a local process."""
        return getattr(self._inner, "executable", None)

    async def start(self, invocation: Invocation) -> None:
        """Take a child that was started ahead, or start one.

        Raises:
            PilothouseError: it cannot be started.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        if self._was_started:
            raise UsageError("a transport serves one connection: make a new one instead of starting it again")
        self._was_started = True
        got, self._is_counted = await self._pool.obtain(invocation)
        if isinstance(got, PeerAhead):
            self._peer, self._inner, self.session_id = got, got.transport, got.session_id
        else:
            self._inner, self._is_open = got, True
        if self._closed:  # meanwhile
            await self.close()
            raise anyio.ClosedResourceError

    async def serve(self) -> None:
        """Work beside the stream; for a child that was started ahead this is done already."""
        if self._peer is None and self._inner is not None:
            await self._inner.serve()

    async def send(self, data: bytes) -> None:
        """Send all of `data`; the handshake is not said again."""
        inner = self._reached()
        if not self._is_open and self._peer is not None:
            opening = self._peer.opening
            if not data.startswith(opening):
                raise UsageError("a child that was started ahead hears the handshake first")
            self._is_open = True
            self._opened.set()
            data = data[len(opening) :]
            if not data:
                return
        await inner.send(data)

    def send_at_once(self, data: bytes) -> bool:
        """See `Transport`; never the handshake."""
        inner = self._inner
        return self._is_open and not self._closed and inner is not None and inner.send_at_once(data)

    async def receive(self) -> bytes:
        """The next bytes, from the answer to the handshake on."""
        inner = self._reached()
        if not self._is_open:
            await self._opened.wait()
            self._reached()
        if self._peer is not None and self._peer.said:
            said = bytes(self._peer.said[:CHUNK_BYTES])
            del self._peer.said[:CHUNK_BYTES]
            return said
        return await inner.receive()

    async def end_input(self) -> None:
        """Tell the child that nothing more will be sent."""
        await self._reached().end_input()

    async def ending(self) -> Ending:
        """How the child ended."""
        return Ending(detail="not started") if self._inner is None else await self._inner.ending()

    async def close(self) -> None:
        """End the child; there is room for another one then."""
        self._closed = True
        self._opened.set()
        try:
            with anyio.CancelScope(shield=True):
                if self._inner is not None:
                    await self._inner.close()
        finally:
            if self._peer is not None:
                self._peer.release()
            if self._is_counted:
                self._is_counted = False
                self._pool.put_back()

    def health(self) -> Health:
        """Whether the child can be talked to."""
        if self._closed or self._inner is None:
            return Health("unhealthy", "closed" if self._closed else "not started")
        return self._inner.health()

    def _reached(self) -> Transport:
        if self._closed or self._inner is None:
            raise anyio.ClosedResourceError
        return self._inner


def _gone(pool: ref[Pool], kind: ref[Kind], peer: PeerAhead) -> None:
    """Told by the task of the peer, which keeps neither of the two alive."""
    if (there := pool()) is not None:
        there.gone(peer, kind())


def _check(*, min_idle: int, max_live: int | None, idle_ttl: float | None) -> None:
    if min_idle < 0:
        raise OptionsError(f"min_idle: expected 0 or more, got {min_idle}")
    if max_live is not None and max_live < max(1, min_idle):
        raise OptionsError(f"max_live: expected at least 1, and min_idle ({min_idle}), got {max_live}")
    if idle_ttl is not None and not idle_ttl > 0:
        raise OptionsError(f"idle_ttl: expected more than 0 seconds, or None, got {idle_ttl}")
