"""Whether a tool call may be made: hooks, rules, mode, and then whoever is asked.

Owns that order (2.1.330): PreToolUse hooks, rules and mode, PermissionRequest hooks, the host. Runs no tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
from msgspec import Struct

from pilothouse.native import frames
from pilothouse.native.hooks import Verdict
from pilothouse.native.interaction import INTERACTIVE, PLAN
from pilothouse.native.launch import MODES
from pilothouse.native.mcp import McpTool
from pilothouse.native.permissions import Decision, decide
from pilothouse.native.prompts import NOBODY_TO_ASK
from pilothouse.native.shapes import JSON, mapping
from pilothouse.native.state import STRUCTURED, State
from pilothouse.native.tools.base import BuiltinTool
from pilothouse.native.wire import HostGoneError, HostRefusedError
from pilothouse.transports.errands import run_briefly

AnyTool = BuiltinTool | McpTool

CLOSED: Final = "Tool permission stream closed before response received"
NO_HOOK: Final = "{} hook did not respond before its timeout. The tool call was not executed."


class Ruling(Struct):
    """What came of it.

    Attributes:
        allowed: the call may be made, with `tool_input`.
        text: otherwise: what the model is told.
        interrupts: the turn ends.
        defers: the host runs it itself, after this turn.
        meta: for `tool_result_meta`.
        contexts: text of hooks for the model.
        stop_reason: a hook ends the run.
    """

    allowed: bool
    tool_input: JSON
    text: str = ""
    interrupts: bool = False
    defers: bool = False
    meta: JSON | None = None
    contexts: Sequence[str] = ()
    stop_reason: str | None = None


class Permitting:
    """Rules on the calls of one session. One call at a time is put to the host."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._one = anyio.Lock()

    async def rule(self, call: Mapping[str, Any], tool: AnyTool | None) -> Ruling:
        """Rule on a call; `tool` is None for the structured output, which needs no permission."""
        name, tool_input, key = str(call["name"]), dict(call["input"]), str(call["id"])
        try:
            verdict = await self._before(name, tool_input, key)
        except HostGoneError:
            return _refused(tool_input, "PreToolUse hook was cancelled: the input has ended", "hook")
        if verdict.updated_input is not None:
            tool_input = verdict.updated_input
        ruling = self._by_hook(name, tool_input, verdict)
        if ruling is None:
            ruling = await self._by_rules(name, tool_input, key, tool, verdict)
        ruling.contexts, ruling.stop_reason = tuple(verdict.contexts), verdict.stop_reason
        return ruling

    async def _before(self, name: str, tool_input: JSON, key: str) -> Verdict:
        about = self._state.about() | {"tool_name": name, "tool_input": tool_input, "tool_use_id": key}
        return await self._state.hooks.fire("PreToolUse", about, subject=name, key=key)

    def _by_hook(self, name: str, tool_input: JSON, verdict: Verdict) -> Ruling | None:
        if verdict.timed_out:
            return _refused(tool_input, NO_HOOK.format("PreToolUse"), "hook")
        if verdict.decision == "deny":
            return _refused(tool_input, f"PreToolUse:{name} hook error: {verdict.reason}", "hook", reason_type="hook")
        if verdict.decision == "defer":
            return Ruling(allowed=False, tool_input=tool_input, defers=True)
        return None

    async def _by_rules(self, name: str, tool_input: JSON, key: str, tool: AnyTool | None, verdict: Verdict) -> Ruling:
        if tool is None or name == STRUCTURED:
            return _accepted(tool_input, "config")
        state = self._state
        async with self._one:  # an answer may change the rules for the next one
            if name in INTERACTIVE:
                ruling = await self._ask(name, tool_input, key, tool, Decision("ask"))
                if ruling.allowed and name == PLAN and state.mode == "plan":
                    await self.set_mode("default")
                return ruling
            about = {"mode": state.mode, "rules": state.rules, "workplace": state.workplace}
            judge = partial(decide, name, tool_input, **about, read_only=tool.read_only)
            found = await run_briefly(judge)  # it looks at paths on disk
            if found.behavior == "deny":
                ruling = _refused(tool_input, found.reason, "config", reason_type="rule")
                await self._tell_denied(name, key, ruling.text)
                return ruling
            if verdict.decision == "allow" and not found.firm:
                return _accepted(tool_input, "hook", reason_type="hook")
            if found.behavior == "allow" and verdict.decision != "ask":
                return _accepted(tool_input, "config", reason_type="rule")
            return await self._ask(name, tool_input, key, tool, found)

    async def _ask(self, name: str, tool_input: JSON, key: str, tool: AnyTool, found: Decision) -> Ruling:
        about = self._state.about() | {"tool_name": name, "tool_input": tool_input}
        suggestions = list(found.suggestions)
        hooked = await self._by_request_hook(name, tool_input, key, about | {"permission_suggestions": suggestions})
        if hooked is not None:
            return hooked
        state, prompt_tool = self._state, self._state.launch.prompt_tool
        if state.launch.nobody_asked or prompt_tool is None or state.mode == "dontAsk":
            text = NOBODY_TO_ASK + (f" ({found.reason})" if found.reason else "")
            await self._tell_denied(name, key, text, decision_reason=found.reason)
            return _refused(tool_input, text, "config")
        try:
            if prompt_tool == "stdio":
                answer = await state.wire.ask("can_use_tool", _question(name, tool_input, key, tool, found))
            else:
                answer = await self._ask_tool(prompt_tool, name, tool_input, key)
        except HostGoneError:
            return _refused(tool_input, CLOSED, "config")
        except (HostRefusedError, ValueError) as error:
            return _refused(tool_input, f"The permission request failed: {error}", "config")
        return await self._answered(tool_input, answer)

    async def _by_request_hook(self, name: str, tool_input: JSON, key: str, about: JSON) -> Ruling | None:
        try:
            verdict = await self._state.hooks.fire("PermissionRequest", about, subject=name, key=key)
        except HostGoneError:
            return _refused(tool_input, CLOSED, "hook")
        if verdict.timed_out:
            return _refused(tool_input, NO_HOOK.format("PermissionRequest"), "hook")
        if verdict.decided is None:
            return None
        answer = {"message": "Denied by PermissionRequest hook", **verdict.decided}
        return await self._answered(tool_input, answer)

    async def _ask_tool(self, prompt_tool: str, name: str, tool_input: JSON, key: str) -> JSON:
        tool = self._state.tools().get(prompt_tool)
        if not isinstance(tool, McpTool):
            raise ValueError(f"there is no tool {prompt_tool} to ask")
        outcome = await tool.call({"tool_name": name, "input": tool_input, "tool_use_id": key}, key)
        blocks = [outcome.content] if isinstance(outcome.content, str) else [b.get("text") for b in outcome.content]
        found = json.loads(str(blocks[0]) if blocks else "")
        if not isinstance(found, dict):
            raise ValueError(f"{prompt_tool} answered with no object")
        return mapping(found)

    async def _answered(self, tool_input: JSON, answer: Mapping[str, Any]) -> Ruling:
        if answer.get("behavior") == "allow":
            given = answer.get("updatedInput")
            await self.update(answer.get("updatedPermissions") or ())
            permanent = bool(answer.get("updatedPermissions"))
            return _accepted(
                mapping(given) if isinstance(given, dict) else tool_input,
                "user_permanent" if permanent else "user_temporary",
            )
        message = answer.get("message")
        if answer.get("behavior") != "deny" or not isinstance(message, str):
            return _refused(tool_input, "The permission request was answered in a form that is not known", "config")
        ruling = _refused(tool_input, message, "user_reject")
        ruling.interrupts = answer.get("interrupt") is True
        return ruling

    async def update(self, updates: Sequence[JSON]) -> None:
        """Carry out permission updates. They hold for this session; no settings file is changed."""
        state = self._state
        if not updates:
            return
        state.have_rules(state.rules.with_updates(list(updates)))
        for update in updates:
            folders = [state.workplace.path(str(each)) for each in update.get("directories") or ()]
            match update.get("type"):
                case "setMode":
                    await self.set_mode(str(update.get("mode")))
                case "addDirectories":
                    state.workplace.directories += [f for f in folders if f not in state.workplace.directories]
                case "removeDirectories":
                    state.workplace.directories[:] = [f for f in state.workplace.directories if f not in folders]
                case _:
                    pass  # the rules have it

    async def set_mode(self, mode: str) -> str | None:
        """Change the mode; gives the code of the error when it may not be."""
        if mode not in MODES:
            return "invalid_mode"
        if mode == "bypassPermissions" and not self._state.launch.may_bypass:
            return "bypass_not_launched"
        self._state.mode = "default" if mode == "manual" else mode
        await self._state.wire.say(frames.system("status", status=None, permissionMode=self._state.mode))
        return None

    async def _tell_denied(self, name: str, key: str, text: str, **about: Any) -> None:
        told = {"tool_name": name, "tool_use_id": key, "message": text}
        await self._state.wire.say(frames.system("permission_denied", **told, **{k: v for k, v in about.items() if v}))


