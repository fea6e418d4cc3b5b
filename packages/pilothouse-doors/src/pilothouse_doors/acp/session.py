"""One session of an editor: its child, what it sends, what it asks, its modes and models.

Owns the life of the child and the order of what the editor sees. The editor is reached through `Editor`, which the
protocol's library implements in `agent`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from pilothouse.client import Agent, Query, QueryResult, Session
from pilothouse.errors import MaxTurnsError, PilothouseError, UsageError
from pilothouse.messages import (
    AssistantMessage,
    CommandsChangedMessage,
    InitMessage,
    Message,
    ResultMessage,
    StatusMessage,
)
from pilothouse.permissions import Ask, ElicitationRequest, QuestionRequest
from pilothouse_doors.acp import questions
from pilothouse_doors.acp.updates import Update, UpdateWriter, describe_asked_call, describe_call
from pilothouse_transcripts import SessionInfo

log = logging.getLogger("pilothouse.integrations")

SHOW_SECONDS = 1.0
"""For what the child has sent before it asked, or before its turn ended, to reach the editor.

At the end of a turn only the time counts in which nothing is sent to the editor, which may be slow.
"""
STOP_SECONDS = 10.0
"""For a cancelled turn to end by itself."""
LOOK_SECONDS = 0.02
"""Between two looks whether it has ended."""
FACTS_SECONDS = 5.0
"""For the child to say how full its context is."""
KEPT_RESULTS = 100

MODES: Sequence[tuple[str, str, str]] = (
    ("default", "Ask", "Asks before edits, commands and the like"),
    ("acceptEdits", "Accept edits", "Edits files of the project without asking"),
    ("plan", "Plan", "Reads and plans; changes nothing"),
    ("auto", "Auto", "Lets a model decide what may run"),
    ("dontAsk", "Don't ask", "Denies what no rule allows"),
    ("bypassPermissions", "Bypass permissions", "Runs everything without asking"),
)
_STOP_REASONS = frozenset({"max_tokens", "refusal"})


class EditorGoneError(Exception):
    """The editor has closed the connection."""


class Conversations(Protocol):
    """Where conversations are kept, and how a session of one is started. The methods block: call them in threads."""

    outlives_editor: bool
    """Whether sessions go on when the editor leaves."""

    def list_newest(self, cwd: str | None, offset: int, limit: int) -> Sequence[SessionInfo]:
        """List conversations, the newest first."""
        ...

    def find(self, session_id: str) -> SessionInfo | None:
        """Return a conversation; None if there is none with this id."""
        ...

    def read(self, session_id: str) -> Sequence[Message]:
        """Return the messages of a conversation."""
        ...

    def delete(self, session_id: str) -> None:
        """Delete a conversation; nothing happens if there is none with this id."""
        ...

    def make_settings(self, session_id: str | None, cwd: str) -> Mapping[str, Any]:
        """Return options of a session that begins (None), or that continues a conversation; raises UsageError."""
        ...


class Editor(Protocol):
    """The editor, as a session needs it."""

    has_forms: bool
    has_pages: bool
    has_terminals: bool

    async def send(self, session_id: str, update: Update) -> None:
        """Send an update; nothing happens when the editor has left."""
        ...

    async def choose(self, session_id: str, call: Update, choices: list[questions.Choice]) -> str | None:
        """Request a choice, and return its id; None: cancelled. Raises EditorGoneError, ValueError if it refuses."""
        ...

    async def fill(self, session_id: str, message: str, form: dict[str, Any]) -> Mapping[str, Any] | None:
        """Request the values of a form, or that a page is opened; None: the user declined. Raises as `choose`."""
        ...


class AcpSession:
    """One session. Made by `AcpAgent`.

    Its id is that of the editor and of Claude Code. `settings` are those of the editor: directory, servers of MCP. The
    child is `session`, None while none is needed; `used_at` is when it was last used, as `time.monotonic()`.
    """

    def __init__(
        self,
        session_id: str,
        agent: Agent,
        editor: Editor,
        settings: Mapping[str, Any],
        conversations: Conversations,
    ) -> None:
        self.id = session_id
        self.settings = settings
        self.session: Session | None = None
        self.used_at = time.monotonic()
        self.cancel_count = 0
        self._agent = agent
        self._editor = editor
        self._conversations = conversations
        self._writer = UpdateWriter(settings["cwd"], has_terminals=editor.has_terminals)
        self._queries: list[Query[Any]] = []
        self._cancelled: set[Query[Any]] = set()
        self._results: deque[str | None] = deque(maxlen=KEPT_RESULTS)
        self._changed = anyio.Event()
        self._is_showing = False
        self._open_approvals = 0
        self._mode = "default"
        self._model = agent.options.model or "default"
        self._effort: str | None = None
        self._title: str | None = None
        self._commands: list[dict[str, Any]] = []
        self._models: list[dict[str, Any]] = []
        self._tasks: TaskGroup | None = None
        self._window: int | None = None  # the size of the context of the model, in tokens
        self._counted: str | None = None  # id of the last response whose tokens were sent

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is being answered, or something is asked: a background task asks after the answer, too."""
        return bool(self._queries) or self._open_approvals > 0

    async def start(self, tasks: TaskGroup, start: Mapping[str, Any], history: Sequence[Message] | None = None) -> None:
        """Start the child, with the options of `start`; a task sends the history, and then what the child does."""
        session = self._agent.session(**{**self.settings, **start})
        messages = session.messages()  # before the start: what a session on a host has sent meanwhile comes first
        try:
            await session.start()
            applied = (await session.settings.get()).applied
        except BaseException:
            with anyio.CancelScope(shield=True):
                await session.close()
            raise
        self.session = session
        self._tasks = tasks
        self._mode = str(session.server_info.get("current_permission_mode") or self._mode)
        self._effort = applied.get("effort")
        self._commands = list(session.server_info.get("commands") or [])
        self._models = list(session.server_info.get("models") or [])
        if history is not None:
            await self.replay(history)
        tasks.start_soon(self._pump, messages)

    async def replay(self, messages: Sequence[Message]) -> None:
        """Send the conversation so far, as it is on disk."""
        self._writer = UpdateWriter(self.settings["cwd"], has_terminals=self._editor.has_terminals)
        await self._send_all(self._writer.read_history(messages))

    async def _pump(self, messages: Any) -> None:
        try:
            async for message in messages:
                self._is_showing = True
                try:
                    await self._send_all(self._writer.read(message))
                    await self._note(message)
                except (ValueError, TypeError) as error:  # such as what the protocol does not allow
                    log.error("session %s: the editor does not get a message: %s", self.id, type(error).__name__)
                finally:
                    self._is_showing = False
                    self._notify()
        except PilothouseError as error:
            log.info("session %s has ended: %s", self.id, error)

    async def _note(self, message: Message) -> None:
        match message:
            case InitMessage(permission_mode=str(mode)) | StatusMessage(permission_mode=str(mode)):
                await self._note_mode(mode)
            case CommandsChangedMessage():
                self._commands = message.commands
                await self.send_commands()
            case AssistantMessage(parent_tool_use_id=None, is_api_error_message=False):
                await self._note_usage(message)
            case ResultMessage():
                self._results.append(message.uuid)
            case _:
                pass

    async def _note_usage(self, message: AssistantMessage) -> None:
        """Send how full the context is, from what a response of the model has used."""
        usage = message.message.usage
        if usage is None or message.message_id == self._counted:
            return
        self._counted = message.message_id
        if self._window is None:  # the first response: only Claude Code knows the size
            assert self._tasks is not None
            self._tasks.start_soon(self.send_facts)
        else:
            read = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
            used = read + usage.output_tokens
            update = {"sessionUpdate": "usage_update", "used": used, "size": self._window}
            await self._editor.send(self.id, update)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_until_shown(self, result_id: str | None) -> None:
        while result_id not in self._results:
            with anyio.move_on_after(SHOW_SECONDS) as limit:
                await self._changed.wait()
            if limit.cancelled_caught and not self._is_showing:
                return

    async def _send_all(self, updates: Iterable[Update]) -> None:
        for update in updates:
            await self._editor.send(self.id, update)

    # Turns.

    async def prompt(self, content: list[dict[str, Any]]) -> tuple[str, dict[str, int] | None]:
        """Send a prompt, wait until it is answered, and return why the turn ended, and the tokens that it used."""
        assert self.session is not None
        query: Query[Any] = self.session.query(content)
        self._queries.append(query)
        try:
            async with query:
                result = await query.result()
        except PilothouseError:
            if query in self._cancelled:
                return "cancelled", None
            raise
        finally:
            self._queries.remove(query)
            is_cancelled = query in self._cancelled
            self._cancelled.discard(query)
            self.used_at = time.monotonic()
        if result.result is not None:
            await self._wait_until_shown(result.result.uuid)
        await self.send_facts()
        usage = None if result.result is None else _count_tokens(result.result)
        return ("cancelled" if is_cancelled else _read_stop_reason(result)), usage

    async def steer(self, content: list[dict[str, Any]]) -> bool:
        """Give words to the prompt that is being answered, and whose response comes after theirs.

        Returns:
            Whether there was one; one whose turn has not come yet is none, as its query would wait.
        """
        query = next(iter(self._queries), None)
        if query is None or not query.has_begun:
            return False
        return (await query.steer(content)).was_sent

    async def cancel(self) -> None:
        """Stop the prompts that are being answered, or wait for their turn, and the words that `steer` gave to them."""
        self.cancel_count += 1
        self._cancelled.update(self._queries)
        for query in reversed(list(self._queries)):
            try:
                with anyio.fail_after(STOP_SECONDS):
                    await query.interrupt()
                    while query.state == "active":  # it goes on with words that `steer` gave it
                        await query.interrupt()
                        await anyio.sleep(LOOK_SECONDS)
            except (PilothouseError, TimeoutError) as error:
                log.info("a turn could not be interrupted, and is ended: %s", error)
                await query.aclose()

    async def send_facts(self) -> None:
        """Send how full the context is, what the session has cost, and its title."""
        session = self.session
        if session is None:
            return
        with suppress(PilothouseError), anyio.move_on_after(FACTS_SECONDS):
            usage = await session.info.context_usage()
            self._window = usage.max_tokens
            cost = {"amount": session.costs.usd, "currency": "USD"}
            update = {"sessionUpdate": "usage_update", "used": usage.total_tokens, "size": usage.max_tokens}
            await self._editor.send(self.id, {**update, "cost": cost})
        found = await anyio.to_thread.run_sync(self._conversations.find, self.id)
        if found is not None and (title := get_title(found)) != self._title:
            self._title = title
            update = {"sessionUpdate": "session_info_update", "title": title, "updatedAt": get_time(found)}
            await self._editor.send(self.id, update)

    async def close(self) -> None:
        """End the child. Idempotent."""
        session, self.session = self.session, None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.close()

    async def leave(self) -> None:
        """Leave the child running at its host; end it if it cannot be left."""
        try:
            if self.session is not None:
                await self.session.detach()
        except PilothouseError as error:
            log.info("session %s could not be left at its host: %s", self.id, error)
        await self.close()

    # Modes, models, commands.

    async def send_commands(self) -> None:
        """Send the list of slash commands."""
        commands = [
            {
                "name": each.get("name"),
                "description": each.get("description") or "",
                **({"input": {"hint": hint}} if (hint := each.get("argumentHint")) else {}),
            }
            for each in self._commands
            if each.get("name")
        ]
        update = {"sessionUpdate": "available_commands_update", "availableCommands": commands}
        await self._editor.send(self.id, update)

    def describe(self) -> dict[str, Any]:
        """Return modes and options, for the response that opens the session."""
        modes = [{"id": value, "name": name, "description": about} for value, name, about in self._list_modes()]
        state = {"currentModeId": self._mode, "availableModes": modes}
        return {"modes": state, "configOptions": self.list_options()}

    def _list_modes(self) -> list[tuple[str, str, str]]:
        options = self._agent.options
        may_bypass = options.allow_dangerously_skip_permissions or options.permission_mode == "bypassPermissions"
        known = [mode for mode in MODES if mode[0] != "bypassPermissions" or may_bypass]
        return known if any(mode[0] == self._mode for mode in known) else [*known, (self._mode, self._mode, "")]

    def list_options(self) -> list[dict[str, Any]]:
        """Return what can be chosen: mode, model, effort."""
        listed = [
            (str(each["value"]), str(each.get("displayName", "")), each.get("description")) for each in self._models
        ]
        if all(value != self._model for value, _, _ in listed):
            listed.append((self._model, self._model, None))
        found = [
            _make_select("mode", "Mode", "mode", self._mode, self._list_modes()),
            _make_select("model", "Model", "model", self._model, listed),
        ]
        chosen: dict[str, Any] = {each["value"]: each for each in self._models}.get(self._model, {})
        levels: list[str] = list(chosen.get("supportedEffortLevels", ()))
        if self._effort in levels:
            found.append(
                _make_select("effort", "Effort", "thought_level", self._effort, [(each, each, None) for each in levels])
            )
        return found

    async def set_option(self, name: str, value: Any) -> None:
        """Change the mode, the model, or the effort; raises UsageError if there is no such option or value."""
        session = self.session
        assert session is not None
        known = {option["id"]: [each["value"] for each in option["options"]] for option in self.list_options()}
        if value not in known.get(name, ()):
            raise UsageError(f"{name}: expected one of {', '.join(known.get(name, known))}, got {value!r:.80}")
        if name == "mode":
            await self._note_mode(await session.set_permission_mode(value) or value)
            return
        if name == "model":
            await session.set_model(None if value == "default" else value)
            self._model, self._window = value, None
        else:
            await session.settings.apply({"effortLevel": value})
        self._effort = (await session.settings.get()).applied.get("effort")
        await self._send_options()

    async def _note_mode(self, mode: str) -> None:
        if mode == self._mode:
            return
        self._mode = mode
        await self._editor.send(self.id, {"sessionUpdate": "current_mode_update", "currentModeId": mode})
        await self._send_options()

    async def _send_options(self) -> None:
        if self.session is not None:
            options = self.list_options()
            await self._editor.send(self.id, {"sessionUpdate": "config_option_update", "configOptions": options})

    # Approvals.

    async def ask(self, approval: Ask) -> None:
        """Let the editor settle an approval. If it cannot, the answer is no."""
        self._open_approvals += 1
        try:
            await self._ask(approval)
        finally:
            self._open_approvals -= 1

    async def _ask(self, approval: Ask) -> None:
        call = questions.get_call(approval)
        with anyio.move_on_after(SHOW_SECONDS):
            while not self._writer.has_shown(call.id):
                await self._changed.wait()
        if not isinstance(approval.request, ElicitationRequest):
            await self._send_all(self._writer.write_call(call))
        try:
            if isinstance(approval.request, ElicitationRequest):
                await self._ask_form(approval, approval.request)
            elif isinstance(approval.request, QuestionRequest):
                await self._ask_questions(approval, approval.request)
            else:
                choice = await self._editor.choose(
                    self.id, describe_asked_call(call, self.settings["cwd"]), questions.list_choices(approval)
                )
                questions.settle(approval, choice)
        except EditorGoneError:
            if not self._conversations.outlives_editor:  # else the approval waits for the next editor
                approval.deny("the editor has closed the connection", by=questions.BY)
        except ValueError as error:
            log.warning("an approval is refused, because the editor did not answer it: %s", error)
            approval.deny(by=questions.BY)

    async def _ask_form(self, approval: Ask, request: ElicitationRequest) -> None:
        if request.mode == "url" and self._editor.has_pages:
            form: dict[str, Any] = {"url": request.url, "elicitationId": request.elicitation_id or approval.id}
        elif request.mode != "url" and self._editor.has_forms:
            form = {"requestedSchema": questions.make_form(request)}
        else:
            approval.deny(by=questions.BY)
            return
        questions.settle_form(approval, await self._editor.fill(self.id, approval.title, form))

    async def _ask_questions(self, approval: Ask, request: QuestionRequest) -> None:
        call = questions.get_call(approval)
        if self._editor.has_forms:
            form = {"requestedSchema": questions.make_form(request), "toolCallId": call.id}
            questions.settle_form(approval, await self._editor.fill(self.id, approval.title, form))
            return
        content: dict[str, Any] = {}
        for number, question in enumerate(request.questions):
            shown = {**describe_call(call, self.settings["cwd"]), "title": question.text}
            choice = await self._editor.choose(self.id, shown, questions.list_answers(question))
            if choice is None or not choice.isdecimal() or int(choice) >= len(question.options):
                approval.deny(by=questions.BY)
                return
            content[f"question_{number}"] = question.options[int(choice)].label
        questions.settle_form(approval, content)


