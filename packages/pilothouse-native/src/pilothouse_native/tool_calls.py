"""The tool calls of one reply: permission check (hooks, rules, mode, then the host), execution, and result.

Owns that order, and which calls run concurrently. Knows nothing of the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.support import run_blocking
from pilothouse_native import frames
from pilothouse_native.flags import PERMISSION_MODES
from pilothouse_native.hooks import HookOutcome
from pilothouse_native.mcp import McpTool
from pilothouse_native.permissions import Decision, decide, resolve_call_path
from pilothouse_native.pictures import fit_pictures
from pilothouse_native.prompts import NO_APPROVER, STRUCTURED_ACCEPTED, TOOL_NOT_RUN, TOOL_STOPPED
from pilothouse_native.state import STRUCTURED_TOOL_NAME, SessionState
from pilothouse_native.tools.base import BuiltinTool, ToolOutput, judged_path, make_failure
from pilothouse_native.tools.session_tools import EXIT_PLAN_MODE, INTERACTIVE_TOOLS
from pilothouse_native.wire import HostDisconnectedError, HostRefusedError, JsonObject, as_object, join_text

AnyTool = BuiltinTool | McpTool

STREAM_CLOSED: Final = "Tool permission stream closed before response received"
HOOK_TIMED_OUT: Final = "{} hook did not respond before its timeout. The tool call was not executed."


class PermissionOutcome(Struct):
    """The outcome of a permission check."""

    is_allowed: bool
    tool_input: JsonObject
    message: str = ""  # for the model, if the call may not run
    ends_turn: bool = False
    is_deferred: bool = False  # the host runs the call itself, after this turn
    meta: JsonObject | None = None  # for `tool_result_meta`
    contexts: Sequence[str] = ()  # text of hooks for the model
    stop_reason: str | None = None  # why a hook ends the run; None: it goes on
    real_path: Path | None = None  # the path that was judged, of a call of a file tool


class Call(Struct, frozen=True):
    """A tool call of the model, and its tool; `tool` is None for the structured output."""

    id: str
    name: str
    input: JsonObject
    tool: AnyTool | None

    @property
    def hook_fields(self) -> JsonObject:
        """The fields of hooks about the call."""
        return {"tool_name": self.name, "tool_input": self.input, "tool_use_id": self.id}


class PermissionChecker:
    """Decides on the calls of one session. Only one request at a time is sent to the host."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._lock = anyio.Lock()

    async def check(self, call: Call) -> PermissionOutcome:
        """Decide on a call. The structured output needs no permission."""
        hook_outcome = await self._state.run_hooks("PreToolUse", call.hook_fields, subject=call.name, key=call.id)
        if hook_outcome.updated_input is not None:
            call = replace(call, input=hook_outcome.updated_input)
        ruling = _decide_by_hook(call, hook_outcome) or await self._decide_by_rules(call, hook_outcome)
        ruling.contexts, ruling.stop_reason = tuple(hook_outcome.contexts), hook_outcome.stop_reason
        return ruling

    async def _decide_by_rules(self, call: Call, hook_outcome: HookOutcome) -> PermissionOutcome:
        if call.tool is None:
            return _make_allowed(call.input, "config")
        state = self._state
        async with self._lock:  # a response may change the rules for the next call
            if call.name in INTERACTIVE_TOOLS:
                ruling = await self._ask_host(call, Decision("ask"))
                if ruling.is_allowed and call.name == EXIT_PLAN_MODE and state.permission_mode == "plan":
                    await self.set_mode("default")
                return ruling
            resolved = await run_blocking(partial(resolve_call_path, call.name, call.input, state.workplace))
            about = {"mode": state.permission_mode, "rules": state.rules, "workplace": state.workplace}
            about |= {"read_only": call.tool.read_only, "resolved": resolved}
            found = await run_blocking(partial(decide, call.name, call.input, **about))  # reads paths on disk
            ruling = await self._apply_decision(call, found, hook_outcome)
            if resolved is not None and ruling.tool_input == call.input:  # another input may have another path
                ruling.real_path = resolved.real
            return ruling

    async def _apply_decision(self, call: Call, found: Decision, hook_outcome: HookOutcome) -> PermissionOutcome:
        if found.behavior == "deny":
            await self._report_denial(call, found.reason)
            return _make_denied(call.input, found.reason, "config", reason_type="rule")
        if hook_outcome.decision == "allow" and not found.must_ask:
            return _make_allowed(call.input, "hook", reason_type="hook")
        if found.behavior == "allow" and hook_outcome.decision != "ask":
            return _make_allowed(call.input, "config", reason_type="rule")
        return await self._ask_host(call, found)

    async def _ask_host(self, call: Call, found: Decision) -> PermissionOutcome:
        hooked = await self._run_request_hooks(call, found)
        if hooked is not None:
            return hooked
        state, prompt_tool = self._state, self._state.arguments.permission_prompt_tool
        if prompt_tool is None or not state.has_approver or state.permission_mode == "dontAsk":
            text = NO_APPROVER + (f" ({found.reason})" if found.reason else "")
            await self._report_denial(call, text, decision_reason=found.reason)
            return _make_denied(call.input, text, "config")
        try:
            if prompt_tool == "stdio":
                answer = await state.wire.request("can_use_tool", _make_request(call, found))
            else:
                answer = await self._ask_prompt_tool(prompt_tool, call)
        except HostDisconnectedError:
            return _make_denied(call.input, STREAM_CLOSED, "config")
        except (HostRefusedError, ValueError) as error:
            return _make_denied(call.input, f"The permission request failed: {error}", "config")
        return await self._read_answer(call.input, answer)

    async def _run_request_hooks(self, call: Call, found: Decision) -> PermissionOutcome | None:
        about: JsonObject = {"tool_name": call.name, "tool_input": call.input}
        about["permission_suggestions"] = list(found.suggestions)
        hook_outcome = await self._state.run_hooks("PermissionRequest", about, subject=call.name, key=call.id)
        if hook_outcome.is_disconnected:
            return _make_denied(call.input, STREAM_CLOSED, "hook")
        if hook_outcome.has_timed_out:
            return _make_denied(call.input, HOOK_TIMED_OUT.format("PermissionRequest"), "hook")
        if hook_outcome.permission_answer is None:
            return None
        answer = {"message": "Denied by PermissionRequest hook", **hook_outcome.permission_answer}
        return await self._read_answer(call.input, answer)

    async def _ask_prompt_tool(self, prompt_tool: str, call: Call) -> JsonObject:
        tool = self._state.list_tools().get(prompt_tool)
        if not isinstance(tool, McpTool):
            raise ValueError(f"there is no tool {prompt_tool} to ask")
        question = {"tool_name": call.name, "input": call.input, "tool_use_id": call.id}
        outcome = await tool.server.call(tool, question, call.id)
        blocks = [outcome.content] if isinstance(outcome.content, str) else [b.get("text") for b in outcome.content]
        found = json.loads(str(blocks[0]) if blocks else "")
        if not isinstance(found, dict):
            raise ValueError(f"{prompt_tool} answered with no object")
        return as_object(found)

    async def _read_answer(self, tool_input: JsonObject, answer: Mapping[str, Any]) -> PermissionOutcome:
        if answer.get("behavior") == "allow":
            given = answer.get("updatedInput")
            await self.apply_updates(answer.get("updatedPermissions") or ())
            source = "user_permanent" if answer.get("updatedPermissions") else "user_temporary"
            return _make_allowed(as_object(given) if isinstance(given, dict) else tool_input, source)
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

    async def _report_denial(self, call: Call, text: str, **fields: Any) -> None:
        denial = {"tool_name": call.name, "tool_use_id": call.id, "message": text}
        denial |= {name: value for name, value in fields.items() if value}
        await self._state.wire.send(frames.system("permission_denied", **denial))


