"""Bridges: ways other than MCP to run the model's tool calls in this process.

Owns the calls that run here: the order of hooks, permissions and the tool (the CLI's own order), the permission rules
for such calls, and the loop that sends results back to the model. Must not know the engine or the client. Start reading
at `ToolExecutor`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

import anyio
from msgspec import Struct, field, structs

from pilothouse.events import ToolCall
from pilothouse.hooks import merge_hook_outputs
from pilothouse.messages import (
    AssistantMessage,
    InitMessage,
    Message,
    PermissionDenial,
    ResultMessage,
    StatusMessage,
    UserMessage,
    from_dict,
    to_dict,
)
from pilothouse.permissions import PermissionBehavior, RuleSet
from pilothouse.tools import Tool, ToolContext, ToolError, ToolFailure, ToolInputError, text_content, to_model_content
from pilothouse_models.xml.call_reader import unknown_tool_message
from pilothouse_models.xml.prompt import CallAnswer, new_nonce, results_content, system_prompt
from pilothouse_models.xml.reply_reader import ParsedReply, ReplyReader

RequestCallback = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Handles a request in the format of the control protocol."""

PERMISSION_NOT_GRANTED = "Permission to use {name} was not granted."


class ToolInvocation(Struct, frozen=True):
    """A call that the model made, of a tool with its server in the name: `mcp__tools__weather`.

    `hook_output` is that of the PreToolUse hooks, if the CLI has already called them; `error` is why the call cannot be
    run, for the model.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hook_output: Mapping[str, Any] | None = None
    error: str | None = None


class InvocationResult(Struct, frozen=True):
    """The result of a call, in the format of MCP; the call has the arguments that it ran with.

    If the query ends here, `is_interrupt` tells whether a person's refusal ends it, or a hook.
    """

    invocation: ToolInvocation
    result: Mapping[str, Any]
    is_denied: bool = False
    stops_query: bool = False
    is_interrupt: bool = False

    @property
    def is_error(self) -> bool:
        """Whether the result reports a failure to the model."""
        return self.result.get("isError") is True


class ToolExecutor:
    """Runs the calls of one conversation. Answers to permission requests may change its rules.

    The handlers are set for each child process. `prepare` is called in the task of each call. `session` is that of
    `ToolContext`; `hook_fields` are in the input of every hook: `session_id`, `cwd` and the like.
    """

    def __init__(
        self,
        server: str,
        tools: Sequence[Tool[..., Any]],
        rules: RuleSet,
        on_failure: Callable[[ToolFailure], object] | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._server = server
        self._tools = {f"mcp__{server}__{tool.name}": tool for tool in tools}
        self._rules = rules
        self._on_failure = on_failure
        self._prepare = prepare
        self.hook_handler: RequestCallback | None = None
        self.permission_handler: RequestCallback | None = None
        self.session: Any = None
        self.permission_mode: str | None = None
        self.hook_fields: dict[str, Any] = {}

    def bind_handlers(self, hook: RequestCallback | None, permission: RequestCallback | None, session: Any) -> None:
        """Set the handlers of a new child process, and what tools get as the session."""
        self.hook_handler, self.permission_handler, self.session = hook, permission, session

    @property
    def tool_names(self) -> frozenset[str]:
        """Full names of the tools."""
        return frozenset(self._tools)

    @property
    def available_tools(self) -> list[Tool[..., Any]]:
        """The tools that no rule denies."""
        return [tool for name, tool in self._tools.items() if decide_call(self._rules, name, None) != "deny"]

    def full_name(self, name: str) -> str:
        """Return the name of a tool with its server."""
        return f"mcp__{self._server}__{name}"

    def short_name(self, name: str) -> str:
        """Return the name of a tool without its server."""
        return name.removeprefix(f"mcp__{self._server}__")

    def make_answer(self, ran: InvocationResult) -> CallAnswer:
        """Make the answer to the model, in the text protocol."""
        return CallAnswer(ran.invocation.id, self.short_name(ran.invocation.name), ran.result)

    async def run_all(self, calls: Sequence[ToolInvocation]) -> list[InvocationResult]:
        """Run calls concurrently; the results have the order of the calls."""
        ran: dict[int, InvocationResult] = {}

        async def run(at: int) -> None:
            ran[at] = await self.run(calls[at])

        async with anyio.create_task_group() as tasks:
            for at in range(len(calls)):
                tasks.start_soon(run, at)
        return [ran[at] for at in range(len(calls))]

    async def run(self, call: ToolInvocation) -> InvocationResult:
        """Run one call, from the hooks before it to the hooks after it. Raises nothing but cancellation."""
        if call.error is not None:
            return InvocationResult(call, _make_error_result(call.error))
        self._prepare()
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
        own = _get_specific_output(opinion)
        decision = own.get("permissionDecision")
        reason = str(own.get("permissionDecisionReason") or opinion.get("reason") or opinion.get("stopReason") or "")
        ends = opinion.get("continue") is False
        if ends or decision == "deny" or opinion.get("decision") == "block":
            text = f"PreToolUse:{call.name} hook error: {reason}"  # the wording of the CLI
            return call, _refuse(call, text, stops_query=ends)
        if isinstance(own.get("updatedInput"), Mapping):
            call = structs.replace(call, arguments=own["updatedInput"])
        ruling = decide_call(self._rules, call.name, self.permission_mode)
        if decision != "ask" and (ruling == "allow" or (ruling == "ask" and decision == "allow")):
            return call, None
        if ruling == "deny" or self.permission_handler is None:
            return call, _refuse(call, PERMISSION_NOT_GRANTED.format(name=call.name))
        body = {
            "subtype": "can_use_tool", "tool_name": call.name, "input": dict(call.arguments), "tool_use_id": call.id,
            "mcp_server": {"name": self._server},
        } | ({"decision_reason": reason} if reason else {})  # fmt: skip
        answer = await self.permission_handler(body)
        if answer.get("behavior") != "allow":
            stops = answer.get("interrupt") is True
            return call, _refuse(call, str(answer.get("message") or ""), stops_query=stops, is_interrupt=stops)
        self._rules = self._rules.with_updates(answer.get("updatedPermissions"))
        updated: Any = answer.get("updatedInput")
        return structs.replace(call, arguments=updated) if isinstance(updated, Mapping) else call, None

    async def _invoke(self, call: ToolInvocation) -> Mapping[str, Any]:
        tool = self._tools.get(call.name)
        if tool is None:
            names = [self.full_name(tool.name) for tool in self.available_tools]
            return _make_error_result(unknown_tool_message(call.name, names))
        about: Any = {"tool_name": tool.name, "server_name": self._server, "tool_use_id": call.id}
        try:
            arguments: Any = call.arguments
            if not isinstance(arguments, Mapping):
                raise ToolInputError("The input must be an object")
            return await tool.invoke(cast("Mapping[str, Any]", arguments), ToolContext(**about, session=self.session))
        except ToolError as error:
            if self._on_failure is not None:
                self._on_failure(ToolFailure(**about, error=error))
            return _make_error_result(str(error))

    async def _run_post_hooks(
        self, call: ToolInvocation, before: Mapping[str, Any], result: Mapping[str, Any], milliseconds: int
    ) -> InvocationResult:
        failed = result.get("isError") is True
        more: dict[str, Any] = {"duration_ms": milliseconds}
        if failed:
            opinion = await self._run_hooks("PostToolUseFailure", call, more | {"error": result_text(result)})
        else:
            opinion = await self._run_hooks("PostToolUse", call, more | {"tool_response": result["content"]})
        own = _get_specific_output(opinion)
        for key in ("updatedMCPToolOutput", "updatedToolOutput"):
            if not failed and own.get(key) is not None:
                result = _read_replacement(own[key])
        blocked = opinion.get("reason") if opinion.get("decision") == "block" else None
        notes = [_get_specific_output(before).get("additionalContext"), own.get("additionalContext"), blocked]
        if any(notes):
            blocks = [text_content(str(note)).body for note in notes if note]
            result = {**result, "content": [*result["content"], *blocks]}
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
    """Return the text of a result in the format of MCP."""
    return "\n".join(block["text"] for block in result.get("content", ()) if block.get("type") == "text")


def _get_specific_output(output: Mapping[str, Any]) -> Mapping[str, Any]:
    return output.get("hookSpecificOutput") or {}


def _make_error_result(text: str) -> dict[str, Any]:
    return {"content": [text_content(text).body], "isError": True}


def _refuse(call: ToolInvocation, text: str, **how: bool) -> InvocationResult:
    return InvocationResult(call, _make_error_result(text), is_denied=True, **how)


def _read_replacement(value: Any) -> Mapping[str, Any]:
    """Return the replacement result from a hook: a text, blocks, or a whole result."""
    if isinstance(value, dict) and "content" in value:
        return cast("dict[str, Any]", value)
    if isinstance(value, list):
        return {"content": cast("list[Any]", value)}
    return {"content": [text_content(str(cast("object", value))).body]}


# The modes that decide a call without a matching rule. In the others, permission is requested.
_MODE_DECISIONS: Mapping[str, PermissionBehavior] = {"bypassPermissions": "allow", "dontAsk": "deny"}


def decide_call(rules: RuleSet, tool: str, mode: str | None) -> PermissionBehavior:
    """Decide on a call of `tool` in the permission mode `mode`.

    A rule about some uses of a tool allows none here, since custom tools have no syntax for them; it denies or asks
    about all.
    """
    for behavior in rules.BEHAVIORS:
        if any(behavior != "allow" or rule.content is None for rule in rules.find_matching(behavior, tool)):
            return behavior
    return _MODE_DECISIONS.get(mode or "", "ask")


MAX_STEPS: Final = 200  # for a query without `max_turns`: stops a model that calls the same tool forever


class LoopStep(Struct, frozen=True):
    """The next step of a tool loop: the next user message, if any, and messages for the stream before it."""

    content: list[dict[str, Any]] | None = None
    messages: Sequence[Message] = ()


class ToolLoop:
    """The tool loop of one query, over all replies of the model: its turns and denied calls so far."""

    def __init__(self, executor: ToolExecutor, max_turns: int | None) -> None:
        self.executor = executor
        self._limit = max_turns or MAX_STEPS
        self._turns = 0
        self._denied: list[PermissionDenial] = []

    def read(self, batch: list[Message]) -> list[Message]:
        """Process messages of the CLI, in order; returns the messages for the reader of the query."""
        raise NotImplementedError

    async def next_step(self, result: ResultMessage) -> LoopStep:
        """Return the step after `result`."""
        raise NotImplementedError

    def observe(self, message: Message) -> None:
        """Record the session facts that hooks and rules need."""
        executor = self.executor
        if isinstance(message, InitMessage):
            executor.permission_mode = message.permission_mode or executor.permission_mode
            facts = {"session_id": message.session_id, "cwd": message.cwd, "permission_mode": executor.permission_mode}
            executor.hook_fields = {name: value for name, value in facts.items() if value}
        elif isinstance(message, StatusMessage) and message.permission_mode:
            executor.permission_mode = executor.hook_fields["permission_mode"] = message.permission_mode

    def add_denials(self, result: ResultMessage) -> ResultMessage:
        """Return `result` with the calls that were denied here."""
        if not self._denied:
            return result
        return structs.replace(result, permission_denials=[*result.permission_denials, *self._denied])

    async def run_calls(
        self, calls: Sequence[ToolInvocation], result: ResultMessage
    ) -> tuple[list[InvocationResult], list[Message]]:
        """Run the calls in the reply that `result` ends. Returns their results and messages for the stream.

        If the results are empty, nothing may follow: the messages then end the query.
        """
        self._turns += max(1, int(result.num_turns or 0))
        ran = await self.executor.run_all(calls)
        self._denied += [
            PermissionDenial(
                tool_name=each.invocation.name,
                tool_use_id=each.invocation.id,
                tool_input=dict(each.invocation.arguments),
            )
            for each in ran
            if each.is_denied
        ]
        message = make_results_message(ran, result.session_id)
        if any(each.stops_query for each in ran):
            how = _INTERRUPTED if any(each.is_interrupt for each in ran) else _STOPPED_BY_HOOK
        elif self._turns >= self._limit:  # the last calls still run, as in the CLI
            how = _OUT_OF_TURNS | {"errors": [f"Reached maximum number of turns ({self._limit})"]}
        else:
            return ran, [message]
        return [], [message, self.add_denials(_make_final_result(result, how))]


def make_tool_result(ran: InvocationResult) -> dict[str, Any]:
    """Make the `tool_result` block for a call."""
    content = to_model_content(ran.result, ran.invocation.name)
    block = {"type": "tool_result", "tool_use_id": ran.invocation.id, "content": content}
    return {**block, "is_error": True} if ran.is_error else block


def make_results_message(ran: Sequence[InvocationResult], session_id: str | None) -> UserMessage:
    """Make the message in which the CLI reports the results of tools that it runs itself."""
    made = from_dict(
        {
            "type": "user",
            "message": {"role": "user", "content": [make_tool_result(each) for each in ran]},
            "parent_tool_use_id": None,
            "session_id": session_id or "",
            "uuid": str(uuid.uuid4()),
        }
    )
    assert isinstance(made, UserMessage)
    return made


# How the CLI ends a query whose last reply has calls. `num_turns` counts messages: the results are one
# turn, and the note of an interruption is another.
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
    """Make a separate result message, without the counts that `result` already reported."""
    kept = ("type", "session_id", "total_cost_usd", "modelUsage")
    kept_fields = {key: value for key, value in to_dict(result).items() if key in kept}
    made = from_dict({**kept_fields, "uuid": str(uuid.uuid4()), **how})
    assert isinstance(made, ResultMessage)
    return made


# The bridge `deferred`: MCP declares the tools, and a hook defers each call of them to this process. The CLI's turn
# then ends, all its calls run here, and their results go back together in one user message.


TOOL_DEFERRED: Final = "tool_deferred"
LOST_CALL_MESSAGE: Final = "The process that ran this call ended; whether it was done is not known."


class _Bridge:
    """The bridge of one conversation; `max_turns` counts all steps of a query."""

    is_declared_by_server = False
    """Whether the CLI needs the tools declared by an MCP server."""

    def __init__(self, executor: ToolExecutor, max_turns: int | None = None) -> None:
        self.executor = executor
        self.max_turns = max_turns

    def bind_handlers(
        self, hook: RequestCallback | None, permission: RequestCallback | None, session: Any
    ) -> RequestCallback | None:
        """Set the handlers of a new child process; return the one for the CLI, so that each hook runs once."""
        self.executor.bind_handlers(hook, permission, session)
        return None if hook is None else self._wrap_hook(hook)

    def _wrap_hook(self, hook: RequestCallback) -> RequestCallback:
        raise NotImplementedError


class DeferredBridge(_Bridge):
    """The bridge `deferred` of one conversation."""

    is_declared_by_server = True

    def __init__(self, executor: ToolExecutor, max_turns: int | None = None) -> None:
        super().__init__(executor, max_turns)
        self._loop: DeferredToolLoop | None = None
        self._hook_outputs: dict[str, dict[str, Any]] = {}
        self._has_model_output = False
        self.is_sending_results = False  # the next prompt holds results

    @property
    def matcher(self) -> str:
        """Matcher of the hook `defer`: the names of the tools."""
        return "|".join(sorted(self.executor.tool_names))

    def start_loop(self) -> DeferredToolLoop:
        """Start the tool loop of a query."""
        self.is_sending_results = False
        return DeferredToolLoop(self)

    def defer(self, event: Any) -> dict[str, Any] | None:
        """Hook: decide whether a call is deferred to this process.

        Calls of sub-agents, and of turns that belong to no query, are not deferred, because no loop would continue
        them. The CLI runs those through the MCP server.
        """
        if event.agent_id is not None or event.tool_name not in self.executor.tool_names:
            return None
        if self._loop is not None and self._loop.claim_call(event.tool_use_id):
            return {"permission_decision": "defer"}
        if self._has_model_output:
            return None
        # A resumed CLI repeats a call that was deferred before; the call may have run.
        return {"permission_decision": "deny", "permission_decision_reason": LOST_CALL_MESSAGE}

    def pop_hook_output(self, tool_use_id: str) -> dict[str, Any]:
        """Return and remove the output of the user's hooks for a call."""
        return self._hook_outputs.pop(tool_use_id, {})

    def record_model_output(self, loop: DeferredToolLoop) -> None:
        """Record that the model produced output in the query of `loop`."""
        self._loop, self._has_model_output, self.is_sending_results = loop, True, False

    def bind_handlers(
        self, hook: RequestCallback | None, permission: RequestCallback | None, session: Any
    ) -> RequestCallback | None:
        """Set the handlers of a new child process, which has not called a tool yet."""
        self._hook_outputs.clear()
        self._has_model_output = False
        return super().bind_handlers(hook, permission, session)

    def _wrap_hook(self, hook: RequestCallback) -> RequestCallback:
        async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            event = _get_hook_event(body)
            name = event.get("hook_event_name")
            if self.is_sending_results and name == "UserPromptSubmit" and not event.get("prompt"):
                return {}
            answer = await hook(body)
            if name == "PreToolUse" and event.get("tool_name") in self.executor.tool_names:
                self._record_hook_output(str(event.get("tool_use_id")), answer)
            return answer

        return ask

    def _record_hook_output(self, tool_use_id: str, answer: Mapping[str, Any]) -> None:
        if _get_specific_output(answer).get("permissionDecision") != "defer":  # "defer" is the output of our own hook
            self._hook_outputs[tool_use_id] = merge_hook_outputs([self._hook_outputs.get(tool_use_id, {}), answer])


