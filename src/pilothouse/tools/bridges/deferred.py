"""The bridge `deferred`: tools are declared through MCP, and a hook leaves every call of them to this process.

The turn of the CLI then ends, all calls of it are run here, and their results go back together in one user message
(CLI 2.1.330). Owns which calls are deferred; how one is run is the host's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pilothouse.messages import AssistantMessage, Message, ResultMessage, UserMessage
from pilothouse.protocol.hook_answers import merged_answers
from pilothouse.tools.bridges.host import Ask, HostCall, ToolHost
from pilothouse.tools.bridges.steps import Ledger, Step, tool_result

DEFERRED: Final = "tool_deferred"
CUT_OFF: Final = "The process that ran this call ended; whether it was done is not known."


class DeferredBridge:
    """One for each conversation.

    Args:
        host: runs the calls.
        max_turns: as the option; over all steps of a query.
    """

    def __init__(self, host: ToolHost, max_turns: int | None = None) -> None:
        self.host = host
        self._max_turns = max_turns
        self._steps: DeferredSteps | None = None
        self._opinions: dict[str, dict[str, Any]] = {}
        self._heard = False
        self.answers = False  # the next prompt is the results of calls, and no prompt of the user

    is_declared_by_server: Final = True
    """Whether the CLI has to know the tools of an MCP server."""

    @property
    def matcher(self) -> str:
        """Which tools the hook `defer` is for."""
        return "|".join(sorted(self.host.names))

    def attach(self, hook: Ask | None, permission: Ask | None) -> Ask | None:
        """A new child: who answers for it. Gives what has to answer for `hook`, so that it is asked once."""
        self.host.hook, self.host.permission = hook, permission
        self._opinions.clear()
        self._heard = False
        return None if hook is None else self._listening_to(hook)

    def steps(self) -> DeferredSteps:
        """A query begins."""
        self.answers = False
        return DeferredSteps(self, Ledger(self.host, self._max_turns))

    def defer(self, event: Any) -> dict[str, Any] | None:
        """The hook: whether a call is left to the host.

        Calls of sub-agents, and of turns that answer no query, are not: there, nobody could go on. The CLI runs those
        through the MCP server.
        """
        if event.agent_id is not None or event.tool_name not in self.host.names:
            return None
        if self._steps is not None and self._steps.defers(event.tool_use_id):
            return {"permission_decision": "defer"}
        if self._heard:
            return None
        # The CLI, resumed, comes back to a call that was deferred before; it may have run.
        return {"permission_decision": "deny", "permission_decision_reason": CUT_OFF}

    def take_opinion(self, tool_use_id: str) -> dict[str, Any]:
        """What the hooks of the user said about a call."""
        return self._opinions.pop(tool_use_id, {})

    def heard_by(self, steps: DeferredSteps) -> None:
        """The model speaks in the query of `steps`."""
        self._steps, self._heard, self.answers = steps, True, False

    def _listening_to(self, hook: Ask) -> Ask:
        async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            data: Any = body.get("input")
            event: Mapping[str, Any] = cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else {}
            if self.answers and event.get("hook_event_name") == "UserPromptSubmit" and not event.get("prompt"):
                return {}
            answer = await hook(body)
            if event.get("hook_event_name") == "PreToolUse" and event.get("tool_name") in self.host.names:
                self._note(str(event.get("tool_use_id")), answer)
            return answer

        return ask

    def _note(self, tool_use_id: str, answer: Mapping[str, Any]) -> None:
        own: Mapping[str, Any] = answer.get("hookSpecificOutput") or {}
        if own.get("permissionDecision") != "defer":  # that is ours
            self._opinions[tool_use_id] = merged_answers([self._opinions.get(tool_use_id, {}), answer])


class DeferredSteps:
    """One query; see `Steps`."""

    def __init__(self, bridge: DeferredBridge, ledger: Ledger) -> None:
        self._bridge = bridge
        self._ledger = ledger
        self._calls: dict[str, HostCall] = {}
        self._deferred: list[str] = []
        self._reads = True

    def read(self, batch: list[Message]) -> list[Message]:
        """Note the calls; only the closing message is changed, if calls were denied here."""
        for at, message in enumerate(batch):
            self._ledger.note(message)
            if isinstance(message, AssistantMessage) and message.parent_tool_use_id is None:
                self._bridge.heard_by(self)
                for use in message.tool_uses:
                    self._calls[use.id] = HostCall(use.id, use.name, use.input)
            elif isinstance(message, UserMessage):  # the CLI has answered: a hook refused the call, for one
                for answered in message.tool_results:
                    self._calls.pop(answered.tool_use_id, None)
            elif isinstance(message, ResultMessage):
                batch[at] = self._ledger.closing(message)
        return batch

    def defers(self, tool_use_id: str) -> bool:
        """Whether a call is one of the answer that is being read; then it is run here."""
        if not self._reads or tool_use_id not in self._calls:
            return False
        self._deferred.append(tool_use_id)
        return True

    async def go_on(self, result: ResultMessage) -> Step:
        """Run the calls that were deferred; their results are the next user message."""
        left = [each for each in self._deferred if each in self._calls]
        calls = [self._calls[each] for each in left] if result.stop_reason == DEFERRED else []
        self._calls.clear()
        self._deferred.clear()
        if not calls:
            self._reads = False
            return Step()
        self._reads = False  # a background task may wake the model meanwhile; nobody would go on for it
        ran, messages = await self._ledger.run([self._with_opinion(call) for call in calls], result)
        self._reads = self._bridge.answers = bool(ran)
        return Step([tool_result(each) for each in ran] or None, messages)

    def _with_opinion(self, call: HostCall) -> HostCall:
        return HostCall(call.id, call.name, call.arguments, self._bridge.take_opinion(call.id))
