"""The HTTP API of a host: routes, and the messages of a session as server-sent events.

The id of an event is the position in the output after it, so that a stream can be resumed. Each refusal is `{"error":
{"code": …, "message": …}}`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, cast

import anyio
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from pilothouse.client import LateWords, SteerTime
from pilothouse.errors import (
    AskSettledError,
    LineDecodeError,
    LoginError,
    MessageParseError,
    PilothouseError,
    ProcessError,
    SessionClosedError,
    UsageError,
)
from pilothouse.permissions import Ask
from pilothouse.support import decode_line, encode_json, run_blocking
from pilothouse_access.guard import ACCESS_STATUSES, RETRY_SECONDS, RefusedRequestError, find_access
from pilothouse_access.owners import Owner
from pilothouse_host import reports
from pilothouse_host.approvals import check_permanent_changes
from pilothouse_host.host import Host
from pilothouse_host.journal import KEPT_EVENTS, JournalError, OutputPrunedError
from pilothouse_host.logins import LoginAccount
from pilothouse_host.reports import HostResponse
from pilothouse_host.server_sessions import RestSession, ServerSession, SharedEvents

HEALTH_PATH = "/healthz"
"""Path that needs no token; its response reveals nothing."""
HTTP_STATUSES: Mapping[str, int] = {
    **ACCESS_STATUSES,
    "attached_elsewhere": 409,
    "bad_request": 400,
    "busy": 409,
    "draining": 503,
    "journal": 507,
    "login_failed": 409,
    "no_login": 409,
    "pruned": 410,
    "settled": 409,
    "start_failed": 502,
    "too_large": 413,
    "unknown_ask": 404,
    "unknown_login": 404,
    "unknown_prompt": 404,
    "unknown_server": 404,
    "unknown_session": 404,
    "wrong_callback": 400,
}
"""HTTP status per code of a refusal."""
READ_BYTES = 256 * 1024
"""Bytes per read."""
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Maximum bytes of a message; a longer one becomes an event "oversize" that says where it is."""
MAX_MODEL_CHARS = 500
"""Characters of the name of a model, which the journal keeps."""
HEARTBEAT_COMMENT = b": still here\n\n"
_HIDDEN_TYPES = frozenset({"", "control_request", "control_response", "control_cancel_request", "keep_alive"})
_USER_REQUESTS = ("can_use_tool", "elicitation", "request_user_dialog")
"""Control requests that wait for a person. Programs respond to the others, such as hooks and tools."""


_ENDPOINT_PATHS = ("/chat/completions", "/responses", "/messages")


class _TypedFrame(msgspec.Struct):
    type: str = ""
    request: Any = None


_frame_decoder = msgspec.json.Decoder(_TypedFrame)


class NumberedLines:
    """Splits bytes into lines, with the offset after each; a line that is too long is only counted.

    Args:
        place: offset of the first byte that is fed.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self._held: list[bytes] = []
        self._size = 0

    @property
    def begins_line(self) -> bool:
        """Whether the next byte begins a line."""
        return not self._size

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield each complete line without its end, after its end's offset; None for a line that was too long."""
        *ends, rest = data.split(b"\n")
        for part in ends:
            self.place += len(part) + 1
            if not self._size and len(part) <= MAX_LINE_BYTES:
                yield self.place, part
                continue
            self._hold(part)
            yield self.place, None if self._size > MAX_LINE_BYTES else b"".join(self._held)
            self._held, self._size = [], 0
        self.place += len(rest)
        self._hold(rest)

    def encode(self, session: ServerSession, data: bytes) -> bytes:
        """Return the events of the next output of a session; viewers at the same place share the work."""
        begin, begins_line, shared = self.place, self.begins_line, session.shared_events
        if shared is not None and begins_line and (shared.place, shared.size) == (begin, len(data)):
            self.place += len(data)
            self._hold(shared.rest)
            return shared.events
        events = b"".join([event for end, line in self.feed(data) if (event := _encode_event(end, line))])
        is_shared = begins_line and session.attached_count > 1
        session.shared_events = SharedEvents(begin, len(data), events, b"".join(self._held)) if is_shared else None
        return events

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._held.clear()
        elif part:
            self._held.append(part)