def _get_hook_event(body: Mapping[str, Any]) -> Mapping[str, Any]:
    data: Any = body.get("input")
    return cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else {}


class DeferredToolLoop(ToolLoop):
    """The tool loop of a query with deferred calls."""

    def __init__(self, bridge: DeferredBridge) -> None:
        super().__init__(bridge.executor, bridge.max_turns)
        self._bridge = bridge
        self._calls: dict[str, ToolInvocation] = {}
        self._deferred: list[str] = []
        self._accepts_calls = True

    def read(self, batch: list[Message]) -> list[Message]:
        """Record the calls; changes only the result message, if calls were denied here."""
        for at, message in enumerate(batch):
            self.observe(message)
            if isinstance(message, AssistantMessage) and message.parent_tool_use_id is None:
                self._bridge.record_model_output(self)
                for use in message.tool_uses:
                    self._calls[use.id] = ToolInvocation(use.id, use.name, use.input)
            elif isinstance(message, UserMessage):  # the CLI has already sent a result
                for answered in message.tool_results:
                    self._calls.pop(answered.tool_use_id, None)
            elif isinstance(message, ResultMessage):
                batch[at] = self.add_denials(message)
        return batch

    def claim_call(self, tool_use_id: str) -> bool:
        """Defer a call if it is part of the reply being read, and return whether it was."""
        if not self._accepts_calls or tool_use_id not in self._calls:
            return False
        self._deferred.append(tool_use_id)
        return True

    async def next_step(self, result: ResultMessage) -> LoopStep:
        """Run the deferred calls; their results are the next user message."""
        left = [each for each in self._deferred if each in self._calls]
        calls = [self._calls[each] for each in left] if result.stop_reason == TOOL_DEFERRED else []
        self._calls.clear()
        self._deferred.clear()
        self._accepts_calls = False  # no loop runs calls of a model woken meanwhile by a task
        if not calls:
            return LoopStep()
        with_output = [structs.replace(each, hook_output=self._bridge.pop_hook_output(each.id)) for each in calls]
        ran, messages = await self.run_calls(with_output, result)
        self._accepts_calls = self._bridge.is_sending_results = bool(ran)
        return LoopStep([make_tool_result(each) for each in ran] or None, messages)


