"""The events of a language model's stream, and the whole answer.

Pure. Owns the sums over steps; knows neither processes nor parsers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Struct, field

from pilothouse.errors import PilothouseError
from pilothouse.messages import Usage

FinishReason = Literal["stop", "length", "tool-calls", "content-filter", "error", "other"]


class TextDelta(Struct, frozen=True):
    """More text of the answer."""

    text: str
    type: ClassVar[str] = "text-delta"


class ThinkingDelta(Struct, frozen=True):
    """More thinking of the model, native or between `<thinking>` tags; never part of the text."""

    text: str
    type: ClassVar[str] = "reasoning-delta"


class ToolCallStarted(Struct, frozen=True):
    """The model begins to write a call. `TextRetracted` may still retract it."""

    id: str
    name: str
    type: ClassVar[str] = "tool-call-start"


class ToolCallDelta(Struct, frozen=True):
    """More of the arguments of a call, as the model writes them, including markup."""

    id: str
    text: str
    type: ClassVar[str] = "tool-call-delta"


class ToolCall(Struct, frozen=True):
    """A final call: sent when the answer has ended, and never retracted.

    Attributes:
        id: id of the call; its result has the same.
        name: name of the tool; "" if the model did not give one.
        input: the arguments, in the types of the schema.
        error: what is wrong with the call, for the model: the call cannot be run, and this is its result; else None.
        raw: the model's text of a call that cannot be parsed; else "".
    """

    id: str
    name: str
    input: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    raw: str = ""
    type: ClassVar[str] = "tool-call"


class ToolResult(Struct, frozen=True):
    """The result of a call that was handled here: its tool ran, was denied, or the call could not be run.

    Attributes:
        id: id of the call.
        name: name of the tool.
        output: the tool's structured data, else its text, else its content blocks.
        content: what the model reads: content blocks of the Messages API.
        is_error: whether the model sees a failure.
        error: the failure, typed: `ToolInputError`, `ToolExecutionError`, `ToolTimeout` …; None for a denial.
    """

    id: str
    name: str
    output: Any = None
    content: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    is_error: bool = False
    error: PilothouseError | None = None
    type: ClassVar[str] = "tool-result"


class TextRetracted(Struct, frozen=True):
    """The stream was restarted: the end of the previous output is retracted, and what follows replaces it.

    Attributes:
        text: the end of all text so far, to be removed.
        reasoning: the end of all reasoning so far, to be removed.
        call_ids: calls that were begun and do not count.
    """

    text: str = ""
    reasoning: str = ""
    call_ids: tuple[str, ...] = ()
    type: ClassVar[str] = "retracted"


class TokenUsage(Struct, frozen=True, kw_only=True):
    """Numbers of tokens.

    Attributes:
        input_tokens: all input: fresh, written to the cache, and read from it.
        output_tokens: all output, including reasoning.
        reasoning_tokens: the part of the output that was native thinking, as far as the API reports it.
        cached_input_tokens: the part of the input that was read from the cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Sum of input and output."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def from_usage(cls, usage: Usage) -> TokenUsage:
        """Convert the counts of the CLI."""
        details = usage.output_tokens_details
        return cls(
            input_tokens=usage.total_input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=details.thinking_tokens if details is not None else 0,
            cached_input_tokens=usage.cache_read_input_tokens,
        )

    @classmethod
    def total(cls, parts: Sequence[TokenUsage]) -> TokenUsage:
        """Return the sum of several usages."""
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in cls.__struct_fields__})


class CallWarning(Struct, frozen=True):
    """A part of the request that could not be fulfilled.

    Attributes:
        kind: "unsupported-part", "unsupported-setting", "tool-choice", or "tool-call" (a call that was not run).
        message: what, and where.
    """

    kind: str
    message: str


class ModelStep(Struct, frozen=True, kw_only=True):
    """One answer of the model, and the results of its calls."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    finish_reason: FinishReason = "other"
    stop_reason: str | None = None
    usage: TokenUsage = TokenUsage()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The step as messages for a history."""
        said: list[dict[str, Any]] = []
        if self.reasoning:
            said.append({"type": "thinking", "thinking": self.reasoning})
        if self.text.strip():  # the API rejects blank texts
            said.append({"type": "text", "text": self.text})
        said += [_make_call_block(call) for call in self.tool_calls]
        answered = [_make_result_block(result) for result in self.tool_results]
        told = (("assistant", said), ("tool", answered))
        return [{"role": role, "content": content} for role, content in told if content]


class ResponseInfo(Struct, frozen=True, kw_only=True):
    """Metadata of the answer.

    Attributes:
        model: the API's name of the model.
        message_id: id of its last message.
        session_id: id of the session, which is not kept.
        cost_usd: cost in US dollars, as the CLI reports it.
    """

    model: str | None = None
    message_id: str | None = None
    session_id: str | None = None
    cost_usd: float | None = None


class GenerateResult(Struct, frozen=True, kw_only=True):
    """A whole answer.

    Attributes:
        steps: the answers of the model, one per step; the properties combine all of them.
        finish_reason: that of the last step: "tool-calls" if there are calls for the caller, or no steps are left.
        warnings: what could not be done as asked.
        response: metadata of the answer.
    """

    steps: tuple[ModelStep, ...] = ()
    finish_reason: FinishReason = "other"
    warnings: tuple[CallWarning, ...] = ()
    response: ResponseInfo = ResponseInfo()

    @property
    def text(self) -> str:
        """All text; the deltas joined."""
        return "".join(step.text for step in self.steps)

    @property
    def reasoning(self) -> str:
        """All thinking, native or between tags."""
        return "".join(step.reasoning for step in self.steps)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls, in order; see `pending_calls`."""
        return tuple(call for step in self.steps for call in step.tool_calls)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of calls that were handled here."""
        return tuple(result for step in self.steps for result in step.tool_results)

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the caller must run: append `messages` and the results, and send the next request."""
        answered = {result.id for result in self.tool_results}
        return tuple(call for call in self.tool_calls if call.id not in answered)

    @property
    def usage(self) -> TokenUsage:
        """The tokens of all steps."""
        return TokenUsage.total([step.usage for step in self.steps])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Messages to append to the history: roles `assistant` and `tool`, in blocks of the Messages API."""
        return [message for step in self.steps for message in step.messages]


class Finished(Struct, frozen=True):
    """The answer is complete, and its process is gone; sent once, as the last event."""

    finish_reason: FinishReason
    usage: TokenUsage
    result: GenerateResult
    type: ClassVar[str] = "finish"


class Failed(Struct, frozen=True):
    """The answer is not complete; sent once, as the last event, instead of `Finished`.

    Attributes:
        error: the error that `generate` would raise; `Interrupted` if the request was aborted.
        result: the answer until then; its finish reason is "error".
    """

    error: Exception
    result: GenerateResult
    type: ClassVar[str] = "error"


ModelEvent: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCall
    | ToolResult
    | TextRetracted
    | Finished
    | Failed
)

UNREADABLE_CALL: Final = "unreadable"
"""Name for a missing tool name, and of the only argument of a call that could not be parsed."""


def _make_call_block(call: ToolCall) -> dict[str, Any]:
    given = call.input if not call.raw else {UNREADABLE_CALL: call.raw}
    return {"type": "tool_use", "id": call.id, "name": call.name or UNREADABLE_CALL, "input": given}


def _make_result_block(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.id, "content": result.content}
    return {**block, "is_error": True} if result.is_error else block