def _decide_by_hook(call: Call, hook_outcome: HookOutcome) -> PermissionOutcome | None:
    if hook_outcome.is_disconnected:
        return _make_denied(call.input, "PreToolUse hook was cancelled: the input has ended", "hook")
    if hook_outcome.has_timed_out:
        return _make_denied(call.input, HOOK_TIMED_OUT.format("PreToolUse"), "hook")
    if hook_outcome.decision == "deny":
        text = f"PreToolUse:{call.name} hook error: {hook_outcome.reason}"
        return _make_denied(call.input, text, "hook", reason_type="hook")
    if hook_outcome.decision == "defer":
        return PermissionOutcome(is_allowed=False, tool_input=call.input, is_deferred=True)
    return None


def _make_request(call: Call, found: Decision) -> JsonObject:
    server_tool = call.tool if isinstance(call.tool, McpTool) else None
    body: JsonObject = {
        "tool_name": call.name,
        "display_name": server_tool.server_tool_name if server_tool else call.name,
        "input": call.input,
        "permission_suggestions": list(found.suggestions),
        "tool_use_id": call.id,
    }
    if call.name in INTERACTIVE_TOOLS:
        body["requires_user_interaction"] = True
    if isinstance(call.input.get("description"), str):
        body["description"] = call.input["description"]
    if found.blocked_path:
        body["blocked_path"] = found.blocked_path
    if found.reason:
        body["decision_reason"] = found.reason
    if server_tool:
        body["mcp_server"] = {"name": server_tool.server.name, "source": "sdk"}
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
    """The calls of one reply."""

    def __init__(self, state: SessionState, permissions: PermissionChecker, calls: Sequence[JsonObject]) -> None:
        self._state, self._permissions, self._calls = state, permissions, list(calls)
        self._tools = state.list_tools()
        self._started: set[str] = set()
        self._limit = anyio.CapacityLimiter(MAX_PARALLEL_CALLS)
        self.answers: dict[str, ToolCallAnswer] = {}  # by the ids of the calls
        self.denials: list[JsonObject] = []
        self.contexts: list[str] = []  # text of hooks for the model
        self.deferred_call: JsonObject | None = None  # the last call that the host will run itself
        self.ends_turn = False  # a refusal ends the turn
        self.stop_reason: str | None = None  # why a hook ends the run; None: it goes on
        self.structured_output: Any = None  # the output that fits the schema
        self.schema_failures = 0  # number of outputs that do not fit

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
        read_only = {name for name, tool in self._tools.items() if tool.read_only}
        for is_read_only, calls in groupby(self._calls, lambda call: call["name"] in read_only):
            group = list(calls)
            yield from [group] if is_read_only else ([call] for call in group)

    async def _process_call(self, block: JsonObject) -> None:
        async with self._limit:
            call = Call(str(block["id"]), str(block["name"]), block["input"], self._tools.get(block["name"]))
            problem = self._find_problem(call)
            if problem is not None:
                await self._answer(call.id, _make_error(problem), None)
                return
            ruling = await self._permissions.check(replace(call, input=dict(call.input)))
            self._add_effects(ruling)
            if ruling.is_deferred:
                self.deferred_call = {"id": call.id, "name": call.name, "input": ruling.tool_input}
            elif not ruling.is_allowed:
                self.denials.append({"tool_name": call.name, "tool_use_id": call.id, "tool_input": call.input})
                self.ends_turn = self.ends_turn or ruling.ends_turn
                await self._answer(call.id, make_failure(ruling.message), ruling.meta)
            else:
                self._started.add(call.id)
                judged_path.set(ruling.real_path)  # for this call: each has its own task
                await self._run_tool(replace(call, input=ruling.tool_input), ruling.meta)

    def _find_problem(self, call: Call) -> str | None:
        if call.tool is None:
            is_structured = call.name == STRUCTURED_TOOL_NAME and self._state.schema is not None
            return None if is_structured else f"Error: No such tool available: {call.name}"
        if isinstance(call.tool, McpTool):
            return None  # its server validates the input
        problems = self._state.get_validator(call.name, call.tool.input_schema)(call.input)
        text = "; ".join(f"{problem.path}: {problem.text}" for problem in problems)
        return f"InputValidationError: {text}" if text else None

    async def _run_tool(self, call: Call, meta: JsonObject | None) -> None:
        began = time.monotonic()
        if call.tool is None:
            outcome = self._accept_structured(call.input)
        elif isinstance(call.tool, McpTool):
            outcome = await call.tool.server.call(call.tool, call.input, call.id)
        else:
            try:
                outcome = await call.tool.run(call.input, self._state.workplace)
            except Exception as error:  # noqa: BLE001 - the model gets the error, and the session continues
                outcome = _make_error(f"{type(error).__name__}: {error}")
        took = round((time.monotonic() - began) * 1000)
        await self._answer(call.id, await self._run_post_hooks(call, outcome, took), meta)

    def _accept_structured(self, given: JsonObject) -> ToolOutput:
        assert self._state.schema is not None
        problems = self._state.get_validator(STRUCTURED_TOOL_NAME, self._state.schema)(given)
        if not problems:
            self.structured_output = given
            return ToolOutput(STRUCTURED_ACCEPTED, result=STRUCTURED_ACCEPTED)
        self.schema_failures += 1
        return make_failure(
            "Output does not match required schema: " + ", ".join(f"{p.path}: {p.text}" for p in problems)
        )

    async def _run_post_hooks(self, call: Call, outcome: ToolOutput, took: int) -> ToolOutput:
        about = call.hook_fields | {"duration_ms": took}
        if outcome.is_error:
            event = "PostToolUseFailure"
            about["error"] = join_text(outcome.content)
        else:
            event = "PostToolUse"
            about["tool_response"] = _get_response(outcome)
        hook_outcome = await self._state.run_hooks(event, about, subject=call.name, key=call.id)
        self._add_effects(hook_outcome)
        if hook_outcome.decision == "deny":
            self.contexts.append(f"{event}:{call.name} hook: {hook_outcome.reason}")
        if hook_outcome.updated_output is not None and not outcome.is_error:
            return ToolOutput(_to_content(hook_outcome.updated_output), result=hook_outcome.updated_output)
        return outcome

    async def _run_batch_hooks(self) -> None:
        if not self._state.hooks.has_hooks("PostToolBatch"):
            return
        calls: list[JsonObject] = []
        for call in self._calls:
            if answer := self.answers.get(call["id"]):
                fields = Call(call["id"], call["name"], call["input"], None).hook_fields
                calls.append(fields | {"tool_response": answer.block["content"]})
        self._add_effects(await self._state.run_hooks("PostToolBatch", {"tool_calls": calls}))

    def _add_effects(self, decided: HookOutcome | PermissionOutcome) -> None:
        self.contexts += decided.contexts
        self.stop_reason = self.stop_reason if decided.stop_reason is None else decided.stop_reason

    async def _answer(self, key: str, outcome: ToolOutput, meta: JsonObject | None) -> None:
        block: JsonObject = {"tool_use_id": key, "type": "tool_result"}
        block["content"] = await fit_pictures(outcome.content)
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
