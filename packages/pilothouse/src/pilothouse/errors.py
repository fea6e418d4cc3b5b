"""The whole error tree. Every error that pilothouse raises on purpose is one of these.

Three roots of blame, and the answer itself::

    PilothouseError
    ├── UsageError (ValueError)        the caller made an impossible request; nothing was started
    │   ├── OptionsError               an option has an unknown name or an invalid value
    │   │   ├── ConfigError            a configuration file (`.path .line`)
    │   │   └── SettingsError          Claude Code does not take settings that were sent (`.problems`)
    │   ├── AskSettledError            an approval was settled before (`.by .decision`)
    │   └── ToolDefinitionError        a function that cannot be a tool
    ├── PeerError                      the other side broke the protocol
    │   ├── ProtocolError
    │   │   ├── LineDecodeError        a line that is not JSON
    │   │   ├── OversizeLineError      a line over `max_line_bytes`
    │   │   ├── ControlError           the CLI refused a control request (`.code`)
    │   │   │   ├── LoginError         a login could not begin or end (`.code`)
    │   │   │   └── McpToolError       an MCP tool that was called directly failed (`.result`)
    │   │   └── ControlTimeout (TimeoutError)   no response to a control request in time
    │   ├── MessageParseError          JSON that is not a message (`.data`)
    │   ├── PermissionModeError        Claude Code permits more than was asked for (`.mode .highest`)
    │   └── PluginError                Claude Code could not list or change plugins (`.code .raw`)
    ├── ProcessError                   the child or the pipe failed (`.exit_code .signal .stderr`)
    │   ├── CLINotFoundError           no `claude` was found; the message says how to install it
    │   ├── CLIVersionError            a `claude` that is too old or broken
    │   ├── CLIStartError              the process could not be started
    │   ├── CLIExitedError             the process ended before the answer was complete
    │   │   └── SessionExistsError     `session_id` names an existing conversation
    │   ├── WorkerLostError            the process or the machine of the work is lost
    │   └── ProvisionError             a package client could not fetch a file
    ├── ResultError                    the run ended with a failure (`.result .api_error_status`)
    │   ├── AuthenticationError        401, 403, no login
    │   ├── RateLimitError             429 (`.resets_at`)
    │   ├── OverloadedError            529
    │   ├── QuotaError                 usage limit or credits used up (`.resets_at`)
    │   ├── InvalidModelError          404 on the model
    │   ├── MaxTurnsError              `max_turns` reached
    │   ├── BudgetError                `max_budget_usd` or `max_budget_tokens` reached
    │   ├── ContextOverflowError       prompt too long, request too large
    │   ├── StructuredOutputError      no valid structured output (`.value .raw .attempts`)
    │   ├── SessionNotFoundError       resume of an id that does not exist
    │   ├── NoResultError              the messages hold no result
    │   └── ExecutionError             any other failure of a run
    │       ├── RefusalError           the model refused
    │       └── StartupRefusedError    Claude Code does not start (`.reason`)
    ├── ToolError                      a tool of this process failed; in `pilothouse.tools`
    │   ├── ToolInputError             the input does not fit (`.problems`)
    │   ├── ToolExecutionError         the function raised
    │   ├── ToolTimeout (TimeoutError) the tool took too long
    │   └── ToolResultError            the result cannot be sent
    ├── RemoteError                    a host cannot be reached, refuses, or is lost (`.code`)
    ├── RefusedRequestError            a route or a host refuses a request (`.code`); in `pilothouse_access`
    ├── JournalError                   a host cannot write its journal; in `pilothouse_host`
    ├── OutputPrunedError              the host no longer keeps the requested output; in `pilothouse_host`
    ├── FleetJournalError              the journal of a fleet cannot be used (`.path`); in `pilothouse_fleet`
    │   └── FleetJournalInUseError     another fleet executes its runs (`.pid .host .started`)
    ├── WorkspaceError                 the directory of a run of a fleet cannot be made (`.path`)
    ├── ArtifactsError                 files of a run could not be saved
    ├── CassetteError                  a recording cannot be read, written or used (`.path .line`)
    │   └── ReplayMismatch             the program differs from the recording (`.diff`)
    ├── StoreError                     a session store failed or refused; the message says what to do
    │   ├── StoreConflictError         another writer changed the session (`.expected .found`)
    │   ├── SessionLeasedError         another client uses the session (`.holder .seconds_left`)
    │   └── LeaseLostError             another client has taken the lease (`.holder`)
    ├── QueryTimeout (TimeoutError)    `timeout`, `idle_timeout` or `startup_timeout` ran out
    ├── Interrupted                    the query was interrupted on request
    └── SessionClosedError             a query or session was used after it was closed

All of them pickle, and none of them carries a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast

E = TypeVar("E", bound=BaseException)


class PilothouseError(Exception):
    """Base of every error raised by pilothouse."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take keyword-only arguments, which plain exception pickling cannot replay.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[PilothouseError], args: tuple[Any, ...], state: dict[str, Any]) -> PilothouseError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(PilothouseError, ValueError):
    """The caller made an impossible request; raised before anything is started."""


