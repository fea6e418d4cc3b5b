"""`QueryPlan`: the parts of one query, and how its run is made.

Owns the settings, the prompts, and the middleware of the run (typed output, bridges, retries, budgets, observers),
each loaded only if used. `Query` knows how the answer is read; the driver knows what happens on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pilothouse.client.handlers import make_handlers, make_launch
from pilothouse.client.prompt import Prompt, check_text, prepare_prompts
from pilothouse.driver import OneShotRun, Prompts, QueryLimits, spawn
from pilothouse.errors import OptionsError, PilothouseError, UsageError
from pilothouse.messages import Message, PermissionDeniedMessage, ResultMessage
from pilothouse.options import Invocation, Options, render
from pilothouse.transports import CliTransport, Transport

if TYPE_CHECKING:
    from pilothouse.client.budgets import TokenBudget
    from pilothouse.client.costs import CostTracker
    from pilothouse.client.observation import QueryObservation
    from pilothouse.client.rate_limits import SharedRateLimits
    from pilothouse.client.result import QueryResult
    from pilothouse.client.retry import QueryRetry
    from pilothouse.client.structured_output import OutputValidator
    from pilothouse.client.tool_bridge import Bridge
    from pilothouse.driver import HandlerSet, QueryMiddleware
    from pilothouse.driver.session_run import SessionTurn
    from pilothouse.events import QueryEvent

Run: TypeAlias = "OneShotRun | SessionTurn"
MakeRun: TypeAlias = "Callable[[Options, Prompts, QueryMiddleware | None], Run]"
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
        bridge: Bridge | None = None,
        session_costs: CostTracker | None = None,
        session_tokens: int | None = None,
        rate_limits: SharedRateLimits | None = None,
    ) -> None:
        self.options = options
        self.is_continuation = bool(make_run or options.resume or options.continue_conversation)
        self._prompt = prompt
        self._make_run = make_run
        self.output_validator = self._make_output_validator(output_type)
        self._handlers = make_handlers(self.options, bridge=bridge) if make_run is None else None
        self._bridge = bridge if self._handlers is None else self._handlers.bridge
        self._budget = self._make_token_budget(session_costs, session_tokens)
        self._retry = self._make_retry(rate_limits)
        self._prompts = self._prepare_prompts()
        given = self._prompts if isinstance(self._prompts, Sequence) else ()
        self.id = given[0].uuid if given else str(uuid4())
        self.wants_permission_events = False

    def _make_output_validator(self, output_type: Any) -> OutputValidator | None:
        schema = self.options.json_schema
        if output_type is None and schema is None:
            return None
        from pilothouse.client.structured_output import OutputSchema, OutputValidator  # most queries do without

        repairs = self.options.output_repairs
        if output_type is None:
            return OutputValidator(OutputSchema.from_schema(schema or {}), repairs)
        expected = OutputSchema.from_type(output_type)
        if schema is not None and schema != expected.schema:
            raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
        self.options = self.options.with_(json_schema=expected.schema)
        return OutputValidator(expected, repairs)

    def _make_token_budget(self, session_costs: CostTracker | None, session_tokens: int | None) -> TokenBudget | None:
        if self.options.max_budget_tokens is None:
            return None
        from pilothouse.client.budgets import TokenBudget  # most queries do without

        return TokenBudget(self.options, session_costs, session_tokens)

    def _make_retry(self, rate_limits: SharedRateLimits | None) -> QueryRetry | None:
        if self.options.retry is None and self.options.on_usage_limit == "raise":
            return None
        from pilothouse.client.retry import QueryRetry  # most queries do without

        return QueryRetry(self.options, rate_limits)

    def _prepare_prompts(self) -> Prompts:
        if self.options.prompt_via == "argv":
            if not isinstance(self._prompt, str):
                raise UsageError("prompt_via='argv' takes a text prompt; use 'stdin' for blocks and iterables")
            render(self.options, {}, prompt=check_text(self._prompt))
            return ()
        return prepare_prompts(self._prompt, verbatim=self.options.verbatim_prompts)

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

    def start(self) -> Run:
        """Make the run, and start it in a task of its own. Once."""
        make = self._make_run or self._make_one_shot
        continuation = self._make_middleware()
        observation = self._make_observation(continuation) if self.options.instrumentation else None
        if observation is None:
            run = make(self.options, self._prompts, continuation)
        else:
            run = observation.make_run(partial(make, self.options, self._prompts, observation))
        run.wants_permission_events = self.wants_permission_events
        if self._handlers is not None:
            self._handlers.on_permission_note = run.add_permission_note
        if self._budget is not None:
            self._budget.set_interrupt(run.interrupt)
        if self._retry is not None:
            self._retry.attach(run, observation)
        if self.options.can_use_tool is None and self.options.confirm is None:
            run.on_denied = _UnaskedToolWarning().note
        start = spawn if observation is None else observation.spawn
        start(run.run, "pilothouse query")
        return run

    def make_launch(self) -> tuple[Invocation, HandlerSet | None]:
        """Return the invocation of a child for this query alone, and its handlers."""
        in_argv = self.options.prompt_via == "argv" and isinstance(self._prompt, str)
        return make_launch(self.options, self._handlers, str(self._prompt) if in_argv else None)

    def _make_observation(self, middleware: QueryMiddleware | None) -> QueryObservation | None:
        from pilothouse.client.observation import make_observation  # most queries do without

        how = {"in_session": self._make_run is not None, "one_of_many": self.is_continuation}
        return make_observation(self.options, self._prompt, middleware, **how)

    def _make_middleware(self) -> QueryMiddleware | None:
        following = self._make_inner_middleware()
        if self._retry is not None:
            following = self._retry.wrap(following)
            self._prompts = self._retry.track_prompts(self._prompts)
        return following if self._budget is None else self._budget.wrap(following)

    def _make_inner_middleware(self) -> QueryMiddleware | None:
        if self.options.prompt_via != "stdin" or (self.output_validator is None and self._bridge is None):
            return None
        from pilothouse.client.structured_output import OutputRepair  # most queries do without

        repairs = None if self.output_validator is None else OutputRepair(self.output_validator)
        if self._bridge is None:
            return repairs
        from pilothouse.client.tool_bridge import BridgeMiddleware

        bridged = BridgeMiddleware(self._bridge.start_loop(), self._prompts, repairs)
        self._prompts = bridged.first
        return bridged

    def _make_one_shot(self, options: Options, prompts: Prompts, middleware: QueryMiddleware | None) -> OneShotRun:
        invocation, host = self.make_launch()
        if options.instrumentation:
            from pilothouse.client.observation import instrument_launch

            invocation, host = instrument_launch(middleware, invocation, host, options)
        return OneShotRun(make_transport(options), invocation, prompts, make_limits(options), middleware, host)

    # The answer.

    def make_event_reader(self) -> Callable[[Message], Iterator[QueryEvent]]:
        """Make a function that turns messages into events."""
        from pilothouse.client.event_reader import EventReader  # most queries are awaited, or read as messages

        read = EventReader(runs_deferred=self._bridge is not None, read_error=self._find_error).read
        if self._budget is not None:
            read = self._budget.add_events(read)
        return read if self.output_validator is None else self.output_validator.add_events(read)

    def _find_error(self, result: ResultMessage, before: Sequence[Message]) -> PilothouseError | None:
        """The error of the answer if `result` is its last result."""
        from pilothouse.client.result import QueryResult

        if self.output_validator is not None and self.output_validator.is_repaired(result):
            return None
        messages = [*before, result]
        answer = QueryResult(messages, structured_expected=self.output_validator is not None)
        self.complete_result(answer, messages)
        return answer.error

    def complete_result(self, result: QueryResult, kept: list[Message]) -> None:
        """Complete a result before it is returned."""
        if self._budget is not None:
            self._budget.apply_to(result)
        if self.output_validator is not None:
            self.output_validator.apply_to(result, kept)
        if self._retry is not None:
            self._retry.add_cause(result.error)

    def add_causes(self, error: PilothouseError) -> None:
        """Chain the errors of earlier attempts to `error`, which is about to be raised."""
        if self.output_validator is not None:
            self.output_validator.add_cause(error)
        if self._retry is not None:
            self._retry.add_cause(error)


class _UnaskedToolWarning:
    """Warns once for each query about tools that were denied because there is no permission callback."""

    __slots__ = ("_has_warned",)

    def __init__(self) -> None:
        self._has_warned = False

    def note(self, message: PermissionDeniedMessage) -> None:
        """Note that the CLI has denied a tool."""
        from pilothouse.permissions.dispatcher import (
            warn_denied_without_asking,
            was_denied_without_asking,
        )  # most queries do without

        if not self._has_warned and was_denied_without_asking(message):
            self._has_warned = True
            warn_denied_without_asking(message.tool_name or "")


def make_transport(options: Options) -> Transport:
    """Make the transport that `options` specify, not started.

    Raises:
        OptionsError: the option is not a transport.
    """
    made = _make_inner_transport(options.transport)
    if options.session_store is None:
        return made
    from pilothouse.stores.mirrored_transport import MirroredTransport  # most queries do without

    return MirroredTransport(made, options)


def _make_inner_transport(given: Any) -> Transport:
    if given is None:
        return CliTransport()
    if isinstance(given, Transport):
        return given
    from pilothouse.transports.wrapper import adapt_transport, missing_methods  # most queries do without

    is_one = not isinstance(given, type) and not missing_methods(given)
    return adapt_transport(given() if callable(given) and not is_one else given)


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
