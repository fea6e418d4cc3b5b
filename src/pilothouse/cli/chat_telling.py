"""How an answer of a conversation is told: as `telling`, with one line for a tool run, and what a turn has cost.

Takes messages and writes to a screen. Pure but for that and a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from pilothouse.cli.chat_preview import visible
from pilothouse.cli.screen import Screen
from pilothouse.cli.telling import Telling, brief_input, brief_result, shorten
from pilothouse.client import QueryResult, ToolFinished
from pilothouse.messages import ToolUseBlock

CATCH_UP_S = 0.5
"""How long a question waits for the text before it; a call of a sub-agent may never be told."""


class ChatTelling(Telling):
    """Tells one answer. Parameters as for `Telling`."""

    def __init__(self, screen: Screen, redact: Callable[[str], str], *, thinking: bool = False) -> None:
        super().__init__(screen, redact, thinking=thinking)
        self._begun: dict[str, float] = {}
        self._denied: set[str] = set()
        self._told: dict[str, anyio.Event] = {}

    async def caught_up(self, tool_use_id: str) -> None:
        """Wait until this call has been told, and with it all that was said before."""
        with anyio.move_on_after(CATCH_UP_S):
            await self._told.setdefault(tool_use_id, anyio.Event()).wait()

    def decided(self, tool_use_id: str, *, denied: bool) -> None:
        """Its user was asked about a call: it begins to run only now, or not at all."""
        self._begun[tool_use_id] = time.monotonic()
        if denied:
            self._denied.add(tool_use_id)

    def _start_tool(self, call: ToolUseBlock, agent: str | None) -> None:
        self._begun[call.id] = time.monotonic()
        self._told.setdefault(call.id, anyio.Event()).set()
        self._screen.end_text()
        self._screen.busy(self._named(call))

    def _named(self, call: ToolUseBlock) -> str:
        return visible(f"{call.name}: {shorten(self._redact(brief_input(call.input)))}")

    def _finish_tool(self, event: ToolFinished) -> None:
        self.finished_tools.append(event)
        self._screen.end_text()
        self._screen.idle()
        begun = self._begun.pop(event.result.tool_use_id, None)
        seconds = "" if begun is None else f", {time.monotonic() - begun:.1f} s"
        named = self._named(event.tool_use) if event.tool_use is not None else "a tool"
        indent = "" if event.agent is None else "    "
        if event.result.tool_use_id in self._denied:
            self._screen.note(f"{indent}> {named} (denied)", "warning")
        elif event.result.is_error:
            why = visible(brief_result(event.result, self._redact))
            self._screen.note(f"{indent}> {named} (failed{seconds}){': ' if why else ''}{why}", "error")
        else:
            self._screen.note(f"{indent}> {named} (ok{seconds})", "tool")
        self._screen.busy("waiting for the model")


@dataclass(slots=True)
class Spent:
    """What the answers of a conversation have cost so far.

    Attributes:
        free: nobody is paid: the CLI counts what the model it believes to talk to would cost.
    """

    free: bool = False
    turns: list[Cost] = field(default_factory=list["Cost"])

    def add(self, result: QueryResult) -> None:
        """One more answer."""
        usage = result.usage
        tokens = (0, 0) if usage is None else (usage.total_input_tokens, usage.output_tokens)
        self.turns.append(Cost(result.cost_usd, *tokens, result.duration_ms / 1000))

    def last_line(self) -> str:
        """The last answer, in words."""
        return self._told(self.turns[-1]) if self.turns else "nothing was asked yet"

    def lines(self) -> list[str]:
        """Every answer, and all together."""
        if not self.turns:
            return [self.last_line()]
        rows = [f"{number:>3}. {self._told(cost)}" for number, cost in enumerate(self.turns, start=1)]
        known = [cost.usd for cost in self.turns if cost.usd is not None]
        total = Cost(
            sum(known) if known else None,
            sum(cost.tokens_in for cost in self.turns),
            sum(cost.tokens_out for cost in self.turns),
            sum(cost.seconds for cost in self.turns),
        )
        return [*rows, f"all: {self._told(total)}"]

    def _told(self, cost: Cost) -> str:
        counted = "cost unknown" if cost.usd is None else f"${cost.usd:.4f}"
        paid = f"nothing spent (Claude Code counts {counted})" if self.free else counted
        return f"{paid}, {cost.tokens_in:,} tokens in, {cost.tokens_out:,} out, {cost.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one answer, or of several: dollars as the CLI counts them, tokens, seconds."""

    usd: float | None
    tokens_in: int
    tokens_out: int
    seconds: float
