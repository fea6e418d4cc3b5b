"""The host over HTTP: sessions that the host drives itself, and a view of all sessions.

Owns the routes and the format of responses. `Host` does the work. Every refusal is `{"error": {"code": …, "message":
…}}`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pilothouse.errors import PilothouseError, ProcessError, SessionClosedError, UsageError
from pilothouse.server.events import event_stream
from pilothouse.server.guard import OPEN, STATUS, refusal_body, request_owner
from pilothouse.server.host import Host
from pilothouse.server.hosted import HostedSession
from pilothouse.server.journal import JournalError
from pilothouse.server.output import PrunedError
from pilothouse.server.policy import Refusal
from pilothouse.server.prompted_session import PromptedSession

Answer = Callable[[Host, Request], Awaitable[Response]]

# The first match gives the code of the refusal.
_CODES: tuple[tuple[type[PilothouseError], str], ...] = (
    (PrunedError, "pruned"),
    (JournalError, "journal"),
    (SessionClosedError, "busy"),
    (UsageError, "bad_request"),
    (ProcessError, "start_failed"),
)


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request that starts a session."""

    options: dict[str, Any] = {}
    prompt: str | None = None


class PromptBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request with a prompt."""

    prompt: str | list[dict[str, Any]]


def routes(host: Host) -> list[Route]:
    """Return the routes of a host."""
    table: tuple[tuple[str, str, Answer], ...] = (
        (OPEN, "GET", _health),
        ("/v1/sessions", "GET", _list),
        ("/v1/sessions", "POST", _start),
        ("/v1/sessions/{id}", "GET", _get),
        ("/v1/sessions/{id}", "DELETE", _close),
        ("/v1/sessions/{id}/prompt", "POST", _prompt),
        ("/v1/sessions/{id}/interrupt", "POST", _interrupt),
        ("/v1/sessions/{id}/events", "GET", _events),
    )
    return [Route(path, _endpoint(host, answer), methods=[method]) for path, method, answer in table]


def _endpoint(host: Host, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(host, request)
        except Refusal as refusal:
            return _no(refusal)
        except PilothouseError as error:
            code = next((code for kind, code in _CODES if isinstance(error, kind)), "start_failed")
            return _no(Refusal(code, str(error)))

    return endpoint


async def not_there(request: Request, error: Exception) -> Response:
    """Respond to a path or method that does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse(refusal_body(Refusal("bad_request", "there is no such path, or not this method of it")), status)


def _no(refusal: Refusal) -> Response:
    return JSONResponse(refusal_body(refusal), STATUS.get(refusal.code, 500))


async def _health(host: Host, request: Request) -> Response:
    return Response(status_code=503 if host.draining else 204)


async def _list(host: Host, request: Request) -> Response:
    owner = request_owner(request)
    seen = [session.describe() for session in host.sessions if owner in ("", session.record.owner)]
    return JSONResponse({"sessions": seen, "draining": host.draining})


async def _start(host: Host, request: Request) -> Response:
    asked = await _body(host, request, StartBody)
    session = await host.start_prompted(asked.options, request_owner(request))
    if asked.prompt is not None:
        await host.ask(session, asked.prompt)
    return JSONResponse(session.describe(), 201, {"location": f"/v1/sessions/{session.id}"})


async def _get(host: Host, request: Request) -> Response:
    return JSONResponse(_session(host, request).describe())


async def _close(host: Host, request: Request) -> Response:
    await host.close(_session(host, request))
    return Response(status_code=204)


async def _prompt(host: Host, request: Request) -> Response:
    session = _session(host, request)
    if not isinstance(session, PromptedSession):
        raise Refusal("busy", "a client drives this session over the wire, and asks in it")
    asked = await _body(host, request, PromptBody)
    place = session.output.end
    await host.ask(session, asked.prompt)
    return JSONResponse({"session": session.id, "events_from": place, "waiting": session.waiting}, 202)


async def _interrupt(host: Host, request: Request) -> Response:
    session = _session(host, request)
    try:
        await session.interrupt()
    except ValueError as error:
        raise Refusal("busy", str(error)) from None
    return Response(status_code=204)


async def _events(host: Host, request: Request) -> Response:
    session = _session(host, request)
    given = request.headers.get("last-event-id") or request.query_params.get("from")
    try:
        place = session.output.start if given is None else int(given)
    except ValueError:
        raise Refusal("bad_request", f"Last-Event-ID: expected a number, got {given!a}") from None
    if not 0 <= place <= session.output.end:
        raise Refusal("bad_request", f"Last-Event-ID: the output ends at {session.output.end}")
    session.output.check(place)
    stream = event_stream(session, place, host.settings.heartbeat)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _session(host: Host, request: Request) -> HostedSession:
    return host.get(request.path_params["id"], request_owner(request))


async def _body(host: Host, request: Request, kind: type[Any]) -> Any:
    limit = host.settings.max_body
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Refusal("too_large", f"the body is longer than {limit:,} bytes")
        parts.append(part)
    try:
        return msgspec.json.decode(b"".join(parts) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_request", f"the body: {error}") from None
