"""The bridge `deferred`: tools are declared through MCP, and a hook defers each call of them to this process.

The CLI's turn then ends, all its calls run here, and their results go back together in one user message
(CLI 2.1.330). Owns the choice of calls to defer; `executor` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pilothouse.messages import AssistantMessage, Message, ResultMessage, UserMessage
from pilothouse.protocol.hook_outputs import merge_hook_outputs
from pilothouse.tools.bridges.executor import (
    LoopStep,
    RequestCallback,
    ToolCallLog,
    ToolExecutor,
    ToolInvocation,
    make_tool_result,
)

TOOL_DEFERRED: Final = "tool_deferred"
LOST_CALL_MESSAGE: Final = "The process that ran this call ended; whether it was done is not known."


class DeferredBridge:
    """The bridge of one conversation.

    Args:
        executor: runs the calls.
        max_turns: limit as in the option; counts all steps of a query.
    """

    def __init__(self, executor: ToolExecutor, max_turns: int | None = None) -> None:
        self.executor = executor
        self._max_turns = max_turns
        self._loop: DeferredToolLoop | None = None
        self._hook_outputs: dict[str, dict[str, Any]] = {}
        self._has_spoken = False
        self.is_sending_results = False  # the next prompt holds results

    is_declared_by_server: Final = True
    """Whether the CLI needs the tools declared by an MCP server."""

    @property
    def matcher(self) -> str:
        """Matcher of the hook `defer`: the names of the tools."""
        return "|".join(sorted(self.executor.tool_names))

    def bind_handlers(self, hook: RequestCallback | None, permission: RequestCallback | None) -> RequestCallback | None:
        """Set the handlers of a new child process.

        Returns:
            The handler to use in place of `hook`, so that each hook runs once.
        """
        self.executor.hook_handler, self.executor.permission_handler = hook, permission
        self._hook_outputs.clear()
        self._has_spoken = False
        return None if hook is None else self._wrap_hook(hook)

    def start_loop(self) -> DeferredToolLoop:
        """Start the tool loop of a query."""
        self.is_sending_results = False
        return DeferredToolLoop(self, ToolCallLog(self.executor, self._max_turns))

    def defer(self, event: Any) -> dict[str, Any] | None:
        """Hook: decide whether a call is deferred to this process.

        Calls of sub-agents, and of turns that belong to no query, are not deferred, because no loop would continue
        them. The CLI runs those through the MCP server.
        """
        if event.agent_id is not None or event.tool_name not in self.executor.tool_names:
            return None
        if self._loop is not None and self._loop.claim_call(event.tool_use_id):
            return {"permission_decision": "defer"}
        if self._has_spoken:
            return None
        # A resumed CLI repeats a call that was deferred before; the call may have run.
        return {"permission_decision": "deny", "permission_decision_reason": LOST_CALL_MESSAGE}

    def pop_hook_output(self, tool_use_id: str) -> dict[str, Any]:
        """Return and remove the output of the user's hooks for a call."""
        return self._hook_outputs.pop(tool_use_id, {})

    def model_spoke(self, loop: DeferredToolLoop) -> None:
        """Record that the model produced output in the query of `loop`."""
        self._loop, self._has_spoken, self.is_sending_results = loop, True, False

    def _wrap_hook(self, hook: RequestCallback) -> RequestCallback:
        async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            data: Any = body.get("input")
            event: Mapping[str, Any] = cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else {}
            if (
                self.is_sending_results
                and event.get("hook_event_name") == "UserPromptSubmit"
                and not event.get("prompt")
            ):
                return {}
            answer = await hook(body)
            if event.get("hook_event_name") == "PreToolUse" and event.get("tool_name") in self.executor.tool_names:
                self._record_hook_output(str(event.get("tool_use_id")), answer)
            return answer

        return ask

    def _record_hook_output(self, tool_use_id: str, answer: Mapping[str, Any]) -> None:
        own: Mapping[str, Any] = answer.get("hookSpecificOutput") or {}
        if own.get("permissionDecision") != "defer":  # "defer" is the output of our own hook
            self._hook_outputs[tool_use_id] = merge_hook_outputs([self._hook_outputs.get(tool_use_id, {}), answer])


class DeferredToolLoop:
    """The tool loop of one query; see `ToolLoop`."""

    def __init__(self, bridge: DeferredBridge, call_log: ToolCallLog) -> None:
        self._bridge = bridge
        self._call_log = call_log
        self._calls: dict[str, ToolInvocation] = {}
        self._deferred: list[str] = []
        self._accepts_calls = True

    def read(self, batch: list[Message]) -> list[Message]:
        """Record the calls; changes only the result message, if calls were denied here."""
        for at, message in enumerate(batch):
            self._call_log.observe(message)
            if isinstance(message, AssistantMessage) and message.parent_tool_use_id is None:
                self._bridge.model_spoke(self)
                for use in message.tool_uses:
                    self._calls[use.id] = ToolInvocation(use.id, use.name, use.input)
            elif isinstance(message, UserMessage):  # the CLI has already sent a result
                for answered in message.tool_results:
                    self._calls.pop(answered.tool_use_id, None)
            elif isinstance(message, ResultMessage):
                batch[at] = self._call_log.add_denials(message)
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
        if not calls:
            self._accepts_calls = False
            return LoopStep()
        self._accepts_calls = False  # no loop runs calls of a model woken meanwhile by a task
        ran, messages = await self._call_log.run([self._add_hook_output(call) for call in calls], result)
        self._accepts_calls = self._bridge.is_sending_results = bool(ran)
        return LoopStep([make_tool_result(each) for each in ran] or None, messages)

    def _add_hook_output(self, call: ToolInvocation) -> ToolInvocation:
        return ToolInvocation(call.id, call.name, call.arguments, self._bridge.pop_hook_output(call.id))
