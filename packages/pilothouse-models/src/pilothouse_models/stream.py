"""`Stream`: the events of one answer as they arrive, its end, and the whole answer.

`ModelRun` decides when a tool call is final, which calls run here, and why an answer ended. When the stream has
ended, for any reason, the process is gone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client import Query
from pilothouse.client.queries import MessageIterator as Messages
from pilothouse.client.result import make_result_error
from pilothouse.errors import BudgetError, Interrupted, PilothouseError, StructuredOutputError, UsageError
from pilothouse.events import (
    ReplyFinished,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    ToolCallFinished,
    ToolCallStarted,
)
from pilothouse.messages import (
    AssistantMessage,
    Message,
    MessageDelta,
    ResultMessage,
    StreamEvent,
    ToolUseBlock,
    Usage,
)
from pilothouse.options import Options
from pilothouse.permissions import RuleSet
from pilothouse.support import to_json_values, user_class
from pilothouse.tools import ToolError, ToolFailure, ToolInputError, sdk_server, to_model_content
from pilothouse_models.bridges import (
    InvocationResult,
    LoopStep,
    RequestCallback,
    ToolExecutor,
    ToolInvocation,
    ToolLoop,
    make_results_message,
)
from pilothouse_models.loop_bridges import LoopBridge
from pilothouse_models.output import AnswerOutput
from pilothouse_models.request import CallWarning, RequestTools
from pilothouse_models.xml import ReplyReader, declare_tools, derive_nonce, results_content
from pilothouse_models.xml.call_reader import unknown_tool_message
from pilothouse_models.xml.prompt import get_tool_parts

FinishReason = Literal["stop", "length", "tool-calls", "content-filter", "error", "other"]


class TokenUsage(Struct, frozen=True, kw_only=True):
    """Numbers of tokens.

    Attributes:
        input_tokens: all input: fresh, written to the cache, and read from it.
        output_tokens: all output, including reasoning.
        reasoning_tokens: the part of the output that was native thinking, as far as the API reports it.
        cached_input_tokens: the part of the input that was read from the cache.
        cache_write_tokens: the part of the input that was written to the cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0

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
            cache_write_tokens=usage.cache_creation_input_tokens,
        )

    @classmethod
    def total(cls, parts: Sequence[TokenUsage]) -> TokenUsage:
        """Return the sum of several usages."""
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in cls.__struct_fields__})