# The bridge `xml`: calls and results are text, without MCP and without the CLI's tools. `tools.xml` has the protocol;
# here is its use in a conversation: the system prompt and the tool loop.


# The field that holds the text, in the hook events at the start and the end of a turn.
_TEXT_FIELDS: Final = {"UserPromptSubmit": "prompt", "Stop": "last_assistant_message"}


class XmlBridge(_Bridge):
    """The bridge `xml` of one conversation."""

    def __init__(self, executor: ToolExecutor, max_turns: int | None = None) -> None:
        super().__init__(executor, max_turns)
        self.nonce = new_nonce()

    def system_prompt(self) -> str:
        """Make the part of the system prompt that explains the protocol and the tools."""
        return system_prompt(self.executor.available_tools, self.nonce)

    def _wrap_hook(self, hook: RequestCallback) -> RequestCallback:
        """Hide from user hooks the turn events that are part of a tool loop, whose text holds calls or results."""

        async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            event = _get_hook_event(body)
            text = event.get(_TEXT_FIELDS.get(str(event.get("hook_event_name")), ""))
            return {} if isinstance(text, str) and f"-{self.nonce}>" in text else await hook(body)

        return ask

    def start_loop(self) -> XmlToolLoop:
        """Start the tool loop of a query."""
        return XmlToolLoop(self)


