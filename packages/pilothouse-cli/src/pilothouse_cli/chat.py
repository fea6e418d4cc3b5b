"""`pilothouse chat`: a conversation in a terminal or from a pipe, with its slash commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import anyio

from pilothouse.client import ModelInfo, Query, QueryResult, Session, default_agent
from pilothouse.client.controls import to_results
from pilothouse.errors import AuthenticationError, CLIExitedError, Interrupted, PilothouseError, UsageError
from pilothouse.messages import InitMessage, ResultMessage
from pilothouse.options import Options, Settings
from pilothouse.permissions import Deny, PermissionMode, PermissionRequest
from pilothouse.support import Redactor, find_similar_name, secret_values
from pilothouse_cli.ask import make_run_options
from pilothouse_cli.chat_editor import STEERING_PROMPT, EditorInput
from pilothouse_cli.chat_input import PROMPT, ChatInput, CtrlC, PipeInput, Terminal, TerminalPrompter
from pilothouse_cli.chat_logins import (
    ACCOUNTS,
    LOGIN_COMMAND,
    MCP_ACTIONS,
    handle_mcp,
    list_needed_logins,
    log_in_to_claude,
)
from pilothouse_cli.failures import (
    describe_failure,
    explain_failure,
    explain_missing_key,
    get_own_command,
    report_failure,
)
from pilothouse_cli.flags import ChatRequest
from pilothouse_cli.install import LOCAL_MODEL_NAME, apply_local_model
from pilothouse_cli.markdown_view import MarkdownView
from pilothouse_cli.progress import ChatCosts, ChatProgressPrinter, format_denials, shorten_text
from pilothouse_cli.screen import Screen, Style, escape_invisible
from pilothouse_cli.terminal import SIGNAL_BASE, forward_signals

LOCAL_CHAT = "chat --local"

_DEVELOPER_COMMANDS = frozenset({"heapdump"})
_LEAVING_COMMANDS = ("exit", "quit")
# A path such as /etc/hosts is not a command.
_COMMAND_LINE = re.compile(r"/([\w:.-]+)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One slash command, which `run` executes with the text after its name; `values` completes its argument."""

    usage: str
    help: str
    run: Callable[[Chat, str], Awaitable[None]]
    values: Callable[[Session], Iterable[str]] = lambda _: ()


def split_command(line: str) -> tuple[str, str] | None:
    """Return the name of a command and the text after it; None for other lines."""
    match = _COMMAND_LINE.fullmatch(line.strip())
    return None if match is None else (match[1].lower(), (match[2] or "").strip())


async def run_command(chat: Chat, line: str) -> str | None:
    """Execute a slash command; return a prompt, or a command of Claude Code, to be sent, else None."""
    asked = split_command(line)
    if asked is None:
        return line
    name, rest = asked
    if (command := CHAT_COMMANDS.get(name)) is not None:
        await command.run(chat, rest)
        return None
    theirs = [*_list_cli_commands(chat.session)]
    if name in (known.lower() for known, _ in theirs):
        return line.strip()
    near = find_similar_name(name, [*CHAT_COMMANDS, *(known for known, _ in theirs)], 0.5)
    hint = f"; did you mean /{near}?" if near else ""
    raise UsageError(escape_invisible(f"there is no command /{name}{hint} (/help lists them)"))


def complete_input(session: Session, before: str) -> Iterator[tuple[str, str]]:
    """Yield completions of the last word of `before`, with their descriptions."""
    if not before.startswith("/"):
        return
    name, space, rest = before[1:].partition(" ")
    if not space:
        rows = [(known, command.help) for known, command in CHAT_COMMANDS.items()]
        yield from (
            (f"/{known}", shorten_text(about))
            for known, about in [*rows, *_list_cli_commands(session)]
            if known.startswith(name)
        )
    elif " " not in rest and name in CHAT_COMMANDS:
        yield from ((value, "") for value in CHAT_COMMANDS[name].values(session) if value.startswith(rest))


def _list_cli_commands(session: Session) -> Iterator[tuple[str, str]]:
    """Yield the commands of Claude Code that pilothouse does not have, with their descriptions."""
    for command in session.info.commands():
        for name in (command.name, *command.aliases):
            if name and name not in CHAT_COMMANDS:
                yield name, command.description


