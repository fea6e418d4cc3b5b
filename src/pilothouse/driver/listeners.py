"""Those who listen to everything a child says, beside the query that is being answered.

Owns the list. A listener that was dropped is forgotten; one that does not keep up makes the reader wait, as a query
does.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from typing import Self

from pilothouse.driver.inbox import Inbox
from pilothouse.messages import Message, StreamEvent


class Listener:
    """Messages as they come, from the moment it was made; iterate over it.

    Args:
        wants_partial: whether it gets `StreamEvent`s; the child of a session always sends them.
    """

    def __init__(self, *, wants_partial: bool = True) -> None:
        self._wants_partial = wants_partial
        self._inbox = Inbox()
        self._batch: list[Message] = []
        self._left = False

    @property
    def inbox(self) -> Inbox:
        """What has come and was not read."""
        return self._inbox

    def put(self, batch: list[Message], size: int) -> None:
        """Take what the child has said."""
        kept = [message for message in batch if self._wants_partial or message.__class__ is not StreamEvent]
        if kept:
            self._inbox.put(kept, size)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._batch:
            if self._left:
                raise StopAsyncIteration
            batch, _ = await self._inbox.get()
            if not batch:
                raise StopAsyncIteration
            self._batch = batch[::-1]
        return self._batch.pop()

    async def aclose(self) -> None:
        """Listen no more."""
        self._left = True
        self._batch.clear()
        self._inbox.end()

    def __del__(self) -> None:
        if (inbox := getattr(self, "_inbox", None)) is not None:  # not where `__init__` has failed
            inbox.end()  # a reader may be waiting for it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Listeners:
    """All of them; a sink for the reader."""

    def __init__(self) -> None:
        self._all: set[weakref.ref[Listener]] = set()
        self._over = False

    def add(self, *, wants_partial: bool = True) -> Listener:
        """One more, that hears what comes from now on."""
        listener = Listener(wants_partial=wants_partial)
        if self._over:
            listener.inbox.end()
        self._all.add(weakref.ref(listener, self._all.discard))
        return listener

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def full(self) -> bool:
        """Whether one of them has not kept up."""
        return bool(self._all) and any(inbox.full for inbox in self._inboxes())

    def put(self, batch: list[Message], size: int) -> None:
        """Give a batch to each."""
        for listener in self._living():
            listener.put(batch, size)

    # For whoever wants to know more than they do.

    def unasked(self, message: Message) -> None:
        """A message that was `put` is of no query, nor of what one has left running."""

    def asked(self) -> None:
        """The peer has taken up a prompt: what it says from here on is of a query."""

    def gone(self, error: BaseException) -> None:
        """The peer will say nothing more, for that reason; may be told twice. The listeners wait for the next one."""

    async def room(self) -> None:
        """Wait for one that has not kept up."""
        for inbox in self._inboxes():
            if inbox.full:
                await inbox.room()

    def let_pass(self) -> None:
        """Let the reader go on in spite of them."""
        for inbox in self._inboxes():
            inbox.let_pass()

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True
        for inbox in self._inboxes():
            inbox.end()

    def _inboxes(self) -> list[Inbox]:
        return [listener.inbox for listener in self._living()]

    def _living(self) -> list[Listener]:
        if not self._all:  # as in most sessions
            return []
        return [listener for each in list(self._all) if (listener := each()) is not None]
