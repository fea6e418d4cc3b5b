"""`QueryPlan`: the parts of one query, and how its run is made.

Owns the settings, the prompts, and the list of middlewares. `Query` knows how the answer is read; the engine knows
what happens on the wire.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pilothouse.callbacks import check_signature
from pilothouse.client.budgets import TokenBudget
from pilothouse.client.event_reader import EventReader
from pilothouse.client.handlers import make_handlers, make_launch
from pilothouse.client.middleware import Middleware, change_prompts, make_custom
from pilothouse.client.observation import QueryObservation, instrument_launch, make_observation
from pilothouse.client.prompt import Prompt, check_text, prepare_prompts
from pilothouse.client.result import QueryResult, make_result_error
from pilothouse.client.retry import QueryRetry
from pilothouse.client.structured_output import OutputSchema, OutputValidator
from pilothouse.client.tool_bridge import ToolBridge
from pilothouse.engine import ChildRun, Prompts, QueryLimits, QueryRun, spawn
from pilothouse.errors import AuthenticationError, OptionsError, PilothouseError, UsageError
from pilothouse.messages import Message, ResultMessage
from pilothouse.options import Options, render
from pilothouse.options.credentials import CREDENTIAL_VARIABLES
from pilothouse.products import load_product
from pilothouse.transports import CliTransport, Transport
from pilothouse.transports.base import adapt_transport, missing_methods

if TYPE_CHECKING:
    from pilothouse.client.costs import CostTracker
    from pilothouse.client.rate_limits import SharedRateLimits
    from pilothouse.events import QueryEvent

log = logging.getLogger("pilothouse")

MakeRun: TypeAlias = "Callable[[Options, Prompts, Sequence[Middleware]], QueryRun]"
"""Makes the run of a query: with a child of its own, or as a turn of a session."""

SHORT_PROMPT_CHARS = 40  # characters, in a warning


class QueryPlan:
    """A query before its start. Keeps no reference to the query, which could otherwise not end when it is dropped.

    Args:
        prompt: as for `Agent.query`.
        options: the settings, all layers together.
        output_type: what the answer must fit, if anything.
        make_run: makes the run; None for a child of its own.
        bridge: runs `custom_tools`, if the session has one.
        session_costs: what the session has cost so far.
        session_tokens: how many tokens all queries of the session may use.
        rate_limits: until when limits of the API hold.

    Attributes:
        options: the settings of the query.
        id: of the query.
        is_continuation: whether the query continues a conversation.
        handlers: the handlers of its own child; None if there are none.
        output_validator: the typed output; None for plain text.
        wants_permission_events: whether the reader gets messages about permission requests and decisions.

    Raises:
        UsageError: a prompt or an option that cannot work.
    """

    def __init__(
        self,
        prompt: Prompt,
        options: Options,
        *,
        output_type: Any = None,
        make_run: MakeRun | None = None,
        bridge: ToolBridge | None = None,
        session_costs: CostTracker | None = None,
        session_tokens: int | None = None,
        rate_limits: SharedRateLimits | None = None,
    ) -> None:
        self.options = options
        self.is_continuation = bool(make_run or options.resume or options.continue_conversation)
        self._prompt = prompt
        self._make_run = make_run
        self.output_validator = self._make_output_validator(output_type)
        self.handlers = make_handlers(self.options, bridge=bridge) if make_run is None else None
        self._bridge = bridge if self.handlers is None else self.handlers.bridge
        self._middlewares = self._make_middlewares(session_costs, session_tokens, rate_limits)
        self._prompts: Prompts = ()
        if self.options.prompt_via == "argv":
            self._check_argv()
        else:
            self._prompts = prepare_prompts(prompt, verbatim=self.options.verbatim_prompts)
        given = self._prompts if isinstance(self._prompts, Sequence) else ()
        self.id = given[0].uuid if given else str(uuid4())
        self.wants_permission_events = False

    def _make_output_validator(self, output_type: Any) -> OutputValidator | None:
        schema = self.options.json_schema
        if output_type is None and schema is None:
            return None
        repairs = self.options.output_repairs if self.options.prompt_via == "stdin" else 0
        if output_type is None:
            return OutputValidator(OutputSchema.from_schema(schema or {}), repairs)
        expected = OutputSchema.from_type(output_type)
        if schema is not None and schema != expected.schema:
            raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
        self.options = self.options.with_(json_schema=expected.schema)
        return OutputValidator(expected, repairs)

    def _make_middlewares(
        self, session_costs: CostTracker | None, session_tokens: int | None, rate_limits: SharedRateLimits | None
    ) -> list[Middleware]:
        options = self.options
        made: list[Middleware] = []  # the outermost first
        if options.middleware:
            made += map(make_custom, options.middleware)
        bridges: list[Middleware] = []
        if self._bridge is not None:
            outermost, innermost = self._bridge.make_middlewares()
            made.append(outermost)
            bridges.append(innermost)
        made += [*(() if self.output_validator is None else (self.output_validator,)), *bridges]
        if options.retry is not None or options.on_usage_limit == "wait":
            made.append(QueryRetry(options, rate_limits))
        if options.max_budget_tokens is not None:
            made.append(TokenBudget(options, session_costs, session_tokens))
        return made

    def _check_argv(self) -> None:
        if not isinstance(self._prompt, str):
            raise UsageError("prompt_via='argv' takes a text prompt; use 'stdin' for blocks and iterables")
        render(self.options, {}, prompt=check_text(self._prompt))

    @property
    def short_prompt(self) -> str:
        """The beginning of the prompt, for a warning to the programmer."""
        if not isinstance(self._prompt, str):
            return "for a prompt of several messages"
        return repr(
            self._prompt if len(self._prompt) <= SHORT_PROMPT_CHARS else self._prompt[: SHORT_PROMPT_CHARS - 1] + "…"
        )

    # Before the start.

    def request_partial_messages(self) -> None:
        """Turn `partial_messages` on."""
        self.options = self.options.with_(partial_messages=True)

    async def discard(self) -> None:
        """Close the prompts of a query that will not run."""
        if isinstance(self._prompts, AsyncGenerator):
            await self._prompts.aclose()

    # The start.

    def start(self) -> QueryRun:
        """Make the run, and start it in a task of its own. Once."""
        options = self.options
        make = self._make_run or self._make_one_shot
        middlewares, start = self._middlewares, spawn
        observation = self._start_observation() if options.instrumentation else None
        if observation is not None:
            middlewares, start = [observation, *middlewares], observation.spawn
        prompts = self._prompts
        for middleware in middlewares:
            prompts = change_prompts(middleware, prompts)
        try:
            run = make(options, prompts, middlewares)
        except BaseException as error:
            if observation is not None:
                observation.finish(error)
            raise
        run.wants_permission_events = self.wants_permission_events
        run.on_joined = _warn_of_joined_prompts
        for middleware in middlewares:
            middleware.on_start(run)
        start(run.run, "pilothouse query")
        return run

    def _start_observation(self) -> QueryObservation | None:
        how = {"in_session": self._make_run is not None, "one_of_many": self.is_continuation}
        return make_observation(self.options, self._prompt, self._middlewares, **how)

    def _make_one_shot(self, options: Options, prompts: Prompts, middlewares: Sequence[Middleware]) -> QueryRun:
        invocation, handler_set = make_launch(options, self.handlers, self._prompt)
        if middlewares:
            invocation, handler_set = instrument_launch(middlewares, invocation, handler_set, options)
        limits = make_limits(options)
        child = ChildRun(make_transport(options), invocation, limits, handler_set)
        if self.handlers is not None:
            self.handlers.run = child
        return QueryRun(child.run_for, prompts, limits, middlewares, is_alone=True)

    # The answer.

    def make_event_reader(self) -> Callable[[Message], Iterator[QueryEvent]]:
        """Make a function that turns messages into events."""
        read = EventReader(runs_deferred=self._bridge is not None, read_error=self._find_error).read
        for middleware in reversed(self._middlewares):
            read = middleware.wrap_events(read)
        return read

    def _find_error(self, result: ResultMessage, before: Sequence[Message]) -> PilothouseError | None:
        """The error of the answer if `result` is its last result."""
        if self.output_validator is not None and self.output_validator.is_repaired(result):
            return None
        messages = [*before, result]
        answer = QueryResult(messages, structured_expected=self.output_validator is not None)
        self.complete_result(answer, messages)
        return answer.error

    def complete_result(self, result: QueryResult, kept: list[Message]) -> None:
        """Complete a result before it is returned."""
        if isinstance(result.error, AuthenticationError) and result.result is not None:
            result.error = make_result_error(result.result, kept, env=self._known_environ())
        for middleware in reversed(self._middlewares):
            middleware.complete_result(result, kept)
        if result.error is not None:
            self.explain(result.error)

    def _known_environ(self) -> Mapping[str, str] | None:
        """The environment of the child, as far as it is known to hold a token; None: not known."""
        invocation = render(self.options, os.environ)
        if self.options.transport is None:
            return invocation.env
        given = {name: value for name, value in invocation.explicit_env.items() if value is not None}
        return given if not given.keys().isdisjoint(CREDENTIAL_VARIABLES) else None

    def explain(self, error: PilothouseError) -> None:
        """Add to an error, which is about to be raised, what the middlewares know about its cause."""
        for middleware in reversed(self._middlewares):
            middleware.explain(error)


def _warn_of_joined_prompts(count: int) -> None:
    log.warning(
        "the CLI answered %d prompts of a query together, because they waited while it answered another; "
        "user_message_uuids of the result names them. For an answer to each, make a session and a query for each "
        "prompt, or let the iterable wait for the result of one prompt before it gives the next",
        count,
    )


def make_transport(options: Options) -> Transport:
    """Make the transport that `options` specify, not started.

    Raises:
        OptionsError: the option is not a transport, or a session store cannot be used.
    """
    given = options.transport
    if given is None:
        made: Transport = CliTransport()
    elif isinstance(given, Transport):
        made = given
    else:
        is_one = not isinstance(given, type) and not missing_methods(given)
        if callable(given) and not is_one:
            check_signature(given, "transport")
            given = given()
        made = adapt_transport(given)
    if options.session_store is None:
        return made
    return load_product("pilothouse.session_stores", "mirror", "session_store")(made, options)


def make_limits(options: Options) -> QueryLimits:
    """Make the limits of a query from `options`."""
    return QueryLimits(
        timeout=options.timeout,
        idle_timeout=options.idle_timeout,
        startup_timeout=options.startup_timeout,
        control_timeout=options.control_timeout,
        max_line_bytes=options.max_line_bytes,
        until_idle=options.until == "idle",
    )