def get_title(info: SessionInfo) -> str:
    """Return the title of a conversation."""
    return info.custom_title or info.ai_title or info.first_prompt or info.summary


def get_time(info: SessionInfo) -> str:
    """Return when a conversation was changed last."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(info.last_modified / 1000))


def _make_select(name: str, title: str, category: str, value: str | None, choices: Iterable[Any]) -> dict[str, Any]:
    options = [
        {"value": each, "name": label or each, **({"description": about} if about else {})}
        for each, label, about in choices
    ]
    shown = {"id": name, "name": title, "category": category, "type": "select"}
    return {**shown, "currentValue": value, "options": options}


def _count_tokens(message: ResultMessage) -> dict[str, int]:
    """Return the tokens of a turn, those of its sub-agents included."""
    found = list((message.model_usage_since_last_result or message.model_usage).values())
    counts = {
        "inputTokens": sum(each.input_tokens for each in found),
        "outputTokens": sum(each.output_tokens for each in found),
        "cachedReadTokens": sum(each.cache_read_input_tokens for each in found),
        "cachedWriteTokens": sum(each.cache_creation_input_tokens for each in found),
    }
    return {"totalTokens": sum(counts.values()), **counts}


def _read_stop_reason(result: QueryResult[Any]) -> str:
    """Return why a turn ended, in the words of the protocol; raises PilothouseError if it failed."""
    if result.outcome == "interrupted":
        return "cancelled"
    if isinstance(result.error, MaxTurnsError):
        return "max_turn_requests"
    result.raise_for_error()
    reason = None if result.result is None else result.result.stop_reason
    return reason if reason in _STOP_REASONS else "end_turn"
