"""A child of a pool keeps the contract of every transport, whether it was started ahead or not."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from functools import partial

from pilothouse.errors import CLIExitedError
from pilothouse.options import Invocation
from pilothouse.protocol import Connection
from pilothouse.transports import CliTransport, Transport
from pilothouse_pool.pool import Pool, PooledTransport
from pilothouse_testing.conformance import PEER_PROGRAMS, Behaviour, TransportSuite

OPENING = Connection().request("initialize", {})[1]
# Answers the handshake as the CLI does; then the program of the suite goes on.
HANDSHAKE = """
import os
line = b""
while not line.endswith(b"\\n"):
    line += os.read(0, 1)
os.write(1, b'{"type":"control_response","response":{"subtype":"success","request_id":"ph_1","response":{}}}\\n')
"""


def invocation(program: str, **changes: object) -> Invocation:
    env = {"PATH": os.environ["PATH"]}
    return Invocation(cli=sys.executable, argv=("-S", "-E", "-c", program), env=env, **changes)  # type: ignore[arg-type]


def pool() -> Pool:
    return Pool(min_idle=0, transport=partial(CliTransport, close_grace=0.05))


class TestColdChild(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return pool()(), invocation(PEER_PROGRAMS[behaviour])


class Opened(PooledTransport):
    """A child that was started ahead, through the handshake that an engine says."""

    _rest = b""

    async def start(self, invocation: Invocation) -> None:
        # One that ends at once, or says much, may be put aside; then this one is started when it is needed.
        stays = any(invocation.argv[-1].endswith(PEER_PROGRAMS[each]) for each in ("echo", "silent", "deaf"))
        with nullcontext() if stays else suppress(CLIExitedError):
            await self._pool.prewarm(invocation, 1)
        await super().start(invocation)
        assert self._warm_child is not None or not stays
        await super().send(OPENING)
        answer = b""
        while b"\n" not in answer:
            answer += await super().receive()
        first, _, self._rest = answer.partition(b"\n")
        assert b"ph_1" in first

    async def receive(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest or await super().receive()

    async def close(self) -> None:
        await super().close()
        await self._pool.aclose()


class TestWarmChild(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return Opened(pool()), invocation(HANDSHAKE + PEER_PROGRAMS[behaviour], initialize={})
