"""Observers of a fleet and of its attempts, and the code that calls them.

An exception in an observer affects nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from pilothouse.client import Agent
from pilothouse.errors import OptionsError
from pilothouse.instrumentation import collect_observers, enter_contexts, notify_all
from pilothouse.options import render
from pilothouse.support import Redactor, invocation_secrets
from pilothouse_fleet.run import FleetStatus, Run


class FleetStart(Struct, frozen=True, kw_only=True):
    """The facts known when the block of a fleet begins.

    Args:
        concurrency: maximum number of runs at the same time.
        budget_usd: maximum cost of all runs, in US dollars; None: no limit.
        redact: removes the agent's keys from a text; for observers that write texts.
    """

    concurrency: int
    budget_usd: float | None = None
    redact: Callable[[str], str] = str


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """How an attempt at a run ended.

    Args:
        run: its state now: ended, "queued" if another attempt follows, or "interrupted". Its prompt and answer may
            contain anything; do not write them unless the user asked for that.
        seconds: duration from start to answer.
        cost_usd: cost of this attempt alone, in US dollars.
        input_tokens: input tokens of this attempt, including those from the cache.
        output_tokens: output tokens of this attempt.
        is_recorded: whether the journal has recorded the end; False: it could not be written.
    """

    run: Run
    seconds: float
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    is_recorded: bool = True


class AttemptObserver:
    """Observes one attempt. Subclass it and override methods; each does nothing by default."""

    def run_context(self) -> AbstractContextManager[object]:
        """Return a context manager; context variables set in it apply to the runner's work for the attempt."""
        return nullcontext()

    def on_end(self, end: AttemptEnd) -> None:
        """Called when the attempt has ended and its end is recorded."""


class FleetObserver:
    """Observes one fleet. Subclass it and override methods; each does nothing by default.

    All methods are called on the event loop. An exception of theirs is logged once.
    """

    def run_context(self) -> AbstractContextManager[object]:
        """Return a context manager; context variables set in it apply to all runs. It is exited at once."""
        return nullcontext()

    def attempt_started(self, run: Run) -> AttemptObserver | None:
        """Called when an attempt at `run` begins, number `run.attempts`. Return None to not observe it."""
        return None

    def on_status(self, status: FleetStatus) -> None:
        """Called with the run counts by state at start, periodically and at the end; with a journal, of all runs."""

    def on_end(self, error: BaseException | None) -> None:
        """Called when the block was left; `error` is what the block raised, or what stopped the fleet."""


@runtime_checkable
class FleetInstrumentation(Protocol):
    """An `Instrumentation` that also observes fleets."""

    def fleet_started(self, start: FleetStart) -> FleetObserver | None:
        """Called when the block of a fleet begins, in the caller's context. Return None to not observe it."""
        ...


class AttemptObservers:
    """All observers of one attempt. Never raises."""

    def __init__(self, observers: Iterable[AttemptObserver], initial_run: Run) -> None:
        self._observers = list(observers)
        self._initial_run = initial_run
        self._started_at = time.perf_counter()
        self._seconds: float | None = None

    def run_context(self) -> AbstractContextManager[None]:
        """Return the context in which the runner works."""
        return enter_contexts(self._observers) if self._observers else nullcontext()

    def mark_answered(self) -> None:
        """Stop the clock: the runner has returned, and what follows is not part of the attempt."""
        self._seconds = time.perf_counter() - self._started_at

    def notify_end(self, run: Run, *, is_recorded: bool) -> None:
        """Notify the observers of the end of the attempt."""
        if not self._observers:
            return
        seconds = time.perf_counter() - self._started_at if self._seconds is None else self._seconds
        before = self._initial_run
        end = AttemptEnd(
            run=run,
            seconds=seconds,
            cost_usd=run.cost_usd - before.cost_usd,
            input_tokens=run.input_tokens - before.input_tokens,
            output_tokens=run.output_tokens - before.output_tokens,
            is_recorded=is_recorded,
        )
        notify_all(self._observers, lambda one: one.on_end(end), reverse=True)


class FleetObservers:
    """All observers of one fleet. Never raises."""

    def __init__(self, observers: Iterable[FleetObserver] = ()) -> None:
        self._observers = list(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def run_context(self) -> AbstractContextManager[None]:
        """Return the context in which the fleet's tasks are started."""
        return enter_contexts(self._observers)

    def start_attempt(self, run: Run) -> AttemptObservers:
        """Notify the observers of a new attempt; return those that observe it."""
        return AttemptObservers(collect_observers(self._observers, lambda one: one.attempt_started(run)), run)

    def notify_status(self, status: FleetStatus) -> None:
        """Notify the observers of the number of runs by state."""
        notify_all(self._observers, lambda one: one.on_status(status))

    def notify_end(self, error: BaseException | None) -> None:
        """Notify the observers that the block was left."""
        notify_all(self._observers, lambda one: one.on_end(error), reverse=True)


def collect_fleet_observers(agent: Agent, concurrency: int, budget_usd: float | None) -> FleetObservers:
    """Start observing a fleet of `agent`, in the caller's context."""
    try:
        options = agent.options
    except OptionsError:  # raised where the agent is used
        return FleetObservers()
    if not options.instrumentation:
        return FleetObservers()
    redact = Redactor(invocation_secrets(render(options, os.environ))).redact
    start = FleetStart(concurrency=concurrency, budget_usd=budget_usd, redact=redact)

    def ask(one: Any) -> FleetObserver | None:
        return one.fleet_started(start) if isinstance(one, FleetInstrumentation) else None

    return FleetObservers(collect_observers(options.instrumentation, ask))