class OptionsError(UsageError):
    """An option is unknown, of the wrong type, or does not go with another.

    Args:
        message: what is wrong and what to do.
        option: the name of the option, if one is to blame.
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class ConfigError(OptionsError):
    """A configuration file cannot be read, or contains an invalid value.

    Args:
        message: what is wrong, with the file and the line.
        option: the name of the option, if one is to blame.
        path: the file.
        line: the line in it, counted from 1, if it is known.
    """

    def __init__(
        self, message: str, *, option: str | None = None, path: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message, option=option)
        self.path = path
        self.line = line


class SettingsError(OptionsError):
    """Claude Code does not take settings that were sent: rules in them would have no effect. No prompt was sent.

    Args:
        message: what it does not take, why, and what to do.
        option: the option with the settings: "settings", "managed_settings", "sandbox" or "extra_args".
        problems: for each problem the place in the settings, such as "permissions.deny[0]", and the reason. A place ""
            is the whole.
    """

    def __init__(self, message: str, *, option: str | None = None, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message, option=option)
        self.problems = tuple(problems)


class ToolDefinitionError(UsageError):
    """A function cannot be made into a tool."""


class AskSettledError(UsageError):
    """An approval was settled before: the first decision counts.

    Attributes:
        ask_id: the approval.
        decision: the decision that counts; None: Claude Code withdrew the request.
        by: who or what made it.
    """

    def __init__(self, message: str, *, ask_id: str = "", decision: Any = None, by: str = "") -> None:
        super().__init__(message)
        self.ask_id = ask_id
        self.decision = decision
        self.by = by


class PeerError(PilothouseError):
    """The other side broke the protocol."""


class ProtocolError(PeerError):
    """Bytes or envelopes that do not follow the wire protocol."""


class LineDecodeError(ProtocolError):
    """A line of output is not JSON. `.line` holds its beginning."""

    def __init__(self, message: str, *, line: bytes = b"") -> None:
        super().__init__(message)
        self.line = line


class OversizeLineError(ProtocolError):
    """A line of output is longer than `max_line_bytes`. `.size` is in bytes."""

    def __init__(self, message: str, *, size: int = 0) -> None:
        super().__init__(message)
        self.size = size


class ControlError(ProtocolError):
    """The CLI answered a control request with an error. `.code` is its `error_code`, if it sent one."""

    def __init__(self, message: str, *, subtype: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.subtype = subtype
        self.code = code


class McpToolError(ControlError):
    """An MCP tool that was called with `session.mcp.call` reported a failure. `.result` is what it returned."""

    def __init__(self, message: str, *, subtype: str = "", code: str | None = None, result: Any = None) -> None:
        super().__init__(message, subtype=subtype, code=code)
        self.result = result


class LoginError(ControlError):
    """A login at an MCP server or at Claude could not begin or end. `.code` says why, `.subtype` at which request.

    `.code` is "unknown_server", "no_login" (the server needs none), "wrong_callback" (this is not what the page of the
    login gave; the login still waits), "refused", or a code of Claude Code.
    """


class ControlTimeout(ProtocolError, TimeoutError):  # noqa: N818 - named by the public contract
    """The CLI did not respond to a control request within `control_timeout` seconds."""

    def __init__(self, message: str, *, subtype: str = "") -> None:
        super().__init__(message)
        self.subtype = subtype


class PluginError(PeerError):
    """The CLI could not list or change plugins or marketplaces. `.code` is its code, `.raw` its whole report."""

    def __init__(self, message: str, *, code: str | None = None, raw: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.raw: Any = raw or {}


class PermissionModeError(PeerError):
    """Claude Code runs in a permission mode that permits more than was asked for. `.mode` and `.highest` name both."""

    def __init__(self, message: str, *, mode: str = "", highest: str = "") -> None:
        super().__init__(message)
        self.mode = mode
        self.highest = highest


class MessageParseError(PeerError):
    """JSON that cannot be read as a message. `.data` is the raw JSON value."""

    def __init__(self, message: str, *, data: Any = None) -> None:
        super().__init__(message)
        self.data = data


class ProcessError(PilothouseError):
    """The child process or its pipes failed.

    Args:
        message: what happened and what to do next.
        exit_code: exit status, if it exited by itself.
        signal: name of the signal that killed it, such as "SIGKILL".
        stderr: the last part of what it wrote to standard error, keys removed.
    """

    def __init__(
        self, message: str, *, exit_code: int | None = None, signal: str | None = None, stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.stderr = stderr


class CLINotFoundError(ProcessError):
    """No `claude` was found. The message lists the places that were searched and how to install it."""


class CLIVersionError(ProcessError):
    """The `claude` that was found is too old or does not run."""


class CLIStartError(ProcessError):
    """The child could not be started: no such directory, not executable, out of resources."""


class CLIExitedError(ProcessError):
    """The child ended, or closed its output, before the answer was complete."""


class SessionExistsError(CLIExitedError):
    """The CLI refused to begin a conversation under an existing id."""


class WorkerLostError(ProcessError):
    """The worker process or its machine is lost; the work may be done again."""


class ProvisionError(ProcessError):
    """A package client (npm, pip) could not fetch a file that is needed, or the file is not the pinned one."""


class ResultError(PilothouseError):
    """The run ended with a failure.

    Args:
        message: what failed and what to do next.
        result: the `ResultMessage`, if one arrived.
        api_error_status: HTTP status of the API, if the API failed.
    """

    def __init__(self, message: str, *, result: Any = None, api_error_status: int | None = None) -> None:
        super().__init__(message)
        self.result = result
        self.api_error_status = api_error_status


class AuthenticationError(ResultError):
    """No login, a wrong key, or no permission (HTTP 401 and 403)."""


class RateLimitError(ResultError):
    """Too many requests (HTTP 429). `.resets_at` is a Unix time in seconds, if it is known."""

    def __init__(
        self, message: str, *, result: Any = None, api_error_status: int | None = None, resets_at: float | None = None
    ) -> None:
        super().__init__(message, result=result, api_error_status=api_error_status)
        self.resets_at = resets_at


class QuotaError(RateLimitError):
    """A usage limit or the credits are used up; waiting a moment does not help. `.resets_at` as in `RateLimitError`."""


class OverloadedError(ResultError):
    """The API is overloaded (HTTP 529)."""


class InvalidModelError(ResultError):
    """The model does not exist or may not be used (HTTP 404)."""


class MaxTurnsError(ResultError):
    """The run reached `max_turns`."""


class BudgetError(ResultError):
    """The run reached `max_budget_usd` or `max_budget_tokens`."""


class ContextOverflowError(ResultError):
    """The prompt or the request is too large for the model (HTTP 400 or 413)."""


class StructuredOutputError(ResultError):
    """The model gave no structured output that fits the schema or type.

    Args:
        message: what is missing, or what does not fit and where.
        result: the `ResultMessage`, if one arrived.
        api_error_status: HTTP status of the API, if the API failed.
        value: the output of the model, as plain Python values; None if there was none.
        raw: the beginning of the output as JSON, or of the answer's text if there was none.
        attempts: how often the model was asked.
    """

    def __init__(
        self,
        message: str,
        *,
        result: Any = None,
        api_error_status: int | None = None,
        value: Any = None,
        raw: str = "",
        attempts: int = 1,
    ) -> None:
        super().__init__(message, result=result, api_error_status=api_error_status)
        self.value = value
        self.raw = raw
        self.attempts = attempts


class SessionNotFoundError(ResultError):
    """The session to resume does not exist."""


class ExecutionError(ResultError):
    """The run failed for another reason; the message says which."""


StartupRefusal: TypeAlias = Literal[
    "bypass_root", "cli_version_too_old", "config_file_invalid", "cwd_unavailable", "gateway_access_denied",
    "gateway_signin_required", "initialize_fields_not_delivered", "initialize_not_first",
    "managed_settings_invalid", "managed_settings_not_delivered", "org_config_refused",
    "org_config_required_unavailable", "org_pin_api_key_conflict", "org_pin_mismatch", "org_verify_failed",
    "provider_not_allowed", "proxy_invalid", "remote_settings_required_unavailable",
    "sandbox_required_unavailable", "session_held_by_background", "shell_tool_missing",
    "sideload_flags_disabled", "temp_dir_unusable", "worktree_resume_refused", "worktree_unverified",
]  # fmt: skip
"""Why Claude Code does not start."""


class StartupRefusedError(ExecutionError):
    """Claude Code does not start, because of its configuration or its surroundings. No prompt was answered.

    Args:
        message: what it says.
        result: the `ResultMessage`; its `invalid_config_file` has the path of a configuration file that cannot be read.
        api_error_status: always None.
        reason: one of `StartupRefusal`, or what a newer Claude Code says.
    """

    def __init__(
        self,
        message: str,
        *,
        result: Any = None,
        api_error_status: int | None = None,
        reason: StartupRefusal | str = "",
    ) -> None:
        super().__init__(message, result=result, api_error_status=api_error_status)
        self.reason = reason


class NoResultError(ResultError):
    """The messages of a run contain no result: the run did not end, or messages are missing."""


class RefusalError(ExecutionError):
    """The model refused to answer."""


ERRORS_BY_STATUS: dict[int, type[ResultError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: InvalidModelError,
    413: ContextOverflowError,
    429: RateLimitError,
    529: OverloadedError,
}
"""The error for an HTTP status of the API; `ExecutionError` for any other."""


class RemoteError(PilothouseError):
    """The host of a remote session cannot be reached, refuses, or was lost for good.

    Args:
        message: what happened and what to do next. It contains no token.
        code: "unreachable" (no response), "unauthorized" (the token), "lost" (the connection broke, and could not be
            restored in time), "replaced" (another client took over), "protocol" (one side broke the rules of the
            link), or the code of the host's refusal: "unknown_session", "forbidden", "limit", "bad_request",
            "attached_elsewhere", "pruned", "version", "draining".
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class WorkspaceError(PilothouseError):
    """The working directory of a run cannot be made or used: the disk is full, rights are missing, git refuses.

    `.path` is the directory or the file.
    """

    path: str | None = None  # for errors rebuilt from a journal that has not kept it

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class ArtifactsError(PilothouseError):
    """Files of a run could not be saved; the message says where, and what to do. It holds no key."""


