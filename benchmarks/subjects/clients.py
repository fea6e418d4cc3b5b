"""The clients of a server that is measured: they watch its sessions, on loopback.

Owns what is asked of a server, and what counts as done. The server is a process of its own (`servers`), so that its
memory and CPU time are not those of the clients. Needs only the standard library.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

from benchmarks.subjects.clock import PROMPT, Stopwatch, expect, parameter

NUMBERS = "/numbers"  # path on which a server tells its memory and CPU time
TOKEN = "4f0e9a7c2b8d6135"  # of the servers, for as long as they are measured
SLOWLY = "slowly"  # with this prompt the fake CLI writes at the pace of a model, and says when
_STAMPS = re.compile(rb"at (\d{16}) ")


def watch(subject: str) -> dict[str, Any]:
    """Many sessions, and more viewers than sessions, on one process."""
    with _server(f"{subject}_host") as port:
        return asyncio.run(_watch(port))


@contextmanager
def _server(name: str) -> Generator[int]:
    command = [sys.executable, "-m", "benchmarks.subjects.servers", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()  # its children end with their input


def _head(method: str, path: str, size: int = 0) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {TOKEN}"]
    return "\r\n".join([*lines, "content-type: application/json", f"content-length: {size}", "\r\n"]).encode()


class Viewer(asyncio.Protocol):
    """Reads the events of a session: how many text deltas came, and how long after they were written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held = b""
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin()

    def begin(self) -> None:
        """Another turn."""
        self.deltas = 0
        self.delays: list[int] = []  # microseconds
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(_head("GET", self._path))

    def data_received(self, data: bytes) -> None:
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        if not self.attached.done():
            self.attached.set_result(None)
        whole, _, self._held = (self._held + data).rpartition(b"\n\n")
        self.deltas += whole.count(b'"text_delta"')
        self.delays += [now - stamp for found in _STAMPS.findall(whole) if (stamp := int(found))]
        if b'"type":"result"' in whole and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or EOFError(f"{self._path} has ended"))


async def _request(port: int, method: str, path: str, body: object = None) -> Any:
    sent = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_head(method, path, len(sent)) + sent)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", head)
        answer = await reader.readexactly(int(length[1]) if length is not None else 0)
    finally:
        writer.close()
    if not head.startswith(b"http/1.1 2"):
        raise SystemExit(f"{path}: {head!r} {answer!r}")
    return json.loads(answer)


async def _start(port: int, count: int) -> list[str]:
    """Start so many sessions; their paths."""
    options = {"options": {"partial_messages": True}}
    return [f"/v1/sessions/{(await _request(port, 'POST', '/v1/sessions', options))['id']}" for _ in range(count)]


async def _attach(port: int, paths: Sequence[str], count: int) -> list[Viewer]:
    """Attach so many viewers to the sessions, in turn."""
    loop = asyncio.get_running_loop()
    viewers = [Viewer(f"{path}/events") for path in islice(cycle(paths), count)]
    for viewer in viewers:
        await loop.create_connection(lambda viewer=viewer: viewer, "127.0.0.1", port)
        await viewer.attached
    return viewers


async def _turn(port: int, paths: Sequence[str], viewers: Sequence[Viewer], prompt: str, deltas: int) -> float:
    """Send the prompt to each session, until each viewer has the whole answer; the seconds that it takes."""
    for viewer in viewers:
        viewer.begin()
    watch = Stopwatch()
    sent = [_request(port, "POST", f"{path}/prompt", {"prompt": prompt}) for path in paths]
    if prompt == SLOWLY:
        for each in sent:  # one after another, or all children would write at the same moment
            await each
    else:
        await asyncio.gather(*sent)
    await asyncio.gather(*(viewer.ended for viewer in viewers))
    wall = watch.read()["wall"]
    for viewer in viewers:
        expect(viewer.deltas, deltas, "deltas")
    return wall


async def _watch(port: int) -> dict[str, Any]:
    count, slow_count = int(parameter("COUNT")), int(parameter("SLOWLY"))

    async def numbers() -> dict[str, float]:
        return await _request(port, "GET", NUMBERS)

    first = await _start(port, 1)
    await _turn(port, first, await _attach(port, first, 1), PROMPT, count)  # what is loaded once is no session's
    empty = await numbers()
    paths = await _start(port, int(parameter("SESSIONS")))
    opened = await numbers()
    viewers = await _attach(port, paths, int(parameter("VIEWERS")))
    attached = await numbers()
    await _turn(port, paths, viewers, SLOWLY, slow_count)
    slow = await numbers()
    delays = sorted(delay for viewer in viewers for delay in viewer.delays)
    expect(len(delays), len(viewers) * slow_count, "delays")
    wall = await _turn(port, paths, viewers, PROMPT, count)
    return {
        "wall": wall,
        "delay_p95": percentile(delays, 95) / 1e6,
        "cpu": slow["cpu"] - attached["cpu"],
        "session": (opened["memory"] - empty["memory"]) / len(paths),
        "viewer": (attached["memory"] - opened["memory"]) / len(viewers),
        "memory": (await numbers())["peak"],
    }


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value that so many percent of the values, which are in order, do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
