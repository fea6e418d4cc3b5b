"""The Messages API on loopback: Starlette routes, uvicorn's HTTP, one thread with its own loop.

Owns the life of the server and the execution of a `ResponsePlan`. Knows nothing of scripts: a function supplies the
plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pilothouse_testing.api_responses import ResponseItem, ResponsePlan, ServerAction
from pilothouse_testing.script import Gate

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

Respond = Callable[[str, str, Mapping[str, str], bytes], ResponsePlan]

START_SECONDS = 10.0
# Tasks of aborted connections end at once; this is the limit if one does not.
STOP_SECONDS = 2.0
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class _ServerStopped(Exception):  # noqa: N818 - a signal inside this file
    """The server stops, or the socket has to be cut."""


class ApiServer:
    """A loopback HTTP server in a thread, in which `respond` plans the response to method, path, headers and body."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self.port = 0

    def start(self) -> None:
        """Listen on a free port of 127.0.0.1; returns when requests are served."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        # Inherited by connections. asyncio sets it only on sockets that name their protocol, which this one does
        # not; without it each response after the first on a connection waits 40 ms for the client's kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        serve = self._serve(listener)
        self._thread = threading.Thread(target=asyncio.run, args=(serve,), name="scripted-model", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise RuntimeError(f"the scripted model did not start within {START_SECONDS} s")

    def stop(self) -> None:
        """Cut all connections and end the thread. Idempotent."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS * 2)
        self._thread = None

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        app = Starlette(routes=[Route("/{path:path}", self._endpoint, methods=METHODS)])
        # No logging configuration: the process belongs to the tests.
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, date_header=False
        )
        config.load()
        self._server = server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        # Not `Server.serve`: it polls for its end every 0.1 s and waits for open connections.
        await server.startup(sockets=[listener])
        self._ready.set()
        await self._stopping.wait()
        await self._close(server)

    async def _close(self, server: uvicorn.Server) -> None:
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        tasks = list(server.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
        # Aborted transports close their sockets in the next iteration of the loop.
        await asyncio.sleep(0)

    async def _endpoint(self, request: Request) -> _PlannedResponse:
        try:
            body = await request.body()
        except ClientDisconnect:
            return _PlannedResponse(self, ResponsePlan(before_status=[ServerAction.HANG]))
        return _PlannedResponse(self, self._respond(request.method, request.url.path, request.headers, body))

    async def wait_for(self, item: float | Gate | ServerAction) -> None:
        """Carry out a wait; raises `_ServerStopped` for a cut, or when the server stops meanwhile."""
        assert self._stopping is not None
        if item is ServerAction.CUT:
            raise _ServerStopped
        if isinstance(item, ServerAction):
            await self._stopping.wait()
            raise _ServerStopped
        waiting = asyncio.ensure_future(item.wait_open() if isinstance(item, Gate) else asyncio.sleep(item))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise _ServerStopped
        finally:
            waiting.cancel()
            stopping.cancel()

    def close_connection(self, scope: Scope) -> None:
        """Close the socket of a request; bytes written before still arrive."""
        assert self._server is not None
        for connection in cast("list[H11Protocol]", list(self._server.server_state.connections)):
            if connection.client == scope["client"]:
                connection.transport.close()


class _PlannedResponse:
    """Carries out a plan as an ASGI response, and stops when the client disconnects."""

    def __init__(self, server: ApiServer, plan: ResponsePlan) -> None:
        self._server = server
        self._plan = plan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(scope, send))
        gone = asyncio.ensure_future(_wait_disconnected(receive))
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.result():
                self._server.close_connection(scope)
                # uvicorn logs an unfinished response as an error unless the client has disconnected.
                await gone
        finally:
            sending.cancel()
            gone.cancel()

    async def _send(self, scope: Scope, send: Send) -> bool:
        """Send everything; returns True if the socket has to be closed in the middle."""
        plan = self._plan
        try:
            async for _ in self._bytes(plan.before_status):
                pass
            headers = {"content-type": plan.media_type, "cache-control": "no-cache", **plan.headers}
            raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": plan.status, "headers": raw})
            if scope["method"] != "HEAD":
                async for data in self._bytes(plan.items):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except _ServerStopped:
            return True
        return False

    async def _bytes(self, items: Sequence[ResponseItem]) -> AsyncIterator[bytes]:
        """Yield the bytes of the items, with neighbours joined, and carry out the waits."""
        joined: list[bytes] = []
        for item in items:
            if isinstance(item, bytes):
                joined.append(item)
                continue
            if joined:
                yield b"".join(joined)
                joined = []
            await self._server.wait_for(item)
        if joined:
            yield b"".join(joined)


async def _wait_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