class CassetteError(PilothouseError):
    """A recording cannot be read, written or used.

    Args:
        message: what is wrong, with the file and the line.
        path: the file.
        line: the line in it, counted from 1, if one is to blame.
    """

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.line = line


class ReplayMismatch(CassetteError):  # noqa: N818 - the program is wrong, or the recording
    """The program differs from the recording. `.diff` shows both, line by line; `.line` is that of the recording."""

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None, diff: str = "") -> None:
        super().__init__(message, path=path, line=line)
        self.diff = diff


class StoreError(PilothouseError):
    """A session store failed or refused. `.session_id` is the session, if one is concerned."""

    def __init__(self, message: str, *, session_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id


class StoreConflictError(StoreError):
    """Another writer changed a stored session: it holds `.found` entries, but the writer expected `.expected`."""

    def __init__(self, message: str, *, session_id: str | None = None, expected: int = 0, found: int = 0) -> None:
        super().__init__(message, session_id=session_id)
        self.expected = expected
        self.found = found


class SessionLeasedError(StoreError):
    """Another client uses a stored session.

    Args:
        message: what was refused, and what to do.
        session_id: the session.
        holder: the holder of the lease.
        seconds_left: seconds until the lease runs out, unless its holder renews it.
    """

    def __init__(
        self, message: str, *, session_id: str | None = None, holder: str = "", seconds_left: float = 0.0
    ) -> None:
        super().__init__(message, session_id=session_id)
        self.holder = holder
        self.seconds_left = seconds_left


class LeaseLostError(StoreError):
    """The lease of a stored session was lost. `.holder` is its current holder, if there is one."""

    def __init__(self, message: str, *, session_id: str | None = None, holder: str | None = None) -> None:
        super().__init__(message, session_id=session_id)
        self.holder = holder


class QueryTimeout(PilothouseError, TimeoutError):  # noqa: N818 - named by the public contract
    """`timeout`, `idle_timeout` or `startup_timeout` ran out. `.seconds` is the limit, `.kind` which of them."""

    def __init__(self, message: str, *, seconds: float = 0.0, kind: str = "timeout") -> None:
        super().__init__(message)
        self.seconds = seconds
        self.kind = kind


class Interrupted(PilothouseError):  # noqa: N818 - named by the public contract
    """The query was interrupted on request. `.result` is the `ResultMessage` that closed it."""

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class SessionClosedError(PilothouseError):
    """A query or session was used after it was closed."""


def find_cause(error: BaseException, kind: type[E]) -> E | None:
    """Find an error of `kind` in `error`, its causes, its contexts and the members of exception groups.

    Args:
        error: where to start; it is looked at first.
        kind: the class to look for.

    Returns:
        The first match, nearest first, or None.
    """
    seen: set[int] = set()
    queue: list[BaseException] = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, kind):
            return current
        if isinstance(current, BaseExceptionGroup):
            queue.extend(cast("BaseExceptionGroup[BaseException]", current).exceptions)
        queue.extend(e for e in (current.__cause__, current.__context__) if e is not None)
    return None
