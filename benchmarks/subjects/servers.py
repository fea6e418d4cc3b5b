"""The servers that `clients` measure: a host, ours and that of the floor. Each prints its port.

The floor is a bare Starlette application that starts the same children. It keeps no journal, checks no token, limits
nothing, and passes on every line as it is.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.subjects.clients import NUMBERS, TOKEN
from benchmarks.subjects.clock import cpu_time, fake_cli, main, memory, settled_memory
from benchmarks.subjects.floor import ARGV, INITIALIZE, USER

MAX_SESSIONS = 1000  # of our host; its default is smaller than what is measured
decode, encode = msgspec.json.decode, msgspec.json.encode


async def _tell(request: Request) -> Response:
    return Response(encode({"memory": settled_memory(), "peak": memory("VmHWM"), "cpu": cpu_time()}))


def ours_host() -> dict[str, Any]:
    return asyncio.run(_serve_ours())


async def _serve_ours() -> dict[str, Any]:
    """As `pilothouse serve`, which is put together from the same parts."""
    import pilothouse_host as server

    home = Path.home()
    settings = server.HostSettings(
        journal=home / "journal.sqlite", roots=(str(home),), cli=fake_cli(), max_sessions=MAX_SESSIONS
    )
    server.raise_descriptor_limit()
    host = server.Host(settings)
    application = server.make_app(host, token=TOKEN, routes=[Route(NUMBERS, _tell)])
    listening = server.listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    async with host:
        await server.serve(host, application, listening, lambda: print(port, flush=True))
    return {}


class BareSession:
    """A child, and the queues of those who read along."""

    def __init__(self) -> None:
        self.viewers: list[asyncio.Queue[bytes]] = []

    async def start(self) -> None:
        self._process = await _start_child()
        assert self._process.stdout is not None
        await self._process.stdout.readline()
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        held = b""
        while chunk := await stdout.read(256 * 1024):
            whole, newline, rest = (held + chunk).rpartition(b"\n")
            held = rest
            events = b"".join(b"data: %s\n\n" % line for line in whole.split(b"\n")) if newline else b""
            for viewer in self.viewers if events else ():
                viewer.put_nowait(events)

    def send(self, prompt: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(USER % prompt.encode())


async def _start_child() -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        fake_cli(), *ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, limit=1 << 20
    )
    assert process.stdin is not None
    process.stdin.write(INITIALIZE)
    return process


def floor_host() -> dict[str, Any]:
    sessions: list[BareSession] = []

    async def start(request: Request) -> Response:
        session = BareSession()
        await session.start()
        sessions.append(session)
        return Response(encode({"id": len(sessions) - 1}))

    async def prompt(request: Request) -> Response:
        sessions[request.path_params["id"]].send(decode(await request.body())["prompt"])
        return Response(b"{}")

    async def events(request: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            queue: asyncio.Queue[bytes] = asyncio.Queue()
            sessions[request.path_params["id"]].viewers.append(queue)
            while True:
                yield await queue.get()

        return StreamingResponse(stream(), media_type="text/event-stream")

    return _serve_floor(
        Route("/v1/sessions", start, methods=["POST"]),
        Route("/v1/sessions/{id:int}/prompt", prompt, methods=["POST"]),
        Route("/v1/sessions/{id:int}/events", events),
    )


def _serve_floor(*routes: Route) -> dict[str, Any]:
    async def serve() -> None:
        application = Starlette(routes=[Route(NUMBERS, _tell), *routes])
        server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_config=None, access_log=False))
        listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(listening.getsockname()[1], flush=True)
        await server.serve(sockets=[listening])

    asyncio.run(serve())
    return {}


if __name__ == "__main__":
    main(ours_host, floor_host)
