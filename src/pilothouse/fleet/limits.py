"""Budgets, request rates, retries and the circuit breaker of a fleet.

Pure: the time and the random number are arguments.
"""

from __future__ import annotations

import copy
from math import isfinite
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client import QueryResult
from pilothouse.client.retry import retry_reason
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
    UsageError,
    WorkspaceError,
)
from pilothouse.fleet.run import Run
from pilothouse.options import RetryPolicy
from pilothouse.options.struct_validation import read_retry_policy as read_retry
from pilothouse.options.value_errors import InvalidValueError

OnInterrupted = Literal["resume", "restart", "fail"]
INTERRUPTION_POLICIES: tuple[OnInterrupted, ...] = ("resume", "restart", "fail")

MAX_INTERRUPTIONS = 20
"""Of one run; one that ends every process which works on it must end some day."""

MIN_USD = 1e-6
"""What is less is nothing: sums of floating-point numbers in another order differ by less."""

RESUME_PROMPT = (
    "This run was interrupted, and goes on now. If the task that it was given is done, say its result once more; else "
    "go on where it stopped, and do nothing again that is done."
)
"""What a run is told whose session is resumed."""


def parse_retry_policy(retry: RetryPolicy | int | None) -> RetryPolicy:
    """The policy in all its forms; None: nothing is tried again.

    Raises:
        UsageError: it is none.
    """
    try:
        return read_retry(0 if retry is None else retry)
    except InvalidValueError as fault:
        raise UsageError(f"retry: expected a number of further attempts or a RetryPolicy, got {retry!r}") from fault


def validate_budget(name: str, value: float | None) -> float | None:
    """A budget in US dollars.

    Raises:
        UsageError: it is not above 0: such a fleet could start nothing.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name} must be a number of US dollars above 0, got {value!r}; leave it away for no limit")
    return float(value)


def apply_outcome(
    run: Run, outcome: QueryResult | None, error: Exception | None, policy: RetryPolicy, now: float, jitter: float
) -> Run:
    """The run after an attempt that ended by itself.

    Args:
        run: as it was started.
        outcome: its answer, if there is one.
        error: why it failed; None: it did not.
        policy: when it is tried again.
        now: the time, in Unix seconds.
        jitter: a random number from 0 to 1.
    """
    if error is None:
        return replace(run, state="succeeded", result=outcome, error=None, ended=now)
    run = replace(run, result=outcome, error=error, failures=run.failures + 1)
    delay = _compute_delay(run, error, policy, now, jitter)
    if delay is None:
        return replace(run, state="failed", ended=now)
    return replace(run, state="queued", due=now + delay)


def apply_interruption(run: Run, policy: OnInterrupted, now: float) -> Run:
    """A run that was stopped on the way, ready to go on as the policy says."""
    if policy == "fail" or run.attempts - run.failures > MAX_INTERRUPTIONS:
        error = Interrupted(f"run {run.key!r} was interrupted, {run.attempts} times started")
        return replace(run, state="failed", error=error, ended=now)
    kept = run.session_id if policy == "resume" else None
    return replace(run, state="queued", session_id=kept, due=0.0)


def _compute_delay(run: Run, error: Exception, policy: RetryPolicy, now: float, jitter: float) -> float | None:
    """Seconds until the next attempt; None: there is none."""
    if run.failures > policy.attempts or not _is_retryable(error, policy):
        return None
    delay = policy.delay(run.failures, jitter)
    if isinstance(error, RateLimitError) and error.resets_at is not None and error.resets_at > now:
        left = error.resets_at - now
        return max(delay, left) if left <= policy.max_delay else None
    return delay


def _is_retryable(error: Exception, policy: RetryPolicy) -> bool:
    if isinstance(error, CLIExitedError | ControlTimeout):  # a child that died, or never got so far
        return True
    return retry_reason(error) in policy.on


class Limits(Struct, frozen=True, kw_only=True):
    """What holds for all processes of a journal together; a lease keeps to it.

    Args:
        concurrency: how many run at the same time; None: no limit.
        budget_usd: what all runs may cost, in US dollars; None: no limit.
        run_budget_usd: what one run may cost, over all its attempts; None: no limit.
    """

    concurrency: int | None = None
    budget_usd: float | None = None
    run_budget_usd: float | None = None


NO_LIMITS = Limits()


def validate_limits(concurrency: int | None, budget_usd: float | None, run_budget_usd: float | None) -> Limits:
    """What a fleet was given as limits.

    Raises:
        UsageError: one of them lets nothing start, or is no number.
    """
    if concurrency is not None and (
        isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1  # pyright: ignore[reportUnnecessaryIsInstance]
    ):
        raise UsageError(f"overall_concurrency is a whole number of at least 1, not {concurrency!r}")
    return Limits(
        concurrency=concurrency,
        budget_usd=validate_budget("budget_usd", budget_usd),
        run_budget_usd=validate_budget("run_budget_usd", run_budget_usd),
    )


class Allowance:
    """What a lease may still give out, for those who give: ask it about one run after the other.

    With a limit for each run, as much is set aside for every one that runs: then the sum holds whatever they cost.

    Args:
        limits: what they keep to.
        spent_usd: what all runs have cost, in US dollars.
        reserved_usd: what was set aside for those that run.
        running: how many run.
    """

    def __init__(self, limits: Limits, *, spent_usd: float, reserved_usd: float, running: int) -> None:
        self._free_slots = None if limits.concurrency is None else limits.concurrency - running
        self._remaining_usd = None if limits.budget_usd is None else limits.budget_usd - spent_usd - reserved_usd
        self._run_budget_usd = limits.run_budget_usd

    def limit_count(self, count: int) -> int:
        """At most so many of `count`."""
        if self._remaining_usd is not None and self._remaining_usd <= MIN_USD:
            return 0
        return count if self._free_slots is None else max(0, min(count, self._free_slots))

    def reserve(self, run: Run) -> tuple[float | None, float] | None:
        """What the attempt of `run` that starts now may cost (None: no limit), and what of it is set aside.

        None: it may not start, and no other.
        """
        if self._remaining_usd is not None and self._remaining_usd <= MIN_USD:
            return None
        own = None if self._run_budget_usd is None else max(self._run_budget_usd - run.cost_usd, 0.0)
        if own is None or self._remaining_usd is None:
            return self._remaining_usd if own is None else own, 0.0
        limit = min(own, self._remaining_usd)
        self._remaining_usd -= limit
        return limit, limit


class Budget:
    """What a fleet has spent of what it may.

    Args:
        limits: what it may.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spent_usd = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing will start any more, whatever those that run will cost."""
        return self.limits.budget_usd is not None and self.spent_usd >= self.limits.budget_usd - MIN_USD

    def make_error(self, remaining_runs: int) -> BudgetError:
        """What to raise when it is spent and runs are left."""
        return BudgetError(
            f"the budget of ${self.limits.budget_usd:g} for the fleet is spent (${self.spent_usd:.4f}); "
            f"{remaining_runs} runs were not started; raise budget_usd to go on"
        )


BURST_SECONDS = 1.0
"""What a bucket holds: the share of a second, so that a minute never has more than its limit and that of a second."""


class Rate(Struct, frozen=True, kw_only=True):
    """Limits of a fleet: as `rate` in each process, as `overall_rate` of all processes of a journal together.

    Args:
        requests_per_minute: requests to the model, one a turn; None: no limit.
        tokens_per_minute: tokens of input, without those read from the cache, and of output; None: no limit.

    Raises:
        UsageError: from `Fleet`, if a limit is not above 0.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


