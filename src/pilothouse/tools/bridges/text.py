"""The bridge `xml`: calls and results are text, so that there is no MCP and no tool of the CLI. (S1, S20-S23)

Owns the protocol's place in a conversation: its rules in the system prompt, and the loop. The protocol itself, and how
replies are read, is the business of `tools.xml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import structs

from pilothouse.messages import Message, ResultMessage
from pilothouse.tools.bridges.deferred import DEFERRED
from pilothouse.tools.bridges.host import Ask, HostCall, Ran, ToolHost
from pilothouse.tools.bridges.steps import Ledger, Step
from pilothouse.tools.xml.events import ToolCall, ToolCallError
from pilothouse.tools.xml.frames import Answer, results_content
from pilothouse.tools.xml.parser import StreamParser
from pilothouse.tools.xml.protocol import new_nonce, system_prompt
from pilothouse.tools.xml.replies import Reply, ReplyReader, lacks_suffix

# Where the text stands, in the events of a turn's begin and end.
_SAID: Final = {"UserPromptSubmit": "prompt", "Stop": "last_assistant_message"}


class XmlBridge:
    """One for each conversation.

    Args:
        host: runs the calls.
        max_turns: as the option; over all steps of a query.
    """

    is_declared_by_server: Final = False
    """Whether the CLI has to know the tools of an MCP server."""

    def __init__(self, host: ToolHost, max_turns: int | None = None) -> None:
        self.host = host
        self.nonce = new_nonce()
        self._max_turns = max_turns

    def system_prompt(self) -> str:
        """What the model has to know."""
        return system_prompt(self.host.offered, self.nonce)

    def attach(self, hook: Ask | None, permission: Ask | None) -> Ask | None:
        """A new child: who answers for it. Gives what has to answer for `hook`."""
        self.host.hook, self.host.permission = hook, permission
        return None if hook is None else self._between(hook)

    def _between(self, hook: Ask) -> Ask:
        """Hooks of the user do not hear of the turns that the CLI takes for whole, although calls are left."""

        async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            data: Any = body.get("input")
            if isinstance(data, Mapping):
                event = cast("Mapping[str, Any]", data)
                said = event.get(_SAID.get(str(event.get("hook_event_name")), ""))
                if isinstance(said, str) and f"-{self.nonce}>" in said:
                    return {}
            return await hook(body)

        return ask

    def steps(self) -> XmlSteps:
        """A query begins."""
        return XmlSteps(self, Ledger(self.host, self._max_turns))


class XmlSteps:
    """One query; see `Steps`."""

    def __init__(self, bridge: XmlBridge, ledger: Ledger) -> None:
        self._bridge = bridge
        self._ledger = ledger
        tools = bridge.host.offered
        self._was_told_suffix = False
        self._reader = ReplyReader(
            lambda: StreamParser(
                tools=tools, nonce=bridge.nonce, refuse_bare=bool(tools) and not self._was_told_suffix
            ),
            full_name=bridge.host.full_name,
        )
        self._reply = Reply()

    def read(self, batch: list[Message]) -> list[Message]:
        """The batch without the markup: calls are `ToolUseBlock`s, as of any tool."""
        read: list[Message] = []
        for message in batch:
            self._ledger.note(message)
            told = self._reader.rewrite(message)
            read += [self._closed(each) if isinstance(each, ResultMessage) else each for each in told]
        return read

    def _closed(self, result: ResultMessage) -> ResultMessage:
        if result.is_woken:
            return result
        self._reply = self._reader.end(result)
        self._was_told_suffix = self._was_told_suffix or lacks_suffix(self._reply)
        if self._reply.calls:  # what the CLI takes for an answer is a call
            return structs.replace(result, stop_reason=DEFERRED)
        return self._ledger.closing(result)

    async def go_on(self, result: ResultMessage) -> Step:
        """Run the calls in the answer; their results are the next user message."""
        reply, self._reply = self._reply, Reply()
        if not reply.calls:
            return Step()
        ran, messages = await self._ledger.run([self._call(each) for each in reply.calls], result)
        return Step(results_content(map(self._answer, ran), self._bridge.nonce) or None, messages)

    def _call(self, call: ToolCall | ToolCallError) -> HostCall:
        name = self._bridge.host.full_name(call.name or "")
        if isinstance(call, ToolCall):
            return HostCall(call.id, name, call.arguments)
        return HostCall(call.id, name, fault=call.message)

    def _answer(self, ran: Ran) -> Answer:
        return Answer(ran.call.id, self._bridge.host.short_name(ran.call.name), ran.result)
