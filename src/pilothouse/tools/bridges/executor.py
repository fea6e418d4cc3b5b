"""Runs tool calls in this process in place of the CLI.

Hooks and permissions come first, then the tool, then the hooks after it. Owns that order (the CLI's own), the
permission rules for such calls, and the loop that sends results back to the model.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Literal, Protocol, cast

import anyio
from msgspec import Struct, field, structs

from pilothouse.messages import InitMessage, Message, PermissionDenial, ResultMessage, StatusMessage, from_dict, to_dict
from pilothouse.tools.content import make_error_result, to_model_content
from pilothouse.tools.context import ToolContext
from pilothouse.tools.errors import ToolError, ToolFailure, ToolInputError, unknown_tool_message
from pilothouse.tools.tool import Tool

RequestCallback = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a question in the words of the control protocol."""

PERMISSION_NOT_GRANTED = "Permission to use {name} was not granted."


class ToolInvocation(Struct, frozen=True):
    """A call that the model made.

    Attributes:
        id: of the call; results name it.
        name: of the tool, with its server: `mcp__tools__weather`.
        arguments: what it is called with.
        hook_output: what PreToolUse hooks said, where the CLI has asked them already.
        error: why it cannot be run, for the model.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hook_output: Mapping[str, Any] | None = None
    error: str | None = None


class InvocationResult(Struct, frozen=True):
    """What became of a call.

    Attributes:
        invocation: the call, with the arguments that it ran with.
        result: in the words of MCP.
        is_denied: whether it was not allowed to run.
        stops_query: whether nothing more may happen in this query.
        is_interrupt: whether that is so because a person refused; if not, a hook ended the turn.
    """

    invocation: ToolInvocation
    result: Mapping[str, Any]
    is_denied: bool = False
    stops_query: bool = False
    is_interrupt: bool = False

    @property
    def is_error(self) -> bool:
        """Whether the model is told of a failure."""
        return self.result.get("isError") is True


class ToolExecutor:
    """Runs the calls of one conversation.

    Args:
        server: name of the server that the tools seem to belong to.
        tools: what may be called.
        rules: what may run unasked, and what may not run.
        on_failure: is told of each failure of a tool.

    Attributes:
        hook_handler: asks the hooks; None when there are none. Set for each child.
        permission_handler: asks for permission; None when there is nobody. Set for each child.
        session: what tools get as `ToolContext.session`.
        permission_mode: the permission mode that is in force.
        hook_fields: what stands in the input of every hook: `session_id`, `cwd` and the like.
    """

    def __init__(
        self,
        server: str,
        tools: Sequence[Tool[..., Any]],
        rules: ToolPermissionRules,
        on_failure: Callable[[ToolFailure], object] | None = None,
    ) -> None:
        self._server = server
        self._tools = {f"mcp__{server}__{tool.name}": tool for tool in tools}
        self._rules = rules
        self._on_failure = on_failure
        self.hook_handler: RequestCallback | None = None
        self.permission_handler: RequestCallback | None = None
        self.session: Any = None
        self.permission_mode: str | None = None
        self.hook_fields: dict[str, Any] = {}

    @property
    def tool_names(self) -> frozenset[str]:
        """The full names of the tools."""
        return frozenset(self._tools)

    @property
    def available_tools(self) -> list[Tool[..., Any]]:
        """The tools that no rule denies."""
        return [tool for name, tool in self._tools.items() if self._rules.decide(name, None) != "deny"]

    def full_name(self, name: str) -> str:
        """The name of a tool with its server."""
        return f"mcp__{self._server}__{name}"

    def short_name(self, name: str) -> str:
        """The same without its server."""
        return name.removeprefix(f"mcp__{self._server}__")

    async def run_all(self, calls: Sequence[ToolInvocation]) -> list[InvocationResult]:
        """Run calls at the same time; the results stand in the order of the calls."""
        ran: dict[int, InvocationResult] = {}

        async def run(at: int, call: ToolInvocation) -> None:
            ran[at] = await self.run(call)

        async with anyio.create_task_group() as tasks:
            for at, call in enumerate(calls):
                tasks.start_soon(partial(run, at, call))
        return [ran[at] for at in range(len(calls))]

    async def run(self, call: ToolInvocation) -> InvocationResult:
        """One call, from the hooks before it to the hooks after it. Never raises but for cancellation."""
        if call.error is not None:
            return InvocationResult(call, make_error_result(call.error))
        opinion = call.hook_output if call.hook_output is not None else await self._run_hooks("PreToolUse", call)
        call, refusal = await self._check_permission(call, opinion)
        if refusal is not None:
            return refusal
        begun = time.monotonic()
        result = await self._invoke(call)
        return await self._run_post_hooks(call, opinion, result, round((time.monotonic() - begun) * 1000))

    async def _check_permission(
        self, call: ToolInvocation, opinion: Mapping[str, Any]
    ) -> tuple[ToolInvocation, InvocationResult | None]:
        own: Mapping[str, Any] = opinion.get("hookSpecificOutput") or {}
        decision = own.get("permissionDecision")
        reason = str(own.get("permissionDecisionReason") or opinion.get("reason") or opinion.get("stopReason") or "")
        ends = opinion.get("continue") is False
        if ends or decision == "deny" or opinion.get("decision") == "block":
            told = f"PreToolUse:{call.name} hook error: {reason}"  # as the CLI (2.1.330) says it
            return call, InvocationResult(call, make_error_result(told), is_denied=True, stops_query=ends)
        if isinstance(own.get("updatedInput"), Mapping):
            call = _replace_arguments(call, own["updatedInput"])
        ruling = self._rules.decide(call.name, self.permission_mode)
        if ruling == "deny" or (ruling != "allow" and decision != "allow") or decision == "ask":
            return await self._ask_permission(call, refused=ruling == "deny", reason=reason)
        return call, None

    async def _ask_permission(
        self, call: ToolInvocation, *, refused: bool, reason: str
    ) -> tuple[ToolInvocation, InvocationResult | None]:
        if refused or self.permission_handler is None:
            return call, InvocationResult(
                call, make_error_result(PERMISSION_NOT_GRANTED.format(name=call.name)), is_denied=True
            )
        body = {
            "subtype": "can_use_tool", "tool_name": call.name, "input": dict(call.arguments), "tool_use_id": call.id,
            "mcp_server": {"name": self._server},
        } | ({"decision_reason": reason} if reason else {})  # fmt: skip
        answer = await self.permission_handler(body)
        if answer.get("behavior") != "allow":
            stops = answer.get("interrupt") is True
            told = make_error_result(str(answer.get("message") or ""))
            return call, InvocationResult(call, told, is_denied=True, stops_query=stops, is_interrupt=stops)
        self._rules.update(answer.get("updatedPermissions"))
        updated = answer.get("updatedInput")
        return (
            _replace_arguments(call, cast("Mapping[str, Any]", updated)) if isinstance(updated, Mapping) else call
        ), None

    async def _invoke(self, call: ToolInvocation) -> Mapping[str, Any]:
        tool = self._tools.get(call.name)
        if tool is None:
            return make_error_result(
                unknown_tool_message(call.name, [self.full_name(tool.name) for tool in self.available_tools])
            )
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
            return make_error_result(str(error))

    async def _run_post_hooks(
        self, call: ToolInvocation, before: Mapping[str, Any], result: Mapping[str, Any], milliseconds: int
    ) -> InvocationResult:
        failed = result.get("isError") is True
        more: dict[str, Any] = {"duration_ms": milliseconds}
        if failed:
            opinion = await self._run_hooks("PostToolUseFailure", call, more | {"error": result_text(result)})
        else:
            opinion = await self._run_hooks("PostToolUse", call, more | {"tool_response": result["content"]})
        own: Mapping[str, Any] = opinion.get("hookSpecificOutput") or {}
        for key in ("updatedMCPToolOutput", "updatedToolOutput"):
            if not failed and own.get(key) is not None:
                result = _read_replacement(own[key])
        earlier: Mapping[str, Any] = before.get("hookSpecificOutput") or {}
        blocked = opinion.get("reason") if opinion.get("decision") == "block" else None
        notes = [earlier.get("additionalContext"), own.get("additionalContext"), blocked]
        result = _append_notes(result, [str(note) for note in notes if note])
        return InvocationResult(call, result, stops_query=opinion.get("continue") is False)

    async def _run_hooks(
        self, event: str, call: ToolInvocation, more: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        if self.hook_handler is None:
            return {}
        data = {
            **self.hook_fields, "hook_event_name": event, "tool_name": call.name, "tool_input": dict(call.arguments),
            "tool_use_id": call.id, **(more or {}),
        }  # fmt: skip
        return await self.hook_handler({"input": data, "tool_use_id": call.id})


def result_text(result: Mapping[str, Any]) -> str:
    """The text of a result in the words of MCP."""
    return "\n".join(block["text"] for block in result.get("content", ()) if block.get("type") == "text")


def _replace_arguments(call: ToolInvocation, arguments: Mapping[str, Any]) -> ToolInvocation:
    return ToolInvocation(call.id, call.name, arguments, call.hook_output, call.error)


def _read_replacement(value: Any) -> Mapping[str, Any]:
    """The result that a hook put in the place of another: a text, blocks, or a whole result."""
    if isinstance(value, dict) and "content" in value:
        return cast("dict[str, Any]", value)
    if isinstance(value, list):
        return {"content": cast("list[Any]", value)}
    return {"content": [{"type": "text", "text": str(cast("object", value))}]}


def _append_notes(result: Mapping[str, Any], notes: Sequence[str]) -> Mapping[str, Any]:
    if not notes:
        return result
    return {**result, "content": [*result["content"], *({"type": "text", "text": note} for note in notes)]}


RuleDecision = Literal["allow", "deny", "ask"]

# The modes that decide what no rule has decided. The others leave it to be asked.
_MODE_DECISIONS: Mapping[str, RuleDecision] = {"bypassPermissions": "allow", "dontAsk": "deny"}


class ToolPermissionRules:
    """The rules of one conversation; callbacks may add to them while it runs.

    Args:
        allowed: rules as in the option `allowed_tools`.
        disallowed: rules as in the option `disallowed_tools`.
    """

    def __init__(self, allowed: Iterable[str] = (), disallowed: Iterable[str] = ()) -> None:
        self._rules: dict[str, list[str]] = {"deny": list(disallowed), "ask": [], "allow": list(allowed)}

    def decide(self, tool: str, mode: str | None) -> RuleDecision:
        """What happens to a call of `tool` in the permission mode `mode`."""
        for verdict, rules in self._rules.items():  # a denial first
            if any(matches_rule(rule, tool) for rule in rules):
                return cast("RuleDecision", verdict)
        return _MODE_DECISIONS.get(mode or "", "ask")

    def update(self, updates: Any) -> None:
        """Add what a permission callback wants to hold from here on; see `updated_permissions`."""
        for update in _as_mappings(updates):
            change, behavior = _UPDATE_FUNCTIONS.get(str(update.get("type"))), str(update.get("behavior"))
            if change is not None and behavior in self._rules:
                named = [str(rule.get("toolName", "")) for rule in _as_mappings(update.get("rules"))]
                self._rules[behavior] = change(self._rules[behavior], named)


def matches_rule(rule: str, tool: str) -> bool:
    """Whether `rule` is about `tool`: its name, its server, or a pattern with `*`."""
    return rule == tool or tool.startswith(f"{rule}__") or ("*" in rule and fnmatchcase(tool, rule))


def _add_rules(old: list[str], new: list[str]) -> list[str]:
    return [*old, *new]


def _replace_rules(old: list[str], new: list[str]) -> list[str]:
    return new


def _remove_rules(old: list[str], new: list[str]) -> list[str]:
    return [rule for rule in old if rule not in new]


_UPDATE_FUNCTIONS = {"addRules": _add_rules, "replaceRules": _replace_rules, "removeRules": _remove_rules}


def _as_mappings(value: Any) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]


MAX_STEPS: Final = 200  # of a query without `max_turns`: a model that calls the same tool for ever has to end


class LoopStep(Struct, frozen=True):
    """What comes next.

    Attributes:
        content: the next user message; None when there is none.
        messages: what belongs into the stream before it.
    """

    content: list[dict[str, Any]] | None = None
    messages: Sequence[Message] = ()


class ToolLoop(Protocol):
    """One query, over as many answers of the model as it takes. Make a new one for each."""

    def read(self, batch: list[Message]) -> list[Message]:
        """Look at what the CLI says, in order; gives what the reader of the query gets for it."""
        ...

    async def next_step(self, result: ResultMessage) -> LoopStep:
        """What comes after `result`."""
        ...


class ToolCallLog:
    """What one query has done so far.

    Args:
        executor: runs the calls.
        max_turns: how many answers of the model a query may have; None for `MAX_STEPS`.
    """

    def __init__(self, executor: ToolExecutor, max_turns: int | None) -> None:
        self._executor = executor
        self._limit = max_turns or MAX_STEPS
        self._turns = 0
        self._denied: list[PermissionDenial] = []

    def observe(self, message: Message) -> None:
        """Keep what hooks and rules have to know."""
        host = self._executor
        if isinstance(message, InitMessage):
            host.permission_mode = message.permission_mode or host.permission_mode
            facts = {"session_id": message.session_id, "cwd": message.cwd, "permission_mode": host.permission_mode}
            host.hook_fields = {name: value for name, value in facts.items() if value}
        elif isinstance(message, StatusMessage) and message.permission_mode:
            host.permission_mode = host.hook_fields["permission_mode"] = message.permission_mode

    def add_denials(self, result: ResultMessage) -> ResultMessage:
        """`result`, with the calls that were denied here."""
        if not self._denied:
            return result
        return structs.replace(result, permission_denials=[*result.permission_denials, *self._denied])

    async def run(
        self, calls: Sequence[ToolInvocation], result: ResultMessage
    ) -> tuple[list[InvocationResult], list[Message]]:
        """Run the calls in the answer that `result` closes, and give what the stream has to say of it.

        No results: nothing may come after it; the messages then close the query.
        """
        self._turns += max(1, int(result.num_turns or 0))
        ran = await self._executor.run_all(calls)
        self._denied += [
            PermissionDenial(
                tool_name=each.invocation.name,
                tool_use_id=each.invocation.id,
                tool_input=dict(each.invocation.arguments),
            )
            for each in ran
            if each.is_denied
        ]
        told = make_results_message(ran, result.session_id)
        if any(each.stops_query for each in ran):
            how = _INTERRUPTED if any(each.is_interrupt for each in ran) else _STOPPED_BY_HOOK
        elif self._turns >= self._limit:  # the last calls have run, as those that the CLI runs itself
            how = _OUT_OF_TURNS | {"errors": [f"Reached maximum number of turns ({self._limit})"]}
        else:
            return ran, [told]
        return [], [told, self.add_denials(_make_final_result(result, how))]


def make_tool_result(ran: InvocationResult) -> dict[str, Any]:
    """The block that answers a call."""
    content = to_model_content(ran.result, ran.invocation.name)
    block = {"type": "tool_result", "tool_use_id": ran.invocation.id, "content": content}
    return {**block, "is_error": True} if ran.is_error else block


def make_results_message(ran: Sequence[InvocationResult], session_id: str | None) -> Message:
    """The message by which the CLI tells the results of tools that it runs itself."""
    return from_dict(
        {
            "type": "user",
            "message": {"role": "user", "content": [make_tool_result(each) for each in ran]},
            "parent_tool_use_id": None,
            "session_id": session_id or "",
            "uuid": str(uuid.uuid4()),
        }
    )


# How the CLI (2.1.330) closes a query that ends with calls. It counts messages: the results are a turn, and so is its
# note of an interruption.
_STOPPED_BY_HOOK: Final[dict[str, Any]] = {
    "subtype": "success", "terminal_reason": "hook_stopped", "is_error": False, "num_turns": 1, "result": "",
}  # fmt: skip
_INTERRUPTED: Final[dict[str, Any]] = {
    "subtype": "error_during_execution", "terminal_reason": "aborted_tools", "is_error": True, "num_turns": 2,
}  # fmt: skip
_OUT_OF_TURNS: Final[dict[str, Any]] = {
    "subtype": "error_max_turns", "terminal_reason": "max_turns", "is_error": True, "num_turns": 1,
}  # fmt: skip


def _make_final_result(result: ResultMessage, how: Mapping[str, Any]) -> ResultMessage:
    """A closing message of its own: what `result` counted is counted already."""
    kept = ("type", "session_id", "total_cost_usd", "modelUsage")
    said = {key: value for key, value in to_dict(result).items() if key in kept}
    made = from_dict({**said, "uuid": str(uuid.uuid4()), **how})
    assert isinstance(made, ResultMessage)
    return made
