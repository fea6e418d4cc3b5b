"""Calls of tools that this process runs itself, because the CLI does not: hooks and permissions first, then the tool.

Owns the order of these steps, which is the CLI's own, and what the model is told of each outcome. Who is asked stands
behind two functions that answer as they would answer the CLI. (S20, S37, S39)
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import anyio
from msgspec import Struct, field

from pilothouse.tools.bridges.rules import Rules
from pilothouse.tools.content import error_result
from pilothouse.tools.context import ToolContext
from pilothouse.tools.failures import ToolError, ToolFailure, ToolInputError, no_such_tool
from pilothouse.tools.tool import Tool

Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a question in the words of the control protocol."""

NOT_GRANTED = "Permission to use {name} was not granted."


class HostCall(Struct, frozen=True):
    """A call that the model made.

    Attributes:
        id: of the call; results name it.
        name: of the tool, with its server: `mcp__tools__weather`.
        arguments: what it is called with.
        opinion: what PreToolUse hooks said, where the CLI has asked them already.
        fault: why it cannot be run, for the model.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    opinion: Mapping[str, Any] | None = None
    fault: str | None = None


class Ran(Struct, frozen=True):
    """What became of a call.

    Attributes:
        call: the call, with the arguments that it ran with.
        result: in the words of MCP.
        denied: whether it was not allowed to run.
        stops: whether nothing more may happen in this query.
        interrupts: whether that is so because a person refused; if not, a hook ended the turn.
    """

    call: HostCall
    result: Mapping[str, Any]
    denied: bool = False
    stops: bool = False
    interrupts: bool = False

    @property
    def is_error(self) -> bool:
        """Whether the model is told of a failure."""
        return self.result.get("isError") is True


class ToolHost:
    """Runs the calls of one conversation.

    Args:
        server: name of the server that the tools seem to belong to.
        tools: what may be called.
        rules: what may run unasked, and what may not run.
        on_failure: is told of each failure of a tool.

    Attributes:
        hook: asks the hooks; None when there are none. Set for each child.
        permission: asks for permission; None when there is nobody. Set for each child.
        session: what tools get as `ToolContext.session`.
        mode: the permission mode that is in force.
        facts: what stands in the input of every hook: `session_id`, `cwd` and the like.
    """

    def __init__(
        self,
        server: str,
        tools: Sequence[Tool[..., Any]],
        rules: Rules,
        on_failure: Callable[[ToolFailure], object] | None = None,
    ) -> None:
        self._server = server
        self._tools = {f"mcp__{server}__{tool.name}": tool for tool in tools}
        self._rules = rules
        self._on_failure = on_failure
        self.hook: Ask | None = None
        self.permission: Ask | None = None
        self.session: Any = None
        self.mode: str | None = None
        self.facts: dict[str, Any] = {}

    @property
    def names(self) -> frozenset[str]:
        """The full names of the tools."""
        return frozenset(self._tools)

    @property
    def offered(self) -> list[Tool[..., Any]]:
        """The tools that no rule denies."""
        return [tool for name, tool in self._tools.items() if self._rules.ruling(name, None) != "deny"]

    def full_name(self, name: str) -> str:
        """The name of a tool with its server."""
        return f"mcp__{self._server}__{name}"

    def short_name(self, name: str) -> str:
        """The same without its server."""
        return name.removeprefix(f"mcp__{self._server}__")

    async def run_all(self, calls: Sequence[HostCall]) -> list[Ran]:
        """Run calls at the same time; the results stand in the order of the calls."""
        ran: dict[int, Ran] = {}

        async def run(at: int, call: HostCall) -> None:
            ran[at] = await self.run(call)

        async with anyio.create_task_group() as tasks:
            for at, call in enumerate(calls):
                tasks.start_soon(partial(run, at, call))
        return [ran[at] for at in range(len(calls))]

    async def run(self, call: HostCall) -> Ran:
        """One call, from the hooks before it to the hooks after it. Never raises but for cancellation."""
        if call.fault is not None:
            return Ran(call, error_result(call.fault))
        opinion = call.opinion if call.opinion is not None else await self._ask_hooks("PreToolUse", call)
        call, refusal = await self._permitted(call, opinion)
        if refusal is not None:
            return refusal
        begun = time.monotonic()
        result = await self._invoke(call)
        return await self._after(call, opinion, result, round((time.monotonic() - begun) * 1000))

    async def _permitted(self, call: HostCall, opinion: Mapping[str, Any]) -> tuple[HostCall, Ran | None]:
        own: Mapping[str, Any] = opinion.get("hookSpecificOutput") or {}
        decision = own.get("permissionDecision")
        reason = str(own.get("permissionDecisionReason") or opinion.get("reason") or opinion.get("stopReason") or "")
        ends = opinion.get("continue") is False
        if ends or decision == "deny" or opinion.get("decision") == "block":
            told = f"PreToolUse:{call.name} hook error: {reason}"  # as the CLI (2.1.330) says it
            return call, Ran(call, error_result(told), denied=True, stops=ends)
        if isinstance(own.get("updatedInput"), Mapping):
            call = _changed(call, own["updatedInput"])
        ruling = self._rules.ruling(call.name, self.mode)
        if ruling == "deny" or (ruling != "allow" and decision != "allow") or decision == "ask":
            return await self._asked(call, refused=ruling == "deny", reason=reason)
        return call, None

    async def _asked(self, call: HostCall, *, refused: bool, reason: str) -> tuple[HostCall, Ran | None]:
        if refused or self.permission is None:
            return call, Ran(call, error_result(NOT_GRANTED.format(name=call.name)), denied=True)
        body = {
            "subtype": "can_use_tool", "tool_name": call.name, "input": dict(call.arguments), "tool_use_id": call.id,
            "mcp_server": {"name": self._server},
        } | ({"decision_reason": reason} if reason else {})  # fmt: skip
        answer = await self.permission(body)
        if answer.get("behavior") != "allow":
            stops = answer.get("interrupt") is True
            told = error_result(str(answer.get("message") or ""))
            return call, Ran(call, told, denied=True, stops=stops, interrupts=stops)
        self._rules.update(answer.get("updatedPermissions"))
        updated = answer.get("updatedInput")
        return (_changed(call, cast("Mapping[str, Any]", updated)) if isinstance(updated, Mapping) else call), None

    async def _invoke(self, call: HostCall) -> Mapping[str, Any]:
        tool = self._tools.get(call.name)
        if tool is None:
            return error_result(no_such_tool(call.name, [self.full_name(tool.name) for tool in self.offered]))
        context = ToolContext(
            tool_name=tool.name, server_name=self._server, tool_use_id=call.id, session=self.session
        )  # fmt: skip
        try:
            arguments: Any = call.arguments
            if not isinstance(arguments, Mapping):
                raise ToolInputError("The input must be an object")
            return await tool.invoke(cast("Mapping[str, Any]", arguments), context)
        except ToolError as error:
            if self._on_failure is not None:
                self._on_failure(
                    ToolFailure(tool_name=tool.name, error=error, server_name=self._server, tool_use_id=call.id)
                )
            return error_result(str(error))

    async def _after(
        self, call: HostCall, before: Mapping[str, Any], result: Mapping[str, Any], milliseconds: int
    ) -> Ran:
        failed = result.get("isError") is True
        more: dict[str, Any] = {"duration_ms": milliseconds}
        if failed:
            opinion = await self._ask_hooks("PostToolUseFailure", call, more | {"error": text_of(result)})
        else:
            opinion = await self._ask_hooks("PostToolUse", call, more | {"tool_response": result["content"]})
        own: Mapping[str, Any] = opinion.get("hookSpecificOutput") or {}
        for key in ("updatedMCPToolOutput", "updatedToolOutput"):
            if not failed and own.get(key) is not None:
                result = _replaced(own[key])
        earlier: Mapping[str, Any] = before.get("hookSpecificOutput") or {}
        blocked = opinion.get("reason") if opinion.get("decision") == "block" else None
        notes = [earlier.get("additionalContext"), own.get("additionalContext"), blocked]
        result = _with_notes(result, [str(note) for note in notes if note])
        return Ran(call, result, stops=opinion.get("continue") is False)

    async def _ask_hooks(self, event: str, call: HostCall, more: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        if self.hook is None:
            return {}
        data = {
            **self.facts, "hook_event_name": event, "tool_name": call.name, "tool_input": dict(call.arguments),
            "tool_use_id": call.id, **(more or {}),
        }  # fmt: skip
        return await self.hook({"input": data, "tool_use_id": call.id})


def text_of(result: Mapping[str, Any]) -> str:
    """The text of a result in the words of MCP."""
    return "\n".join(block["text"] for block in result.get("content", ()) if block.get("type") == "text")


def _changed(call: HostCall, arguments: Mapping[str, Any]) -> HostCall:
    return HostCall(call.id, call.name, arguments, call.opinion, call.fault)


def _replaced(value: Any) -> Mapping[str, Any]:
    """The result that a hook put in the place of another: a text, blocks, or a whole result."""
    if isinstance(value, dict) and "content" in value:
        return cast("dict[str, Any]", value)
    if isinstance(value, list):
        return {"content": cast("list[Any]", value)}
    return {"content": [{"type": "text", "text": str(cast("object", value))}]}


def _with_notes(result: Mapping[str, Any], notes: Sequence[str]) -> Mapping[str, Any]:
    if not notes:
        return result
    return {**result, "content": [*result["content"], *({"type": "text", "text": note} for note in notes)]}
