"""`ControlChannel`: moves bytes between a transport and the protocol, and matches control requests with responses.

It does not decide about prompts, results or deadlines.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.callbacks import convert_failures
from pilothouse.engine.failures import oversize_error
from pilothouse.engine.incoming_requests import IncomingRequests
from pilothouse.errors import (
    ControlError,
    ControlTimeout,
    LineDecodeError,
    PeerError,
    PilothouseError,
    SessionClosedError,
)
from pilothouse.messages import LineSkippedMessage, Message
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
    from pilothouse.engine.extensions import HandlerSet


log = logging.getLogger("pilothouse.engine")

SkippedLine = NonJsonLine | LineTooLong | InvalidFrame

LOGGED_CHARS = 200  # of a line that is not a message
REDACTED_BYTES = 64 * 1024  # of that line, searched for keys
EMPTY: Mapping[str, Any] = MappingProxyType({})
PIECE_BYTES = 4096  # read at a time after lines that are not messages; each may take 20 µs
TRANSPORT = "the transport"  # in errors
CANCEL_SEND_SECONDS = 1.0  # for sending a cancel request to the CLI, which is a courtesy


class Received(Struct, frozen=True):
    """What came in one piece, besides the control protocol.

    Attributes:
        messages: in order.
        skipped: lines that are neither a message nor part of the control protocol; one of them may have been part of
            a message.
        size: bytes on the wire, since the last complete message.
    """

    messages: list[Message]
    skipped: list[SkippedLine]
    size: int


class PendingRequest:
    """A control request that was sent; `wait` returns the response."""

    def __init__(self, request_id: str, subtype: str) -> None:
        self.request_id = request_id
        self.subtype = subtype
        self._payload: Mapping[str, Any] = EMPTY
        self._error: BaseException | None = None
        self._has_response = anyio.Event()

    def resolve(self, payload: Mapping[str, Any] | None = None, error: BaseException | None = None) -> None:
        """Set the response, or the error that takes its place."""
        self._payload, self._error = payload or EMPTY, error
        self._has_response.set()

    async def wait(self) -> Mapping[str, Any]:
        """Wait for the response; raises the error that came in its place."""
        await self._has_response.wait()
        if self._error is not None:
            raise self._error
        return self._payload


class ControlChannel:
    """The control protocol over a transport that has been started.

    Args:
        transport: started.
        start_task: runs work beside the reader, until the connection ends.
        handlers: handle the requests of the CLI; a request without a handler is refused.
        redact: removes keys from output that is not a message.
        max_line_bytes: longest line of output.
        control_timeout: seconds to wait for the response to a control request.

    Attributes:
        connection: the state machine of the protocol.
        last_problem: the last line of output that could not be read, as an error.
        incoming: the open requests of the CLI.
        is_preparing: whether `before_first_prompt` of the handlers still runs.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        start_task: Callable[[Callable[[], Awaitable[None]]], object],
        handlers: HandlerSet | None = None,
        redact: Callable[[str], str] = str,
        max_line_bytes: int,
        control_timeout: float,
    ) -> None:
        self._transport = transport
        self._redact = redact
        self._control_timeout = control_timeout
        self._handlers = handlers
        self._start_task = start_task
        self._pending: dict[str, PendingRequest] = {}
        self._close_error: BaseException | None = None
        self.is_preparing = False
        self.last_problem: PeerError | None = None
        # A transport that takes over a running CLI has its own prefix: responses to earlier requests must not
        # match ours.
        self.connection = Connection(max_line_bytes=max_line_bytes, id_prefix=transport.facts.request_prefix)
        self.connection.has_odd_lines = True  # the first chunk is read with care
        self.incoming = IncomingRequests(
            self.connection, {} if handlers is None else handlers.handlers, self._send_quietly, start_task
        )
        self._skipped: list[SkippedLine] = []
        self._size = 0  # bytes received since the last complete message
        self._unread = b""  # bytes received that were not read yet

    async def receive(self) -> Received | None:
        """Read until something came that is not control protocol, which is worked on here; None at the end."""
        while not self.connection.is_output_ended:
            chunk = await self._receive_piece()
            if chunk:
                self._size += len(chunk)
                messages = self.connection.feed(chunk)
            else:
                messages = self.connection.end_output().messages
            self._route()
            if messages or self._skipped:
                skipped, self._skipped = self._skipped, []
                size = self._size if messages else 0
                self._size -= size
                return Received(messages, skipped, size)
        return None

    async def _receive_piece(self) -> bytes:
        """Return what came; after lines that are not JSON, a part of it: a whole chunk would keep others waiting."""
        if self._unread:
            await checkpoint()
        else:
            with convert_failures(TRANSPORT):
                self._unread = await self._transport.receive()
        if not self.connection.has_odd_lines:
            received, self._unread = self._unread, b""
            return received
        piece, self._unread = self._unread[:PIECE_BYTES], self._unread[PIECE_BYTES:]
        self.connection.has_odd_lines = bool(self._unread)
        return piece

    def make_notes(self, skipped: list[SkippedLine]) -> list[LineSkippedMessage]:
        """Make one note for each reason, so that a CLI that prints nothing else cannot fill the memory."""
        notes: dict[str, LineSkippedMessage] = {}
        for event in skipped:
            reason, size, line = _describe_skipped(event)
            if reason in notes:
                note = notes[reason]
                notes[reason] = replace(note, lines=note.lines + 1, size=note.size + size)
            else:
                notes[reason] = LineSkippedMessage(reason=reason, size=size, text=self._redacted_text(line))
        return list(notes.values())

    def register_request(self, subtype: str, body: Mapping[str, Any] | None = None) -> tuple[PendingRequest, bytes]:
        """Register a control request; the caller sends the bytes and waits.

        Raises:
            PilothouseError: the error given to `close`, if the connection has ended.
        """
        if self._close_error is not None:
            raise self._close_error
        request_id, data = self.connection.request(subtype, body)
        pending = self._pending[request_id] = PendingRequest(request_id, subtype)
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
        pending, data = self.register_request(subtype, body)
        return await self.wait_response(pending, data, timeout=timeout)

    async def wait_response(
        self, pending: PendingRequest, unsent: bytes = b"", *, timeout: float = 0.0
    ) -> Mapping[str, Any]:
        """Send `unsent`, and wait for the response to a request; see `request`."""
        seconds = max(timeout, self._control_timeout)
        try:
            with anyio.move_on_after(seconds):
                if unsent:
                    # If the CLI has exited, the reader sees how and resolves the request with that error.
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError), convert_failures(TRANSPORT):
                        await self._transport.send(unsent)
                return await pending.wait()
            raise ControlTimeout(
                f"no response to the control request {pending.subtype!r} within {seconds:g} s (option control_timeout)",
                subtype=pending.subtype,
            )
        finally:
            if self._pending.pop(pending.request_id, None) is not None:
                await self._cancel_request(pending)

    def start_handlers(self) -> None:
        """Start the background work of the handlers, and let them send control requests."""
        assert self._handlers is not None
        self._handlers.bind_sender(self.notify)
        if self._handlers.run_background is not None:
            self._start_task(self._handlers.run_background)

    async def replace_handlers(self, handlers: HandlerSet, initialize_fields: Mapping[str, Any] | None) -> None:
        """Let `handlers` handle new requests of the CLI, and send it `initialize_fields`, if given.

        Open requests stay with the handlers that work on them.

        Raises:
            ControlError, ControlTimeout: the CLI refused the fields, or did not respond.
        """
        self._handlers = handlers
        self.incoming.handlers = handlers.handlers
        handlers.bind_sender(self.notify)
        if initialize_fields is not None:
            handlers.on_initialize(await self.request("initialize", initialize_fields))

    async def initialize(self, pending: PendingRequest, unsent: bytes = b"") -> Mapping[str, Any]:
        """Wait for the response to the initialize request and pass it to the handlers, which may raise."""
        info = await self.wait_response(pending, unsent)
        if self._handlers is not None:
            self._handlers.on_initialize(info)
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

        async def request() -> None:
            with suppress(PilothouseError):
                await self.request(subtype, body)

        if self._close_error is None:
            self._start_task(request)

    async def _cancel_request(self, pending: PendingRequest) -> None:
        if data := self.connection.cancel_request(pending.request_id):
            with anyio.move_on_after(CANCEL_SEND_SECONDS, shield=True):
                await self._send_quietly(data)

    async def _send_quietly(self, data: bytes) -> None:
        try:
            with convert_failures(TRANSPORT):
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