class ModelStep(Struct, frozen=True, kw_only=True):
    """One answer of the model, and the results of its calls."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolCallFinished, ...] = ()
    finish_reason: FinishReason = "other"
    stop_reason: str | None = None
    usage: TokenUsage = TokenUsage()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The step as messages for a history."""
        written: list[dict[str, Any]] = []
        if self.reasoning:
            written.append({"type": "thinking", "thinking": self.reasoning})
        if self.text.strip():  # the API rejects blank texts
            written.append({"type": "text", "text": self.text})
        written += [_make_call_block(call) for call in self.tool_calls]
        results = [to_json_values(each.result) for each in self.tool_results]
        parts = (("assistant", written), ("tool", results))
        return [{"role": role, "content": content} for role, content in parts if content]


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
        output: the structured output, in its type; None if none was requested, or calls wait for the caller.
    """

    steps: tuple[ModelStep, ...] = ()
    finish_reason: FinishReason = "other"
    warnings: tuple[CallWarning, ...] = ()
    response: ResponseInfo = ResponseInfo()
    output: Any = None

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
    def tool_results(self) -> tuple[ToolCallFinished, ...]:
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


class AnswerFinished(Struct, frozen=True):
    """The answer is complete, and its process is gone; sent once, as the last event."""

    finish_reason: FinishReason
    usage: TokenUsage
    result: GenerateResult
    type: ClassVar[Literal["finish"]] = "finish"


class AnswerFailed(Struct, frozen=True):
    """The answer is not complete; sent once, as the last event, instead of `AnswerFinished`.

    Attributes:
        error: the error that `generate` would raise; `Interrupted` if the request was aborted.
        result: the answer until then; its finish reason is "error".
    """

    error: Exception
    result: GenerateResult
    type: ClassVar[Literal["error"]] = "error"


ModelEvent: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCall
    | ToolCallFinished
    | TextRetracted
    | AnswerFinished
    | AnswerFailed
)

_UNREADABLE_CALL: Final = "unreadable"  # for a missing tool name, and the only argument of a call that cannot be parsed


def _make_call_block(call: ToolCall) -> dict[str, Any]:
    given = call.input if not call.raw else {_UNREADABLE_CALL: call.raw}
    return {"type": "tool_use", "id": call.id, "name": call.name or _UNREADABLE_CALL, "input": given}


# The reasons why the model stopped, in the terms of frameworks.
FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}
_HELD_BACK: Final = (ToolCall, ToolCallError, ReplyFinished)  # events of the parser that wait until they are final
_BARE_CALL: Final = re.compile(r"<\s*tool_use\s*>\s*<\s*tool_name\s*>", re.IGNORECASE)


class ModelRun(ToolLoop, LoopBridge):
    """One request: the bridge of its query, and its steps.

    Args:
        options: the settings: permissions and hooks of the tools that run here.
        tools: the tools of the request.
        instructions: what the system prompt says before it declares the tools; the nonce of the text protocol is
            derived from both.
        max_steps: maximum number of answers of the model.
        used_ids: ids of the calls in the history: new calls get others.
        must_call: whether the model was instructed to call a tool.
        warnings: warnings about the request so far.
        output: the structured output that is requested, if any.

    Attributes:
        events: events that were not taken yet.
        error: why the answer is not complete, as far as a result says so.
        nonce: the suffix of the tags of the text protocol.
    """

    def __init__(
        self,
        options: Options,
        tools: RequestTools,
        instructions: str,
        max_steps: int,
        *,
        used_ids: Iterable[str] = (),
        must_call: bool = False,
        warnings: Sequence[CallWarning] = (),
        output: AnswerOutput | None = None,
    ) -> None:
        rules = RuleSet.parse(allow=self.list_allowed_tools(options), deny=options.disallowed_tools or ())
        local_tools = sdk_server(self.TOOL_SERVER, tools.local_tools).tools
        super().__init__(ToolExecutor(self.TOOL_SERVER, local_tools, rules, self._record_failure), options.max_turns)
        self.executor.permission_mode = options.permission_mode
        self.events: deque[ModelEvent] = deque()
        self.error: PilothouseError | None = None
        self._tools = tools
        self._max_steps = max_steps
        self._must_call = must_call
        self._warnings = tuple(warnings)
        self._output = output
        self.nonce = derive_nonce(instructions, declare_tools(self.available_tools))
        self._reader = ReplyReader(self.available_tools, self.nonce, used_ids=used_ids)
        self._known_names = [name for name, _, _ in map(get_tool_parts, self.available_tools)]
        self._steps: list[ModelStep] = []
        self._calls: tuple[ToolCall, ...] = ()
        self._failures: dict[str, ToolError] = {}
        self._stop_reason: str | None = None
        self._response = ResponseInfo()

    @property
    def available_tools(self) -> list[Any]:
        """All tools that the model may call: those that no rule denies, declared ones, and the output's."""
        output = [] if self._output is None else [self._output.declaration]
        return [*self.executor.available_tools, *self._tools.declared_tools.values(), *output]

    # The bridge of the query.

    def bind_handlers(
        self, hook: RequestCallback | None, permission: RequestCallback | None, session: Any
    ) -> RequestCallback | None:
        """Set the hook and permission handlers of this process; they also apply to the tools that run here."""
        self.executor.bind_handlers(hook, permission, session)
        return hook

    def start_loop(self) -> ModelRun:
        """Return the steps of the query: this object, which serves one query."""
        return self

    # The steps of the query.

    def read(self, batch: list[Message]) -> list[Message]:
        """Convert a batch of messages to events."""
        for message in batch:
            self.observe(message)
            self._record_message(message)
            read = (event for event in self._reader.read(message) if not isinstance(event, _HELD_BACK))
            self.events += read if self._output is None else self._output.filter_events(read)
            if isinstance(message, ResultMessage) and not message.is_woken:
                self._finish_step(message)
        return batch

    async def next_step(self, result: ResultMessage) -> LoopStep:
        """Run the calls that run here; return the next step, unless calls are left to the caller."""
        calls, self._calls = self._calls, ()
        declared = self._tools.declared_tools
        mine = [call for call in calls if call.name not in declared or call.error is not None]
        output = self._output
        # An answer without any call, whose text is not output either.
        is_missing = output is not None and not calls and self._steps[-1].finish_reason == "stop"
        if output is not None and is_missing and not output.is_accepted and self._can_go_on:
            return LoopStep(output.reminder)
        if not mine:
            return LoopStep()
        name = self.executor.full_name
        invocations = [ToolInvocation(call.id, name(call.name), call.input, error=call.error) for call in mine]
        ran, messages = await self.run_calls(invocations, result)
        results = tuple(self._make_finished(each) for each in ran)
        self.events += results
        self._steps[-1] = replace(self._steps[-1], tool_results=results)
        closing = next((each for each in messages if isinstance(each, ResultMessage)), None)
        if closing is not None:
            self.error = make_result_error(closing)
            return LoopStep(None, messages)
        if len(mine) < len(calls) or not self._can_go_on:
            return LoopStep(None, messages)
        answers = [self.executor.make_answer(each) for each in ran]
        return LoopStep(results_content(answers, self.nonce), messages)

    @property
    def _can_go_on(self) -> bool:
        return len(self._steps) < self._max_steps and (self._output is None or self._output.can_repair)

    # After the end.

    @property
    def output_error(self) -> StructuredOutputError | None:
        """Why there is no output, if there should be one: an answer that ended otherwise has none."""
        if self._output is None or self._output.is_accepted or not self._steps:
            return None
        is_over = self._steps[-1].finish_reason in ("length", "content-filter")
        return None if is_over or self.result(failed=False).pending_calls else self._output.error

    @property
    def has_unanswered_calls(self) -> bool:
        """Whether calls of the last answer are unanswered, although their tools run here."""
        return any(call.error is not None or call.name not in self._tools.declared_tools for call in self._calls)

    def result(self, *, failed: bool) -> GenerateResult:
        """Return the answer so far."""
        reason: FinishReason = "error" if failed else self._steps[-1].finish_reason if self._steps else "other"
        warnings = self._warnings
        if self._must_call and not failed and not any(step.tool_calls for step in self._steps):
            warnings += (CallWarning("tool-choice", "the model was instructed to call a tool, and called none"),)
        if self._reader.knows_suffix and self._steps and _BARE_CALL.search(self._steps[-1].text):
            text = "the text of the last answer holds a call without its suffix, which was not run"
            warnings += (CallWarning("tool-call", text),)
        return GenerateResult(
            steps=tuple(self._steps),
            finish_reason=reason,
            warnings=warnings,
            response=self._response,
            output=None if self._output is None else self._output.value,
        )

    def _record_message(self, message: Message) -> None:
        if message.session_id and self._response.session_id is None:
            self._response = replace(self._response, session_id=message.session_id)
        match message:
            case AssistantMessage(parent_tool_use_id=None, error=None, is_api_error_message=False) if message.model:
                self._response = replace(self._response, model=message.model, message_id=message.message_id)
            case ResultMessage():
                self._response = replace(self._response, cost_usd=message.total_cost_usd)
            case StreamEvent(parent_tool_use_id=None, event=MessageDelta(delta=delta)):
                self._stop_reason = delta.stop_reason or self._stop_reason
            case _:
                pass

    def _finish_step(self, result: ResultMessage) -> None:
        reply = self._reader.end(result)
        said, self._stop_reason = result.stop_reason or self._stop_reason, None
        calls = tuple(self._check_call(call) for call in reply.calls)
        reason = _finish_reason(result, said, calls)
        if reason is None:
            self.error = make_result_error(result)
        text = reply.text
        if self._output is not None:
            text, calls, reason = self._take_output(text, calls, reason)
        self._calls = calls
        self.events += calls
        self._steps.append(
            ModelStep(
                text=text,
                reasoning=reply.thinking,
                tool_calls=calls,
                finish_reason=reason or "error",
                stop_reason=said,
                usage=TokenUsage.from_usage(result.usage),
            )
        )

    def _take_output(
        self, text: str, calls: tuple[ToolCall, ...], reason: FinishReason | None
    ) -> tuple[str, tuple[ToolCall, ...], FinishReason | None]:
        assert self._output is not None
        if reason in ("stop", "other", "tool-calls"):
            text, calls = self._output.accept(text, calls)
            reason = "tool-calls" if calls else "stop"
            for call in calls:
                if call.error is not None:
                    self._failures.setdefault(call.id, ToolInputError(call.error))
        if text:
            self.events.append(TextDelta(text))
        return text, calls, reason

    def _check_call(self, call: ToolCall | ToolCallError) -> ToolCall:
        if isinstance(call, ToolCallError):
            self._failures[call.id] = ToolInputError(call.message)
            return ToolCall(call.id, call.name or "", error=call.message, raw=call.raw)
        problem: ToolInputError | None = None
        if call.name in self._tools.declared_tools:
            problem = self._tools.check_call(call.name, call.input)
        elif call.name not in self._known_names:
            problem = ToolInputError(unknown_tool_message(call.name, self._known_names))
        if problem is not None:
            self._failures[call.id] = problem
        return ToolCall(call.id, call.name, call.input, error=None if problem is None else str(problem))

    def _make_finished(self, ran: InvocationResult) -> ToolCallFinished:
        call, name = ran.invocation, self.executor.short_name(ran.invocation.name)
        content = to_model_content(ran.result, name)
        output = ran.result.get("structuredContent")
        if output is None or ran.is_error:
            texts = [block["text"] for block in content if block["type"] == "text"]
            output = "\n".join(texts) if len(texts) == len(content) else content
        (result,) = make_results_message([ran], None).tool_results
        use = ToolUseBlock(call.id, name, dict(call.arguments))
        return ToolCallFinished(result, use, output=output, error=self._failures.pop(call.id, None))

    def _record_failure(self, failure: ToolFailure) -> None:
        self.log_failure(failure)
        if failure.tool_use_id is not None:
            self._failures[failure.tool_use_id] = failure.error


