"""Observers of a fleet and of its attempts.

An exception in an observer affects nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from pilothouse.client import Agent
from pilothouse.errors import OptionsError
from pilothouse.instrumentation import collect_observers
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


def collect_fleet_observers(agent: Agent, concurrency: int, budget_usd: float | None) -> list[FleetObserver]:
    """Start observing a fleet of `agent`, in the caller's context."""
    try:
        options = agent.options
    except OptionsError:  # raised where the agent is used
        return []
    if not options.instrumentation:
        return []
    redact = Redactor(invocation_secrets(render(options, os.environ))).redact
    start = FleetStart(concurrency=concurrency, budget_usd=budget_usd, redact=redact)

    def ask(one: Any) -> FleetObserver | None:
        return one.fleet_started(start) if isinstance(one, FleetInstrumentation) else None

    return collect_observers(options.instrumentation, ask)
