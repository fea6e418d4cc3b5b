"""Asks the user of a conversation for permissions, answers and plans, and previews tool calls."""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio

from pilothouse.cli.chat_input import ChatInput, CtrlC
from pilothouse.cli.screen import Screen, Style, escape_invisible
from pilothouse.permissions import (
    AddDirectories,
    AddRules,
    Allow,
    Answers,
    Deny,
    PermissionRequest,
    PermissionUpdate,
    PlanRequest,
    QuestionRequest,
    SetMode,
    UserQuestion,
)

StyledLine = tuple[str, Style]

MAX_LINES = 40  # of a preview; a command to approve should be visible in full
MAX_LINE_CHARS = 2000


def preview_call(request: PermissionRequest) -> list[StyledLine]:
    """Return the effect of the call, in lines."""
    show = _PREVIEWS.get(request.tool_name, _arguments)
    lines = [*show(request.tool_input)]
    for label, text in (("why asked", request.reason), ("path", request.blocked_path)):
        if text and not any(text in line for line, _ in lines):
            lines.append((f"{label}: {text}", "quiet"))
    return [(escape_invisible(line), style) for line, style in _shorten_lines(lines)]


def _shorten_lines(lines: list[StyledLine]) -> Iterable[StyledLine]:
    for text, style in lines[:MAX_LINES]:
        more = len(text) - MAX_LINE_CHARS
        yield (text if more <= 0 else f"{text[:MAX_LINE_CHARS]}… ({more} more characters)"), style
    if (left := len(lines) - MAX_LINES) > 0:
        yield f"… ({left} more lines)", "warning"


def _command(values: Mapping[str, Any]) -> Iterable[StyledLine]:
    lines = str(values.get("command", "")).split("\n")
    for number, line in enumerate(lines):
        yield ("$ " if number == 0 else "  ") + line, "tool"
    if values.get("description"):
        yield f"# {values['description']}", "quiet"
    if values.get("run_in_background"):
        yield "# in the background", "quiet"


def _edit(values: Mapping[str, Any]) -> Iterable[StyledLine]:
    yield str(values.get("file_path", "")) + (" (every occurrence)" if values.get("replace_all") else ""), "title"
    before, after = (str(values.get(name, "")).splitlines() for name in ("old_string", "new_string"))
    for line in [*difflib.unified_diff(before, after, n=1, lineterm="")][2:]:
        if not line.startswith("@@"):
            yield line, _DIFF_STYLES.get(line[:1], "")


def _write(values: Mapping[str, Any]) -> Iterable[StyledLine]:
    content = str(values.get("content", values.get("new_source", "")))
    yield str(values.get("file_path", values.get("notebook_path", ""))), "title"
    for line in content.splitlines():
        yield f"+{line}", "good"


def _arguments(values: Mapping[str, Any]) -> Iterable[StyledLine]:
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        first, *rest = text.split("\n")
        yield f"{name}: {first}", ""
        for line in rest:
            yield f"  {line}", ""


_DIFF_STYLES: dict[str, Style] = {"+": "good", "-": "error"}
_PREVIEWS: dict[str, Callable[[Mapping[str, Any]], Iterable[StyledLine]]] = {
    "Bash": _command,
    "Edit": _edit,
    "NotebookEdit": _write,
    "PowerShell": _command,
    "Write": _write,
}


def find_session_updates(request: PermissionRequest) -> list[PermissionUpdate]:
    """Return the CLI's suggested changes that allow more and can be described, limited to the session."""
    return [update.with_destination("session") for update in request.suggestions if _describe_update(update)]


def describe_updates(updates: Iterable[PermissionUpdate]) -> str:
    """Describe in a few words what these changes allow."""
    return escape_invisible(", ".join(filter(None, map(_describe_update, updates))))


def _describe_update(update: PermissionUpdate) -> str:
    match update:
        case AddRules(rules=rules, behavior="allow"):
            return ", ".join(map(str, rules))
        case SetMode(mode=mode):
            return f"mode {mode}"
        case AddDirectories(directories=directories):
            return "work in " + ", ".join(directories)
        case _:
            return ""


PermissionChoice = Literal["once", "session", "deny"]

_PERMISSION_CHOICES: dict[str, PermissionChoice] = {
    **dict.fromkeys(("o", "once", "y", "yes"), "once"),
    **dict.fromkeys(("s", "session", "a", "always"), "session"),
    **dict.fromkeys(("d", "deny", "n", "no"), "deny"),
}
_YES_WORDS = frozenset({"y", "yes", "a", "approve", "ok"})
_NO_WORDS = frozenset({"n", "no", "r", "reject"})


