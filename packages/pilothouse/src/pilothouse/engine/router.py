"""`MessageRouter`: gives each message of a child to the query that it belongs to, and all of them to the subscriptions.

*Tell, then ask*: the turn of the active query is told what a message says, and then asked whether the message is its
own. Of a result it is asked first: whether it ends the turn depends on whose it is. The router keeps nothing of a query
beside its turn.

`Subscriptions` get every message of a child, independent of queries. A dropped subscription is forgotten. What an
unread one does not take waits on disk, as for a query.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pilothouse.engine.buffer import MEMORY_BYTES, MessageBuffer
from pilothouse.engine.failures import make_note
from pilothouse.engine.pending_work import BackgroundAttribution, OpenApprovals, find_named_prompts
from pilothouse.errors import UsageError
from pilothouse.messages import (
    CommandLifecycleMessage,
    DoneMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    ResultMessage,
    SystemMessage,
)
from pilothouse.transports.concurrency import running_loop

if TYPE_CHECKING:
    from pilothouse.engine.run import QueryRun

log = logging.getLogger("pilothouse.engine")


class MessageRouter:
    """The way of the messages of one child to their readers.

    Args:
        subscriptions: get every message.
        on_message: called with each message that needs routing, when its query has it.

    Attributes:
        query: the active query.
        reports_starts: whether the CLI reports when it starts a prompt; then nothing before that is an answer.
    """

    ROUTED: ClassVar = frozenset({CommandLifecycleMessage, DoneMessage, InitMessage, ResultMessage})
    """Classes of messages that say where a turn begins or ends."""

    def __init__(self, subscriptions: Subscriptions, on_message: Callable[[Message], object]) -> None:
        self.query: QueryRun | None = None
        self.reports_starts = False
        self._subscriptions = subscriptions
        self._on_message = on_message
        self._attribution = BackgroundAttribution()
        self._open_approvals = OpenApprovals()

    def start_query(self, query: QueryRun, session_id: str | None) -> None:
        """Make `query` the active one; what runs in the background now belongs to earlier ones."""
        self._attribution.start_query()
        self.query = query
        if query.wants_approval_notes:  # nobody may have seen what was asked before
            self.show_open_approvals(query, session_id)

    @property
    def is_behind(self) -> bool:
        """Whether a consumer is so far behind that messages wait on disk."""
        return self._subscriptions.is_behind or (self.query is not None and self.query.buffer.is_behind)

    async def store_excess(self) -> None:
        """Move unread messages to disk that are too much for the memory."""
        if self.query is not None:
            await self.query.buffer.store_excess()
        await self._subscriptions.store_excess()

    def put_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Give notes about lines that could not be read."""
        self._subscriptions.put([*notes], 0)
        if self.query is not None:
            self.query.add_skipped(notes)

    def put(self, batch: list[Message], size: int, *, needs_routing: bool) -> None:
        """Give a batch that was `size` bytes on the wire; `needs_routing`: its messages are looked at one by one."""
        self._subscriptions.put(batch, size)
        query = self.query
        if query is not None and not (needs_routing or self._attribution.has_earlier_work):
            self._tell(query, batch[0])  # it speaks for all; if the query begins with it, what runs is earlier work
        if needs_routing or self._attribution.has_earlier_work:
            self._put_each(batch, size, query)
        elif query is not None and query.turn.owns_message(reports_starts=self.reports_starts):
            query.put(batch, size)
        else:
            for message in batch:
                self._subscriptions.on_unattributed(message)

    def _put_each(self, batch: list[Message], size: int, query: QueryRun | None) -> None:
        own: list[Message] = []
        for message in batch:
            self._attribution.track(message)
            is_earlier = self._attribution.is_earlier(message)
            if query is not None and not is_earlier:
                self._tell(query, message)
            if is_earlier:
                self._subscriptions.on_earlier(message)
            elif query is not None and self._belongs_to(query, message):
                own.append(message)
                if isinstance(message, ResultMessage) and self._counts(query, message):
                    query.put(own, size)
                    query.add_result(message)
                    own, size = [], 0  # which is counted once
            else:
                if isinstance(message, InitMessage):  # the CLI begins a turn on its own
                    self._attribution.start_query()
                self._subscriptions.on_unattributed(message)
            if isinstance(message, CommandLifecycleMessage):
                self._note_lifecycle(message)
            self._on_message(message)
        if own and query is not None:
            query.put(own, size)

    def _tell(self, query: QueryRun, message: Message) -> None:
        """Tell the active query what a message says about its prompts."""
        turn = query.turn
        was_answering, had_background = turn.is_answering, turn.owns_background
        match message:
            case CommandLifecycleMessage(command_uuid=str(uuid), state="started"):
                turn.begin(uuid)
            case CommandLifecycleMessage(command_uuid=str(uuid), state="cancelled"):
                turn.mark_cancelled(uuid)
            case DoneMessage() if turn.has_own_child:
                turn.end_stream()
            case CommandLifecycleMessage() | ResultMessage():
                pass
            case _:
                turn.note_message(reports_starts=self.reports_starts)
        query.act_on_turn()
        if turn.is_answering and not was_answering and not turn.has_own_child:
            if not had_background:  # else the tasks that its earlier prompts have started are its own
                self._attribution.start_query()
            self._subscriptions.on_prompt_accepted()

    def _note_lifecycle(self, message: CommandLifecycleMessage) -> None:
        query = self.query
        if query is not None and query.turn.has_own_child and message.command_uuid not in query.turn.prompts:
            return  # a recording names the prompts of its own time
        if not self.reports_starts and query is not None:
            query.turn.take_back_begin()
            query.act_on_turn()
        self.reports_starts = True

    def _belongs_to(self, query: QueryRun, message: Message) -> bool:
        if isinstance(message, CommandLifecycleMessage):
            return False
        if isinstance(message, ResultMessage):
            answered = find_named_prompts(message)
            return query.turn.owns_result(answered, is_woken=message.is_woken, reports_starts=self.reports_starts)
        return query.turn.owns_message(reports_starts=self.reports_starts)

    def _counts(self, query: QueryRun, result: ResultMessage) -> bool:
        answered = find_named_prompts(result)
        return query.turn.counts_result(answered, is_woken=result.is_woken, reports_starts=self.reports_starts)

    # Messages of our own.

    def put_note(self, note: SystemMessage, query: QueryRun | None) -> None:
        """Give a message of our own to the subscriptions and to `query`."""
        self._subscriptions.put([note], len(note.raw_line))
        if query is not None:
            query.buffer.put([note], len(note.raw_line))

    def put_approval_note(self, subtype: str, facts: dict[str, Any], session_id: str | None) -> None:
        """Give a note about an approval, waiting or settled, to the active query, even before its turn."""
        self._open_approvals.track(subtype, facts)
        query = self.query if self.query is not None and self.query.wants_approval_notes else None
        if query is not None or self._subscriptions:
            self.put_note(make_note(subtype, session_id, facts), query)

    def show_open_approvals(self, query: QueryRun, session_id: str | None) -> None:
        """Give the active query the notes about the approvals that wait."""
        if query is self.query:
            for note in self._open_approvals.make_notes(session_id):
                query.buffer.put([note], len(note.raw_line))

    def fail(self, error: BaseException, *, is_failure: bool) -> None:
        """Tell everybody that the child has ended; `is_failure`: also a query that the child runs for alone."""
        self._subscriptions.on_child_ended(error)
        if self.query is not None and (is_failure or not self.query.turn.has_own_child):
            self.query.fail(error)


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
        self._unread: deque[Message] = deque()  # handed over by the buffer; tasks that read together share them
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._unread:
            if self._is_closed:
                raise StopAsyncIteration
            if self._check is not None:
                self._check()
            batch, _ = await self.buffer.get()
            if not batch:
                raise StopAsyncIteration
            self._unread.extend(batch)
        return self._unread.popleft()

    async def aclose(self) -> None:
        """End the subscription."""
        self._is_closed = True
        self._unread.clear()
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
