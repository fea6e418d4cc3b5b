"""`Runs`: runs as they end, and how the items of a caller become runs, a few ahead of what is taken.

Owns the loop over items, sync or async, and what waits to be taken. Knows neither journals nor agents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar

import anyio
import anyio.to_thread

from pilothouse.client.result import OutputT
from pilothouse.fleet.run import Run
from pilothouse.options import Options
from pilothouse.tracebacks import user_class

T = TypeVar("T")
Items = Iterable[T] | AsyncIterable[T]
Of = Callable[[T], Any]
GivenOptions = Options | Mapping[str, Any] | None


class ItemArguments(TypedDict, Generic[T], total=False):
    """Arguments of `Fleet.map` and `Fleet.gather`, which explain them."""

    key: Of[T] | str | None
    prompt: Of[T] | str | None
    options: Of[T] | GivenOptions
    priority: Of[T] | int


class RunArguments(TypedDict, total=False):
    """Arguments of `Fleet.submit`, which explains them."""

    key: str | int | None
    options: GivenOptions
    priority: int


_DONE = object()
_AT_HAND = (list, tuple, str, range, set, frozenset, dict)  # whose next item is there without waiting


class Feed:
    """What a fleet has for one reader: runs that are ready, and the keys of those to come.

    Args:
        look_ahead: how many may be ready or to come, if they come from items.
        taken: called when one was taken.
    """

    def __init__(self, look_ahead: int, taken: Callable[[], object]) -> None:
        self.ready: deque[Run] = deque()
        self.waiting: set[str] = set()
        self.is_fed = False  # nothing more will wait
        self.is_closed = False  # nobody reads it any more
        self.is_parked = False  # and what it waited for is not begun any more
        self.hears: Literal["asked", "own", "all"] = "asked"
        """Which ends it is told: of what it waits for, of all that this process does, or of all that anybody does."""
        self.is_revived = False  # what is left is wanted now, and it is fed when nothing is left
        self._look_ahead = look_ahead
        self._taken = taken
        self._error: Exception | None = None
        self._changed = anyio.Event()
        self._room = anyio.Event()
        self._closing = anyio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing will come to it any more."""
        return self.is_closed or (self.is_fed and not self.waiting)

    async def next(self) -> Run | None:
        """The next run; None: there is none any more.

        Raises:
            Exception: what `fail` was given, after all that was ready.
        """
        while not self.ready:
            if self._error is not None:
                error, self._error = self._error, None
                self.is_closed = self.is_parked = True  # what was begun goes on
                self._closing.set()
                self._room.set()
                raise error
            if self.is_over:
                return None
            self._changed = anyio.Event()
            await self._changed.wait()
        self._room.set()
        run = self.ready.popleft()
        self._taken()
        return run

    async def room(self) -> int:
        """Wait until something may be added; how much. 0: nothing any more."""
        while not self.is_closed:
            free = self._look_ahead - len(self.ready) - len(self.waiting)
            if free > 0:
                return free
            self._room = anyio.Event()
            await self._room.wait()
        return 0

    def put(self, run: Run) -> None:
        """A run has ended that is waited for."""
        self.waiting.discard(run.key)
        if not self.is_closed:
            self.ready.append(run)
        self._changed.set()

    def drop(self, key: str) -> None:
        """A run will not be waited for any more."""
        self.waiting.discard(key)
        self._changed.set()

    def fed(self) -> None:
        """There are no more items."""
        self.is_fed = True
        self._changed.set()
        self._closing.set()

    def fail(self, error: Exception) -> None:
        """What is ready is still given out, then `error` is raised."""
        if self._error is None and not self.is_over:
            self._error = error
            self._changed.set()

    async def closing(self) -> None:
        """Wait until nobody reads it any more, or nothing will come."""
        await self._closing.wait()

    def close(self) -> None:
        """Nobody reads it any more."""
        self.is_closed = True
        self._closing.set()
        self._changed.set()
        self._room.set()
        self._taken()


@user_class
class Runs(Generic[OutputT]):
    """Runs as they end; iterate over it once. Made by `Fleet.map`, `Fleet.resume` and `Fleet.work`.

    Leaving the loop early begins no more of them; what runs goes on until the block of the fleet ends.
    """

    def __init__(self, feed: Feed, begin: Callable[[Feed], object]) -> None:
        self._feed = feed
        self._begin: Callable[[Feed], object] | None = begin

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Run[OutputT]:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin(self._feed)
        run = await self._feed.next()
        if run is None:
            raise StopAsyncIteration
        return run

    def close(self) -> None:
        """Begin no more. Idempotent. Dropping it is the same, a little later."""
        self._feed.close()

    def __del__(self) -> None:
        if (feed := getattr(self, "_feed", None)) is not None:  # not where `__init__` has failed
            feed.is_closed = True  # from any thread, at any moment: the fleet sees it when it next looks


async def batches(items: Items[T], room: Callable[[], Awaitable[int]]) -> AsyncGenerator[list[T], None]:
    """The items in lists of one or more, never more than `room` says; a plain iterator is asked in a thread."""
    if isinstance(items, AsyncIterable):
        source = aiter(items)
        try:
            while await room():
                try:
                    yield [await anext(source)]
                except StopAsyncIteration:
                    return
        finally:
            if (close := getattr(source, "aclose", None)) is not None:
                with anyio.CancelScope(shield=True):
                    await close()
        return
    iterator = iter(items)
    while count := await room():
        if isinstance(items, _AT_HAND):
            batch = [item for _, item in zip(range(count), iterator, strict=False)]
        else:
            one: Any = await anyio.to_thread.run_sync(partial(next, iterator, _DONE), abandon_on_cancel=True)
            batch = [] if one is _DONE else [one]
        if not batch:
            return
        yield batch
