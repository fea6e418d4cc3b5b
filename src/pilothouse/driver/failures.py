"""Words for the ways in which a run can end without an answer. Pure: from what is known to one typed error."""

from __future__ import annotations

import re

from pilothouse.errors import (
    CLIExitedError,
    CLIVersionError,
    OversizeLineError,
    PeerError,
    PilothouseError,
    ProcessError,
    QueryTimeout,
    SessionExistsError,
)
from pilothouse.options import TABLE
from pilothouse.options.targets import flags_of
from pilothouse.transports import Ending

STDERR_LINES = 5  # of the end of stderr, in the message; the whole tail is on the error
# The CLI repeats the value after the name, whatever it holds (2.0.0 to 2.1.330): only the name is taken.
_UNKNOWN_FLAG = r"error: unknown option '--([\w-]+)"
# What getopt, argparse and shells say of our flags; the CLI says it in another way, see above.
_NOT_THE_CLI = r"(unrecognized|unknown|illegal|invalid) (option|argument)s?\b.*-(input|output)-format"
_ROOT = "cannot be used with root/sudo privileges"
_VALUE_OF_FLAG = r"(error: unknown option '--[\w-]+)=.*"
HIDDEN = "…'"
_TAKEN_ID = r"Session ID (\S+) is already in use"


def missing_result_error(ending: Ending, noise: str, problem: PeerError | None) -> PilothouseError:
    """The output ended and no result had come: say how the peer ended, and what it said last. (E68, G41).

    Args:
        ending: how it ended.
        noise: its last output that was no message, if any.
        problem: the last line that could not be read; it may have been the result.
    """
    if isinstance(problem, OversizeLineError) and ending.exit_code == 0:
        return OversizeLineError(f"the CLI ended without a result, but {problem}", size=problem.size)
    error = _exited_error(ending, noise, "before the answer was complete")
    error.__cause__ = ending.error or problem
    return error


def session_ended_error(ending: Ending, noise: str, problem: PeerError | None, *, busy: bool) -> ProcessError:
    """The output of a session ended although nobody closed it; arguments as in `missing_result_error`. (E68)."""
    error = _exited_error(ending, noise, "before the answer was complete" if busy else "while it was idle")
    error.__cause__ = ending.error or problem
    return error


def oversize_error(size: int) -> OversizeLineError:
    """A line of output that was skipped for its length."""
    return OversizeLineError(
        f"a line of its output was {size:,} bytes long and was skipped; raise the option max_line_bytes", size=size
    )


def _exited_error(ending: Ending, noise: str, when: str) -> ProcessError:
    if unknown := re.search(_UNKNOWN_FLAG, ending.stderr):
        return _too_old(unknown[1], ending)
    if re.search(_NOT_THE_CLI, ending.stderr, re.IGNORECASE):
        when += ", so it is hardly Claude Code: look at the option cli"
    if taken := re.search(_TAKEN_ID, ending.stderr):
        return SessionExistsError(
            f"there is a conversation with session_id {taken[1]!r}; resume={taken[1]!r} goes on with it, or leave "
            "session_id away for a new one",
            exit_code=ending.exit_code,
            signal=ending.signal,
            stderr=ending.stderr,
        )
    parts = [f"{_how(ending)} {when}"]
    if ending.detail:
        parts.append(ending.detail)
    stderr = [line for line in ending.stderr.splitlines() if line.strip()][-STDERR_LINES:]
    if stderr:
        parts.append("its standard error ends with:\n  " + "\n  ".join(stderr))
        if _ROOT in ending.stderr:
            parts.append("in a container, env={'IS_SANDBOX': '1'} tells it that this is a sandbox")
    elif noise:
        parts.append(f"its last output that was not a message: {noise!r}")
    return CLIExitedError("; ".join(parts), exit_code=ending.exit_code, signal=ending.signal, stderr=ending.stderr)


def _too_old(flag: str, ending: Ending) -> CLIVersionError:
    option = next((row for row in TABLE.values() if flag in flags_of(row.target)), None)
    what = f"--{flag}" if option is None else f"--{flag}, which option {option.name!r} needs"
    since = f"; Claude Code {option.since} is the oldest that does" if option is not None and option.since else ""
    return CLIVersionError(
        f"this Claude Code does not know the flag {what}{since}: update it, or leave that away",
        exit_code=ending.exit_code,
        signal=ending.signal,
        stderr=re.sub(_VALUE_OF_FLAG, rf"\1={HIDDEN}", ending.stderr),
    )


def _how(ending: Ending) -> str:
    if ending.error is not None:
        return "the peer failed"
    if ending.signal is not None:
        return f"the CLI was ended by {ending.signal}"
    if ending.exit_code is not None:
        return f"the CLI exited with code {ending.exit_code}"
    return "the CLI closed its output"


def timeout_error(seconds: float, what: str = "the child was ended") -> QueryTimeout:
    """The whole query took too long; `what` was done about it. (L30, E10, G46)."""
    return QueryTimeout(f"no result within {seconds:g} s (option timeout); {what}", seconds=seconds)


def silence_error(
    seconds: float, what: str = "the child was ended", *, heard: bool, kind: str = "idle_timeout"
) -> QueryTimeout:
    """The peer was silent for longer than the option `kind` allows; `what` was done about it."""
    phase = "since its last message" if heard else "since it was started"
    return QueryTimeout(
        f"the CLI said nothing for {seconds:g} s {phase} (option {kind}); {what}", seconds=seconds, kind=kind
    )
