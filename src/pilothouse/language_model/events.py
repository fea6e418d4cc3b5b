"""The events of a language model's stream, and the whole answer.

Pure. The sums over steps stand here; this module knows neither processes nor how replies are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Struct, field

from pilothouse.errors import PilothouseError
from pilothouse.messages import Usage

FinishReason = Literal["stop", "length", "tool-calls", "content-filter", "error", "other"]


class TextDelta(Struct, frozen=True):
    """More text of the answer. (S14)"""

    text: str
    type: ClassVar[str] = "text-delta"


class ThinkingDelta(Struct, frozen=True):
    """More of what the model thinks, natively or between `<thinking>` tags; never part of the text. (S29)"""

    text: str
    type: ClassVar[str] = "reasoning-delta"


class ToolCallStarted(Struct, frozen=True):
    """The model begins to write a call. It may still be `TextRetracted`."""

    id: str
    name: str
    type: ClassVar[str] = "tool-call-start"


class ToolCallDelta(Struct, frozen=True):
    """More of the arguments of a call, as the model writes them, markup included. (S14)"""

    id: str
    text: str
    type: ClassVar[str] = "tool-call-delta"


class ToolCall(Struct, frozen=True):
    """A call that counts: it comes when the answer has ended, and is never retracted. (S14, S18)

    Attributes:
        id: of the call; its result names it.
        name: of the tool; "" if the model did not say.
        input: the arguments, in the types of the schema.
        error: what is wrong with it, for the model: the call cannot be run, and is answered with this; else None.
        raw: a call that cannot be read, as the model wrote it; else "".
    """

    id: str
    name: str
    input: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    raw: str = ""
    type: ClassVar[str] = "tool-call"


class ToolResult(Struct, frozen=True):
    """What a call gave that was answered here: its tool ran, was denied, or it was no call that can be run.

    Attributes:
        id: of the call.
        name: of the tool.
        output: structured data if the tool gave some, else its text, else its content blocks.
        content: what the model reads: content blocks of the Messages API.
        is_error: whether the model is told of a failure. (S39)
        error: the failure, typed: `ToolInputError`, `ToolExecutionError`, `ToolTimeout` …; None for a denial. (S38)
    """

    id: str
    name: str
    output: Any = None
    content: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    is_error: bool = False
    error: PilothouseError | None = None
    type: ClassVar[str] = "tool-result"


class TextRetracted(Struct, frozen=True):
    """The stream was told anew: what was told last no longer holds, and what follows stands in its place. (S33)

    Attributes:
        text: the end of all text so far; take it back.
        reasoning: the end of all reasoning so far.
        call_ids: calls that were begun and do not count.
    """

    text: str = ""
    reasoning: str = ""
    call_ids: tuple[str, ...] = ()
    type: ClassVar[str] = "retracted"


class TokenUsage(Struct, frozen=True, kw_only=True):
    """Tokens. (S42)

    Attributes:
        input_tokens: all input: fresh, written to the cache, and read from it.
        output_tokens: all output, reasoning included.
        reasoning_tokens: what part of the output was native thinking, as far as the API says.
        cached_input_tokens: what part of the input was read from the cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def from_usage(cls, usage: Usage) -> TokenUsage:
        """The counts of the CLI."""
        details = usage.output_tokens_details
        return cls(
            input_tokens=usage.total_input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=details.thinking_tokens if details is not None else 0,
            cached_input_tokens=usage.cache_read_input_tokens,
        )

    @classmethod
    def total(cls, parts: Sequence[TokenUsage]) -> TokenUsage:
        """All of them together."""
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in cls.__struct_fields__})


class CallWarning(Struct, frozen=True):
    """Something of the request that could not be done as asked.

    Attributes:
        kind: "unsupported-part", "unsupported-setting", "tool-choice", or "tool-call" (a call that was not run).
        message: what, and where.
    """

    kind: str
    message: str


class ModelStep(Struct, frozen=True, kw_only=True):
    """One answer of the model, and what came of its calls."""

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
        if self.text.strip():  # the API refuses blank texts
            said.append({"type": "text", "text": self.text})
        said += [_make_call_block(call) for call in self.tool_calls]
        answered = [_make_result_block(result) for result in self.tool_results]
        told = (("assistant", said), ("tool", answered))
        return [{"role": role, "content": content} for role, content in told if content]


class ResponseInfo(Struct, frozen=True, kw_only=True):
    """Who answered.

    Attributes:
        model: as the API names it.
        message_id: of its last message.
        session_id: of the process; the session is not kept.
        cost_usd: what it cost, in US dollars, as the CLI counts it.
    """

    model: str | None = None
    message_id: str | None = None
    session_id: str | None = None
    cost_usd: float | None = None


class GenerateResult(Struct, frozen=True, kw_only=True):
    """A whole answer. (S30, S32)

    Attributes:
        steps: the answers of the model, one by one; the properties are of all of them together.
        finish_reason: of the last step: "tool-calls" if there are calls for the caller, or no step is left. (S43)
        warnings: what could not be done as asked.
        response: who answered.
    """

    steps: tuple[ModelStep, ...] = ()
    finish_reason: FinishReason = "other"
    warnings: tuple[CallWarning, ...] = ()
    response: ResponseInfo = ResponseInfo()

    @property
    def text(self) -> str:
        """All text; the deltas joined. (S33)"""
        return "".join(step.text for step in self.steps)

    @property
    def reasoning(self) -> str:
        """All that the model thought, natively or between tags. (S29)"""
        return "".join(step.reasoning for step in self.steps)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls, in order; see `pending_calls`."""
        return tuple(call for step in self.steps for call in step.tool_calls)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of those that were answered here."""
        return tuple(result for step in self.steps for result in step.tool_results)

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """The calls that wait for the caller: run them, and ask again with `messages` and the results appended."""
        answered = {result.id for result in self.tool_results}
        return tuple(call for call in self.tool_calls if call.id not in answered)

    @property
    def usage(self) -> TokenUsage:
        """Tokens. (S42)"""
        return TokenUsage.total([step.usage for step in self.steps])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What to append to the history: messages of roles `assistant` and `tool`, in blocks of the Messages API."""
        return [message for step in self.steps for message in step.messages]


class Finished(Struct, frozen=True):
    """The answer is complete, and its process is gone; comes once, and last. (S15)"""

    finish_reason: FinishReason
    usage: TokenUsage
    result: GenerateResult
    type: ClassVar[str] = "finish"


class Failed(Struct, frozen=True):
    """There is no complete answer; comes once, and last, in place of `Finished`. (S15, S36, S38)

    Attributes:
        error: why, as `generate` would raise it; `Interrupted` if it was aborted.
        result: what there was until then; its finish reason is "error".
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
"""Name of a tool that was not said, and of the one argument of a call that could not be read."""


def _make_call_block(call: ToolCall) -> dict[str, Any]:
    given = call.input if not call.raw else {UNREADABLE_CALL: call.raw}
    return {"type": "tool_use", "id": call.id, "name": call.name or UNREADABLE_CALL, "input": given}


def _make_result_block(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.id, "content": result.content}
    return {**block, "is_error": True} if result.is_error else block
