"""What a conversation asks its user in the middle of an answer: permission, questions of the model, a plan.

Owns the words of the questions and what an answer means; one question at a time. Where the answer comes from, `Lines`
knows; what the CLI gets for it, `pilothouse.permissions`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio

from pilothouse.cli.chat_lines import CtrlC, Lines
from pilothouse.cli.chat_preview import for_the_session, meaning_of, preview, visible
from pilothouse.cli.screen import Screen
from pilothouse.permissions import (
    Allow,
    Answers,
    Deny,
    PermissionRequest,
    PlanRequest,
    QuestionRequest,
    UserQuestion,
)

Word = Literal["once", "session", "deny"]

_WORDS: dict[str, Word] = {
    **dict.fromkeys(("o", "once", "y", "yes"), "once"),
    **dict.fromkeys(("s", "session", "a", "always"), "session"),
    **dict.fromkeys(("d", "deny", "n", "no"), "deny"),
}
_YES = frozenset({"y", "yes", "a", "approve", "ok"})
_NO = frozenset({"n", "no", "r", "reject"})


class Asker:
    """Asks on the screen. Its methods are `can_use_tool`, `on_question` and `on_plan` of the session.

    Args:
        screen: where questions are shown.
        lines: where answers come from.
        stop: called when the user would rather stop the answer.
        caught_up: waits until what came before a tool call has been told.

    Attributes:
        floor: held while somebody writes to the screen: whoever tells the answer takes it too.
    """

    def __init__(
        self, screen: Screen, lines: Lines, stop: Callable[[], object], caught_up: Callable[[str], Awaitable[object]]
    ) -> None:
        self._screen = screen
        self._lines = lines
        self._stop = stop
        self._caught_up = caught_up
        self._remembered: set[tuple[str, str]] = set()
        self.floor = anyio.Lock()

    async def can_use_tool(self, request: PermissionRequest) -> Allow | Deny:
        """Once, for the session, or not at all."""
        call = (request.tool_name, json.dumps(request.tool_input, sort_keys=True))
        async with self._asking(request):
            if call in self._remembered:
                return Allow()
            who = " (a sub-agent)" if request.agent_id else ""
            self._screen.note(visible(f"? {request.display_name or request.tool_name}{who} needs permission"), "title")
            for line, style in preview(request):
                self._screen.note(f"  {line}", style)
            updates = for_the_session(request)
            offer = None if request.suppress_always_allow else meaning_of(updates) or "this very call"
            if offer is not None:
                self._screen.note(f"  for the session: {offer}", "quiet")
            word, reason = await self._decision(offer is not None)
        if word == "deny":
            return Deny(reason)
        if word == "once":
            return Allow()
        if not updates:
            self._remembered.add(call)
        return Allow(updated_permissions=updates or None)

    async def _decision(self, has_session: bool) -> tuple[Word, str]:
        """A word, and the reason that was given with it."""
        question = f"  [o]nce, {'for the [s]ession, ' if has_session else ''}[d]eny (d REASON tells why): "
        while True:
            answer = await self._answer(question)
            first, _, rest = answer.strip().partition(" ")
            word = _WORDS.get(first.lower())
            if word is not None and (word != "session" or has_session) and (word == "deny" or not rest):
                return word, rest.strip()

    async def on_question(self, request: QuestionRequest) -> Answers | bool:
        """The answers, in order; False if there is none at all."""
        async with self._asking(request.request):
            if request.title:
                self._screen.note(visible(f"? {request.title}"), "title")
            answers = [await self._choice(question) for question in request.questions]
        return answers if any(answer is not None for answer in answers) else False

    async def _choice(self, question: UserQuestion) -> str | list[str] | None:
        self._screen.note(visible(f"? {question.text}"), "title")
        for number, option in enumerate(question.options, start=1):
            about = f": {option.description}" if option.description else ""
            self._screen.note(visible(f"  {number}. {option.label}{about}"))
        if question.description:
            self._screen.note(visible(f"  {question.description}"), "quiet")
        how = "a number, or your own words" if question.options else question.kind
        if question.multi_select:
            how = "numbers such as 1,3, or your own words"
        typed = (await self._answer(f"  {how} (Enter: no answer): ")).strip()
        return chosen(typed, [option.label for option in question.options], several=question.multi_select)

    async def on_plan(self, request: PlanRequest) -> bool | str:
        """Approved, rejected, or what to change."""
        async with self._asking(request.request):
            self._screen.note("? The plan:", "title")
            for line in request.plan.splitlines():
                self._screen.note(f"  {visible(line)}")
            typed = ""
            while not typed:
                typed = (await self._answer("  [a]pprove  [r]eject, or what to change: ")).strip()
        return typed.lower() in _YES or (False if typed.lower() in _NO else typed)

    async def _answer(self, question: str) -> str:
        try:
            answer = await self._lines.answer(question)
        except CtrlC:
            answer = None
        if answer is None:
            self._stop()
            await anyio.sleep_forever()  # until the CLI takes the question back, as it does when it is interrupted
            raise AssertionError  # for the type checker
        return answer

    @asynccontextmanager
    async def _asking(self, request: PermissionRequest) -> AsyncGenerator[None]:
        await self._caught_up(request.tool_use_id)
        async with self.floor, self._lines.aside():
            self._screen.end_text()
            self._screen.idle()
            yield
            self._screen.busy("waiting for the model")


def chosen(typed: str, labels: Sequence[str], *, several: bool) -> str | list[str] | None:
    """What was chosen by what was typed: labels by their numbers, a text of one's own, or nothing."""
    if not typed:
        return None
    numbers = typed.replace(",", " ").split()
    picked = [labels[int(n) - 1] for n in numbers if n.isascii() and n.isdigit() and 0 < int(n) <= len(labels)]
    if len(picked) != len(numbers) or (len(picked) > 1 and not several):
        return typed
    return picked if several else picked[0]
