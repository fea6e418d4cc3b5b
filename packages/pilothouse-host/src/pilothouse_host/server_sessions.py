"""The sessions of a host: `ServerSession`, and its two kinds.

`RestSession` is driven by the host, with prompts from REST. `WebSocketSession` is driven by a client over the wire.
Both write the output of their child process to the journal.
"""

from __future__ import annotations

import json
import logging
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

import anyio
import msgspec
from msgspec.structs import replace

from pilothouse.client import LateWords, Query, Session, Steering, SteerOutcome, SteerTime
from pilothouse.errors import PilothouseError, ProtocolError, SessionClosedError
from pilothouse.options import Invocation, Options
from pilothouse.protocol import DEFAULT_MAX_LINE_BYTES, CompleteLines
from pilothouse.support import LoopCondition, encode_json
from pilothouse.transports import ExitInfo, Transport, TransportWrapper
from pilothouse_access.guard import RefusedRequestError
from pilothouse_host.approvals import MAX_EVENT_TEXT, HostApprovals
from pilothouse_host.journal import TAIL_BYTES, JournaledSession, JournalError, OutputJournal, OutputLog
from pilothouse_host.logins import SessionLogins
from pilothouse_host.policy import ControlRequestRefusedError, InputFilter
from pilothouse_host.stored_output import StoredMessages, StoredOutput
from pilothouse_remote.link import Link, ReceiveWindow, SendBuffer

_log = logging.getLogger("pilothouse.server")

FAILED_SUBTYPE = "query_failed"
"""Subtype of the system message that the output gets when a prompt has failed."""
STEERING_SUBTYPE = "steering"
"""Subtype of the system message that says what became of words for a turn."""
MAX_STDERR_LINES = 256
"""Lines kept while no client is attached; the oldest are dropped."""

AdmitInvocation = Callable[[Invocation], Invocation]

# These only decide how long the host waits at its end, and what a description says: searching bytes is accurate enough.
_SESSION_ID_PATTERN = re.compile(rb'"session_id": ?"([0-9a-fA-F-]{36})"')
_RESULT_PATTERN = re.compile(rb'"type": ?"result"')
_PATTERN_OVERLAP = len(b'"type": "result"') - 1
_PROMPT_PATTERN = re.compile(rb'"type": ?"user"')
_EVENT_START_FIELDS = ("cwd", "title", "owner")
_EVENT_OPTIONS = ("model", "permission_mode")  # short, and they change while the session lives
_EXIT_FIELDS = ("exit_code", "signal", "detail", "stderr")
_RESULT_FIELDS = ("is_success", "text", "structured", "turns", "cost_usd", "session_cost_usd", "duration_ms")


Prompt: TypeAlias = str | Sequence[Any] | Iterable[Any] | AsyncIterable[Any]
"""What `Session.query` takes; over REST, a text or content blocks."""


class AcceptedPrompt(NamedTuple):
    """A prompt without a result so far."""

    query: Query
    title: str
    scope: anyio.CancelScope  # of the task that waits for the result


class GivenWords(msgspec.Struct, eq=False):
    """Words for a turn that runs, until it is known what became of them.

    Args:
        title: what the list of them shows.
        steering: None until they are on their way.
    """

    title: str
    steering: Steering | None = None


class SharedEvents(NamedTuple):
    """The events that one viewer has made of a piece of output, for the others at the same place.

    `place` is the offset of its first byte, which begins a line; `rest` is its last line if that is incomplete.
    """

    place: int
    size: int
    events: bytes
    rest: bytes


