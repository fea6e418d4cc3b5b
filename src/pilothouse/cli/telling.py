"""How a run is told to a person: the answer as it is written, and beside it tools, retries and the closing line.

Takes messages and writes to a screen. Starts nothing, and decides nothing about exit codes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pilothouse.cli.screen import Screen
from pilothouse.client import (
    AnswerEvent,
    QueryResult,
    Retrying,
    RetryScheduled,
    Stalled,
    TextWithdrawn,
    ThinkingAdded,
    ToolFinished,
    ToolStarted,
    WaitingForLimit,
)
from pilothouse.client.events import EventReader, TextReader
from pilothouse.messages import (
    ApiRetryMessage,
    AssistantMessage,
    InitMessage,
    Message,
    MessageDelta,
    StreamEvent,
    ToolResultBlock,
    ToolUseBlock,
)

# The argument that says most about a call, of the tools of Claude Code and of many others.
_TELLING_INPUTS = ("command", "file_path", "notebook_path", "path", "pattern", "query", "url", "prompt", "description")
_SHOWN_CHARS = 100  # of a tool's input or result

CUT_NOTE = "the answer was cut here: the embedded model may not say more in one go"


class Telling:
    """Tells one run, message by message.

    Args:
        screen: where to.
        redact: takes keys out of a text.
        text: whether the answer is told while it is written.
        thinking: whether the model's thinking is told.
    """

    def __init__(
        self, screen: Screen, redact: Callable[[str], str], *, text: bool = True, thinking: bool = False
    ) -> None:
        self._screen = screen
        self._redact = redact
        self._tells_text = text
        self._tells_thinking = thinking
        self._events = EventReader()
        self._texts = TextReader()
        self.told_text = False
        self.finished_tools: list[ToolFinished] = []
        self.init: InitMessage | None = None

    def tell(self, message: Message) -> None:
        """Tell what a message adds."""
        if isinstance(message, AssistantMessage) and (message.is_api_error_message or message.error):
            return  # the CLI speaks in the model's place because the API failed; the closing error says it
        if isinstance(message, InitMessage):
            self.init = message
        if self._tells_text:
            for piece in self._texts.read(message):
                self.told_text = True
                self._screen.text(piece)
        for event in self._events.read(message):
            self._tell_event(event)

    def _tell_event(self, event: AnswerEvent) -> None:
        match event:
            case ThinkingAdded(text=text, agent=None) if self._tells_thinking:
                self._screen.thought(text)
            case TextWithdrawn(agent=None) if self._tells_text:
                self._screen.note("the stream broke; the answer is told again from there", "warning")
            case ToolStarted(tool_use=call, agent=agent):
                self._start_tool(call, agent)
            case ToolFinished():
                self._finish_tool(event)
            case Retrying(message=message):
                self._screen.note(retry_line(message), "warning")
                self._screen.busy("waiting for the API")
            case RetryScheduled(attempt=attempt, of=of, delay=delay):
                self._screen.note(f"{shorten(event.error)}; try {attempt} of {of} in {delay:.0f} s", "warning")
                self._screen.busy("waiting to try again")
            case WaitingForLimit(seconds=seconds):
                self._screen.note(f"{shorten(event.error)}; waiting {seconds:.0f} s for the limit", "warning")
                self._screen.busy("waiting for the limit")
            case Stalled(seconds=seconds, limit=limit):
                self._screen.note(f"nothing was heard for {seconds:g} s; the query ends after {limit:g} s", "warning")
            case _:
                return

    def _start_tool(self, call: ToolUseBlock, agent: str | None) -> None:
        self._screen.end_text()
        self._screen.idle()
        self._screen.note(f"{_indent(agent)}> {call.name}: {self._brief_input(call)}", "tool")
        self._screen.busy(f"running {call.name}")

    def _brief_input(self, call: ToolUseBlock) -> str:
        return shorten(self._redact(brief_input(call.input)))

    def _finish_tool(self, event: ToolFinished) -> None:
        self.finished_tools.append(event)
        self._screen.idle()
        name = event.tool_use.name if event.tool_use is not None else "tool"
        word, style = ("error", "error") if event.result.is_error else ("ok", "good")
        text = brief_result(event.result, self._redact)
        self._screen.note(f"{_indent(event.agent)}  {name} {word}{': ' if text else ''}{text}", style)
        self._screen.busy("waiting for the model")


def _indent(agent: str | None) -> str:
    return "" if agent is None else "    "


def brief_input(values: Mapping[str, Any]) -> str:
    """The input of a tool in a few words: its most telling argument, else all of it as JSON."""
    for name in _TELLING_INPUTS:
        if isinstance(values.get(name), str):
            return str(values[name])
    return json.dumps(values, ensure_ascii=False, default=str) if values else ""


def brief_result(result: ToolResultBlock, redact: Callable[[str], str]) -> str:
    """The first line of a result, and how many lines there are."""
    lines = [line for line in redact(result.text).splitlines() if line.strip()]
    if not lines:
        return ""
    rest = len(lines) - 1
    more = f" (+{rest} line{'s' if rest > 1 else ''})" if rest else ""
    return shorten(lines[0]) + more


def shorten(text: str) -> str:
    """`text` on one line, cut to a readable length."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def retry_line(message: ApiRetryMessage) -> str:
    """A failed try in words."""
    status = f"HTTP {message.error_status}" if message.error_status else message.error or "no connection"
    return (
        f"the API failed ({status}); try {message.attempt} of {message.max_retries} "
        f"in {message.retry_delay_ms / 1000:.1f} s"
    )


def closing_line(result: QueryResult, *, free: bool = False, session: bool = True) -> str:
    """Turns, cost, time and session of a run, on one line.

    Args:
        result: the run.
        free: nobody is paid: the CLI counts what the model it believes to talk to would cost.
        session: whether the session can be resumed, so that its id is worth telling.
    """
    counted = "cost unknown" if result.cost_usd is None else f"${result.cost_usd:.4f}"
    cost = f"nothing spent (Claude Code counts {counted})" if free else counted
    turns = f"{result.turns} turn" + ("" if result.turns == 1 else "s")
    parts = [turns, cost, f"{result.duration_ms / 1000:.1f} s"]
    if session and result.session_id:
        parts.append(f"session {result.session_id}")
    return ", ".join(parts)


def is_cut(message: Message) -> bool:
    """Whether the model stopped because it may not say more; Claude Code then asks it to go on, up to three times."""
    event = message.event if isinstance(message, StreamEvent) else None
    return isinstance(event, MessageDelta) and event.delta.stop_reason == "max_tokens"


def denials_line(result: QueryResult) -> str | None:
    """Which tools were not permitted, and what to do; None if there were none."""
    names = sorted({denial.tool_name for denial in result.permission_denials})
    if not names:
        return None
    return f"not permitted: {', '.join(names)}; permit with --allowed-tools or --permission-mode"
