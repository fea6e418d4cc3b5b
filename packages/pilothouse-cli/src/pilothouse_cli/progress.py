"""Prints the progress of a run: text, tool calls, retries, costs and the summary line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio

from pilothouse.client import EventReader, QueryResult, TextReader
from pilothouse.events import (
    ApiRetry,
    QueryEvent,
    RetryScheduled,
    Stalled,
    TextRetracted,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    WaitingForLimit,
)
from pilothouse.messages import (
    ApiRetryMessage,
    AssistantMessage,
    InitMessage,
    Message,
    ToolResultBlock,
    ToolUseBlock,
)
from pilothouse_cli.screen import Screen, escape_invisible

# The most informative argument of a call, for tools of Claude Code and many others.
_DESCRIPTIVE_INPUTS = (
    "command", "file_path", "notebook_path", "path", "pattern", "query", "url", "prompt", "description"
)  # fmt: skip
_MAX_SHOWN_CHARS = 100  # of a tool's input or result


class ProgressPrinter:
    """Prints one run, message by message: the answer as it is written if `text`, and `thinking` if wanted."""

    def __init__(
        self, screen: Screen, redact: Callable[[str], str], *, text: bool = True, thinking: bool = False
    ) -> None:
        self._screen = screen
        self._redact = redact
        self._is_text_printed = text
        self._is_thinking_printed = thinking
        self._events = EventReader()
        self._texts = TextReader()
        self.has_printed_text = False
        self.finished_tools: list[ToolCallFinished] = []
        self.init: InitMessage | None = None

    def print_message(self, message: Message) -> None:
        """Print what a message adds."""
        if isinstance(message, AssistantMessage) and (message.is_api_error_message or message.error):
            return  # a text of the CLI because the API failed; the final error reports it
        if isinstance(message, InitMessage):
            self.init = message
        for event in self._events.read(message):
            if self._is_text_printed and (piece := self._texts.read_event(event)):
                self.has_printed_text = True
                self._screen.text(piece)
            self._print_event(event)

    def print_end(self, result: QueryResult, *, free: bool = False) -> None:
        """Print what closes a successful run: an answer without a message, denied tools, and the summary."""
        if self._is_text_printed and not self.has_printed_text and result.text:
            # Commands such as /cost answer without a message of the model.
            self._screen.text(result.text)
            self._screen.end_text()
        if (denials := format_denials(result)) is not None:
            self._screen.note(denials, "warning")
        model = f"{self.init.model}: " if self.init is not None and not free else ""
        self._screen.note(model + format_summary(result, free=free), "quiet")

    def _print_event(self, event: QueryEvent) -> None:
        match event:
            case ThinkingDelta(text=text, agent=None) if self._is_thinking_printed:
                self._screen.thought(text)
            case TextRetracted(agent=None) if self._is_text_printed:
                self._screen.note("the stream broke off; the answer is repeated from that point", "warning")
            case ToolCallStarted(tool_use=call, agent=agent):
                self._print_tool_started(call, agent)
            case ToolCallFinished():
                self._print_tool_finished(event)
            case ApiRetry(message=message):
                self._screen.note(format_retry(message), "warning")
                self._screen.busy("waiting for the API")
            case RetryScheduled(attempt=attempt, of=of, delay=delay):
                self._screen.note(f"{shorten_text(event.error)}; try {attempt} of {of} in {delay:.0f} s", "warning")
                self._screen.busy("waiting to try again")
            case WaitingForLimit(seconds=seconds):
                self._screen.note(f"{shorten_text(event.error)}; waiting {seconds:.0f} s for the limit", "warning")
                self._screen.busy("waiting for the limit")
            case Stalled(seconds=seconds, limit=limit):
                self._screen.note(f"no output for {seconds:g} s; the query ends after {limit:g} s", "warning")
            case _:
                return

    def _print_tool_started(self, call: ToolUseBlock, agent: str | None) -> None:
        self._screen.end_text()
        self._screen.idle()
        self._screen.note(f"{_indent(agent)}> {self._describe_call(call)}", "tool")
        self._screen.busy(f"running {call.name}")

    def _describe_call(self, call: ToolUseBlock) -> str:
        return f"{call.name}: {shorten_text(self._redact(format_tool_input(call.input)))}"

    def _print_tool_finished(self, event: ToolCallFinished) -> None:
        self.finished_tools.append(event)
        self._screen.idle()
        name = event.tool_use.name if event.tool_use is not None else "tool"
        word, style = ("error", "error") if event.result.is_error else ("ok", "good")
        text = format_tool_result(event.result, self._redact)
        self._screen.note(f"{_indent(event.agent)}  {name} {word}{': ' if text else ''}{text}", style)
        self._screen.busy("waiting for the model")


def _indent(agent: str | None) -> str:
    return "" if agent is None else "    "


def format_tool_input(values: Mapping[str, Any]) -> str:
    """Format the input of a tool in a few words: its questions or most informative argument, else all of it as JSON."""
    questions: Any = values.get("questions")
    if isinstance(questions, list):
        asked = [str(each["question"]) for each in cast("list[Any]", questions) if _has_question(each)]
        return " ".join(asked)
    for name in _DESCRIPTIVE_INPUTS:
        if isinstance(values.get(name), str):
            return str(values[name])
    return json.dumps(values, ensure_ascii=False, default=str) if values else ""


def _has_question(value: Any) -> bool:
    return isinstance(value, dict) and "question" in value


def format_tool_result(result: ToolResultBlock, redact: Callable[[str], str]) -> str:
    """Return the first line of a result, and the number of lines."""
    lines = [line for line in redact(result.text).splitlines() if line.strip()]
    if not lines:
        return ""
    rest = len(lines) - 1
    more = f" (+{rest} line{'s' if rest > 1 else ''})" if rest else ""
    return shorten_text(lines[0]) + more


def shorten_text(text: str) -> str:
    """Return `text` on one line, cut to a readable length."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"


