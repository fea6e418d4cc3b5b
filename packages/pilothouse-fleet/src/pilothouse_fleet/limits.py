"""Budgets, request rates, retries and the circuit breaker of a fleet.

Pure: the time and the random number are arguments.
"""

from __future__ import annotations

import copy
from math import inf, isfinite
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client import QueryResult, retry_reason
from pilothouse.errors import (
    ArtifactsError,
    AuthenticationError,
    BudgetError,
    CLIExitedError,
    CLINotFoundError,
    CLIStartError,
    CLIVersionError,
    ControlTimeout,
    Interrupted,
    InvalidModelError,
    OptionsError,
    PilothouseError,
    ProvisionError,
    QuotaError,
    RateLimitError,
    RemoteError,
    SessionLeasedError,
    UsageError,
    WorkspaceError,
)
from pilothouse.options import TABLE, InvalidValueError, RetryPolicy
from pilothouse_fleet.run import FleetStatus, Run

OnInterrupted = Literal["resume", "restart", "fail"]
INTERRUPTION_POLICIES: tuple[OnInterrupted, ...] = ("resume", "restart", "fail")

MAX_INTERRUPTIONS = 20
"""How often a run may be interrupted or wait for the lease of its session, so that it ends at last."""
MAX_DEATHS = 4
"""A run fails once this many processes have died while they executed it."""
LEASE_MARGIN_SECONDS = 0.1
"""Added to the rest of the lease of a session."""

MIN_USD = 1e-6
"""Smaller amounts count as zero: sums of floats in another order differ by less."""

RESUME_PROMPT = (
    "This run was interrupted, and goes on now. If the task that it was given is done, say its result once more; else "
    "go on where it stopped, and do nothing again that is done."
)
"""The prompt for a run whose session is resumed."""


def parse_retry_policy(retry: RetryPolicy | int | None) -> RetryPolicy:
    """Convert all forms of `retry` to a policy; None means no retries."""
    try:
        return TABLE["retry"].value_type.read(0 if retry is None else retry)
    except InvalidValueError as fault:
        raise UsageError(f"retry: expected a number of further attempts or a RetryPolicy, got {retry!r}") from fault


def validate_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Validate a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{name} is a whole number of at least {minimum}, not {value!r}")
    return value


def apply_outcome(
    run: Run, outcome: QueryResult | None, error: Exception | None, policy: RetryPolicy, now: float, jitter: float
) -> Run:
    """Return the run after an attempt that ended by itself; `jitter` is a random number from 0 to 1."""
    if error is None:
        return replace(run, state="succeeded", result=outcome, error=None, ended=now)
    if isinstance(error, SessionLeasedError) and run.interruptions < MAX_INTERRUPTIONS:
        # The process that died holds its session for a while. Waiting for that does not count as a failure.
        due = now + error.seconds_left + LEASE_MARGIN_SECONDS
        return replace(run, state="queued", error=error, interruptions=run.interruptions + 1, due=due)
    run = replace(run, result=outcome, error=error, failures=run.failures + 1)
    delay = _compute_delay(run, error, policy, now, jitter)
    if delay is None:
        return replace(run, state="failed", ended=now)
    return replace(run, state="queued", due=now + delay)


def apply_interruption(run: Run, policy: OnInterrupted, now: float) -> Run:
    """Return an interrupted run, queued or failed as the policy says."""
    return _apply_stop(replace(run, interruptions=run.interruptions + 1), policy, now)


def apply_death(run: Run, policy: OnInterrupted, now: float) -> Run:
    """Return a run after the process that executed it has died."""
    run = replace(run, deaths=run.deaths + 1)
    if run.deaths < MAX_DEATHS:
        return _apply_stop(run, policy, now)
    text = f"run {run.key!r} fails because {run.deaths} processes died while they executed it; retry_failed() runs it"
    return replace(run, state="failed", error=Interrupted(f"{text} again"), ended=now)


def _apply_stop(run: Run, policy: OnInterrupted, now: float) -> Run:
    if policy == "fail" or run.interruptions > MAX_INTERRUPTIONS:
        error = Interrupted(f"run {run.key!r} was interrupted, {run.attempts} times started")
        return replace(run, state="failed", error=error, ended=now)
    kept = run.session_id if policy == "resume" else None
    return replace(run, state="queued", session_id=kept, due=0.0)


def _compute_delay(run: Run, error: Exception, policy: RetryPolicy, now: float, jitter: float) -> float | None:
    """Return the seconds until the next attempt; None: no further attempt."""
    if run.failures > policy.attempts or not _is_retryable(error, policy):
        return None
    delay = policy.delay(run.failures, jitter)
    if isinstance(error, RateLimitError) and error.resets_at is not None and error.resets_at > now:
        left = error.resets_at - now
        return max(delay, left) if left <= policy.max_delay else None
    return delay


