"""The bridge `xml`: calls and results are text, without MCP and without the CLI's tools.

Owns the use of the protocol in a conversation: its rules in the system prompt, and the tool loop. `tools.xml` has the
protocol itself and reads replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import structs

from pilothouse.events import ToolCall, ToolCallError
from pilothouse.messages import Message, ResultMessage
from pilothouse.tools.bridges.deferred import TOOL_DEFERRED
from pilothouse.tools.bridges.executor import (
    InvocationResult,
    LoopStep,
    RequestCallback,
    ToolCallLog,
    ToolExecutor,
    ToolInvocation,
)
from pilothouse.tools.xml.framing import CallAnswer, results_content
from pilothouse.tools.xml.parser import StreamParser
from pilothouse.tools.xml.prompt import new_nonce, system_prompt
from pilothouse.tools.xml.reply_reader import ParsedReply, ReplyReader, has_missing_suffix

# The field that holds the text, in the hook events at the start and the end of a turn.
_TEXT_FIELDS: Final = {"UserPromptSubmit": "prompt", "Stop": "last_assistant_message"}


class XmlBridge:
    """The bridge of one conversation.

    Args:
        executor: runs the calls.
        max_turns: limit as in the option; counts all steps of a query.
    """

    is_declared_by_server: Final = False
    """Whether the CLI needs the tools declared by an MCP server."""

    def __init__(self, executor: ToolExecutor, max_turns: int | None = None) -> None:
        self.executor = executor
        self.nonce = new_nonce()
        self._max_turns = max_turns

    def system_prompt(self) -> str:
        """Make the part of the system prompt that explains the protocol and the tools."""
        return system_prompt(self.executor.available_tools, self.nonce)

    def bind_handlers(self, hook: RequestCallback | None, permission: RequestCallback | None) -> RequestCallback | None:
        """Set the handlers of a new child process. Returns the handler to use in place of `hook`."""
        self.executor.hook_handler, self.executor.permission_handler = hook, permission
        return None if hook is None else self._wrap_hook(hook)

    def _wrap_hook(self, hook: RequestCallback) -> RequestCallback:
        """Hide from user hooks the turn events that are part of a tool loop, whose text holds calls or results."""

        async def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            data: Any = body.get("input")
            if isinstance(data, Mapping):
                event = cast("Mapping[str, Any]", data)
                said = event.get(_TEXT_FIELDS.get(str(event.get("hook_event_name")), ""))
                if isinstance(said, str) and f"-{self.nonce}>" in said:
                    return {}
            return await hook(body)

        return ask

    def start_loop(self) -> XmlToolLoop:
        """Start the tool loop of a query."""
        return XmlToolLoop(self, ToolCallLog(self.executor, self._max_turns))


class XmlToolLoop:
    """The tool loop of one query; see `ToolLoop`."""

    def __init__(self, bridge: XmlBridge, call_log: ToolCallLog) -> None:
        self._bridge = bridge
        self._call_log = call_log
        tools = bridge.executor.available_tools
        self._knows_suffix = False
        self._reader = ReplyReader(
            lambda: StreamParser(tools=tools, nonce=bridge.nonce, refuse_bare=bool(tools) and not self._knows_suffix),
            full_name=bridge.executor.full_name,
        )
        self._reply = ParsedReply()

    def read(self, batch: list[Message]) -> list[Message]:
        """Take the markup out of a batch: calls become `ToolUseBlock`s, like those of any tool."""
        read: list[Message] = []
        for message in batch:
            self._call_log.observe(message)
            told = self._reader.rewrite(message)
            read += [self._finish_result(each) if isinstance(each, ResultMessage) else each for each in told]
        return read

    def _finish_result(self, result: ResultMessage) -> ResultMessage:
        if result.is_woken:
            return result
        self._reply = self._reader.end(result)
        self._knows_suffix = self._knows_suffix or has_missing_suffix(self._reply)
        if self._reply.calls:  # the CLI takes the calls for a final answer
            return structs.replace(result, stop_reason=TOOL_DEFERRED)
        return self._call_log.add_denials(result)

    async def next_step(self, result: ResultMessage) -> LoopStep:
        """Run the calls in the reply; their results are the next user message."""
        reply, self._reply = self._reply, ParsedReply()
        if not reply.calls:
            return LoopStep()
        ran, messages = await self._call_log.run([self._make_invocation(each) for each in reply.calls], result)
        return LoopStep(results_content(map(self._make_answer, ran), self._bridge.nonce) or None, messages)

    def _make_invocation(self, call: ToolCall | ToolCallError) -> ToolInvocation:
        name = self._bridge.executor.full_name(call.name or "")
        if isinstance(call, ToolCall):
            return ToolInvocation(call.id, name, call.input)
        return ToolInvocation(call.id, name, error=call.message)

    def _make_answer(self, ran: InvocationResult) -> CallAnswer:
        return CallAnswer(ran.invocation.id, self._bridge.executor.short_name(ran.invocation.name), ran.result)
