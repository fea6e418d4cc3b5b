"""`Plan`: what one query is made of, and the making of its run.

Owns the settings, the prompts, and what may follow a result (typed output, bridges, retries, budgets, watchers), each
loaded where it is asked for. How the answer is read, `Query` knows; what happens on the wire, the driver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pilothouse.client.house import house_of, started_with
from pilothouse.client.prompt import Prompt, checked_text, prepare
from pilothouse.driver import Exchange, Limits, Prompts, spawn
from pilothouse.errors import OptionsError, PilothouseError, UsageError
from pilothouse.messages import Message, PermissionDeniedMessage, ResultMessage
from pilothouse.options import Invocation, Options, render
from pilothouse.transports import CliTransport, Transport

if TYPE_CHECKING:
    from pilothouse.client.bridging import Bridge
    from pilothouse.client.budgets import TokenBudget
    from pilothouse.client.costs import Ledger
    from pilothouse.client.events import AnswerEvent
    from pilothouse.client.observing import Observation
    from pilothouse.client.output import TypedOutput
    from pilothouse.client.rate_gate import RateGate
    from pilothouse.client.result import QueryResult
    from pilothouse.client.retrying import Retries
    from pilothouse.driver import Continuation, Host
    from pilothouse.driver.turn import Turn

Run: TypeAlias = "Exchange | Turn"
MakeRun: TypeAlias = "Callable[[Options, Prompts, Continuation | None], Run]"
"""Makes what runs a query: with a child of its own, or as a turn of a session."""

SHOWN_PROMPT = 40  # characters, in a warning


class Plan:
    """A query before its start. Holds nothing of the query, which could not be dropped then.

    Args:
        prompt: what is asked.
        options: the settings, all layers together.
        output_type: what the answer must fit, if anything.
        make_run: makes the run; None for a child of its own.
        bridge: what runs `custom_tools`, if the session has one.
        ledger: what the session has cost so far.
        session_tokens: how many tokens all queries of the session may use.
        gate: until when the API wants no more queries.

    Attributes:
        options: the settings that it runs with.
        id: of the query.
        is_one_of_many: whether it goes on with a conversation.
        output: the typed output; None for plain text.
        tells_asks: whether its reader wants to know what is asked of people, and how that is settled.

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
        ledger: Ledger | None = None,
        session_tokens: int | None = None,
        gate: RateGate | None = None,
    ) -> None:
        self.options = options
        self.is_one_of_many = bool(make_run or options.resume or options.continue_conversation)
        self._prompt = prompt
        self._make_run = make_run
        self.output = self._expect(output_type)
        self._house = house_of(self.options, bridge=bridge) if make_run is None else None
        self._bridge = bridge if self._house is None else self._house.bridge
        self._budget = self._limited(ledger, session_tokens)
        self._retries = self._persistent(gate)
        self._prompts = self._prepare()
        given = self._prompts if isinstance(self._prompts, Sequence) else ()
        self.id = given[0].uuid if given else str(uuid4())
        self.tells_asks = False

    def _expect(self, output_type: Any) -> TypedOutput | None:
        schema = self.options.json_schema
        if output_type is None and schema is None:
            return None
        from pilothouse.client.output import ExpectedOutput, TypedOutput  # most queries do without

        repairs = self.options.output_repairs
        if output_type is None:
            return TypedOutput(ExpectedOutput.of_schema(schema or {}), repairs)
        expected = ExpectedOutput.of_type(output_type)
        if schema is not None and schema != expected.schema:
            raise OptionsError("pass output_type or json_schema, not both", option="json_schema")
        self.options = self.options.with_(json_schema=expected.schema)
        return TypedOutput(expected, repairs)

    def _limited(self, ledger: Ledger | None, session_tokens: int | None) -> TokenBudget | None:
        if self.options.max_budget_tokens is None:
            return None
        from pilothouse.client.budgets import TokenBudget  # most queries do without

        return TokenBudget(self.options, ledger, session_tokens)

    def _persistent(self, gate: RateGate | None) -> Retries | None:
        if self.options.retry is None and self.options.on_usage_limit == "raise":
            return None
        from pilothouse.client.retrying import Retries  # most queries do without

        return Retries(self.options, gate)

    def _prepare(self) -> Prompts:
        if self.options.prompt_via == "argv":
            if not isinstance(self._prompt, str):
                raise UsageError("prompt_via='argv' takes a text prompt; use 'stdin' for blocks and iterables")
            render(self.options, {}, prompt=checked_text(self._prompt))
            return ()
        return prepare(self._prompt, verbatim=self.options.verbatim_prompts)

    @property
    def shown_prompt(self) -> str:
        """The beginning of the prompt, for a warning to the programmer."""
        if not isinstance(self._prompt, str):
            return "with a prompt of several parts"
        return repr(self._prompt if len(self._prompt) <= SHOWN_PROMPT else self._prompt[: SHOWN_PROMPT - 1] + "…")

    # Before the start.

    def with_partial_messages(self) -> None:
        """Let the answer come in pieces."""
        self.options = self.options.with_(partial_messages=True)

    async def discard(self) -> None:
        """There will be no run: close what was given as prompts."""
        if isinstance(self._prompts, AsyncGenerator):
            await self._prompts.aclose()

    # The start.

    def start(self) -> Run:
        """Make the run, and start it in a task of its own. Once."""
        make = self._make_run or self._alone
        continuation = self._continuation()
        observation = self._observed(continuation) if self.options.instrumentation else None
        if observation is None:
            run = make(self.options, self._prompts, continuation)
        else:
            run = observation.of(partial(make, self.options, self._prompts, observation))
        run.tells_asks = self.tells_asks
        if self._house is not None:
            self._house.report = run.report
        if self._budget is not None:
            self._budget.enforced_by(run.interrupt)
        if self._retries is not None:
            self._retries.serves(run, observation)
        if self.options.can_use_tool is None and self.options.confirm is None:
            run.on_denied = _UnaskedTools().note
        start = spawn if observation is None else observation.spawn
        start(run.run, "pilothouse query")
        return run

    def start_of(self) -> tuple[Invocation, Host | None]:
        """How a child of its own is started, and what this process offers to it."""
        in_argv = self.options.prompt_via == "argv" and isinstance(self._prompt, str)
        return started_with(self.options, self._house, str(self._prompt) if in_argv else None)

    def _observed(self, continuation: Continuation | None) -> Observation | None:
        from pilothouse.client.observing import observe  # most queries do without

        how = {"in_session": self._make_run is not None, "one_of_many": self.is_one_of_many}
        return observe(self.options, self._prompt, continuation, **how)

    def _continuation(self) -> Continuation | None:
        following = self._following()
        if self._retries is not None:
            following = self._retries.around(following)
            self._prompts = self._retries.watched(self._prompts)
        return following if self._budget is None else self._budget.around(following)

    def _following(self) -> Continuation | None:
        if self.options.prompt_via != "stdin" or (self.output is None and self._bridge is None):
            return None
        from pilothouse.client.repairs import Repairs  # most queries do without

        repairs = None if self.output is None else Repairs(self.output)
        if self._bridge is None:
            return repairs
        from pilothouse.client.bridging import Bridged

        bridged = Bridged(self._bridge.steps(), self._prompts, repairs)
        self._prompts = bridged.first
        return bridged

    def _alone(self, options: Options, prompts: Prompts, continuation: Continuation | None) -> Exchange:
        invocation, host = self.start_of()
        if options.instrumentation:
            from pilothouse.client.observing import started_watched

            invocation, host = started_watched(continuation, invocation, host, options)
        return Exchange(transport_of(options), invocation, prompts, limits_of(options), continuation, host)

    # What it makes of the answer.

    def event_reader(self) -> Callable[[Message], Iterator[AnswerEvent]]:
        """What makes events of messages."""
        from pilothouse.client.events import EventReader  # most queries are awaited, or read as messages

        read = EventReader(runs_deferred=self._bridge is not None, read_error=self._error_of).read
        if self._budget is not None:
            read = self._budget.reporting(read)
        return read if self.output is None else self.output.reporting(read)

    def _error_of(self, result: ResultMessage, before: Sequence[Message]) -> PilothouseError | None:
        """The error that the answer has if this is its last result."""
        from pilothouse.client.result import QueryResult

        if self.output is not None and self.output.asks_again(result):
            return None
        messages = [*before, result]
        answer = QueryResult(messages, structured_expected=self.output is not None)
        self.settle(answer, messages)
        return answer.error

    def settle(self, result: QueryResult, kept: list[Message]) -> None:
        """Complete a result that is about to be given out."""
        if self._budget is not None:
            self._budget.settle(result)
        if self.output is not None:
            self.output.settle(result, kept)
        if self._retries is not None:
            self._retries.explained(result.error)

    def explain(self, error: PilothouseError) -> None:
        """Tell in `error`, which is about to be raised, what was tried before."""
        if self.output is not None:
            self.output.explained(error)
        if self._retries is not None:
            self._retries.explained(error)


