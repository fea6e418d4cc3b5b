"""A proxy on loopback that breaks the connections between a client and a host."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import anyio.abc


class Proxy:
    """Between client and host. Each connection gets the next of `plans`; without one it is let through.

    Attributes:
        plans: for each connection a function that makes of (direction, number of bytes so far, data) what passes; None
            cuts the connection, b"" swallows.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.plans: list[Callable[[str, int, bytes], bytes | None]] = []
        self.connections = 0
        self.is_down = False
        self.port = 0
        self._open: set[anyio.CancelScope] = set()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def open_count(self) -> int:
        """Number of connections that are open."""
        return len(self._open)

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
            there = await anyio.connect_tcp("127.0.0.1", self._target)
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


def cut_before_ready(which: str, count: int, data: bytes) -> bytes | None:
    """Let the handshake through; the host's first message never arrives."""
    return None if which == "down" and count else data
