"""The tool calls of one reply: permission check (hooks, rules, mode, then the host), execution, and result.

Owns that order, and which calls run concurrently. Knows nothing of the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import anyio
from msgspec import Struct

from pilothouse.native import frames
from pilothouse.native.configuration import PERMISSION_MODES
from pilothouse.native.hooks import HookVerdict
from pilothouse.native.mcp import McpTool
from pilothouse.native.permissions import Decision, decide
from pilothouse.native.prompts import NO_APPROVER, STRUCTURED_ACCEPTED, TOOL_NOT_RUN, TOOL_STOPPED
from pilothouse.native.state import STRUCTURED_TOOL_NAME, SessionState
from pilothouse.native.state import STRUCTURED_TOOL_NAME as STRUCTURED_NAME
from pilothouse.native.tools.base import BuiltinTool, ToolOutput
from pilothouse.native.tools.session_tools import EXIT_PLAN_MODE, INTERACTIVE_TOOLS
from pilothouse.native.wire import HostDisconnectedError, HostRefusedError, JsonObject, as_object
from pilothouse.transports.concurrency import run_blocking

AnyTool = BuiltinTool | McpTool

STREAM_CLOSED: Final = "Tool permission stream closed before response received"
HOOK_TIMED_OUT: Final = "{} hook did not respond before its timeout. The tool call was not executed."


class PermissionOutcome(Struct):
    """The outcome of a permission check.

    Attributes:
        is_allowed: whether the call may run, with `tool_input`.
        message: error text for the model if the call may not run.
        ends_turn: whether the turn ends.
        is_deferred: whether the host runs the call itself, after this turn.
        meta: for `tool_result_meta`.
        contexts: text of hooks for the model.
        stop_reason: why a hook ends the run; None: it goes on.
    """

    is_allowed: bool
    tool_input: JsonObject
    message: str = ""
    ends_turn: bool = False
    is_deferred: bool = False
    meta: JsonObject | None = None
    contexts: Sequence[str] = ()
    stop_reason: str | None = None


class PermissionChecker:
    """Decides on the calls of one session. Only one request at a time is sent to the host."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._lock = anyio.Lock()

    async def check(self, call: Mapping[str, Any], tool: AnyTool | None) -> PermissionOutcome:
        """Decide on a call; `tool` is None for the structured output, which needs no permission."""
        name, tool_input, key = str(call["name"]), dict(call["input"]), str(call["id"])
        try:
            verdict = await self._run_pre_hooks(name, tool_input, key)
        except HostDisconnectedError:
            return _make_denied(tool_input, "PreToolUse hook was cancelled: the input has ended", "hook")
        if verdict.updated_input is not None:
            tool_input = verdict.updated_input
        ruling = self._decide_by_hook(name, tool_input, verdict)
        if ruling is None:
            ruling = await self._decide_by_rules(name, tool_input, key, tool, verdict)
        ruling.contexts, ruling.stop_reason = tuple(verdict.contexts), verdict.stop_reason
        return ruling

    async def _run_pre_hooks(self, name: str, tool_input: JsonObject, key: str) -> HookVerdict:
        about = self._state.make_hook_fields() | {"tool_name": name, "tool_input": tool_input, "tool_use_id": key}
        return await self._state.hooks.run("PreToolUse", about, subject=name, key=key)

    def _decide_by_hook(self, name: str, tool_input: JsonObject, verdict: HookVerdict) -> PermissionOutcome | None:
        if verdict.has_timed_out:
            return _make_denied(tool_input, HOOK_TIMED_OUT.format("PreToolUse"), "hook")
        if verdict.decision == "deny":
            return _make_denied(
                tool_input, f"PreToolUse:{name} hook error: {verdict.reason}", "hook", reason_type="hook"
            )
        if verdict.decision == "defer":
            return PermissionOutcome(is_allowed=False, tool_input=tool_input, is_deferred=True)
        return None

    async def _decide_by_rules(
        self, name: str, tool_input: JsonObject, key: str, tool: AnyTool | None, verdict: HookVerdict
    ) -> PermissionOutcome:
        if tool is None or name == STRUCTURED_TOOL_NAME:
            return _make_allowed(tool_input, "config")
        state = self._state
        async with self._lock:  # a response may change the rules for the next call
            if name in INTERACTIVE_TOOLS:
                ruling = await self._ask_host(name, tool_input, key, tool, Decision("ask"))
                if ruling.is_allowed and name == EXIT_PLAN_MODE and state.permission_mode == "plan":
                    await self.set_mode("default")
                return ruling
            about = {"mode": state.permission_mode, "rules": state.rules, "workplace": state.workplace}
            judge = partial(decide, name, tool_input, **about, read_only=tool.read_only)
            found = await run_blocking(judge)  # reads paths on disk
            if found.behavior == "deny":
                ruling = _make_denied(tool_input, found.reason, "config", reason_type="rule")
                await self._report_denial(name, key, ruling.message)
                return ruling
            if verdict.decision == "allow" and not found.must_ask:
                return _make_allowed(tool_input, "hook", reason_type="hook")
            if found.behavior == "allow" and verdict.decision != "ask":
                return _make_allowed(tool_input, "config", reason_type="rule")
            return await self._ask_host(name, tool_input, key, tool, found)

    async def _ask_host(
        self, name: str, tool_input: JsonObject, key: str, tool: AnyTool, found: Decision
    ) -> PermissionOutcome:
        about = self._state.make_hook_fields() | {"tool_name": name, "tool_input": tool_input}
        suggestions = list(found.suggestions)
        hooked = await self._run_request_hooks(name, tool_input, key, about | {"permission_suggestions": suggestions})
        if hooked is not None:
            return hooked
        state, prompt_tool = self._state, self._state.arguments.prompt_tool
        if state.arguments.nobody_asked or prompt_tool is None or state.permission_mode == "dontAsk":
            text = NO_APPROVER + (f" ({found.reason})" if found.reason else "")
            await self._report_denial(name, key, text, decision_reason=found.reason)
            return _make_denied(tool_input, text, "config")
        try:
            if prompt_tool == "stdio":
                answer = await state.wire.request("can_use_tool", _make_request(name, tool_input, key, tool, found))
            else:
                answer = await self._ask_prompt_tool(prompt_tool, name, tool_input, key)
        except HostDisconnectedError:
            return _make_denied(tool_input, STREAM_CLOSED, "config")
        except (HostRefusedError, ValueError) as error:
            return _make_denied(tool_input, f"The permission request failed: {error}", "config")
        return await self._read_answer(tool_input, answer)

    async def _run_request_hooks(
        self, name: str, tool_input: JsonObject, key: str, fields: JsonObject
    ) -> PermissionOutcome | None:
        try:
            verdict = await self._state.hooks.run("PermissionRequest", fields, subject=name, key=key)
        except HostDisconnectedError:
            return _make_denied(tool_input, STREAM_CLOSED, "hook")
        if verdict.has_timed_out:
            return _make_denied(tool_input, HOOK_TIMED_OUT.format("PermissionRequest"), "hook")
        if verdict.permission_answer is None:
            return None
        answer = {"message": "Denied by PermissionRequest hook", **verdict.permission_answer}
        return await self._read_answer(tool_input, answer)

    async def _ask_prompt_tool(self, prompt_tool: str, name: str, tool_input: JsonObject, key: str) -> JsonObject:
        tool = self._state.list_tools().get(prompt_tool)
        if not isinstance(tool, McpTool):
            raise ValueError(f"there is no tool {prompt_tool} to ask")
        outcome = await tool.call({"tool_name": name, "input": tool_input, "tool_use_id": key}, key)
        blocks = [outcome.content] if isinstance(outcome.content, str) else [b.get("text") for b in outcome.content]
        found = json.loads(str(blocks[0]) if blocks else "")
        if not isinstance(found, dict):
            raise ValueError(f"{prompt_tool} answered with no object")
        return as_object(found)

    async def _read_answer(self, tool_input: JsonObject, answer: Mapping[str, Any]) -> PermissionOutcome:
        if answer.get("behavior") == "allow":
            given = answer.get("updatedInput")
            await self.apply_updates(answer.get("updatedPermissions") or ())
            permanent = bool(answer.get("updatedPermissions"))
            return _make_allowed(
                as_object(given) if isinstance(given, dict) else tool_input,
                "user_permanent" if permanent else "user_temporary",
            )
        message = answer.get("message")
        if answer.get("behavior") != "deny" or not isinstance(message, str):
            return _make_denied(tool_input, "The permission request was answered in a form that is not known", "config")
        ruling = _make_denied(tool_input, message, "user_reject")
        ruling.ends_turn = answer.get("interrupt") is True
        return ruling

    async def apply_updates(self, updates: Sequence[JsonObject]) -> None:
        """Apply permission updates. They hold for this session; no settings file is changed."""
        state = self._state
        if not updates:
            return
        state.set_rules(state.rules.with_updates(list(updates)))
        for update in updates:
            folders = [state.workplace.resolve_path(str(each)) for each in update.get("directories") or ()]
            match update.get("type"):
                case "setMode":
                    await self.set_mode(str(update.get("mode")))
                case "addDirectories":
                    state.workplace.directories += [f for f in folders if f not in state.workplace.directories]
                case "removeDirectories":
                    state.workplace.directories[:] = [f for f in state.workplace.directories if f not in folders]
                case _:
                    pass  # `with_updates` has applied it

    async def set_mode(self, mode: str) -> str | None:
        """Change the mode; returns an error code if the mode is not allowed, else None."""
        if mode not in PERMISSION_MODES:
            return "invalid_mode"
        if mode == "bypassPermissions" and not self._state.arguments.may_bypass:
            return "bypass_not_launched"
        self._state.permission_mode = "default" if mode == "manual" else mode
        await self._state.wire.send(frames.system("status", status=None, permissionMode=self._state.permission_mode))
        return None

    async def _report_denial(self, name: str, key: str, text: str, **fields: Any) -> None:
        denial = {"tool_name": name, "tool_use_id": key, "message": text}
        await self._state.wire.send(
            frames.system("permission_denied", **denial, **{k: v for k, v in fields.items() if v})
        )


