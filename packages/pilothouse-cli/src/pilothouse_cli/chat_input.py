"""What a person types in a conversation: lines of a terminal or a pipe, and answers to permission questions.

Owns the questions and the previews of tool calls. `chat_editor` has the line editor.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, Protocol, TypeVar

import anyio

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
from pilothouse.support import make_loop_caller
from pilothouse_cli.screen import Screen, Style, escape_invisible

T = TypeVar("T")

PROMPT = "> "
CONTINUATION = "\\"
READ_BYTES = 1 << 16


class CtrlC(Exception):  # noqa: N818 - not an error
    """Ctrl-C was pressed in an editor, where it arrives as a key instead of a signal."""


class ChatInput(Protocol):
    """The input of a person or a pipe."""

    async def read_prompt(self) -> str | None:
        """Return the next prompt; None at the end. Raises `CtrlC`."""
        ...

    def pause_prompt(self) -> AbstractAsyncContextManager[None]:
        """A block that owns the screen: a waiting prompt is removed, and restored later with its text."""
        ...

    async def ask(self, question: str) -> str | None:
        """Within `pause_prompt`: return the answer to `question`, ignoring text typed before it. None at the end."""
        ...

    @property
    def is_typed_in(self) -> bool:
        """Whether there is a line for an answer that is being written, and that is not sent yet."""
        ...

    async def finish_line(self) -> None:
        """Wait until such a line is sent or empty."""
        ...


class InterruptiblePrompt:
    """A prompt that other output can interrupt."""

    is_typed_in = False

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._prompt_scope: anyio.CancelScope | None = None
        self._interruptions = 0  # number of blocks that own the screen or wait for it

    async def read_interruptibly(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`, which is called again after each interruption."""
        while True:
            async with self._lock:  # first in, first out: the block that was waiting is next
                if not self._interruptions:
                    with anyio.CancelScope() as self._prompt_scope:
                        return await read()

    async def finish_line(self) -> None:
        """See `ChatInput`."""

    @asynccontextmanager
    async def pause_prompt(self) -> AsyncGenerator[None]:
        """See `ChatInput`."""
        self._interruptions += 1
        try:
            if self._prompt_scope is not None:
                self._prompt_scope.cancel()
            async with self._lock:
                yield
        finally:
            self._interruptions -= 1


class PipeInput(InterruptiblePrompt):
    """The lines of a pipe or a file: each one is a prompt, and nobody is asked."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._buffer = b""
        self._ended = False
        self._reader: _ReadThread | None = None

    async def read_prompt(self) -> str | None:
        """Return the next line; None at the end."""
        return await self.read_interruptibly(self._read_line)

    async def ask(self, question: str) -> str | None:
        """Return None: the next line is a prompt, not an answer."""
        return None

    async def _read_line(self) -> str | None:
        while b"\n" not in self._buffer and not self._ended:
            # An abandoned read continues; its data belongs to the next line.
            self._reader = self._reader or _ReadThread(self._fd)
            chunk = await self._reader.wait()
            self._reader = None
            self._buffer += chunk
            self._ended = not chunk
        line, newline, self._buffer = self._buffer.partition(b"\n")
        if not (line or newline):
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


class _ReadThread:
    """One read in a thread without a join: it may last until the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._call: Callable[[Callable[[], object]], None] = make_loop_caller()
        self._read_event = anyio.Event()
        self._data = b""
        threading.Thread(target=self._run, name="pilothouse chat input", daemon=True).start()

    def _run(self) -> None:
        try:
            self._data = os.read(self._fd, READ_BYTES)
        except OSError:
            self._data = b""  # the terminal is gone
        self._call(self._read_event.set)

    async def wait(self) -> bytes:
        await self._read_event.wait()
        return self._data


