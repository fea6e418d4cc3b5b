"""`Query`: one prompt being answered.

Owns the three ways to read an answer (await it, iterate over it, both) and when it is over. The child belongs to a
task of the driver, so a query may be started, read, interrupted and closed from any task of the loop.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

import anyio

from pilothouse.client.plan import MakeRun, Plan, Run
from pilothouse.client.prompt import Prompt
from pilothouse.client.reading import Reading
from pilothouse.client.result import OutputT, QueryResult
from pilothouse.driver import caller_into_loop
from pilothouse.driver.answering import RunState
from pilothouse.errors import Interrupted, PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import DoneMessage, LineSkippedMessage, Message, ResultMessage
from pilothouse.options import Options
from pilothouse.tracebacks import log_info, user_class

if TYPE_CHECKING:
    from pilothouse.client.bridging import Bridge
    from pilothouse.client.costs import Ledger
    from pilothouse.client.events import AnswerEvent
    from pilothouse.client.rate_gate import RateGate

log = logging.getLogger("pilothouse")

QueryState = Literal["new"] | RunState
OnMessage = Callable[[Message], object]
T = TypeVar("T")

# What is kept beside a stream, in bytes of lines, so that `result()` after a loop has the messages of any ordinary
# answer while the memory of an endless one stays bounded (E79).
STREAM_KEEP_BYTES = 4 * 1024 * 1024
ALWAYS_KEPT = (ResultMessage, DoneMessage, LineSkippedMessage)
"""What the outcome of an answer, and the count of what was lost, is read off."""


@user_class
class Query(Generic[OutputT]):
    """One prompt being answered. Made by `query()` and `Agent.query()`. `Query[Invoice]` has an `Invoice` as output.

    Nothing runs until it is used in one of these ways (E51)::

        result = await query                      # the whole answer
        async for message in query: ...           # messages as they come; leaving the loop ends the child
        async with query: ...                     # started on entry, ended on exit; loops may be left and entered again

    A query that is dropped without any of them warns, as a coroutine does. A loop over a query whose answer was read to
    its end gives the messages again; where they were not all kept (see `result`), it raises `UsageError`.

    The child is gone when `await` returns, when a loop has ended, when the block is left, and when the query is
    dropped. Errors of the run itself (`max_turns`, API errors …) are values on the result; what keeps an answer from
    coming at all is raised.

    Raises:
        UsageError: a prompt or option that cannot work; raised here, before anything is started.
    """

    # For `__del__` of one that could not be made.
    _run: Run | None = None
    _closed = True

    def __init__(
        self,
        prompt: Prompt,
        options: Options,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        make_run: MakeRun | None = None,
        bridge: Bridge | None = None,
        ledger: Ledger | None = None,
        session_tokens: int | None = None,
        gate: RateGate | None = None,
    ) -> None:
        if on_message is not None and not callable(on_message):
            raise UsageError(f"on_message: expected a callable, got {type(on_message).__name__}")
        self._on_message = on_message
        inside: Any = {"bridge": bridge, "ledger": ledger, "session_tokens": session_tokens, "gate": gate}
        self._plan = Plan(prompt, options, output_type=output_type, make_run=make_run, **inside)
        self._call: Callable[[Callable[[], object]], None] | None = None
        self._unread: deque[Message] = deque()  # taken from the run, not yet given out
        self._kept: list[Message] = []
        self._kept_bytes = 0
        self._overflowed = False
        self._collecting = False
        self._managed = False
        self._early_interrupt = False
        self._exhausted = False  # everything was taken from the run
        # What a warning says when this is dropped unused; "" when its use was tried.
        self.hint = "was never awaited: `await` it, read it with `async for` or `async with`, or close it"
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
        """Where it is in its life.

        "new" until it is started; "queued" while it waits for its turn in a session, or for a limit of the API; then
        "active". At the end "completed" with a result, even one that tells of an error; "interrupted"; "failed"
        without a result, so that `result()` raises; or "closed" before the result was there.
        """
        if self._run is not None:
            return self._run.state
        return "interrupted" if self._early_interrupt else "closed" if self._closed else "new"

    @property
    def session_id(self) -> str | None:
        """Id of the session, None before the first message. (E28, L47)."""
        return self._run.session_id if self._run is not None else None

    @property
    def options(self) -> Options:
        """The options it runs with."""
        return self._plan.options

    def __repr__(self) -> str:
        session = "" if self.session_id is None else f", session_id={self.session_id!r}"
        return f"<Query {self.id}: {self.state}{session}>"

    def __await__(self) -> Generator[Any, Any, QueryResult[OutputT]]:
        return self.result().__await__()

    def __aiter__(self) -> Reading[Message]:
        return self._reading(None, again=self._again)

    def text_stream(self) -> Reading[str]:
        """The text of the answer while it is written; nothing else, nothing twice.

        Turns `partial_messages` on; after the start it gives whole blocks unless that was set.

        Raises:
            ResultError: the run failed; raised by the loop, after the last piece of text.
            Interrupted: it was interrupted; raised there too.

        Example::

            async for text in ph.query("Explain this repo").text_stream():
                print(text, end="", flush=True)
        """
        from pilothouse.client.events import TextReader  # most queries are awaited, or read as messages

        self._want_partial_messages()
        return self._reading(TextReader().read, again=self._again, finish=self._raise_failure)

    async def _raise_failure(self) -> None:
        (await self.result()).raise_for_error()

    def events(self) -> Reading[AnswerEvent]:
        """What happens, by meaning: text and thinking deltas, tools, permissions, retries, rejected outputs, the end.

        Turns `partial_messages` on, as `text_stream` does. The last one is `AnswerFinished`, whose `error` is that of a
        failed run. Permissions come after the tool call that they are about, from the moment that this is called.
        """
        self._want_partial_messages()
        self._plan.tells_asks = True
        if self._run is not None:
            self._run.tells_asks = True
        return self._reading(self._plan.event_reader(), again=self._again)

    def _want_partial_messages(self) -> None:
        if self._run is None:
            self._plan.with_partial_messages()

    async def start(self) -> Self:
        """Start the child now and wait until it runs. Reading starts it by itself.

        Raises:
            ProcessError: it could not be started. (G2)
        """
        try:
            await self._running().start()
        except BaseException:
            await self._leave()
            raise
        return self

    def _running(self) -> Run:
        if self._run is None:
            if self._closed:
                raise SessionClosedError("the query is closed; make a new one")
            self._call = caller_into_loop()
            self._run = self._plan.start()
        return self._run

    async def __aenter__(self) -> Self:
        self._managed = True
        try:
            return await self.start()
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def result(self) -> QueryResult[OutputT]:
        """Read to the end and return the whole answer; the same object every time. (L55, L57).

        After a loop over the query it reads the rest. `on_message` is called once for every message, in order; what
        it raises is logged and kept in `QueryResult.callback_errors`, and the stream goes on. (L61)

        Raises:
            ProcessError: the child could not be started, or ended before the answer was complete.
            QueryTimeout: `timeout`, `idle_timeout` or `startup_timeout` ran out.
            ControlError, ControlTimeout: the handshake failed, or what `wait_for_mcp` waits for.
            SessionClosedError: the query was closed before.
        """
        if self._result is not None:
            return self._result
        self._collecting = self._collecting or not self._kept  # nothing was streamed before
        try:
            if not self._early_interrupt:
                messages: Reading[Message] = self._reading(None, again=None)
                async for message in messages:
                    if self._on_message is not None:
                        await self._report(self._on_message, message)
                await self._running().finished()
        except BaseException:
            await self._leave()
            raise
        if self._result is None:  # tasks may wait for it together
            self._result = self._make_result()
        return self._result

    async def _report(self, callback: OnMessage, message: Message) -> None:
        try:
            answer = callback(message)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:
            if not self._callback_errors:
                log.error(
                    "on_message raised; the query goes on (further errors are in callback_errors)",
                    exc_info=log_info(error),
                )
            self._callback_errors.append(error)

    def _make_result(self) -> QueryResult[OutputT]:
        run = self._run
        interrupted = self._early_interrupt or (run is not None and run.interrupted)
        result = QueryResult[OutputT](
            self._kept,
            structured_expected=self._plan.output is not None,
            interrupted=interrupted,
            failure=Interrupted("the query was interrupted", result=run.result) if run and run.cut_short else None,
            callback_errors=self._callback_errors,
            incomplete=self._overflowed,
            one_of_many=self._plan.is_one_of_many,
            until_idle=self._plan.options.until == "idle",
        )
        self._plan.settle(result, self._kept)
        result.log_if_unseen()
        return result

    async def interrupt(self) -> None:
        """Stop the answer and wait until the CLI has stopped; the outcome is then `interrupted`. (E34, E78, R17).

        Before the query was started, it never starts. When nothing runs any more, returns at once. Of several prompts,
        it stops the one that is being answered; later ones are still answered, and the last one decides the outcome.

        Raises:
            UsageError: in the argv form, which has no control protocol. (R16)
            ControlError, ControlTimeout: the CLI refused, or did not answer.
        """
        if self._run is not None:
            await self._run.interrupt()
        elif not self._closed:
            self._early_interrupt = True

    async def aclose(self) -> None:
        """End the query and wait until the child is gone. Idempotent, bounded, safe from any task. (G6, G11, L52)."""
        self._closed = True
        if self._run is not None:
            self._run.stop()
            with anyio.CancelScope(shield=True):
                await self._run.finished()
        else:
            await self._plan.discard()

    def __del__(self) -> None:
        if self._run is None and not (self._closed or self._early_interrupt or sys.is_finalizing()) and self.hint:
            warnings.warn(f"query {self._plan.shown_prompt} {self.hint}", RuntimeWarning, stacklevel=2, source=self)
        self._end_soon()

    # What a reading calls.

    def _reading(
        self,
        read: Callable[[Message], Iterator[T]] | None,
        *,
        again: Callable[[bool], list[Message] | None] | None,
        finish: Callable[[], Awaitable[None]] | None = None,
    ) -> Reading[T]:
        return Reading(self._unread, self._next_batch, self._leave, self._drop, read, finish, again)

    def _again(self, late: bool) -> list[Message] | None:
        """All messages, for a loop that begins after the end; None: it goes on where others were left."""
        if not self._exhausted or self._unread:
            return None
        if late and not (self._closed and not self._managed):
            return None  # loops of several tasks share the messages, and one in a block goes on where another was left
        if self._overflowed:
            raise UsageError(
                "this query was read before and said more than is kept beside a stream, so its messages cannot be read "
                "again; `await` it first, which keeps them all, or make a new query"
            )
        return self._kept

    async def _next_batch(self) -> list[Message]:
        """The next messages, kept for the result as far as they should be; empty at the end."""
        if self._early_interrupt:
            self._exhausted = True
            return []
        try:
            batch, size = await self._running().next_batch()
        except PilothouseError as error:
            self._plan.explain(error)
            raise
        self._exhausted = not batch
        self._keep(batch, size)
        return batch

    def _keep(self, batch: list[Message], size: int) -> None:
        if self._overflowed:
            self._kept.extend(m for m in batch if m.__class__ in ALWAYS_KEPT)
            return
        self._kept.extend(batch)
        if not self._collecting:
            self._kept_bytes += size
            if self._kept_bytes > STREAM_KEEP_BYTES:
                self._overflowed = True
                # The first message names the session, the results hold the answer.
                self._kept = [m for i, m in enumerate(self._kept) if i == 0 or m.__class__ in ALWAYS_KEPT]

    async def _leave(self) -> None:
        """Reading was given up before the end: without a block that owns the query, that ends it."""
        if not self._managed:
            await self.aclose()

    def _drop(self) -> None:
        """The same, told by a finalizer: from any thread, at any moment."""
        if not self._managed:
            self._end_soon()

    def _end_soon(self) -> None:
        if self._run is not None and self._call is not None and not self._run.over:
            self._closed = True
            self._call(self._run.stop)
