"""`pilothouse chat`: a conversation in a terminal, or one that is piped in.

Owns the loop of prompts and answers, what Ctrl-C means at each moment, and the end of the session. How an answer is
told, what is asked in between, and the commands have files of their own.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import anyio

from pilothouse.cli.arguments import ChatRequest
from pilothouse.cli.ask import tell_failure
from pilothouse.cli.chat_commands import dispatch, suggestions
from pilothouse.cli.chat_lines import CtrlC, Lines, PlainLines, Terminal
from pilothouse.cli.chat_permissions import Asker
from pilothouse.cli.chat_preview import visible
from pilothouse.cli.chat_signals import signals_to
from pilothouse.cli.chat_telling import ChatTelling, Spent
from pilothouse.cli.failures import failure, own_command, ways_in
from pilothouse.cli.screen import Screen, Style
from pilothouse.cli.telling import CUT_NOTE, denials_line, is_cut
from pilothouse.client import Query, QueryResult, Session, default_agent
from pilothouse.client.replies import ModelInfo, typed_list
from pilothouse.errors import CLIExitedError, CLINotFoundError, Interrupted, PilothouseError, UsageError
from pilothouse.messages import ResultMessage
from pilothouse.options import Options, Settings
from pilothouse.options.secrets import Redactor, secret_values
from pilothouse.permissions import Allow, Deny, PermissionRequest
from pilothouse.transports.discovery import find_cli

SIGNAL_BASE = 128


async def chat(request: ChatRequest, screen: Screen) -> int:
    """Talk until the user leaves, or the piped lines end, and return the exit code.

    Args:
        request: what was asked for.
        screen: what the person sees.

    Raises:
        UsageError: settings that cannot work.
    """
    if request.settings.get("json_schema") is not None:
        raise UsageError("--json-schema is for one answer: use `pilothouse ask`")
    return await Chat(request, screen).run()


class Chat:
    """One run of the command.

    Attributes:
        session: the conversation; `/fork` and `/resume` put another in its place.
        spent: what its answers have cost.
        model: as the CLI last named it.
        mode: the permission mode, as the CLI last named it.
    """

    def __init__(self, request: ChatRequest, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        # A person who sees what is asked, and can answer.
        self._interactive = _is_terminal(sys.stdin) and _is_terminal(sys.stderr)
        self._terminal = Terminal(sys.stdin.fileno()) if self._interactive else None
        self._lines = self._open_lines()
        screen.flow_text()
        self._asker = Asker(screen, self._lines, self._interrupt, self._caught_up)
        self._own = Options()
        self._telling: ChatTelling | None = None
        self._stop: Callable[[], object] | None = None  # what Ctrl-C does now; None: at the prompt
        self._stopping = False
        self._scope = anyio.CancelScope()
        self._code = 0
        self._begun = False
        self._answered: str | None = None  # the session of the last answer: there is something to go on with
        self._left = False
        self.spent = Spent(free=request.local)
        self.model: str | None = None
        self.mode: str | None = None

    # The run.

    async def run(self) -> int:
        """Talk, and return the exit code."""
        with signals_to(self._signalled):
            try:
                with self._scope:
                    async with AsyncExitStack() as stack:
                        await self._begin(stack)
                        await self._talk_and_listen()
            except (PilothouseError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                self._fail(error, self._request.prompt or "")
            finally:
                if self._terminal is not None:
                    self._terminal.show()
                self._screen.end_text()
                self._screen.idle()
            self._say_goodbye()
        return self._code

    async def _begin(self, stack: AsyncExitStack) -> None:
        async with self._working(self._break_off):
            self._own = await self._settings(stack)
            self.session = self.make_session()
            stack.push_async_callback(self._close)
            self._screen.busy("starting Claude Code")
            await self.session.start()
        self._begun = True
        session = self.session.id or "the latest one here"
        ways = "; /help, Ctrl-D leaves" if self._interactive else ""
        self.say(f"{self.model_name()}, session {session}, in {self.directory()}{ways}", "quiet")

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.session.close()

    async def _settings(self, stack: AsyncExitStack) -> Options:
        values: dict[str, Any] = {"partial_messages": True, **self._request.settings}
        if self._request.verbose:
            values["stderr"] = lambda line: self._screen.note(f"claude: {line}", "quiet")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        asked_elsewhere = {"permission_prompt_tool_name", "permission_prompts"} & self._request.settings.keys()
        if self._interactive and not asked_elsewhere:
            asker = self._asker
            values |= {
                "can_use_tool": self._can_use_tool,
                "on_question": asker.on_question,
                "on_plan": asker.on_plan,
            }
        if self._request.local and values.get("model") is not None:
            raise UsageError("--local brings its own model: leave --model away")
        own = Options(**cast("Settings", values)).labelled("command line")
        cwd = default_agent().session(own).options.cwd  # a mistake is told before anything is fetched
        if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112, ASYNC240 - nothing else runs yet
            raise UsageError(f"--cwd: there is no directory {cwd}")
        return own if not self._request.local else (await self._local(stack)).merge(own)

    async def _local(self, stack: AsyncExitStack) -> Options:
        from pilothouse.cli.local_model import local_options

        options = default_agent().options.merge(Options(**cast("Settings", self._request.settings)))
        return await local_options(options, stack, self._screen)

    def _open_lines(self) -> Lines:
        if self._terminal is None:
            fd = sys.stdin.fileno() if sys.stdin is not None else os.open(os.devnull, os.O_RDONLY)  # pyright: ignore[reportUnnecessaryComparison]
            return PlainLines(fd, None)
        if os.environ.get("TERM", "") not in ("", "dumb") and find_spec("prompt_toolkit"):
            from pilothouse.cli.chat_editor import EditorLines

            return EditorLines(sys.stderr, self._terminal, self._suggest, self._request.history)
        return PlainLines(sys.stdin.fileno(), sys.stderr, self._terminal)

    def _suggest(self, before: str) -> Any:
        return suggestions(self.session, before)

    async def _talk_and_listen(self) -> None:
        broken = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            try:
                await self._talk()
            except BrokenPipeError as error:
                broken = error  # alone, not in a group
            tasks.cancel_scope.cancel()
        if broken is not None:
            raise broken

    async def _listen(self) -> None:
        """Tell what the model says without having been asked, as when a background task has ended."""
        session = None
        while session is not self.session:
            session = self.session
            async for message in session.messages():
                if isinstance(message, ResultMessage) and message.is_woken and message.result:
                    async with self._asker.floor, self._lines.aside():
                        self._screen.end_text()
                        self.say("a background task has ended:", "quiet")
                        self._screen.text(message.result)
                        self._screen.end_text()

    async def _talk(self) -> None:
        line = self._request.prompt
        while not self._left:
            if line is None:
                try:
                    line = await self._lines.prompt()
                except CtrlC:
                    line = None
                if line is None:
                    return
            if line.strip():
                await self._answer(line)
            line = None

    async def _answer(self, line: str) -> None:
        """Do what a line asks for. A failure is told, and the conversation goes on."""
        try:
            prompt = await self._dispatched(line)
            if prompt is not None:
                await self._turn(prompt)
        except (PilothouseError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            self._fail(error, line)

    async def _dispatched(self, line: str) -> str | None:
        prompt = None
        with anyio.CancelScope() as scope:
            async with self._working(scope.cancel):
                prompt = await dispatch(self, line)
        if scope.cancelled_caught:
            self.say("given up", "warning")
        return prompt

    @asynccontextmanager
    async def _working(self, stop: Callable[[], object]) -> AsyncGenerator[None]:
        """A block that Ctrl-C stops."""
        self._stop, self._stopping = stop, False
        if self._terminal is not None:
            self._terminal.hush()
        try:
            yield
        finally:
            self._stop = None
            self._screen.idle()
            if self._terminal is not None:
                self._terminal.show()

    # One turn.

    async def _turn(self, prompt: str) -> None:
        query = self.session.query(prompt)
        self._telling = telling = ChatTelling(self._screen, self._redact, thinking=self._request.thinking)
        outcome: tuple[QueryResult, bool] | Exception = Interrupted("it was not asked")
        async with anyio.create_task_group() as tasks, self._working(lambda: tasks.start_soon(self._stop_turn, query)):
            self._screen.busy("waiting for the model")
            outcome = await self._follow(query, telling)
            tasks.cancel_scope.cancel()  # an interrupt that came too late
        self._screen.end_text()
        self._screen.idle()
        self._telling = None
        if isinstance(outcome, Exception):
            raise outcome
        result, was_cut = outcome
        self._finish(result, telling, prompt, was_cut=was_cut)

    async def _follow(self, query: Query, telling: ChatTelling) -> tuple[QueryResult, bool] | Exception:
        """Tell the answer. Gives the result, and whether it was cut; or what kept it from coming."""
        restarts, cut = self.session.restarts, False
        try:
            await query.start()
            if self.session.restarts > restarts:
                self.say("Claude Code had ended; it was started again, and the conversation goes on", "warning")
            async for message in query:
                if cut:
                    continue  # the end of a run that was stopped
                async with self._asker.floor:  # not into a question
                    telling.tell(message)
                if self._request.local and is_cut(message):
                    cut = True
                    await query.interrupt()
            return await query.result(), cut
        except (PilothouseError, OSError) as error:
            return error

    async def _stop_turn(self, query: Query) -> None:
        self._screen.end_text()
        self.say("stopping; Ctrl-C again leaves", "warning")
        try:
            await query.interrupt()
        except PilothouseError as error:
            self.say(failure(error).line, "error")

    def _finish(self, result: QueryResult, telling: ChatTelling, prompt: str, *, was_cut: bool) -> None:
        if telling.init is not None:
            self.model, self.mode = telling.init.model, telling.init.permission_mode
        if isinstance(result.error, Interrupted):
            self.say(CUT_NOTE if was_cut else "stopped; the conversation goes on", "warning")
        elif result.error is not None:
            self._fail(result.error, prompt)
        elif not telling.told_text and result.text:
            # A command such as /context answers without a message of the model.
            self._screen.text(result.text)
            self._screen.end_text()
        if not self._interactive and (denials := denials_line(result)) is not None:
            self.say(denials, "warning")
        self._answered = result.session_id or self._answered
        self.spent.add(result)
        if not self._request.quiet:
            self.say(self.spent.last_line(), "quiet")

    # What is asked in between.

    async def _can_use_tool(self, request: PermissionRequest) -> Allow | Deny:
        decision = await self._asker.can_use_tool(request)
        if self._telling is not None:
            self._telling.decided(request.tool_use_id, denied=isinstance(decision, Deny))
        return decision

    async def _caught_up(self, tool_use_id: str) -> None:
        if self._telling is not None:
            await self._telling.caught_up(tool_use_id)

    # Ctrl-C, and the end.

    def _signalled(self, signum: int) -> None:
        if signum == signal.SIGINT:
            self._interrupt()
        else:
            self._end(SIGNAL_BASE + signum)

    def _interrupt(self) -> None:
        """Ctrl-C, or the end of input in the middle of an answer."""
        if self._stop is None:
            self._end(self._code if self._interactive else SIGNAL_BASE + signal.SIGINT)
        elif self._stopping or not self._interactive:
            self._break_off()
        else:
            self._stopping = True
            self._stop()

    def _break_off(self) -> None:
        self._end(SIGNAL_BASE + signal.SIGINT)

    def _end(self, code: int) -> None:
        self._code = code
        self._scope.cancel()

    def _fail(self, error: Exception, prompt: str) -> None:
        """Tell what went wrong. In a terminal that is no reason for an exit code: the user leaves when it pleases."""
        self._screen.end_text()
        told = ways_in(error, prompt, self._known_cli()) or failure(error)
        if isinstance(error, CLIExitedError) and self._begun and self.session.options.restart != "never":
            told = replace(told, line=f"{told.line}; the next prompt starts it again")
        tell_failure(self._screen, told, lambda line: visible(self._redact(line)))
        if not (self._interactive and self._begun):
            self._code = self._code or told.code

    def _known_cli(self) -> str | None:
        try:
            return find_cli(self._own.cli, os.environ)
        except CLINotFoundError:
            return None

    def _say_goodbye(self) -> None:
        if self._answered is None or not self.session.options.persist_session:
            return
        again = shlex.join(("chat", "--resume", self._answered, *self._request.flags))
        self.say(f"session {self._answered}; go on with: {own_command()} {self._redact(again)}", "quiet")

    # What commands use.

    def say(self, line: str, style: Style = "") -> None:
        """One line for the person."""
        self._screen.note(visible(line), style)

    def leave(self) -> None:
        """End after this command."""
        self._left = True

    def make_session(self, *, resume: str | None = None) -> Session:
        """A session with the settings of the command line, not started.

        Args:
            resume: go on with this one, whatever the command line says about that.
        """
        own = self._own
        if resume is not None:
            nothing = {"continue_conversation": None, "fork_session": None, "session_id": None}
            nothing |= {"resume_session_at": None, "resume_drops_turn": None}
            own = own.merge(Options.layer(**cast("Settings", {**nothing, "resume": resume})))
        return default_agent().session(own)

    async def move_to(self, session: Session) -> None:
        """Start another session, then end the one before. When it does not start, nothing changes."""
        self._screen.busy("starting Claude Code")
        await session.start()
        before, self.session = self.session, session
        with anyio.CancelScope(shield=True):
            await before.close()

    def model_name(self) -> str:
        """The model, as far as it is known."""
        known = self.model or self.session.options.model
        if known is not None:
            return known
        models = typed_list(ModelInfo, self.session.server_info.get("models"))
        return next(
            (m.resolved_model for m in models if m.value == "default" and m.resolved_model), "the default model"
        )

    def mode_name(self) -> str:
        """The permission mode."""
        known = self.mode or self.session.options.permission_mode
        return known or str(self.session.server_info.get("current_permission_mode") or "default")

    def directory(self) -> str:
        """Where the tools work."""
        return str(self.session.options.cwd or Path.cwd())


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
