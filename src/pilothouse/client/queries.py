"""`Query`: one prompt being answered.

Owns the three ways to read an answer (await it, iterate over it, both) and when it is over. The child belongs to a
task of the driver, so a query may be started, read, interrupted and closed from any task of the loop.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio

from pilothouse.client.events import AnswerEvent, EventReader, TextReader
from pilothouse.client.house import house_of, started_with
from pilothouse.client.prompt import Prompt, checked_text, prepare
from pilothouse.client.result import QueryResult
from pilothouse.driver import Continuation, Exchange, Limits, Prompts, caller_into_loop, spawn
from pilothouse.errors import Interrupted, OptionsError, PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import Message, ResultMessage
from pilothouse.options import Options, render
from pilothouse.transports import CliTransport, Transport

if TYPE_CHECKING:
    from pilothouse.client.bridging import Bridge
    from pilothouse.client.budgets import TokenBudget
    from pilothouse.client.costs import Ledger
    from pilothouse.client.observing import Observation
    from pilothouse.client.output import TypedOutput
    from pilothouse.client.rate_gate import RateGate
    from pilothouse.client.retrying import Retries
    from pilothouse.driver.turn import Turn

log = logging.getLogger("pilothouse")

OnMessage = Callable[[Message], object]
MakeRun = Callable[[Options, Prompts, Continuation | None], "Exchange | Turn"]
"""Makes what runs a query: with a child of its own, or as a turn of a session."""
T = TypeVar("T")

# What is kept beside a stream, in bytes of lines, so that `result()` after a loop has the messages of any ordinary
# answer while the memory of an endless one stays bounded (E79).
STREAM_KEEP_BYTES = 4 * 1024 * 1024


class Query:
    """One prompt being answered. Made by `query()` and `Agent.query()`.

    Nothing runs until it is used in one of these ways (E51)::

        result = await query                      # the whole answer
        async for message in query: ...           # messages as they come; leaving the loop ends the child
        async with query: ...                     # started on entry, ended on exit; loops may be left and entered again

    The child is gone when `await` returns, when a loop has ended, when the block is left, and when the query is
    dropped. Errors of the run itself (`max_turns`, API errors …) are values on the result; what keeps an answer from
    coming at all is raised.

    Raises:
        UsageError: a prompt or option that cannot work; raised here, before anything is started.
    """

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
        gate: RateGate | None = None,
    ) -> None:
        self._exchange: Exchange | Turn | None = None  # first: `__del__` looks at it
        self._make_run = make_run
        self._is_one_of_many = bool(make_run or options.resume or options.continue_conversation)
        if on_message is not None and not callable(on_message):
            raise UsageError(f"on_message: expected a callable, got {type(on_message).__name__}")
        self._options = options
        self._prompt = prompt
        self._on_message = on_message
        self._output = self._expect(output_type)
        self._house = house_of(self._options, bridge=bridge) if make_run is None else None
        self._bridge = bridge if self._house is None else self._house.bridge
        self._budget = self._limited(ledger)
        self._retries = self._persistent(gate)
        self._prompts = self._prepare()
        self._call: Callable[[Callable[[], object]], None] | None = None
        self._unread: deque[Message] = deque()  # taken from the exchange, not yet given out
        self._kept: list[Message] = []
        self._kept_bytes = 0
        self._overflowed = False
        self._collecting = False
        self._managed = False
        self._early_interrupt = False
        self._closed = False
        self._result: QueryResult | None = None
        self._callback_errors: list[Exception] = []

    def _expect(self, output_type: Any) -> TypedOutput | None:
        schema = self._options.json_schema
        if output_type is None and schema is None:
            return None
        from pilothouse.client.output import ExpectedOutput, TypedOutput  # most queries do without

        repairs = self._options.output_repairs
        if output_type is None:
            return TypedOutput(ExpectedOutput.of_schema(schema or {}), repairs)
        expected = ExpectedOutput.of_type(output_type)
        if schema is not None and schema != expected.schema:
            raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
        self._options = self._options.with_(json_schema=expected.schema)
        return TypedOutput(expected, repairs)

    def _limited(self, ledger: Ledger | None) -> TokenBudget | None:
        if self._options.max_budget_tokens is None:
            return None
        from pilothouse.client.budgets import TokenBudget  # most queries do without

        return TokenBudget(self._options, ledger)

    def _persistent(self, gate: RateGate | None) -> Retries | None:
        if self._options.retry is None and self._options.on_usage_limit == "raise":
            return None
        from pilothouse.client.retrying import Retries  # most queries do without

        return Retries(self._options, gate)

    def _prepare(self) -> Prompts:
        if self._options.prompt_via == "argv":
            if not isinstance(self._prompt, str):
                raise UsageError("prompt_via='argv' takes a text prompt; use 'stdin' for blocks and iterables")
            render(self._options, {}, prompt=checked_text(self._prompt))
            return ()
        return prepare(self._prompt, verbatim=self._options.verbatim_prompts)

    @property
    def session_id(self) -> str | None:
        """Id of the session, None before the first message. (E28, L47)."""
        return self._exchange.session_id if self._exchange is not None else None

    @property
    def options(self) -> Options:
        """The options it runs with."""
        return self._options

    def __await__(self) -> Generator[Any, Any, QueryResult]:
        return self.result().__await__()

    def __aiter__(self) -> Reading[Message]:
        return self._reading(None)

    def text_stream(self) -> Reading[str]:
        """The text of the answer while it is written; nothing else, nothing twice. (E53).

        Turns `partial_messages` on; after the start it gives whole blocks unless that was set.
        """
        self._want_partial_messages()
        return self._reading(TextReader().read)

    def events(self) -> Reading[AnswerEvent]:
        """What happens, by meaning: text and thinking deltas, tools, retries, rejected outputs, the end.

        Turns `partial_messages` on, as `text_stream` does.
        """
        self._want_partial_messages()
        read = EventReader(runs_deferred=self._bridge is not None).read
        if self._budget is not None:
            read = self._budget.reporting(read)
        return self._reading(read if self._output is None else self._output.reporting(read))

    def _want_partial_messages(self) -> None:
        if self._exchange is None:
            self._options = self._options.with_(partial_messages=True)

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

    def _running(self) -> Exchange | Turn:
        if self._exchange is None:
            if self._closed:
                raise SessionClosedError("the query is closed; make a new one")
            options = self._options
            make = self._make_run or self._alone  # not kept: a query in a cycle would not end when it is dropped
            continuation = self._continuation()
            observation = self._observed(continuation) if options.instrumentation else None
            if observation is None:
                self._exchange = exchange = make(options, self._prompts, continuation)
            else:
                self._exchange = exchange = observation.of(partial(make, options, self._prompts, observation))
            if self._budget is not None:
                self._budget.enforced_by(exchange.interrupt)
            if self._retries is not None:
                self._retries.serves(exchange)
            self._call = caller_into_loop()
            start = spawn if observation is None else observation.spawn
            start(exchange.run, "pilothouse query")
        return self._exchange

    def _observed(self, continuation: Continuation | None) -> Observation | None:
        from pilothouse.client.observing import observe  # most queries do without

        how = {"in_session": self._make_run is not None, "one_of_many": self._is_one_of_many}
        return observe(self._options, self._prompt, continuation, **how)

    def _continuation(self) -> Continuation | None:
        following = self._following()
        if self._retries is not None:
            following = self._retries.around(following)
            self._prompts = self._retries.watched(self._prompts)
        return following if self._budget is None else self._budget.around(following)

    def _following(self) -> Continuation | None:
        if self._options.prompt_via != "stdin" or (self._output is None and self._bridge is None):
            return None
        from pilothouse.client.repairs import Repairs  # most queries do without

        repairs = None if self._output is None else Repairs(self._output)
        if self._bridge is None:
            return repairs
        from pilothouse.client.bridging import Bridged

        bridged = Bridged(self._bridge.steps(), self._prompts, repairs)
        self._prompts = bridged.first
        return bridged

    def _alone(self, options: Options, prompts: Prompts, continuation: Continuation | None) -> Exchange:
        in_argv = options.prompt_via == "argv" and isinstance(self._prompt, str)
        prompt = str(self._prompt) if in_argv else None
        invocation, host = started_with(options, self._house, prompt)
        if options.instrumentation:
            from pilothouse.client.observing import started_watched

            invocation, host = started_watched(continuation, invocation, host, options)
        return Exchange(transport_of(options), invocation, prompts, limits_of(options), continuation, host)

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

    async def result(self) -> QueryResult:
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
                async for message in self:
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
                log.exception("on_message raised; the query goes on (further errors are in callback_errors)")
            self._callback_errors.append(error)

    def _make_result(self) -> QueryResult:
        run = self._exchange
        interrupted = self._early_interrupt or (run is not None and run.interrupted)
        result = QueryResult(
            self._kept,
            structured_expected=self._output is not None,
            interrupted=interrupted,
            failure=Interrupted("the query was interrupted", result=run.result) if run and run.cut_short else None,
            callback_errors=self._callback_errors,
            incomplete=self._overflowed,
            one_of_many=self._is_one_of_many,
        )
        if self._budget is not None:
            self._budget.settle(result)
        if self._output is not None:
            self._output.settle(result, self._kept)
        if self._retries is not None:
            self._retries.explained(result.error)
        return result

    async def interrupt(self) -> None:
        """Stop the answer and wait until the CLI has stopped; the outcome is then `interrupted`. (E34, E78, R17).

        Before the query was started, it never starts. When nothing runs any more, returns at once. Of several prompts,
        it stops the one that is being answered; later ones are still answered, and the last one decides the outcome.

        Raises:
            UsageError: in the argv form, which has no control protocol. (R16)
            ControlError, ControlTimeout: the CLI refused, or did not answer.
        """
        if self._exchange is not None:
            await self._exchange.interrupt()
        elif not self._closed:
            self._early_interrupt = True

    async def aclose(self) -> None:
        """End the query and wait until the child is gone. Idempotent, bounded, safe from any task. (G6, G11, L52)."""
        self._closed = True
        if self._exchange is not None:
            self._exchange.stop()
            with anyio.CancelScope(shield=True):
                await self._exchange.finished()
        elif isinstance(self._prompts, AsyncGenerator):
            await self._prompts.aclose()

    def __del__(self) -> None:
        self._end_soon()

    # What a reading calls.

    def _reading(self, read: Callable[[Message], Iterator[T]] | None) -> Reading[T]:
        return Reading(self._unread, self._next_batch, self._leave, self._drop, read)

    async def _next_batch(self) -> list[Message]:
        """The next messages, kept for the result as far as they should be; empty at the end."""
        if self._early_interrupt:
            return []
        try:
            batch, size = await self._running().next_batch()
        except PilothouseError as error:
            if self._output is not None:
                self._output.explained(error)
            if self._retries is not None:
                self._retries.explained(error)
            raise
        self._keep(batch, size)
        return batch

    def _keep(self, batch: list[Message], size: int) -> None:
        if self._overflowed:
            if ResultMessage in map(type, batch):
                self._kept.extend(m for m in batch if isinstance(m, ResultMessage))
            return
        self._kept.extend(batch)
        if not self._collecting:
            self._kept_bytes += size
            if self._kept_bytes > STREAM_KEEP_BYTES:
                self._overflowed = True
                # The first message names the session, the results hold the answer.
                self._kept = [m for i, m in enumerate(self._kept) if i == 0 or isinstance(m, ResultMessage)]

    async def _leave(self) -> None:
        """Reading was given up before the end: without a block that owns the query, that ends it."""
        if not self._managed:
            await self.aclose()

    def _drop(self) -> None:
        """The same, told by a finalizer: from any thread, at any moment."""
        if not self._managed:
            self._end_soon()

    def _end_soon(self) -> None:
        if self._exchange is not None and self._call is not None and not self._exchange.over:
            self._closed = True
            self._call(self._exchange.stop)


class Reading(Generic[T]):
    """One loop over a query: its messages, or what `read` makes of each.

    Not a generator: a generator would run its cleanup wherever it happens to be collected. Dropping this object tells
    the query that the loop was left.

    Attributes:
        unread: messages that were taken over and not given out; the readings of a query share them, so that the next
            loop goes on where one was left. Other threads may take from it too.
    """

    __slots__ = ("_begun", "_drop", "_ended", "_items", "_leave", "_next_batch", "_read", "unread")

    def __init__(
        self,
        unread: deque[Message],
        next_batch: Callable[[], Awaitable[list[Message]]],
        leave: Callable[[], Awaitable[None]],
        drop: Callable[[], None],
        read: Callable[[Message], Iterator[T]] | None,
    ) -> None:
        self.unread = unread
        self._next_batch = next_batch
        self._leave = leave
        self._drop = drop
        self._read = read
        self._items: deque[T] = deque()  # what `read` made of the last message
        self._begun = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        items, unread, read = self._items, self.unread, self._read
        self._begun = True
        while not items:
            try:
                message: Any = unread.popleft()
            except IndexError:
                if not await self.fill():
                    raise StopAsyncIteration from None
                continue
            if read is None:
                return message
            items.extend(read(message))
        return items.popleft()

    async def fill(self) -> bool:
        """Wait until there are unread messages; False when there is nothing more."""
        self._begun = True
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
        return True

    async def aclose(self) -> None:
        """Leave the loop, which ends the query unless an `async with` block owns it."""
        if not self._ended:
            await self._leave()

    def __del__(self) -> None:
        if self._begun and not self._ended:
            self._drop()


def transport_of(options: Options) -> Transport:
    """The transport that `options` ask for, not started.

    Raises:
        OptionsError: what was given is none.
    """
    wanted = options.transport
    if wanted is None:
        return CliTransport()
    made = wanted if isinstance(wanted, Transport) else wanted()
    if not isinstance(made, Transport):
        raise OptionsError(
            f"option 'transport': expected a Transport, or a callable that makes one, got {type(made).__name__}",
            option="transport",
        )
    return made


def limits_of(options: Options) -> Limits:
    """The bounds that `options` set."""
    return Limits(
        timeout=options.timeout,
        idle_timeout=options.idle_timeout,
        startup_timeout=options.startup_timeout,
        control_timeout=options.control_timeout,
        max_line_bytes=options.max_line_bytes,
    )
