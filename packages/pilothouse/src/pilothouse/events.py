"""What happens in a run: one class for each kind of event, and the unions of them that each stream sends.

Owns the events of `Query.events()`, of `LanguageModel.stream()` (but for its end, which holds the whole answer) and of
the text protocol's parser. `type` tells the classes apart; it is the AI SDK's word where that has one. The last event
of each of the three streams has the type "finish". Pure: plain data, and no knowledge of who makes the events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from pilothouse.errors import PilothouseError, StructuredOutputError
from pilothouse.messages import (
    ApiRetryMessage,
    InitMessage,
    LineSkippedMessage,
    ResultMessage,
    ToolResultBlock,
    ToolUseBlock,
)

if TYPE_CHECKING:
    from pilothouse.permissions import (
        DialogRequest,
        ElicitationRequest,
        PermissionRequest,
        PlanRequest,
        QuestionRequest,
    )

    AnyRequest: TypeAlias = PermissionRequest | QuestionRequest | PlanRequest | ElicitationRequest | DialogRequest
else:
    AnyRequest = Any  # `help()` reads annotations, and this module imports none of the above


class Started(Struct, frozen=True):
    """The run began; the model, the tools and the session are known."""

    message: InitMessage
    type: ClassVar[Literal["start"]] = "start"


class TextDelta(Struct, frozen=True):
    """More text of the answer. `agent` is the tool call of the sub-agent that writes it, None for the main agent."""

    text: str
    agent: str | None = None
    type: ClassVar[Literal["text-delta"]] = "text-delta"


class ThinkingDelta(Struct, frozen=True):
    """More of the model's thinking, native or between `<thinking>` tags; never part of the text."""

    text: str
    agent: str | None = None
    type: ClassVar[Literal["reasoning-delta"]] = "reasoning-delta"


class TextRetracted(Struct, frozen=True):
    """The stream broke: the end of what was sent is invalid, and what follows replaces it.

    Attributes:
        text: the end of all text so far, to be removed.
        thinking: the end of all thinking so far, to be removed; a query retracts only text.
        call_ids: calls that were begun and do not count; they were not run.
        agent: the tool call of the sub-agent that wrote it, None for the main agent.
    """

    text: str = ""
    thinking: str = ""
    call_ids: tuple[str, ...] = ()
    agent: str | None = None
    type: ClassVar[Literal["retracted"]] = "retracted"


class ToolCallStarted(Struct, frozen=True):
    """The model calls a tool.

    Attributes:
        tool_use: the call. In text (`LanguageModel`, the text protocol) the model is still writing it: the input is
            empty, `ToolCallDelta`s follow, and `ToolCall` has the input.
        agent: the tool call of the sub-agent that makes the call, None for the main agent.
    """

    tool_use: ToolUseBlock
    agent: str | None = None
    type: ClassVar[Literal["tool-call-start"]] = "tool-call-start"

    @property
    def id(self) -> str:
        """Id of the call."""
        return self.tool_use.id

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self.tool_use.name


class ToolCallDelta(Struct, frozen=True):
    """More of the arguments of call `id`, as the model writes them, including markup."""

    id: str
    text: str
    type: ClassVar[Literal["tool-call-delta"]] = "tool-call-delta"


class ToolCall(Struct, frozen=True):
    """A whole call in text. In a `LanguageModel`'s stream it comes when the answer has ended, and is never retracted.

    Attributes:
        id: id of the call; its result has the same.
        name: name of the tool; "" if the model did not give one.
        input: the arguments, in the types of the schema as far as the text allows.
        error: what is wrong with the call, for the model: the call cannot be run, and this is its result; else None.
        raw: the call as the model wrote it, including tags. A `LanguageModel` keeps it only if it cannot be parsed.
    """

    id: str
    name: str
    input: dict[str, Any] = {}
    error: str | None = None
    raw: str = ""
    type: ClassVar[Literal["tool-call"]] = "tool-call"


class ToolCallError(Struct, frozen=True):
    """Text that was meant as a call and cannot be run; only from the parser.

    Attributes:
        id: like the id of a call; the response to the model names it.
        name: the tool, if the model named it.
        code: kind of the error: `missing_name`, `unknown_tool`, `invalid_call`, `invalid_json`, `unclosed` (a tag in
            the call, or the call when another began), `truncated`, `too_large`, `missing_suffix` (no nonce in the
            outer tag), or `invented_result` (the model made up a result; there is no call).
        message: what is wrong, for the model.
        raw: what the model wrote, including tags; only the beginning if it is too large.
    """

    id: str
    name: str | None
    code: str
    message: str
    raw: str = ""
    type: ClassVar[Literal["error"]] = "error"


class ToolCallFinished(Struct, frozen=True):
    """A call has its result: the tool ran, was denied, or could not be run.

    Attributes:
        result: the result, as the model reads it.
        tool_use: the call, if known.
        agent: the tool call of the sub-agent that made the call, None for the main agent.
        output: the tool's structured data, else its text, else its content blocks; only from a `LanguageModel`.
        error: the failure, typed: `ToolInputError`, `ToolExecutionError`, `ToolTimeout` …; None for a denial. Only
            from a `LanguageModel`.
    """

    result: ToolResultBlock
    tool_use: ToolUseBlock | None = None
    agent: str | None = None
    output: Any = None
    error: PilothouseError | None = None
    type: ClassVar[Literal["tool-result"]] = "tool-result"

    @property
    def id(self) -> str:
        """Id of the call."""
        return self.result.tool_use_id

    @property
    def name(self) -> str:
        """Name of the tool; "" if the call is not known."""
        return "" if self.tool_use is None else self.tool_use.name

    @property
    def is_error(self) -> bool:
        """Whether the model sees a failure."""
        return self.result.is_error is True


