"""The blocking `Fleet`: many runs on the portal's event loop, read from blocking code.

Owns the task that holds the asynchronous fleet during a `with` block. `pilothouse_fleet` does everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from pilothouse import client
from pilothouse.client import OutputT, QueryResult
from pilothouse.support import copy_method_signature, get_portal, make_blocking, user_class
from pilothouse.sync import Agent
from pilothouse_fleet import Fleet as AsyncFleet
from pilothouse_fleet import Run, durable
from pilothouse_fleet import Runs as AsyncRuns
from pilothouse_fleet.results import ItemArguments, Items

P = ParamSpec("P")
T = TypeVar("T")


def _make_blocking_runs(method: Callable[Concatenate[Any, P], AsyncRuns]) -> Callable[Concatenate[Any, P], Runs]:
    """Convert a method that returns runs to a blocking one."""

    @wraps(method)
    def call(self: Fleet, /, *args: P.args, **named: P.kwargs) -> Runs:
        return Runs(method(self._inner, *args, **named), self._call)  # pyright: ignore[reportPrivateUsage] - a method

    return call


@user_class
class Fleet:
    """Runs many prompts, a few at a time, for blocking code; use it with `with`.

    Arguments, methods and errors are those of `pilothouse_fleet.Fleet`; the agent may be blocking or asynchronous.
    Functions that get the key or prompt of an item run on the event loop of `pilothouse.sync` and should be fast.

    Args:
        agent: its settings apply to all runs; None: the default agent.
        **settings: as for `pilothouse_fleet.Fleet`.

    Raises:
        UsageError: a limit that cannot be applied, such as a budget of 0.
    """

    def __init__(self, agent: Agent | client.Agent | None = None, **settings: Any) -> None:
        self._inner = AsyncFleet(agent.async_agent if isinstance(agent, Agent) else agent, **settings)
        self._portal = get_portal()
        self._task: asyncio.Task[None] | None = None
        self._exit_requested = asyncio.Event()
        self._has_failed = False

    # Entering and leaving.

    def __enter__(self) -> Self:
        self._call(self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._portal.is_unavailable:  # after a fork the block belongs to the parent
            return
        self._has_failed = error is not None
        try:
            self._call(self._exit, finish=not self._has_failed)
        except KeyboardInterrupt:
            self._has_failed = True
            self._call(self._exit, finish=True)
            raise

    async def _enter(self) -> None:
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run_fleet(entered), name="pilothouse_fleet.sync.Fleet")
        await asyncio.wait((self._task, entered), return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            entered.cancel()
            await self._task

    async def _run_fleet(self, entered: asyncio.Future[None]) -> None:
        try:
            async with self._inner:
                entered.set_result(None)
                await self._exit_requested.wait()
                if self._has_failed:
                    raise _BlockFailedError
        except _BlockFailedError:
            pass

    async def _exit(self) -> None:
        assert self._task is not None
        if self._exit_requested.is_set() and self._has_failed and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
            return
        self._exit_requested.set()
        await asyncio.wait((self._task,))
        if not self._has_failed and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    # Adding runs.

    @overload
    def map(self, items: Items[T], *, output_type: type[OutputT], **how: Unpack[ItemArguments[T]]) -> Runs[OutputT]: ...
    @overload
    def map(self, items: Items[T], *, output_type: Any = None, **how: Unpack[ItemArguments[T]]) -> Runs[Any]: ...
    @copy_method_signature(AsyncFleet.map)
    def map(self, *args: Any, **named: Any) -> Runs:
        """Run a prompt for each item, and yield each run when it ends."""
        return Runs(self._inner.map(*args, **named), self._call)

    resume = _make_blocking_runs(AsyncFleet.resume)
    retry_failed = _make_blocking_runs(AsyncFleet.retry_failed)
    work = _make_blocking_runs(AsyncFleet.work)
    gather = make_blocking(AsyncFleet.gather)
    submit = make_blocking(AsyncFleet.submit)
    enqueue = make_blocking(AsyncFleet.enqueue)
    wait = make_blocking(AsyncFleet.wait)
    rows = make_blocking(AsyncFleet.rows)
    cancel = make_blocking(AsyncFleet.cancel)
    interrupt = make_blocking(AsyncFleet.interrupt)
    status = make_blocking(AsyncFleet.status)

    @property
    def running(self) -> list[Run]:
        """The runs that this process executes now, oldest first."""
        return self._inner.running

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        return self._portal.call(work, finish=finish)


@user_class
class Runs(Generic[OutputT]):
    """Runs as they end; iterate over it once. Made by `Fleet.map`, `Fleet.resume` and `Fleet.work`."""

    def __init__(self, runs: AsyncRuns[OutputT], call: Callable[..., Any]) -> None:
        self._runs = runs
        self._call = call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Run[OutputT]:
        run: Run[OutputT] | None = self._call(self._next)
        if run is None:
            raise StopIteration
        return run

    async def _next(self) -> Run[OutputT] | None:
        return await anext(self._runs, None)

    def close(self) -> None:
        """Start no more runs. Idempotent."""
        self._call(self._close)

    async def _close(self) -> None:
        self._runs.close()


def durable_query(
    prompt: str | Sequence[Any], *, key: str, agent: Agent | None = None, **options: Any
) -> QueryResult[Any]:
    """See `pilothouse_fleet.durable_query`."""
    inner = None if agent is None else agent.async_agent
    return get_portal().call(partial(durable.durable_query, prompt, key=key, agent=inner, **options))


class _BlockFailedError(Exception):
    """The block ended with an error, which its own thread raises."""