class XmlToolLoop(ToolLoop):
    """The tool loop of a query with calls in text."""

    def __init__(self, bridge: XmlBridge) -> None:
        super().__init__(bridge.executor, bridge.max_turns)
        self._nonce = bridge.nonce
        self._reader = ReplyReader(self.executor.available_tools, bridge.nonce, full_name=self.executor.full_name)
        self._reply = ParsedReply()

    def read(self, batch: list[Message]) -> list[Message]:
        """Take the markup out of a batch: calls become `ToolUseBlock`s, like those of any tool."""
        read: list[Message] = []
        for message in batch:
            self.observe(message)
            rewritten = self._reader.rewrite(message)
            read += [self._finish_result(each) if isinstance(each, ResultMessage) else each for each in rewritten]
        return read

    def _finish_result(self, result: ResultMessage) -> ResultMessage:
        if result.is_woken:
            return result
        self._reply = self._reader.end(result)
        if self._reply.calls:  # the CLI takes the calls for a final answer
            return structs.replace(result, stop_reason=TOOL_DEFERRED)
        return self.add_denials(result)

    async def next_step(self, result: ResultMessage) -> LoopStep:
        """Run the calls in the reply; their results are the next user message."""
        reply, self._reply = self._reply, ParsedReply()
        if not reply.calls:
            return LoopStep()
        full_name = self.executor.full_name
        calls = [
            ToolInvocation(call.id, full_name(call.name), call.input)
            if isinstance(call, ToolCall)
            else ToolInvocation(call.id, full_name(call.name or ""), error=call.message)
            for call in reply.calls
        ]
        ran, messages = await self.run_calls(calls, result)
        answers = [self.executor.make_answer(each) for each in ran]
        return LoopStep(results_content(answers, self._nonce) or None, messages)
