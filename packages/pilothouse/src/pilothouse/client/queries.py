"""`Query`: one prompt being answered.

A query can be awaited, iterated over, or both; `MessageIterator` is one loop over it. The child belongs to a task of
the engine, so a query may be started, read, interrupted and closed from any task of the loop.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

import anyio

from pilothouse.callbacks import check_signature
from pilothouse.client.event_reader import TextReader
from pilothouse.client.prompt import Prompt, make_steering_prompt
from pilothouse.client.query_plan import MakeRun, QueryPlan
from pilothouse.client.result import OutputT, QueryResult
from pilothouse.client.steering import LateWords, Steering, SteerTime, check_choices
from pilothouse.client.tool_bridge import ToolBridge
from pilothouse.engine import QueryRun, call_in_loop, running_loop
from pilothouse.engine.run import RunState
from pilothouse.errors import Interrupted, PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import AssistantMessage, DoneMessage, LineSkippedMessage, Message, ResultMessage
from pilothouse.messages.decoder import share_equal_values
from pilothouse.options import Options
from pilothouse.tracebacks import make_exc_info, user_class

if TYPE_CHECKING:
    from pilothouse.client.costs import CostTracker
    from pilothouse.client.rate_limits import SharedRateLimits
    from pilothouse.events import QueryEvent


T = TypeVar("T")


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


log = logging.getLogger("pilothouse")

QueryState = Literal["new"] | RunState
OnMessage = Callable[[Message], object]

# Bytes of lines that are kept beside a stream: `result()` after a loop has all messages of an ordinary answer, while
# the memory of an endless one stays bounded.
STREAM_KEEP_BYTES = 4 * 1024 * 1024
ALWAYS_KEPT = (ResultMessage, DoneMessage, LineSkippedMessage)
"""Messages that determine the outcome of an answer and the count of lost lines."""


@user_class
class Query(Generic[OutputT]):
    """One prompt being answered. Made by `query()` and `Agent.query()`. `Query[Invoice]` has an `Invoice` as output.

    Nothing runs until the query is used in one of these ways::

        result = await query                      # the whole answer
        async for message in query: ...           # messages as they come; leaving the loop ends the child
        async with query: ...                     # started on entry, ended on exit; loops may be left and entered
            again

    Dropping an unused query warns, as with a coroutine. A loop over a query whose answer was read to its end yields
    the messages again; if they were not all kept (see `result`), it raises `UsageError`.

    The child is gone when `await` returns, when a loop has ended, when the block is left, and when the query is
    dropped. Errors of the run itself (`max_turns`, API errors …) are values on the result; failures that prevent an
    answer raise an exception.

    Raises:
        UsageError: a prompt or option that cannot work; raised here, before anything is started.
    """

    # For `__del__` if `__init__` failed.
    _run: QueryRun | None = None
    _closed = True

    def __init__(
        self,
        prompt: Prompt,
        options: Options,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        make_run: MakeRun | None = None,
        bridge: ToolBridge | None = None,
        session_costs: CostTracker | None = None,
        session_tokens: int | None = None,
        rate_limits: SharedRateLimits | None = None,
    ) -> None:
        if on_message is not None and not callable(on_message):
            raise UsageError(f"on_message: expected a callable, got {type(on_message).__name__}")
        if on_message is not None:
            check_signature(on_message, "on_message", "message")
        self._on_message = on_message
        self._plan = QueryPlan(
            prompt,
            options,
            output_type=output_type,
            make_run=make_run,
            bridge=bridge,
            session_costs=session_costs,
            session_tokens=session_tokens,
            rate_limits=rate_limits,
        )
        self._loop: object = None
        self._unread: deque[Message] = deque()  # taken from the run, not yet iterated over
        self._collected: list[Message] = []
        self._collected_bytes = 0
        self._has_overflowed = False
        self._is_collecting = False
        self._last_kept: AssistantMessage | None = None
        self._is_managed = False
        self._is_interrupted_early = False
        self._is_exhausted = False  # everything was taken from the run
        # The text of the warning about an unused query; "" once it was used.
        self.unused_warning = "was never awaited: `await` it, read it with `async for` or `async with`, or close it"
        self._result: QueryResult[OutputT] | None = None
        self._callback_errors: list[Exception] = []
        self._closed = False

    @property
    def id(self) -> str:
        """Id of this query, and the uuid of its first prompt, where that is known before the start.

        Messages and results that answer the prompt name it as `user_message_uuid`.
        """
        return self._plan.id

    @property
    def state(self) -> QueryState:
        """The state of the query.

        "new" until it is started; "queued" while it waits for its turn in a session, or for a limit of the API; then
        "active". At the end "completed" with a result, even one that reports an error; "interrupted"; "failed"
        without a result, so that `result()` raises; or "closed" before the result had arrived.
        """
        if self._run is not None:
            return self._run.state
        return "interrupted" if self._is_interrupted_early else "closed" if self._closed else "new"

    @property
    def session_id(self) -> str | None:
        """Id of the session, None before the first message."""
        return self._run.session_id if self._run is not None else None

    @property
    def options(self) -> Options:
        """The options of the query."""
        return self._plan.options

    def __repr__(self) -> str:
        session = "" if self.session_id is None else f", session_id={self.session_id!r}"
        return f"<Query {self.id}: {self.state}{session}>"

    def __await__(self) -> Generator[Any, Any, QueryResult[OutputT]]:
        return self.result().__await__()

    def __aiter__(self) -> MessageIterator[Message]:
        return self._make_iterator(None)

    def text_stream(self) -> MessageIterator[str]:
        """Iterate over the text of the answer while it is written; nothing else, nothing twice.

        Together the pieces are `QueryResult.full_text`: what the model says after a tool call begins on a new line.
        When the API breaks off in the middle, they have the broken piece too.

        Turns `partial_messages` on; after the start it yields whole blocks unless that was set.

        Raises:
            ResultError: the run failed; raised by the loop, after the last piece of text.
            Interrupted: the query was interrupted; raised by the loop, too.

        Example::

            async for text in ph.query("Explain this repo").text_stream():
                print(text, end="", flush=True)
        """
        self._want_partial_messages()
        return self._make_iterator(TextReader().read, finish=self._raise_failure)

    async def _raise_failure(self) -> None:
        (await self.result()).raise_for_error()

    def events(self) -> MessageIterator[QueryEvent]:
        """Iterate over typed events: text and thinking deltas, tools, permissions, retries, rejected outputs, end.

        Turns `partial_messages` on, as `text_stream` does. The last event is `Finished`, whose `error` is that of a
        failed run. Permission events follow the event of their tool call; they start when this method is called, with
        the requests that wait at that moment. In a session, they may have come before the query began.
        """
        self._want_partial_messages()
        self._plan.wants_permission_events = True
        if self._run is not None:
            self._run.request_permission_events()
        return self._make_iterator(self._plan.make_event_reader())

    def _want_partial_messages(self) -> None:
        if self._run is None:
            self._plan.request_partial_messages()

    async def start(self) -> Self:
        """Start the child now and wait until it runs. Reading starts it automatically.

        Raises:
            ProcessError: the child could not be started.
        """
        try:
            await self._ensure_started().start()
        except BaseException:
            await self._close_unmanaged()
            raise
        return self

    def _ensure_started(self) -> QueryRun:
        if self._run is None:
            if self._closed:
                raise SessionClosedError("the query is closed; make a new one")
            self._loop = running_loop()
            self._run = self._plan.start()
        else:
            self._check_loop(self._run)
        return self._run

    def _check_loop(self, run: QueryRun) -> None:
        if not run.is_finished and self._loop != running_loop():  # it would wait for ever
            raise UsageError("a query belongs to the event loop that started it; use it there, or make another")

    async def steer(
        self, content: str | Sequence[Any], *, when: SteerTime = "next", if_late: LateWords = "ask"
    ) -> Steering:
        """Give words to the turn that runs, without waiting for its end. Returns when they are on their way.

        The model reads them with the results of the tools that run now, before its next step; the answer is part of
        this query. Seen on Claude Code 2.1.332.

        Args:
            content: text, or content blocks.
            when: "next" (default): after the tools that run now. "now": stop these tools; the CLI ends the turn and
                goes on with the words in another, so that the query has two results.
            if_late: what to do when the turn ends before the CLI has taken the words. "ask" (default): the query goes
                on with them, in another turn. "return": take them back, also when the query is interrupted.

        Returns:
            A `Steering`; its `outcome()` says what became of the words. When the query is over, or waits for
            something else than the model, that is "returned", and nothing was sent.

        Raises:
            UsageError: the query was not started, or cannot be steered; or words that cannot be a prompt.

        Example::

            async with ph.query("Mend the tests") as query:
                async for message in query:
                    if is_in_wrong_folder(message):
                        await query.steer("Only in tests/unit, please")
        """
        check_choices(when=when, if_late=if_late)
        prompt = make_steering_prompt(content, when, verbatim=self._plan.options.verbatim_prompts)
        if self._run is None:
            raise UsageError("the query has not started: read it, or `await query.start()`, before you steer it")
        self._check_loop(self._run)
        before = await self._run.steer(prompt, returns_late=if_late == "return")
        return Steering(self, self._run, prompt.uuid, before)

    async def __aenter__(self) -> Self:
        self._is_managed = True
        try:
            return await self.start()
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def result(self) -> QueryResult[OutputT]:
        """Read to the end and return the whole answer; the same object every time.

        After a loop over the query it reads the rest. `on_message` is called once for every message, in order; what
        it raises is logged and kept in `QueryResult.callback_errors`, and the stream goes on.

        Raises:
            ProcessError: the child could not be started, or ended before the answer was complete.
            QueryTimeout: `timeout`, `idle_timeout` or `startup_timeout` ran out.
            ControlError, ControlTimeout: the handshake, or the wait of `wait_for_mcp`, failed.
            SessionClosedError: the query was closed before.
        """
        if self._result is not None:
            return self._result
        self._is_collecting = self._is_collecting or not self._collected  # no loop has read anything before
        try:
            is_more = True
            while is_more:
                while self._unread:
                    message = self._unread.popleft()
                    if self._on_message is not None:
                        await self._run_on_message(self._on_message, message)
                batch = await self._next_batch()
                self._unread.extend(batch)
                is_more = bool(batch)
            if self._run is not None:
                await self._run.wait_finished()
        except BaseException:
            await self._close_unmanaged()
            raise
        if self._result is None:  # several tasks may wait for it together
            self._result = self._make_result()
        return self._result

    async def _run_on_message(self, callback: OnMessage, message: Message) -> None:
        try:
            answer = callback(message)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:
            if not self._callback_errors:
                log.error(
                    "on_message raised; the query continues (further errors are in callback_errors)",
                    exc_info=make_exc_info(error),
                )
            self._callback_errors.append(error)

    def _make_result(self) -> QueryResult[OutputT]:
        run = self._run
        interrupted = self._is_interrupted_early or (run is not None and run.interrupted)
        result = QueryResult[OutputT](
            self._collected,
            structured_expected=self._plan.output_validator is not None,
            interrupted=interrupted,
            failure=Interrupted("the query was interrupted", result=run.result) if run and run.is_cut_short else None,
            callback_errors=self._callback_errors,
            incomplete=self._has_overflowed,
            is_continuation=self._plan.is_continuation,
            until_idle=self._plan.options.until == "idle",
        )
        self._plan.complete_result(result, self._collected)
        result.warn_if_unchecked()
        return result

    async def interrupt(self) -> None:
        """Stop the answer and wait until the CLI has stopped; the outcome is then `interrupted`.

        A query that was not started never starts, and one whose iterable has given no prompt yet ends: nothing is sent.
        When nothing runs any more, the method returns at once. Of several prompts, the current one is stopped; later
        ones are still answered, and the last one decides the outcome.

        Raises:
            UsageError: in the argv form, which has no control protocol.
            ControlError, ControlTimeout: the CLI refused, or did not respond.
        """
        if self._run is not None:
            self._check_loop(self._run)
            await self._run.interrupt()
        elif not self._closed:
            self._is_interrupted_early = True

    async def aclose(self) -> None:
        """End the query and wait until the child is gone. Idempotent, bounded, safe from any task."""
        if self._run is not None:
            self._check_loop(self._run)
        self._closed = True
        if self._run is not None:
            self._run.stop()
            with anyio.CancelScope(shield=True):
                await self._run.wait_finished()
        else:
            await self._plan.discard()

    def __del__(self) -> None:
        if (
            self._run is None
            and not (self._closed or self._is_interrupted_early or sys.is_finalizing())
            and self.unused_warning
        ):
            warnings.warn(
                f"query {self._plan.short_prompt} {self.unused_warning}", RuntimeWarning, stacklevel=2, source=self
            )
        self._stop_soon()

    # Called by the iterators.

    def _make_iterator(
        self, read: Callable[[Message], Iterator[T]] | None, finish: Callable[[], Awaitable[None]] | None = None
    ) -> MessageIterator[T]:
        close, close_soon = self._close_unmanaged, self._close_unmanaged_soon
        return MessageIterator(self._unread, self._next_batch, close, close_soon, read, self._messages_again, finish)

    def _messages_again(self, is_late: bool) -> list[Message] | None:
        """All messages, for a loop that begins after the end; None: the loop continues where others were left."""
        if not self._is_exhausted or self._unread:
            return None
        if is_late and not (self._closed and not self._is_managed):
            return None  # tasks share the messages; in a block, a loop continues another
        if self._has_overflowed:
            raise UsageError(
                "this query was read before and produced more messages than a stream keeps, so its messages "
                "cannot be read again; `await` it first, which keeps them all, or make a new query"
            )
        return self._collected

    async def _next_batch(self) -> list[Message]:
        """Wait for the next messages and keep them for the result, within the limit; empty at the end."""
        if self._is_interrupted_early:
            self._is_exhausted = True
            return []
        try:
            batch, size = await self._ensure_started().next_batch()
        except PilothouseError as error:
            self._plan.explain(error)
            raise
        self._is_exhausted = not batch
        self._keep(batch, size)
        return batch

    def _keep(self, batch: list[Message], size: int) -> None:
        if self._has_overflowed:
            self._collected.extend(m for m in batch if m.__class__ in ALWAYS_KEPT)
            return
        self._collected.extend(batch)
        if self._is_collecting:
            self._last_kept = share_equal_values(batch, self._last_kept)
        else:
            self._collected_bytes += size
            if self._collected_bytes > STREAM_KEEP_BYTES:
                self._has_overflowed = True
                # The first message names the session, the results contain the answer.
                self._collected = [m for i, m in enumerate(self._collected) if i == 0 or m.__class__ in ALWAYS_KEPT]

    async def _close_unmanaged(self) -> None:
        """End a query that is no longer read, unless an `async with` block owns it."""
        if not self._is_managed:
            await self.aclose()

    def _close_unmanaged_soon(self) -> None:
        """Do the same from a finalizer: from any thread, at any moment."""
        if not self._is_managed:
            self._stop_soon()

    def _stop_soon(self) -> None:
        if self._run is not None and not self._run.is_finished:
            self._closed = True
            call_in_loop(self._loop, self._run.stop)
