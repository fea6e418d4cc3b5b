"""What the host reports over REST beside its sessions: transcripts on disk, usage, and what sessions may do.

Transcripts and usage are those of the host's user, whoever started the conversations: they need the token of the host.
Only conversations below its roots are shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pilothouse.errors import PilothouseError, SessionNotFoundError
from pilothouse.permissions import Asks
from pilothouse.support import encode_json, mask, run_blocking, run_cancellable, to_json_values
from pilothouse_access.guard import RefusedRequestError, find_access
from pilothouse_fleet.results import run_row
from pilothouse_fleet.run import STATES, Run
from pilothouse_fleet.submission import open_journal_for_reading
from pilothouse_host.host import Host
from pilothouse_host.server_sessions import RestSession
from pilothouse_policy import RecordedCall, effective_policy, read_calls, suggest_policy
from pilothouse_transcripts import (
    SessionInfo,
    archive_session,
    delete_session,
    get_session_info,
    get_session_messages,
    list_sessions,
    rename_session,
    search_sessions,
    unarchive_session,
    usage_report,
)
from pilothouse_transcripts.conversation import get_file_messages
from pilothouse_usage import session_breakdown

MAX_ITEMS = 200
"""Maximum number of items of one response."""
MAX_MESSAGES = 5000
"""Maximum number of messages of one response."""
MAX_PLACE = 10**12
"""Maximum number of items before the first one of a response."""
MAX_PROMPT_CHARS = 500
"""Characters of the prompt of a run."""
MAX_SUGGESTED = 100
"""Maximum number of transcripts that a suggestion stands on."""
MAX_TEXT_CHARS = 2000
"""Characters of the answer of a run."""


class HostResponse(JSONResponse):
    """A response in JSON, whatever text a model or a tool has written: half of a surrogate pair, too."""

    def render(self, content: Any) -> bytes:
        """Encode the content; called by Starlette."""
        return encode_json(content)


class TranscriptBody(Struct, forbid_unknown_fields=True):
    """Body of a request that changes a conversation on disk."""

    title: str | None = None
    archived: bool | None = None


async def handle_transcripts(host: Host, request: Request) -> Response:
    """Respond with the conversations on disk, the newest first; `q` searches in them."""
    _check_owner(request)
    limit, offset = _read_number(request, "limit", 50), _read_number(request, "offset", 0)
    config_dir, roots, text = host.config_directory, host.policy.roots, request.query_params.get("q")

    def find() -> dict[str, Any]:
        shown = (info for info in list_sessions(config_dir=config_dir) if _is_below(info.cwd, roots))
        if not text:
            return {"transcripts": to_json_values(list(islice(shown, offset, offset + limit)))}
        known = {info.session_id for info in shown}
        hits = (hit for hit in search_sessions(text, config_dir=config_dir) if hit.session_id in known)
        return {"hits": to_json_values(list(islice(hits, offset, offset + limit)))}

    return HostResponse(await run_blocking(find))


async def handle_transcript(host: Host, request: Request) -> Response:
    """Respond with the messages of a conversation on disk."""
    _check_owner(request)
    session = request.path_params["id"]
    limit = _read_number(request, "limit", MAX_ITEMS, most=MAX_MESSAGES)
    offset = _read_number(request, "offset", 0)
    config_dir = host.config_directory

    def read() -> dict[str, Any]:
        info = _find_info(session, config_dir, host.policy.roots)
        messages = get_session_messages(session, limit=limit, offset=offset, config_dir=config_dir)
        return {"transcript": to_json_values(info), "messages": [message.raw for message in messages]}

    return HostResponse(await run_blocking(read))


async def change_transcript(host: Host, request: Request, asked: TranscriptBody) -> Response:
    """Rename, archive or unarchive a conversation on disk."""
    _check_owner(request)
    session, config_dir = request.path_params["id"], host.config_directory

    def change() -> dict[str, Any]:
        _find_info(session, config_dir, host.policy.roots)
        if asked.title is not None:
            rename_session(session, asked.title, config_dir=config_dir)
        if asked.archived is not None:
            (archive_session if asked.archived else unarchive_session)(session, config_dir=config_dir)
        return {"transcript": to_json_values(_find_info(session, config_dir, host.policy.roots))}

    return HostResponse(await run_blocking(change))


async def handle_transcript_removal(host: Host, request: Request) -> Response:
    """Remove a conversation from the disk, unless a process of this host may write to it."""
    _check_owner(request)
    session, config_dir = request.path_params["id"], host.config_directory
    if any(each.has_child and each.record.conversation == session for each in host.sessions):
        raise RefusedRequestError("busy", "a session of this host uses this conversation: end the session first")

    def remove() -> None:
        _find_info(session, config_dir, host.policy.roots)
        delete_session(session, config_dir=config_dir)

    await run_blocking(remove)
    return Response(status_code=204)


async def handle_usage(host: Host, request: Request) -> Response:
    """Respond with tokens and costs by session, day and model; `since` and `until` are days."""
    _check_owner(request)
    since, until = (_read_day(request, name) for name in ("since", "until"))
    config_dir = host.config_directory

    def count() -> Mapping[str, Any]:
        return to_json_values(usage_report(since=since, until=until, config_dir=config_dir))

    return HostResponse(await run_blocking(count))


async def handle_breakdown(host: Host, request: Request) -> Response:
    """Respond with what a conversation on disk cost, by agent, tool, MCP server and model."""
    _check_owner(request)
    session, config_dir = request.path_params["id"], host.config_directory

    def count() -> dict[str, Any]:
        info = _find_info(session, config_dir, host.policy.roots)
        found = session_breakdown(session, config_dir=config_dir)
        shown = {name: getattr(found, name) for name in ("cost_usd", "unpriced_tokens", "agents", "tools", "servers")}
        return {"transcript": to_json_values(info), "breakdown": to_json_values({**shown, "models": found.models})}

    return HostResponse(await run_blocking(count))


async def handle_policy(host: Host, request: Request) -> Response:
    """Respond with what a session over REST may do and what it has loaded, and with what the host allows its clients.

    Without `session`, for a session that is started without options.
    """
    owner, shown = find_access(request).owner, request.query_params.get("session")
    limits = {
        name: getattr(host.policy.limits, name) for name in ("permission_mode", "programs", "mcp_servers", "settings")
    }
    body: dict[str, Any] = {"limits": limits, "roots": host.policy.roots}
    if shown is None:
        options = host.make_options({}, owner).with_(asks=Asks())
    else:
        session = host.get(shown, owner)
        if not isinstance(session, RestSession) or session.options is None:
            raise RefusedRequestError("bad_request", "the host does not know the options of this session")
        options = session.complete_options().with_(can_use_tool=None)
        body |= await session.describe_health()
    return HostResponse({**body, "policy": to_json_values(effective_policy(options))})


async def handle_suggestion(host: Host, request: Request) -> Response:
    """Respond with the permissions that the recorded work of a project needed; nothing is applied.

    The project is that of `session`, or the first directory of the host. The newest transcripts of it count.
    """
    _check_owner(request)
    owner, shown = find_access(request).owner, request.query_params.get("session")
    session = None if shown is None else host.get(shown, owner)
    if session is not None and (not isinstance(session, RestSession) or session.options is None):
        raise RefusedRequestError("bad_request", "the host does not know the options of this session")
    given = None if session is None else session.complete_options().cwd
    config_dir = host.config_directory

    def suggest(check: Callable[[], None]) -> dict[str, Any]:
        root = os.path.realpath(given or host.policy.roots[0])
        known = (info for info in list_sessions(config_dir=config_dir) if _is_below(info.cwd, (root,)))
        files = [Path(info.path) for info in islice(known, MAX_SUGGESTED)]
        calls: list[RecordedCall] = []
        for file in files:
            check()
            calls += read_calls(get_file_messages(file), file.stem)
        suggestion = suggest_policy(calls, root=root)
        return mask({"suggestion": to_json_values(suggestion), "settings": suggestion.settings()})

    return HostResponse(await run_cancellable(suggest))


async def handle_fleet(host: Host, request: Request) -> Response:
    """Respond with the journals of fleets that this host shows, and the runs of one of them."""
    _check_owner(request)
    shown, state = request.query_params.get("journal"), request.query_params.get("state")
    after, limit = _read_number(request, "after", 0), _read_number(request, "limit", 50)
    if shown is not None and shown not in host.settings.fleets:
        raise RefusedRequestError("bad_request", f"journal: this host does not show {shown[:80]!a}; give it --fleet")
    if state not in (None, *STATES):
        raise RefusedRequestError("bad_request", f"state: expected one of {', '.join(STATES)}, got {state!a}")
    found: list[dict[str, Any]] = []
    for path in host.settings.fleets:
        found.append({"journal": path, "status": None, "runs": None, "error": None})
        try:
            async with open_journal_for_reading(path) as journal:
                found[-1]["status"] = to_json_values(await journal.status())
                if shown == path:
                    runs = await journal.rows(state, after, limit)
                    found[-1]["runs"] = [_describe_run(run) for run in runs]
        except PilothouseError as error:
            found[-1]["error"] = str(error)
    return HostResponse({"fleets": found})


def _describe_run(run: Run) -> dict[str, Any]:
    prompt = run.prompt if isinstance(run.prompt, str) else msgspec.json.encode(run.prompt).decode()
    row = {**run_row(run), "number": run.number, "failures": run.failures, "prompt": prompt[:MAX_PROMPT_CHARS]}
    return {
        **row,
        "text": run.text[:MAX_TEXT_CHARS] if run.is_success else "",
        "artifacts": list(map(str, run.artifacts)),
        "structured": None,
    }


def _check_owner(request: Request) -> None:
    if not find_access(request).owner.is_operator:
        raise RefusedRequestError("forbidden", "transcripts and usage need the token of the host")


def _is_below(directory: str | None, roots: tuple[str, ...]) -> bool:
    real = os.path.realpath(directory) if directory else ""
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def _find_info(session: str, config_dir: Path, roots: tuple[str, ...]) -> SessionInfo:
    try:
        info = get_session_info(session, config_dir=config_dir)
    except (ValueError, SessionNotFoundError):
        info = None
    if info is None or not _is_below(info.cwd, roots):
        raise RefusedRequestError("unknown_session", f"there is no transcript {session[:80]!a}")
    return info


def _read_number(request: Request, name: str, default: int, *, most: int = MAX_ITEMS) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    least, most = (1, most) if name == "limit" else (0, MAX_PLACE)
    is_number = given.isascii() and given.isdigit() and len(given) <= len(str(MAX_PLACE))
    if not is_number or not least <= int(given) <= most:
        message = f"{name}: expected a number from {least} to {most}, got {given[:80]!a}"
        raise RefusedRequestError("bad_request", message)
    return int(given)


def _read_day(request: Request, name: str) -> date | None:
    given = request.query_params.get(name)
    try:
        return None if given is None else date.fromisoformat(given)
    except ValueError:
        raise RefusedRequestError("bad_request", f"{name}: expected a day as 2026-11-24, got {given!a}") from None
