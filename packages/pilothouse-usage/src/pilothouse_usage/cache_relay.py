"""The relay between children and the API: HTTP on loopback, passed on unchanged and at once, in both directions.

Owns the server, its thread and the connections to the API. Knows nothing of prompts: what arrives at the Messages
endpoint is handed to an `Observe` function while it passes, and is kept nowhere here. Only a client that knows the
random path of a target can use it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import httpx2
import msgspec
import uvicorn

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

# What belongs to one connection, and not to what passes over it; and what the relay sets itself.
_HOP: Final = frozenset(b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade".split())
_REPLACED: Final = frozenset(b"accept-encoding content-length expect host".split())
_MAX_SEARCHED_BYTES: Final = 4 * 1024 * 1024
"""The usage stands at the beginning of a streamed answer, and at the end of another one."""

log = logging.getLogger("pilothouse.usage")


class Usage(msgspec.Struct, frozen=True):
    """What the API says about the prompt of a request, in tokens; figures that an API leaves out are 0.

    Args:
        input_tokens: neither read from the cache nor written to it.
        cache_read_input_tokens: read from the cache.
        cache_creation_input_tokens: written to the cache.
    """

    input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0

    @property
    def read(self) -> int:
        """Tokens that were read from the cache."""
        return self.cache_read_input_tokens or 0

    @property
    def cached(self) -> int:
        """Tokens that the next request can read from the cache."""
        return self.read + (self.cache_creation_input_tokens or 0)


Report = Callable[[Usage], None]
Observe = Callable[[Mapping[str, str], bytes], Report | None]
"""Gets the headers and the body of a request; returns what to call with the usage once it is answered."""


class _Answer(msgspec.Struct):
    """An answer, or an event of a streamed one, as far as it is read."""

    usage: Usage | None = None
    message: _Answer | None = None


class _UsageReader:
    """Finds the usage in the beginning of a streamed answer, or in a whole one. Reads each line once."""

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0

    def read(self, chunk: bytes) -> Usage | None:
        """Take the next piece of an answer; return the usage once it is there."""
        self._size += len(chunk)
        if self._size > _MAX_SEARCHED_BYTES:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in (*lines, self._rest):
            if line.endswith((b"}", b"}\r")):  # a whole answer has no line end
                with suppress(msgspec.MsgspecError):
                    found = msgspec.json.decode(line.removeprefix(b"data:"), type=_Answer)
                    if usage := found.usage or (found.message and found.message.usage):
                        return usage
        return None


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Without this, uvicorn waits for answers that may take minutes. Their requests to the API end with them.
        for connection in self.list_connections():
            connection.transport.abort()
        await super().shutdown(sockets)

    def list_connections(self) -> list[H11Protocol]:
        return cast("list[H11Protocol]", list(self.server_state.connections))


class Relay:
    """Passes requests on to the targets, from a thread of its own, so that children of any event loop can use it."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._targets: dict[bytes, bytes] = {}
        # The child sets the limits of time, and how many requests it sends at once.
        self._client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        # The child ends idle connections. No logging configuration: the process belongs to the user.
        config = uvicorn.Config(
            cast("Any", self._serve_request), interface="asgi3", http="h11", ws="none", lifespan="off", log_config=None,
            access_log=False, date_header=False, server_header=False, proxy_headers=False, timeout_keep_alive=3600,
        )  # fmt: skip
        self._server = _Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="cache-doctor", daemon=True)
        self._thread.start()

    def add_target(self, base_url: str) -> str:
        """Return the address at which requests to `base_url` are relayed."""
        token = secrets.token_urlsafe(24)
        self._targets[token.encode()] = base_url.rstrip("/").encode()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/{token}"

    def stop(self) -> None:
        """Cut all connections and end the thread; blocks for a fraction of a second. Idempotent."""
        self._server.should_exit = True
        self._thread.join()

    async def _serve(self) -> None:
        async with self._client:
            await self._server.serve(sockets=[self._listener])

    async def _serve_request(self, scope: Any, receive: Any, send: Any) -> None:
        token, _, path = scope["raw_path"][1:].partition(b"/")
        if (base := self._targets.get(token)) is None:
            await send({"type": "http.response.start", "status": 404})
            await send({"type": "http.response.body"})
            return
        parts, message = list[bytes](), {"type": "", "more_body": True}
        while message.get("more_body"):
            message = await receive()
            parts.append(message.get("body", b""))
        async with anyio.create_task_group() as group:
            if message["type"] == "http.request":
                group.start_soon(self._relay, scope, base + b"/" + path, b"".join(parts), send)
            while (await receive())["type"] != "http.disconnect":  # it also arrives at the end of the answer
                pass
            group.cancel_scope.cancel()

    async def _relay(self, scope: Any, url: bytes, body: bytes, send: Any) -> None:
        headers: list[tuple[bytes, bytes]] = [item for item in scope["headers"] if item[0] not in _HOP | _REPLACED]
        report = None
        if scope["method"] == "POST" and url.endswith(b"/v1/messages"):
            known = {name.decode(): value.decode("latin-1") for name, value in headers if name.startswith(b"x-claude-")}
            report = self._observe(known, body)
        address = b"?".join(filter(None, (url, scope["query_string"]))).decode("latin-1")
        headers.append((b"accept-encoding", b"identity"))  # so that the usage can be read
        request = httpx2.Request(scope["method"], address, headers=headers, content=body or None)
        try:
            async with aclosing(await self._client.send(request, stream=True)) as response:
                self._client.cookies.clear()
                kept = [item for item in response.headers.raw if item[0].lower() not in _HOP]
                await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
                reader = _UsageReader()
                async for chunk in response.aiter_raw():
                    if report is not None and response.is_success and (usage := reader.read(chunk)) is not None:
                        report(usage)
                        report = None
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body"})
        except httpx2.TransportError as error:
            log.warning("the connection of a cache doctor to the API failed: %s", type(error).__name__)
            for connection in self._server.list_connections():
                if connection.client == scope["client"]:
                    connection.transport.close()  # so that the child sees it, too
