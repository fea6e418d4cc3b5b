"""The peers that the contract suite of transports asks for, ready made: as programs, and as functions in memory.

Owns what each `Behaviour` does. Which transport reaches them is the business of who subclasses the suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import anyio

from pilothouse.testing.transport_suite import FLOOD_LINES, Behaviour
from pilothouse.transports.memory import MemoryPeer, Script

PEER_PROGRAMS: Final[Mapping[Behaviour, str]] = {
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
"""Python programs: `python -S -E -c PROGRAM`."""


async def _echo(peer: MemoryPeer) -> None:
    while line := await peer.read_line():
        await peer.write(line)


async def _fail(peer: MemoryPeer) -> None:
    await peer.write("bye\n")
    peer.end(exit_code=3, stderr=f"it broke\nkey: {peer.invocation.env['SUITE_API_KEY']}\n")


async def _flood(peer: MemoryPeer) -> None:
    for start in range(0, FLOOD_LINES, 1000):
        await peer.write("".join(f"{n}\n" for n in range(start, start + 1000)))


async def _silent(peer: MemoryPeer) -> None:
    while await peer.read_line():
        pass
    await anyio.sleep_forever()


async def _deaf(peer: MemoryPeer) -> None:
    await anyio.sleep_forever()


async def _mute(peer: MemoryPeer) -> None:
    peer.close_output()
    await anyio.sleep_forever()


MEMORY_PEERS: Final[Mapping[Behaviour, Script]] = {
    "deaf": _deaf,
    "echo": _echo,
    "fail": _fail,
    "flood": _flood,
    "mute": _mute,
    "silent": _silent,
}
"""Scripts for a `MemoryTransport`."""