async def _help(chat: Chat, rest: str) -> None:
    rows = [
        (f"/{name} {command.usage}".rstrip(), command.help) for name, command in CHAT_COMMANDS.items() if command.help
    ]
    width = max(len(row[0]) for row in rows)
    for what, about in rows:
        chat.print_line(f"  {what:<{width}}  {about}")
    theirs = sorted({f"/{name}" for name, about in _list_cli_commands(chat.session) if _is_for_people(name, about)})
    if theirs:
        chat.print_paragraph(f"Claude Code's own: {' '.join(theirs)}")
    chat.print_paragraph(
        "Alt-Enter, or a backslash at the end of a line, starts a new line. Ctrl-C stops the answer. Ctrl-D leaves."
    )
    if chat.takes_words:
        chat.print_paragraph(
            "You can type while Claude works: it reads what you send before its next step. /queue TEXT keeps the text "
            "as your next prompt."
        )


def _is_for_people(name: str, description: str) -> bool:
    """Whether a command of Claude Code is worth a place in `/help`; all of them work."""
    return bool(description) and not name.startswith("_") and name not in _DEVELOPER_COMMANDS


async def _model(chat: Chat, rest: str) -> None:
    if rest:
        if (near := _resolve_model(rest, [model.value for model in _list_models(chat.session)])) is not None:
            raise UsageError(escape_invisible(f"there is no model {rest!r}; did you mean {near}? (/model lists them)"))
        name = await chat.session.set_model(rest)
        chat.model = name or rest
        chat.print_line(f"now using model {chat.model}")
        return
    chat.print_line(f"model {chat.model_name()}; change it with /model NAME:")
    for model in _list_models(chat.session):
        chat.print_line(shorten_text(f"  {model.value:<12} {model.description or model.display_name}"), "quiet")


def _resolve_model(name: str, known: Collection[str]) -> str | None:
    """Return the model for a mistyped name; None for a known name, a full id, and a name unlike any other."""
    aliases = {"default", "haiku", "opus", "opusplan", "sonnet", *known}
    return None if name in aliases or "-" in name or "[" in name else find_similar_name(name, aliases)


async def _mode(chat: Chat, rest: str) -> None:
    if not rest:
        chat.print_line(
            f"permission mode {chat.mode_name()}; change it with /mode NAME: {', '.join(get_args(PermissionMode))}"
        )
        return
    chat.mode = await chat.session.set_permission_mode(rest) or rest
    chat.print_line(f"now in permission mode {chat.mode}")


async def _cost(chat: Chat, rest: str) -> None:
    for line in chat.costs.format_all():
        chat.print_line(line)


async def _fork(chat: Chat, rest: str) -> None:
    before = chat.session.id
    await chat.switch_session(chat.session.fork())
    chat.print_line(f"continuing in a copy: {chat.session.id}; the original is unchanged: {before}")


async def _clear(chat: Chat, rest: str) -> None:
    before = chat.session.id
    now = await chat.session.clear()
    chat.print_line(f"new conversation: {now} (previous: {before})")