class PermissionAsked(Struct, frozen=True):
    """The CLI requests a decision of this process. It comes after the `ToolCallStarted` of its tool call.

    Attributes:
        id: the same in the `PermissionSettled` that ends the request.
        request: the request as the callback gets it, without its `session`.
        kind: "permission" with a `PermissionRequest`, "question" with a `QuestionRequest`, "plan" with a
            `PlanRequest`, "elicitation" with an `ElicitationRequest`, "dialog" with a `DialogRequest`.
        agent: the tool call of the sub-agent that requests it, None for the main agent.
    """

    id: str
    request: AnyRequest
    kind: str = "permission"
    agent: str | None = None
    type: ClassVar[Literal["permission-asked"]] = "permission-asked"


class PermissionSettled(Struct, frozen=True):
    """A request was decided, before the tool runs; or the CLI denied a call without a request.

    Attributes:
        id: as in `PermissionAsked`; "" without a request.
        decision: `Allow` or `Deny`; for an elicitation `Accept`, `Decline` or `Cancel`; for a dialog its result, or
            `Cancel`. None: the CLI withdrew the request.
        by: what decided: "can_use_tool", "confirm", "on_question", "on_plan", "on_elicitation", "on_user_dialog";
            who settled the approval; "nobody" without a callback for it; "error" or "timeout" if the callback failed;
            "withdrawn" with the decision None; "rule", "mode", "hook" and the like without a request.
        kind: as in `PermissionAsked`.
        tool_use_id: the tool call that the request is about, if any.
        agent: as in `PermissionAsked`.
    """

    id: str
    decision: Any
    by: str
    kind: str = "permission"
    tool_use_id: str | None = None
    agent: str | None = None
    type: ClassVar[Literal["permission-settled"]] = "permission-settled"


class ApiRetry(Struct, frozen=True):
    """The API failed and the CLI retries."""

    message: ApiRetryMessage
    type: ClassVar[Literal["api-retry"]] = "api-retry"


class RetryScheduled(Struct, frozen=True):
    """The query failed in a way that may pass, and is retried: number `attempt` of at most `of` tries.

    `delay` is in seconds; `reason` is one of `RetryPolicy.on`; `error` says what failed.
    """

    attempt: int
    of: int
    delay: float
    reason: str
    error: str
    type: ClassVar[Literal["retry-scheduled"]] = "retry-scheduled"


class WaitingForLimit(Struct, frozen=True):
    """The query waits for a limit, `until` a Unix time, for `seconds`. `limit`: "usage_limit", "rate_limit"."""

    until: float
    seconds: float
    limit: str
    error: str
    type: ClassVar[Literal["limit-wait"]] = "limit-wait"


class Stalled(Struct, frozen=True):
    """The CLI has been silent for `seconds`, half of the `limit` in the option `idle_timeout` or `startup_timeout`.

    `phase` is "startup" before its first message, "idle" between messages. There is one event for each silence.
    """

    seconds: float
    limit: float
    phase: str
    type: ClassVar[Literal["stalled"]] = "stalled"


class LineSkipped(Struct, frozen=True):
    """Lines of the CLI's output could not be read, so that something may be missing."""

    message: LineSkippedMessage
    type: ClassVar[Literal["line-skipped"]] = "line-skipped"


class BudgetReached(Struct, frozen=True):
    """The run is stopped because it has used too much: `unit` is "tokens" or "usd".

    `used` is the usage when that was noticed, `limit` the option `max_budget_tokens`; None for dollars, which the CLI
    counts by itself.
    """

    unit: str
    used: float
    limit: float | None = None
    type: ClassVar[Literal["budget-reached"]] = "budget-reached"


class OutputRejected(Struct, frozen=True):
    """The structured output of attempt number `attempt` is missing or does not fit; the model is asked again."""

    error: StructuredOutputError
    attempt: int
    type: ClassVar[Literal["output-rejected"]] = "output-rejected"


class Finished(Struct, frozen=True):
    """The run ended; the message says how. `error` is the reason of a failure, None on success; it is not raised."""

    message: ResultMessage
    error: PilothouseError | None = None
    type: ClassVar[Literal["finish"]] = "finish"


class ReplyFinished(Struct, frozen=True):
    """The end of a reply that was parsed; comes once, as the last event."""

    reason: Literal["stop", "tool-calls"]
    type: ClassVar[Literal["finish"]] = "finish"


QueryEvent: TypeAlias = (
    Started
    | TextDelta
    | ThinkingDelta
    | TextRetracted
    | ToolCallStarted
    | ToolCallFinished
    | PermissionAsked
    | PermissionSettled
    | ApiRetry
    | RetryScheduled
    | LineSkipped
    | WaitingForLimit
    | Stalled
    | BudgetReached
    | Finished
    | OutputRejected
)
"""An event of `Query.events()`."""

ParserEvent: TypeAlias = (
    TextDelta | ThinkingDelta | ToolCallStarted | ToolCallDelta | ToolCall | ToolCallError | ReplyFinished
)
"""An event of `pilothouse_models.xml.StreamParser`."""

ReplyEvent: TypeAlias = ParserEvent | TextRetracted
"""An event of a reply of the text protocol that the CLI streams: a broken stream may retract what was sent."""
