"""`Pool`: children that are started before a query or session needs them.

`PoolGroup` holds the children with the same launch settings, `PooledTransport` gives one to a query.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Self
from weakref import ref

import anyio
from msgspec.structs import replace

from pilothouse.errors import OptionsError, PilothouseError, UsageError
from pilothouse.options import Invocation
from pilothouse.support import LoopCondition, spawn
from pilothouse.transports import (
    CliTransport,
    ExitInfo,
    Health,
    Transport,
    TransportFactory,
    TransportFacts,
    find_facts,
)
from pilothouse.transports.concurrency import call_in_loop, running_loop
from pilothouse_pool.warm_child import (
    SESSION_ID_FLAG,
    WarmChild,
    has_session_id,
    make_pool_key,
    move_to_initialize,
    remove_directories,
)

log = logging.getLogger("pilothouse.pool")

MAX_GROUPS = 64
CHUNK_BYTES = 256 * 1024
PREWARM_FROM_REQUEST = 2
"""From this request on, a group of children is prewarmed automatically; many queries are never repeated."""


class PoolGroup:
    """Children with the same launch settings.

    Args:
        invocation: how to start one of them.

    Attributes:
        idle: children that are not in use, oldest first.
        request_count: how often a child was requested.
        target_size: how many should be idle.
        has_early_requests: whether a child sent a request before a query claimed it; then none is started
            automatically.
    """

    def __init__(self, invocation: Invocation) -> None:
        self.idle: deque[WarmChild] = deque()
        self.request_count = 0
        self.target_size = 0
        self.has_early_requests = False
        self._invocation = replace(invocation, on_stderr=None)

    def next_invocation(self) -> tuple[str | None, Invocation]:
        """How to start the next child, and its session id, if it needs one."""
        invocation = self._invocation
        if not has_session_id(invocation):
            return None, invocation
        session_id = str(uuid.uuid4())
        argv = (f"{SESSION_ID_FLAG}{session_id}" if arg.startswith(SESSION_ID_FLAG) else arg for arg in invocation.argv)
        return session_id, replace(invocation, argv=tuple(argv))

    @property
    def has_usable(self) -> bool:
        """Whether there is a usable child."""
        return any(child.is_usable for child in self.idle)

    def pop(self) -> WarmChild | None:
        """Remove and return the oldest usable child; unusable ones are ended."""
        while self.idle:
            child = self.idle.popleft()
            if child.is_usable:
                return child
            child.release()
        return None

    def end(self) -> None:
        """End the idle children."""
        self.target_size = 0
        while self.idle:
            self.idle.popleft().release()


class Pool(TransportFactory):
    """Children that are started before they are needed.

    ::

        async with ph.Pool(min_idle=2) as pool:
            agent = ph.Agent(model="haiku", transport=pool)
            await agent.prewarm(2)
            result = await agent.query("…")            # no start to wait for

    A child serves one query or one session, and ends with it. It is used only by a query that would have started the
    very same child: arguments, environment, directory, handshake, files and user are compared. With `booted=True`
    the child gets the handshake from its query, so system prompt, agents, hooks, tools and schema may differ from
    query to query. Queries that continue a conversation, and those in the argv form, always start a child of their
    own. With `any_directory=True` a child has the handshake behind it and gets its directory from the query; what the
    CLI reads there, it reads then. `Agent.prewarm` makes a pool by itself.

    A pool belongs to the event loop that uses it first; on other loops, and after it is closed, queries start
    children of their own. What the CLI reads when it starts (settings, `CLAUDE.md`, the state of the repository) is
    as old as the child, and `SessionStart` hooks of a settings file run then.

    Args:
        min_idle: how many children of a kind are kept ready, from the second request for that kind on, and after
            `Agent.prewarm`. Default 1.
        max_live: how many may live at once, those in use included; queries wait in order of arrival. None (default):
            no limit.
        idle_ttl: seconds after which an unused child is ended. Default 300; None: never.
        transport: makes the transports of the children; default: local processes.
        booted: whether children wait without the handshake. They fit more queries, and answer a little later than
            those that have it behind them. Default False.
        any_directory: whether children wait in an empty directory and take `cwd` and `add_dirs` of the query. Default
            False. Needs Claude Code 2.1.330 and local processes; where the CLI refuses a directory (its settings name a
            model or variables), the query starts a child of its own.

    Raises:
        OptionsError: numbers that cannot work, or both `booted` and `any_directory`.
    """

    _loop: Any = None  # for `__del__`, too, if `__init__` failed

    def __init__(
        self,
        *,
        min_idle: int = 1,
        max_live: int | None = None,
        idle_ttl: float | None = 300.0,
        transport: Callable[[], Transport] = CliTransport,
        booted: bool = False,
        any_directory: bool = False,
    ) -> None:
        self._pid = os.getpid()
        self._groups: OrderedDict[bytes, PoolGroup] = OrderedDict()
        if booted and any_directory:
            raise OptionsError(
                "a pool is either booted or for any directory: the directory is given after the handshake"
            )
        _check(min_idle=min_idle, max_live=max_live, idle_ttl=idle_ttl)
        if not callable(transport):
            given = type(transport).__name__
            raise OptionsError(f"transport: expected a callable that makes a Transport, got {given}")
        self.min_idle = min_idle
        self.max_live = max_live
        self.idle_ttl = idle_ttl
        self.booted = booted
        self.any_directory = any_directory
        self._transport = transport
        self._children: set[WarmChild] = set()
        self._in_use = 0
        self._waiting = 0
        self._queue = anyio.Lock()
        self._changes = LoopCondition()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool: {self.idle} idle, {self.in_use} in use>"

    def __call__(self) -> Transport:
        """Make a transport for a child from this pool; the option `transport` calls this for each child."""
        return PooledTransport(self)

    def adapt_invocation(self, invocation: Invocation) -> Invocation:
        """Return how a query of this pool starts its child."""
        return move_to_initialize(invocation) if self.booted else invocation

    @property
    def facts(self) -> TransportFacts:
        """What holds for its children; a warm one has a session id already."""
        return TransportFacts(is_local=find_facts(self._transport).is_local, may_choose_session_id=True)

    @property
    def idle(self) -> int:
        """How many children are not in use, including those that are being started."""
        return sum(not child.is_claimed for child in self._children)

    @property
    def in_use(self) -> int:
        """How many children are in use."""
        return self._in_use

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def prewarm(self, invocation: Invocation, count: int) -> None:
        """Start children of this kind until `count` are ready, as far as `max_live` allows. For `Agent.prewarm`.

        Raises:
            OptionsError: such a child cannot be prewarmed, or `max_live` is less than `count`.
            UsageError: the pool is closed, or belongs to another event loop.
            PilothouseError: a child could not be started.
        """
        if not _is_number(count, int) or count < 1:
            raise UsageError(f"count: expected a whole number of at least 1, got {count!r:.80}")
        if self.max_live is not None and count > self.max_live:
            raise OptionsError(f"{count} children cannot be prewarmed: max_live is {self.max_live}")
        if not self._is_usable():
            raise UsageError("the pool is closed" if self._closed else "the pool belongs to another event loop")
        group = self._find_group(invocation)
        if group is None:
            raise OptionsError(
                "these settings cannot be prewarmed: `resume`, startup actions and prompt_via='argv' need a "
                "fresh process"
            )
        group.target_size = max(count, group.target_size)
        self._refill(group)
        try:
            async with anyio.create_task_group() as tasks:
                for child in list(group.idle):
                    tasks.start_soon(child.wait_ready)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close from any thread, without waiting for the end of the children; see `aclose`."""
        self._closed = True
        if self._loop is not None and self._pid == os.getpid():
            call_in_loop(self._loop, self._discard_idle)

    async def aclose(self) -> None:
        """End the idle children and start no more. Those in use continue. Idempotent, bounded.

        On another event loop than that of the children, and after a fork, it does not wait for them.
        """
        if self._loop not in (None, running_loop()) or self._pid != os.getpid():
            self.close()
            return
        self._closed = True
        idle = [child for child in self._children if not child.is_claimed]
        self._discard_idle()
        with anyio.CancelScope(shield=True):
            for child in idle:
                await child.wait_freed()

    def __del__(self) -> None:
        if self._loop is not None and self._pid == os.getpid():
            for child in list(self._children):
                if not child.is_claimed:
                    call_in_loop(self._loop, child.release)

    # Called by its transports.

    async def acquire(self, invocation: Invocation) -> tuple[WarmChild | Transport, bool]:
        """Return a warm child, or a transport that was started now, and whether to call `release`.

        Raises:
            PilothouseError: the child could not be started.
        """
        if not self._is_usable():
            return await self._start_transport(invocation), False
        group = self._find_group(invocation)
        if group is not None:
            group.request_count += 1
            if group.request_count >= PREWARM_FROM_REQUEST and not group.has_early_requests:
                group.target_size = max(self.min_idle, group.target_size)
        await self._wait_for_slot(group)
        try:
            child = await self._take_warm(group, invocation) if group is not None else None
            return child or await self._start_transport(invocation), True
        except BaseException:
            self.release()
            raise
        finally:
            if group is not None:
                self._refill(group)

    def release(self) -> None:
        """Count a child in use as ended."""
        self._in_use -= 1
        self._changes.notify_all()

    async def _start_transport(self, invocation: Invocation) -> Transport:
        transport = self._transport()
        await transport.start(invocation)
        return transport

    async def _take_warm(self, group: PoolGroup, invocation: Invocation) -> WarmChild | None:
        while (child := group.pop()) is not None:
            child.claim()
            try:
                if await child.wait_handover(invocation.on_stderr):
                    await child.claim_directory(invocation)
                    return child
            except PilothouseError as error:
                child.failure = error
            except BaseException:
                child.release()
                raise
            log.info("a prewarmed child cannot be used: %s", child.failure)
            child.release()
        return None

    async def _wait_for_slot(self, group: PoolGroup | None) -> None:
        """Wait until one more child may be in use."""
        if self.max_live is None:
            self._in_use += 1
            return
        self._waiting += 1
        try:
            async with self._queue:  # in order of arrival
                while not self._has_slot(group):
                    self._end_oldest()
                    await self._changes.wait()
                self._in_use += 1
        finally:
            self._waiting -= 1

    def _has_slot(self, group: PoolGroup | None) -> bool:
        is_there = group is not None and group.has_usable
        return self.max_live is None or self._in_use + self.idle + (0 if is_there else 1) <= self.max_live

    def _end_oldest(self) -> None:
        for group in self._groups.values():  # the least recently requested group comes first
            if (child := group.pop()) is not None:
                child.release()
                return

    # Groups and children.

    def _is_usable(self) -> bool:
        """Whether it can be used on this loop, in this process."""
        if self._pid != os.getpid():
            return False
        loop = running_loop()
        if self._loop is not loop:
            if self._children or self._in_use:
                return False
            self._loop = loop
            self._queue, self._changes = anyio.Lock(), LoopCondition()
        return not self._closed

    def _find_group(self, invocation: Invocation) -> PoolGroup | None:
        if self.any_directory:
            invocation = remove_directories(invocation)
        key = make_pool_key(invocation, booted=self.booted)
        if key is None:
            return None
        group = self._groups.pop(key, None) or PoolGroup(invocation)
        self._groups[key] = group
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)[1].end()
        return group

    def _refill(self, group: PoolGroup) -> None:
        while not self._closed and len(group.idle) < group.target_size and self._has_spare_slot():
            session_id, invocation = group.next_invocation()
            child = WarmChild(
                self._transport(),
                invocation,
                session_id=session_id,
                booted=self.booted,
                any_directory=self.any_directory,
                idle_seconds=self.idle_ttl,
                on_released=partial(_notify_released, ref(self), ref(group)),
            )
            group.idle.append(child)
            self._children.add(child)
            spawn(child.run, "pilothouse prewarmed child")

    def _has_spare_slot(self) -> bool:
        return self.max_live is None or (not self._waiting and self._in_use + self.idle < self.max_live)

    def _discard_idle(self) -> None:
        for group in self._groups.values():
            group.end()
        self._groups.clear()

    def on_child_released(self, child: WarmChild, group: PoolGroup | None) -> None:
        """Remove a warm child that has ended."""
        self._children.discard(child)
        if group is not None and child in group.idle:
            group.idle.remove(child)
            # It was not claimed in time, or has failed: prewarm again after two requests.
            group.target_size = group.request_count = 0
            group.has_early_requests = child.has_early_request
            if child.failure is not None:
                log.info("a prewarmed child has ended: %s", child.failure)
        self._changes.notify_all()