class ServerSession(ABC):
    """One session on this host.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        ask_seconds: seconds until an approval that nobody settles is denied.

    Attributes:
        approvals: what waits for a person at the host.
        attached_count: number of connections that read it now.
        last_used: event loop time of the last attachment or activity.
        shared_events: of the output that was read last, if more than one viewer is attached.
        is_removed: whether the host has forgotten it, so that no other child may start.
    """

    def __init__(self, journal: OutputJournal, record: JournaledSession, ask_seconds: float) -> None:
        self.journal = journal
        self.record = record
        self.approvals = HostApprovals(journal, record, ask_seconds)
        self.output = OutputLog(journal, record, acknowledged=record.kind == "wire")
        self.attached_count = 0
        self.last_used = anyio.current_time()
        self.shared_events: SharedEvents | None = None
        self.is_removed = False
        self._output_lock = anyio.Lock()
        self._own_lines: list[bytes] = []  # lines of the host itself, for the next end of a line

    @property
    def id(self) -> str:
        """Id of the session on this host."""
        return self.record.id

    @property
    @abstractmethod
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a turn runs, as far as the host can see."""

    @property
    def state(self) -> str:
        """The state in a word: "running", "idle", and without a child "dormant" or, if it cannot continue, "ended"."""
        without_child = "ended" if self.record.kind == "wire" else "dormant"
        return without_child if not self.has_child else "running" if self.is_busy else "idle"

    @property
    def idle_seconds(self) -> float:
        """Seconds without an attached client and without activity."""
        return 0.0 if self.attached_count else anyio.current_time() - self.last_used

    def mark_used(self) -> None:
        """Record activity."""
        self.last_used = anyio.current_time()

    def tell_state(self) -> None:
        """Publish the description of the session as an event of the host; nothing once it is removed."""
        if not self.is_removed:  # else a viewer would show it again
            self.journal.add_event(self.record, "session", self.describe_briefly())

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the current turn; does nothing if none runs."""

    @abstractmethod
    async def stop(self, reason: str) -> None:
        """End the child. The session stays readable, and continues as far as its kind can."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description of the session for REST. Times in seconds since the epoch."""
        record, ending = self.record, self.record.ending
        return {
            "id": record.id,
            "kind": record.kind,
            "owner": record.owner.name or None,
            "state": self.state,
            "created": record.created,
            "start": record.start,
            "conversation": record.conversation or None,
            "attached": self.attached_count,
            "output_bytes": record.output_end,
            "available_from": record.output_start,
            "asks": len(self.approvals),
            "ending": None if ending is None else {name: getattr(ending, name) for name in _EXIT_FIELDS},
        }

    def describe_briefly(self) -> dict[str, Any]:
        """Return the description for events, which are many: without what may be long."""
        known = self.record.start
        start = {name: known[name] for name in _EVENT_START_FIELDS if name in known}
        options = known.get("options", {})
        start["options"] = {name: options[name][:MAX_EVENT_TEXT] for name in _EVENT_OPTIONS if options.get(name)}
        return {**self.describe(), "start": start}

    async def record_output(self, data: bytes) -> None:
        """Journal the child's output and, between two of its lines, the lines of the host itself.

        Raises:
            JournalError: the output could not be stored.
        """
        with anyio.CancelScope(shield=True):  # the bytes are nowhere else
            async with self._output_lock:
                if data:
                    await self.output.append(data)
                if self._own_lines and await self.output.ends_line():
                    lines, self._own_lines = b"".join(self._own_lines), []
                    await self.output.append(lines)
        self.mark_used()

    async def record_own_line(self, line: bytes) -> None:
        """Journal a line of the host itself, which waits while the child is in the middle of a line.

        Raises:
            JournalError: the output could not be stored.
        """
        self._own_lines.append(line)
        await self.record_output(b"")

    async def end_line(self) -> None:
        """End the line in whose middle a child has died.

        Raises:
            JournalError: the output could not be stored.
        """
        await self.record_output(b"" if await self.output.ends_line() else b"\n")

    async def record_exit(self, exit_info: ExitInfo) -> None:
        """Journal the ending."""
        self.record.state, self.record.ending = "ended", exit_info
        with suppress(JournalError):  # if the journal is the cause, the next start of the host says "restarted"
            await self.journal.update(self.id, state="ended", ending=exit_info)
        self.record.changed = time.time()


