"""One request at work: what the model says becomes parts, its calls are run or handed back, and the next step begins.

Owns when a call counts, which calls end the request, and why an answer ended. Must not know processes, or who reads
the parts.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client.given_tools import TOOL_SERVER, allowed_with, log_failure
from pilothouse.client.outcome import result_error
from pilothouse.errors import PilothouseError
from pilothouse.language_model.offers import Offer
from pilothouse.language_model.parts import (
    CallWarning,
    FinishReason,
    GenerateResult,
    ModelStep,
    ReasoningDelta,
    ResponseInfo,
    Retracted,
    StreamPart,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    ToolResult,
)
from pilothouse.messages import AssistantMessage, Message, MessageDelta, ResultMessage, StreamEvent
from pilothouse.options import Options
from pilothouse.tools import sdk_server
from pilothouse.tools.blocks import model_content
from pilothouse.tools.bridges import Rules, Step, ToolHost
from pilothouse.tools.bridges.host import Ask, HostCall, Ran
from pilothouse.tools.bridges.steps import Ledger
from pilothouse.tools.failures import ToolError, ToolFailure, ToolInputError, no_such_tool
from pilothouse.tools.xml import Answer, Event, Reply, ReplyReader, StreamParser, results_content
from pilothouse.tools.xml import Retracted as ParsedRetracted
from pilothouse.tools.xml import TextDelta as ParsedText
from pilothouse.tools.xml import ThinkingDelta as ParsedThinking
from pilothouse.tools.xml import ToolCall as ParsedCall
from pilothouse.tools.xml import ToolCallDelta as ParsedDelta
from pilothouse.tools.xml import ToolCallStart as ParsedStart
from pilothouse.tools.xml.replies import lacks_suffix

# Why the model stopped, in the words of frameworks. (S43)
FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}
_BARE_CALL: Final = re.compile(r"<\s*tool_use\s*>\s*<\s*tool_name\s*>", re.IGNORECASE)


class Plan(Struct, frozen=True, kw_only=True):
    """What a request asks for.

    Attributes:
        offer: the tools.
        nonce: of the text protocol.
        used_ids: of the calls in the history: new calls get others.
        max_steps: how often the model may answer.
        must_call: whether the model was told to call a tool.
        warnings: of the request, so far.
    """

    offer: Offer
    nonce: str
    max_steps: int
    used_ids: frozenset[str] = frozenset()
    must_call: bool = False
    warnings: tuple[CallWarning, ...] = ()


class ModelRun:
    """One request; the bridge of its query, and its steps.

    Args:
        plan: what is asked for.
        options: the settings: permissions and hooks of the tools that run here.

    Attributes:
        parts: what was told and not taken yet.
        error: why there is no complete answer, as far as a result says it.
    """

    is_declared_by_server: Final = False

    def __init__(self, plan: Plan, options: Options) -> None:
        rules = Rules(allowed_with(options), options.disallowed_tools or ())
        self.host = ToolHost(TOOL_SERVER, sdk_server(TOOL_SERVER, plan.offer.own).tools, rules, self._note_failure)
        self.host.mode = options.permission_mode
        self.parts: deque[StreamPart] = deque()
        self.error: PilothouseError | None = None
        self._plan = plan
        self._ledger = Ledger(self.host, options.max_turns)
        offered = self.offered
        self._was_told_suffix = False
        self._reader = ReplyReader(
            lambda: StreamParser(
                tools=offered,
                nonce=plan.nonce,
                mint=_new_id,
                used=set(plan.used_ids),
                refuse_bare=bool(offered) and not self._was_told_suffix,
            )
        )
        self._known = [*(tool.name for tool in self.host.offered), *plan.offer.declared]
        self._steps: list[ModelStep] = []
        self._calls: tuple[ToolCall, ...] = ()
        self._failures: dict[str, ToolError] = {}
        self._stop_reason: str | None = None
        self._response = ResponseInfo()

    @property
    def offered(self) -> list[Any]:
        """All that the model may call: what no rule denies, and what is handed back."""
        return [*self.host.offered, *self._plan.offer.declared.values()]

    # The bridge of the query.

    def attach(self, hook: Ask | None, permission: Ask | None) -> Ask | None:
        """The child has hooks and permissions of this process; they hold for the tools that run here, too. (S37)"""
        self.host.hook, self.host.permission = hook, permission
        return hook

    def steps(self) -> ModelRun:
        """The steps of the query: this object serves one."""
        return self

    # The steps of the query.

    def read(self, batch: list[Message]) -> list[Message]:
        """Make parts of a batch."""
        for message in batch:
            self._ledger.note(message)
            self._note(message)
            self.parts += _parts(self._reader.read(message))
            if isinstance(message, ResultMessage) and not message.is_woken:
                self._close(message)
        return batch

    async def go_on(self, result: ResultMessage) -> Step:
        """Run what runs here; the next step, unless calls are left to the caller."""
        calls, self._calls = self._calls, ()
        declared = self._plan.offer.declared
        mine = [call for call in calls if call.name not in declared or call.error is not None]
        if not mine:
            return Step()
        ran, told = await self._ledger.run([self._host_call(call) for call in mine], result)
        self._answer(ran)
        closing = next((each for each in told if isinstance(each, ResultMessage)), None)
        if closing is not None:
            self.error = result_error(closing)
            return Step(None, told)
        if len(mine) < len(calls) or len(self._steps) >= self._plan.max_steps:
            return Step(None, told)
        answers = [Answer(each.call.id, self.host.short_name(each.call.name), each.result) for each in ran]
        return Step(results_content(answers, self._plan.nonce), told)

    # When it is over.

    @property
    def was_cut(self) -> bool:
        """Whether calls of the last answer wait, although they were to be run here."""
        return any(call.error is not None or call.name not in self._plan.offer.declared for call in self._calls)

    def result(self, *, failed: bool) -> GenerateResult:
        """What there is."""
        reason: FinishReason = "error" if failed else self._steps[-1].finish_reason if self._steps else "other"
        warnings = self._plan.warnings
        if self._plan.must_call and not failed and not any(step.tool_calls for step in self._steps):
            warnings += (CallWarning("tool-choice", "the model was told to call a tool, and called none"),)
        if self._was_told_suffix and self._steps and _BARE_CALL.search(self._steps[-1].text):
            text = "the text of the last answer holds a call without its suffix, which was not run"
            warnings += (CallWarning("tool-call", text),)
        return GenerateResult(
            steps=tuple(self._steps), finish_reason=reason, warnings=warnings, response=self._response
        )

    def _note(self, message: Message) -> None:
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

    def _close(self, result: ResultMessage) -> None:
        reply = self._reader.end(result)
        said, self._stop_reason = result.stop_reason or self._stop_reason, None
        self._was_told_suffix = self._was_told_suffix or lacks_suffix(reply)
        calls = tuple(self._checked(call) for call in reply.calls)
        reason = _finish_reason(result, said, calls)
        if reason is None:
            self.error = result_error(result)
        self._calls = calls
        self.parts += calls
        self._steps.append(_step(reply, calls, reason or "error", said, result))

    def _checked(self, call: Any) -> ToolCall:
        if not isinstance(call, ParsedCall):
            self._failures[call.id] = ToolInputError(call.message)
            return ToolCall(call.id, call.name or "", error=call.message, raw=call.raw)
        arguments = dict(call.arguments)
        problem: ToolInputError | None = None
        if call.name in self._plan.offer.declared:
            problem = self._plan.offer.problem(call.name, arguments)
        elif call.name not in self._known:
            problem = ToolInputError(no_such_tool(call.name, self._known))
        if problem is None:
            return ToolCall(call.id, call.name, arguments)
        self._failures[call.id] = problem
        return ToolCall(call.id, call.name, arguments, error=str(problem))

    def _host_call(self, call: ToolCall) -> HostCall:
        return HostCall(call.id, self.host.full_name(call.name), call.input, fault=call.error)

    def _answer(self, ran: Sequence[Ran]) -> None:
        results = tuple(self._result(each) for each in ran)
        self.parts += results
        self._steps[-1] = replace(self._steps[-1], tool_results=results)

    def _result(self, ran: Ran) -> ToolResult:
        name = self.host.short_name(ran.call.name)
        content = model_content(ran.result, name)
        output = ran.result.get("structuredContent")
        if output is None or ran.is_error:
            texts = [block["text"] for block in content if block["type"] == "text"]
            output = "\n".join(texts) if len(texts) == len(content) else content
        return ToolResult(ran.call.id, name, output, content, ran.is_error, self._failures.pop(ran.call.id, None))

    def _note_failure(self, failure: ToolFailure) -> None:
        log_failure(failure)
        if failure.tool_use_id is not None:
            self._failures[failure.tool_use_id] = failure.error


def _new_id() -> str:
    # Not counted: the calls of all requests of a conversation stand in one history.
    return f"call_{secrets.token_hex(8)}"


def _finish_reason(result: ResultMessage, said: str | None, calls: Sequence[ToolCall]) -> FinishReason | None:
    """Why an answer ended; None if it failed.

    The CLI (2.1.330) goes on by itself where an answer was cut, three times; then, and when the model refused, its
    result is an error, although there is an answer, or none to be had by asking again.
    """
    if result.is_error and result.api_error == "max_output_tokens":
        return "length"
    if result.is_error and said == "refusal":
        return "content-filter"
    if result_error(result) is not None:
        return None
    return "tool-calls" if calls else FINISH_REASONS.get(said or "", "other")


def _step(
    reply: Reply, calls: tuple[ToolCall, ...], reason: FinishReason, said: str | None, result: ResultMessage
) -> ModelStep:
    return ModelStep(
        text=reply.text,
        reasoning=reply.reasoning,
        tool_calls=calls,
        finish_reason=reason,
        stop_reason=said,
        usage=TokenUsage.of(result.usage),
    )


def _parts(events: Iterable[Event | ParsedRetracted]) -> Iterable[StreamPart]:
    """What is told at once; calls wait until they count."""
    for event in events:
        match event:
            case ParsedText(text=text):
                yield TextDelta(text)
            case ParsedThinking(text=text):
                yield ReasoningDelta(text)
            case ParsedStart(id=call_id, name=name):
                yield ToolCallStart(call_id, name)
            case ParsedDelta(id=call_id, text=text):
                yield ToolCallDelta(call_id, text)
            case ParsedRetracted(text=text, thinking=thinking, call_ids=ids):
                yield Retracted(text, thinking, ids)
            case _:
                continue
