"""What the routes of front ends share: the guard, the body, and server-sent events that notice when the client left.

A stream that cannot be sent any more is closed at once, and tells its maker by that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, cast

import anyio
import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, request_response
from starlette.types import Receive, Scope, Send

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.support import encode_json
from pilothouse_access.guard import RETRY_SECONDS, AccessGuard, AccessRules, RefusedRequestError
from pilothouse_doors.ui.threads import FrontEndError, Thread

STEERING_PATH = "/steer"
"""Below the path of a thread."""
HEARTBEAT_SECONDS = 15.0
"""Between two comments in a silent stream, so that proxies keep it open."""
MAX_BODY_BYTES = 32 * 1024 * 1024
_STATUSES = {
    "bad_request": 400, "busy": 409, "conflict": 409, "limit": 503, "media_type": 415, "start_failed": 502,
    "too_large": 413, "unsupported": 501,
}  # fmt: skip


class _BelowConvertor(Convertor[str]):
    """Matches a path and all paths below it, and no others that begin with the same letters."""

    regex = "(?:/.*)?"

    def convert(self, value: str) -> str:
        return value.removeprefix("/")

    def to_string(self, value: str) -> str:
        return f"/{value}"


# A convertor, so that the route keeps its meaning where a framework makes another route of its path.
register_url_convertor("pilothouse_below", _BelowConvertor())


def make_route(
    path: str, endpoint: Callable[[Request], Awaitable[Response]], methods: Collection[str], rules: AccessRules
) -> Route:
    """Make a route, with all paths below its own, whose requests the rules check first.

    Args:
        path: of the route.
        endpoint: serves a request, whose path parameter `rest` is the path below that of the route. A
            `PilothouseError` of it becomes the response that says why.
        methods: of HTTP.
        rules: who may send requests.
    """

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RefusedRequestError:
            raise  # the guard responds
        except PilothouseError as error:
            return make_refusal(error)

    # The guard is the endpoint itself, so that it stays where a framework makes another route of this one.
    whole = path.rstrip("/") + "{rest:pilothouse_below}"
    return Route(whole, AccessGuard(request_response(respond), rules), methods=methods)


class EventStream(Response):
    """A response of server-sent events: the `first` one, and those of the `stream`. Made by `open_stream`.

    The stream is closed when it ends, and when the client leaves.
    """

    media_type = "text/event-stream"

    def __init__(self, first: Any, stream: AsyncGenerator[Any, None], headers: Mapping[str, str] | None = None) -> None:
        # Without a length, which `Response` would compute.
        self.status_code = 200
        self.body = b""
        self.background = None
        self._first = first
        self._stream = stream
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with aclosing(self._stream):
            await self._send_events(receive, send)

    async def _send_events(self, receive: Receive, send: Send) -> None:
        sent = anyio.current_time()
        sending = anyio.Lock()

        async def send_item(item: Any) -> None:
            # A text may have half of a surrogate pair, which msgspec alone does not encode.
            await send_bytes(b"data: " + (item.encode() if isinstance(item, str) else encode_json(item)) + b"\n\n")

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
            await send_item(self._first)
            async for item in self._stream:
                await send_item(item)
            await send_bytes(b"", more=False)
            tasks.cancel_scope.cancel()


async def open_stream(stream: AsyncGenerator[Any, None], headers: Mapping[str, str] | None = None) -> EventStream:
    """Return the response that sends a stream, which is begun here: its reader counts before anything is sent."""
    return EventStream(await anext(stream), stream, headers)


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


async def steer(thread: Thread, request: Request) -> Response:
    """Give the `text` of a request to the turn that runs; the response says what became of it."""
    return make_json({"outcome": await thread.steer(get_text(await read_body(request), "text"))})


def make_refusal(error: PilothouseError) -> Response:
    """Return the response that says why a request is not served."""
    default = "bad_request" if isinstance(error, UsageError) else "start_failed"
    code = getattr(error, "code", None) or default
    headers = {"retry-after": str(RETRY_SECONDS)} if code == "limit" else None
    return JSONResponse({"error": {"code": code, "message": str(error)}}, _STATUSES.get(code, 500), headers)


def make_json(value: Any) -> Response:
    """Return a response with a value as JSON; a text may have half of a surrogate pair."""
    return Response(encode_json(value), media_type="application/json", headers={"cache-control": "no-store"})


def get_text(data: Mapping[str, Any], key: str) -> str:
    """Return a text of the request; raises FrontEndError if it is missing."""
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise FrontEndError(f"{key}: expected a text")
    return value
