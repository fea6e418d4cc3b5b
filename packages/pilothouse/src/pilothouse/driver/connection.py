"""`ControlChannel`: moves bytes between a transport and the protocol, and matches control requests with responses.

It does not decide about prompts, results or deadlines.
"""

# ruff: noqa: D102 - `QueryRun` says what each member of `ChildQuery` does

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from pilothouse.driver.failures import oversize_error
from pilothouse.driver.incoming_requests import IncomingRequests, ReaderTask
from pilothouse.driver.tasks import SingleWaiterEvent, find_asyncio_loop
from pilothouse.driver.turn import QueryTurn
from pilothouse.errors import (
    ControlError,
    ControlTimeout,
    LineDecodeError,
    PeerError,
    PilothouseError,
    SessionClosedError,
)
from pilothouse.messages import LineSkippedMessage, Message, ResultMessage, SystemMessage
from pilothouse.protocol import (
    Connection,
    ErrorReceived,
    InvalidFrame,
    LineTooLong,
    NonJsonLine,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
)
from pilothouse.transports import Transport

if TYPE_CHECKING:
    from pilothouse.driver.extensions import HandlerSet


log = logging.getLogger("pilothouse.driver")

SkippedLine = NonJsonLine | LineTooLong | InvalidFrame

LOGGED_CHARS = 200  # of a line that is not a message
REDACTED_BYTES = 64 * 1024  # of that line, searched for keys
EMPTY: Mapping[str, Any] = MappingProxyType({})
PIECE_BYTES = 4096  # read at a time after lines that are not messages; each may take 20 µs
CANCEL_SEND_SECONDS = 1.0  # for sending a cancel request to the CLI, which is a courtesy