def _finish_reason(result: ResultMessage, stop_reason: str | None, calls: Sequence[ToolCall]) -> FinishReason | None:
    """Return why an answer ended; None if it failed.

    The CLI continues a truncated answer by itself, three times; after that, and when the model refused, its
    result is an error, although there is an answer, or a retry would not help.
    """
    if result.is_error and result.api_error == "max_output_tokens":
        return "length"
    if result.is_error and stop_reason == "refusal":
        return "content-filter"
    if make_result_error(result) is not None:
        return None
    return "tool-calls" if calls else FINISH_REASONS.get(stop_reason or "", "other")


class AbortSignal(Protocol):
    """The signal to stop: an `anyio.Event`, or one of the event loop in use."""

    def is_set(self) -> bool:
        """Return whether to stop."""
        ...

    async def wait(self) -> Any:
        """Wait until the signal is set."""
        ...


@user_class
class Stream:
    """A streamed answer; made by `LanguageModel.stream`. It starts when it is read.

    ::

        async for part in model.stream(messages): ...       # leaving the loop ends the process
        async with model.stream(messages) as stream: ...     # the same, and it is gone when the block is left

    A stream is read once; a second loop raises `UsageError`. The last event is `AnswerFinished` or `AnswerFailed`,
    unless the loop is left: failures are events, not exceptions.
    """

    def __init__(self, query: Query, run: ModelRun, abort: AbortSignal | None) -> None:
        self._query = query
        self._run = run
        self._abort = abort
        self._end: AnswerFinished | AnswerFailed | None = None

    def __aiter__(self) -> StreamIterator:
        return StreamIterator(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the answer and wait until the process is gone. Idempotent, bounded, from any task."""
        await self._query.aclose()

    async def result(self) -> GenerateResult:
        """Read to the end, and return the whole answer.

        Raises:
            PilothouseError: the answer is not complete; the class says why, as with `LanguageModel.generate`.
        """
        if self._end is None:
            async for _ in self:
                pass
        assert self._end is not None
        if isinstance(self._end, AnswerFailed):
            raise self._end.error
        return self._end.result

    # Used by loops.

    def messages(self) -> Messages[Any]:
        """Return the CLI's messages; dropping the object ends the query."""
        return aiter(self._query)

    async def advance(self, messages: Messages[Any]) -> None:
        """Wait for more events, or for the end."""
        try:
            if await self._read_more(messages):
                messages.unread.clear()  # the run has read them
                return
            error = await self._find_error()
        except PilothouseError as raised:
            error = raised
        result = self._run.result(failed=error is not None)
        if error is None:
            self._end = AnswerFinished(result.finish_reason, result.usage, result)
        else:
            self._end = AnswerFailed(error, result)
        self._run.events.append(self._end)

    def next_event(self) -> ModelEvent | None:
        """Return the next event, if there is one."""
        return self._run.events.popleft() if self._run.events else None

    def check_unread(self) -> None:
        """Begin a loop.

        Raises:
            UsageError: another loop has read the whole stream.
        """
        if self.has_ended and not self._run.events:
            raise UsageError("the stream was read to its end; its `result()` gives the whole answer")

    @property
    def has_ended(self) -> bool:
        """Whether the last event was sent."""
        return self._end is not None

    async def _read_more(self, messages: Messages[Any]) -> bool:
        abort = self._abort
        if abort is None:
            return await messages.fill()
        more, failure = False, None
        if not abort.is_set():
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    await abort.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                try:
                    more = await messages.fill()
                except PilothouseError as error:
                    failure = error
                tasks.cancel_scope.cancel()
        if abort.is_set():
            await self._query.aclose()
            self._run.events.clear()
            raise Interrupted("the request was aborted")
        if failure is not None:
            raise failure
        return more

    async def _find_error(self) -> PilothouseError | None:
        """Return why the answer is not complete although the CLI ended normally; None if it is complete."""
        run = self._run
        if run.error is None and not run.has_unanswered_calls:
            return run.output_error
        answer = await self._query.result()  # knows more than the result: budgets, reset times
        used_up = BudgetError("max_budget_tokens is used up, before the calls could be run", result=answer.result)
        return answer.error or run.error or used_up


@user_class
class StreamIterator:
    """One loop over a stream. Not a generator, so that dropping it ends the answer wherever it is collected."""

    __slots__ = ("_is_started", "_messages", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._is_started = False
        self._stream = stream
        self._messages = stream.messages()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        stream = self._stream
        if not self._is_started:
            self._is_started = True
            stream.check_unread()
        while (part := stream.next_event()) is None:
            if stream.has_ended:
                raise StopAsyncIteration
            await stream.advance(self._messages)
        return part

    async def aclose(self) -> None:
        """Leave the loop, and wait until the process is gone."""
        await self._stream.aclose()
