"""The blocking `Query`: one prompt, executed on the portal's event loop and read from blocking code.

Waiting and callbacks happen in the caller's thread, a plain iterable of prompts is read in a worker thread,
everything else runs on the loop. `pilothouse.client` does everything else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

import anyio
from anyio import to_thread

from pilothouse.callbacks import check_signature
from pilothouse.client import Query as AsyncQuery
from pilothouse.client import QueryResult
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import MessageIterator as AsyncReading
from pilothouse.client.queries import OnMessage, QueryState
from pilothouse.client.result import OutputT
from pilothouse.events import QueryEvent
from pilothouse.messages import Message
from pilothouse.options import Options
from pilothouse.sync.portal import LoopCaller, Portal, get_portal, send_to_caller
from pilothouse.tracebacks import make_exc_info, user_class

_DONE = object()


def iterate_in_thread(prompt: Prompt) -> Prompt:
    """Convert a plain iterable prompt to an asynchronous one; return other prompts unchanged."""
    given: Any = prompt
    if isinstance(given, Sequence | Mapping | AsyncIterable) or not isinstance(given, Iterable):
        return prompt
    return _iterate(cast("Iterable[Any]", given))


async def _iterate(prompts: Iterable[Any]) -> AsyncIterator[Any]:
    # Its own limiter: iterators that wait for people must not use up the shared threads.
    limiter = anyio.CapacityLimiter(1)
    iterator: Iterator[Any] | None = None
    while True:
        iterator, item = await to_thread.run_sync(
            _next_item, iterator, prompts, abandon_on_cancel=True, limiter=limiter
        )
        if item is _DONE:
            return
        yield item


def _next_item(iterator: Iterator[Any] | None, prompts: Iterable[Any]) -> tuple[Iterator[Any], Any]:
    # The thread may wait for a line of standard input when Python exits. Python then closes that stream, cannot get its
    # lock, and aborts; but not while a frame holds the stream, as this one does.
    held = sys.stdin, sys.__stdin__
    iterator = iter(prompts) if iterator is None else iterator
    item = next(iterator, _DONE)
    del held
    return iterator, item


log = logging.getLogger("pilothouse")
T = TypeVar("T")


def hand_to_caller(on_message: Any) -> Any:
    """Return an `on_message` for the asynchronous query: it hands messages to the thread that waits.

    Raises:
        UsageError: it cannot be called with a message.
    """
    if not callable(on_message):
        return on_message
    check_signature(on_message, "on_message", "message")
    return send_to_caller


@user_class
class Query(Generic[OutputT]):
    """One running query for blocking code. Made by `query()` and `Agent.query()`.

    The query starts when it is used in one of these ways::

        result = query.result()                   # the whole answer
        for message in query: ...                 # messages as they come; leaving the loop ends the process
        with query: ...                           # started on entry, ended on exit; loops may be left and entered
            again

    Any thread may use it. `on_message` runs in the thread that waits in `result()`, with its context variables; an
    async one awaits on the event loop of `pilothouse.sync`. When Ctrl-C or another exception ends the wait, the
    process is ended too, unless a `with` block owns it.

    Args:
        query: the asynchronous query that does the work, with `send_to_caller` as its `on_message`.
        on_message: called for every message by `result()`.
        portal: the portal to use, for a query of a session.
    """

    def __init__(
        self, query: AsyncQuery[OutputT], on_message: OnMessage | None = None, portal: Portal | None = None
    ) -> None:
        self._query = query
        query.unused_warning = "was never run: call `.result()`, read it with `for` or `with`, or close it"
        self._on_message = on_message
        self._portal = portal
        self._callback_errors: list[Exception] = []

    def __del__(self) -> None:
        portal: Portal | None = vars(self).get("_portal")  # missing if the constructor raised
        if portal is not None and portal.is_forked:
            self._query.unused_warning = ""  # a query of another process, which may still run it

    def __repr__(self) -> str:
        return repr(self._query)

    @property
    def id(self) -> str:
        """Id of this query, and the uuid of its first prompt, if known before the start."""
        return self._query.id

    @property
    def state(self) -> QueryState:
        """The state: "new", "queued", "active"; then "completed", "interrupted", "failed" or "closed".

        See `pilothouse.Query.state`.
        """
        return self._query.state

    @property
    def session_id(self) -> str | None:
        """Id of the session; None before the first message."""
        return self._query.session_id

    @property
    def options(self) -> Options:
        """The options of the query."""
        return self._query.options

    def __iter__(self) -> MessageIterator[Message]:
        return MessageIterator(aiter(self._query), self._call)

    def text_stream(self) -> MessageIterator[str]:
        """Iterate over the text of the answer while it is written; each text once.

        Together the pieces are `QueryResult.full_text`: what the model says after a tool call begins on a new line.
        When the API breaks off in the middle, they have the broken piece too.

        Turns `partial_messages` on; after the start it yields whole blocks unless that was set.

        Raises:
            ResultError: the run failed; raised by the loop, after the last text.
            Interrupted: the query was interrupted; raised there too.
        """
        return MessageIterator(self._query.text_stream(), self._call)

    def events(self) -> MessageIterator[QueryEvent]:
        """Iterate over events: text and thinking deltas, tools started and finished, retries, the end.

        Turns `partial_messages` on, as `text_stream` does.
        """
        return MessageIterator(self._query.events(), self._call)

    def start(self) -> Self:
        """Start the process now and wait until it runs. Reading starts it automatically.

        Raises:
            ProcessError: the process could not be started.
        """
        self._call(self._query.start)
        return self

    def __enter__(self) -> Self:
        try:
            self._call(self._query.__aenter__)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def result(self) -> QueryResult[OutputT]:
        """Read to the end and return the whole answer; the same object every time.

        After a loop over the query it reads the rest. `on_message` is called once for every message, in order; its
        exceptions are logged and kept in `QueryResult.callback_errors`, and the stream continues.

        Raises:
            ProcessError: the process could not be started, or ended before the answer was complete.
            QueryTimeout: `timeout` or `idle_timeout` expired.
            ControlError, ControlTimeout: the handshake failed, or what `wait_for_mcp` waits for.
            SessionClosedError: the query was closed before.
            UsageError: called on the event loop of `pilothouse.sync`, or after a fork.
        """
        result = self._call(self._query.result, serve=None if self._on_message is None else self._call_on_message)
        errors, self._callback_errors = self._callback_errors, []
        result.callback_errors.extend(errors)
        return result

    def interrupt(self) -> None:
        """Stop the answer and wait until the CLI has stopped; the outcome is then `interrupted`.

        Works from any thread except the loop's own. A query that was not started never starts, and one whose iterable
        has given no prompt yet ends: nothing is sent. After the end this returns at once. Of several prompts, only the
        current one is stopped.

        Raises:
            UsageError: in the argv form, which has no control protocol.
            ControlError, ControlTimeout: the CLI rejected the request, or did not respond.
        """
        self._call(self._query.interrupt)

    def close(self) -> None:
        """End the query and wait until the process is gone. Idempotent, bounded, from any thread."""
        if self._portal is not None and self._portal.is_unavailable:
            return  # after a fork the process belongs to the parent
        self._call(self._query.aclose, finish=True)

    def _call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        serve: Callable[[Message], object] | None = None,
        finish: bool = False,
    ) -> T:
        self._query.unused_warning = ""
        if self._portal is None:
            self._portal = get_portal()
        return self._portal.call(work, serve=serve, finish=finish)

    def _call_on_message(self, message: Message) -> None:
        assert self._on_message is not None
        try:
            answer = self._on_message(message)
            if inspect.isawaitable(answer):
                self._call(partial(_await, answer))
        except Exception as error:
            if not self._callback_errors:
                log.error(
                    "on_message raised; the query continues (further errors are in callback_errors)",
                    exc_info=make_exc_info(error),
                )
            self._callback_errors.append(error)


class MessageIterator(Generic[T]):
    """One loop over a query: its messages, or values made from them. Dropping the iterator leaves the loop.

    Items are transferred in batches, because a call into another thread costs as much as 100 messages. Threads may
    share one iterator of messages.
    """

    __slots__ = ("_call", "_items", "_source")

    def __init__(self, source: AsyncReading[T], call: LoopCaller) -> None:
        self._source = source  # dropped with this object, which ends the query if the loop was left early
        self._items: deque[T] = deque()
        self._call = call  # holds the query too

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        items, source = self._items, self._source
        while not items:
            try:
                message: Any = source.unread.popleft()
            except IndexError:
                message = None
            if message is None:
                if not self._call(self._fill):
                    raise StopIteration
            elif source.read is None:
                return message
            else:
                items.extend(source.read(message))
        return items.popleft()

    async def _fill(self) -> bool:
        try:
            if await self._source.fill():
                return True
            await self._source.finish()
            return False
        except asyncio.CancelledError:  # the thread was interrupted and will not call again
            await self._source.aclose()
            raise

    def close(self) -> None:
        """Leave the loop and wait until the process is gone, unless a `with` block owns the query."""
        self._call(self._source.aclose, finish=True)


async def _await(answer: Awaitable[object]) -> None:
    await answer
