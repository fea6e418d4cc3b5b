"""`Query`: one prompt being answered; the loops over it, and the words that steer it.

A query can be awaited, iterated over, or both. It decides what is sent, which middlewares stand around its run, and how
the answer is read; `launch` makes the child, and the engine knows what happens on the wire. The child belongs to a task
of the engine, so a query may be started, read, interrupted and closed from any task of the loop.

`MessageIterator` is one loop over a query; `Steering` is what became of words for a turn that runs.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeAlias, TypeVar, cast, get_args
from uuid import uuid4

import anyio
from msgspec import Struct

from pilothouse.callbacks import check_signature
from pilothouse.client.budgets import TokenBudget
from pilothouse.client.costs import CostTracker
from pilothouse.client.custom_tools import ToolBridge
from pilothouse.client.event_reader import EventReader, TextReader
from pilothouse.client.handlers import make_handlers
from pilothouse.client.launch import known_environ, make_own_run
from pilothouse.client.middleware import Middleware, change_prompts, make_custom
from pilothouse.client.observation import make_observation
from pilothouse.client.prompt import Prompt, check_text, make_steering_prompt, prepare_prompts
from pilothouse.client.result import CONNECTION_FAILED, OutputT, QueryResult, make_result_error
from pilothouse.client.retry import QueryRetry, SharedRateLimits
from pilothouse.client.structured_output import OutputValidator, make_output_validator
from pilothouse.engine import Prompts, QueryRun, call_in_loop, running_loop, spawn
from pilothouse.engine.run import RunState
from pilothouse.errors import AuthenticationError, Interrupted, PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import AssistantMessage, DoneMessage, LineSkippedMessage, Message, ResultMessage
from pilothouse.messages.decoder import share_equal_values
from pilothouse.options import Options, render
from pilothouse.tracebacks import make_exc_info, user_class

if TYPE_CHECKING:
    from pilothouse.events import QueryEvent


T = TypeVar("T")

log = logging.getLogger("pilothouse")

QueryState = Literal["new"] | RunState
OnMessage = Callable[[Message], object]
MakeRun: TypeAlias = Callable[[Options, Prompts, Sequence[Middleware]], QueryRun]
"""Makes the run of a query: with a child of its own, or as a turn of a session."""

SHORT_PROMPT_CHARS = 40  # characters, in a warning


class SessionContext(Struct, frozen=True):
    """What a session gives its queries.

    Args:
        make_run: makes the run as a turn of the session.
        costs: what the session has cost so far.
        max_tokens: how many tokens all queries of the session may use; None: no limit.
    """

    make_run: MakeRun
    costs: CostTracker
    max_tokens: int | None


# Bytes of lines that are kept beside a stream: `result()` after a loop has all messages of an ordinary answer, while
# the memory of an endless one stays bounded.
STREAM_KEEP_BYTES = 4 * 1024 * 1024
ALWAYS_KEPT = (ResultMessage, DoneMessage, LineSkippedMessage)
"""Messages that determine the outcome of an answer and the count of lost lines."""


class ReceivedMessages:
    """What a query has taken from its run.

    Attributes:
        unread: messages that no loop has seen yet; all loops share them.
        kept: messages for the result.
        keeps_all: whether `kept` has no limit, because `result()` reads and no loop.
        is_complete: whether everything was taken.
    """

    def __init__(self) -> None:
        self.unread: deque[Message] = deque()
        self.kept: list[Message] = []
        self.keeps_all = False
        self.is_complete = False
        self._streamed_bytes = 0
        self._last_kept: AssistantMessage | None = None

    @property
    def has_overflowed(self) -> bool:
        """Whether `kept` has only what determines the outcome, because there was more than a stream keeps."""
        return self._streamed_bytes > STREAM_KEEP_BYTES

    def keep(self, batch: list[Message], size: int) -> None:
        """Keep a batch of `size` bytes for the result, within the limit; an empty one is the end."""
        self.is_complete = not batch
        if self.has_overflowed:
            self.kept.extend(m for m in batch if m.__class__ in ALWAYS_KEPT)
            return
        self.kept.extend(batch)
        if self.keeps_all:
            self._last_kept = share_equal_values(batch, self._last_kept)
            return
        self._streamed_bytes += size
        if self.has_overflowed:
            # The first message names the session, the results contain the answer.
            self.kept = [m for i, m in enumerate(self.kept) if i == 0 or m.__class__ in ALWAYS_KEPT]


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
    _early_end: Literal["interrupted", "closed"] | None = "closed"

    def __init__(
        self,
        prompt: Prompt,
        options: Options,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        bridge: ToolBridge | None = None,
        rate_limits: SharedRateLimits | None = None,
        session: SessionContext | None = None,
    ) -> None:
        if on_message is not None and not callable(on_message):
            raise UsageError(f"on_message: expected a callable, got {type(on_message).__name__}")
        if on_message is not None:
            check_signature(on_message, "on_message", "message")
        self._on_message = on_message
        self._options = options
        self._output: OutputValidator | None = None
        if output_type is not None or options.json_schema is not None:
            self._options, self._output = make_output_validator(options, output_type)
        self._session = session
        if session is None:
            handlers = make_handlers(self._options, bridge=bridge)
            bridge = bridge if handlers is None else handlers.bridge
            self._make_run = partial(make_own_run, prompt, handlers)
        else:
            self._make_run = session.make_run
        self._bridge = bridge
        self._middlewares = self._make_middlewares(rate_limits)
        self._prompt = prompt
        self._prompts = self._make_prompts()
        given = self._prompts if isinstance(self._prompts, Sequence) else ()
        self._id = given[0].uuid if given else str(uuid4())
        self._wants_approval_notes = False
        self._loop: object = None
        self._received = ReceivedMessages()
        self._is_managed = False
        # How to send the prompt, for the warning about an unused query; "" once it was used.
        self.unsent_hint = "`await` it, read it with `async for` or `async with`, or close it"
        self._result: QueryResult[OutputT] | None = None
        self._callback_errors: list[Exception] = []
        self._early_end = None  # what ended it before its start, or that it was closed

    def _make_middlewares(self, rate_limits: SharedRateLimits | None) -> list[Middleware]:
        options, session = self._options, self._session
        made: list[Middleware] = [make_custom(make) for make in options.middleware or ()]  # the outermost first
        inner: list[Middleware] = []
        if self._bridge is not None:
            outermost, innermost = self._bridge.make_middlewares()
            made.append(outermost)
            inner.append(innermost)
        if self._output is not None:
            made.append(self._output)
        made += inner
        if options.retry is not None or options.on_usage_limit == "wait":
            made.append(QueryRetry(options, rate_limits))
        if options.max_budget_tokens is not None:
            costs, limit = (None, None) if session is None else (session.costs, session.max_tokens)
            made.append(TokenBudget(options, costs, limit))
        return made

    def _make_prompts(self) -> Prompts:
        if self._options.prompt_via == "stdin":
            return prepare_prompts(self._prompt, verbatim=self._options.verbatim_prompts)
        if not isinstance(self._prompt, str):
            raise UsageError("prompt_via='argv' takes a text prompt; use 'stdin' for blocks and iterables")
        render(self._options, {}, prompt=check_text(self._prompt))  # raises here, before anything is started
        return ()

    @property
    def id(self) -> str:
        """Id of this query, and the uuid of its first prompt, where that is known before the start.

        Messages and results that answer the prompt name it as `user_message_uuid`.
        """
        return self._id

    @property
    def state(self) -> QueryState:
        """The state of the query.

        "new" until it is started; "queued" while it waits for its turn in a session, or for a limit of the API; then
        "active". At the end "completed" with a result, even one that reports an error; "interrupted"; "failed"
        without a result, so that `result()` raises; or "closed" before the result had arrived.
        """
        if self._run is not None:
            return self._run.state
        return self._early_end or "new"

    @property
    def has_begun(self) -> bool:
        """Whether its turn has come. Stays True to the end, and False in a query that ended before.

        Until then `state` is "new" or "queued", and `steer` would wait.
        """
        return self._run is not None and self._run.turn.has_begun

    @property
    def session_id(self) -> str | None:
        """Id of the session, None before the first message."""
        return self._run.session_id if self._run is not None else None

    @property
    def options(self) -> Options:
        """The options of the query."""
        return self._options

    def __repr__(self) -> str:
        session = "" if self.session_id is None else f", session_id={self.session_id!r}"
        hint = f", not sent yet: {self.unsent_hint}" if self.state == "new" and self.unsent_hint else ""
        return f"<Query {self.id}: {self.state}{session}{hint}>"

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
        self._wants_approval_notes = True
        if self._run is not None:
            self._run.enable_approval_notes()
        read = EventReader(runs_deferred=self._bridge is not None, read_error=self._find_error).read
        for middleware in reversed(self._middlewares):
            read = middleware.wrap_events(read)
        return self._make_iterator(read)

    def _find_error(self, result: ResultMessage, before: Sequence[Message]) -> PilothouseError | None:
        """The error of the answer if `result` is its last result."""
        if self._output is not None and self._output.is_repaired(result):
            return None
        messages = [*before, result]
        answer = QueryResult[Any](messages, structured_expected=self._output is not None)
        self._complete_result(answer, messages)
        return answer.error

    def _want_partial_messages(self) -> None:
        if self._run is None:
            self._options = self._options.with_(partial_messages=True)

    async def start(self) -> Self:
        """Start the child now and wait until it runs. Reading starts it automatically.

        Raises:
            ProcessError: the child could not be started.
        """
        if self._early_end == "interrupted":
            return self
        try:
            await self._ensure_started().wait_started()
        except BaseException:
            await self._close_unmanaged()
            raise
        return self

    def _ensure_started(self) -> QueryRun:
        if self._run is None:
            if self._early_end == "closed":
                raise SessionClosedError(
                    "the query was closed before its prompt was sent, so it has no result; make a new query(…)"
                )
            self._loop = running_loop()
            self._run = self._start_run()
        else:
            self._check_loop(self._run)
        return self._run

    def _start_run(self) -> QueryRun:
        """Make the run, and start it in a task of its own."""
        options, middlewares, start = self._options, self._middlewares, spawn
        observation = None
        if options.instrumentation:
            how = {"in_session": self._session is not None, "one_of_many": self._is_continuation}
            observation = make_observation(options, self._prompt, middlewares, **how)
        if observation is not None:
            middlewares, start = [observation, *middlewares], observation.spawn
        prompts = self._prompts
        for middleware in middlewares:
            prompts = change_prompts(middleware, prompts)
        try:
            run = self._make_run(options, prompts, middlewares)
        except BaseException as error:
            if observation is not None:
                observation.finish(error)
            raise
        if self._wants_approval_notes:
            run.enable_approval_notes()
        run.get_query = weakref.ref(self)  # weak: a query that is dropped has to end
        for middleware in middlewares:
            middleware.on_start(run)
        start(run.run, "pilothouse query")
        return run

    @property
    def _is_continuation(self) -> bool:
        options = self._options
        return bool(self._session is not None or options.resume or options.continue_conversation)

    def _check_loop(self, run: QueryRun) -> None:
        if not run.is_finished and self._loop != running_loop():  # it would wait for ever
            raise UsageError("a query belongs to the event loop that started it; use it there, or make another")

    async def steer(
        self, content: str | Sequence[Any], *, when: SteerTime = "next", if_late: LateWords = "ask"
    ) -> Steering:
        """Give words to the turn that runs, without waiting for its end. Returns when they are on their way.

        Before the first turn, it waits until the prompt of this query was sent, and gives the words after it. While
        `has_begun` is False, nothing is sent: the query waits for its turn in a session, or for a limit of the API.

        The model reads them with the results of the tools that run now, before its next step; the answer is part of
        this query.

        Args:
            content: text, or content blocks.
            when: "next" (default): after the tools that run now. "now": the CLI ends the turn and goes on with the
                words in another, so that the query has two results. It stops a tool that is about to begin; a command
                that runs comes to its end first.
            if_late: what to do when the turn ends before the CLI has taken the words. "ask" (default): the query goes
                on with them, in another turn. "return": take them back, also when the query is interrupted. If the CLI
                does not say within `control_timeout` whether it has them, the query ends without them.

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
        prompt = make_steering_prompt(content, when, verbatim=self._options.verbatim_prompts)
        if self._run is None:
            raise UsageError("the query has not started: read it, or `await query.start()`, before you steer it")
        self._check_loop(self._run)
        before = await self._run.steer(prompt, is_returnable=if_late == "return")
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
        received = self._received
        received.keeps_all = received.keeps_all or not received.kept  # no loop has read anything before
        try:
            is_more = True
            while is_more:
                while received.unread:
                    message = received.unread.popleft()
                    if self._on_message is not None:
                        await self._run_on_message(self._on_message, message)
                batch = await self._next_batch()
                received.unread.extend(batch)
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
        except Exception as error:  # noqa: BLE001 - a mistake in it does not end the stream
            keep_callback_error(error, self._callback_errors)

    def _make_result(self) -> QueryResult[OutputT]:
        run = self._run
        interrupted = self._early_end == "interrupted" if run is None else run.turn.is_interrupted
        failure = Interrupted("the query was interrupted", result=run.result) if run and run.turn.is_cut_short else None
        result = QueryResult[OutputT](
            self._received.kept,
            structured_expected=self._output is not None,
            interrupted=interrupted,
            failure=failure,
            callback_errors=self._callback_errors,
            incomplete=self._received.has_overflowed,
            is_continuation=self._is_continuation,
            until_idle=self._options.until == "idle",
        )
        self._complete_result(result, self._received.kept)
        result.warn_if_unchecked()
        return result

    def _complete_result(self, result: QueryResult[Any], kept: list[Message]) -> None:
        closing = result.result
        if closing is not None and (
            isinstance(result.error, AuthenticationError) or closing.api_error == CONNECTION_FAILED
        ):
            result.error = make_result_error(closing, kept, env=known_environ(self._options))
        for middleware in reversed(self._middlewares):
            middleware.complete_result(result, kept)
        if result.error is not None:
            self._explain(result.error)

    def _explain(self, error: PilothouseError) -> None:
        for middleware in reversed(self._middlewares):
            middleware.explain(error)

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
        else:
            self._early_end = self._early_end or "interrupted"

    async def aclose(self) -> None:
        """End the query and wait until the child is gone. Idempotent, bounded, safe from any task."""
        if self._run is not None:
            self._check_loop(self._run)
        self._early_end = self._early_end or "closed"
        if self._run is not None:
            self._run.stop()
            with anyio.CancelScope(shield=True):
                await self._run.wait_finished()
        elif isinstance(self._prompts, AsyncGenerator):
            await self._prompts.aclose()

    def __del__(self) -> None:
        if self._run is None and self._early_end is None and self.unsent_hint and not sys.is_finalizing():
            text = f"query {_shorten(self._prompt)} was never sent: {self.unsent_hint}"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)
        self._stop_soon()

    # Called by the iterators.

    def _make_iterator(
        self, read: Callable[[Message], Iterator[T]] | None, finish: Callable[[], Awaitable[None]] | None = None
    ) -> MessageIterator[T]:
        close, close_soon = self._close_unmanaged, self._close_unmanaged_soon
        unread = self._received.unread
        return MessageIterator(unread, self._next_batch, close, close_soon, read, self._read_again, finish)

    def _read_again(self, is_late: bool) -> list[Message] | None:
        """All messages, for a loop that begins after the end; None: the loop continues where others were left."""
        received = self._received
        if not received.is_complete or received.unread:
            return None
        if is_late and not (self._early_end and not self._is_managed):
            return None  # tasks share the messages; in a block, a loop continues another
        if received.has_overflowed:
            raise UsageError(
                "this query was read before and produced more messages than a stream keeps, so its messages "
                "cannot be read again; `await` it first, which keeps them all, or make a new query"
            )
        return received.kept

    async def _next_batch(self) -> list[Message]:
        """Wait for the next messages and keep them for the result, within the limit; empty at the end."""
        if self._early_end == "interrupted":
            batch, size = list[Message](), 0
        else:
            try:
                batch, size = await self._ensure_started().next_batch()
            except PilothouseError as error:
                self._explain(error)
                raise
        self._received.keep(batch, size)
        return batch

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
            self._early_end = "closed"
            call_in_loop(self._loop, self._run.stop)


