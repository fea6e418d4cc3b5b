"""What follows when an attempt has ended, and what may still be spent. Pure: the time and the luck are given.

Owns which failures are tried again, and the sums of the budget. Knows no journal and no event loop.
"""

from __future__ import annotations

from math import isfinite
from typing import Literal

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


class Budget:
    """What a fleet may spend, and what each of its runs may.

    With a limit for each run, as much is set aside for every run that runs: then the sum holds whatever they cost.

    Args:
        total: for all runs, in US dollars; None: no limit.
        each: for one run; None: no limit.
    """

    def __init__(self, total: float | None, each: float | None) -> None:
        self._total = checked_budget("budget_usd", total)
        self._each = checked_budget("run_budget_usd", each)
        self._set_aside: dict[str, float] = {}
        self.spent = 0.0

    def left(self) -> float | None:
        """What may still be given to runs; None: no limit."""
        return None if self._total is None else self._total - self.spent - sum(self._set_aside.values())

    def start(self, run: Run) -> float | None:
        """What `run`, which starts now, may spend in this attempt; None: no limit."""
        own = None if self._each is None else max(self._each - run.cost_usd, 0.0)
        left = self.left()
        limit = own if left is None else left if own is None else min(own, left)
        if self._each is not None and self._total is not None and limit is not None:
            self._set_aside[run.key] = limit
        return limit

    def end(self, key: str) -> None:
        """A run has ended."""
        self._set_aside.pop(key, None)

    def allows_one(self) -> bool:
        """Whether one more may start now."""
        left = self.left()
        return left is None or left > 0

    @property
    def is_spent(self) -> bool:
        """Whether nothing will start any more, whatever those that run will cost."""
        return self._total is not None and self.spent >= self._total

    def error(self, left: int) -> BudgetError:
        """What to raise when it is spent and runs are left."""
        return BudgetError(
            f"the budget of ${self._total:g} for the fleet is spent (${self.spent:.4f}); {left} runs were not started; "
            "raise budget_usd to go on"
        )
