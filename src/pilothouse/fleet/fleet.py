"""`Fleet`: many runs at once. Owns how items become runs, and who is told when one has ended.

What waits is in a `Journal`, the work of an attempt is done by a `Runner`, and the `Desk` starts and ends attempts. One
task owns all the others: the one that entered the block.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import anyio
import anyio.abc
from msgspec.structs import replace

from pilothouse.client import Agent, default_agent
from pilothouse.errors import Interrupted, SessionClosedError, UsageError
from pilothouse.fleet.asking import Asking
from pilothouse.fleet.deciding import POLICIES, Budget, OnInterrupted, read_policy
from pilothouse.fleet.feeding import Feed, Items, Of, Runs, batches
from pilothouse.fleet.journal import Journal
from pilothouse.fleet.memory_journal import MemoryJournal
from pilothouse.fleet.rate import Rate, RateLimiter, checked_rate
from pilothouse.fleet.readers import Readers
from pilothouse.fleet.run import FleetStatus, Run, RunState
from pilothouse.fleet.runner import AgentRunner, Runner
from pilothouse.fleet.sqlite_journal import SqliteJournal
from pilothouse.fleet.working import Desk, Terms
from pilothouse.options import Options, RetryPolicy

T = TypeVar("T")
GivenOptions = Options | Mapping[str, Any] | None

MIN_LOOK_AHEAD = 32
PACE_ENDS = 200
"""Of so many ends the pace is reckoned."""


class Fleet:
    """Runs many prompts, a few at a time; use it with `async with`.

    ::

        async with Fleet(agent, concurrency=8, budget_usd=20, journal="runs.db") as fleet:
            async for run in fleet.map(tickets, key="id", prompt=lambda ticket: f"Triage: {ticket.text}"):
                print(run.key, run.text)

    It runs what it is asked for: what `map`, `gather`, `submit` and `enqueue` give it, and with `resume` and
    `retry_failed` what is left in its journal. Leaving the block waits for all that; leaving it with an error, or by
    cancellation, stops what runs, which a journal keeps as interrupted.

    With a journal, every run that has ended is kept there: to ask for its key again gives the answer that is kept. The
    processes of one machine may share a journal; then each of them does the runs of all, so they should have the same
    agent. `concurrency` and `rate` hold in each process, `budget_usd` for the whole journal.

    Args:
        agent: whose settings hold for all runs; None: the default agent.
        runner: what does the work of an attempt; None: queries of `agent`.
        concurrency: how many run at the same time.
        journal: a path, or a `Journal`; None: in memory, and gone with the block.
        budget_usd: nothing is started once all runs together have cost that much, in US dollars. A run is stopped at
            what was left when it started; so what several spend at the same time may pass it, unless `run_budget_usd`
            is set.
        run_budget_usd: what one run may cost. As much is set aside for each one that runs, so `budget_usd` holds.
        rate: limits of requests and tokens a minute.
        retry: a number of further attempts, or a `RetryPolicy`: which failures of the API are tried again, and after
            how long. A child that died is tried again too. Keys, limits of the account and mistakes never are.
        on_interrupted: what becomes of a run that was stopped on the way, by Ctrl-C or the death of its process:
            "resume" its session, "restart" it, or "fail". A further attempt after a failure follows it, too.
        look_ahead: how many items of a `map` are taken ahead of what its reader has; default: twice `concurrency`.
        keep_messages: whether answers have all their messages, and not the closing one alone.

    Raises:
        UsageError: a limit that cannot be kept, such as a budget of 0.
    """

    def __init__(
        self,
        agent: Agent | None = None,
        *,
        runner: Runner | None = None,
        concurrency: int = 8,
        journal: str | os.PathLike[str] | Journal | None = None,
        budget_usd: float | None = None,
        run_budget_usd: float | None = None,
        rate: Rate | None = None,
        retry: RetryPolicy | int | None = 3,
        on_interrupted: OnInterrupted = "resume",
        look_ahead: int | None = None,
        keep_messages: bool = False,
    ) -> None:
        if agent is not None and not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"expected an Agent, got {type(agent).__name__}")
        if runner is not None and (agent is not None or not hasattr(runner, "run")):
            raise UsageError("runner: an object with the method of a Runner, in the place of an agent")
        if on_interrupted not in POLICIES:
            raise UsageError(f"on_interrupted is one of {', '.join(map(repr, POLICIES))}, not {on_interrupted!r}")
        concurrency = _count("concurrency", concurrency)
        ahead = max(MIN_LOOK_AHEAD, 2 * concurrency) if look_ahead is None else _count("look_ahead", look_ahead)
        self._terms = Terms(concurrency, read_policy(retry), on_interrupted, keep_messages)
        self._budget = Budget(budget_usd, run_budget_usd)
        self._limiter = RateLimiter(checked_rate(rate))
        self._journal = _journal(journal)
        self._runner = runner or AgentRunner(agent or default_agent())
        self._desk: Desk | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._readers = Readers(ahead, self._wake)
        self._ends: deque[float] = deque(maxlen=PACE_ENDS)
        self._number = 0

    # Its life.

    async def __aenter__(self) -> Self:
        if self._desk is not None:
            raise SessionClosedError("a fleet is entered once; make a new one")
        self._desk = Desk(
            self._journal,
            self._runner,
            self._terms,
            self._budget,
            self._limiter,
            output_type_of=self._readers.output_type,
            on_end=self._ended,
            on_still=self._still,
            may_start=self._may_start,
        )
        await self._desk.open()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._work, self._desk)
        return self

    async def _work(self, desk: Desk) -> None:
        try:
            await desk.work()
        except Exception as error:
            failed = error
            self._readers.fail(lambda: _only(failed))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        try:
            if error is None:
                await self._let_go()
            else:
                self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            raise _only(group) from None
        finally:
            self._tasks = None
            with anyio.CancelScope(shield=True):
                await self._journal.close()

    async def _let_go(self) -> None:
        """The block was left in peace: what nobody reads any more is not begun."""
        self._readers.close()
        self._working().drain()

    def _working(self) -> Desk:
        if self._desk is None or self._tasks is None:
            raise SessionClosedError("a fleet works in its block: async with Fleet(…) as fleet")
        return self._desk

    # Asking.

    def map(
        self,
        items: Items[T],
        *,
        key: Of[T] | str | None = None,
        prompt: Of[T] | str | None = None,
        options: Of[T] | GivenOptions = None,
        output_type: Any = None,
        priority: Of[T] | int = 0,
    ) -> Runs:
        """Run a prompt for each item, and give the runs as they end.

        Items are taken as they are needed, a few ahead; there may be any number of them. A run that has failed is given
        like every other: look at `Run.is_success`.

        Args:
            items: prompts, or things that have one; sync or async. A plain iterator is asked in a thread.
            key: the name of a run, by a function of its item, or by the name of a field. One key is one run, given
                once. Default: without a journal a number; with one a digest of prompt and options, so that the same
                prompt is the same run.
            prompt: where the prompt of an item is, in the same way. Default: the item, or its field "prompt".
            options: for all of them, or a function of an item; `cwd` and `timeout` are among them.
            output_type: as for `Agent.query`; `Run.result.output` is the value.
            priority: those with the greater number are started first; a number, or a function of an item.

        Raises:
            UsageError: while it is read: an item without a prompt, a key that is there with another prompt, options
                that cannot work. What was given before goes on.
            BudgetError: while it is read: `budget_usd` is spent.
            Interrupted: while it is read: the fleet was interrupted.
            FleetJournalError: while it is read: the journal cannot be written.
        """
        make = self._maker(key, prompt, options, output_type, priority)
        return self._runs(lambda feed: self._fill(feed, items, make, output_type))

    async def gather(
        self,
        items: Items[T],
        *,
        key: Of[T] | str | None = None,
        prompt: Of[T] | str | None = None,
        options: Of[T] | GivenOptions = None,
        output_type: Any = None,
        priority: Of[T] | int = 0,
    ) -> list[Run]:
        """As `map`, for a list: all runs, in the order of the items."""
        make = self._maker(key, prompt, options, output_type, priority)
        order: list[str] = []

        def noted(item: T) -> Run:
            run = make(item)
            order.append(run.key)
            return run

        runs = self._runs(lambda feed: self._fill(feed, items, noted, output_type))
        ended = {run.key: run async for run in runs}
        return [ended[name] for name in order]

    async def submit(
        self,
        prompt: Any,
        *,
        key: str | int | None = None,
        options: GivenOptions = None,
        output_type: Any = None,
        priority: int = 0,
    ) -> Run:
        """Put one prompt in, and go on; `wait` gives its end. Arguments as for `map`.

        Returns:
            The run as it stands: queued, or ended before if the journal has it.
        """
        make = self._maker(None if key is None else "key", "prompt", options, output_type, priority)
        run = make({"key": key, "prompt": prompt})
        if not self._journal.remembers:
            self._readers.kept[run.key] = None
        return (await self._add([run], None, output_type))[0]

    async def enqueue(
        self,
        items: Items[T],
        *,
        key: Of[T] | str | None = None,
        prompt: Of[T] | str | None = None,
        options: Of[T] | GivenOptions = None,
        priority: Of[T] | int = 0,
    ) -> int:
        """Put many prompts into the journal, as many as there are; `resume` gives their ends. Arguments as for `map`.

        Returns:
            How many were put in, those that were there included.
        """
        self._working()
        make = self._maker(key, prompt, options, None, priority)
        count = 0

        async def room() -> int:
            return 500

        async with aclosing(batches(items, room)) as taken:
            async for batch in taken:
                await self._add([make(item) for item in batch], None, None)
                count += len(batch)
        return count

    async def wait(self, run: Run | str) -> Run:
        """Wait for the end of a run.

        Raises:
            UsageError: there is none of that key, or it was forgotten: without a journal an end is told once.
            BudgetError, Interrupted, FleetJournalError: as for `map`.
        """
        key = run if isinstance(run, str) else run.key
        self._working()
        feed = self._readers.feed()
        self._readers.join(feed)
        self._readers.expect(key, feed, None)
        feed.fed()
        there = self._readers.kept.get(key) or await self._journal.get(key)
        if there is None:
            self._readers.drop(key, feed)
            raise UsageError(f"there is no run {key!r} in this fleet")
        if there.is_ended:
            self._readers.kept.pop(key, None)
            self._readers.tell(there)
        try:
            ended = await feed.next()
        finally:
            feed.is_closed = feed.is_parked = True  # to wait no more does not stop it
        assert ended is not None
        return ended

    def resume(self) -> Runs:
        """Go on with everything that is left in the journal, and give every run as it ends."""
        return self._runs(lambda feed: self._everything(feed, failed=False))

    def retry_failed(self) -> Runs:
        """Run again what has failed, and give every run as it ends."""
        return self._runs(lambda feed: self._everything(feed, failed=True))

    # Looking, and stopping.

    async def status(self) -> FleetStatus:
        """Where the runs stand; with a journal, all that are in it."""
        desk = self._working()
        status = await self._journal.status()
        if len(self._ends) < 2 or desk.now() <= self._ends[0]:
            return status
        pace = (len(self._ends) - 1) / (desk.now() - self._ends[0])
        return replace(status, runs_per_minute=pace * 60, eta_seconds=status.left / pace)

    @property
    def running(self) -> list[Run]:
        """What runs in this process, the longest first."""
        return [active.run for active in self._working().active.values()]

    async def rows(self, state: RunState | None = None, *, after: int = 0, limit: int = 200) -> list[Run]:
        """Runs of the journal in the order in which they were added; without a journal, those that have not ended.

        Args:
            state: only those in this state.
            after: only those with a greater `Run.number`: that of the last one gives the next page.
            limit: at most so many.
        """
        self._working()
        return await self._journal.rows(state, after, limit)

    async def cancel(self, *keys: str) -> None:
        """Cancel runs, without keys all: what runs is stopped, what waits is not started. They end as "cancelled"."""
        desk = self._working()
        for run in await self._journal.cancel(keys or None, desk.now()):
            self._readers.tell(run)
        desk.stop(keys or None, "cancelled")
        desk.wake()

    async def interrupt(self) -> None:
        """Start nothing any more, and stop what runs in order; a journal keeps it as interrupted.

        Returns when nothing runs. Those who read `map` and the like get what has ended, then `Interrupted`.
        """
        await self._working().interrupt()
        left = (await self._journal.status()).left
        self._readers.fail(lambda: Interrupted(f"the fleet was interrupted; {left} runs are left"))

    # What is behind.

    def _maker(self, key: Any, prompt: Any, options: Any, output_type: Any, priority: Any) -> Callable[[Any], Run]:
        asking = Asking(key, prompt, options, output_type, priority, kept=self._journal.remembers)

        def make(item: Any) -> Run:
            self._number += 1
            return asking.run(item, self._number, self._working().now())

        return make

    def _runs(self, fill: Callable[[Feed], Awaitable[None]]) -> Runs:
        def begin(feed: Feed) -> None:
            if self._working().is_stopping:
                raise Interrupted("the fleet was interrupted")
            assert self._tasks is not None
            self._readers.join(feed)
            self._tasks.start_soon(self._filled, feed, fill)

        return Runs(self._readers.feed(), begin)

    async def _filled(self, feed: Feed, fill: Callable[[Feed], Awaitable[None]]) -> None:
        try:
            await fill(feed)
        except Exception as error:  # noqa: BLE001 - raised where the runs are read
            feed.fail(error)

    async def _fill(self, feed: Feed, items: Items[T], make: Callable[[T], Run], output_type: Any) -> None:
        async with aclosing(batches(items, feed.room)) as taken:
            async for batch in taken:
                await self._add([make(item) for item in batch], feed, output_type)
        feed.fed()

    async def _everything(self, feed: Feed, *, failed: bool) -> None:
        feed.knows_all = True
        await self._journal.revive(failed=failed)
        feed.is_revived = True
        self._working().wake()

    async def _add(self, runs: list[Run], feed: Feed | None, output_type: Any) -> list[Run]:
        for run in runs:
            self._readers.expect(run.key, feed, output_type)
        try:
            there = await self._journal.add(runs)
        except BaseException:
            for run in runs:
                self._readers.drop(run.key, feed)
            raise
        for run in there:
            if run.is_ended:
                self._readers.tell(run)
        self._wake()
        return there

    def _ended(self, run: Run) -> None:
        self._ends.append(self._working().now())
        self._readers.tell(run)

    def _wake(self) -> None:
        if self._desk is not None:
            self._desk.wake()

    async def _may_start(self) -> bool:
        await self._readers.forget(self._journal.park)
        return self._readers.have_room

    def _still(self, is_poor: bool) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._say_still, is_poor)

    async def _say_still(self, is_poor: bool) -> None:
        """Nothing runs here, and nothing is due: those who wait for everything have it, unless others still work."""
        waiting = self._readers.of_all
        if is_poor:
            left = (await self._journal.status()).left
            self._readers.fail(lambda: self._budget.error(left))
        elif waiting and await self._is_all_done():
            await self._working().hear_of_others()
            for feed in waiting:
                feed.fed()

    async def _is_all_done(self) -> bool:
        """Whether nothing runs anywhere, and nothing that is wanted waits."""
        return not (await self._journal.status()).running and await self._journal.next_due() is None


def _only(error: BaseException) -> Exception:
    """The error itself, out of the groups that hold nothing else."""
    while isinstance(error, BaseExceptionGroup):
        parts = cast("tuple[BaseException, ...]", error.exceptions)
        if len(parts) != 1:
            break
        error = parts[0]
    return cast("Exception", error)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is a whole number of at least 1, not {value!r}")
    return value


def _journal(given: Any) -> Journal:
    if given is None:
        return MemoryJournal()
    if isinstance(given, str | os.PathLike):
        if "://" in str(given):  # pyright: ignore[reportUnknownArgumentType]
            raise UsageError("journal: a path, or an object with the methods of a Journal; there is none for addresses")
        return SqliteJournal(given)  # pyright: ignore[reportUnknownArgumentType]
    if not hasattr(given, "lease"):
        raise UsageError(f"journal: expected a path or a Journal, got {type(given).__name__}")
    return given