def format_retry(message: ApiRetryMessage) -> str:
    """Describe a failed request, and when it is tried again."""
    when = f"trying again in {message.retry_delay_ms / 1000:.1f} s"
    return f"{message.describe()}; {when} ({message.attempt} of {message.max_retries})"


def format_summary(result: QueryResult, *, free: bool = False, session: bool = True) -> str:
    """Format turns, cost, time and session of a run, on one line; its id is left out unless it can be resumed.

    A `free` run costs nothing: the CLI computes the cost of the model that it believes to use.
    """
    counted = "cost unknown" if result.cost_usd is None else f"${result.cost_usd:.4f}"
    cost = f"nothing spent (Claude Code counts {counted})" if free else counted
    turns = f"{result.turns} turn" + ("" if result.turns == 1 else "s")
    parts = [turns, cost, f"{result.duration_ms / 1000:.1f} s"]
    if session and result.session_id:
        parts.append(f"session {result.session_id}")
    return ", ".join(parts)


def format_denials(result: QueryResult) -> str | None:
    """Return which tools were not permitted, and what to do; None if there were none."""
    names = sorted({denial.tool_name for denial in result.permission_denials})
    if not names:
        return None
    return f"denied: {', '.join(names)}; allow with --allowed-tools or --permission-mode"


CATCH_UP_SECONDS = 0.5
"""Seconds that a question waits for the text before it; a call of a sub-agent may never be printed."""


class ChatProgressPrinter(ProgressPrinter):
    """Prints one answer. Parameters as for `ProgressPrinter`."""

    def __init__(self, screen: Screen, redact: Callable[[str], str], *, thinking: bool = False) -> None:
        super().__init__(screen, redact, thinking=thinking)
        self._started_at: dict[str, float] = {}
        self._denied: set[str] = set()
        self._printed_events: dict[str, anyio.Event] = {}

    async def wait_until_printed(self, tool_use_id: str) -> None:
        """Wait until this call has been printed, and with it all output before."""
        with anyio.move_on_after(CATCH_UP_SECONDS):
            await self._printed_events.setdefault(tool_use_id, anyio.Event()).wait()

    def record_decision(self, tool_use_id: str, *, denied: bool) -> None:
        """Record that the user was asked about a call: it starts only now, or not at all."""
        self._started_at[tool_use_id] = time.monotonic()
        if denied:
            self._denied.add(tool_use_id)

    def _print_tool_started(self, call: ToolUseBlock, agent: str | None) -> None:
        self._started_at[call.id] = time.monotonic()
        self._printed_events.setdefault(call.id, anyio.Event()).set()
        self._screen.end_text()
        self._screen.busy(escape_invisible(self._describe_call(call)))

    def _print_tool_finished(self, event: ToolCallFinished) -> None:
        self.finished_tools.append(event)
        self._screen.end_text()
        self._screen.idle()
        begun = self._started_at.pop(event.result.tool_use_id, None)
        seconds = "" if begun is None else f", {time.monotonic() - begun:.1f} s"
        named = escape_invisible(self._describe_call(event.tool_use)) if event.tool_use is not None else "a tool"
        head = f"{_indent(event.agent)}> {named}"
        if event.result.tool_use_id in self._denied:
            self._screen.note(f"{head} (denied)", "warning")
        elif event.result.is_error:
            why = escape_invisible(format_tool_result(event.result, self._redact))
            self._screen.note(f"{head} (failed{seconds}){': ' if why else ''}{why}", "error")
        else:
            self._screen.note(f"{head} (ok{seconds})", "tool")
        self._screen.busy("waiting for the model")


class ChatCosts:
    """The costs of a conversation's answers so far. If `is_free`, the CLI has counted for another model."""

    def __init__(self, *, is_free: bool = False) -> None:
        self._is_free = is_free
        self._turns: list[tuple[float | None, int, int, float]] = []  # dollars, tokens in and out, seconds

    def add(self, result: QueryResult, waited: float = 0.0) -> None:
        """Add one answer; for `waited` of its seconds it has waited for a person."""
        usage = result.usage
        tokens_in, tokens_out = (0, 0) if usage is None else (usage.total_input_tokens, usage.output_tokens)
        seconds = max(0.0, result.duration_ms / 1000 - waited)
        self._turns.append((result.cost_usd, tokens_in, tokens_out, seconds))

    def format_last(self) -> str:
        """Format the cost of the last answer."""
        return self._format_cost(*self._turns[-1]) if self._turns else "no answers yet"

    def format_all(self) -> list[str]:
        """Format the cost of every answer, and the total."""
        if not self._turns:
            return [self.format_last()]
        rows = [f"{number:>3}. {self._format_cost(*turn)}" for number, turn in enumerate(self._turns, start=1)]
        dollars, tokens_in, tokens_out, seconds = zip(*self._turns, strict=True)
        known = [usd for usd in dollars if usd is not None]
        total = (sum(known) if known else None, sum(tokens_in), sum(tokens_out), sum(seconds))
        return [*rows, f"all: {self._format_cost(*total)}"]

    def _format_cost(self, usd: float | None, tokens_in: int, tokens_out: int, seconds: float) -> str:
        counted = "cost unknown" if usd is None else f"${usd:.4f}"
        paid = f"nothing spent (Claude Code counts {counted})" if self._is_free else counted
        return f"{paid}, {tokens_in:,} tokens in, {tokens_out:,} out, {seconds:.1f} s"