class PooledTransport(Transport):
    """One child of a pool. Made by calling the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._warm_child: WarmChild | None = None
        self._inner: Transport | None = None
        # Set once no initialize request is to come that the warm child already has.
        self._opened = anyio.Event()
        self._is_counted = False
        self._closed = False
        self.facts = pool.facts

    async def start(self, invocation: Invocation) -> None:
        """Take a warm child, or start one.

        Raises:
            PilothouseError: the child could not be started.
        """
        self._mark_started(is_closed=self._closed)
        got, self._is_counted = await self._pool.acquire(invocation)
        if isinstance(got, WarmChild):
            self._warm_child, self._inner = got, got.transport
        else:
            self._inner = got
            self._opened.set()
        inner, session_id = self._inner.facts, None if self._warm_child is None else self._warm_child.session_id
        self.facts = replace(self.facts, pid=inner.pid, executable=inner.executable, session_id=session_id)
        if self._closed:  # closed in the meantime
            await self.close()
            raise anyio.ClosedResourceError

    async def serve(self) -> None:
        """Serve the transport; the pool does this for a warm child."""
        if self._warm_child is None and self._inner is not None:
            await self._inner.serve()

    async def send(self, data: bytes) -> None:
        """Send all of `data`; the initialize request is not sent twice."""
        inner = self._require_inner()
        if not self._opened.is_set() and self._warm_child is not None:
            opening = self._warm_child.initialize_line
            if not data.startswith(opening):
                raise UsageError("a prewarmed transport must receive the handshake first")
            self._opened.set()
            data = data[len(opening) :]
            if not data:
                return
        await inner.send(data)

    async def receive(self) -> bytes:
        """The next bytes, starting with the initialize response."""
        inner = self._require_inner()
        if not self._opened.is_set():
            await self._opened.wait()
            self._require_inner()
        if self._warm_child is not None and self._warm_child.early_output:
            chunk = bytes(self._warm_child.early_output[:CHUNK_BYTES])
            del self._warm_child.early_output[:CHUNK_BYTES]
            return chunk
        return await inner.receive()

    async def end_input(self) -> None:
        """End the input of the child."""
        await self._require_inner().end_input()

    async def exit_info(self) -> ExitInfo:
        """How the child ended."""
        return ExitInfo(detail="not started") if self._inner is None else await self._inner.exit_info()

    async def close(self) -> None:
        """End the child, which frees its slot in the pool."""
        self._closed = True
        self._opened.set()
        try:
            with anyio.CancelScope(shield=True):
                if self._inner is not None:
                    await self._inner.close()
        finally:
            if self._warm_child is not None:
                self._warm_child.release()
            if self._is_counted:
                self._is_counted = False
                self._pool.release()

    def health(self) -> Health:
        """Whether the child can be used."""
        if self._closed or self._inner is None:
            return Health("unhealthy", "closed" if self._closed else "not started")
        return self._inner.health()

    def _require_inner(self) -> Transport:
        if self._closed or self._inner is None:
            raise anyio.ClosedResourceError
        return self._inner


def _notify_released(pool: ref[Pool], group: ref[PoolGroup], child: WarmChild) -> None:
    """Called from the task of the child, without keeping the pool or group alive."""
    if (owner := pool()) is not None:
        owner.on_child_released(child, group())


def _check(*, min_idle: int, max_live: int | None, idle_ttl: float | None) -> None:
    if not _is_number(min_idle, int) or min_idle < 0:
        raise OptionsError(f"min_idle: expected a whole number, 0 or more, got {min_idle!r}")
    if max_live is not None and (not _is_number(max_live, int) or max_live < max(1, min_idle)):
        raise OptionsError(
            f"max_live: expected a whole number, at least 1, and min_idle ({min_idle}), got {max_live!r}"
        )
    if idle_ttl is not None and not (_is_number(idle_ttl, int | float) and idle_ttl > 0):
        raise OptionsError(f"idle_ttl: expected more than 0 seconds, or None, got {idle_ttl!r}")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