async def stream_events(session: ServerSession, place: int, heartbeat: float) -> AsyncGenerator[bytes, None]:
    """Yield the events from an offset on, until the session is over.

    Args:
        session: source of the messages.
        place: offset in its output to begin at.
        heartbeat: seconds of silence after which a comment is sent, so that a broken connection is detected.
    """
    lines = NumberedLines(place)
    session.attached_count += 1
    try:
        while True:
            data: bytes | None = None
            with anyio.move_on_after(heartbeat):
                data = await session.output.read(place, READ_BYTES)
            if data is None:
                yield HEARTBEAT_COMMENT
                continue
            if not data:
                break
            place += len(data)
            events = lines.encode(session, data)
            if events:
                yield events
        ending = session.record.ending
        yield _encode_named_event("end", place, {"detail": "closed" if ending is None else ending.detail})
    except (OutputPrunedError, JournalError) as error:
        yield _encode_named_event("error", place, {"message": str(error)})
    finally:
        session.attached_count -= 1
        session.mark_used()


async def stream_host_events(host: Host, owner: Owner, place: int) -> AsyncGenerator[bytes, None]:
    """Yield the events of all sessions of an owner after a number, until the host is shut down.

    Args:
        host: the host.
        owner: whose sessions; the operator's are all.
        place: number of the last event that the client has.
    """
    journal = host.journal
    try:
        while True:
            last = journal.last_event
            rows = await journal.read_events(place, owner)
            if place < journal.last_event - KEPT_EVENTS:  # the client was slow; its next request gets 410
                yield _encode_named_event(
                    "error", place, {"message": "the client has missed events: read the lists again"}
                )
                return
            for number, kind, data in rows:
                place = number
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), data)
            if rows:
                continue
            if journal.is_over:
                return
            place = max(place, last)  # those of other owners
            with anyio.move_on_after(host.settings.heartbeat) as waiting:
                await journal.wait_for_event(place)
            if waiting.cancelled_caught:
                yield HEARTBEAT_COMMENT
    except JournalError as error:
        yield _encode_named_event("error", place, {"message": str(error)})


def _encode_event(end: int, line: bytes | None) -> bytes:
    if line is None:
        return _encode_named_event("oversize", end, {"message": f"a message is longer than {MAX_LINE_BYTES:,} bytes"})
    try:
        frame = _frame_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:  # the line may have half of a surrogate pair, which msgspec refuses
            found = decode_line(line)
            frame, line = msgspec.convert(found, _TypedFrame), encode_json(found)
        except (LineDecodeError, MessageParseError, ValueError):
            return b""
    kind = frame.type
    if kind == "control_request" and _asks_user(frame.request):
        return b"id: %d\nevent: asked\ndata: %s\n\n" % (end, line.replace(b"\r", b""))
    if kind in _HIDDEN_TYPES:
        return b""
    return b"id: %d\ndata: %s\n\n" % (end, line.replace(b"\r", b""))


def _asks_user(request: Any) -> bool:
    return isinstance(request, dict) and cast("Mapping[str, Any]", request).get("subtype") in _USER_REQUESTS


def _encode_named_event(name: str, place: int, body: dict[str, str]) -> bytes:
    return f"id: {place}\nevent: {name}\ndata: {json.dumps(body)}\n\n".encode()


RouteHandler = Callable[[Host, Request], Awaitable[Response]]

