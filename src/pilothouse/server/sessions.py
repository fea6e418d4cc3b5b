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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

from pilothouse.client import Query, QueryResult
from pilothouse.client.prompt import Prompt
from pilothouse.client.sessions import Session
from pilothouse.errors import PilothouseError, ProtocolError, SessionClosedError
from pilothouse.options import Invocation, Options
from pilothouse.protocol.frame_reader import DEFAULT_MAX_LINE_BYTES
from pilothouse.remote.link import WINDOW_BYTES, CompleteLines, ReceiveWindow
from pilothouse.server.journal import JournalError, OutputJournal, OutputLog, SessionRecord
from pilothouse.server.policy import ControlRequestRefusedError, InputFilter
from pilothouse.transports import ExitInfo, Transport
from pilothouse.transports.wrapper import TransportWrapper

_SESSION_ID_FIELD = b'"session_id":'
_UUID_BYTES = re.compile(rb' ?"([0-9a-fA-F-]{36})"')


class ServerSession(ABC):
    """One session on this host.

    Args:
        journal: of the host.
        record: the session's record in the journal.

    Attributes:
        attached_count: number of connections that read it now.
        last_used: event loop time of the last attachment or activity.
    """

    def __init__(self, journal: OutputJournal, record: SessionRecord) -> None:
        self.journal = journal
        self.record = record
        self.output = OutputLog(journal, record, acknowledged=record.kind == "wire")
        self.attached_count = 0
        self.last_used = anyio.current_time()
        self._run_scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._stop_reason = ""

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
    def idle_seconds(self) -> float:
        """Seconds without an attached client and without activity."""
        return 0.0 if self.attached_count else anyio.current_time() - self.last_used

    def mark_used(self) -> None:
        """Record activity."""
        self.last_used = anyio.current_time()

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the current turn; does nothing if none runs."""

    @abstractmethod
    async def stop(self, reason: str) -> None:
        """End the child. The session stays readable, and continues as far as its kind can."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description of the session for REST. Times in seconds since the epoch."""
        record = self.record
        return {
            "id": record.id,
            "kind": record.kind,
            "owner": record.owner or None,
            "state": self.state,
            "created": record.created,
            "start": record.start,
            "conversation": record.conversation or None,
            "attached": self.attached_count,
            "output_bytes": record.output_end,
            "available_from": record.output_start,
            "ending": None if record.ending is None else _make_exit_fields(record.ending),
        }

    @property
    @abstractmethod
    def state(self) -> str:
        """The state in a word: "running", "idle", "dormant", "ended"."""

    async def record_output(self, data: bytes) -> None:
        """Journal the child's output, and find the id of the conversation in it.

        Raises:
            JournalError: the output could not be stored.
        """
        await self.output.append(data)
        self.mark_used()
        found = find_session_id(data) if self.record.kind == "wire" else ""  # the other kind gets it from results
        if found and found != self.record.conversation:
            self.record.conversation = found
            self.journal.update_later(self.id, conversation=found)

    async def record_exit(self, exit_info: ExitInfo) -> None:
        """Journal the ending, and wake the waiting tasks."""
        self.record.state, self.record.ending = "ended", exit_info
        with suppress(JournalError):  # if the journal is the cause, the next start of the host says "restarted"
            await self.journal.update(self.id, state="ended", ending=exit_info)
        self.record.changed = time.time()
        if self.record.kind == "wire":  # a session that the host drives continues with another child
            self.output.finish()
        self._ended.set()


def find_session_id(data: bytes) -> str:
    """Return the last conversation id in a piece of output, "" if there is none."""
    at = data.rfind(_SESSION_ID_FIELD)
    found = _UUID_BYTES.match(data, at + len(_SESSION_ID_FIELD)) if at >= 0 else None
    return found[1].decode() if found else ""


def _make_exit_fields(ending: ExitInfo) -> dict[str, Any]:
    return {"exit_code": ending.exit_code, "signal": ending.signal, "detail": ending.detail, "stderr": ending.stderr}


_log = logging.getLogger("pilothouse.server")

FAILED_SUBTYPE = "query_failed"
"""Subtype of the system message that the output gets when a prompt has failed."""

AdmitInvocation = Callable[[Invocation], Invocation]