def validate_rate(rate: Rate | None, name: str = "rate") -> Rate:
    """The rate with limits that can be kept.

    Raises:
        UsageError: it is no `Rate`, or a limit is not a number above 0.
    """
    if rate is None:
        return Rate()
    if not isinstance(rate, Rate):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name}: expected pilothouse.Rate, got {type(rate).__name__}")
    for limit in Rate.__struct_fields__:
        value = getattr(rate, limit)
        if value is not None and not (isinstance(value, int | float) and isfinite(value) and value > 0):
            raise UsageError(f"{name}: {limit} must be a number above 0, got {value!r}")
    return rate


class TokenBucket:
    """Something of which there is so much a minute.

    Args:
        per_minute: how much; None: no limit.
        min_capacity: what it holds at least when it is full.
    """

    def __init__(self, per_minute: float | None, min_capacity: float = 1.0) -> None:
        self._min_capacity = min_capacity
        self._filled_at: float | None = None
        self._per_second, self._capacity = self._compute_capacity(per_minute)
        self._level = self._capacity

    def _compute_capacity(self, per_minute: float | None) -> tuple[float | None, float]:
        per_second = None if per_minute is None else per_minute / 60
        return per_second, max(self._min_capacity, (per_second or 0) * BURST_SECONDS)

    def set_rate(self, per_minute: float | None, now: float) -> None:
        """From now on there is so much a minute."""
        self._refill(now)
        self._per_second, self._capacity = self._compute_capacity(per_minute)
        self._level = min(self._level, self._capacity)

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, or give it back if it is below 0; into debt, if need be."""
        self._refill(now)
        self._level = min(self._capacity, self._level - amount)

    def seconds_until(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there, or the bucket is full if that is less; 0 if it is there now."""
        if self._per_second is None:
            return 0.0
        self._refill(now)
        missing = min(amount, self._capacity) - self._level
        return 0.0 if missing <= 1e-9 else missing / self._per_second

    def _refill(self, now: float) -> None:
        if self._per_second is None:
            return
        if self._filled_at is not None and now > self._filled_at:
            self._level = min(self._capacity, self._level + (now - self._filled_at) * self._per_second)
        self._filled_at = now