def _make_request(name: str, tool_input: JsonObject, key: str, tool: AnyTool, found: Decision) -> JsonObject:
    body: JsonObject = {
        "tool_name": name,
        "display_name": tool.server_tool_name if isinstance(tool, McpTool) else name,
        "input": tool_input,
        "permission_suggestions": list(found.suggestions),
        "tool_use_id": key,
    }
    if name in INTERACTIVE_TOOLS:
        body["requires_user_interaction"] = True
    if isinstance(tool_input.get("description"), str):
        body["description"] = tool_input["description"]
    if found.blocked_path:
        body["blocked_path"] = found.blocked_path
    if found.reason:
        body["decision_reason"] = found.reason
    if isinstance(tool, McpTool):
        body["mcp_server"] = {"name": tool.server_name, "source": "sdk"}
    return body


def _make_allowed(tool_input: JsonObject, source: str, **fields: str) -> PermissionOutcome:
    decision = {"decision": "accept", "source": source, **fields}
    return PermissionOutcome(is_allowed=True, tool_input=tool_input, meta={"permission_decision": decision})


def _make_denied(tool_input: JsonObject, text: str, source: str, **fields: str) -> PermissionOutcome:
    decision = {"decision": "reject", "source": source, **fields}
    meta = {"non_execution_kind": "permission-rule", "permission_decision": decision}
    return PermissionOutcome(is_allowed=False, tool_input=tool_input, message=text, meta=meta)


