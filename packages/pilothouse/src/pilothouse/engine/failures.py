"""How a run fails: typed errors, and the idle timer.

The errors are for an exit, a missing result and a timeout; the timer decides when the CLI has been silent for too
long. Pure: times are passed in.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from pilothouse.errors import (
    ERRORS_BY_STATUS,
    CLIExitedError,
    CLIVersionError,
    ExecutionError,
    OversizeLineError,
    PeerError,
    PilothouseError,
    ProcessError,
    QueryTimeout,
    ResultError,
    SessionExistsError,
    UsageError,
)
from pilothouse.messages import ApiRetryMessage, ResultMessage, SystemMessage
from pilothouse.options import TABLE
from pilothouse.options.table import list_flags
from pilothouse.protocol import encode_line
from pilothouse.transports import ExitInfo

STDERR_LINES = 5  # of the end of stderr, in the message; the error has the whole tail
# The CLI repeats the value after the name, whatever it is: only the name is matched.
_UNKNOWN_FLAG = r"error: unknown option '--([\w-]+)"
# What getopt, argparse and shells print about our flags; the CLI words it differently, see above.
_NOT_THE_CLI = r"(unrecognized|unknown|illegal|invalid) (option|argument)s?\b.*-(input|output)-format"
_ROOT = "cannot be used with root/sudo privileges"
_VALUE_OF_FLAG = r"(error: unknown option '--[\w-]+)=.*"
REDACTED_END = "…'"
_SESSION_ID_IN_USE = r"Session ID (\S+) is already in use"


class QueryLimits(Struct, frozen=True):
    """Limits of a query; times in seconds, None for no limit.

    With `until_idle` the query ends when the CLI has nothing more to do, not with its result.
    """

    timeout: float | None
    idle_timeout: float | None
    control_timeout: float
    max_line_bytes: int
    startup_timeout: float | None = None
    until_idle: bool = False


def missing_result_error(
    exit_info: ExitInfo,
    last_output: str,
    problem: PeerError | None,
    *,
    is_busy: bool = True,
    is_mute: bool = False,
) -> PilothouseError:
    """Make the error for output that ended too early: how the child exited and what it printed last.

    Args:
        exit_info: how the child exited.
        last_output: its last output that was not a message, if any.
        problem: the last line that could not be read; it may have been the result.
        is_busy: whether a query waited for its result.
        is_mute: whether a program of this machine has sent no message at all.
    """
    if is_busy and isinstance(problem, OversizeLineError) and exit_info.exit_code == 0:
        return OversizeLineError(f"the CLI ended without a result, but {problem}", size=problem.size)
    when = "before the answer was complete" if is_busy else "while it was idle"
    # The CLI says on stderr why it does not start.
    is_other = is_mute and exit_info.exit_code is not None and not exit_info.stderr
    if is_other or re.search(_NOT_THE_CLI, exit_info.stderr, re.IGNORECASE):
        when += ", so this is probably not Claude Code: check the option cli"
    error = _exited_error(exit_info, last_output, when)
    error.__cause__ = exit_info.error or problem
    return error


def self_wait_error() -> UsageError:
    """Make the error for a callback that waits for the session or query that it is called by."""
    return UsageError(
        "a callback cannot wait for a query of its own session: the CLI waits for the callback first, so neither would "
        "ever end. Ask in another session, such as session.fork(), or with pilothouse.query(…), or await the query "
        "after the callback has returned"
    )


def oversize_error(size: int) -> OversizeLineError:
    """Make the error for a line of output that was skipped for its length."""
    return OversizeLineError(
        f"a line of its output was {size:,} bytes long and was skipped; raise the option max_line_bytes", size=size
    )


def _exited_error(exit_info: ExitInfo, last_output: str, when: str) -> ProcessError:
    if unknown := re.search(_UNKNOWN_FLAG, exit_info.stderr):
        return _unknown_flag_error(unknown[1], exit_info)
    if taken := re.search(_SESSION_ID_IN_USE, exit_info.stderr):
        return SessionExistsError(
            f"there is a conversation with session_id {taken[1]!r}; resume={taken[1]!r} continues it; omit "
            "session_id for a new conversation",
            exit_code=exit_info.exit_code,
            signal=exit_info.signal,
            stderr=exit_info.stderr,
        )
    parts = [f"{_describe_exit(exit_info)} {when}"]
    if exit_info.detail:
        parts.append(exit_info.detail)
    stderr = [line for line in exit_info.stderr.splitlines() if line.strip()][-STDERR_LINES:]
    if stderr:
        parts.append("its standard error ends with:\n  " + "\n  ".join(stderr))
        if _ROOT in exit_info.stderr:
            parts.append("in a container, env={'IS_SANDBOX': '1'} declares a sandbox")
    elif last_output:
        parts.append(f"its last output that was not a message: {last_output!r}")
    return CLIExitedError(
        "; ".join(parts), exit_code=exit_info.exit_code, signal=exit_info.signal, stderr=exit_info.stderr
    )


def _unknown_flag_error(flag: str, exit_info: ExitInfo) -> CLIVersionError:
    option = next((row for row in TABLE.values() if flag in list_flags(row.target)), None)
    what = f"--{flag}" if option is None else f"--{flag}, which option {option.name!r} needs"
    since = (
        f"; Claude Code {option.min_cli_version} is the oldest that has it"
        if option is not None and option.min_cli_version
        else ""
    )
    return CLIVersionError(
        f"this Claude Code does not know the flag {what}{since}: update it, or omit the option",
        exit_code=exit_info.exit_code,
        signal=exit_info.signal,
        stderr=re.sub(_VALUE_OF_FLAG, rf"\1={REDACTED_END}", exit_info.stderr),
    )


def _describe_exit(exit_info: ExitInfo) -> str:
    if exit_info.error is not None:
        return "the other side of the transport failed"
    if exit_info.signal is not None:
        return f"the CLI was ended by {exit_info.signal}"
    if exit_info.exit_code is not None:
        return f"the CLI exited with code {exit_info.exit_code}"
    return "the CLI closed its output"


def timeout_error(seconds: float, consequence: str = "the child was ended") -> QueryTimeout:
    """Make the error for a query that exceeded `timeout`; `consequence` says what was done about it."""
    return QueryTimeout(f"no result within {seconds:g} s (option timeout); {consequence}", seconds=seconds)


def idle_timeout_error(
    seconds: float, consequence: str = "the child was ended", *, has_received: bool, kind: str = "idle_timeout"
) -> QueryTimeout:
    """Make the error for a CLI silent for longer than the option `kind` allows; `consequence` says what was done."""
    phase = "since its last message" if has_received else "before it began to answer"
    return QueryTimeout(
        f"the CLI sent nothing for {seconds:g} s {phase} (option {kind}); {consequence}", seconds=seconds, kind=kind
    )


def make_retry_error(retry: ApiRetryMessage, api: str) -> ResultError:
    """Make the error of a request to the API that failed; `api` is what to call it."""
    kind = ERRORS_BY_STATUS.get(retry.error_status or 0, ExecutionError)
    return kind(retry.describe(api), api_error_status=retry.error_status)


STALLED = "stalled"
"""Subtype of the system message that pilothouse adds to the stream of a query that has been silent for long."""
WARNING_FRACTION = 0.5  # of the limit: early enough to act, late enough to ignore short pauses


class IdleCheck(Struct, frozen=True):
    """What to do now.

    Args:
        next_check_at: when to check again.
        note: message for the consumer, if any.
        limit: the limit that was exceeded, in seconds; None: no limit was.
        kind: the option that set the limit.
    """

    next_check_at: float
    note: SystemMessage | None = None
    limit: float | None = None
    kind: str = ""

    def make_error(self, consequence: str, *, has_received: bool) -> QueryTimeout:
        """Make the error that the query fails with."""
        return idle_timeout_error(self.limit or 0.0, consequence, has_received=has_received, kind=self.kind)


class IdleTimer(Struct, eq=False):
    """Measures the silence of the CLI during one query.

    Args:
        limits: of the query.
    """

    _limits: QueryLimits
    _warned_for: float | None = None  # start of the silence that was reported

    @property
    def is_limited(self) -> bool:
        """Whether a limit is set."""
        return self._limits.idle_timeout is not None or self._limits.startup_timeout is not None

    def check(
        self, idle_since: float, now: float, *, has_received: bool, session_id: str | None = None
    ) -> IdleCheck | None:
        """Check the limits at `now`; None if none applies.

        Args:
            idle_since: when the silence began.
            now: the current time.
            has_received: whether the CLI has sent anything in this query.
            session_id: for the note.
        """
        limit, kind = self._limits.idle_timeout, "idle_timeout"
        if not has_received and self._limits.startup_timeout is not None:
            limit, kind = self._limits.startup_timeout, "startup_timeout"
        if limit is None:
            return None
        warn_at, cut_at = idle_since + limit * WARNING_FRACTION, idle_since + limit
        if now < warn_at:
            return IdleCheck(self._next_check(warn_at, now, has_received=has_received))
        note = None
        if self._warned_for != idle_since:  # also when it is late: the consumer is always warned before the cut
            self._warned_for = idle_since
            facts = {
                "seconds": round(now - idle_since, 3),
                "limit": limit,
                "phase": "idle" if has_received else "startup",
            }
            note = make_note(STALLED, session_id, facts)
        if now >= cut_at:
            return IdleCheck(now, note, limit, kind)
        return IdleCheck(self._next_check(cut_at, now, has_received=has_received), note)

    def _next_check(self, moment: float, now: float, *, has_received: bool) -> float:
        """`moment`, or earlier where the first message may bring a shorter limit into force."""
        idle = self._limits.idle_timeout
        return moment if has_received or idle is None else min(moment, now + idle * WARNING_FRACTION)


def make_note(subtype: str, session_id: str | None, fields: dict[str, Any]) -> SystemMessage:
    """Make a system message of pilothouse's own; `fields` are in its `raw`."""
    named = {} if session_id is None else {"session_id": session_id}
    line = encode_line({"type": "system", "subtype": subtype, **named, **fields})[:-1]
    return SystemMessage(subtype=subtype, session_id=session_id, raw_line=line)


def is_refusal(message: ResultMessage) -> bool:
    """Whether a result says that the CLI does not start; it comes in place of the initialize response."""
    return message.is_error and message.subtype != "success" and not message.is_woken
