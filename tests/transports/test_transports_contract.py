"""The contract suite over every transport that starts a peer on this machine."""

from __future__ import annotations

import os
import sys
from functools import partial

import anyio
import pytest

from pilothouse.options import Invocation
from pilothouse.testing.transport_suite import FLOOD_LINES, Behaviour, TransportSuite
from pilothouse.transports.base import Transport
from pilothouse.transports.child import spawn
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.exits import ExitWatch
from pilothouse.transports.memory import MemoryPeer, MemoryTransport
from pilothouse.transports.portable import spawn_portable

PEERS: dict[Behaviour, str] = {
    "echo": "import sys\nfor line in sys.stdin.buffer:\n sys.stdout.buffer.write(line); sys.stdout.flush()",
    "fail": (
        "import os, sys\nprint('bye', flush=True)\n"
        "print('it broke\\nkey: ' + os.environ['SUITE_API_KEY'], file=sys.stderr)\nsys.exit(3)"
    ),
    "flood": f"import sys\nfor n in range({FLOOD_LINES}): sys.stdout.write(f'{{n}}\\n')",
    "silent": "import sys, time\nsys.stdin.read()\ntime.sleep(600)",
    "deaf": "import time\ntime.sleep(600)",
    "mute": "import os, time\nos.close(1)\ntime.sleep(600)",
}


def invocation(code: str, **changes: object) -> Invocation:
    return Invocation(cli=sys.executable, argv=("-S", "-E", "-c", code), env={"PATH": os.environ["PATH"]}, **changes)  # type: ignore[arg-type]


class TestCliTransport(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return CliTransport(close_grace=0.05, spawn=spawn), invocation(PEERS[behaviour])


class TestPortableChild(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return CliTransport(close_grace=0.05, spawn=spawn_portable), invocation(PEERS[behaviour])


class TestWithoutPidfd(TransportSuite):
    @pytest.fixture(autouse=True)
    def _no_pidfd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pilothouse.transports.child.ExitWatch", partial(ExitWatch, use_pidfd=False))

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return CliTransport(close_grace=0.05, spawn=spawn), invocation(PEERS[behaviour])


async def echo(peer: MemoryPeer) -> None:
    while line := await peer.read_line():
        await peer.write(line)


async def fail(peer: MemoryPeer) -> None:
    await peer.write("bye\n")
    peer.end(exit_code=3, stderr=f"it broke\nkey: {peer.invocation.env['SUITE_API_KEY']}\n")


async def flood(peer: MemoryPeer) -> None:
    for start in range(0, FLOOD_LINES, 1000):
        await peer.write("".join(f"{n}\n" for n in range(start, start + 1000)))


async def silent(peer: MemoryPeer) -> None:
    while await peer.read_line():
        pass
    await anyio.sleep_forever()


async def deaf(peer: MemoryPeer) -> None:
    await anyio.sleep_forever()


async def mute(peer: MemoryPeer) -> None:
    peer.close_output()
    await anyio.sleep_forever()


SCRIPTS = {"echo": echo, "fail": fail, "flood": flood, "silent": silent, "deaf": deaf, "mute": mute}


class TestMemoryTransport(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return MemoryTransport(SCRIPTS[behaviour]), Invocation(cli="auto", argv=(), env={})


class TestMemoryTransportInSmallChunks(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        chunk = 1000 if behaviour in ("flood", "echo") else 1
        return MemoryTransport(SCRIPTS[behaviour], chunk=chunk), Invocation(cli="auto", argv=(), env={})