class TerminalPrompter:
    """Asks on the screen. Its methods are `can_use_tool`, `on_question` and `on_plan` of the session.

    Args:
        screen: the output of questions.
        chat_input: the input of answers.
        stop: called when the user wants to stop the answer.
        wait_until_printed: waits until everything before a tool call has been printed.

    Attributes:
        lock: held while writing to the screen; code that prints the answer takes it too.
    """

    def __init__(
        self,
        screen: Screen,
        chat_input: ChatInput,
        stop: Callable[[], object],
        wait_until_printed: Callable[[str], Awaitable[object]],
    ) -> None:
        self._screen = screen
        self._input = chat_input
        self._stop = stop
        self._wait_until_printed = wait_until_printed
        self._session_updates: set[tuple[str, str]] = set()
        self.lock = anyio.Lock()

    async def can_use_tool(self, request: PermissionRequest) -> Allow | Deny:
        """Ask whether a call may run: once, for the session, or not at all."""
        call = (request.tool_name, json.dumps(request.tool_input, sort_keys=True))
        async with self._begin_question(request):
            if call in self._session_updates:
                return Allow()
            who = " (a sub-agent)" if request.agent_id else ""
            self._screen.note(
                escape_invisible(f"? {request.display_name or request.tool_name}{who} needs permission"), "title"
            )
            for line, style in preview_call(request):
                self._screen.note(f"  {line}", style)
            updates = find_session_updates(request)
            offer = None if request.suppress_always_allow else describe_updates(updates) or "this very call"
            if offer is not None:
                self._screen.note(f"  for the session: {offer}", "quiet")
            word, reason = await self._read_decision(offer is not None)
        if word == "deny":
            return Deny(reason)
        if word == "once":
            return Allow()
        if not updates:
            self._session_updates.add(call)
        return Allow(updated_permissions=updates or None)

    async def _read_decision(self, has_session: bool) -> tuple[PermissionChoice, str]:
        """Return the decision and the reason that the user gave."""
        question = f"  [o]nce, {'for the [s]ession, ' if has_session else ''}[d]eny (d REASON tells why): "
        while True:
            answer = await self._read_answer(question)
            first, _, rest = answer.strip().partition(" ")
            word = _PERMISSION_CHOICES.get(first.lower())
            if word is not None and (word != "session" or has_session) and (word == "deny" or not rest):
                return word, rest.strip()

    async def on_question(self, request: QuestionRequest) -> Answers | bool:
        """Return the answers, in order; False if there are none."""
        async with self._begin_question(request.request):
            if request.title:
                self._screen.note(escape_invisible(f"? {request.title}"), "title")
            answers = [await self._read_choice(question) for question in request.questions]
        return answers if any(answer is not None for answer in answers) else False

    async def _read_choice(self, question: UserQuestion) -> str | list[str] | None:
        self._screen.note(escape_invisible(f"? {question.text}"), "title")
        for number, option in enumerate(question.options, start=1):
            about = f": {option.description}" if option.description else ""
            self._screen.note(escape_invisible(f"  {number}. {option.label}{about}"))
        if question.description:
            self._screen.note(escape_invisible(f"  {question.description}"), "quiet")
        how = "a number, or your own words" if question.options else question.kind
        if question.multi_select:
            how = "numbers such as 1,3, or your own words"
        typed = (await self._read_answer(f"  {how} (Enter: no answer): ")).strip()
        return parse_choice(typed, [option.label for option in question.options], several=question.multi_select)

    async def on_plan(self, request: PlanRequest) -> bool | str:
        """Return True if approved, False if rejected, or the changes to make."""
        async with self._begin_question(request.request):
            self._screen.note("? The plan:", "title")
            for line in request.plan.splitlines():
                self._screen.note(f"  {escape_invisible(line)}")
            typed = ""
            while not typed:
                typed = (await self._read_answer("  [a]pprove  [r]eject, or what to change: ")).strip()
        return typed.lower() in _YES_WORDS or (False if typed.lower() in _NO_WORDS else typed)

    async def _read_answer(self, question: str) -> str:
        try:
            answer = await self._input.ask(question)
        except CtrlC:
            answer = None
        if answer is None:
            self._stop()
            await anyio.sleep_forever()  # until the CLI cancels the question, as it does after an interrupt
            raise AssertionError  # for the type checker
        return answer

    @asynccontextmanager
    async def _begin_question(self, request: PermissionRequest) -> AsyncGenerator[None]:
        await self._wait_until_printed(request.tool_use_id)
        async with self.lock, self._input.pause_prompt():
            self._screen.end_text()
            self._screen.idle()
            yield
            self._screen.busy("waiting for the model")


def parse_choice(typed: str, labels: Sequence[str], *, several: bool) -> str | list[str] | None:
    """Return the choice for a typed text: labels by their numbers, a free text, or None."""
    if not typed:
        return None
    numbers = typed.replace(",", " ").split()
    picked = [labels[int(n) - 1] for n in numbers if n.isascii() and n.isdigit() and 0 < int(n) <= len(labels)]
    if len(picked) != len(numbers) or (len(picked) > 1 and not several):
        return typed
    return picked if several else picked[0]
