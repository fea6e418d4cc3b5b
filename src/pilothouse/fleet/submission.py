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
"""Items of a list that are put in together when nobody waits for them."""
POLL_SECONDS = 1.0
"""Between two looks of a worker for what others have put into the journal."""


class Submitter:
    """The way in.

    Args:
        journal: where the runs are put.
        subscribers: who is told of those that have ended already.
        now: the time, in Unix seconds.
        wake: called when something was put in.
        run_policy: told of what is put in here.
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
        """What makes a run of an item; arguments as for `Fleet.map`.

        Raises:
            UsageError: something that cannot be.
        """
        asking = ItemMapping(key, prompt, options, output_type, priority, is_persistent=self._journal.is_persistent)

        def make(item: Any) -> Run:
            self._number += 1
            return asking.make_run(item, self._number, self._now())

        return make

    async def fill(self, buffer: ResultBuffer, items: Items[T], make_run: Callable[[T], Run], output_type: Any) -> None:
        """Put items in as quickly as `feed` is read."""
        async with aclosing(iterate_batches(items, buffer.wait_for_space)) as taken:
            async for batch in taken:
                await self.add([make_run(item) for item in batch], buffer, output_type)
        buffer.mark_filled()

    async def enqueue(self, items: Items[T], make_run: Callable[[T], Run]) -> int:
        """Put all items in; how many there were."""
        count = 0

        async def room() -> int:
            return ENQUEUE_BATCH_SIZE

        async with aclosing(iterate_batches(items, room)) as taken:
            async for batch in taken:
                await self.add([make_run(item) for item in batch], None, None)
                count += len(batch)
        return count

    async def add(self, runs: list[Run], buffer: ResultBuffer | None, output_type: Any) -> list[Run]:
        """Put runs in that `feed` waits for; each as it stands now."""
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
        """Want everything that is left, or what has failed; `feed` is told of every end."""
        buffer.scope = "all"
        self._run_policy.trusts_journal = True
        await self._journal.requeue(failed=failed)
        buffer.is_draining = True
        self._wake()

    async def work(self, buffer: ResultBuffer, *, until_empty: bool) -> None:
        """Want whatever stands in the journal, now and later, until `feed` is read no more."""
        while not buffer.is_finished:
            await self._journal.requeue(failed=False)  # what others have put in, and do not wait for any more
            buffer.is_draining = until_empty
            self._wake()
            with anyio.move_on_after(POLL_SECONDS):
                await buffer.wait_closing()

    async def find_finished_scopes(self) -> Collection[str]:
        """Which feeds have it all, by what they hear: nothing runs anywhere, and nothing waits that counts for them."""
        due = await self._journal.next_due()  # before and after: meanwhile one may have been given out, or put back
        status = await self._journal.status()
        if not status.left:
            return ("own", "all")
        is_idle = due is None and not status.running and not status.interrupted
        return ("all",) if is_idle and await self._journal.next_due() is None else ()


POSTGRES_SCHEMES = ("postgresql", "postgres")


def validate_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """A whole number.

    Raises:
        UsageError: it is none, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{name} is a whole number of at least {minimum}, not {value!r}")
    return value


def check_agent_or_runner(agent: Any, runner: Any) -> None:
    """That an agent, or in its place a runner, can do the work.

    Raises:
        UsageError: they cannot.
    """
    if agent is not None and not isinstance(agent, Agent):
        raise UsageError(f"expected an Agent, got {type(agent).__name__}")
    if runner is not None and (agent is not None or not hasattr(runner, "run")):
        raise UsageError("runner: an object with the method of a Runner, in the place of an agent")


def make_journal(journal: Any) -> Journal:
    """The journal that `journal=` of a fleet stands for: None is one in memory, text is a path or an address.

    Raises:
        UsageError: it stands for none.
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
    """A journal that one may look into without working on it."""

    async def open_for_reading(self) -> None:
        """Open it for `status`, `get` and `rows`; nobody notices, and nothing changes.

        Raises:
            FleetJournalError: it is not there, or cannot be used.
        """
        ...


def make_readable_journal(address: str) -> ReadableJournal:
    """The journal at a path or an address, to look at it.

    Raises:
        UsageError: there is no such kind of journal.
    """
    return cast("ReadableJournal", make_journal(address))  # all that have an address can be looked at


def unwrap_error(error: BaseException) -> Exception:
    """The error itself, out of the groups that hold nothing else; a journal that is lost is told of once."""
    found = _flatten_group(error)
    is_one = len(found) == 1 or all(isinstance(one, FleetJournalError) for one in found)
    return cast("Exception", found[0] if is_one else error)


def _flatten_group(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [one for part in group.exceptions for one in _flatten_group(part)]
