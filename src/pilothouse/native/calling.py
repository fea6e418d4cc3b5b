"""The tool calls of one reply: ruled on, run, and answered.

Owns which of them run side by side (those that only look), their hooks, and what is left of them after an interrupt.
Knows nothing of the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import anyio
from msgspec import Struct

from pilothouse.native import frames
from pilothouse.native.mcp import McpTool
from pilothouse.native.permitting import AnyTool, Permitting, Ruling
from pilothouse.native.prompts import NOT_RUN, STOPPED_TOOL, STRUCTURED
from pilothouse.native.shapes import JSON
from pilothouse.native.state import STRUCTURED as STRUCTURED_NAME
from pilothouse.native.state import State
from pilothouse.native.tools.base import ToolOutcome
from pilothouse.native.wire import HostGoneError

SIDE_BY_SIDE: Final = 10
"""Calls that run at the same time, at most."""


class Answered(Struct):
    """What came of a call: the block for the model, and what stands beside it."""

    block: JSON
    result: Any = None
    meta: JSON | None = None


class Calls:
    """The calls of one reply.

    Args:
        state: the session.
        permitting: rules on them.
        calls: the blocks of the reply.

    Attributes:
        answered: by id of the call.
        denials: calls that were refused.
        contexts: text of hooks for the model.
        deferred: the last call that the host will run itself.
        interrupts: a refusal that ends the turn.
        stop_reason: a hook ends the run.
        structured: the output that fits the schema.
        misfits: how many outputs did not.
    """

    def __init__(self, state: State, permitting: Permitting, calls: Sequence[JSON]) -> None:
        self._state, self._permitting, self._calls = state, permitting, list(calls)
        self._tools = state.tools()
        self._begun: set[str] = set()
        self._limit = anyio.CapacityLimiter(SIDE_BY_SIDE)
        self.answered: dict[str, Answered] = {}
        self.denials: list[JSON] = []
        self.contexts: list[str] = []
        self.deferred: JSON | None = None
        self.interrupts = False
        self.stop_reason: str | None = None
        self.structured: Any = None
        self.misfits = 0

    async def run(self) -> None:
        """Run all of them: neighbours that only look at the same time, the others alone and in their order."""
        for group in self._groups():
            if self.interrupts:
                break
            async with anyio.create_task_group() as tasks:
                for call in group:
                    tasks.start_soon(self._one, call)
        if not self.interrupts:
            await self._after_all()

    def _groups(self) -> Iterator[list[JSON]]:
        group: list[JSON] = []
        for call in self._calls:
            tool = self._tools.get(call["name"])
            if tool is not None and tool.read_only:
                group.append(call)
                continue
            if group:
                yield group
            group = []
            yield [call]
        if group:
            yield group

    async def _one(self, call: JSON) -> None:
        async with self._limit:
            name, key = str(call["name"]), str(call["id"])
            tool = self._tools.get(name)
            if tool is None and not (name == STRUCTURED_NAME and self._state.schema is not None):
                await self._answer(key, _error(f"Error: No such tool available: {name}"), None)
                return
            problem = None if tool is None else self._misfit(name, tool, call["input"])
            if problem is not None:
                await self._answer(key, _error(f"InputValidationError: {problem}"), None)
                return
            ruling = await self._permitting.rule(call, tool)
            self._note(call, ruling)
            if ruling.defers:
                self.deferred = {"id": key, "name": name, "input": ruling.tool_input}
                return
            if not ruling.allowed:
                await self._answer(key, ToolOutcome(ruling.text, True, f"Error: {ruling.text}"), ruling.meta)
                return
            self._begun.add(key)
            await self._run(name, key, tool, ruling)

    def _misfit(self, name: str, tool: AnyTool, given: Any) -> str | None:
        if isinstance(tool, McpTool):
            return None  # its server knows
        problems = self._state.check(name, tool.input_schema)(given)
        return "; ".join(f"{problem.path}: {problem.text}" for problem in problems) or None

    def _note(self, call: JSON, ruling: Ruling) -> None:
        self.contexts += ruling.contexts
        if ruling.stop_reason is not None:
            self.stop_reason = ruling.stop_reason
        if not ruling.allowed and not ruling.defers:
            denial = {"tool_name": call["name"], "tool_use_id": call["id"], "tool_input": call["input"]}
            self.denials.append(denial)
            self.interrupts = self.interrupts or ruling.interrupts

    async def _run(self, name: str, key: str, tool: AnyTool | None, ruling: Ruling) -> None:
        began = time.monotonic()
        if tool is None:
            outcome = self._take_structured(ruling.tool_input)
        elif isinstance(tool, McpTool):
            outcome = await tool.call(ruling.tool_input, key)
        else:
            outcome = await self._run_builtin(tool, ruling.tool_input)
        took = round((time.monotonic() - began) * 1000)
        outcome = await self._after(name, key, ruling.tool_input, outcome, took)
        await self._answer(key, outcome, ruling.meta)

    async def _run_builtin(self, tool: AnyTool, tool_input: JSON) -> ToolOutcome:
        assert not isinstance(tool, McpTool)
        try:
            return await tool.run(tool_input, self._state.workplace)
        except Exception as error:  # noqa: BLE001 - a tool that fails is told to the model, and the session goes on
            return _error(f"{type(error).__name__}: {error}")

    def _take_structured(self, given: JSON) -> ToolOutcome:
        assert self._state.schema is not None
        problems = self._state.check(STRUCTURED_NAME, self._state.schema)(given)
        if not problems:
            self.structured = given
            return ToolOutcome(STRUCTURED, result=STRUCTURED)
        self.misfits += 1
        text = "Output does not match required schema: " + ", ".join(f"{p.path}: {p.text}" for p in problems)
        return ToolOutcome(text, is_error=True, result=f"Error: {text}")

    async def _after(self, name: str, key: str, tool_input: JSON, outcome: ToolOutcome, took: int) -> ToolOutcome:
        """PostToolUse and PostToolUseFailure hooks."""
        about = self._state.about() | {"tool_name": name, "tool_input": tool_input, "tool_use_id": key}
        about["duration_ms"] = took
        event = "PostToolUseFailure" if outcome.is_error else "PostToolUse"
        about |= {"error": _text(outcome.content)} if outcome.is_error else {"tool_response": _response(outcome)}
        try:
            verdict = await self._state.hooks.fire(event, about, subject=name, key=key)
        except HostGoneError:
            return outcome
        self.contexts += verdict.contexts
        if verdict.blocks:
            self.contexts.append(f"{event}:{name} hook: {verdict.reason}")
        if verdict.stop_reason is not None:
            self.stop_reason = verdict.stop_reason
        if verdict.updated_output is not None and not outcome.is_error:
            return ToolOutcome(_content_of(verdict.updated_output), result=verdict.updated_output)
        return outcome

    async def _after_all(self) -> None:
        if not self._state.hooks.has("PostToolBatch"):
            return
        told = [
            {
                "tool_name": call["name"],
                "tool_input": call["input"],
                "tool_use_id": call["id"],
                "tool_response": self.answered[call["id"]].block["content"],
            }
            for call in self._calls
            if call["id"] in self.answered
        ]
        try:
            verdict = await self._state.hooks.fire("PostToolBatch", self._state.about() | {"tool_calls": told})
        except HostGoneError:
            return
        self.contexts += verdict.contexts
        if verdict.stop_reason is not None:
            self.stop_reason = verdict.stop_reason

    async def _answer(self, key: str, outcome: ToolOutcome, meta: JSON | None) -> None:
        block: JSON = {"tool_use_id": key, "type": "tool_result", "content": outcome.content}
        block["is_error"] = outcome.is_error
        result = _response(outcome)
        self.answered[key] = Answered(block, result, meta)
        about: JSON = {"tool_use_result": result} | ({"tool_result_meta": [{"id": key, **meta}]} if meta else {})
        await self._state.wire.say(frames.user([block], **about))

    async def give_up(self) -> None:
        """After an interrupt: answer those that have no answer."""
        for call in self._calls:
            key = str(call["id"])
            if key not in self.answered:
                text = STOPPED_TOOL if key in self._begun else NOT_RUN
                outcome = ToolOutcome(text, is_error=True, result="User rejected tool use")
                await self._answer(key, outcome, {"non_execution_kind": "user-rejected"})

    def rows(self) -> list[Answered]:
        """The answers, in the order of the calls."""
        return [self.answered[call["id"]] for call in self._calls if call["id"] in self.answered]


def _error(text: str) -> ToolOutcome:
    return ToolOutcome(f"<tool_use_error>{text}</tool_use_error>", is_error=True, result=f"Error: {text}")


def _response(outcome: ToolOutcome) -> Any:
    return outcome.content if outcome.result is None else outcome.result


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def _content_of(output: Any) -> str | list[JSON]:
    """What a hook put in the place of a result, as content for the model."""
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return cast("list[JSON]", output)
    if isinstance(output, dict) and "stdout" in output:
        told = cast("JSON", output)
        return "\n".join(str(told[key]) for key in ("stdout", "stderr") if told.get(key))
    return json.dumps(output)