class Terminal:
    """The terminal of standard input, and its echo.

    Echo is off while an answer is written, so that the two do not mix; text typed then is kept for the next prompt.
    Does nothing on systems without termios.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._termios: Any = None
        self._saved_attributes: Any = None
        if sys.platform != "win32":
            import termios

            self._termios = termios

    def disable_echo(self) -> None:
        """Turn the echo off."""
        if self._termios is not None and self._saved_attributes is None:
            with suppress(self._termios.error):
                before = self._termios.tcgetattr(self._fd)
                quiet = [*before]
                quiet[3] &= ~self._termios.ECHO
                self._termios.tcsetattr(self._fd, self._termios.TCSANOW, quiet)
                self._saved_attributes = before

    def restore_echo(self) -> None:
        """Turn the echo on again."""
        before, self._saved_attributes = self._saved_attributes, None
        if before is not None:
            with suppress(self._termios.error):
                self._termios.tcsetattr(self._fd, self._termios.TCSANOW, before)

    @contextmanager
    def enable_echo(self) -> Generator[None]:
        """A block with the echo on."""
        was_disabled = self._saved_attributes is not None
        self.restore_echo()
        try:
            yield
        finally:
            if was_disabled:
                self.disable_echo()

    def discard_typed(self) -> None:
        """Discard typed text that was not read: it was meant for something else."""
        if self._termios is not None:
            with suppress(self._termios.error):
                self._termios.tcflush(self._fd, self._termios.TCIFLUSH)


StyledLine = tuple[str, Style]

MAX_LINES = 40  # of a preview; a command to approve should be visible in full
MAX_LINE_CHARS = 2000


def preview_call(request: PermissionRequest) -> list[StyledLine]:
    """Return the effect of the call, in lines."""
    show = _PREVIEWS.get(request.tool_name, _arguments)
    lines = [*show(request.tool_input)]
    for label, text in (("reason", request.reason), ("path", request.blocked_path)):
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
    others = {name: value for name, value in values.items() if name not in _SHOWN_WITH_COMMANDS}
    for line, _ in _arguments(others):
        yield f"# {line}", "warning"


_SHOWN_WITH_COMMANDS = frozenset({"command", "description", "run_in_background", "timeout"})
_SHOWN_WITH_FILES = frozenset({"content", "file_path", "new_source", "notebook_path"})


def _edit(values: Mapping[str, Any]) -> Iterable[StyledLine]:
    yield str(values.get("file_path", "")) + (" (every occurrence)" if values.get("replace_all") else ""), "title"
    before, after = (str(values.get(name, "")).splitlines() for name in ("old_string", "new_string"))
    for line in [*difflib.unified_diff(before, after, n=1, lineterm="")][2:]:
        if not line.startswith("@@"):
            yield line, _DIFF_STYLES.get(line[:1], "")


def _write(values: Mapping[str, Any]) -> Iterable[StyledLine]:
    content = str(values.get("content", values.get("new_source", "")))
    yield str(values.get("file_path", values.get("notebook_path", ""))), "title"
    for line, _ in _arguments({name: value for name, value in values.items() if name not in _SHOWN_WITH_FILES}):
        yield f"# {line}", "warning"
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

    `stop` is called when the user wants to stop the answer. The `lock` is held while writing to the screen; code that
    prints the answer takes it too.
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
        self.waited = 0.0  # seconds that people have taken for their answers

    async def can_use_tool(self, request: PermissionRequest) -> Allow | Deny:
        """Ask whether a call may run: once, for the session, or not at all."""
        call = (request.tool_name, json.dumps(request.tool_input, sort_keys=True))
        async with self._begin_question(request):
            if call in self._session_updates:
                return Allow()
            who = f" (sub-agent {request.agent_type or ''}".rstrip() + ")" if request.agent_id else ""
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
        keys = "o, s or d" if has_session else "o or d"
        while True:
            answer = await self._read_answer(question)
            first, _, rest = answer.strip().partition(" ")
            word = _PERMISSION_CHOICES.get(first.lower())
            if word is not None and (word != "session" or has_session) and (word == "deny" or not rest):
                return word, rest.strip()
            if first:
                self._screen.note(f"  {answer.strip()!a} is not an answer; type {keys}, or d and a reason", "warning")

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
        started = time.monotonic()
        try:
            answer = await self._input.ask(question)
        except CtrlC:
            answer = None
        finally:
            self.waited += time.monotonic() - started
        if answer is None:
            self._stop()
            await anyio.sleep_forever()  # until the CLI cancels the question, as it does after an interrupt
            raise AssertionError  # for the type checker
        return answer

    @asynccontextmanager
    async def _begin_question(self, request: PermissionRequest) -> AsyncGenerator[None]:
        await self._wait_until_printed(request.tool_use_id)
        async with self.lock:
            self._screen.end_text()
            self._screen.idle()
            if self._input.is_typed_in:  # else what is being typed could become the answer
                self._screen.note("? Claude has a question: first send your line (Enter) or clear it (Ctrl-U)", "title")
                await self._input.finish_line()
            async with self._input.pause_prompt():
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
