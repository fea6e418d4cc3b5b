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
from pilothouse.driver import Continuation, Desk, Exchange, Host, Next, spawn
from pilothouse.driver.turn import Turn
from pilothouse.errors import Interrupted
from pilothouse.instrumentation import (
    CallEnd,
    Observers,
    QueryEnd,
    QueryStart,
    ScheduledRetry,
    call_of,
    environ_of,
    guarded,
    outcome_of,
)
from pilothouse.messages import AssistantMessage, InitMessage, Message, RateLimitEvent, ResultMessage
from pilothouse.options import TABLE, Invocation, Options, render
from pilothouse.options.secrets import Redactor, invocation_secrets

Run = TypeVar("Run", bound="Exchange | Turn")
Messages = TypeVar("Messages", bound=Sequence[Message])

KEPT_MESSAGES = 200
"""Messages about errors that are kept for the end of a query, so that an endless one stays small."""


class Observation:
    """One query that is watched; a continuation around the one that it may have.

    Made in the context of whoever asked. Holds nothing of the query, which could not be dropped then.

    Args:
        observers: those who watch.
        inner: the continuation that the query has anyway.
        one_of_many: as for `QueryResult`.

    Attributes:
        only_reads: whether nothing ever follows; a child that dies with its result costs a watched query nothing then.
    """

    def __init__(self, observers: Observers, inner: Continuation | None, *, one_of_many: bool) -> None:
        self.observers = observers
        self._one_of_many = one_of_many
        self._inner = inner
        self.only_reads = inner is None
        self._kept: list[Message] = []
        self._results: list[ResultMessage] = []

    def of(self, make: Callable[[], Run]) -> Run:
        """The run that `make` makes, whose end is told; if it cannot be made, that is the end."""
        try:
            run = make()
        except BaseException as error:
            self.observers.ended(QueryEnd(result=None, error=error, interrupted=False))
            raise
        run.on_end = partial(self._ended, run)
        return run

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start the run in the context of the query."""
        with self.observers.running():
            spawn(run, name)

    def read(self, batch: list[Message]) -> list[Message]:
        """Tell of the messages, as the consumer will get them."""
        return self._tell(batch if self._inner is None else self._inner.read(batch))

    async def go_on(self, result: ResultMessage) -> Next:
        """What the continuation inside says."""
        following = Next() if self._inner is None else await self._inner.go_on(result)
        self._tell(following.messages)
        return following

    def retry_scheduled(self, **facts: Any) -> None:
        """Another try is about to be waited for; `facts` as in `ScheduledRetry`."""
        self.observers.retry_scheduled(ScheduledRetry(**facts))

    def _tell(self, batch: Messages) -> Messages:
        self.observers.messages(batch)
        for message in batch:
            if isinstance(message, ResultMessage):
                self._results.append(message)
            elif len(self._kept) < KEPT_MESSAGES and _explains(message):
                self._kept.append(message)
        return batch

    def _ended(self, run: Exchange | Turn, error: BaseException | None) -> None:
        self.ended(error, interrupted=run.interrupted or run.cut_short, cut_short=run.cut_short)

    def ended(self, error: BaseException | None, *, interrupted: bool = False, cut_short: bool = False) -> None:
        """The query is over; arguments as of what ran it. Never raises."""
        end = guarded(self, lambda: self._end(error, interrupted=interrupted, cut_short=cut_short))
        self.observers.ended(end or QueryEnd(result=None, error=error, interrupted=interrupted))

    def _end(self, error: BaseException | None, *, interrupted: bool, cut_short: bool) -> QueryEnd:
        stop = Interrupted("the query was interrupted")
        if not self._results:
            return QueryEnd(result=None, error=stop if interrupted else error, interrupted=interrupted)
        result = QueryResult(
            [*self._kept, *self._results],
            interrupted=interrupted,
            failure=stop if cut_short else None,
            one_of_many=self._one_of_many,
            incomplete=True,
        )
        if isinstance(self._inner, TokenBudget):
            self._inner.settle(result)
        failed = result.error if error is None or interrupted else error
        return QueryEnd(result=result, error=failed, interrupted=isinstance(failed, Interrupted))


def _explains(message: Message) -> bool:
    """Whether the error of a result may be read off this message."""
    return isinstance(message, RateLimitEvent) or (isinstance(message, AssistantMessage) and message.error is not None)


def observe(
    options: Options,
    prompt: Any,
    inner: Continuation | None,
    *,
    in_session: bool,
    one_of_many: bool,
    self_started: bool = False,
) -> Observation | None:
    """Begin to watch a query with `options`, in the context of the caller; None when nobody wants to."""
    redact = Redactor(invocation_secrets(render(options, os.environ))).redact
    start = QueryStart(
        prompt=prompt,
        model=options.model,
        agent=options.agent,
        session_id=None if options.fork_session else options.session_id or options.resume,
        provider=options.provider,
        base_url=_without_password(options.base_url),
        settings=_settings(options, redact),
        in_session=in_session,
        self_started=self_started,
        redact=redact,
    )
    observers = Observers.of(options.instrumentation or (), start)
    return None if observers is None else Observation(observers, inner, one_of_many=one_of_many)


def _settings(options: Options, redact: Callable[[str], str]) -> dict[str, str]:
    given = {name: value for name, value in options.as_dict().items() if value is not None}
    return {name: redact(_shown(name, value)) for name, value in given.items()}


def _shown(name: str, value: Any) -> str:
    # What is not ours may not even have a text.
    return guarded(value, lambda: TABLE[name].show(value)) or f"<{type(value).__name__}>"


def _without_password(url: str | None) -> str | None:
    if url is None or "@" not in url:
        return url
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


class Stage:
    """Who is on: the query of which a child's questions are. One for each child, or for all those of a session.

    Attributes:
        observers: those who watch that query; None between queries, and for one that nobody watches.
    """

    def __init__(self, observers: Observers | None = None) -> None:
        self.observers = observers

    @property
    def on(self) -> Observers | None:
        """Those who watch what is on."""
        return self.observers

    def watched(self, host: Host | None) -> Host | None:
        """`host`, whose answers are told of."""
        if host is None:
            return None
        return replace(host, desks={subtype: self._told(subtype, desk) for subtype, desk in host.desks.items()})

    def _told(self, subtype: str, desk: Desk) -> Desk:
        return partial(_answer, self, subtype, desk)


async def _answer(stage: Stage, subtype: str, desk: Desk, body: Mapping[str, Any]) -> Mapping[str, Any]:
    observers, call = stage.on, guarded(stage, lambda: call_of(subtype, body))
    if observers is None or call is None or not observers.call_started(call):
        return await desk(body)
    end = CallEnd(outcome="cancelled")
    try:
        answer = await desk(body)
        end = CallEnd(outcome=guarded(stage, lambda: outcome_of(call, answer)) or "ok")
    except Exception as error:
        end = CallEnd(outcome="failed", error=error)
        raise
    finally:
        observers.call_ended(call, end)
    return answer


class SessionStage(Stage):
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
        self._own_turn: Observation | None = None
        self._is_own_turn = False  # one is on, whether it is watched or not

    @property
    def on(self) -> Observers | None:
        """Those who watch what is on."""
        if self._is_own_turn:
            return None if self._own_turn is None else self._own_turn.observers
        return self.observers

    @contextmanager
    def held_by(self, continuation: Continuation | None) -> Generator[None]:
        """The query with this continuation is on for the length of the block."""
        self.observers = continuation.observers if isinstance(continuation, Observation) else None
        try:
            yield
        finally:
            self.observers = None

    def heard(self, message: Message) -> None:
        """A message that is of no query."""
        if not self._is_own_turn and isinstance(message, InitMessage):
            self._is_own_turn = True
            start = partial(observe, in_session=True, one_of_many=True, self_started=True)
            self._own_turn = guarded(self, lambda: self._context.run(start, self._options, None, None))
        if self._own_turn is not None:
            self._own_turn.read([message])
        if isinstance(message, ResultMessage):
            self.own_turn_ended()

    def own_turn_ended(self, error: BaseException | None = None) -> None:
        """No turn of its own is on any more; `error` says why, if that had no result."""
        own, self._own_turn, self._is_own_turn = self._own_turn, None, False
        if own is not None:
            own.ended(error)

    def variables_in(self, invocation: Invocation) -> Invocation:
        """`invocation` with the variables of the session, not of the query that happens to start the child."""
        variables = self._context.run(environ_of, self._options.instrumentation or ())
        return with_variables(invocation, variables, self._options)


def started_watched(
    continuation: Continuation | None, invocation: Invocation, host: Host | None, options: Options
) -> tuple[Invocation, Host | None]:
    """How to start the child of one query, and what it may ask, with what those who watch it want of it."""
    if not isinstance(continuation, Observation):
        return invocation, host
    observers = continuation.observers
    return with_variables(invocation, observers.environ(), options), Stage(observers).watched(host)


def with_variables(invocation: Invocation, variables: Mapping[str, str | None], options: Options) -> Invocation:
    """`invocation` with more environment variables; what the option `env` says wins."""
    if not variables:
        return invocation
    said = (options.env or {}).keys()
    env = {name: value for name, value in invocation.env.items() if name in said or variables.get(name, "") is not None}
    env |= {name: value for name, value in variables.items() if value is not None and name not in said}
    return replace(invocation, env=env)
