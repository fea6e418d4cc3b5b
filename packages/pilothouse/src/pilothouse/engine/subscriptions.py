"""Subscriptions to every message of a child, independent of queries.

A dropped subscription is forgotten. What an unread one does not take waits on disk, as for a query.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Self

from pilothouse.engine.buffer import MEMORY_BYTES, MessageBuffer
from pilothouse.errors import UsageError
from pilothouse.messages import Message
from pilothouse.transports.concurrency import running_loop

log = logging.getLogger("pilothouse.engine")


class MessageSubscription:
    """Iterates over the messages that arrive after it was made.

    Args:
        wants_partial: whether it gets `StreamEvent`s. Default True.
        check: called before each wait; raises if this task cannot wait for messages.

    Attributes:
        buffer: messages that have arrived and were not read.
    """

    def __init__(self, *, wants_partial: bool = True, check: Callable[[], object] | None = None) -> None:
        self._check = check
        self.buffer = MessageBuffer(wants_partial=wants_partial)
        self._batch: list[Message] = []
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._batch:
            if self._is_closed:
                raise StopAsyncIteration
            if self._check is not None:
                self._check()
            batch, _ = await self.buffer.get()
            if not batch:
                raise StopAsyncIteration
            self._batch = batch[::-1]
        return self._batch.pop()

    async def aclose(self) -> None:
        """End the subscription."""
        self._is_closed = True
        self._batch.clear()
        self.buffer.end()

    def __del__(self) -> None:
        if (buffer := getattr(self, "buffer", None)) is not None:  # missing if `__init__` failed
            buffer.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Subscriptions:
    """All subscriptions of a session; a sink for the reader.

    Attributes:
        loop: the event loop of the reader; None before the first child.
    """

    def __init__(self) -> None:
        self._all: set[weakref.ref[MessageSubscription]] = set()
        self._is_ended = False
        self._has_warned = False
        self.loop: object = None

    def add(self, *, wants_partial: bool = True) -> MessageSubscription:
        """Add a subscription to the messages from now on."""
        subscription = MessageSubscription(wants_partial=wants_partial, check=self._check_loop)
        if self._is_ended:
            subscription.buffer.end()
        self._all.add(weakref.ref(subscription, self._all.discard))
        return subscription

    def _check_loop(self) -> None:
        if not self._is_ended and self.loop is not None and self.loop != running_loop():  # it would wait for ever
            raise UsageError("messages() belong to the event loop of the session: read them there")

    def __bool__(self) -> bool:
        return bool(self._all)

    def put(self, batch: list[Message], size: int) -> None:
        """Give a batch to each."""
        for subscription in self._alive():
            subscription.buffer.put(batch, size)

    # Hooks for subclasses.

    def on_unattributed(self, message: Message) -> None:
        """Called with a message that belongs neither to a query nor to background work of one."""

    def on_earlier(self, message: Message) -> None:
        """Called with a message of background work that an earlier query has started."""

    def on_prompt_accepted(self) -> None:
        """Called when the CLI has accepted a prompt: what it sends from here on belongs to a query."""

    def on_child_ended(self, error: BaseException) -> None:
        """Called when the child has ended, maybe twice. Subscriptions wait for the next child."""

    @property
    def is_behind(self) -> bool:
        """Whether messages wait on disk for one of them."""
        return any(buffer.is_behind for buffer in self._buffers())

    async def store_excess(self) -> None:
        """Move to disk what is too much for the memory. The first time, a warning tells of a subscription not read."""
        for buffer in self._buffers():
            await buffer.store_excess()
            if buffer.is_behind and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "messages() of the session are not read: %d MiB wait, and what follows waits on disk; read the "
                    "iterator in a task of its own, or close it with aclose()",
                    MEMORY_BYTES >> 20,
                )

    def end(self) -> None:
        """End all of them."""
        self._is_ended = True
        for buffer in self._buffers():
            buffer.end()

    def _buffers(self) -> list[MessageBuffer]:
        return [subscription.buffer for subscription in self._alive()]

    def _alive(self) -> list[MessageSubscription]:
        if not self._all:  # as in most sessions
            return []
        return [subscription for each in list(self._all) if (subscription := each()) is not None]