async def _resume(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("give its id: /resume ID")
    await chat.switch_session(chat.make_session(resume=rest))
    chat.print_line(f"continuing {chat.session.id}")


async def _status(chat: Chat, rest: str) -> None:
    session, health = chat.session, chat.session.health()
    reason, restarts = f": {health.reason}" if health.reason else "", session.restarts
    rows = {
        "session": session.id or "not known yet",
        "model": chat.model_name(),
        "mode": chat.mode_name(),
        "directory": chat.directory(),
        "child": f"{health.state}{reason} (pid {session.pid}, {restarts} restart{'' if restarts == 1 else 's'})",
    }
    for name, value in rows.items():
        chat.print_line(f"  {name:<9}  {value}")


async def _queue(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("give the text: /queue TEXT")
    chat.queue(rest)


async def _login(chat: Chat, rest: str) -> None:
    await log_in_to_claude(chat, rest)


async def _mcp(chat: Chat, rest: str) -> None:
    await handle_mcp(chat, rest)


async def _exit(chat: Chat, rest: str) -> None:
    chat.leave()


def _list_models(session: Session) -> list[ModelInfo]:
    return to_results(ModelInfo, session.server_info.get("models"))


CHAT_COMMANDS: dict[str, ChatCommand] = {
    "help": ChatCommand("", "list the commands", _help),
    "model": ChatCommand("[NAME]", "show or change the model", _model, lambda s: [m.value for m in _list_models(s)]),
    "mode": ChatCommand("[MODE]", "show or change the permission mode", _mode, lambda _: get_args(PermissionMode)),
    "cost": ChatCommand("", "show the cost of each answer and the total", _cost),
    "status": ChatCommand("", "show session, model, mode, directory and health", _status),
    "fork": ChatCommand("", "continue in a copy of this conversation", _fork),
    "clear": ChatCommand("", "start a new conversation", _clear),
    "resume": ChatCommand("ID", "continue another conversation", _resume),
    "queue": ChatCommand("TEXT", "queue a prompt while Claude works", _queue),
    "login": ChatCommand("[console]", "log in to Claude in a browser", _login, lambda _: ACCOUNTS),
    "mcp": ChatCommand(
        "[login|logout NAME]", "list MCP servers; log in to one, or log out", _mcp, lambda _: MCP_ACTIONS
    ),
    "exit": ChatCommand("", "quit, like Ctrl-D", _exit),
    "quit": ChatCommand("", "", _exit),
}


async def chat(request: ChatRequest, screen: Screen) -> int:
    """Run a conversation until the user leaves or the piped lines end; return the exit code."""
    if request.settings.get("json_schema") is not None:
        raise UsageError("--json-schema is for one answer: use `pilothouse ask`")
    if request.remote is not None:
        from pilothouse_cli.chat_on_host import chat_on_host  # it loads the host: other chats start fast

        return await chat_on_host(request, screen)
    return await Chat(request, screen).run()


class Chat:
    """One run of the command.

    Attributes:
        session: the conversation; `/fork` and `/resume` replace it.
        costs: the costs of its answers.
        model: the model last reported by the CLI.
        mode: the permission mode last reported by the CLI.
    """

    def __init__(self, request: ChatRequest, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        # Whether a person sees questions and can answer.
        self._interactive = _is_terminal(sys.stdin) and _is_terminal(sys.stderr)
        self._terminal = Terminal(sys.stdin.fileno()) if self._interactive else None
        # The line in which a person types while an answer is written; a terminal that cannot redraw has none.
        self._editor: EditorInput | None = None
        self._input = self._open_input()
        self._queued: list[str] = []  # lines to handle before another one is read
        screen.show_answers_by(MarkdownView)
        self._prompter = TerminalPrompter(screen, self._input, self._interrupt, self._wait_until_printed)
        self._options = Options()
        self._printer: ChatProgressPrinter | None = None
        self._stop_action: Callable[[], object] | None = None  # the current effect of Ctrl-C; None: at the prompt
        self._stopping = False
        self._scope = anyio.CancelScope()
        self._code = 0
        self._is_started = False
        self._answered_session_id: str | None = None  # the session of the last answer, which can be resumed
        self._is_leaving = False
        self._needed_logins: set[str] = set()  # those of the last turn, which were printed
        self.costs = ChatCosts(is_free=request.local)
        self.model: str | None = None
        self.mode: str | None = None

    # Running.

    async def run(self) -> int:
        """Run the conversation, and return the exit code."""
        with forward_signals(self._on_signal):
            try:
                with self._scope:
                    async with AsyncExitStack() as stack:
                        await self._start(stack)
                        await self._run_conversation()
            except (PilothouseError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                self._print_failure(error)
            finally:
                if self._terminal is not None:
                    self._terminal.restore_echo()
                self._screen.end_text()
                self._screen.idle()
            self._print_resume_hint()
        return self._code

    async def _start(self, stack: AsyncExitStack) -> None:
        async with self._interruptible(self._end_by_interrupt):
            self._options = await self._make_options(stack)
            self.session = self.make_session()
            stack.push_async_callback(self._close)
            self._screen.busy("starting Claude Code")
            await self.session.start()
        self._is_started = True
        ways = ". /help lists the commands; Ctrl-D leaves." if self._interactive else ""
        self.print_paragraph(f"{self.model_name()} in {self.directory()}{ways}")
        if self._interactive and self._request.prompt is None and _has_no_key(self.session):
            report_failure(self._screen, explain_missing_key(LOCAL_CHAT, self._options.cli, LOGIN_COMMAND))

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.session.close()

    async def _make_options(self, stack: AsyncExitStack) -> Options:
        more: dict[str, Any] = {"partial_messages": True}
        asked_elsewhere = {"permission_prompt_tool_name", "permission_prompts"} & self._request.settings.keys()
        if self._interactive and not asked_elsewhere:
            names = ("can_use_tool", "on_question", "on_plan")
            more |= {name: self._record_decisions(getattr(self._prompter, name)) for name in names}
        own = make_run_options(self._request, self._screen, more)
        default_agent().session(own)  # mistakes are reported before anything is fetched
        return await apply_local_model(own, stack, self._screen) if self._request.local else own

    def _open_input(self) -> ChatInput:
        if self._terminal is None:
            fd = sys.stdin.fileno() if sys.stdin is not None else os.open(os.devnull, os.O_RDONLY)  # pyright: ignore[reportUnnecessaryComparison]
            return PipeInput(fd)
        editor = EditorInput(sys.stderr, self._terminal, self._complete, self._request.history)
        if self._screen.is_terminal:
            self._editor = editor
        return editor

    def _complete(self, typed: str) -> Any:
        return complete_input(self.session, typed)

    async def _run_conversation(self) -> None:
        broken = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._print_woken_answers)
            try:
                await self._read_prompts()
            except BrokenPipeError as error:
                broken = error  # raised alone, not in a group
            tasks.cancel_scope.cancel()
        if broken is not None:
            raise broken

    async def _print_woken_answers(self) -> None:
        """Print answers that the model gives without a prompt, for example after a background task."""
        session = None
        while session is not self.session:
            session = self.session
            async for message in session.messages():
                if isinstance(message, ResultMessage) and message.is_woken and message.result:
                    async with self._prompter.lock, self._input.pause_prompt():
                        self._screen.end_text()
                        self.print_line("a background task has finished:", "quiet")
                        self._screen.text(message.result)
                        self._screen.end_text()

    async def _read_prompts(self) -> None:
        line = self._request.prompt
        while not self._is_leaving:
            if line is None and self._queued:
                line = self._queued.pop(0)
                self._print_prompt(line)
            elif line is None:
                try:
                    line = await self._input.read_prompt()
                except CtrlC:
                    line = None
                if line is None:
                    return
            if line.strip():
                await self._handle_line(line)
            line = None

    async def _handle_line(self, line: str) -> None:
        """Handle one line. A failure is printed, and the conversation continues."""
        try:
            prompt = await self._run_command(line)
            if prompt is not None:
                await self._run_turn(prompt)
        except (PilothouseError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            self._print_failure(error)

    async def _run_command(self, line: str) -> str | None:
        prompt = None
        with anyio.CancelScope() as scope:
            async with self._interruptible(scope.cancel):
                prompt = await run_command(self, line)
        if scope.cancelled_caught:
            self.print_line("cancelled", "warning")
        return prompt

    @asynccontextmanager
    async def _interruptible(self, stop: Callable[[], object]) -> AsyncGenerator[None]:
        """A block that Ctrl-C stops by calling `stop`."""
        self._stop_action, self._stopping = stop, False
        if self._terminal is not None:
            self._terminal.disable_echo()
        try:
            yield
        finally:
            self._stop_action = None
            self._screen.idle()
            if self._terminal is not None:
                self._terminal.restore_echo()

    # Turns.

    async def _run_turn(self, prompt: str) -> None:
        query = self.session.query(prompt)
        self._printer = printer = ChatProgressPrinter(self._screen, self._redact, thinking=self._request.thinking)
        self._prompter.waited = 0.0
        outcome: QueryResult | Exception = Interrupted("it was not asked")
        async with (
            anyio.create_task_group() as tasks,
            self._interruptible(lambda: tasks.start_soon(self._stop_turn, query)),
        ):
            async with self._take_words(query):
                self._screen.busy("waiting for the model")
                outcome = await self._print_answer(query, printer)
            tasks.cancel_scope.cancel()  # a late interrupt
        self._screen.end_text()
        self._screen.idle()
        self._printer = None
        if self._stopping and self._editor is not None:
            self._editor.put_back(line for line in self._queued if not _leaves(line))
            self._queued.clear()
        if isinstance(outcome, Exception):
            raise outcome
        self._finish_turn(outcome, printer)

    async def _print_answer(self, query: Query, printer: ChatProgressPrinter) -> QueryResult | Exception:
        """Print the answer. Return the result, or the error that prevented it."""
        restarts = self.session.restarts
        try:
            await query.start()
            if self.session.restarts > restarts:
                self.print_line("Claude Code had stopped; it was restarted, and the conversation continues", "warning")
            async for message in query:
                async with self._prompter.lock:  # not during a question
                    printer.print_message(message)
            return await query.result()
        except (PilothouseError, OSError) as error:
            return error

    @asynccontextmanager
    async def _take_words(self, query: Query) -> AsyncGenerator[None]:
        """A block in which a person can type: words for the query, or lines for afterwards."""
        if (editor := self._editor) is None:
            yield
            return

        def take(line: str) -> None:
            asked = split_command(line)
            if asked is None:
                steering.start_soon(self._steer, editor, query, line)
            else:
                name, rest = asked
                later = rest if name == "queue" and rest else line
                self.queue(later)
                self.print_line(f"queued until the answer is finished: {shorten_text(later)}", "quiet")

        with self._screen.above(editor):
            async with anyio.create_task_group() as steering, anyio.create_task_group() as reading:
                reading.start_soon(editor.read_words, take, self._interrupt)
                yield
                reading.cancel_scope.cancel()

    async def _steer(self, editor: EditorInput, query: Query, words: str) -> None:
        """Give words to the query. If it has ended, or ends without them, they are the next prompt.

        Words that cannot be given are put back into the line.
        """
        with editor.show_sent(words):
            try:
                steering = await query.steer(words, if_late="return")
                outcome = await steering.outcome()
            except PilothouseError as error:
                self._print_failure(error)
                editor.put_back([words])
                return
        if outcome == "returned":
            self.queue(words)
            return
        async with self._prompter.lock:  # not during a question
            self._screen.end_text()
            if outcome == "taken":
                self.print_line(f"{STEERING_PROMPT}{shorten_text(words)} (read by Claude)", "title")
            else:
                self._print_prompt(words)

    def _print_prompt(self, line: str) -> None:
        self.print_line(f"{PROMPT}{shorten_text(line)}", "title")

    async def _stop_turn(self, query: Query) -> None:
        self._screen.end_text()
        self.print_line("stopping; press Ctrl-C again to quit", "warning")
        try:
            await query.interrupt()
        except PilothouseError as error:
            self.print_line(describe_failure(error).line, "error")

    def _finish_turn(self, result: QueryResult, printer: ChatProgressPrinter) -> None:
        if printer.init is not None:
            self.model, self.mode = printer.init.model, printer.init.permission_mode
            self._print_needed_logins(printer.init)
        if isinstance(result.error, Interrupted):
            self.print_line("stopped; the conversation continues", "warning")
        elif result.error is not None:
            self._print_failure(result.error)
        elif not printer.has_printed_text and result.text:
            # Commands such as /context answer without a message of the model.
            self._screen.text(result.text)
            self._screen.end_text()
        if not self._interactive and (denials := format_denials(result)) is not None:
            self.print_line(denials, "warning")
        self._answered_session_id = result.session_id or self._answered_session_id
        self.costs.add(result, self._prompter.waited)
        if not self._request.quiet and not isinstance(result.error, AuthenticationError):
            self.print_line(self.costs.format_last(), "quiet")

    def _print_needed_logins(self, init: InitMessage) -> None:
        lines = list_needed_logins(init) if self._interactive else []
        for line in sorted({*lines} - self._needed_logins):
            self.print_line(line, "warning")
        self._needed_logins = {*lines}

    # Permissions.

    def _record_decisions(self, ask: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def decide(request: Any) -> Any:
            decision = await ask(request)
            call: PermissionRequest = getattr(request, "request", request)
            if self._printer is not None:
                self._printer.record_decision(call.tool_use_id, denied=isinstance(decision, Deny))
            return decision

        return decide

    async def _wait_until_printed(self, tool_use_id: str) -> None:
        if self._printer is not None:
            await self._printer.wait_until_printed(tool_use_id)

    # Ctrl-C and exit.

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGINT:
            self._interrupt()
        else:
            self._end(SIGNAL_BASE + signum)

    def _interrupt(self) -> None:
        """Handle Ctrl-C, or the end of input during an answer."""
        if self._stop_action is None:
            self._end(self._code if self._interactive else SIGNAL_BASE + signal.SIGINT)
        elif self._stopping or not self._interactive:
            self._end_by_interrupt()
        else:
            self._stopping = True
            self._stop_action()

    def _end_by_interrupt(self) -> None:
        self._end(SIGNAL_BASE + signal.SIGINT)

    def _end(self, code: int) -> None:
        self._code = code
        self._scope.cancel()

    def _print_failure(self, error: Exception) -> None:
        """Print a failure. In a terminal it does not set the exit code: the user decides when to leave."""
        self._screen.end_text()
        login = LOGIN_COMMAND if self._interactive and self._is_started else None
        failure = explain_failure(error, LOCAL_CHAT, default_agent().options.merge(self._options), login)
        if isinstance(error, CLIExitedError) and self._is_started and self.session.options.restart != "never":
            failure = replace(failure, line=f"{failure.line}; your next prompt restarts it")
        report_failure(self._screen, failure, lambda line: escape_invisible(self._redact(line)))
        if not (self._interactive and self._is_started):
            self._code = self._code or failure.code

    def _print_resume_hint(self) -> None:
        if self._answered_session_id is None or not self.session.options.persist_session:
            return
        again = shlex.join(("chat", "--resume", self._answered_session_id, *self._request.flags))
        self.print_line(
            f"session {self._answered_session_id}; continue with: {get_own_command()} {self._redact(again)}", "quiet"
        )

    # Used by commands.

    def print_line(self, line: str, style: Style = "") -> None:
        """Print one line for the user."""
        self._screen.note(escape_invisible(line), style)

    def print_paragraph(self, text: str) -> None:
        """Print a remark, wrapped between words to the width of the terminal."""
        self._screen.paragraph(escape_invisible(text), "quiet")

    @property
    def takes_words(self) -> bool:
        """Whether a person can type while an answer is written."""
        return self._editor is not None

    def queue(self, line: str) -> None:
        """Handle a line after the answer that is being written; what leaves comes after all others."""
        self._queued.append(line)
        self._queued.sort(key=_leaves)

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer."""
        return self._interactive

    async def ask(self, question: str) -> str | None:
        """Return what a person types; None at the end of input."""
        self._screen.idle()
        async with self._prompter.lock, self._input.pause_prompt():
            try:
                return await self._input.ask(question)
            except CtrlC:
                return None

    def leave(self) -> None:
        """End after this command."""
        self._is_leaving = True

    def make_session(self, *, resume: str | None = None) -> Session:
        """Make a session with the settings of the command line, not started; `resume` replaces its session."""
        own = self._options
        if resume is not None:
            nothing = {"continue_conversation": None, "fork_session": None, "session_id": None}
            nothing |= {"resume_session_at": None, "resume_drops_turn": None}
            own = own.merge(Options.layer(**cast("Settings", {**nothing, "resume": resume})))
        return default_agent().session(own)

    async def switch_session(self, session: Session) -> None:
        """Start another session, then close the previous one. If the start fails, nothing changes."""
        self._screen.busy("starting Claude Code")
        await session.start()
        before, self.session = self.session, session
        with anyio.CancelScope(shield=True):
            await before.close()

    def model_name(self) -> str:
        """The name of the model, if known."""
        if self._request.local:
            return LOCAL_MODEL_NAME  # Claude Code believes that it is one of Anthropic's
        known = self.model or self.session.options.model
        if known is not None:
            return known
        known = next((model.resolved_model for model in _list_models(self.session) if model.value == "default"), None)
        return known or "the default model"

    def mode_name(self) -> str:
        """The name of the permission mode."""
        known = self.mode or self.session.options.permission_mode
        return known or str(self.session.server_info.get("current_permission_mode") or "default")

    def directory(self) -> str:
        """The working directory of the tools."""
        return str(self.session.options.cwd or Path.cwd())


def _leaves(line: str) -> bool:
    """Whether the line is a command that leaves."""
    asked = split_command(line)
    return asked is not None and asked[0] in _LEAVING_COMMANDS


def _has_no_key(session: Session) -> bool:
    """Whether Claude Code says in its handshake that it has neither a key nor a login."""
    account = session.server_info.get("account")
    if not isinstance(account, Mapping):
        return False
    known = cast("Mapping[str, Any]", account)
    return known.get("tokenSource") == "none" and not known.get("apiKeySource")


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