def _is_retryable(error: Exception, policy: RetryPolicy) -> bool:
    if isinstance(error, CLIExitedError | ControlTimeout):  # a process that died or never started fully
        return True
    return retry_reason(error) in policy.on


class Limits(Struct, frozen=True, kw_only=True):
    """What the runs of a journal may cost; each lease respects it.

    Args:
        budget_usd: maximum cost of all runs, in US dollars; None: no limit.
        run_budget_usd: maximum cost of one run over all its attempts, in US dollars; None: no limit.
    """

    budget_usd: float | None = None
    run_budget_usd: float | None = None


NO_LIMITS = Limits()


def validate_limits(budget_usd: float | None, run_budget_usd: float | None) -> Limits:
    """Validate the limits of a fleet."""
    budgets = {"budget_usd": budget_usd, "run_budget_usd": run_budget_usd}
    for name, value in budgets.items():
        if value is not None and not _is_above_zero(value):
            raise UsageError(f"{name} must be a number of US dollars above 0, got {value!r}; omit it for no limit")
    return Limits(**{name: value and float(value) for name, value in budgets.items()})


def _is_above_zero(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value) and value > 0


class Allowance:
    """What one lease may still give out; used by journals, run by run.

    With a limit per run, that amount is reserved for each running one, so the total holds whatever they cost.
    """

    def __init__(self, limits: Limits, *, spent_usd: float, reserved_usd: float) -> None:
        self._remaining_usd = None if limits.budget_usd is None else limits.budget_usd - spent_usd - reserved_usd
        self._run_budget_usd = limits.run_budget_usd

    def reserve(self, run: Run) -> tuple[float | None, float] | None:
        """Return the maximum cost of the next attempt of `run` (None: no limit), and the reserved part of it.

        Returns None if neither this run nor any other may start.
        """
        if self._remaining_usd is not None and self._remaining_usd <= MIN_USD:
            return None
        own = None if self._run_budget_usd is None else max(self._run_budget_usd - run.cost_usd, 0.0)
        if own is None or self._remaining_usd is None:
            return self._remaining_usd if own is None else own, 0.0
        limit = min(own, self._remaining_usd)
        self._remaining_usd -= limit
        return limit, limit


def is_budget_spent(limits: Limits, status: FleetStatus) -> bool:
    """Whether nothing more can start, because all runs together have cost as much as they may."""
    return limits.budget_usd is not None and status.cost_usd + status.lost_usd >= limits.budget_usd - MIN_USD


def make_budget_error(limits: Limits, status: FleetStatus) -> BudgetError:
    """Make the error for a spent budget with runs left."""
    return BudgetError(
        f"the budget of ${limits.budget_usd:g} for the fleet is spent (${status.cost_usd + status.lost_usd:.4f}); "
        f"{status.left} runs were not started; raise budget_usd to go on"
    )


BURST_SECONDS = 1.0
"""Seconds of the limit that a bucket holds, so that one minute never exceeds its limit by more than this share."""


