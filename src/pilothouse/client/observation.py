"""How a query and a session tell `instrumentation` what happens: on the side of the reader, never of the consumer.

Owns the places where that is noticed. What is told, and that a failing watcher touches nothing, is in
`pilothouse.instrumentation`; loaded only where the option is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from pilothouse.client.budgets import TokenBudget
from pilothouse.client.result import QueryResult
from pilothouse.driver import HandlerSet, NextPrompt, OneShotRun, QueryMiddleware, RequestHandler, spawn
from pilothouse.driver.session_run import SessionTurn
from pilothouse.errors import Interrupted
from pilothouse.instrumentation import (
    CallEnd,
    Observers,
    QueryEnd,
    QueryStart,
    ScheduledRetry,
    call_safely,
    collect_environ,
    find_outcome,
    make_call_start,
)
from pilothouse.messages import AssistantMessage, InitMessage, Message, RateLimitEvent, ResultMessage
from pilothouse.options import TABLE, Invocation, Options, render
from pilothouse.options.secrets import Redactor, invocation_secrets

Run = TypeVar("Run", bound="OneShotRun | SessionTurn")
Messages = TypeVar("Messages", bound=Sequence[Message])

MAX_ERROR_MESSAGES = 200
"""Messages about errors that are kept for the end of a query, so that an endless one stays small."""


class QueryObservation:
    """One query that is watched; a continuation around the one that it may have.

    Made in the context of whoever asked. Holds nothing of the query, which could not be dropped then.

    Args:
        observers: those who watch.
        inner: the continuation that the query has anyway.
        one_of_many: as for `QueryResult`.

    Attributes:
        is_passive: whether nothing ever follows; a child that dies with its result costs a watched query nothing then.
    """

    def __init__(self, observers: Observers, inner: QueryMiddleware | None, *, one_of_many: bool) -> None:
        self.observers = observers
        self._one_of_many = one_of_many
        self._inner = inner
        self.is_passive = inner is None
        self._error_messages: list[Message] = []
        self._results: list[ResultMessage] = []

    def make_run(self, make: Callable[[], Run]) -> Run:
        """The run that `make` makes, whose end is told; if it cannot be made, that is the end."""
        try:
            run = make()
        except BaseException as error:
            self.observers.ended(QueryEnd(result=None, error=error, interrupted=False))
            raise
        run.on_end = partial(self._on_run_end, run)
        return run

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start the run in the context of the query."""
        with self.observers.run_context():
            spawn(run, name)

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Tell of the messages, as the consumer will get them."""
        return self._record(batch if self._inner is None else self._inner.on_messages(batch))

    async def after_result(self, result: ResultMessage) -> NextPrompt:
        """What the continuation inside says."""
        following = NextPrompt() if self._inner is None else await self._inner.after_result(result)
        self._record(following.messages)
        return following

    def retry_scheduled(self, **facts: Any) -> None:
        """Another try is about to be waited for; `facts` as in `ScheduledRetry`."""
        self.observers.retry_scheduled(ScheduledRetry(**facts))

    def _record(self, batch: Messages) -> Messages:
        self.observers.messages(batch)
        for message in batch:
            if isinstance(message, ResultMessage):
                self._results.append(message)
            elif len(self._error_messages) < MAX_ERROR_MESSAGES and _may_explain_error(message):
                self._error_messages.append(message)
        return batch

    def _on_run_end(self, run: OneShotRun | SessionTurn, error: BaseException | None) -> None:
        self.finish(error, interrupted=run.interrupted or run.is_cut_short, cut_short=run.is_cut_short)

    def finish(self, error: BaseException | None, *, interrupted: bool = False, cut_short: bool = False) -> None:
        """The query is over; arguments as of what ran it. Never raises."""
        end = call_safely(self, lambda: self._make_query_end(error, interrupted=interrupted, cut_short=cut_short))
        self.observers.ended(end or QueryEnd(result=None, error=error, interrupted=interrupted))

    def _make_query_end(self, error: BaseException | None, *, interrupted: bool, cut_short: bool) -> QueryEnd:
        stop = Interrupted("the query was interrupted")
        if not self._results:
            return QueryEnd(result=None, error=stop if interrupted else error, interrupted=interrupted)
        result = QueryResult(
            [*self._error_messages, *self._results],
            interrupted=interrupted,
            failure=stop if cut_short else None,
            is_continuation=self._one_of_many,
            incomplete=True,
        )
        if isinstance(self._inner, TokenBudget):
            self._inner.apply_to(result)
        failed = result.error if error is None or interrupted else error
        return QueryEnd(result=result, error=failed, interrupted=isinstance(failed, Interrupted))


def _may_explain_error(message: Message) -> bool:
    """Whether the error of a result may be read off this message."""
    return isinstance(message, RateLimitEvent) or (isinstance(message, AssistantMessage) and message.error is not None)


def make_observation(
    options: Options,
    prompt: Any,
    inner: QueryMiddleware | None,
    *,
    in_session: bool,
    one_of_many: bool,
    self_started: bool = False,
) -> QueryObservation | None:
    """Begin to watch a query with `options`, in the context of the caller; None when nobody wants to."""
    redact = Redactor(invocation_secrets(render(options, os.environ))).redact
    start = QueryStart(
        prompt=prompt,
        model=options.model,
        agent=options.agent,
        session_id=None if options.fork_session else options.session_id or options.resume,
        provider=options.provider,
        base_url=_without_password(options.base_url),
        settings=_redacted_settings(options, redact),
        in_session=in_session,
        self_started=self_started,
        redact=redact,
    )
    observers = Observers.start(options.instrumentation or (), start)
    return None if observers is None else QueryObservation(observers, inner, one_of_many=one_of_many)


def _redacted_settings(options: Options, redact: Callable[[str], str]) -> dict[str, str]:
    given = {name: value for name, value in options.as_dict().items() if value is not None}
    return {name: redact(_option_text(name, value)) for name, value in given.items()}


def _option_text(name: str, value: Any) -> str:
    # What is not ours may not even have a text.
    return call_safely(value, lambda: TABLE[name].format_value(value)) or f"<{type(value).__name__}>"


def _without_password(url: str | None) -> str | None:
    if url is None or "@" not in url:
        return url
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


class CallObservation:
    """Who is on: the query of which a child's questions are. One for each child, or for all those of a session.

    Attributes:
        observers: those who watch that query; None between queries, and for one that nobody watches.
    """

    def __init__(self, observers: Observers | None = None) -> None:
        self.observers = observers

    @property
    def active(self) -> Observers | None:
        """Those who watch what is on."""
        return self.observers

    def wrap_handlers(self, handlers: HandlerSet | None) -> HandlerSet | None:
        """`host`, whose answers are told of."""
        if handlers is None:
            return None
        wrapped = {subtype: self._wrap_handler(subtype, handler) for subtype, handler in handlers.handlers.items()}
        return replace(handlers, handlers=wrapped)

    def _wrap_handler(self, subtype: str, handler: RequestHandler) -> RequestHandler:
        return partial(_handle_observed, self, subtype, handler)


async def _handle_observed(
    observation: CallObservation, subtype: str, handler: RequestHandler, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    observers, call = observation.active, call_safely(observation, lambda: make_call_start(subtype, body))
    if observers is None or call is None or not observers.call_started(call):
        return await handler(body)
    end = CallEnd(outcome="cancelled")
    try:
        answer = await handler(body)
        end = CallEnd(outcome=call_safely(observation, lambda: find_outcome(call, answer)) or "ok")
    except Exception as error:
        end = CallEnd(outcome="failed", error=error)
        raise
    finally:
        observers.call_ended(call, end)
    return answer


class SessionObservation(CallObservation):
    """The same for a session, made in the context of whoever made the session.

    Beside queries, turns are on that the CLI starts by itself, one at a time. Each begins with an `InitMessage` that is
    of no query, and ends with its result, with the child, or with a prompt that the CLI takes up in the middle of it.

    Args:
        options: those of the session.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._context: Context = copy_context()
        self._own_turn: QueryObservation | None = None
        self._is_own_turn = False  # one is on, whether it is watched or not

    @property
    def active(self) -> Observers | None:
        """Those who watch what is on."""
        if self._is_own_turn:
            return None if self._own_turn is None else self._own_turn.observers
        return self.observers

    @contextmanager
    def run_query(self, middleware: QueryMiddleware | None) -> Generator[None]:
        """The query with this continuation is on for the length of the block."""
        self.observers = middleware.observers if isinstance(middleware, QueryObservation) else None
        try:
            yield
        finally:
            self.observers = None

    def on_unattributed(self, message: Message) -> None:
        """A message that is of no query."""
        if not self._is_own_turn and isinstance(message, InitMessage):
            self._is_own_turn = True
            start = partial(make_observation, in_session=True, one_of_many=True, self_started=True)
            self._own_turn = call_safely(self, lambda: self._context.run(start, self._options, None, None))
        if self._own_turn is not None:
            self._own_turn.on_messages([message])
        if isinstance(message, ResultMessage):
            self.end_own_turn()

    def end_own_turn(self, error: BaseException | None = None) -> None:
        """No turn of its own is on any more; `error` says why, if that had no result."""
        own, self._own_turn, self._is_own_turn = self._own_turn, None, False
        if own is not None:
            own.finish(error)

    def add_session_environ(self, invocation: Invocation) -> Invocation:
        """`invocation` with the variables of the session, not of the query that happens to start the child."""
        variables = self._context.run(collect_environ, self._options.instrumentation or ())
        return add_environ(invocation, variables, self._options)


def instrument_launch(
    middleware: QueryMiddleware | None, invocation: Invocation, handlers: HandlerSet | None, options: Options
) -> tuple[Invocation, HandlerSet | None]:
    """How to start the child of one query, and what it may ask, with what those who watch it want of it."""
    if not isinstance(middleware, QueryObservation):
        return invocation, handlers
    observers = middleware.observers
    return add_environ(invocation, observers.environ(), options), CallObservation(observers).wrap_handlers(handlers)


def add_environ(invocation: Invocation, variables: Mapping[str, str | None], options: Options) -> Invocation:
    """`invocation` with more environment variables; what the option `env` says wins."""
    if not variables:
        return invocation
    said = (options.env or {}).keys()
    env = {name: value for name, value in invocation.env.items() if name in said or variables.get(name, "") is not None}
    env |= {name: value for name, value in variables.items() if value is not None and name not in said}
    return replace(invocation, env=env)
