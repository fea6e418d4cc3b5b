"""`MessageIterator`: one loop over a query."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, Self, TypeVar, cast

import anyio

from pilothouse.messages import Message
from pilothouse.tracebacks import user_class

T = TypeVar("T")


@user_class
class MessageIterator(Generic[T]):
    """One loop over a query: its messages, or what `read` makes of each.

    Not a generator: the cleanup of a generator would run wherever it happens to be collected. Dropping this object
    tells the query that the loop was left.

    Args:
        unread: see below.
        next_batch: waits for the next messages; returns an empty list at the end.
        close_query: ends the query, unless an `async with` block owns it.
        close_query_soon: does the same from any thread, without waiting.
        read: see below.
        read_again: returns all messages if the answer was read to its end before this loop began, else None. The
            argument says whether that turned out only after the first wait.
        finish: called once at the end of the answer; what it raises ends the loop.

    Attributes:
        read: makes the items of each message; None: the messages themselves are the items.
        unread: messages that were taken from the run and not yet iterated over. All iterators of a query share them,
            so that the next loop continues where one was left. Other threads may take from it too.
    """

    __slots__ = (
        "_close_query",
        "_close_query_soon",
        "_finish",
        "_has_begun",
        "_has_ended",
        "_items",
        "_next_batch",
        "_read_again",
        "_ready",
        "read",
        "unread"
    )  # fmt: skip

    def __init__(
        self,
        unread: deque[Message],
        next_batch: Callable[[], Awaitable[list[Message]]],
        close_query: Callable[[], Awaitable[None]],
        close_query_soon: Callable[[], None],
        read: Callable[[Message], Iterator[T]] | None,
        read_again: Callable[[bool], list[Message] | None],
        finish: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.unread = unread
        self._next_batch = next_batch
        self._close_query = close_query
        self._close_query_soon = close_query_soon
        self.read = read
        self._finish = finish
        self._read_again = read_again
        self._items: deque[T] = deque()  # items of the last message
        self._ready = self._items if read is not None else cast("deque[T]", unread)  # items available at once
        self._has_begun = False
        self._has_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:  # the hot path of every stream
            return self._ready.popleft()
        except IndexError:
            pass  # outside of this block, so that no error of the query has this one in its traceback
        return await self._next()

    async def _next(self) -> T:
        while await self.fill():
            if self.read is not None:
                self._items.extend(self.read(self.unread.popleft()))
            if self._ready:
                return self._ready.popleft()
        await self.finish()
        raise StopAsyncIteration

    async def finish(self) -> None:
        """Raise the error of a finished answer, in a loop without a result. Once."""
        finish, self._finish = self._finish, None
        if finish is not None:
            await finish()

    async def fill(self) -> bool:
        """Wait until there are unread messages; False at the end.

        Raises:
            UsageError: the answer was read before, and not all of its messages were kept.
        """
        first, self._has_begun = not self._has_begun, True
        if first:
            self._repeat(is_late=False)
        while not self.unread:
            if self._has_ended:
                return False
            try:
                batch = await self._next_batch()
            except anyio.get_cancelled_exc_class():
                # Now: the handler of the error may keep this object alive, and a session would wait for its end.
                self._close_query_soon()
                raise
            self._has_ended = not batch
            self.unread.extend(batch)
            if first and self._has_ended:
                self._repeat(is_late=True)
            first = False
        return True

    def _repeat(self, *, is_late: bool) -> None:
        messages = self._read_again(is_late)
        if messages is not None:
            self._has_ended, self.unread = True, deque(messages)
            self._ready = self._items if self.read is not None else cast("deque[T]", self.unread)

    async def aclose(self) -> None:
        """Leave the loop, which ends the query unless an `async with` block owns it."""
        if not self._has_ended:
            await self._close_query()

    def __del__(self) -> None:
        if getattr(self, "_has_begun", False) and not self._has_ended:
            self._close_query_soon()