class Rate(Struct, frozen=True, kw_only=True):
    """Limits of requests and tokens per minute.

    Args:
        requests_per_minute: requests to the model, one per turn; None: no limit.
        tokens_per_minute: input tokens, without those read from the cache, and output tokens; None: no limit.

    Raises:
        UsageError: from `Fleet`, if a limit is not above 0.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


def validate_rate(rate: Rate | None) -> Rate:
    """Validate a rate; None means no limits."""
    if rate is None:
        return Rate()
    if not isinstance(rate, Rate):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"rate: expected pilothouse_fleet.Rate, got {type(rate).__name__}")
    for limit in Rate.__struct_fields__:
        value = getattr(rate, limit)
        if value is not None and not _is_above_zero(value):
            raise UsageError(f"rate: {limit} must be a number above 0, got {value!r}")
    return rate


class TokenBucket:
    """A token bucket: an amount that is refilled continuously; None: no limit.

    What a run uses is known when it ends. Until then the mean of recent runs is reserved for it.
    """

    def __init__(self, per_minute: float | None, mean_use: float) -> None:
        self._filled_at = 0.0
        self._per_second = inf if per_minute is None else per_minute / 60
        self._capacity = self._level = max(1.0, self._per_second * BURST_SECONDS)
        self._mean_use = mean_use
        self._ended_runs = 0

    def seconds_until_start(self, now: float) -> float:
        """Return the seconds until one more run may start; 0: now."""
        self._refill(now)
        missing = min(max(1.0, self._mean_use), self._capacity) - self._level
        return 0.0 if missing <= 1e-9 else missing / self._per_second

    def reserve(self, now: float) -> float:
        """Reserve what a run will use; return it."""
        self.take(self._mean_use, now)
        return self._mean_use

    def take(self, amount: float, now: float) -> None:
        """Take `amount` (a negative amount is returned to the bucket); the level may become negative."""
        self._refill(now)
        self._level = min(self._capacity, self._level - amount)

    def finish(self, used: float, reserved: float, now: float) -> None:
        """Count what a run has used, instead of what was reserved for it."""
        self.take(used - reserved, now)
        self._ended_runs += 1
        self._mean_use += (used - self._mean_use) / min(self._ended_runs, 100)

    def _refill(self, now: float) -> None:
        if now > self._filled_at:
            self._level = min(self._capacity, self._level + (now - self._filled_at) * self._per_second)
        self._filled_at = now


Usage = tuple[float, float]
"""Numbers of requests and of tokens."""


class RateLimiter:
    """The rate limits of a fleet.

    Attributes:
        is_unlimited: whether there are no limits at all.
    """

    def __init__(self, rate: Rate) -> None:
        self._buckets = (TokenBucket(rate.requests_per_minute, 1.0), TokenBucket(rate.tokens_per_minute, 0.0))
        self.is_unlimited = rate == Rate()

    def seconds_until_start(self, now: float) -> float:
        """Return the seconds until one more run may start; 0: now."""
        return max(bucket.seconds_until_start(now) for bucket in self._buckets)

    def reserve_run(self, now: float) -> Usage:
        """Count the start of a run; return the requests and tokens reserved for it."""
        requests, tokens = (bucket.reserve(now) for bucket in self._buckets)
        return requests, tokens

    def count_requests(self, requests: int, reserved: Usage, now: float) -> Usage:
        """Count the requests of a run, as far as they exceed those reserved; return what is reserved then."""
        expected, tokens = reserved
        if requests <= expected:
            return reserved
        self._buckets[0].take(requests - expected, now)
        return requests, tokens

    def finish_run(self, used: Usage, reserved: Usage, now: float) -> None:
        """Count the end of a run that used these requests and tokens."""
        for bucket, amount, expected in zip(self._buckets, used, reserved, strict=True):
            bucket.finish(amount, expected, now)


SYSTEMIC_ERRORS: tuple[type[PilothouseError], ...] = (
    ArtifactsError,
    AuthenticationError,
    CLINotFoundError,
    CLIStartError,
    CLIVersionError,
    InvalidModelError,
    OptionsError,
    ProvisionError,
    QuotaError,
    RemoteError,
    WorkspaceError,
)
"""Errors with a cause that all runs share, such as a wrong key."""

STOP_AFTER = 3


class CircuitBreaker:
    """Counts consecutive runs that failed with errors that may affect all runs.

    Any other end of an attempt resets the count; attempts stopped by this process do not count.

    Args:
        stop_after: the fleet stops after this many of them; None: never.
        is_requeued: whether the journal then has them queued again.

    Attributes:
        failed_keys: the keys of these runs.
        error: the error for which the fleet was stopped.
    """

    def __init__(self, stop_after: int | None, *, is_requeued: bool = True) -> None:
        self._stop_after = stop_after
        self._is_requeued = is_requeued
        self.failed_keys: set[str] = set()
        self.error: Exception | None = None

    def record_end(self, run: Run) -> bool:
        """Record an attempt that ended by itself; return whether the fleet has to stop."""
        if run.state == "failed" and run.error is not None and is_systemic(run.error):
            self.failed_keys.add(run.key)
            if self._stop_after is not None and len(self.failed_keys) >= self._stop_after:
                self.error = self.error or run.error
        elif self.error is None:
            self.failed_keys.clear()
        return self.error is not None

    def make_error(self) -> Exception:
        """Make the error for readers: a copy of the last error, of the same class, with an explanation."""
        assert self.error is not None
        error = copy.copy(self.error)
        what = f"the fleet was stopped, because {len(self.failed_keys)} in a row failed for this reason"
        advice = ". They are queued again: correct this, and resume the rest" if self._is_requeued else ""
        error.args = (f"{self.error}; {what}{advice}",)
        error.__cause__ = self.error
        return error


def is_systemic(error: Exception) -> bool:
    """Whether other runs will meet the same error: one of `SYSTEMIC_ERRORS`, or a rate limit with a reset time."""
    lasts = isinstance(error, RateLimitError) and error.resets_at is not None
    return lasts or isinstance(error, SYSTEMIC_ERRORS)