class RateLimiter:
    """The limits of a fleet in this process, and its part of those of all processes.

    Args:
        rate: the limits of this process.
        overall: those of all processes.
    """

    def __init__(self, rate: Rate, overall: Rate = Rate()) -> None:  # noqa: B008 - it does not change
        self._rate = rate
        self._overall = overall
        self._requests = TokenBucket(_min_limit(rate.requests_per_minute, overall.requests_per_minute))
        self._tokens = TokenBucket(_min_limit(rate.tokens_per_minute, overall.tokens_per_minute))
        self._is_unlimited = rate == overall == Rate()
        self._process_count = 1
        self._ended_runs = 0
        self._mean_tokens = 0.0

    def set_process_count(self, process_count: int, now: float) -> None:
        """The limits of all processes are for so many processes now: this one has an equal part."""
        if process_count == self._process_count or self._overall == Rate():
            return
        self._process_count = process_count
        for bucket, name in ((self._requests, "requests_per_minute"), (self._tokens, "tokens_per_minute")):
            whole: float | None = getattr(self._overall, name)
            bucket.set_rate(
                _min_limit(getattr(self._rate, name), None if whole is None else whole / process_count), now
            )

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit at all."""
        return self._is_unlimited

    def seconds_until_start(self, now: float) -> float:
        """Seconds until one more run may start; 0: now."""
        return max(self._requests.seconds_until(1, now), self._tokens.seconds_until(max(1.0, self._mean_tokens), now))

    def reserve_run(self, now: float) -> float:
        """A run starts; returns the tokens that are taken for it in advance."""
        self._requests.take(1, now)
        self._tokens.take(self._mean_tokens, now)
        return self._mean_tokens

    def count_request(self, now: float) -> None:
        """A run has asked the model once more than was known."""
        self._requests.take(1, now)

    def finish_run(self, used_tokens: float, reserved_tokens: float, now: float) -> None:
        """A run has ended that used `tokens`, of which `taken` were taken in advance."""
        self._tokens.take(used_tokens - reserved_tokens, now)
        self._ended_runs += 1
        self._mean_tokens += (used_tokens - self._mean_tokens) / min(self._ended_runs, 100)


def _min_limit(*limits: float | None) -> float | None:
    """The smallest of limits; None: there is none."""
    return min((limit for limit in limits if limit is not None), default=None)


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
"""Errors that have their cause in what all runs share, if they are not of one run alone."""

STOP_AFTER = 3


class CircuitBreaker:
    """Counts runs that failed in a row, each for a reason that may be that of all.

    Every other end of an attempt, a success above all, breaks the row; what was stopped from here says nothing.

    Args:
        stop_after: how many different runs are too many; None: never.
    """

    def __init__(self, stop_after: int | None) -> None:
        self._stop_after = stop_after
        self._consecutive_failures: dict[str, Exception] = {}
        self.error: Exception | None = None
        """For which the fleet was stopped."""

    def record_end(self, run: Run) -> bool:
        """An attempt has ended by itself; whether its failure may be that of all, so that it is to wait for others."""
        if self._stop_after is None:
            return False
        if run.state == "failed" and run.error is not None and is_systemic(run.error):
            self._consecutive_failures[run.key] = run.error
            return True
        self._consecutive_failures.clear()
        return False

    def discard(self, key: str) -> None:
        """A run that waited for others was stopped from here."""
        self._consecutive_failures.pop(key, None)

    @property
    def has_reached_limit(self) -> bool:
        """Whether too many have failed in a row: nothing is to be started, unless what still runs breaks the row."""
        return self._stop_after is not None and len(self._consecutive_failures) >= self._stop_after

    def trip(self) -> Exception:
        """It was so; returns why."""
        self.error = list(self._consecutive_failures.values())[-1]
        return self.error

    def make_error(self) -> Exception:
        """What to raise for those who wait: of the class that the runs have met, with all that it holds."""
        assert self.error is not None
        told = copy.copy(self.error)
        what = f"the fleet was stopped, because {len(self._consecutive_failures)} in a row failed so"
        told.args = (f"{self.error}; {what}. None of them counts as failed: mend this, and go on with what is left",)
        told.__cause__ = self.error
        return told


def is_systemic(error: Exception) -> bool:
    """Whether other runs will meet the same error: of `SYSTEMIC_ERRORS`, or a rate limit that lasts."""
    lasts = isinstance(error, RateLimitError) and error.resets_at is not None
    return lasts or isinstance(error, SYSTEMIC_ERRORS)


def undo_failure(run: Run, initial_run: Run) -> Run:
    """A run that has failed for such an error, as it waits to be started again.

    Args:
        run: as it has failed.
        initial_run: as that attempt was started. Where the model has said nothing in it, there is no session to
            go on with.
    """
    session_id = run.session_id if run.output_tokens > initial_run.output_tokens else initial_run.session_id
    failures = max(0, run.failures - 1)
    return replace(run, state="queued", failures=failures, session_id=session_id, due=0.0, ended=None)
