"""`Query`: one prompt being answered.

Owns the three ways to read an answer (await it, iterate over it, both) and when it is over. The child belongs to a
task of the driver, so a query may be started, read, interrupted and closed from any task of the loop.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from pilothouse.client.events import AnswerEvent, EventReader, TextReader
from pilothouse.client.output import convert, schema_of
from pilothouse.client.prompt import Prompt, checked_text, prepare
from pilothouse.client.result import QueryResult
from pilothouse.driver import Exchange, Limits, Outgoing, caller_into_loop, spawn
from pilothouse.errors import OptionsError, SessionClosedError, StructuredOutputError, UsageError
from pilothouse.messages import Message, ResultMessage
from pilothouse.options import Options, render
from pilothouse.transports import CliTransport, Transport

log = logging.getLogger("pilothouse")

OnMessage = Callable[[Message], object]
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
    ) -> None:
        if on_message is not None and not callable(on_message):
            raise UsageError(f"on_message: expected a callable, got {type(on_message).__name__}")
        self._exchange: Exchange | None = None
        self._options = options
        self._prompt = prompt
        self._on_message = on_message
        self._output_type = output_type
        if output_type is not None:
            if options.json_schema is not None:
                raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
            self._options = options.with_(json_schema=schema_of(output_type))
        self._prompts = self._prepare()
        self._call: Callable[[Callable[[], object]], None] | None = None
        self._kept: list[Message] = []
        self._kept_bytes = 0
        self._overflowed = False
        self._collecting = False
        self._managed = False
        self._early_interrupt = False
        self._closed = False
        self._result: QueryResult | None = None
        self._callback_errors: list[Exception] = []

    def _prepare(self) -> tuple[Outgoing, ...] | AsyncGenerator[Outgoing, None]:
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

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._reading()

    def text_stream(self) -> AsyncIterator[str]:
        """The text of the answer while it is written; nothing else, nothing twice. (E53).

        Turns `partial_messages` on; after the start it gives whole blocks unless that was set.
        """
        self._want_partial_messages()
        return _Reading(self._next_batch, self._leave, self._drop, TextReader().read)

    def events(self) -> AsyncIterator[AnswerEvent]:
        """What happens, by meaning: text and thinking deltas, tools started and finished, retries, the end.

        Turns `partial_messages` on, as `text_stream` does.
        """
        self._want_partial_messages()
        return _Reading(self._next_batch, self._leave, self._drop, EventReader().read)

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

    def _running(self) -> Exchange:
        if self._exchange is None:
            if self._closed:
                raise SessionClosedError("the query is closed; make a new one")
            options = self._options
            in_argv = options.prompt_via == "argv"
            prompt = self._prompt if in_argv and isinstance(self._prompt, str) else None
            self._exchange = Exchange(
                _transport(options), render(options, os.environ, prompt=prompt), self._prompts, _limits(options)
            )
            self._call = caller_into_loop()
            spawn(self._exchange.run, "pilothouse query")
        return self._exchange

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
            QueryTimeout: `timeout` or `idle_timeout` ran out.
            ControlError, ControlTimeout: the handshake failed.
            SessionClosedError: the query was closed before.
        """
        if self._result is not None:
            return self._result
        self._collecting = self._collecting or not self._kept  # nothing was streamed before
        try:
            if not self._early_interrupt:
                async for message in self._reading():
                    if self._on_message is not None:
                        await self._report(self._on_message, message)
                await self._running().finished()
        except BaseException:
            await self._leave()
            raise
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
        interrupted = self._early_interrupt or (self._exchange is not None and self._exchange.interrupted)
        schema_used = self._options.json_schema is not None
        result = QueryResult(
            self._kept,
            structured_expected=schema_used,
            interrupted=interrupted,
            callback_errors=self._callback_errors,
            incomplete=self._overflowed,
        )
        if schema_used and result.is_success:
            self._type_output(result)
        return result

    def _type_output(self, result: QueryResult) -> None:
        # Without a call of its output tool the CLI still reports success (2.1.330), so the check is ours.
        try:
            if result.structured is None:
                raise StructuredOutputError(
                    "the model gave no structured output; ask for it in the prompt, or simplify the schema"
                )
            wanted = self._output_type
            result.output = result.structured if wanted is None else convert(wanted, result.structured)
        except StructuredOutputError as error:
            error.result = result.result
            result.error = error

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
        elif not isinstance(self._prompts, tuple):
            await self._prompts.aclose()

    def __del__(self) -> None:
        self._end_soon()

    # What a reading calls.

    def _reading(self) -> _Reading[Message]:
        return _Reading(self._next_batch, self._leave, self._drop, None)

    async def _next_batch(self) -> list[Message]:
        """The next messages, kept for the result as far as they should be; empty at the end."""
        if self._early_interrupt:
            return []
        batch, size = await self._running().next_batch()
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


class _Reading(Generic[T]):
    """One loop over a query: its messages, or what `read` makes of each.

    Not a generator: a generator would run its cleanup wherever it happens to be collected. Dropping this object tells
    the query that the loop was left.
    """

    __slots__ = ("_begun", "_buffer", "_drop", "_ended", "_leave", "_next_batch", "_read")

    def __init__(
        self,
        next_batch: Callable[[], Awaitable[list[Message]]],
        leave: Callable[[], Awaitable[None]],
        drop: Callable[[], None],
        read: Callable[[Message], Iterator[T]] | None,
    ) -> None:
        self._next_batch = next_batch
        self._leave = leave
        self._drop = drop
        self._read = read
        self._buffer: deque[Any] = deque()  # shared by all tasks that read through this object
        self._begun = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        buffer, read = self._buffer, self._read
        self._begun = True
        while not buffer:
            if self._ended:
                raise StopAsyncIteration
            batch = await self._next_batch()
            self._ended = not batch
            buffer.extend(batch if read is None else (item for message in batch for item in read(message)))
        return buffer.popleft()

    async def aclose(self) -> None:
        """Leave the loop, which ends the query unless an `async with` block owns it."""
        if not self._ended:
            await self._leave()

    def __del__(self) -> None:
        if self._begun and not self._ended:
            self._drop()


def _transport(options: Options) -> Transport:
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


def _limits(options: Options) -> Limits:
    return Limits(
        timeout=options.timeout,
        idle_timeout=options.idle_timeout,
        control_timeout=options.control_timeout,
        max_line_bytes=options.max_line_bytes,
    )