class JournaledTransport(TransportWrapper):
    """A transport whose output is journaled before it is returned, without the answers to control requests.

    Args:
        inner: the transport to the child; not started.
        admit: checks and completes the invocation; raises if it is refused.
        session: journals the output.
    """

    def __init__(self, inner: Transport, admit: AdmitInvocation, session: RestSession) -> None:
        super().__init__(inner)
        self._admit = admit
        self._session = session
        self._stored = StoredMessages()

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        await self._session.end_line()  # of the child of a host that was killed
        await self.inner.start(self._admit(invocation))

    async def receive(self) -> bytes:
        """See `Transport`."""
        data = await self.inner.receive()
        if stored := self._stored.feed(data):
            await self._session.record_output(stored)
        return data

    async def close(self) -> None:
        """See `Transport`."""
        try:
            await self.inner.close()
        finally:
            self._session.logins.end_all()  # also those that began while it was being closed
            with anyio.CancelScope(shield=True), suppress(JournalError):
                await self._session.end_line()


class RestSession(ServerSession):
    """A conversation that continues with the next prompt, even if its child has ended.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        options: settings of the conversation, without `resume`; None if they are no longer known.
        admit: checks and completes the invocation of each child.
        make_transport: makes the transport to a child.
        ask_seconds: seconds until an approval that nobody settles is denied.

    Attributes:
        options: as above.
        logins: those that clients have begun in it.
        last_error: why the last prompt failed, if it did.
        last_result: the outcome of the last prompt that had one.
    """

    def __init__(
        self,
        journal: OutputJournal,
        record: JournaledSession,
        options: Options | None,
        *,
        admit: AdmitInvocation,
        make_transport: Callable[[], Transport],
        ask_seconds: float,
    ) -> None:
        super().__init__(journal, record, ask_seconds)
        self.options = options
        self._admit = admit
        self._make_transport = make_transport
        self._session: Session | None = None
        self._told_conversation: str | None = None
        self._prompts: dict[str, AcceptedPrompt] = {}  # in their order
        self._words: list[GivenWords] = []
        self._lock = anyio.Lock()
        self._settings_lock = anyio.Lock()
        self.logins = SessionLogins(self.tell_state)
        self.last_error: str | None = None
        self.last_result: dict[str, Any] | None = None

    def prepare(self) -> None:
        """Prepare to start a child, which resumes the conversation if there is one.

        Raises:
            RefusedRequestError: the host has removed the session ("unknown_session").
            SessionClosedError: the settings are no longer known.
            OptionsError: the settings are invalid.
        """
        if self.is_removed:
            raise RefusedRequestError("unknown_session", f"the session {self.id} was removed")
        if self._session is not None:
            return
        options = self.complete_options()
        if self.record.conversation:
            changes: dict[str, Any] = dict.fromkeys(("session_id", "continue_conversation", "fork_session"))
            options = options.with_(**changes, resume=self.record.conversation)
        self._session = Session(options)

    def complete_options(self) -> Options:
        """Return the settings of the next child: those of the conversation, the journal, and the approvals.

        Raises:
            SessionClosedError: the settings are no longer known.
        """
        if self.options is None:
            raise SessionClosedError(
                "this session was started with keys, which are not stored, or the host no longer accepts its "
                "settings: start another one, with "
                f"resume={self.record.conversation!r}"
            )

        def make() -> Transport:
            return JournaledTransport(self._make_transport(), self._admit, self)

        options = self.options.with_(transport=make)
        if options.permission_prompts != "none" and options.permission_prompt_tool_name is None:
            options = options.with_(asks=self.approvals.asks, can_use_tool=self.approvals.recall)
        return options

    async def change_settings(self, model: str | None, permission_mode: str | None) -> None:
        """Change settings of the child that runs, and of those to come.

        Args:
            model: None: as it is.
            permission_mode: None: as it is.

        Raises:
            SessionClosedError: the settings are no longer known.
            PilothouseError: the child refuses the change; then nothing is changed.
        """
        self.complete_options()
        assert self.options is not None
        asked = {"model": model, "permission_mode": permission_mode}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        options = self.options.with_(**changes)
        async with self._settings_lock:  # `stop` does not wait for the child
            if (session := self._session) is not None:
                with suppress(SessionClosedError):  # it ends: the next child has them from its start
                    if model is not None:
                        await session.set_model(model)
                    if permission_mode is not None:
                        await session.set_permission_mode(permission_mode)
            self.options = options
            if "options" in self.record.start:
                given = {**self.record.start["options"], **changes}
                self.record.start = {**self.record.start, "options": given}
                await self.journal.update(self.id, start=self.record.start)
        self.tell_state()

    async def start(self) -> None:
        """Start the child now.

        Raises:
            PilothouseError: the child cannot be started.
        """
        self.prepare()
        assert self._session is not None
        await self._session.start()
        await self._mark_live()

    async def open_child(self, check: Callable[[], None]) -> Session:
        """Return the running child, for requests beside prompts; starts it if there is none.

        Args:
            check: called first; raises if no child may start.

        Raises:
            RefusedRequestError, SessionClosedError, OptionsError: as `prepare`.
            PilothouseError: the child cannot be started.
        """
        self.mark_used()
        async with self._lock:  # if the child is just being ended, wait
            check()
            self.prepare()
            assert self._session is not None
            session = self._session
        await session.start()
        await self._mark_live()
        return session

    async def list_servers(self) -> list[dict[str, Any]]:
        """Return the MCP servers of the child that runs; none without one.

        Raises:
            PilothouseError: the child does not answer.
        """
        servers = [] if self._session is None else await self._session.mcp.status()
        return [
            {
                "name": server.name,
                "status": server.status,
                "error": server.error,
                "tools": [str(tool.get("name")) for tool in server.tools],
            }
            for server in servers
        ]

    async def _mark_live(self) -> None:
        if self.record.state != "live":
            self.record.state, self.record.ending = "live", None
            await self.journal.update(self.id, state="live", ending=None)

    @property
    def waiting_count(self) -> int:
        """Number of prompts without a result so far."""
        return len(self._prompts)

    @property
    def queued_prompts(self) -> list[dict[str, str]]:
        """The prompts behind the first one: the id and the first line of each."""
        return [{"id": key, "title": prompt.title} for key, prompt in list(self._prompts.items())[1:]]

    def withdraw_prompt(self, prompt_id: str) -> None:
        """Take a prompt out of the queue.

        Raises:
            RefusedRequestError: no prompt with this id waits ("unknown_prompt"), or it is being answered ("busy").
        """
        prompt = self._prompts.get(prompt_id)
        if prompt is None:
            raise RefusedRequestError("unknown_prompt", f"no prompt {prompt_id[:80]!a} waits in this session")
        if prompt.query.has_begun:
            raise RefusedRequestError("busy", "the prompt is being answered: interrupt the session to stop it")
        prompt.scope.cancel()

    async def send_prompt(self, prompt: Prompt, title: str, accept: Callable[[], None]) -> Query:
        """Accept a prompt. The caller must pass the returned query to `run_query`.

        Args:
            prompt: the prompt.
            title: what the queue shows of it.
            accept: called when nothing else can happen before the prompt is accepted; raises if it cannot be.

        Raises:
            UsageError: the prompt cannot be sent.
            SessionClosedError: see `prepare`.
        """
        self.mark_used()  # at once: from here on, the child is not idle
        async with self._lock:  # if the child is just being ended, wait; then another one starts
            accept()
            self.prepare()
            assert self._session is not None
            query = self._session.query(prompt)
        self._prompts[query.id] = AcceptedPrompt(query, title, anyio.CancelScope())
        self.tell_state()
        return query

    @property
    def given_count(self) -> int:
        """Number of words for a turn of which it is not known what became."""
        return len(self._words)

    @property
    def given_words(self) -> list[dict[str, str]]:
        """Those of them that are on their way: the id and the first line of each."""
        return [{"id": words.steering.id, "title": words.title} for words in self._words if words.steering]

    async def steer(self, content: Prompt, title: str, when: SteerTime, if_late: LateWords) -> GivenWords | None:
        """Give words to the prompt that is being answered. The caller must pass the result to `report_outcome`.

        Args:
            content: text, or content blocks.
            title: what the list of them shows.
            when: as for `Query.steer`.
            if_late: as for `Query.steer`.

        Returns:
            None: no turn runs yet, and nothing was sent.

        Raises:
            UsageError: words that cannot be a prompt.
        """
        self.mark_used()
        current = next((prompt.query for prompt in self._prompts.values()), None)
        if current is None or not current.has_begun:
            return None
        words = GivenWords(title)
        self._words.append(words)
        try:
            steering = await current.steer(cast("Any", content), when=when, if_late=if_late)
            words.steering = steering if steering.was_sent else None
        finally:
            if words.steering is None:
                self._words.remove(words)
        if words.steering is None:
            return None
        self.tell_state()
        return words

    async def report_outcome(self, words: GivenWords) -> None:
        """Wait until it is known what became of words, and report it in the output."""
        assert words.steering is not None
        key, outcome = words.steering.id, await words.steering.outcome()
        self._words.remove(words)
        await self.report_words(key, outcome, words.title)
        self.journal.remove_prompt_later(key)
        self.tell_state()

    async def report_words(self, key: str, outcome: SteerOutcome, title: str) -> None:
        """Report in the output what became of words."""
        await self._report({"subtype": STEERING_SUBTYPE, "steering": key, "outcome": outcome, "title": title})

    async def run_query(self, query: Query) -> None:
        """Run a prompt to its result. A failure is reported in the output and kept in `last_error`."""
        with self._prompts[query.id].scope:
            await self._run_query(query)
        self.journal.remove_prompt_later(query.id)

    async def report_lost_prompt(self, prompt_id: str, title: str) -> None:
        """Report a prompt that the host had taken before it was killed, unless the output has its result."""
        start = max(self.record.output_start, self.record.output_end - TAIL_BYTES)
        lines = (await self.journal.read(self.id, start, TAIL_BYTES)).split(b"\n")
        if any(prompt_id.encode() in line and _RESULT_PATTERN.search(line) for line in lines):
            return
        with suppress(JournalError):  # then the report cannot be stored either, which is logged
            await self.end_line()
        await self._record_failure(
            prompt_id,
            SessionClosedError(f"the host was restarted before the end of the prompt {title!r}: send it again"),
        )

    async def _run_query(self, query: Query) -> None:
        try:
            await self._mark_live()
            async for _ in query:  # the output has the messages: a turn of hours must not keep them in memory, too
                pass
            result = await query.result()
            # With a result the conversation is saved and can be resumed; not before.
            if result.session_id and result.session_id != self.record.conversation:
                self.record.conversation = result.session_id
                self.journal.claim_conversation_later(result.session_id, self.record.owner)
                await self.journal.update(self.id, conversation=result.session_id)
            self.last_result = {name: getattr(result, name) for name in _RESULT_FIELDS}
            self.last_result["denied"] = [str(denial.tool_name) for denial in result.permission_denials]
            self.last_result["error"] = self.last_error = None if result.error is None else str(result.error)
        except Exception as error:  # noqa: BLE001 - no task waits for this one: the output reports it
            if not isinstance(error, PilothouseError):
                _log.error("a prompt of session %s failed", self.id, exc_info=error)
            await self._record_failure(query.id, error)
        finally:
            del self._prompts[query.id]
            self.mark_used()
            self.tell_state()

    async def record_output(self, data: bytes) -> None:
        """Journal the child's output, and tell the id of the conversation once it is known."""
        await super().record_output(data)
        if self._conversation != self._told_conversation:
            self.tell_state()

    @property
    def _conversation(self) -> str | None:
        return self.record.conversation or (None if self._session is None else self._session.id)

    async def describe_health(self) -> dict[str, Any]:
        """Return what the child has loaded: MCP servers with their states, hooks, and what no option asked for."""
        if self._session is None:
            return {"mcp_servers": [], "isolation": None}
        servers: list[dict[str, Any]] = []
        problem: str | None = None
        try:
            servers = await self.list_servers()
        except PilothouseError as error:
            problem = str(error)
        shown = [{**server, "tools": len(server["tools"])} for server in servers]
        isolation = self._session.info.isolation_report()
        return {"mcp_servers": shown, "mcp_problem": problem, "isolation": isolation and msgspec.to_builtins(isolation)}

    async def _record_failure(self, prompt_id: str, error: Exception) -> None:
        kind = type(error).__name__
        self.last_error = str(error) if isinstance(error, PilothouseError) else kind
        await self._report(
            {"subtype": FAILED_SUBTYPE, "prompt": prompt_id, "error": self.last_error, "error_type": kind}
        )

    async def _report(self, message: Mapping[str, Any]) -> None:
        try:
            await self.record_own_line(encode_json({"type": "system", **message}) + b"\n")
        except PilothouseError as full:
            _log.error("session %s: %s", self.id, full)

    async def interrupt(self) -> None:
        """Interrupt the current turn; returns at once if none runs."""
        if self._session is not None:
            await self._session.interrupt()

    async def stop(self, reason: str) -> None:
        """End the child. The next prompt starts another."""
        async with self._lock:
            self.logins.end_all()
            if self._session is not None:
                self.approvals.is_stopping = not self.is_removed
                try:
                    await self._session.close()
                except PilothouseError as error:  # the child has ended; what it stored is incomplete
                    _log.error("session %s: %s", self.id, error)
                finally:
                    self.approvals.is_stopping = False
            if self.record.state == "live":
                await self.record_exit(ExitInfo(detail=reason))
            self._session = None
            self.tell_state()

    @property
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""
        return self._session is not None

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is running or queued, or a request of the child waits for a person."""
        if self._prompts or self.approvals.is_waiting:
            return True
        return self._session is not None and self._session.state in ("starting", "running")

    @property
    def idle_seconds(self) -> float:
        """See `ServerSession`; whoever logs in is given the time for it."""
        return 0.0 if self.logins.is_waiting else super().idle_seconds

    def describe(self) -> Mapping[str, Any]:
        """Return the description of the session for REST."""
        self._told_conversation = self._conversation
        return {
            **super().describe(),
            "conversation": self._conversation,
            "waiting": self.waiting_count,
            "queued": self.queued_prompts,
            "steering": self.given_words,
            "logins": self.logins.describe(),
            "last_result": self.last_result,
            "error": self.last_error,
        }

    def describe_briefly(self) -> dict[str, Any]:
        """See `ServerSession`; the last result is without its typed output."""
        shown, result = super().describe_briefly(), self.last_result
        if result is not None:
            shown["last_result"] = {**result, "text": result["text"][:MAX_EVENT_TEXT], "structured": None}
        if self.last_error is not None:
            shown["error"] = self.last_error[:MAX_EVENT_TEXT]
        return shown


class WebSocketSession(ServerSession):
    """One child, driven by a remote client.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        unacknowledged: bytes of output that may wait for the client before the child must wait.
        ask_seconds: seconds until an approval that nobody settles is denied; see `InboxTransport`.
        input_filter: checks the client's lines; None where no input will come.

    Attributes:
        link: byte counts of the attached client; without one, those of the last.
        changed: notified when there is something to send: standard error, an acknowledgement, the end.
        client_scope: cancelled when another connection takes over; None without a connection.
        stderr: the last lines of standard error that were not sent to a client.
    """

    def __init__(
        self,
        journal: OutputJournal,
        record: JournaledSession,
        *,
        unacknowledged: int,
        ask_seconds: float,
        input_filter: InputFilter | None = None,
    ) -> None:
        super().__init__(journal, record, ask_seconds)
        self.link = Link(receive_window=ReceiveWindow(record.input_end))
        self.changed = LoopCondition()
        self.client_scope: anyio.CancelScope | None = None
        self.stderr: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._unacknowledged = unacknowledged
        self._transport: Transport | None = None
        self._run_scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._stop_reason = ""
        self._is_running_turn = False
        self._input: deque[bytes] = deque()
        self._input_changed = LoopCondition()
        self._input_filter = input_filter
        self._lines = CompleteLines()
        self._written_bytes = record.input_end  # handed to the child, or held in `_lines`
        self._is_sending = False
        self._stored = StoredOutput()  # the client gets what is stored
        self._is_input_broken = False
        if record.state == "ended":
            self._ended.set()

    # The life of the child.

    async def start(self, transport: Transport, invocation: Invocation) -> None:
        """Start the child. Call `run` next.

        Raises:
            PilothouseError: the child could not be started.
        """
        self._transport = transport

        def on_line(line: str) -> None:
            self.stderr.append(line)
            self.changed.notify_all()

        await transport.start(replace(invocation, on_stderr=on_line))

    async def run(self) -> None:
        """Copy bytes until the child has ended or `stop` is called."""
        transport = self._transport
        assert transport is not None
        ending = ExitInfo(detail="the session failed")
        try:
            with anyio.CancelScope() as self._run_scope:
                if not self._stop_reason:
                    ending = await self._run_transport(transport)
        except Exception:  # noqa: BLE001 - one session must not end the others
            _log.exception("session %s failed", self.id)
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await transport.close()
                except PilothouseError as error:
                    _log.warning("session %s: %s", self.id, error)
                self._transport = None
                await self.record_exit(ExitInfo(detail=self._stop_reason) if self._stop_reason else ending)
                self.output.finish()
                self._ended.set()

    async def _run_transport(self, transport: Transport) -> ExitInfo:
        ending = ExitInfo()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.serve)
            tasks.start_soon(self._run_half, self._input_loop, transport)
            await self._run_half(self._output_loop, transport)
            ending = await transport.exit_info()
            tasks.cancel_scope.cancel()
        return ending

    async def _run_half(self, work: Callable[[Transport], Awaitable[None]], transport: Transport) -> None:
        """Run one direction; an error in it ends both directions and becomes the ending of the session."""
        try:
            await work(transport)
        except PilothouseError as error:
            _log.error("session %s ends: %s", self.id, error)
            self._stop_reason = self._stop_reason or str(error)
            assert self._run_scope is not None
            self._run_scope.cancel()

    async def _output_loop(self, transport: Transport) -> None:
        before = b""
        while data := await transport.receive():
            await self.record_output(self._stored.feed(data))
            if find_session_id(data) not in ("", self.record.conversation):
                await self._note_conversation()
            if _RESULT_PATTERN.search(before + data):
                self._is_running_turn = False
            before = data[-_PATTERN_OVERLAP:]
            await self.output.wait_for_space(self._unacknowledged)
        await self.record_output(self._stored.feed(b""))

    async def _note_conversation(self) -> None:
        place = max(self.output.start, self.output.end - TAIL_BYTES)
        found = find_conversation(await self.output.read(place, TAIL_BYTES), begins_line=place == 0)
        if found not in ("", self.record.conversation):
            self.record.conversation = found
            self.journal.claim_conversation_later(found, self.record.owner)
            self.journal.update_later(self.id, conversation=found)

    async def stop(self, reason: str) -> None:
        """End the child, and wait until it has exited and the journal has recorded that. Idempotent."""
        self._stop_reason = self._stop_reason or reason
        if self._run_scope is not None:
            self._run_scope.cancel()
        await self._ended.wait()

    # Input of the client.

    def attach(self, client: str, begin: int, heartbeat: float, scope: anyio.CancelScope) -> Link:
        """Attach a connection, which replaces the present one.

        Args:
            client: its id. From another client than before, input continues with the line that was incomplete.
            begin: offset in the output at which it continues.
            heartbeat: seconds of silence after which it is pinged.
            scope: of the connection.
        """
        if client != self.record.client:
            self._input.clear()
            self._written_bytes -= len(self._lines.flush())
            self.record.client, self.record.input_end = client, self._written_bytes
            self.journal.update_later(self.id, client=client, input_end=self.record.input_end)
            self.link.receive_window = ReceiveWindow(self.record.input_end)
        self.link = Link(SendBuffer(begin), self.link.receive_window, heartbeat_seconds=heartbeat)
        self.link.start_connection(begin, anyio.current_time())
        if self.client_scope is not None:
            self.client_scope.cancel()
        self.client_scope = scope
        return self.link

    def accept(self, data: bytes) -> None:
        """Take the client's next bytes, which the link has numbered."""
        if self.has_child:
            self._input.append(data)
            self._is_running_turn = self._is_running_turn or bool(_PROMPT_PATTERN.search(data))
            self._input_changed.notify_all()
        self.mark_used()

    def end_input(self) -> None:
        """End the input where the link says."""
        self._input_changed.notify_all()

    async def _input_loop(self, transport: Transport) -> None:
        while True:
            while self._input:
                await self._write_chunk(transport, self._input.popleft())
            if self._can_end_input:
                self.record.input_ended = True
                await self._write(transport, self._lines.flush())
                await self.journal.update(self.id, input_ended=True)
                await transport.end_input()
            await self._input_changed.wait_until(lambda: bool(self._input) or self._can_end_input)

    @property
    def _can_end_input(self) -> bool:
        window = self.link.receive_window
        return window.end == window.received and not self.record.input_ended

    async def _write_chunk(self, transport: Transport, data: bytes) -> None:
        window = self.link.receive_window
        self._written_bytes += len(data)
        await self._write(transport, self._lines.feed(data))
        if self._lines.held_bytes > DEFAULT_MAX_LINE_BYTES:
            raise ProtocolError(f"a line of input is longer than {DEFAULT_MAX_LINE_BYTES:,} bytes")
        if window is not self.link.receive_window:  # another client took over while the child was slow to read
            return
        # Journaled before it is acknowledged, so that the client never has to resend data that it has dropped.
        await self.journal.update(self.id, input_end=window.received + len(data))
        if window is self.link.receive_window:
            self.link.mark_delivered(len(data), anyio.current_time())
            self.record.input_end = window.received
            self.changed.notify_all()

    async def _write(self, transport: Transport, lines: bytes) -> None:
        whole = [line + b"\n" for line in lines.split(b"\n")]
        whole[-1] = whole[-1][:-1]  # the last one may have no newline
        data = b"".join([await self._filter_line(line) for line in whole if line])
        if data:
            await self._send(transport, data)

    async def _send(self, transport: Transport, data: bytes) -> None:
        """Send the child some input; once it reads no more and will end, do nothing."""
        self._is_sending = True
        self._stored.note_input(data)
        try:
            if not self._is_input_broken:
                await transport.send(data)
        except anyio.BrokenResourceError:
            self._is_input_broken = True
        finally:
            self._is_sending = False

    async def _filter_line(self, line: bytes) -> bytes:
        """Return the line as the child gets it; b"" if the host responds itself.

        Raises:
            ProtocolError: the line ends the session.
        """
        try:
            return line if self._input_filter is None else self._input_filter.check_line(line)
        except ControlRequestRefusedError as refused:
            _log.warning("session %s: %s", self.id, refused)
            await self.record_own_line(refused.make_response())
            return b""

    async def interrupt(self) -> None:
        """Send the child an interrupt request, between two lines of the client's.

        Raises:
            ValueError: the client is in the middle of a line, or the child has not read what came before.
        """
        if self._transport is None or self.record.input_ended:
            return
        if self._input or self._lines.held_bytes or self._is_sending:
            raise ValueError("the client is in the middle of a line; try again")
        request = {"type": "control_request", "request_id": f"host-{self.id}", "request": {"subtype": "interrupt"}}
        await self._send(self._transport, json.dumps(request).encode() + b"\n")

    # State.

    @property
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""
        return self.record.state == "live"

    @property
    def is_busy(self) -> bool:
        """Whether a prompt was sent and its result has not come."""
        return self.has_child and self._is_running_turn


def find_session_id(data: bytes) -> str:
    """Return what may be the last conversation id in a piece of output, "" if there is none."""
    at = data.rfind(b'"session_id":')
    found = _SESSION_ID_PATTERN.match(data, at) if at >= 0 else None
    return found[1].decode() if found else ""


class _TopFields(msgspec.Struct):
    type: str = ""
    subtype: str = ""
    session_id: str = ""


_top_fields = msgspec.json.Decoder(_TopFields)


def find_conversation(data: bytes, *, begins_line: bool) -> str:
    """Return the conversation that the CLI names in the last whole init or result message of a piece of output.

    Only these count, and only their own field: what a model has written may look the same.
    """
    for line in reversed(data.split(b"\n")[0 if begins_line else 1 : -1]):
        try:
            fields = _top_fields.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if fields.type == "result" or (fields.type, fields.subtype) == ("system", "init"):
            return fields.session_id
    return ""
