"""How a run fails: typed errors for an exit, a missing result, and a callback that waits for itself. Pure."""

from __future__ import annotations

import re
from typing import Any

from pilothouse.errors import (
    ERRORS_BY_STATUS,
    CLIExitedError,
    CLIVersionError,
    ExecutionError,
    OversizeLineError,
    PeerError,
    PilothouseError,
    ProcessError,
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


def make_retry_error(retry: ApiRetryMessage, api: str) -> ResultError:
    """Make the error of a request to the API that failed; `api` is what to call it."""
    kind = ERRORS_BY_STATUS.get(retry.error_status or 0, ExecutionError)
    return kind(retry.describe(api), api_error_status=retry.error_status)


def make_note(subtype: str, session_id: str | None, fields: dict[str, Any]) -> SystemMessage:
    """Make a system message of pilothouse's own; `fields` are in its `raw`."""
    named = {} if session_id is None else {"session_id": session_id}
    line = encode_line({"type": "system", "subtype": subtype, **named, **fields})[:-1]
    return SystemMessage(subtype=subtype, session_id=session_id, raw_line=line)


def is_start_failure(message: ResultMessage) -> bool:
    """Whether a result says that the CLI does not start; it comes in place of the initialize response."""
    return message.is_error and message.subtype != "success" and not message.is_woken
