"""The limits of a query, and `TimeLimits`, which says when one of them is exceeded."""

from __future__ import annotations

from math import inf

import anyio
from msgspec import Struct

from pilothouse.engine.failures import make_note
from pilothouse.errors import QueryTimeout
from pilothouse.messages import SystemMessage

STALLED = "stalled"
"""Subtype of the system message that pilothouse adds to the stream of a query that has been silent for long."""
WARNING_FRACTION = 0.5  # of the limit: early enough to act, late enough to ignore short pauses


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


def idle_timeout_error(
    seconds: float, consequence: str = "the child was ended", *, has_received: bool, kind: str = "idle_timeout"
) -> QueryTimeout:
    """Make the error for a CLI silent for longer than the option `kind` allows; `consequence` says what was done."""
    phase = "since its last message" if has_received else "before it began to answer"
    return QueryTimeout(
        f"the CLI sent nothing for {seconds:g} s {phase} (option {kind}); {consequence}", seconds=seconds, kind=kind
    )


class SilenceCheck(Struct, frozen=True):
    """What to do about the silence of the CLI.

    Args:
        next_check_at: when to check again.
        note: message for the consumer, if any.
        error: what the query fails with; None: no limit is exceeded.
    """

    next_check_at: float
    note: SystemMessage | None = None
    error: QueryTimeout | None = None


class TimeLimits:
    """How long one query may take as a whole, and how long the CLI may be silent.

    Args:
        limits: of the query.
        consequence: what is done about a query that exceeds one, for the error.
    """

    def __init__(self, limits: QueryLimits, consequence: str) -> None:
        self._limits = limits
        self._consequence = consequence
        self._deadline: float | None = None  # when the query must be over; set when it begins
        self._scope: anyio.CancelScope | None = None
        self._counts_from = 0.0  # silence before this moment does not count
        self._warned_for: float | None = None  # start of the silence that was reported

    @property
    def has_run_out(self) -> bool:
        """Whether the scope that was opened last is cancelled."""
        return self._scope is not None and self._scope.cancel_called

    def open_scope(self) -> anyio.CancelScope:
        """Return a scope that is cancelled when the query must be over, counted from the first call on.

        The one before it will not be cancelled: what it held has begun.
        """
        if self._scope is not None:
            self._scope.deadline = inf
        if self._deadline is None:
            self._deadline = inf if self._limits.timeout is None else anyio.current_time() + self._limits.timeout
        self._scope = anyio.CancelScope(deadline=self._deadline)
        return self._scope

    def make_error(self, consequence: str = "") -> QueryTimeout:
        """Make the error for a query that took too long; `consequence`, if not the usual one."""
        seconds = self._limits.timeout or 0.0
        what = consequence or self._consequence
        return QueryTimeout(f"no result within {seconds:g} s (option timeout); {what}", seconds=seconds)

    @property
    def has_silence_limit(self) -> bool:
        """Whether the CLI may not be silent for any time."""
        return self._limits.idle_timeout is not None or self._limits.startup_timeout is not None

    def restart_silence(self) -> None:
        """Silence counts from now on: something was sent, or is ours to send."""
        self._counts_from = anyio.current_time()

    def track_silence(
        self, silent_since: float, now: float, *, has_received: bool, session_id: str | None = None
    ) -> SilenceCheck | None:
        """Take note of the silence at `now`, and return what to do about it; None if no limit applies any more.

        Of each silence it warns once.

        Args:
            silent_since: when the CLI fell silent.
            now: the current time.
            has_received: whether the CLI has sent anything in this query.
            session_id: for the note.
        """
        limit, kind = self._limits.idle_timeout, "idle_timeout"
        if not has_received and self._limits.startup_timeout is not None:
            limit, kind = self._limits.startup_timeout, "startup_timeout"
        if limit is None:
            return None
        since = max(silent_since, self._counts_from)
        warn_at, cut_at = since + limit * WARNING_FRACTION, since + limit
        if now < warn_at:
            return SilenceCheck(self._next_check(warn_at, now, has_received=has_received))
        note = None
        if self._warned_for != since:  # also when it is late: the consumer is always warned before the cut
            self._warned_for = since
            facts = {
                "seconds": round(now - since, 3),
                "limit": limit,
                "phase": "idle" if has_received else "startup",
            }
            note = make_note(STALLED, session_id, facts)
        if now >= cut_at:
            error = idle_timeout_error(limit, self._consequence, has_received=has_received, kind=kind)
            return SilenceCheck(now, note, error)
        return SilenceCheck(self._next_check(cut_at, now, has_received=has_received), note)

    def _next_check(self, moment: float, now: float, *, has_received: bool) -> float:
        """`moment`, or earlier where the first message may bring a shorter limit into force."""
        idle = self._limits.idle_timeout
        return moment if has_received or idle is None else min(moment, now + idle * WARNING_FRACTION)
