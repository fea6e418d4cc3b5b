"""The relay between children and the API: HTTP on loopback, passed on unchanged and at once, in both directions.

Owns the server, its thread and the connections to the API. Knows nothing of prompts: what arrives at the Messages
endpoint is handed to an `Observe` function while it passes, and is kept nowhere here. Only who knows the random path of
a target can use it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import anyio
import httpx2
import msgspec
import uvicorn

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MESSAGES: Final = b"/v1/messages"
_OF_ONE_CONNECTION: Final = frozenset(
    {b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
_OF_REQUEST: Final = _OF_ONE_CONNECTION | {b"accept-encoding", b"content-length", b"expect"}
_KEEP_ALIVE_SECONDS: Final = 3600
"""The child decides when an idle connection ends: it may be about to use it."""


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


Observe = Callable[[Mapping[str, str], bytes], Callable[[Usage], None] | None]
"""Gets headers and body of a request; returns what to call with the usage, once it is answered."""


class _Answer(msgspec.Struct):
    """An answer, or an event of a stream, as far as it is read."""

    usage: Usage | None = None
    message: _Answer | None = None


class UsageReader:
    """Calls `report` with the usage in an answer, streamed or not, as soon as it has arrived."""

    def __init__(self, report: Callable[[Usage], None] | None) -> None:
        self._report = report
        self._line = b""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the answer."""
        if self._report is not None:
            *lines, self._line = (self._line + chunk).split(b"\n")
            for line in lines:
                self._read(line)

    def end(self) -> None:
        """Read what has no line end: an answer that is not streamed."""
        self._read(self._line)

    def _read(self, line: bytes) -> None:
        if self._report is not None and b'"usage"' in line:
            with suppress(msgspec.MsgspecError):
                answer = msgspec.json.decode(line.removeprefix(b"data:"), type=_Answer)
                if (usage := answer.usage or (answer.message and answer.message.usage)) is not None:
                    self._report(usage)
                    self._report, self._line = None, b""


class _Target:
    """An API, and the connections to it, with the proxy and the certificates that the child would use."""

    def __init__(self, base_url: str, env: Mapping[str, str]) -> None:
        self.url = base_url.rstrip("/").encode()
        address = httpx2.URL(base_url)
        proxy = _get(env, f"{address.scheme}_proxy")
        direct = {name.strip().lstrip(".") for name in _get(env, "no_proxy").split(",")}
        host = f".{address.host}"
        if "*" in direct or any(name and host.endswith(f".{name}") for name in direct):
            proxy = ""
        context = httpx2.create_ssl_context()
        if certificates := env.get("NODE_EXTRA_CA_CERTS"):
            context.load_verify_locations(certificates)
        # No client: it would keep cookies. The limits are those of the child.
        limits = httpx2.Limits(max_connections=None)
        self.transport = httpx2.AsyncHTTPTransport(verify=context, proxy=proxy or None, limits=limits)


def _get(env: Mapping[str, str], name: str) -> str:
    return env.get(name) or env.get(name.upper()) or ""


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
        self._targets: dict[str, _Target] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # No logging configuration: the process belongs to the user.
        config = uvicorn.Config(
            cast("Any", self._serve_request), interface="asgi3", http="h11", ws="none", lifespan="off",
            log_config=None, access_log=False, date_header=False, server_header=False, proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )  # fmt: skip
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="pilothouse-cache-doctor", daemon=True)
        self._thread.start()

    def add_target(self, base_url: str, env: Mapping[str, str]) -> str:
        """Return the address at which requests to `base_url` are relayed; `env` is the environment of the child."""
        token = secrets.token_urlsafe(24)
        self._targets[token] = _Target(base_url, env)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/{token}"

    def stop(self) -> None:
        """Cut all connections and end the thread; blocks for a fraction of a second. Idempotent."""
        self._server.should_exit = True
        self._thread.join()
        self._targets.clear()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._listener])
        for target in self._targets.values():
            await target.transport.aclose()

    async def _serve_request(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        token, _, path = scope["raw_path"][1:].partition(b"/")
        body = await _read_body(receive)
        if body is None:
            return
        if (target := self._targets.get(token.decode("latin-1"))) is None:
            await _send_error(send, 404, "there is nothing here")
            return

        async def end_with_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(end_with_client)
            await self._relay(scope, target, b"/" + path, body, send)
            group.cancel_scope.cancel()

    async def _relay(self, scope: _Scope, target: _Target, path: bytes, body: bytes, send: _Send) -> None:
        headers: list[tuple[bytes, bytes]] = [item for item in scope["headers"] if item[0] not in _OF_REQUEST]
        report = None
        if scope["method"] == "POST" and path == MESSAGES:
            report = self._observe({name.decode("latin-1"): value.decode("latin-1") for name, value in headers}, body)
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        request = httpx2.Request(
            scope["method"],
            (target.url + path + query).decode("latin-1"),
            headers=[*headers, (b"accept-encoding", b"identity")],  # so that the usage can be read
            content=body or None,
        )
        is_started = False
        try:
            response = await target.transport.handle_async_request(request)
            try:
                kept = [item for item in response.headers.raw if item[0].lower() not in _OF_ONE_CONNECTION]
                await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
                is_started = True
                reader = UsageReader(report if response.is_success else None)
                async for chunk in response.aiter_raw():
                    reader.feed(chunk)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                reader.end()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        except httpx2.TransportError as error:
            if not is_started:
                await _send_error(send, 502, f"the cache doctor cannot reach the API: {type(error).__name__}")
                return
            # The child has to see that the answer is not whole.
            for connection in self._server.list_connections():
                if connection.client == scope["client"]:
                    connection.transport.close()
            await anyio.sleep_forever()  # until the disconnect arrives


async def _read_body(receive: _Receive) -> bytes | None:
    """Return the body of a request; None if the client has left."""
    parts: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)
    return None


async def _send_error(send: _Send, status: int, text: str) -> None:
    body = msgspec.json.encode({"type": "error", "error": {"type": "api_error", "message": text}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