class JournaledTransport(TransportWrapper):
    """A transport whose output is journaled before it is returned.

    Args:
        inner: the transport to the child; not started.
        admit: checks and completes the invocation; raises if it is refused.
        record_output: journals bytes.
        output: the stream of the session.
    """

    def __init__(
        self, inner: Transport, admit: AdmitInvocation, record_output: Callable[[bytes], Any], output: OutputLog
    ) -> None:
        super().__init__(inner)
        self._admit = admit
        self._record_output = record_output
        self._output = output

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        if not await self._output.ends_line():
            await self._record_output(b"\n")  # the previous child died in the middle of a line
        await self.inner.start(self._admit(invocation))

    async def receive(self) -> bytes:
        """See `Transport`."""
        data = await self.inner.receive()
        if data:
            await self._record_output(data)
        return data


class RestSession(ServerSession):
    """A conversation that continues with the next prompt, even if its child has ended.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        options: settings of the conversation, without `resume`; None if they are no longer known.
        admit: checks and completes the invocation of each child.
        make_transport: makes the transport to a child.
    """

    def __init__(
        self,
        journal: OutputJournal,
        record: SessionRecord,
        options: Options | None,
        *,
        admit: AdmitInvocation,
        make_transport: Callable[[], Transport],
    ) -> None:
        super().__init__(journal, record)
        self._options = options
        self._admit = admit
        self._make_transport = make_transport
        self._session: Session | None = None
        self._queries: list[Query] = []
        self._lock = anyio.Lock()
        self.last_error: str | None = None
        self.last_result: Mapping[str, Any] | None = None

    def _make_journaled_transport(self) -> Transport:
        return JournaledTransport(self._make_transport(), self._admit, self.record_output, self.output)

    def prepare(self) -> None:
        """Prepare to start a child, which resumes the conversation if there is one.

        Raises:
            SessionClosedError: the settings are no longer known.
            OptionsError: the settings are invalid.
        """
        if self._session is not None:
            return
        if self._options is None:
            raise SessionClosedError(
                "this session was started with keys, which are not stored, or the host no longer accepts its "
                "settings: start another one, with "
                f"resume={self.record.conversation!r}"
            )
        options = self._options.with_(transport=self._make_journaled_transport)
        if self.record.conversation:
            changes: dict[str, Any] = dict.fromkeys(("session_id", "continue_conversation", "fork_session"))
            options = options.with_(**changes, resume=self.record.conversation)
        self._session = Session(options)

    async def start(self) -> None:
        """Start the child now.

        Raises:
            PilothouseError: the child cannot be started.
        """
        self.prepare()
        assert self._session is not None
        await self._session.start()
        await self._mark_live()

    async def _mark_live(self) -> None:
        if self.record.state != "live":
            self.record.state, self.record.ending = "live", None
            await self.journal.update(self.id, state="live", ending=None)

    @property
    def waiting_count(self) -> int:
        """Number of prompts without a result so far."""
        return len(self._queries)

    async def send_prompt(self, prompt: Prompt) -> Query:
        """Accept a prompt. The caller must pass the returned query to `run_query`.

        Raises:
            UsageError: the prompt cannot be sent.
            SessionClosedError: see `begin`.
        """
        async with self._lock:  # if the child is just being ended, wait; then another one starts
            self.prepare()
            assert self._session is not None
            query = self._session.query(prompt)
        self._queries.append(query)
        self.mark_used()
        return query

    async def run_query(self, query: Query) -> None:
        """Run a prompt to its result. A failure is reported in the output and kept in `last_error`."""
        try:
            await self._mark_live()
            result = await query
            await self._set_conversation(result.session_id)
            self.last_result, self.last_error = (
                _make_result_fields(result),
                None if result.error is None else str(result.error),
            )
        except Exception as error:  # noqa: BLE001 - no task waits for this one: the output reports it
            await self._record_failure(query, error)
        finally:
            self._queries.remove(query)
            self.mark_used()

    async def _record_failure(self, query: Query, error: Exception) -> None:
        if not isinstance(error, PilothouseError):
            _log.error("a prompt of session %s failed", self.id, exc_info=error)
        self.last_error = str(error) if isinstance(error, PilothouseError) else type(error).__name__
        line: dict[str, Any] = {"type": "system", "subtype": FAILED_SUBTYPE, "error": self.last_error}
        line["error_type"] = type(error).__name__
        try:
            start = b"" if await self.output.ends_line() else b"\n"
            await self.record_output(start + msgspec.json.encode(line) + b"\n")
        except PilothouseError as full:
            _log.error("session %s: %s", self.id, full)

    async def _set_conversation(self, conversation: str | None) -> None:
        # With a result the conversation is saved and can be resumed; not before.
        if conversation and conversation != self.record.conversation:
            self.record.conversation = conversation
            await self.journal.update(self.id, conversation=conversation)

    async def interrupt(self) -> None:
        """Interrupt the current turn; returns at once if none runs."""
        if self._session is not None:
            await self._session.interrupt()

    async def stop(self, reason: str) -> None:
        """End the child. The next prompt starts another."""
        async with self._lock:
            if self._session is not None:
                await self._session.close()
            if self.record.state == "live":
                await self.record_exit(ExitInfo(detail=reason))
            self._session = None

    def finish_output(self) -> None:
        """End the output for its readers, because the session is removed."""
        self.output.finish()

    @property
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""
        return self._session is not None

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is running or queued."""
        return bool(self._queries) or (self._session is not None and self._session.state in ("starting", "running"))

    @property
    def state(self) -> str:
        """The state in a word: "dormant", "running" or "idle"."""
        return "dormant" if self._session is None else "running" if self.is_busy else "idle"

    def describe(self) -> Mapping[str, Any]:
        """Return the description of the session for REST."""
        return {
            **super().describe(),
            "waiting": self.waiting_count,
            "last_result": self.last_result,
            "error": self.last_error,
        }


def _make_result_fields(result: QueryResult) -> dict[str, Any]:
    return {
        "is_success": result.is_success,
        "text": result.text,
        "structured": result.structured,
        "denied": [str(denial.tool_name) for denial in result.permission_denials],
        "turns": result.turns,
        "cost_usd": result.cost_usd,
        "duration_ms": result.duration_ms,
    }


MAX_STDERR_LINES = 256
"""Lines kept while no client is attached; the oldest are dropped."""

# This only decides how long the host waits at its end, so searching the bytes is accurate enough.
_RESULT_PATTERN = re.compile(rb'"type": ?"result"')
_PATTERN_OVERLAP = len(b'"type": "result"') - 1
_PROMPT_PATTERN = re.compile(rb'"type": ?"user"')


class WebSocketSession(ServerSession):
    """One child, driven by a remote client.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        unacknowledged: bytes of output that may wait for the client before the child must wait.
        input_filter: checks the client's lines; None where no input will come.

    Attributes:
        stderr: the last lines of standard error that were not sent to a client.
        receive_window: byte counts of the client's input.
        on_change: called for a new line of standard error, the end of the input, and the end of the child.
        on_delivered: called with the number of bytes that the child has received.
        replace: ends the attached connection, because another one takes its place; None without a connection.
        is_ending_sent: whether the attached client was sent the ending.
    """

    def __init__(
        self,
        journal: OutputJournal,
        record: SessionRecord,
        *,
        unacknowledged: int,
        input_filter: InputFilter | None = None,
    ) -> None:
        super().__init__(journal, record)
        self.stderr: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self.on_change: Callable[[], None] = _do_nothing
        self.on_delivered: Callable[[int], None] = self.mark_delivered
        self.replace: Callable[[], None] | None = None
        self.is_ending_sent = False
        self._unacknowledged = unacknowledged
        self._transport: Transport | None = None
        self._input: deque[bytes] = deque()
        self.receive_window = ReceiveWindow(record.input_end, window=WINDOW_BYTES)
        self._ends_at: int | None = None
        self._lines = CompleteLines()
        self._written_bytes = record.input_end
        self._is_input_broken = False
        self._input_changed = anyio.Event()
        self._is_running_turn = False
        self._input_filter = input_filter
        self._queued_responses: list[bytes] = []
        self._output_lock = anyio.Lock()
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
            self.on_change()

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
                self.on_change()

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
            await self._record(data)
            if _RESULT_PATTERN.search(before + data):
                self._is_running_turn = False
            before = data[-_PATTERN_OVERLAP:]
            await self.output.wait_for_space(self._unacknowledged)

    async def _record(self, data: bytes) -> None:
        """Journal the child's output and, between two of its lines, the responses that the host gives itself."""
        async with self._output_lock:
            if data:
                await self.record_output(data)
            if self._queued_responses and await self.output.ends_line():
                answers, self._queued_responses = b"".join(self._queued_responses), []
                await self.record_output(answers)

    def mark_delivered(self, count: int) -> None:
        """Count bytes that the child has received, while no client is attached."""
        self.receive_window.mark_delivered(count)

    async def stop(self, reason: str) -> None:
        """End the child, and wait until it has exited and the journal has recorded that. Idempotent."""
        self._stop_reason = self._stop_reason or reason
        if self._run_scope is not None:
            self._run_scope.cancel()
        await self._ended.wait()

    # Attaching.

    def on_detached(self) -> None:
        """Reset the callbacks, because no client is attached any more."""
        self.replace = None
        self.on_change = _do_nothing
        self.on_delivered = self.mark_delivered

    # Input of the client.

    def accept(self, data: bytes) -> None:
        """Take the client's next bytes, which `inbound` has numbered."""
        if self.has_child:
            self._input.append(data)
            self._is_running_turn = self._is_running_turn or bool(_PROMPT_PATTERN.search(data))
            self._wake()
        self.mark_used()

    def end_input(self, at: int) -> None:
        """End the input after byte `at`, which `inbound` has checked."""
        if self.has_child and not self.record.input_ended:
            self._ends_at = at
            self._wake()

    def reset_input(self) -> None:
        """Prepare for another client: drop the incomplete line of the previous one. It comes again as a whole."""
        self._input.clear()
        self._ends_at = None
        self._written_bytes -= self._lines.drop()
        self.record.input_end = self._written_bytes
        self.journal.update_later(self.id, input_end=self.record.input_end)
        self.receive_window = ReceiveWindow(self.record.input_end, window=WINDOW_BYTES)

    def _wake(self) -> None:
        self._input_changed.set()
        self._input_changed = anyio.Event()

    async def _input_loop(self, transport: Transport) -> None:
        while True:
            while self._input:
                await self._write_chunk(transport, self._input.popleft())
            if self._ends_at == self.receive_window.received and not self.record.input_ended:
                self.record.input_ended = True
                await self._write(transport, self._lines.flush())
                await self.journal.update(self.id, input_ended=True)
                await transport.end_input()
                self.on_change()
            await self._input_changed.wait()

    async def _write_chunk(self, transport: Transport, data: bytes) -> None:
        inbound = self.receive_window
        self._written_bytes += len(data)
        await self._write(transport, self._lines.feed(data))
        if self._lines.held_bytes > DEFAULT_MAX_LINE_BYTES:
            raise ProtocolError(f"a line of input is longer than {DEFAULT_MAX_LINE_BYTES:,} bytes")
        if inbound is not self.receive_window:  # another client took over while the child was slow to read
            return
        # Journaled before the client is told, so that the client never has to resend data that it has dropped.
        await self.journal.update(self.id, input_end=inbound.received + len(data))
        if inbound is self.receive_window:
            self.on_delivered(len(data))
            self.record.input_end = inbound.received

    async def _write(self, transport: Transport, lines: bytes) -> None:
        whole = [line + b"\n" for line in lines.split(b"\n")]
        whole[-1] = whole[-1][:-1]  # the last one may have no newline
        data = b"".join([await self._filter_line(line) for line in whole if line])
        try:
            if data and not self._is_input_broken:
                await transport.send(data)
        except anyio.BrokenResourceError:
            self._is_input_broken = True  # the child reads no more, and will end: drop the rest

    async def _filter_line(self, line: bytes) -> bytes:
        """Return the line as the child gets it; b"" if the host responds itself.

        Raises:
            ProtocolError: the line ends the session.
        """
        try:
            return line if self._input_filter is None else self._input_filter.check_line(line)
        except ControlRequestRefusedError as refused:
            _log.warning("session %s: %s", self.id, refused)
            self._queued_responses.append(refused.make_response())
            await self._record(b"")
            return b""

    async def interrupt(self) -> None:
        """Send the child an interrupt request, between two lines of the client's.

        Raises:
            ValueError: the client is in the middle of a line.
        """
        if self._transport is None or self.record.input_ended:
            return
        if self._input or self._lines.held_bytes:
            raise ValueError("the client is in the middle of a line; try again")
        request = {"type": "control_request", "request_id": f"host-{self.id}", "request": {"subtype": "interrupt"}}
        await self._transport.send(json.dumps(request).encode() + b"\n")

    # State.

    @property
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""
        return self.record.state == "live"

    @property
    def is_busy(self) -> bool:
        """Whether a prompt was sent and its result has not come."""
        return self.has_child and self._is_running_turn

    @property
    def state(self) -> str:
        """The state in a word: "ended", "running" or "idle"."""
        return "ended" if not self.has_child else "running" if self._is_running_turn else "idle"


def _do_nothing() -> None:
    """Do nothing: the callback while no client is attached."""
