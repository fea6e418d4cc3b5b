"""`Reading`: one loop over a query.

Owns what is given out when, and that a loop which is dropped ends. What the messages are and who sends them, the query
knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, Self, TypeVar, cast

import anyio

from pilothouse.messages import Message
from pilothouse.tracebacks import user_function

T = TypeVar("T")


class Reading(Generic[T]):
    """One loop over a query: its messages, or what `read` makes of each.

    Not a generator: a generator would run its cleanup wherever it happens to be collected. Dropping this object tells
    the query that the loop was left.

    Args:
        again: gives all messages once more, if the answer was read to its end before this loop began, else None; the
            argument says whether that turned out only now.
        finish: called once at the end of the answer; what it raises ends the loop.

    Attributes:
        read: what is made of each message; None: the messages are given out as they are.
        unread: messages that were taken over and not given out; the readings of a query share them, so that the next
            loop goes on where one was left. Other threads may take from it too.
    """

    __slots__ = (
        "_again", "_begun", "_drop", "_ended", "_finish", "_items", "_leave", "_next_batch", "_ready", "read", "unread"
    )  # fmt: skip

    def __init__(
        self,
        unread: deque[Message],
        next_batch: Callable[[], Awaitable[list[Message]]],
        leave: Callable[[], Awaitable[None]],
        drop: Callable[[], None],
        read: Callable[[Message], Iterator[T]] | None,
        finish: Callable[[], Awaitable[object]] | None = None,
        again: Callable[[bool], list[Message] | None] | None = None,
    ) -> None:
        self.unread = unread
        self._next_batch = next_batch
        self._leave = leave
        self._drop = drop
        self.read = read
        self._finish = finish
        self._again = again
        self._items: deque[T] = deque()  # what `read` made of the last message
        self._ready = self._items if read is not None else cast("deque[T]", unread)  # what can be given out at once
        self._begun = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:  # every message of every stream comes by here
            return self._ready.popleft()
        except IndexError:
            pass  # outside of this block, so that no error of the query has this one in its traceback
        return await self._next()

    @user_function
    async def _next(self) -> T:
        while await self.fill():
            if self.read is not None:
                self._items.extend(self.read(self.unread.popleft()))
            if self._ready:
                return self._ready.popleft()
        await self.finish()
        raise StopAsyncIteration

    async def finish(self) -> None:
        """The answer is at its end: raise its error, in a loop that gives no result. Once."""
        finish, self._finish = self._finish, None
        if finish is not None:
            await finish()

    async def fill(self) -> bool:
        """Wait until there are unread messages; False when there is nothing more.

        Raises:
            UsageError: the answer was read before, and not all of it was kept.
        """
        first, self._begun = not self._begun, True
        if first:
            self._give_again(late=False)
        while not self.unread:
            if self._ended:
                return False
            try:
                batch = await self._next_batch()
            except anyio.get_cancelled_exc_class():
                self._drop()  # now: whoever handles the error keeps this object, and a session would wait for its end
                raise
            self._ended = not batch
            self.unread.extend(batch)
            if first and self._ended:
                self._give_again(late=True)
            first = False
        return True

    def _give_again(self, *, late: bool) -> None:
        messages = None if self._again is None else self._again(late)
        if messages is not None:
            self._ended, self.unread = True, deque(messages)
            self._ready = self._items if self.read is not None else cast("deque[T]", self.unread)

    async def aclose(self) -> None:
        """Leave the loop, which ends the query unless an `async with` block owns it."""
        if not self._ended:
            await self._leave()

    def __del__(self) -> None:
        if getattr(self, "_begun", False) and not self._ended:
            self._drop()
