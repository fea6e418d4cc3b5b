"""Many sessions, many reconnects, and a host that is killed in the middle: every byte once, in order."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from served_host import ARGV, LIMIT, TOKEN, Program, Served, numbers
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from pilothouse_testing import FakeCLI

WAIT = 120.0


@dataclass
class Client:
    """One session as its client knows it."""

    url: str
    chance: random.Random
    name: str = field(default_factory=lambda: str(uuid.uuid4()))
    session: str = ""
    have: bytearray = field(default_factory=bytearray)
    acknowledged: int = 0
    socket: ClientConnection | None = None
    detail: str = ""

    async def attach(self) -> None:
        """Connect, and go on where it was, or a little before."""
        # What came after the last acknowledgement may not have been handed on: some of it is asked for again.
        del self.have[self.chance.randint(self.acknowledged, len(self.have)) :]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        dialling = connect(
            f"{self.url}/v1/wire",
            additional_headers=headers,
            subprotocols=["pilothouse.v1"],  # type: ignore[list-item]
            ping_interval=None,
            compression=None,
            open_timeout=WAIT,
        )
        self.socket = await dialling.__aenter__()
        if self.session:
            what: dict[str, Any] = {"op": "attach", "session": self.session, "received": len(self.have)}
        else:
            what = {"op": "start", "invocation": {"argv": ARGV}}
        await self.socket.send(json.dumps({"version": 1, "client": self.name, **what}))
        ready = json.loads(await asyncio.wait_for(self.socket.recv(), WAIT))
        assert ready["op"] == "ready", ready
        assert ready.get("begin", 0) == len(self.have)
        self.session = ready["session"]

    async def read(self, seconds: float) -> None:
        """Take what comes for a while, or until the end."""
        assert self.socket is not None
        try:
            async with asyncio.timeout(seconds):
                while not self.detail:
                    self._take(await self.socket.recv())
        except TimeoutError:
            pass

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            assert int.from_bytes(message[:8], "big") == len(self.have), "lost, or doubled"
            self.have += message[8:]
        elif (op := json.loads(message))["op"] == "ended":
            assert op["at"] == len(self.have)
            self.detail = op["detail"]

    async def cut(self) -> None:
        """Acknowledge some of it, and go without a word."""
        assert self.socket is not None
        self.acknowledged = self.chance.randint(self.acknowledged, len(self.have))
        await self.socket.send(json.dumps({"op": "ack", "received": self.acknowledged}))
        self.socket.transport.abort()
        self.socket = None

    async def live(self, reconnects: int) -> None:
        for _ in range(reconnects):
            await self.attach()
            await self.read(self.chance.random() / 20)
            await self.cut()
        await self.attach()


async def _all(clients: list[Client], program: Program, reconnects: int) -> float:
    begin = time.perf_counter()
    await asyncio.gather(*(client.live(reconnects) for client in clients))
    seconds = time.perf_counter() - begin
    seen = await asyncio.gather(*(_until_killed(client) for client in clients), asyncio.to_thread(program.kill))
    assert len(seen) == len(clients) + 1
    return seconds


async def _until_killed(client: Client) -> None:
    with suppress(ConnectionClosed):
        await client.read(LIMIT)


async def _again(clients: list[Client], url: str) -> None:
    for client in clients:
        client.url = url
        await client.attach()
        await client.read(WAIT)
        await client.cut()


@pytest.mark.requirement("E84")
@pytest.mark.parametrize(
    ("sessions", "reconnects", "pause"), [(20, 10, 0.05), pytest.param(200, 50, 3, marks=pytest.mark.slow)]
)
def test_every_byte_once(tmp_path: Path, sessions: int, reconnects: int, pause: float) -> None:
    script = f"i=0; while :; do seq $i $((i+99)); i=$((i+100)); sleep {pause}; done"
    chance = random.Random(8750)
    with FakeCLI.shell(script) as fake:
        program = Program(tmp_path, fake.path, "--max-sessions", str(sessions))
        with program as served:
            clients = [Client(served.url, random.Random(chance.random())) for _ in range(sessions)]
            seconds = asyncio.run(_all(clients, program, reconnects))
        seen = [len(client.have) for client in clients]
        with Program(tmp_path, fake.path) as again:
            asyncio.run(_again(clients, again.url))
            _check(again, clients, seen)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    total = sessions * reconnects
    print(
        f"\n{sessions} sessions, {total} reconnects in {seconds:.1f} s: {total / seconds:.0f}/s; host {memory:.0f} MiB"
    )


def _check(served: Served, clients: list[Client], seen: list[int]) -> None:
    for client, size in zip(clients, seen, strict=True):
        assert client.detail == "the host was restarted"
        assert len(client.have) >= size
        assert bytes(client.have) == numbers(len(client.have))
    assert len(served.request("GET", "/v1/sessions")[1]["sessions"]) == len(clients)