# The first match gives the code of the refusal.
_ERROR_CODES: tuple[tuple[type[PilothouseError], str], ...] = (
    (OutputPrunedError, "pruned"),
    (JournalError, "journal"),
    (SessionClosedError, "busy"),
    (AskSettledError, "settled"),
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


class SteerBody(PromptBody, forbid_unknown_fields=True):
    """Body of a request with words for the turn that runs."""

    when: SteerTime = "next"
    if_late: LateWords = "ask"


class SettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request that changes settings of a session."""

    model: str | None = None
    permission_mode: str | None = None


class ApprovalBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request that settles an approval."""

    decision: Literal["allow", "deny", "answer"]
    reason: str = ""
    interrupt: bool = False
    input: dict[str, Any] | None = None
    answers: Any = None
    always: bool = False
    minutes: float | None = None


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request that begins a login."""

    server: str | None = None
    account: LoginAccount = "claude"


class LoginAnswerBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request with what a browser has brought."""

    answer: str

    def __repr__(self) -> str:
        return "LoginAnswerBody()"


def make_routes(host: Host) -> list[Route]:
    """Return the routes of a host."""
    table: tuple[tuple[str, str, RouteHandler], ...] = (
        (HEALTH_PATH, "GET", _health),
        ("/v1/sessions", "GET", _list),
        ("/v1/sessions", "POST", _start),
        ("/v1/sessions/{id}", "GET", _get),
        ("/v1/sessions/{id}", "DELETE", _close),
        ("/v1/sessions/{id}/prompt", "POST", _prompt),
        ("/v1/sessions/{id}/prompts/{prompt}", "DELETE", _withdraw_prompt),
        ("/v1/sessions/{id}/steer", "POST", _steer),
        ("/v1/sessions/{id}/interrupt", "POST", _interrupt),
        ("/v1/sessions/{id}/settings", "POST", _change_settings),
        ("/v1/sessions/{id}/events", "GET", _events),
        ("/v1/sessions/{id}/mcp", "GET", _list_servers),
        ("/v1/sessions/{id}/mcp/{server:path}/login", "DELETE", _clear_login),
        ("/v1/sessions/{id}/logins", "POST", _begin_login),
        ("/v1/sessions/{id}/logins/{login}", "GET", _get_login),
        ("/v1/sessions/{id}/logins/{login}", "POST", _complete_login),
        ("/v1/sessions/{id}/logins/{login}", "DELETE", _cancel_login),
        ("/v1/asks", "GET", _list_approvals),
        ("/v1/events", "GET", _host_events),
        ("/v1/transcripts", "GET", reports.handle_transcripts),
        ("/v1/transcripts/{id}", "GET", reports.handle_transcript),
        ("/v1/transcripts/{id}", "POST", _change_transcript),
        ("/v1/transcripts/{id}", "DELETE", reports.handle_transcript_removal),
        ("/v1/usage", "GET", reports.handle_usage),
        ("/v1/usage/{id}", "GET", reports.handle_breakdown),
        ("/v1/fleet", "GET", reports.handle_fleet),
        ("/v1/policy", "GET", reports.handle_policy),
        ("/v1/policy/suggestion", "GET", reports.handle_suggestion),
        ("/v1/sessions/{id}/asks/{ask}", "POST", _settle_approval),
    )
    return [Route(path, _make_endpoint(host, answer), methods=[method]) for path, method, answer in table]


def _make_endpoint(host: Host, handler: RouteHandler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(host, request)
        except RefusedRequestError as refusal:
            return _make_refusal_response(refusal)
        except LoginError as error:
            code = str(error.code) if error.code in HTTP_STATUSES else "login_failed"
            return _make_refusal_response(RefusedRequestError(code, str(error)))
        except PilothouseError as error:
            code = next((code for kind, code in _ERROR_CODES if isinstance(error, kind)), "start_failed")
            return _make_refusal_response(RefusedRequestError(code, str(error)))

    return endpoint


async def handle_not_found(request: Request, error: Exception) -> Response:
    """Respond to a path or method that does not exist."""
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    text = f"there is no {request.method} {request.url.path[:200]} here"
    if request.url.path.endswith(_ENDPOINT_PATHS):
        text += (
            "; clients of OpenAI need --openai and a base URL with /v1, those of Anthropic --anthropic and one without"
        )
    refusal = RefusedRequestError("bad_request", text)
    return HostResponse(_make_error_body(refusal), status, headers)


def _make_error_body(refusal: RefusedRequestError) -> dict[str, Any]:
    return {"error": {"code": refusal.code, "message": str(refusal)}}


def _make_refusal_response(refusal: RefusedRequestError) -> Response:
    headers = {"retry-after": str(RETRY_SECONDS)} if refusal.code == "limit" else {}
    if refusal.code in ("limit", "timeout"):  # perhaps of the body, of which the rest is not read
        headers["connection"] = "close"
    return HostResponse(_make_error_body(refusal), HTTP_STATUSES.get(refusal.code, 500), headers)


async def _health(host: Host, request: Request) -> Response:
    return Response(status_code=503 if host.is_draining else 204)


async def _list(host: Host, request: Request) -> Response:
    owner = find_access(request).owner
    seen = [session.describe() for session in host.sessions if owner.may_use(session.record.owner)]
    last_event, has_key = host.journal.last_event, await run_blocking(host.has_key)
    return HostResponse({"sessions": seen, "draining": host.is_draining, "events_from": last_event, "has_key": has_key})


async def _start(host: Host, request: Request) -> Response:
    asked = await _read_body(host, request, StartBody)
    session = await host.start_rest_session(asked.options, find_access(request).owner)
    if asked.prompt is not None:
        try:
            await host.send_prompt(session, asked.prompt)
        except PilothouseError:  # the client would not know of the session
            await host.close(session)
            raise
    return HostResponse(session.describe(), 201, {"location": f"/v1/sessions/{session.id}"})


async def _get(host: Host, request: Request) -> Response:
    return HostResponse(_find_session(host, request).describe())


async def _close(host: Host, request: Request) -> Response:
    await host.close(_find_session(host, request))
    return Response(status_code=204)


async def _prompt(host: Host, request: Request) -> Response:
    session = _find_rest_session(host, request, "sends the prompts")
    asked = await _read_body(host, request, PromptBody)
    place = session.output.end
    query = await host.send_prompt(session, asked.prompt)
    body = {"session": session.id, "prompt": query.id, "events_from": place, "waiting": session.waiting_count}
    return HostResponse(body, 202)


async def _steer(host: Host, request: Request) -> Response:
    session = _find_rest_session(host, request, "steers it")
    asked: SteerBody = await _read_body(host, request, SteerBody)
    place = session.output.end
    words, outcome = await host.steer(session, asked.prompt, asked.when, asked.if_late)
    return HostResponse({"session": session.id, "steering": words, "events_from": place, "outcome": outcome}, 202)


async def _withdraw_prompt(host: Host, request: Request) -> Response:
    session = _find_rest_session(host, request, "has its queue")
    session.withdraw_prompt(request.path_params["prompt"])
    return Response(status_code=204)


async def _interrupt(host: Host, request: Request) -> Response:
    session = _find_session(host, request)
    try:
        await session.interrupt()
    except ValueError as error:
        raise RefusedRequestError("busy", str(error)) from None
    return Response(status_code=204)


async def _change_settings(host: Host, request: Request) -> Response:
    session = _find_rest_session(host, request, "changes its settings")
    asked: SettingsBody = await _read_body(host, request, SettingsBody)
    if asked.model is not None and len(asked.model) > MAX_MODEL_CHARS:
        raise RefusedRequestError("bad_request", f"model: expected at most {MAX_MODEL_CHARS} characters")
    if asked.permission_mode is not None:
        host.policy.limits.check_mode(asked.permission_mode, "permission_mode")
    await session.change_settings(asked.model, asked.permission_mode)
    return HostResponse(session.describe())


async def _list_servers(host: Host, request: Request) -> Response:
    session = _find_rest_session(host, request, "has its MCP servers")
    return HostResponse({"servers": await session.list_servers()})


async def _begin_login(host: Host, request: Request) -> Response:
    session = _find_login_session(host, request)
    asked: LoginBody = await _read_body(host, request, LoginBody)
    login = await host.begin_login(session, asked.server, asked.account)
    path = f"/v1/sessions/{session.id}/logins/{login.id}"
    return HostResponse(login.describe_fully(), 201, {"location": path})


async def _get_login(host: Host, request: Request) -> Response:
    login = _find_login_session(host, request).logins.get(request.path_params["login"])
    await login.wait(_read_seconds(request))
    return HostResponse(login.describe_fully())


async def _complete_login(host: Host, request: Request) -> Response:
    login = _find_login_session(host, request).logins.get(request.path_params["login"])
    asked: LoginAnswerBody = await _read_body(host, request, LoginAnswerBody)
    await login.complete(asked.answer)
    return HostResponse(login.describe_fully())


async def _cancel_login(host: Host, request: Request) -> Response:
    logins = _find_login_session(host, request).logins
    logins.cancel(logins.get(request.path_params["login"]))
    return Response(status_code=204)


async def _clear_login(host: Host, request: Request) -> Response:
    await host.clear_login(_find_login_session(host, request), request.path_params["server"])
    return Response(status_code=204)


def _find_login_session(host: Host, request: Request) -> RestSession:
    """Find a session in which the client of a request may log in.

    Raises:
        RefusedRequestError: as `_find_rest_session`; or the client is not the operator.
    """
    session = _find_rest_session(host, request, "logs in")
    if not find_access(request).owner.is_operator:
        raise RefusedRequestError("forbidden", "logins need the token of the host: each is one for all its sessions")
    return session


def _read_seconds(request: Request) -> int:
    given = request.query_params.get("wait", "0")
    try:
        return int(given)
    except ValueError:
        raise RefusedRequestError("bad_request", f"wait: expected seconds, got {given[:80]!a}") from None


async def _change_transcript(host: Host, request: Request) -> Response:
    return await reports.change_transcript(host, request, await _read_body(host, request, reports.TranscriptBody))


async def _events(host: Host, request: Request) -> Response:
    session = _find_session(host, request)
    place = _read_place(request, session.output.start)
    if not 0 <= place <= session.output.end:
        raise RefusedRequestError("bad_request", f"Last-Event-ID: the output ends at {session.output.end}")
    session.output.check_available(place)
    stream = stream_events(session, place, host.settings.heartbeat)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _list_approvals(host: Host, request: Request) -> Response:
    owner = find_access(request).owner
    seen = [each for each in host.sessions if owner.may_use(each.record.owner)]
    found = sorted(
        (approval for session in seen for approval in session.approvals.describe()),
        key=lambda approval: approval["asked_at"],
    )
    return HostResponse({"asks": found, "events_from": host.journal.last_event})


async def _host_events(host: Host, request: Request) -> Response:
    last = host.journal.last_event
    place = _read_place(request, last)
    if not 0 <= place <= last:
        raise RefusedRequestError("bad_request", f"Last-Event-ID: the last event is {last}")
    if place < last - KEPT_EVENTS:
        raise RefusedRequestError("pruned", f"the host keeps the events after {last - KEPT_EVENTS}")
    stream = stream_host_events(host, find_access(request).owner, place)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _read_place(request: Request, default: int) -> int:
    given = request.headers.get("last-event-id") or request.query_params.get("from")
    try:
        return default if given is None else int(given)
    except ValueError:
        raise RefusedRequestError("bad_request", f"Last-Event-ID: expected a number, got {given!a}") from None


async def _settle_approval(host: Host, request: Request) -> Response:
    session = _find_session(host, request)
    by = find_access(request).owner.name or "host"
    asked: ApprovalBody = await _read_body(host, request, ApprovalBody)

    def decide(approval: Ask) -> None:
        if asked.decision == "answer":
            return approval.answer(asked.answers, by=by)
        if asked.decision == "deny":
            return approval.deny(asked.reason, interrupt=asked.interrupt, by=by)
        if asked.always:
            check_permanent_changes(host.policy, approval)
        return approval.allow(updated_input=asked.input, always=asked.always, minutes=asked.minutes, by=by)

    approval_id = request.path_params["ask"]

    async def continue_with(prompt: str) -> None:  # only REST sessions have approvals whose process is gone
        assert isinstance(session, RestSession)
        await host.send_prompt(session, prompt)

    await session.approvals.settle(approval_id, decide, continue_with)
    return HostResponse({"ask": approval_id, "session": session.id, "by": by})


def _find_session(host: Host, request: Request) -> ServerSession:
    return host.get(request.path_params["id"], find_access(request).owner)


def _find_rest_session(host: Host, request: Request, does: str) -> RestSession:
    """Find a session that this host drives.

    Raises:
        RefusedRequestError: a WebSocket client drives it, and does what is requested.
    """
    session = _find_session(host, request)
    if not isinstance(session, RestSession):
        raise RefusedRequestError("busy", f"a WebSocket client drives this session; that client {does}")
    return session


async def _read_body(host: Host, request: Request, kind: type[Any]) -> Any:
    limit = host.settings.max_body
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise RefusedRequestError("too_large", f"the body is longer than {limit:,} bytes")
            parts.append(part)
    except ClientDisconnect:  # else each broken upload would write a traceback into the log
        raise RefusedRequestError("bad_request", "the body: the connection ended before it did") from None
    try:
        return msgspec.json.decode(b"".join(parts) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedRequestError("bad_request", f"the body: {error}") from None
