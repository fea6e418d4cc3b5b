"""`Diagnostics`: warns of what the CLI reports in passing, and a program would not notice.

It owns what was warned of, so that each occurrence is logged once. It changes no message and fails no query.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import anyio

from pilothouse.engine.failures import make_retry_error
from pilothouse.errors import PilothouseError, QueryTimeout
from pilothouse.messages import (
    ApiRetryMessage,
    AssistantMessage,
    InitMessage,
    Message,
    PermissionDeniedMessage,
    ResultMessage,
    SessionWritesLostMessage,
    StreamEvent,
    UserMessage,
)
from pilothouse.options import Invocation
from pilothouse.options.credentials import find_provider
from pilothouse.options.permission_facts import describe_denial, was_denied_without_asking
from pilothouse.options.secrets import mask, mask_text
from pilothouse.transports import Transport
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.discovery import warn_if_old

if TYPE_CHECKING:
    from pilothouse.engine.extensions import RequestControl

log = logging.getLogger("pilothouse.engine")

WARNED_RETRY: Final = 2  # the first one is often a moment's hiccup
_BASE_URL: Final = "ANTHROPIC_BASE_URL"
_DEFAULT_API: Final = "the API at https://api.anthropic.com"
_NETWORK_ADVICE: Final = (
    f"check the network, DNS, firewall and proxy, and the address ({_BASE_URL}, in the environment or in a settings "
    "file)"
)
_KEY_ADVICE: Final = "check the key or the login"
_ADVICE: Final = {None: _NETWORK_ADVICE, 401: _KEY_ADVICE, 403: _KEY_ADVICE, 429: "send fewer requests at once"}
_LIMIT_ADVICE: Final = "`timeout` and `api_max_retries` limit the wait"
ANSWER_SECONDS = 2.0  # for the CLI to say why a server has failed
_GIVEN_SOURCES: Final = ("dynamic", "sdk", None)  # servers of the options; old CLIs name no source
_NEEDS_LOGIN: Final = "needs-auth"
_NOT_FOUND: Final = "Executable not found"
_SERVER_ADVICE: Final = (
    "the model does not have its tools. Correct its entry in `mcp_servers`; wait_for_mcp=True makes this an error"
)
# What the CLI puts in the place of a result of an MCP tool that is too large.
_REPLACED_RESULT: Final = re.compile(
    r"<persisted-output>\n"
    r"|Error: result \([\d,]+ characters[^\n]*\) exceeds maximum allowed tokens\. Output has been saved"
)
_APPROVER_FLAG: Final = "--permission-prompt-tool="
_NOT_SAVED_FLAG: Final = "--no-session-persistence"
_MIRROR_FLAG: Final = "--session-mirror"
_LOST_REASONS: Final = {
    "ENOSPC": "the disk is full; free some space",
    "EDQUOT": "the disk quota is used up; free some space",
}
_SAVE_CHECK_SECONDS: Final = 60.0  # until a directory that could be written is looked at again
_MAX_SAVE_CHECKS: Final = 1000
_READERS: Final = frozenset({"Read", "Bash"})
_ANSWERS: Final = frozenset({AssistantMessage, StreamEvent})


class Diagnostics:
    """Sees the messages of one child.

    Args:
        invocation: how the child was started.
        transport: of the child.
        request: sends a control request.
        start_task: runs work until the child ends.

    Attributes:
        last_retry: the last failed request of the active query to the API; None once the API has answered again.
    """

    def __init__(
        self,
        invocation: Invocation,
        transport: Transport,
        request: RequestControl,
        start_task: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self.last_retry: ApiRetryMessage | None = None
        self._invocation = invocation
        self._transport = transport
        self._request = request
        self._start_task = start_task
        self._failed_servers: frozenset[str] = frozenset()
        self._retries = 0
        self._has_approver = any(argument.startswith(_APPROVER_FLAG) for argument in invocation.argv)
        self._has_warned_denied = False
        self._is_served_by_anthropic: bool | None = None
        servers: list[str] = (invocation.initialize or {}).get("sdkMcpServers") or []
        self._own_tools = tuple(f"mcp__{name}__" for name in servers)  # prefixes of the tools of this process
        self._own_calls: dict[str, str] = {}  # calls of these tools without a result: the names, by id
        self._warned_tools: set[str] = set()
        self._routes = {**self._ROUTES, **(self._TOOL_ROUTES if self._own_tools else {})}
        self._can_read_files = True
        self._cwd: str | None = None
        self._checked_session: str | None = None
        self._has_warned_unsaved = False

    def start_query(self) -> None:
        """Begin anew: what follows belongs to another query."""
        self.last_retry, self._retries = None, 0
        self._has_warned_denied = False
        self._warned_tools.clear()

    def observe(self, batch: Sequence[Message], kinds: Collection[type[Message]]) -> None:
        """Take the next messages, in order. `kinds` are their classes."""
        if self.last_retry is not None and not _ANSWERS.isdisjoint(kinds):
            self.last_retry = None
        routes = self._routes
        if routes.keys().isdisjoint(kinds):  # by far the most common
            return
        for message in batch:
            route = routes.get(type(message))
            if route is not None:
                route(self, message)

    def explain_timeout(self, error: QueryTimeout) -> QueryTimeout:
        """Return `error`; if the last request to the API had failed, with its reason, and as its cause."""
        retry = self.last_retry
        if retry is not None:
            api = self._name_api()
            error.args = (f"{error}; before that, {_describe_retry(retry, api)}",)
            error.__cause__ = make_retry_error(retry, api)
        return error

    def _on_init(self, message: InitMessage) -> None:
        warn_if_old(message.claude_code_version, self._transport.facts.executable)
        self._is_served_by_anthropic = message.served_by_anthropic
        self._cwd = message.cwd
        self._can_read_files = not _READERS.isdisjoint(message.tools)
        given = [server for server in message.mcp_servers if server.source in _GIVEN_SOURCES]
        invalid = {str(error.get("name")): error.get("message") for error in message.mcp_server_errors}
        failed = {server.name for server in given if server.status == "failed"}
        locked = {server.name for server in given if server.status == _NEEDS_LOGIN}
        known = self._failed_servers - {server.name for server in given if server.status == "connected"}
        self._failed_servers = known | invalid.keys() | failed | locked
        for name in sorted(locked - known):
            log.warning("the MCP server %r needs a login; %s", name, _SERVER_ADVICE)
        for name in sorted(invalid.keys() - known):
            log.warning("the MCP server %r did not start: %s; %s", name, invalid[name], _SERVER_ADVICE)
        if failed - known:
            self._start_task(partial(self._warn_failed, sorted(failed - known)))

    async def _warn_failed(self, names: Sequence[str]) -> None:
        reasons: dict[str, str] = {}
        try:
            if self._invocation.initialize is not None:  # else there is no control protocol
                with anyio.move_on_after(ANSWER_SECONDS), suppress(PilothouseError):
                    response = await self._request("mcp_status", {})
                    reasons = _read_reasons(response.get("mcpServers"))
        finally:  # also when the child ends first
            for name in names:
                log.warning(
                    "the MCP server %r did not start: %s; %s", name, reasons.get(name, "failed"), _SERVER_ADVICE
                )

    def _on_assistant(self, message: AssistantMessage) -> None:
        for call in message.tool_uses:
            if call.name.startswith(self._own_tools):
                self._own_calls[call.id] = call.name

    def _on_user(self, message: UserMessage) -> None:
        for result in message.tool_results:
            name = self._own_calls.pop(result.tool_use_id, None)
            if name is None or name in self._warned_tools or not _REPLACED_RESULT.match(result.text):
                continue
            self._warned_tools.add(name)
            log.warning(
                "the result of the tool %s was too large for Claude Code, which saved it to a file: the model got at "
                "most the first 2 kB and the path%s; set max_result_chars= of the tool (at most 500,000; in `_meta`: "
                "anthropic/maxResultSizeChars), or return less",
                name,
                "" if self._can_read_files else ", and it has no tool to read that file",
            )

    def _on_retry(self, message: ApiRetryMessage) -> None:
        self.last_retry = message
        self._retries += 1
        if self._retries == WARNED_RETRY:
            log.warning(
                "%s; Claude Code goes on trying: %s; %s",
                _describe_retry(message, self._name_api()),
                _ADVICE.get(message.error_status, "it may be over in a moment"),
                _LIMIT_ADVICE,
            )

    def _on_denied(self, message: PermissionDeniedMessage) -> None:
        if not (self._has_approver or self._has_warned_denied) and was_denied_without_asking(message):
            self._has_warned_denied = True
            log.warning("%s", describe_denial(message.tool_name or ""))

    def _on_result(self, message: ResultMessage) -> None:
        """Check that the CLI can save the conversation: it reports a full disk, and no other reason."""
        if message.session_id in (None, self._checked_session):
            return
        projects, now = self._find_projects_directory(), time.monotonic()
        if projects is None or now < _next_save_checks.get(projects, 0.0):  # a later result looks again
            return
        self._checked_session = message.session_id
        if len(_next_save_checks) >= _MAX_SAVE_CHECKS:  # each user has a directory of their own, say
            _next_save_checks.clear()
        _next_save_checks[projects] = now + _SAVE_CHECK_SECONDS  # queries that end together look once
        self._start_task(partial(self._warn_unsaved, projects, message.session_id))

    def _find_projects_directory(self) -> str | None:
        """Where a child of this machine and user saves conversations; None if it does so elsewhere, or not at all."""
        call = self._invocation
        if self._transport.facts.executable is None or call.user is not None or call.is_isolated:
            return None
        if not {_NOT_SAVED_FLAG, _MIRROR_FLAG}.isdisjoint(call.argv):
            return None
        home = call.env.get("HOME")
        config = call.env.get("CLAUDE_CONFIG_DIR", home and os.path.join(home, ".claude"))  # noqa: PTH118
        return None if config is None else os.path.join(self._cwd or "", config, "projects")  # noqa: PTH118

    async def _warn_unsaved(self, projects: str, session_id: str) -> None:
        problem: str | None = None
        with anyio.CancelScope(shield=True):  # the child may exit meanwhile
            problem = await run_blocking(_find_save_problem, projects, session_id)
        if problem is not None:
            _next_save_checks.pop(projects, None)
        if problem is not None and not self._has_warned_unsaved:
            self._has_warned_unsaved = True
            log.warning(
                "the conversation %s was not saved, so it cannot be resumed: %s; make it writable for the child, set "
                "config_dir to another directory, or pass persist_session=False if it need not be saved",
                session_id,
                problem,
            )

    def _on_writes_lost(self, message: SessionWritesLostMessage) -> None:
        if not self._has_warned_unsaved:
            self._has_warned_unsaved = True
            reason = _LOST_REASONS.get(message.error_code or "", message.error_code or "unknown reason")
            what = " and ".join(message.lost).replace("_", " ") or "transcript"
            log.warning(
                "parts of the %s were not saved, and a resumed conversation will lack them: %s",
                what,
                reason,
            )

    def _name_api(self) -> str:
        """Name the API, with its address as far as it is known. The CLI prefers that of a settings file."""
        env: Mapping[str, str] = self._invocation.env
        if provider := find_provider(env):
            return f"the API of {provider}"
        if address := env.get(_BASE_URL):
            return f"the API at {mask_text(address)}"
        if self._is_served_by_anthropic is None:  # an old CLI, or an engine with an address of its own
            return "the API"
        return _DEFAULT_API if self._is_served_by_anthropic else f"the API at the {_BASE_URL} of a settings file"

    _ROUTES: ClassVar[Mapping[type[Message], Callable[..., None]]] = {
        ApiRetryMessage: _on_retry,
        InitMessage: _on_init,
        PermissionDeniedMessage: _on_denied,
        ResultMessage: _on_result,
        SessionWritesLostMessage: _on_writes_lost,
    }
    _TOOL_ROUTES: ClassVar[Mapping[type[Message], Callable[..., None]]] = {
        AssistantMessage: _on_assistant,
        UserMessage: _on_user,
    }


_next_save_checks: dict[str, float] = {}
"""When to look again whether children can save conversations, by the directory."""


def _describe_retry(retry: ApiRetryMessage, api: str) -> str:
    return f"{retry.describe(api)} (retry {retry.attempt} of {retry.max_retries})"


def _read_reasons(servers: object) -> dict[str, str]:
    """Read from a response to `mcp_status` why servers failed, without keys; by name."""
    listed = cast("list[Any]", servers) if isinstance(servers, list) else []
    return {str(server.get("name")): _describe_server_failure(mask(server)) for server in listed}


def _describe_server_failure(server: Mapping[str, Any]) -> str:
    error: str = server.get("error") or "failed"
    config: dict[str, Any] = server.get("config") or {}
    command, url = config.get("command"), config.get("url")
    text = name_missing_program(error, command)
    if text != error:
        return text
    where = f" (its command is {command!r})" if command else f" (its address is {url!r})" if url else ""
    return f"{error}{where}"


def name_missing_program(error: str, command: object) -> str:
    """Return the error of a server; if its program is missing, with the name that the CLI gets wrong."""
    return f"the program {command!r} was not found" if error.startswith(_NOT_FOUND) and command else error


def _find_save_problem(projects: str, session_id: str) -> str | None:
    """Why the CLI cannot save a session below `projects`; None if it can."""
    problem = _find_problem(Path(projects, session_id))
    kept = None if problem is None else next(Path(projects).glob(f"*/{session_id}.jsonl"), None)
    return problem if kept is None else _find_problem(kept)


def _find_problem(path: Path) -> str | None:
    """Why a file can neither be written nor made."""
    place = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if place != path and not place.is_dir():
        return f"{place} is not a directory"
    return None if os.access(place, os.W_OK) else f"{place} is not writable"
