"""Words for the ways in which a run can end without an answer. Pure: from what is known to one typed error."""

from __future__ import annotations

from pilothouse.errors import CLIExitedError, OversizeLineError, PeerError, PilothouseError, QueryTimeout
from pilothouse.protocol import Connection
from pilothouse.transports import Ending

STDERR_LINES = 5  # of the end of stderr, in the message; the whole tail is on the error
NOISE_CHARS = 200


def missing_result_error(ending: Ending, connection: Connection, problem: PeerError | None) -> PilothouseError:
    """The output ended and no result had come: say how the peer ended, and what it said last. (E68, G41).

    Args:
        ending: how it ended.
        connection: what came before.
        problem: the last line that could not be read; it may have been the result.
    """
    if isinstance(problem, OversizeLineError) and ending.exit_code == 0:
        return OversizeLineError(f"the CLI ended without a result, but {problem}", size=problem.size)
    error = _exited_error(ending, connection)
    error.__cause__ = problem
    return error


def oversize_error(size: int) -> OversizeLineError:
    """A line of output that was skipped for its length."""
    return OversizeLineError(
        f"a line of its output was {size:,} bytes long and was skipped; raise the option max_line_bytes", size=size
    )


def _exited_error(ending: Ending, connection: Connection) -> CLIExitedError:
    parts = [f"{_how(ending)} before the answer was complete"]
    if ending.detail:
        parts.append(ending.detail)
    stderr = [line for line in ending.stderr.splitlines() if line.strip()][-STDERR_LINES:]
    if stderr:
        parts.append("its standard error ends with:\n  " + "\n  ".join(stderr))
    elif connection.noise:
        line = connection.noise[-1][:NOISE_CHARS].decode("utf-8", "replace")
        parts.append(f"its last output that was not a message: {line!r}")
    return CLIExitedError("; ".join(parts), exit_code=ending.exit_code, signal=ending.signal, stderr=ending.stderr)


def _how(ending: Ending) -> str:
    if ending.signal is not None:
        return f"the CLI was ended by {ending.signal}"
    if ending.exit_code is not None:
        return f"the CLI exited with code {ending.exit_code}"
    return "the CLI closed its output"


def timeout_error(seconds: float) -> QueryTimeout:
    """The whole query took too long. (L30, E10, G46)."""
    return QueryTimeout(f"no result within {seconds:g} s (option timeout); the child was ended", seconds=seconds)


def silence_error(seconds: float, *, heard: bool) -> QueryTimeout:
    """The peer was silent for too long."""
    phase = "since its last message" if heard else "since it was started"
    return QueryTimeout(
        f"the CLI said nothing for {seconds:g} s {phase} (option idle_timeout); the child was ended",
        seconds=seconds,
        kind="idle_timeout",
    )
