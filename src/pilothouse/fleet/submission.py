"""Puts the runs of callers into the journal, and validates the arguments of a `Fleet`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

import anyio

from pilothouse.client import Agent
from pilothouse.errors import UsageError
from pilothouse.fleet.items import ItemMapping
from pilothouse.fleet.journals.base import FleetJournalError, Journal
from pilothouse.fleet.journals.memory import MemoryJournal
from pilothouse.fleet.journals.postgres import PostgresJournal
from pilothouse.fleet.journals.sqlite import SqliteJournal
from pilothouse.fleet.results import Items, ResultBuffer, RunSubscribers, iterate_batches
from pilothouse.fleet.run import Run
from pilothouse.fleet.run_policy import RunOptionsPolicy

T = TypeVar("T")

ENQUEUE_BATCH_SIZE = 500
"""Number of list items that are added together when no reader waits."""
POLL_SECONDS = 1.0
"""Interval in seconds at which a worker looks for new runs in the journal."""


class Submitter:
    """Adds runs to the journal.

    Args:
        journal: the journal.
        subscribers: receive runs that have already ended.
        now: returns the time, in Unix seconds.
        wake: called after runs were added.
        run_policy: registers the runs added here.
    """

    def __init__(
        self,
        journal: Journal,
        subscribers: RunSubscribers,
        now: Callable[[], float],
        wake: Callable[[], object],
        run_policy: RunOptionsPolicy,
    ) -> None:
        self._journal = journal
        self._subscribers = subscribers
        self._now = now
        self._wake = wake
        self._run_policy = run_policy
        self._number = 0

    def make_run_factory(
        self, key: Any, prompt: Any, options: Any, output_type: Any, priority: Any
    ) -> Callable[[Any], Run]:
        """Make the function that converts an item to a run; arguments as for `Fleet.map`.

        Raises:
            UsageError: an argument is not valid.
        """
        asking = ItemMapping(key, prompt, options, output_type, priority, is_persistent=self._journal.is_persistent)

        def make(item: Any) -> Run:
            self._number += 1
            return asking.make_run(item, self._number, self._now())

        return make

    async def fill(self, buffer: ResultBuffer, items: Items[T], make_run: Callable[[T], Run], output_type: Any) -> None:
        """Add items as fast as `buffer` is read."""
        async with aclosing(iterate_batches(items, buffer.wait_for_space)) as taken:
            async for batch in taken:
                await self.add([make_run(item) for item in batch], buffer, output_type)
        buffer.mark_filled()

    async def enqueue(self, items: Items[T], make_run: Callable[[T], Run]) -> int:
        """Add all items; return their number."""
        count = 0

        async def room() -> int:
            return ENQUEUE_BATCH_SIZE

        async with aclosing(iterate_batches(items, room)) as taken:
            async for batch in taken:
                await self.add([make_run(item) for item in batch], None, None)
                count += len(batch)
        return count

    async def add(self, runs: list[Run], buffer: ResultBuffer | None, output_type: Any) -> list[Run]:
        """Add runs that `buffer` waits for; return each in its current state."""
        for run in runs:
            self._subscribers.expect(run.key, buffer, output_type)
        self._run_policy.register_own(runs)
        try:
            there = await self._journal.add(runs)
        except BaseException:
            for run in runs:
                self._subscribers.unsubscribe(run.key, buffer)
            raise
        for run in there:
            if run.is_ended:
                self._subscribers.deliver(run)
        self._wake()
        return there

    async def requeue_all(self, buffer: ResultBuffer, *, failed: bool) -> None:
        """Requeue all unfinished or all failed runs; `buffer` receives every end."""
        buffer.scope = "all"
        self._run_policy.trusts_journal = True
        await self._journal.requeue(failed=failed)
        buffer.is_draining = True
        self._wake()

    async def work(self, buffer: ResultBuffer, *, until_empty: bool) -> None:
        """Requeue all unfinished runs of the journal, now and periodically, until `buffer` is finished."""
        while not buffer.is_finished:
            await self._journal.requeue(failed=False)  # runs of other processes that stopped waiting
            buffer.is_draining = until_empty
            self._wake()
            with anyio.move_on_after(POLL_SECONDS):
                await buffer.wait_closing()

    async def find_finished_scopes(self) -> Collection[str]:
        """Return the scopes that are finished: nothing runs in any process, and no run of that scope waits."""
        due = await self._journal.next_due()  # checked before and after: meanwhile a run may be leased or requeued
        status = await self._journal.status()
        if not status.left:
            return ("own", "all")
        is_idle = due is None and not status.running and not status.interrupted
        return ("all",) if is_idle and await self._journal.next_due() is None else ()


POSTGRES_SCHEMES = ("postgresql", "postgres")


def validate_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Validate a whole number.

    Raises:
        UsageError: `value` is not a whole number, or is less than `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{name} is a whole number of at least {minimum}, not {value!r}")
    return value


def check_agent_or_runner(agent: Any, runner: Any) -> None:
    """Check that an agent, or a runner instead of it, can execute runs.

    Raises:
        UsageError: neither can, or both are given.
    """
    if agent is not None and not isinstance(agent, Agent):
        raise UsageError(f"expected an Agent, got {type(agent).__name__}")
    if runner is not None and (agent is not None or not hasattr(runner, "run")):
        raise UsageError("runner: an object with the method of a Runner, in the place of an agent")


def make_journal(journal: Any) -> Journal:
    """Make the journal for the `journal` argument of a fleet: None: in memory; text: a path or an address.

    Raises:
        UsageError: the value is not a journal.
    """
    if journal is None:
        return MemoryJournal()
    if isinstance(journal, str | os.PathLike):
        scheme, colon, _ = str(journal).partition("://")  # pyright: ignore[reportUnknownArgumentType]
        if colon and scheme in POSTGRES_SCHEMES:
            return PostgresJournal(str(journal))  # pyright: ignore[reportUnknownArgumentType]
        if colon:
            raise UsageError(f"journal: a path, postgresql://… or a Journal; there is none for {scheme:.20}://…")
        return SqliteJournal(journal)  # pyright: ignore[reportUnknownArgumentType]
    if not hasattr(journal, "lease"):
        raise UsageError(f"journal: expected a path or a Journal, got {type(journal).__name__}")
    return journal


class ReadableJournal(Journal, Protocol):
    """A journal that can also be opened for reading only."""

    async def open_for_reading(self) -> None:
        """Open the journal for `status`, `get` and `rows`, without any effect on it or its users.

        Raises:
            FleetJournalError: the journal does not exist or cannot be used.
        """
        ...


def make_readable_journal(address: str) -> ReadableJournal:
    """Make the journal at a path or an address, for reading.

    Raises:
        UsageError: there is no such kind of journal.
    """
    return cast("ReadableJournal", make_journal(address))  # every journal with an address is readable


def unwrap_error(error: BaseException) -> Exception:
    """Return the only error of nested groups, or one of several journal errors; otherwise the group itself."""
    found = _flatten_group(error)
    is_one = len(found) == 1 or all(isinstance(one, FleetJournalError) for one in found)
    return cast("Exception", found[0] if is_one else error)


def _flatten_group(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [one for part in group.exceptions for one in _flatten_group(part)]