def keep_callback_error(error: Exception, kept: list[Exception]) -> None:
    """Keep what `on_message` raised, and log the first error of a query."""
    if not kept:
        log.error(
            "on_message raised; the query continues (further errors are in callback_errors)",
            exc_info=make_exc_info(error),
        )
    kept.append(error)


def _shorten(prompt: Any) -> str:
    """The beginning of the prompt, for a warning to the programmer."""
    if not isinstance(prompt, str):
        return "for a prompt of several messages"
    return repr(prompt if len(prompt) <= SHORT_PROMPT_CHARS else prompt[: SHORT_PROMPT_CHARS - 1] + "…")


SteerTime = Literal["next", "now"]
LateWords = Literal["ask", "return"]
SteerOutcome = Literal["taken", "next_turn", "query", "returned"]

_CHOICES: Final = {"when": get_args(SteerTime), "if_late": get_args(LateWords)}


class Steering:
    """Words that were given to a query while it works. Made by `Query.steer` and `Session.steer`."""

    def __init__(
        self, query: Query[Any] | None, run: QueryRun | None = None, uuid: str = "", before: int | None = None
    ) -> None:
        self._query = query
        self._run = run
        self._uuid = uuid
        self._before = before

    def __repr__(self) -> str:
        return f"<Steering of {self._query!r}>"

    @property
    def id(self) -> str:
        """Id of the words as a prompt, by which Claude Code's messages name them; "" where they became none."""
        return self._uuid or ("" if self._query is None else self._query.id)

    @property
    def query(self) -> Query[Any] | None:
        """The query that the words were given to, or that was made of them; None: neither."""
        return self._query

    @property
    def was_sent(self) -> bool:
        """Whether the words were given to a turn."""
        return self._before is not None

    async def outcome(self) -> SteerOutcome:
        """Wait until Claude Code has said what became of the words.

        Returns:
            "taken": the turn that ran has them, from its next request to the model on. "next_turn": that turn had
            ended, by itself or for them (`when="now"`), and the query went on with them. "query": no turn ran, so
            they became a query of the session, `query`. "returned": nobody has them.
        """
        if self._run is None:
            return "returned" if self._query is None else "query"
        if self._before is None:
            return "returned"
        taken = await self._run.wait_taken(self._uuid)
        if taken is None:
            return "returned"
        return "taken" if taken == self._before else "next_turn"


def check_choices(**given: str) -> None:
    """Check `when` and `if_late`.

    Raises:
        UsageError: not one of the values.
    """
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise UsageError(f"{name}: expected {' or '.join(map(repr, _CHOICES[name]))}, got {value!r}")


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
