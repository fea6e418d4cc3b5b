"""The observers of a fleet and of its attempts, and how they are called.

An observer that raises affects nothing else.
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
from pilothouse.fleet.run import FleetStatus, Run
from pilothouse.instrumentation import collect_observers, enter_contexts, notify_all
from pilothouse.options import render
from pilothouse.options.secrets import Redactor, invocation_secrets


class FleetStart(Struct, frozen=True, kw_only=True):
    """What is known when the block of a fleet begins.

    Args:
        concurrency: how many run at the same time.
        budget_usd: what all may cost, in US dollars; None: no limit.
        redact: takes the keys of the agent out of a text; for whoever writes down what was said.
    """

    concurrency: int
    budget_usd: float | None = None
    redact: Callable[[str], str] = str


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """How an attempt at a run ended.

    Args:
        run: as it stands now: ended, "queued" if there is to be another attempt, or "interrupted". Its prompt and its
            answer may hold anything, so nobody should write them down unasked.
        seconds: how long it took, from its start to its answer.
        cost_usd: of this attempt alone, in US dollars.
        input_tokens: of this attempt, those from the cache included.
        output_tokens: of this attempt.
        is_recorded: whether it counts. False: another process had taken the run over.
    """

    run: Run
    seconds: float
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    is_recorded: bool = True


class AttemptObserver:
    """Watches one attempt. Inherit, and override what you want; every method does nothing by itself."""

    def run_context(self) -> AbstractContextManager[object]:
        """Context variables set in this block hold for all that the runner does for the attempt."""
        return nullcontext()

    def on_end(self, end: AttemptEnd) -> None:
        """It is over, and its end is written down."""


class FleetObserver:
    """Watches one fleet. Inherit, and override what you want; every method does nothing by itself.

    All of them are called on the event loop, where things happen. What they raise is logged once.
    """

    def run_context(self) -> AbstractContextManager[object]:
        """Context variables set in this block hold for all runs; it is left at once."""
        return nullcontext()

    def attempt_started(self, run: Run) -> AttemptObserver | None:
        """An attempt at `run` begins, its `attempts`-th. None: this one is not watched."""
        return None

    def on_status(self, status: FleetStatus) -> None:
        """Where the runs stand: at the start, now and then, and at the end; with a journal, all that are in it."""

    def on_end(self, error: BaseException | None) -> None:
        """The block was left; `error` is what it raised, or for what the fleet was stopped."""


@runtime_checkable
class FleetInstrumentation(Protocol):
    """An `Instrumentation` that watches fleets as well."""

    def fleet_started(self, start: FleetStart) -> FleetObserver | None:
        """The block of a fleet begins, in the context of whoever entered it. None: this one is not watched."""
        ...


class AttemptObservers:
    """All that watch one attempt. Never raises.

    Args:
        observers: those that the observers of the fleet gave.
        initial_run: the run as it was started.
    """

    def __init__(self, observers: Iterable[AttemptObserver], initial_run: Run) -> None:
        self._observers = list(observers)
        self._initial_run = initial_run
        self._started_at = time.perf_counter()
        self._seconds: float | None = None

    def run_context(self) -> AbstractContextManager[None]:
        """The block in which the runner works."""
        return enter_contexts(self._observers)

    def mark_answered(self) -> None:
        """The runner is done; what follows is no part of the attempt."""
        self._seconds = time.perf_counter() - self._started_at

    def notify_end(self, run: Run, *, is_recorded: bool) -> None:
        """It is over."""
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
    """All that watch one fleet. Never raises.

    Args:
        observers: those that the instrumentations gave.
    """

    def __init__(self, observers: Iterable[FleetObserver]) -> None:
        self._observers = list(observers)
        self._is_ended = False

    @classmethod
    def collect(cls, instrumentations: Iterable[Any], start: FleetStart) -> FleetObservers | None:
        """Start watching; None when nobody wants to."""

        def ask(one: Any) -> FleetObserver | None:
            return one.fleet_started(start) if isinstance(one, FleetInstrumentation) else None

        there = collect_observers(instrumentations, ask)
        return cls(there) if there else None

    def run_context(self) -> AbstractContextManager[None]:
        """The block in which the work of the fleet is started."""
        return enter_contexts(self._observers)

    def start_attempt(self, run: Run) -> AttemptObservers | None:
        """An attempt begins; None when nobody wants to watch it."""
        there = collect_observers(self._observers, lambda one: one.attempt_started(run))
        return AttemptObservers(there, run) if there else None

    def notify_status(self, status: FleetStatus) -> None:
        """Where the runs stand."""
        notify_all(self._observers, lambda one: one.on_status(status))

    def notify_end(self, error: BaseException | None) -> None:
        """The block was left. The first call counts."""
        if not self._is_ended:
            self._is_ended = True
            notify_all(self._observers, lambda one: one.on_end(error), reverse=True)


def collect_fleet_observers(agent: Agent, concurrency: int, budget_usd: float | None) -> FleetObservers | None:
    """Begin to watch a fleet of `agent`, in the context of the caller; None when nobody wants to."""
    try:
        options = agent.options
    except OptionsError:  # whoever asks the agent is told
        return None
    if not options.instrumentation:
        return None
    redact = Redactor(invocation_secrets(render(options, os.environ))).redact
    start = FleetStart(concurrency=concurrency, budget_usd=budget_usd, redact=redact)
    return FleetObservers.collect(options.instrumentation, start)