class _UnaskedTools:
    """Tools that were denied because nobody was there to ask: one warning for each query."""

    __slots__ = ("_has_warned",)

    def __init__(self) -> None:
        self._has_warned = False

    def note(self, message: PermissionDeniedMessage) -> None:
        """The CLI has denied a tool."""
        from pilothouse.permissions.unasked import warn_unasked, was_unasked  # most queries do without

        if not self._has_warned and was_unasked(message):
            self._has_warned = True
            warn_unasked(message.tool_name or "")


def transport_of(options: Options) -> Transport:
    """The transport that `options` ask for, not started.

    Raises:
        OptionsError: what was given is none.
    """
    made = _bare_transport(options.transport)
    if options.session_store is None:
        return made
    from pilothouse.stores.mirrored import MirroredTransport  # most queries do without

    return MirroredTransport(made, options)


def _bare_transport(wanted: Any) -> Transport:
    if wanted is None:
        return CliTransport()
    if isinstance(wanted, Transport):
        return wanted
    from pilothouse.transports.wrapper import adapt_transport, missing_methods  # most queries do without

    is_one = not isinstance(wanted, type) and not missing_methods(wanted)
    return adapt_transport(wanted() if callable(wanted) and not is_one else wanted)


def limits_of(options: Options) -> Limits:
    """The bounds that `options` set."""
    return Limits(
        timeout=options.timeout,
        idle_timeout=options.idle_timeout,
        startup_timeout=options.startup_timeout,
        control_timeout=options.control_timeout,
        max_line_bytes=options.max_line_bytes,
        until_idle=options.until == "idle",
    )
