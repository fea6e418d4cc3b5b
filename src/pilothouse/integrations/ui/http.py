"""What the routes of front ends share: the check of a request, and server-sent events that notice when the client left.

A stream that cannot be sent any more is closed at once, and tells its maker by that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pilothouse.errors import PilothouseError
from pilothouse.integrations.ui.threads import FrontEndError

HEARTBEAT_SECONDS = 15.0
"""Between two comments in a silent stream, so that proxies keep it open."""
MAX_BODY_BYTES = 32 * 1024 * 1024
_STATUSES = {"bad_request": 400, "busy": 409, "limit": 503, "media_type": 415, "too_large": 413}

GetOwner = Callable[[Request], str | Awaitable[str]]
"""Says who makes a request; may raise Starlette's `HTTPException`."""


class EventStream(Response):
    """A response of server-sent events; their `stream` is closed when it ends, and when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, stream: AsyncGenerator[Any, None], headers: Mapping[str, str] | None = None) -> None:
        # Without a length, which `Response` would compute.
        self.status_code = 200
        self.body = b""
        self.background = None
        self._stream = stream
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sent = anyio.current_time()
        sending = anyio.Lock()

        async def send_bytes(data: bytes, *, more: bool = True) -> None:
            nonlocal sent
            async with sending:
                await send({"type": "http.response.body", "body": data, "more_body": more})
            sent = anyio.current_time()

        async def watch_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async def keep_alive() -> None:
            while True:
                await anyio.sleep(max(0.01, sent + HEARTBEAT_SECONDS - anyio.current_time()))
                if anyio.current_time() - sent >= HEARTBEAT_SECONDS:
                    await send_bytes(b": still here\n\n")

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_client)
            tasks.start_soon(keep_alive)
            async with aclosing(self._stream):
                async for item in self._stream:
                    data = item.encode() if isinstance(item, str) else msgspec.json.encode(item)
                    await send_bytes(b"data: " + data + b"\n\n")
            await send_bytes(b"", more=False)
            tasks.cancel_scope.cancel()


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request carries; raises FrontEndError.

    A page of another site can send other types without being asked for permission.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise FrontEndError("the body: expected the content type application/json", code="media_type")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise FrontEndError(f"the body is longer than {MAX_BODY_BYTES:,} bytes", code="too_large")
        parts.append(part)
    try:
        # Unlike `json`, msgspec refuses what no event could repeat: a half of a surrogate pair.
        body: Any = msgspec.json.decode(b"".join(parts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrontEndError(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise FrontEndError("the body: expected a JSON object")
    return cast("dict[str, Any]", body)


async def find_owner(get_owner: GetOwner | None, request: Request) -> str:
    """Return who makes the request; "" if nobody tells owners apart."""
    owner = "" if get_owner is None else get_owner(request)
    return str(await owner if inspect.isawaitable(owner) else owner)


def make_refusal(error: PilothouseError) -> Response:
    """Return the response that says why a request is not served."""
    code = getattr(error, "code", None) or "bad_request"
    return JSONResponse({"error": {"code": code, "message": str(error)}}, _STATUSES.get(code, 500))


def get_text(data: Mapping[str, Any], key: str) -> str:
    """Return a text of the request; raises FrontEndError if it is missing."""
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise FrontEndError(f"{key}: expected a text")
    return value