class MessageSink(Protocol):
    """Takes messages from the reader, and tells the reader when to wait."""

    @property
    def is_full(self) -> bool:
        """Whether the reader should call `wait_for_space`."""
        ...

    def put(self, batch: list[Message], size: int) -> None:
        """Take a batch that was `size` bytes on the wire."""
        ...

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Take notes about lines that could not be read; called before the messages that came with them."""
        ...

    async def wait_for_space(self) -> None:
        """Wait until there is space, or `release_reader` was called."""
        ...

    def release_reader(self) -> None:
        """Release a waiting reader."""
        ...


class ChildQuery(MessageSink, Protocol):
    """The query that uses a child: the child tells `turn` what happens, calls `follow`, and then asks `turn`."""

    turn: QueryTurn
    keeps_input_open: bool
    wants_permission_events: bool

    def follow(self) -> None: ...
    def mark_cancelled(self, uuid: str) -> None: ...
    def put_note(self, note: SystemMessage) -> None: ...
    def add_result(self, result: ResultMessage) -> None: ...
    def accept_exit(self, exit_code: int | None = None) -> bool: ...
    def abandon(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    async def wait_decided(self) -> None: ...


class PendingRequest(SingleWaiterEvent, kw_only=True):
    """A control request that was sent. After `wait`, `response` returns the response.

    Attributes:
        seconds: how long to wait for the response.
        deadline: when the response must have arrived; set when a task starts to wait.
        send_scope: cancel scope around the sending of the request.
        on_error: called with an error that comes in place of the response, if no task waits.
    """

    request_id: str
    subtype: str
    seconds: float = inf
    deadline: float = inf
    send_scope: anyio.CancelScope | None = None
    on_error: Callable[[BaseException], object] | None = None
    _payload: Mapping[str, Any] = EMPTY
    _error: BaseException | None = None

    def resolve(self, payload: Mapping[str, Any] | None = None, error: BaseException | None = None) -> None:
        """Set the response, or the error that takes its place."""
        self._payload, self._error = payload or EMPTY, error
        self.set()
        if error is not None and self.on_error is not None:
            self.on_error(error)

    def response(self) -> Mapping[str, Any]:
        """The response; raises the error that came in its place."""
        if self._error is not None:
            raise self._error
        return self._payload


class ControlChannel:
    """The control protocol over a transport that has been started.

    Args:
        transport: started.
        sink: takes the messages.
        start_task: runs work beside `run`, until the connection ends.
        handlers: handle the requests of the CLI; a request without a handler is refused.
        redact: removes keys from output that is not a message.
        max_line_bytes: longest line of output.
        control_timeout: seconds to wait for the response to a control request.

    Attributes:
        connection: the state machine of the protocol.
        last_problem: the last line of output that could not be read, as an error.
        incoming: the open requests of the CLI.
        is_preparing: whether `before_first_prompt` of the handlers still runs.
        on_skipped: called with every line of output that is neither a message nor part of the control protocol.
    """

    def __init__(
        self,
        transport: Transport,
        sink: MessageSink,
        *,
        start_task: Callable[[Callable[[], Awaitable[None]]], object],
        handlers: HandlerSet | None = None,
        redact: Callable[[str], str] = str,
        max_line_bytes: int,
        control_timeout: float,
    ) -> None:
        self._transport = transport
        self._redact = redact
        self._sink = sink
        self._control_timeout = control_timeout
        self._handlers = handlers
        self._pending: dict[str, PendingRequest] = {}
        self._close_error: BaseException | None = None
        self._start_task = start_task
        self.is_preparing = self._is_reader_waiting = False
        self.on_skipped: Callable[[SkippedLine], object] | None = None
        self._skipped: list[SkippedLine] = []
        self.last_problem: PeerError | None = None
        # A transport that takes over a running CLI has its own prefix: responses to earlier requests must not
        # match ours.
        self.connection = Connection(max_line_bytes=max_line_bytes, id_prefix=transport.facts.request_prefix)
        self.connection.has_odd_lines = True  # the first chunk is read with care
        self.incoming = IncomingRequests(
            self.connection, {} if handlers is None else handlers.handlers, transport.try_send, self._send_quietly
        )
        self._size = 0  # bytes received since the last complete message
        self._unread = b""  # bytes received that were not read yet
        self._has_output_ended = False
        self._wakeup = SingleWaiterEvent()  # for the task that owns the connection
        self._wait_scope: anyio.CancelScope | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # known while `run` runs; None on trio
        self._clock = anyio.current_time

    async def run(self, check: Callable[[], float] = lambda: inf) -> None:
        """Read until the output of the CLI ends, and fail requests whose response is late.

        Runs once, in the task that owns the connection.

        Args:
            check: called at each wake-up; returns when to call it again. `check_at` makes that sooner.
        """
        self._loop = find_asyncio_loop()
        if self._loop is not None:
            self._clock = self._loop.time
        self._start_task(self._read)
        while not self._has_output_ended:
            with anyio.CancelScope(deadline=min(self._expire_requests(), check())) as self._wait_scope:
                await self._wakeup.wait()

    def check_at(self, when: float) -> None:
        """Wake the task that owns the connection at `when`, or earlier."""
        if self._wait_scope is not None and when < self._wait_scope.deadline:
            self._wait_scope.deadline = when

    def _expire_requests(self) -> float:
        """Fail the requests whose deadline has passed; returns the next deadline."""
        now = self._clock()
        for pending in self._pending.values():
            if pending.deadline <= now:
                pending.deadline = inf
                problem = (
                    f"no response to the control request {pending.subtype!r} within {pending.seconds:g} s "
                    "(option control_timeout)"
                )
                pending.resolve(error=ControlTimeout(problem, subtype=pending.subtype))
                if pending.send_scope is not None:
                    pending.send_scope.cancel()
        return min((pending.deadline for pending in self._pending.values()), default=inf)

    async def _read(self) -> None:
        """Read until the output ends, or until a handler has to wait; then a new task reads on."""
        reader = ReaderTask()
        try:
            with reader.scope:
                if await self._read_and_handle(reader):
                    self._has_output_ended = True
                    self._wakeup.set()
        except anyio.get_cancelled_exc_class():
            if reader.request is not None or not reader.has_run_handlers:
                raise
            self._start_task(self._read)  # a handler may have started one; if not, the next reader ends at once
            return
        await self.incoming.finish(reader)

    async def _read_and_handle(self, reader: ReaderTask) -> bool:
        """Read and run handlers. Returns whether the output has ended."""
        receive, connection, sink, questions = self._transport.receive, self.connection, self._sink, self.incoming
        feed, events, new = connection.feed, connection.events, questions.unhandled
        may_be_full = True  # the reader before this one may have filled the sink
        while True:
            if new and (rest := questions.handle_new(reader)) is not None:
                self._start_task(self._read)
                await rest
                return False
            # Responses may be behind unread messages: a full sink stops the reader only while no request is pending.
            while may_be_full and sink.is_full and not self._pending:
                self._is_reader_waiting = True
                await sink.wait_for_space()
                self._is_reader_waiting = False
            chunk = await (self._receive_piece() if connection.has_odd_lines else receive())
            if not chunk:
                break
            self._size += len(chunk)
            messages = feed(chunk)
            if events:
                self._route()
            may_be_full = bool(messages or self._skipped)
            if may_be_full:
                self._dispatch(messages)
        end = connection.end_output()
        if events:
            self._route()
        self._dispatch(end.messages)
        return True

    async def _receive_piece(self) -> bytes:
        """Return a small part of what came: a whole chunk of lines that are not JSON would keep other tasks waiting."""
        if self._unread:
            await checkpoint()
        else:
            self._unread = await self._transport.receive()
        piece, self._unread = self._unread[:PIECE_BYTES], self._unread[PIECE_BYTES:]
        self.connection.has_odd_lines = bool(self._unread)
        return piece

    def _dispatch(self, messages: list[Message]) -> None:
        skipped = self._skipped
        if skipped:
            self._skipped = []
            self._sink.add_skipped(self._make_notes(skipped))
        if messages:
            self._sink.put(messages, self._size)
            self._size = 0
        if skipped and self.on_skipped is not None:
            for event in skipped:  # after the messages: the lost line may belong to one of them
                self.on_skipped(event)

    def _make_notes(self, skipped: list[SkippedLine]) -> list[LineSkippedMessage]:
        """One note for each reason, so that a CLI that prints nothing else cannot fill the memory."""
        notes: dict[str, LineSkippedMessage] = {}
        for event in skipped:
            reason, size, line = _describe_skipped(event)
            if reason in notes:
                note = notes[reason]
                notes[reason] = replace(note, lines=note.lines + 1, size=note.size + size)
            else:
                notes[reason] = LineSkippedMessage(reason=reason, size=size, text=self._redacted_text(line))
        return list(notes.values())

    def start_request(self, subtype: str, body: Mapping[str, Any] | None = None) -> tuple[PendingRequest, bytes]:
        """Register a control request; the caller sends the bytes and waits.

        Raises:
            PilothouseError: the error given to `close`, if the connection has ended.
        """
        if self._close_error is not None:
            raise self._close_error
        request_id, data = self.connection.request(subtype, body)
        pending = self._pending[request_id] = PendingRequest(
            request_id=request_id, subtype=subtype, seconds=self._control_timeout, loop=self._loop
        )
        if self._is_reader_waiting:
            self._sink.release_reader()
        return pending, data

    async def request(
        self, subtype: str, body: Mapping[str, Any] | None = None, *, timeout: float = 0.0
    ) -> Mapping[str, Any]:
        """Send a control request and return its response. A cancelled call removes its entry and notifies the CLI.

        Args:
            subtype: of the request.
            body: its other keys.
            timeout: seconds to wait for the response, if they are more than `control_timeout`.

        Raises:
            ControlError: the CLI refused the request.
            ControlTimeout: no response in time.
            PilothouseError: the connection ended first.
        """
        pending, data = self.start_request(subtype, body)
        pending.seconds = max(timeout, self._control_timeout)
        return await self.wait_response(pending, data)

    async def wait_response(self, pending: PendingRequest, unsent: bytes = b"") -> Mapping[str, Any]:
        """Wait for the response to a request, for at most its `seconds`; `unsent` is sent first."""
        self.start_timeout(pending)
        try:
            if unsent and not self._transport.try_send(unsent):
                # If the CLI has exited, the reader sees how and resolves the request with that error.
                with (
                    anyio.CancelScope() as pending.send_scope,
                    suppress(anyio.BrokenResourceError, anyio.ClosedResourceError),
                ):
                    await self._transport.send(unsent)
            await pending.wait()
            return pending.response()
        finally:
            if self._pending.pop(pending.request_id, None) is not None:
                await self._cancel_request(pending)

    def start_timeout(self, pending: PendingRequest) -> None:
        """Let a request that was sent fail if its response does not come in time."""
        # One timer for all requests, instead of one for each.
        pending.deadline = self._clock() + pending.seconds
        self.check_at(pending.deadline)

    def start_handlers(self) -> None:
        """Start the background work of the handlers, and let them send control requests."""
        assert self._handlers is not None
        self._handlers.bind_sender(self.notify)
        if self._handlers.run_background is not None:
            self._start_task(self._handlers.run_background)

    def replace_handlers(self, handlers: HandlerSet) -> None:
        """Use these handlers for new requests; open requests stay with the handlers that work on them."""
        self._handlers = handlers
        self.incoming.handlers = handlers.handlers
        handlers.bind_sender(self.notify)

    async def send_initialize(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the initialize request again, with changed settings; returns the CLI's response."""
        info = await self.request("initialize", body)
        if self._handlers is not None:
            self._handlers.on_initialize(info)
        return info

    async def initialize(self, pending: PendingRequest, unsent: bytes = b"") -> Mapping[str, Any]:
        """Wait for the response to the initialize request and pass it to the handlers, which may raise."""
        info = await self.wait_response(pending, unsent)
        if self._handlers is not None:
            self._handlers.on_initialize(info)
            self.check_at(self._clock())  # a timer that is not needed slows each cycle of the loop
            if self._handlers.before_first_prompt is not None:
                self.is_preparing = True
                await self._handlers.before_first_prompt(self.request)
                self.is_preparing = False
        return info

    @property
    def last_non_json_line(self) -> str:
        """The last line of output that was not a message; "" if there was none."""
        noise = self.connection.non_json_lines
        return self._redacted_text(noise[-1]) if noise else ""

    def _redacted_text(self, line: bytes) -> str:
        # Redact before cutting: a part of a key would not be recognized.
        return self._redact(line[:REDACTED_BYTES].decode("utf-8", "replace"))[:LOGGED_CHARS]

    def close(self, error: BaseException | None = None) -> None:
        """Fail every pending request with `error`: no response can arrive any more."""
        if self._close_error is None:
            self._close_error = error or SessionClosedError("the connection is closed")
        for pending in self._pending.values():
            pending.resolve(error=self._close_error)
        self._pending.clear()

    def notify(self, subtype: str, body: Mapping[str, Any]) -> None:
        """Send a control request without waiting for its response; errors are ignored."""

        async def ask() -> None:
            with suppress(PilothouseError):
                await self.request(subtype, body)

        if self._close_error is None:
            self._start_task(ask)

    async def _cancel_request(self, pending: PendingRequest) -> None:
        if data := self.connection.cancel_request(pending.request_id):
            with anyio.move_on_after(CANCEL_SEND_SECONDS, shield=True):
                await self._send_quietly(data)

    async def _send_quietly(self, data: bytes) -> None:
        try:
            await self._transport.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            log.debug("the connection was closed before this notification was sent: %r", data[:200])

    def _route(self) -> None:
        events = self.connection.events
        while events:
            event = events.popleft()
            match event:
                case RequestReceived():
                    self.incoming.accept(event)
                case ResponseReceived(request_id=key, payload=payload):
                    if pending := self._pending.pop(key, None):
                        pending.resolve(payload)
                case ErrorReceived(request_id=key, subtype=subtype, error=text, code=code):
                    if pending := self._pending.pop(key, None):
                        # The CLI may quote the request, and the request may hold keys.
                        message = f"the CLI refused the control request {subtype!r}: {self._redact(text)}"
                        pending.resolve(error=ControlError(message, subtype=subtype, code=code))
                case RequestCancelled(request_id=key):
                    self.incoming.cancel(key)
                case NonJsonLine() | LineTooLong() | InvalidFrame():
                    self._skipped.append(event)
                    self._log_skipped(event)

    def _log_skipped(self, event: SkippedLine) -> None:
        match event:
            case NonJsonLine(line=line):
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("skipped a line of output that is not JSON: %r", self._redacted_text(line))
            case LineTooLong(size=size):
                self.last_problem = oversize_error(size)
                log.warning("%s", self.last_problem)
            case InvalidFrame(error=error):
                self.last_problem = error
                log.warning("skipped a line of output: %s", error)


def _describe_skipped(event: SkippedLine) -> tuple[str, int, bytes]:
    """The reason why a line was skipped, its size in bytes, and its beginning."""
    match event:
        case NonJsonLine(line=line):
            return "not_json", len(line), line
        case LineTooLong(size=size, head=head):
            return "too_long", size, head
        case InvalidFrame(error=LineDecodeError(line=line)):
            return "not_json", len(line), line
        case InvalidFrame(error=error):
            return "no_message", 0, str(error).encode("utf-8", "replace")
