"""`Fleet`: runs many prompts at once. Owns how items become runs and how readers receive results.

A journal holds the waiting runs, a `Runner` executes an attempt, and the `Scheduler` starts and ends attempts. The
task that entered the block owns all other tasks.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import anyio
import anyio.abc

from pilothouse.client import Agent, OutputT, default_agent
from pilothouse.errors import Interrupted, SessionClosedError, UsageError
from pilothouse.instrumentation import enter_contexts, notify_all
from pilothouse.options import RetryPolicy
from pilothouse.support import hide_arguments, user_class
from pilothouse_fleet.journals.sqlite import FleetJournalError, SqliteJournal
from pilothouse_fleet.limits import (
    INTERRUPTION_POLICIES,
    STOP_AFTER,
    CircuitBreaker,
    OnInterrupted,
    Rate,
    RateLimiter,
    parse_retry_policy,
    validate_count,
    validate_limits,
    validate_rate,
)
from pilothouse_fleet.observers import collect_fleet_observers
from pilothouse_fleet.progress import Progress, report_progress
from pilothouse_fleet.results import (
    BATCH_SIZE,
    ItemArguments,
    Items,
    OptionsLike,
    ResultBuffer,
    RunArguments,
    Runs,
    RunSubscribers,
    iterate_batches,
)
from pilothouse_fleet.run import FleetStatus, Run, RunState
from pilothouse_fleet.runner import AgentRunner, Runner, WorkspaceRunner, make_runner_context
from pilothouse_fleet.scheduler import Scheduler
from pilothouse_fleet.submission import (
    check_agent_or_runner,
    check_items,
    make_journal,
    make_run_factory,
    unwrap_error,
)
from pilothouse_fleet.workspaces.artifacts import Artifacts
from pilothouse_fleet.workspaces.base import Workspace

T = TypeVar("T")

MIN_LOOK_AHEAD = 32
FINAL_STATUS_SECONDS = 2.0
"""Timeout in seconds for the last status that observers receive at exit; a lost journal is not waited for."""


@user_class
class Fleet:
    """Runs many prompts, a few at a time; use it with `async with`.

    ::

        async with Fleet(agent, concurrency=8, budget_usd=20, journal="runs.db") as fleet:
            async for run in fleet.map(tickets, key="id", prompt=lambda ticket: f"Triage: {ticket.text}"):
                print(run.key, run.text)

    A fleet executes the runs passed to `map`, `gather`, `submit` and `enqueue`; `resume` and `retry_failed` add those
    left in its journal. Leaving the block waits for all of them. Leaving it with an error or by cancellation stops
    the running ones, and a journal keeps them as interrupted.

    A journal keeps every ended run: submitting its key again returns the stored answer. One fleet executes the runs of
    a journal; fleets with `concurrency=0`, also in other processes, may add runs, read results, cancel and queue again
    meanwhile.

    Args:
        agent: its settings apply to all runs; None: the default agent.
        runner: executes attempts; None: queries of `agent`.
        concurrency: maximum number of runs at the same time. 0: this fleet starts none and leaves them to the one that
            executes the journal (see `work`); leaving the block then waits for nothing.
        journal: the path of a file, or a `SqliteJournal`; None: in memory, lost when the block ends.
        budget_usd: nothing is started once all runs together have cost this much, in US dollars. A run is stopped at
            what was left when it started; concurrent runs may together exceed the budget, unless `run_budget_usd` is
            set.
        run_budget_usd: maximum cost of one run. This amount is reserved for each running one, so `budget_usd` holds.
        rate: limits of requests and tokens per minute.
        retry: a number of further attempts, or a `RetryPolicy`: which API failures are retried, and after how long. A
            process that died is retried too. Wrong keys, account limits and usage errors never are.
        on_interrupted: what happens to a run that was interrupted by Ctrl-C or the death of its process: "resume" its
            session, "restart" it, or "fail". Retries after a failure follow it, too.
        look_ahead: how many items of a `map` are read before its reader needs them; default: twice `concurrency`.
        keep_messages: whether results keep all their messages, not only the last one.
        workspace: gives each run its own working directory, such as a `GitWorktree`; None: all use the agent's.
        artifacts: which files of these directories are saved, and where.
        stop_after: the fleet stops when this many runs in a row fail for a reason that affects all runs, such as a
            wrong key: nothing more is started, a journal has those runs queued again, and readers get the error. None:
            never.

    Raises:
        UsageError: a limit that cannot be applied, such as a budget of 0.
        FleetJournalInUseError: on entering: another fleet executes the runs of the journal.
        FleetJournalError: on entering: the journal cannot be used.
    """

    @hide_arguments
    def __init__(
        self,
        agent: Agent | None = None,
        *,
        runner: Runner | None = None,
        concurrency: int = 8,
        journal: str | os.PathLike[str] | SqliteJournal | None = None,
        budget_usd: float | None = None,
        run_budget_usd: float | None = None,
        rate: Rate | None = None,
        retry: RetryPolicy | int | None = 3,
        on_interrupted: OnInterrupted = "resume",
        look_ahead: int | None = None,
        keep_messages: bool = False,
        workspace: Workspace | None = None,
        artifacts: Artifacts | None = None,
        stop_after: int | None = STOP_AFTER,
    ) -> None:
        check_agent_or_runner(agent, runner)
        if on_interrupted not in INTERRUPTION_POLICIES:
            raise UsageError(
                f"on_interrupted is one of {', '.join(map(repr, INTERRUPTION_POLICIES))}, not {on_interrupted!r}"
            )
        concurrency = validate_count("concurrency", concurrency, minimum=0)
        limit = max(MIN_LOOK_AHEAD, 2 * concurrency) if look_ahead is None else validate_count("look_ahead", look_ahead)
        self._journal = make_journal(journal)
        if not concurrency and not self._journal.is_persistent:
            raise UsageError("concurrency=0 leaves all runs to another fleet, which needs a journal that both use")
        self._runner = runner or AgentRunner(agent or default_agent())
        if workspace is not None:
            self._runner = WorkspaceRunner(self._runner, workspace, artifacts)
        elif artifacts is not None:
            raise UsageError("artifacts are files of the directories of runs: give a workspace as well")
        self._subscribers = RunSubscribers(limit, lambda: self._scheduler.wake())
        self._scheduler = Scheduler(
            journal=self._journal,
            runner=self._runner,
            subscribers=self._subscribers,
            concurrency=concurrency,
            retry=parse_retry_policy(retry),
            on_interrupted=on_interrupted,
            keep_messages=keep_messages,
            limits=validate_limits(budget_usd, run_budget_usd),
            limiter=RateLimiter(validate_rate(rate)),
            breaker=CircuitBreaker(
                None if stop_after is None else validate_count("stop_after", stop_after),
                is_requeued=self._journal.is_persistent,
            ),
        )
        self._runner_block = AsyncExitStack()
        self._is_entered = False
        self._tasks: anyio.abc.TaskGroup | None = None
        self._item_count = 0

    # Entering and leaving.

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise SessionClosedError("a fleet is entered once; make a new one")
        self._is_entered = True
        agent = getattr(self._runner, "agent", None)
        agent = agent if isinstance(agent, Agent) else default_agent()
        scheduler = self._scheduler
        scheduler.observers = collect_fleet_observers(agent, scheduler.concurrency, scheduler.limits.budget_usd)
        try:
            await scheduler.open()
            await self._runner_block.enter_async_context(make_runner_context(self._runner))
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._journal.close()
            self._notify_end(error)
            raise
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        with enter_contexts(scheduler.observers):
            self._tasks.start_soon(self._work)
        return self

    async def _work(self) -> None:
        try:
            await self._scheduler.work()
        except Exception as error:
            failed = error
            self._subscribers.fail(lambda: unwrap_error(failed))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        try:
            if error is None:
                self._subscribers.close(_make_left_error)  # runs without a reader are not started
            else:
                self._tasks.cancel_scope.cancel()
            self._scheduler.drain()  # last: it would start again what the cancellation interrupts
            await self._tasks.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            error = unwrap_error(group)
            raise error from None
        finally:
            self._tasks = None
            self._subscribers.fail(_make_left_error)
            with anyio.CancelScope(shield=True):
                try:
                    await self._runner_block.aclose()
                finally:
                    if observers := self._scheduler.observers:
                        with suppress(FleetJournalError), anyio.move_on_after(FINAL_STATUS_SECONDS):
                            status = await self._journal.status()
                            notify_all(observers, lambda one: one.on_status(status))
                        self._notify_end(error or self._scheduler.breaker.error)
                    await self._journal.close()

    def _notify_end(self, error: BaseException | None) -> None:
        notify_all(self._scheduler.observers, lambda one: one.on_end(error), reverse=True)

    def _require_scheduler(self) -> Scheduler:
        if self._tasks is None:
            raise SessionClosedError("a fleet works in its block: async with Fleet(…) as fleet")
        return self._scheduler

    def _require_open(self) -> Scheduler:
        scheduler = self._require_scheduler()
        if scheduler.is_draining:
            raise _make_left_error()
        return scheduler

    # Adding runs.

    @overload
    def map(self, items: Items[T], *, output_type: type[OutputT], **how: Unpack[ItemArguments[T]]) -> Runs[OutputT]: ...
    @overload
    def map(self, items: Items[T], *, output_type: Any = None, **how: Unpack[ItemArguments[T]]) -> Runs[Any]: ...
    def map(
        self,
        items: Items[T],
        *,
        output_type: Any = None,
        **how: Unpack[ItemArguments[T]],
    ) -> Runs[Any]:
        """Run a prompt for each item, and yield each run when it ends.

        Items are read as they are needed, a few in advance; there may be any number of them. Failed runs are yielded
        like all others: check `Run.is_success`.

        Args:
            items: prompts, or objects that have one; sync or async. A plain iterator is advanced in a thread.
            key: the unique key of a run: a function of its item, or the name of a field. Each key is one run, yielded
                once. Default: a number without a journal; with one, a digest of prompt and options, so that equal
                prompts are the same run.
            prompt: where the prompt of an item is, in the same way. Default: the item, or its field "prompt".
            options: options of all runs, or a function of an item; `cwd` and `timeout` are among them.
            output_type: as for `Agent.query`; `Run.result.output` is the value.
            priority: a number, or a function of an item; runs with greater numbers start first.

        Raises:
            UsageError: during iteration: an item without a prompt, a key already used with another prompt, or invalid
                options. Runs added earlier go on.
            BudgetError: during iteration: `budget_usd` is spent.
            Interrupted: during iteration: the fleet was interrupted.
            FleetJournalError: during iteration: the journal cannot be written.
            SessionClosedError: during iteration: another task has left the block of the fleet.
        """
        check_items(items)
        make = self._make_run_factory(output_type, **how)
        return self._make_runs(lambda buffer: self._fill_from_items(buffer, items, make, output_type))

    @overload
    async def gather(
        self,
        items: Items[T],
        *,
        output_type: type[OutputT],
        progress: Progress | bool = False,
        **how: Unpack[ItemArguments[T]],
    ) -> list[Run[OutputT]]: ...
    @overload
    async def gather(
        self,
        items: Items[T],
        *,
        output_type: Any = None,
        progress: Progress | bool = False,
        **how: Unpack[ItemArguments[T]],
    ) -> list[Run[Any]]: ...
    async def gather(
        self,
        items: Items[T],
        *,
        output_type: Any = None,
        progress: Progress | bool = False,
        **how: Unpack[ItemArguments[T]],
    ) -> list[Run]:
        """Run a prompt for each item as `map` does, and return all runs in the order of the items.

        Args:
            items: as for `map`, and so are the others.
            output_type: as for `map`.
            progress: called with each run that ends, how many have ended, and how many there are (None: not known).
                True: a line with these numbers on standard error, if that is a terminal.
        """
        check_items(items)
        make = self._make_run_factory(output_type, **how)
        order: list[str] = []

        def make_and_record(item: T) -> Run:
            run = make(item)
            order.append(run.key)
            return run

        runs = self._make_runs(lambda buffer: self._fill_from_items(buffer, items, make_and_record, output_type))
        ended: dict[str, Run] = {}
        with report_progress(progress, items) as report:
            async for run in runs:
                ended[run.key] = run
                report(run)
        return [ended[name] for name in order]

    @overload
    async def submit(self, prompt: Any, *, output_type: type[OutputT], **how: Unpack[RunArguments]) -> Run[OutputT]: ...
    @overload
    async def submit(self, prompt: Any, *, output_type: Any = None, **how: Unpack[RunArguments]) -> Run[Any]: ...
    async def submit(
        self,
        prompt: Any,
        *,
        key: str | int | None = None,
        options: OptionsLike = None,
        output_type: Any = None,
        priority: int = 0,
    ) -> Run:
        """Add one prompt without waiting; `wait` returns its end. Arguments as for `map`.

        Returns:
            The current state of the run: queued, or already ended if the journal has it.
        """
        key_field = None if key is None else "key"
        make = self._make_run_factory(output_type, key=key_field, prompt="prompt", options=options, priority=priority)
        run = make({"key": key, "prompt": prompt})
        if not self._journal.is_persistent:
            self._subscribers.unclaimed_runs[run.key] = None
        return (await self._add([run], None, output_type))[0]

    async def enqueue(
        self,
        items: Items[T],
        **how: Unpack[ItemArguments[T]],
    ) -> int:
        """Add all prompts to the journal; `resume` yields their ends. Arguments as for `map`.

        Returns:
            The number of items, including those already in the journal.
        """
        check_items(items)
        self._require_scheduler()
        make = self._make_run_factory(**how)
        count = 0

        async def get_batch_size() -> int:
            return BATCH_SIZE

        async with aclosing(iterate_batches(items, get_batch_size)) as taken:
            async for batch in taken:
                await self._add([make(item) for item in batch], None, None)
                count += len(batch)
        return count

    async def wait(self, run: Run[OutputT] | str) -> Run[OutputT]:
        """Wait for the end of a run.

        Raises:
            UsageError: no run has this key, or the run was dropped: without a journal an end is returned once.
            BudgetError, Interrupted, FleetJournalError: as for `map`.
        """
        key = run if isinstance(run, str) else run.key
        self._require_scheduler()
        buffer = self._subscribers.make_buffer()
        buffer.is_parked = True  # to stop waiting does not stop the run
        self._subscribers.subscribe(buffer)
        self._subscribers.expect(key, buffer, None)
        buffer.mark_filled()
        try:
            there = self._subscribers.unclaimed_runs.get(key) or await self._journal.get(key)
            if there is not None and there.is_ended:
                self._subscribers.deliver_known(there)
            else:
                self._check_running()
                if there is None:
                    raise UsageError(f"there is no run {key!r} in this fleet")
            ended = await buffer.next()
        finally:
            buffer.is_closed = True
            self._subscribers.unsubscribe(key, buffer)
        self._subscribers.unclaimed_runs.pop(key, None)
        assert ended is not None
        return ended

    def resume(self) -> Runs:
        """Continue all unfinished runs of the journal, and yield each run when it ends."""
        return self._make_runs(self._requeue, wants_all=True)

    def retry_failed(self) -> Runs[Any]:
        """Run the failed runs again, and yield each run when it ends."""
        return self._make_runs(partial(self._requeue, failed=True), wants_all=True)

    def work(self, *, until_empty: bool = False) -> Runs:
        """Execute all runs of the journal, including those that other processes add later; yield each when it ends.

        It continues until the loop is left, or the block is cancelled or interrupted. Leaving the loop starts nothing
        more and lets running ones end; the rest stays queued.

        Args:
            until_empty: stop when nothing waits or runs.

        Raises:
            UsageError: there is no journal, or `concurrency` is 0.
            BudgetError, Interrupted, FleetJournalError: during iteration: as for `map`.
        """
        if not self._journal.is_persistent:
            raise UsageError("work() executes the runs of a journal, and this fleet has none")
        if not self._scheduler.concurrency:
            raise UsageError("work() needs a concurrency of at least 1; with 0 a fleet starts nothing")
        return self._make_runs(partial(self._requeue, until_empty=until_empty), wants_all=True, is_worker=True)

    # Status and stopping.

    async def status(self) -> FleetStatus:
        """Return the number of runs by state; with a journal, of all that are in it."""
        return await self._require_scheduler().status()

    @property
    def running(self) -> list[Run]:
        """The runs that this process executes now, oldest first."""
        return [active.run for active in self._require_scheduler().active.values()]

    async def rows(self, state: RunState | None = None, *, after: int = 0, limit: int = 200) -> list[Run]:
        """List runs of the journal in the order they were added; without a journal, those that have not ended.

        Args:
            state: only those in this state.
            after: only those with a greater `Run.number`; pass that of the last run to get the next page.
            limit: maximum number of runs.
        """
        self._require_scheduler()
        return await self._journal.rows(state, after, limit)

    async def cancel(self, *keys: str) -> None:
        """Cancel the runs with these keys, or all without keys.

        Running ones are stopped, queued ones are not started. All of them end as "cancelled".
        """
        scheduler = self._require_scheduler()
        for run in await self._journal.cancel(keys or None, scheduler.now()):
            self._subscribers.deliver(run)
        scheduler.stop(keys or None, "cancelled")
        scheduler.wake()

    async def interrupt(self) -> None:
        """Start nothing more, and stop running attempts gracefully; a journal keeps them as interrupted.

        Returns when nothing runs. Readers of `map` and the like get the ended runs, then `Interrupted`.
        """
        await self._require_scheduler().interrupt()
        try:
            left = (await self._journal.status()).left
        except FleetJournalError:
            if self._tasks is None:
                return  # the block was left meanwhile, which closed the journal
            raise
        self._subscribers.fail(lambda: Interrupted(f"the fleet was interrupted; {left} runs are left"))

    # Internals.

    def _make_runs(
        self, fill: Callable[[ResultBuffer], Awaitable[None]], *, wants_all: bool = False, is_worker: bool = False
    ) -> Runs:
        def begin(buffer: ResultBuffer) -> None:
            self._require_open()
            self._check_running()
            assert self._tasks is not None
            buffer.wants_all, buffer.is_worker = wants_all, is_worker
            self._subscribers.subscribe(buffer)
            self._tasks.start_soon(self._fill, buffer, fill)

        return Runs(self._subscribers.make_buffer(), begin)

    async def _fill(self, buffer: ResultBuffer, fill: Callable[[ResultBuffer], Awaitable[None]]) -> None:
        try:
            await fill(buffer)
        except Exception as error:  # noqa: BLE001 - raised to the reader of the runs
            buffer.fail(error)

    def _make_run_factory(self, output_type: Any = None, **how: Any) -> Callable[[Any], Run]:
        """Make the function that converts an item to a run; arguments as for `map`."""
        make_run = make_run_factory(output_type, is_persistent=self._journal.is_persistent, **how)

        def make(item: Any) -> Run:
            self._item_count += 1
            return make_run(item, self._item_count, self._require_open().now())

        return make

    async def _fill_from_items(
        self, buffer: ResultBuffer, items: Items[T], make_run: Callable[[T], Run], output_type: Any
    ) -> None:
        """Add items as fast as `buffer` is read."""
        async with aclosing(iterate_batches(items, buffer.wait_for_space)) as taken:
            async for batch in taken:
                await self._add([make_run(item) for item in batch], buffer, output_type)
        buffer.mark_filled()

    async def _add(self, runs: list[Run], buffer: ResultBuffer | None, output_type: Any) -> list[Run]:
        """Add runs that `buffer` waits for; return each in its current state."""
        for run in runs:
            self._subscribers.expect(run.key, buffer, output_type)
        try:
            there = await self._journal.add(runs)
        except BaseException:
            for run in runs:
                self._subscribers.withdraw(run.key, buffer)
            raise
        for run in there:
            if run.is_ended:
                self._subscribers.deliver_known(run)
        self._scheduler.wake()
        return there

    async def _requeue(self, buffer: ResultBuffer, *, failed: bool = False, until_empty: bool = True) -> None:
        """Request all unfinished, or all failed, runs; `until_empty`: `buffer` is filled when none is left."""
        await self._journal.requeue(failed=failed)
        buffer.is_draining = until_empty
        self._scheduler.wake()

    def _check_running(self) -> None:
        scheduler = self._require_scheduler()
        if scheduler.breaker.error is not None:
            raise scheduler.breaker.make_error()
        if scheduler.is_stopping:
            raise Interrupted("the fleet was interrupted")


def _make_left_error() -> SessionClosedError:
    return SessionClosedError("the block of the fleet was left: it starts no further runs")
