"""What follows when an attempt has ended, and what may still be spent. Pure: the time and the luck are given.

Owns which failures are tried again, and the sums of the budget. Knows no journal and no event loop.
"""

from __future__ import annotations

from math import isfinite
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client import QueryResult
from pilothouse.client.retrying import retry_reason
from pilothouse.errors import BudgetError, CLIExitedError, ControlTimeout, Interrupted, RateLimitError, UsageError
from pilothouse.fleet.run import Run
from pilothouse.options import RetryPolicy
from pilothouse.options.faults import Fault
from pilothouse.options.retry_policy import read as read_retry

OnInterrupted = Literal["resume", "restart", "fail"]
POLICIES: tuple[OnInterrupted, ...] = ("resume", "restart", "fail")

MAX_INTERRUPTIONS = 20
"""Of one run; one that ends every process which works on it must end some day."""

LEAST_USD = 1e-6
"""What is less is nothing: sums of floating-point numbers in another order differ by less."""

RESUME_PROMPT = (
    "This run was interrupted, and goes on now. If the task that it was given is done, say its result once more; else "
    "go on where it stopped, and do nothing again that is done."
)
"""What a run is told whose session is resumed."""


def read_policy(retry: RetryPolicy | int | None) -> RetryPolicy:
    """The policy in all its forms; None: nothing is tried again.

    Raises:
        UsageError: it is none.
    """
    try:
        return read_retry(0 if retry is None else retry)
    except Fault as fault:
        raise UsageError(f"retry: expected a number of further attempts or a RetryPolicy, got {retry!r}") from fault


def checked_budget(name: str, value: float | None) -> float | None:
    """A budget in US dollars.

    Raises:
        UsageError: it is not above 0: such a fleet could start nothing.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name} must be a number of US dollars above 0, got {value!r}; leave it away for no limit")
    return float(value)


def after(
    run: Run, outcome: QueryResult | None, error: Exception | None, policy: RetryPolicy, now: float, luck: float
) -> Run:
    """The run after an attempt that ended by itself.

    Args:
        run: as it was started.
        outcome: its answer, if there is one.
        error: why it failed; None: it did not.
        policy: when it is tried again.
        now: the time, in Unix seconds.
        luck: a random number from 0 to 1.
    """
    if error is None:
        return replace(run, state="succeeded", result=outcome, error=None, ended=now)
    run = replace(run, result=outcome, error=error, failures=run.failures + 1)
    delay = _delay(run, error, policy, now, luck)
    if delay is None:
        return replace(run, state="failed", ended=now)
    return replace(run, state="queued", due=now + delay)


def interrupted(run: Run, policy: OnInterrupted, now: float) -> Run:
    """A run that was stopped on the way, ready to go on as the policy says."""
    if policy == "fail" or run.attempts - run.failures > MAX_INTERRUPTIONS:
        error = Interrupted(f"run {run.key!r} was interrupted, {run.attempts} times started")
        return replace(run, state="failed", error=error, ended=now)
    kept = run.session_id if policy == "resume" else None
    return replace(run, state="queued", session_id=kept, due=0.0)


def _delay(run: Run, error: Exception, policy: RetryPolicy, now: float, luck: float) -> float | None:
    """Seconds until the next attempt; None: there is none."""
    if run.failures > policy.attempts or not _may_pass(error, policy):
        return None
    delay = policy.delay(run.failures, luck)
    if isinstance(error, RateLimitError) and error.resets_at is not None and error.resets_at > now:
        left = error.resets_at - now
        return max(delay, left) if left <= policy.max_delay else None
    return delay


def _may_pass(error: Exception, policy: RetryPolicy) -> bool:
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


def checked_limits(concurrency: int | None, budget_usd: float | None, run_budget_usd: float | None) -> Limits:
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
        budget_usd=checked_budget("budget_usd", budget_usd),
        run_budget_usd=checked_budget("run_budget_usd", run_budget_usd),
    )


class Allowance:
    """What a lease may still give out, for those who give: ask it about one run after the other.

    With a limit for each run, as much is set aside for every one that runs: then the sum holds whatever they cost.

    Args:
        limits: what they keep to.
        spent: what all runs have cost, in US dollars.
        set_aside: what was set aside for those that run.
        running: how many run.
    """

    def __init__(self, limits: Limits, *, spent: float, set_aside: float, running: int) -> None:
        self._room = None if limits.concurrency is None else limits.concurrency - running
        self._left = None if limits.budget_usd is None else limits.budget_usd - spent - set_aside
        self._each = limits.run_budget_usd

    def most(self, count: int) -> int:
        """At most so many of `count`."""
        if self._left is not None and self._left <= LEAST_USD:
            return 0
        return count if self._room is None else max(0, min(count, self._room))

    def give(self, run: Run) -> tuple[float | None, float] | None:
        """What the attempt of `run` that starts now may cost (None: no limit), and what of it is set aside.

        None: it may not start, and no other.
        """
        if self._left is not None and self._left <= LEAST_USD:
            return None
        own = None if self._each is None else max(self._each - run.cost_usd, 0.0)
        if own is None or self._left is None:
            return self._left if own is None else own, 0.0
        limit = min(own, self._left)
        self._left -= limit
        return limit, limit


class Budget:
    """What a fleet has spent of what it may.

    Args:
        limits: what it may.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spent = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether nothing will start any more, whatever those that run will cost."""
        return self.limits.budget_usd is not None and self.spent >= self.limits.budget_usd - LEAST_USD

    def error(self, left: int) -> BudgetError:
        """What to raise when it is spent and runs are left."""
        return BudgetError(
            f"the budget of ${self.limits.budget_usd:g} for the fleet is spent (${self.spent:.4f}); {left} runs were "
            "not started; raise budget_usd to go on"
        )