def _question(name: str, tool_input: JSON, key: str, tool: AnyTool, found: Decision) -> JSON:
    body: JSON = {
        "tool_name": name,
        "display_name": tool.own_name if isinstance(tool, McpTool) else name,
        "input": tool_input,
        "permission_suggestions": list(found.suggestions),
        "tool_use_id": key,
    }
    if name in INTERACTIVE:
        body["requires_user_interaction"] = True
    if isinstance(tool_input.get("description"), str):
        body["description"] = tool_input["description"]
    if found.blocked_path:
        body["blocked_path"] = found.blocked_path
    if found.reason:
        body["decision_reason"] = found.reason
    if isinstance(tool, McpTool):
        body["mcp_server"] = {"name": tool.server, "source": "sdk"}
    return body


def _accepted(tool_input: JSON, source: str, **about: str) -> Ruling:
    decision = {"decision": "accept", "source": source, **about}
    return Ruling(allowed=True, tool_input=tool_input, meta={"permission_decision": decision})


def _refused(tool_input: JSON, text: str, source: str, **about: str) -> Ruling:
    decision = {"decision": "reject", "source": source, **about}
    meta = {"non_execution_kind": "permission-rule", "permission_decision": decision}
    return Ruling(allowed=False, tool_input=tool_input, text=text, meta=meta)