MAX_PARALLEL_CALLS: Final = 10
"""Limit of calls that run concurrently."""


class ToolCallAnswer(Struct):
    """The answer to a call: the result block for the model, and its metadata."""

    block: JsonObject
    result: Any = None
    meta: JsonObject | None = None


class ToolCalls:
    """The calls of one reply.

    Args:
        state: the session.
        permissions: decides on the calls.
        calls: the blocks of the reply.

    Attributes:
        answers: answers by the ids of the calls.
        denials: calls that were refused.
        contexts: text of hooks for the model.
        deferred_call: the last call that the host will run itself.
        ends_turn: whether a refusal ends the turn.
        stop_reason: why a hook ends the run; None: it goes on.
        structured_output: the output that fits the schema.
        schema_failures: number of outputs that do not fit.
    """

    def __init__(self, state: SessionState, permissions: PermissionChecker, calls: Sequence[JsonObject]) -> None:
        self._state, self._permissions, self._calls = state, permissions, list(calls)
        self._tools = state.list_tools()
        self._started: set[str] = set()
        self._limit = anyio.CapacityLimiter(MAX_PARALLEL_CALLS)
        self.answers: dict[str, ToolCallAnswer] = {}
        self.denials: list[JsonObject] = []
        self.contexts: list[str] = []
        self.deferred_call: JsonObject | None = None
        self.ends_turn = False
        self.stop_reason: str | None = None
        self.structured_output: Any = None
        self.schema_failures = 0

    async def run(self) -> None:
        """Run all calls: neighbouring read-only calls concurrently, the others alone and in order."""
        for group in self._groups():
            if self.ends_turn:
                break
            async with anyio.create_task_group() as tasks:
                for call in group:
                    tasks.start_soon(self._process_call, call)
        if not self.ends_turn:
            await self._run_batch_hooks()

    def _groups(self) -> Iterator[list[JsonObject]]:
        group: list[JsonObject] = []
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

    async def _process_call(self, call: JsonObject) -> None:
        async with self._limit:
            name, key = str(call["name"]), str(call["id"])
            tool = self._tools.get(name)
            if tool is None and not (name == STRUCTURED_NAME and self._state.schema is not None):
                await self._answer(key, _make_error(f"Error: No such tool available: {name}"), None)
                return
            problem = None if tool is None else self._find_input_problem(name, tool, call["input"])
            if problem is not None:
                await self._answer(key, _make_error(f"InputValidationError: {problem}"), None)
                return
            ruling = await self._permissions.check(call, tool)
            self._record_outcome(call, ruling)
            if ruling.is_deferred:
                self.deferred_call = {"id": key, "name": name, "input": ruling.tool_input}
                return
            if not ruling.is_allowed:
                await self._answer(key, ToolOutput(ruling.message, True, f"Error: {ruling.message}"), ruling.meta)
                return
            self._started.add(key)
            await self._run_tool(name, key, tool, ruling)

    def _find_input_problem(self, name: str, tool: AnyTool, given: Any) -> str | None:
        if isinstance(tool, McpTool):
            return None  # its server validates the input
        problems = self._state.get_validator(name, tool.input_schema)(given)
        return "; ".join(f"{problem.path}: {problem.text}" for problem in problems) or None

    def _record_outcome(self, call: JsonObject, ruling: PermissionOutcome) -> None:
        self.contexts += ruling.contexts
        if ruling.stop_reason is not None:
            self.stop_reason = ruling.stop_reason
        if not ruling.is_allowed and not ruling.is_deferred:
            denial = {"tool_name": call["name"], "tool_use_id": call["id"], "tool_input": call["input"]}
            self.denials.append(denial)
            self.ends_turn = self.ends_turn or ruling.ends_turn

    async def _run_tool(self, name: str, key: str, tool: AnyTool | None, ruling: PermissionOutcome) -> None:
        began = time.monotonic()
        if tool is None:
            outcome = self._accept_structured(ruling.tool_input)
        elif isinstance(tool, McpTool):
            outcome = await tool.call(ruling.tool_input, key)
        else:
            outcome = await self._run_builtin(tool, ruling.tool_input)
        took = round((time.monotonic() - began) * 1000)
        outcome = await self._run_post_hooks(name, key, ruling.tool_input, outcome, took)
        await self._answer(key, outcome, ruling.meta)

    async def _run_builtin(self, tool: AnyTool, tool_input: JsonObject) -> ToolOutput:
        assert not isinstance(tool, McpTool)
        try:
            return await tool.run(tool_input, self._state.workplace)
        except Exception as error:  # noqa: BLE001 - the model gets the error, and the session continues
            return _make_error(f"{type(error).__name__}: {error}")

    def _accept_structured(self, given: JsonObject) -> ToolOutput:
        assert self._state.schema is not None
        problems = self._state.get_validator(STRUCTURED_NAME, self._state.schema)(given)
        if not problems:
            self.structured_output = given
            return ToolOutput(STRUCTURED_ACCEPTED, result=STRUCTURED_ACCEPTED)
        self.schema_failures += 1
        text = "Output does not match required schema: " + ", ".join(f"{p.path}: {p.text}" for p in problems)
        return ToolOutput(text, is_error=True, result=f"Error: {text}")

    async def _run_post_hooks(
        self, name: str, key: str, tool_input: JsonObject, outcome: ToolOutput, took: int
    ) -> ToolOutput:
        """Run PostToolUse or PostToolUseFailure hooks."""
        about = self._state.make_hook_fields() | {"tool_name": name, "tool_input": tool_input, "tool_use_id": key}
        about["duration_ms"] = took
        event = "PostToolUseFailure" if outcome.is_error else "PostToolUse"
        about |= (
            {"error": _get_text(outcome.content)} if outcome.is_error else {"tool_response": _get_response(outcome)}
        )
        try:
            verdict = await self._state.hooks.run(event, about, subject=name, key=key)
        except HostDisconnectedError:
            return outcome
        self.contexts += verdict.contexts
        if verdict.is_blocking:
            self.contexts.append(f"{event}:{name} hook: {verdict.reason}")
        if verdict.stop_reason is not None:
            self.stop_reason = verdict.stop_reason
        if verdict.updated_output is not None and not outcome.is_error:
            return ToolOutput(_to_content(verdict.updated_output), result=verdict.updated_output)
        return outcome

    async def _run_batch_hooks(self) -> None:
        if not self._state.hooks.has_hooks("PostToolBatch"):
            return
        calls = [
            {
                "tool_name": call["name"],
                "tool_input": call["input"],
                "tool_use_id": call["id"],
                "tool_response": self.answers[call["id"]].block["content"],
            }
            for call in self._calls
            if call["id"] in self.answers
        ]
        try:
            verdict = await self._state.hooks.run(
                "PostToolBatch", self._state.make_hook_fields() | {"tool_calls": calls}
            )
        except HostDisconnectedError:
            return
        self.contexts += verdict.contexts
        if verdict.stop_reason is not None:
            self.stop_reason = verdict.stop_reason

    async def _answer(self, key: str, outcome: ToolOutput, meta: JsonObject | None) -> None:
        block: JsonObject = {"tool_use_id": key, "type": "tool_result", "content": outcome.content}
        block["is_error"] = outcome.is_error
        result = _get_response(outcome)
        self.answers[key] = ToolCallAnswer(block, result, meta)
        about: JsonObject = {"tool_use_result": result} | ({"tool_result_meta": [{"id": key, **meta}]} if meta else {})
        await self._state.wire.send(frames.user([block], **about))

    async def answer_unfinished(self) -> None:
        """Answer the calls without an answer after an interrupt."""
        for call in self._calls:
            key = str(call["id"])
            if key not in self.answers:
                text = TOOL_STOPPED if key in self._started else TOOL_NOT_RUN
                outcome = ToolOutput(text, is_error=True, result="User rejected tool use")
                await self._answer(key, outcome, {"non_execution_kind": "user-rejected"})

    def list_answers(self) -> list[ToolCallAnswer]:
        """Return the answers, in the order of the calls."""
        return [self.answers[call["id"]] for call in self._calls if call["id"] in self.answers]


def _make_error(text: str) -> ToolOutput:
    return ToolOutput(f"<tool_use_error>{text}</tool_use_error>", is_error=True, result=f"Error: {text}")


def _get_response(outcome: ToolOutput) -> Any:
    return outcome.content if outcome.result is None else outcome.result


def _get_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def _to_content(output: Any) -> str | list[JsonObject]:
    """Convert a result that a hook replaced to content for the model."""
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return cast("list[JsonObject]", output)
    if isinstance(output, dict) and "stdout" in output:
        streams = cast("JsonObject", output)
        return "\n".join(str(streams[key]) for key in ("stdout", "stderr") if streams.get(key))
    return json.dumps(output)
