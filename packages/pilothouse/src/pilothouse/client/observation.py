"""How queries and sessions report to `instrumentation`: when messages arrive, not when they are consumed.

Owns where events are observed. `pilothouse.instrumentation` defines what is reported, and that a failing observer
affects nothing else. Loaded only where the option is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from msgspec.structs import replace

from pilothouse.client.budgets import TokenBudget
from pilothouse.client.middleware import Middleware
from pilothouse.client.result import QueryResult
from pilothouse.client.retry import QueryRetry
from pilothouse.engine import HandlerSet, QueryRun, RequestHandler, spawn
from pilothouse.errors import Interrupted
from pilothouse.instrumentation import (
    CallEnd,
    Observers,
    QueryEnd,
    QueryStart,
    call_safely,
    collect_environ,
    find_outcome,
    make_call_start,
)
from pilothouse.messages import AssistantMessage, InitMessage, Message, RateLimitEvent, ResultMessage
from pilothouse.options import TABLE, Invocation, Options, render
from pilothouse.options.secrets import Redactor, invocation_secrets

MAX_ERROR_MESSAGES = 200
"""Messages about errors that are kept until the end of a query, to bound the memory of an endless one."""


class QueryObservation(Middleware):
    """Observes one query; the outermost middleware, because it reports what the consumer gets.

    Made in the context of the caller. Keeps no reference to the query, which could otherwise not end when it is
    dropped.

    Args:
        observers: get the reports.
        budget: the token budget of the query, if it has one.
        one_of_many: whether the conversation has other queries, as `is_continuation` of `QueryResult`.
    """

    def __init__(self, observers: Observers, budget: TokenBudget | None, *, one_of_many: bool) -> None:
        self.observers = observers
        self._budget = budget
        self._one_of_many = one_of_many
        self._error_messages: list[Message] = []
        self._results: list[ResultMessage] = []

    def on_start(self, run: QueryRun) -> None:
        """Let the run report its end."""
        run.on_end = partial(self._on_run_end, run)

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start the run in the context of the query."""
        with self.observers.run_context():
            spawn(run, name)

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Report the messages as the consumer will get them."""
        self.observers.messages(batch)
        for message in batch:
            if isinstance(message, ResultMessage):
                self._results.append(message)
            elif len(self._error_messages) < MAX_ERROR_MESSAGES and _may_explain_error(message):
                self._error_messages.append(message)
        return batch

    def _on_run_end(self, run: QueryRun, error: BaseException | None) -> None:
        turn = run.turn
        self.finish(error, interrupted=turn.is_interrupted or turn.is_cut_short, cut_short=turn.is_cut_short)

    def finish(self, error: BaseException | None, *, interrupted: bool = False, cut_short: bool = False) -> None:
        """Report the end of the query; arguments as of its run. Never raises."""
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
        if self._budget is not None:
            self._budget.complete_result(result, ())
        failed = result.error if error is None or interrupted else error
        return QueryEnd(result=result, error=failed, interrupted=isinstance(failed, Interrupted))


def _find_observers(middlewares: Iterable[Middleware]) -> Observers | None:
    return next((each.observers for each in middlewares if isinstance(each, QueryObservation)), None)


def _may_explain_error(message: Message) -> bool:
    """Whether this message may explain the error of a result."""
    return isinstance(message, RateLimitEvent) or (isinstance(message, AssistantMessage) and message.error is not None)


def make_observation(
    options: Options,
    prompt: Any,
    middlewares: Iterable[Middleware] = (),
    *,
    in_session: bool,
    one_of_many: bool,
    self_started: bool = False,
) -> QueryObservation | None:
    """Start to observe a query, in the context of the caller; None if no observer wants to."""
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
    if observers is None:
        return None
    budget: TokenBudget | None = None
    for middleware in middlewares:
        if isinstance(middleware, TokenBudget):
            budget = middleware
        elif isinstance(middleware, QueryRetry):
            middleware.report = observers.retry_scheduled
    return QueryObservation(observers, budget, one_of_many=one_of_many)


def _redacted_settings(options: Options, redact: Callable[[str], str]) -> dict[str, str]:
    given = {name: value for name, value in options.as_dict().items() if value is not None}
    return {name: redact(_option_text(name, value)) for name, value in given.items()}


def _option_text(name: str, value: Any) -> str:
    # A foreign value may not even have a text.
    return call_safely(value, lambda: TABLE[name].format_value(value)) or f"<{type(value).__name__}>"


def _without_password(url: str | None) -> str | None:
    if url is None or "@" not in url:
        return url
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


class CallObservation:
    """The query that the requests of a child belong to. One for each child, or for all children of a session.

    Attributes:
        observers: those of the current query; None between queries, and for a query without observers.
    """

    def __init__(self, observers: Observers | None = None) -> None:
        self.observers = observers

    @property
    def active(self) -> Observers | None:
        """The observers of what runs now."""
        return self.observers

    def wrap_handlers(self, handlers: HandlerSet | None) -> HandlerSet | None:
        """Wrap `handlers` to report each call."""
        if handlers is None:
            return None
        found = handlers.handlers.items()
        wrapped = {subtype: partial(_handle_observed, self, subtype, handler) for subtype, handler in found}
        return replace(handlers, handlers=wrapped)


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
    """The same for a session, made in the context in which the session was made.

    Besides queries, this observes turns that the CLI starts by itself, one at a time. Such a turn begins with an
    `InitMessage` of no query. It ends with its result, with the child, or with a prompt that the CLI starts
    meanwhile.

    Args:
        options: those of the session.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._context: Context = copy_context()
        self._cli_turn: QueryObservation | None = None
        self._is_cli_turn = False  # such a turn runs, observed or not

    @property
    def active(self) -> Observers | None:
        """The observers of what runs now."""
        if self._is_cli_turn:
            return None if self._cli_turn is None else self._cli_turn.observers
        return self.observers

    @contextmanager
    def current_query(self, middlewares: Iterable[Middleware]) -> Generator[None]:
        """Make the query with these middlewares the current one for the length of the block."""
        self.observers = _find_observers(middlewares)
        try:
            yield
        finally:
            self.observers = None

    def on_unattributed(self, message: Message) -> None:
        """Observe a message that belongs to no query."""
        if not self._is_cli_turn and isinstance(message, InitMessage):
            self._is_cli_turn = True
            start = partial(make_observation, in_session=True, one_of_many=True, self_started=True)
            self._cli_turn = call_safely(self, lambda: self._context.run(start, self._options, None))
        if self._cli_turn is not None:
            self._cli_turn.on_messages([message])
        if isinstance(message, ResultMessage):
            self.end_cli_turn()

    def end_cli_turn(self, error: BaseException | None = None) -> None:
        """End a turn that the CLI started by itself; `error` says why, if it had no result."""
        own, self._cli_turn, self._is_cli_turn = self._cli_turn, None, False
        if own is not None:
            own.finish(error)

    def with_session_environ(self, invocation: Invocation) -> Invocation:
        """Add the environment variables of the session, not of the query that happens to start the child."""
        variables = self._context.run(collect_environ, self._options.instrumentation or ())
        return with_environ(invocation, variables, self._options)


def instrument_launch(
    middlewares: Iterable[Middleware], invocation: Invocation, handlers: HandlerSet | None, options: Options
) -> tuple[Invocation, HandlerSet | None]:
    """Add to the launch of one query what its observers need: environment variables and wrapped handlers."""
    observers = _find_observers(middlewares)
    if observers is None:
        return invocation, handlers
    return with_environ(invocation, observers.environ(), options), CallObservation(observers).wrap_handlers(handlers)


def with_environ(invocation: Invocation, variables: Mapping[str, str | None], options: Options) -> Invocation:
    """Add environment variables to `invocation`; the option `env` wins."""
    if not variables:
        return invocation
    set_by_user = (options.env or {}).keys()
    env = {
        name: value
        for name, value in invocation.env.items()
        if name in set_by_user or variables.get(name, "") is not None
    }
    env |= {name: value for name, value in variables.items() if value is not None and name not in set_by_user}
    return replace(invocation, env=env)
