"""One connection over one transport: moves bytes, hands messages on, and wakes those who wait for answers.

Owns the reading loop and the control requests under way. Decides nothing about prompts, results or deadlines.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from msgspec.structs import replace

from pilothouse.driver.failures import oversize_error
from pilothouse.driver.questions import Questions, Reader
from pilothouse.driver.wake import Wake, loop_clock
from pilothouse.errors import (
    ControlError,
    ControlTimeout,
    LineDecodeError,
    PeerError,
    PilothouseError,
    SessionClosedError,
)
from pilothouse.messages import LineSkippedMessage, Message
from pilothouse.protocol import BadLine, Connection, Inbound, Noise, Oversize, Refusal, Reply, Withdrawn
from pilothouse.transports import Transport

if TYPE_CHECKING:
    from pilothouse.driver.host import Host

log = logging.getLogger("pilothouse.driver")

Skipped = Noise | Oversize | BadLine

SHOWN_CHARS = 200  # of a line that is no message
SHOWN_BYTES = 64 * 1024  # of it, that are searched for keys
WITHDRAW_SECONDS = 1.0  # to tell the peer that an answer is no longer wanted; it is a courtesy


class Sink(Protocol):
    """Takes messages from the reader, and says when the reader should wait."""

    @property
    def full(self) -> bool:
        """Whether the reader should wait in `room`."""
        ...

    def put(self, batch: list[Message], size: int) -> None:
        """Take a batch that was `size` bytes on the wire."""
        ...

    def lost(self, notes: list[LineSkippedMessage]) -> None:
        """Take word of lines that could not be read; called before the messages that came with them."""
        ...

    async def room(self) -> None:
        """Wait until there is room, or `let_pass` was called."""
        ...

    def let_pass(self) -> None:
        """Release a waiting reader."""
        ...


class Pending(Wake):
    """A control request that was sent; once it was waited for, `answer` gives the answer.

    Attributes:
        due: when the answer must be there, once somebody waits for it.
        sending: around the sending of it.
        failed: hears of an error that comes in place of the answer, if nobody waits.
    """

    __slots__ = ("_error", "_payload", "due", "failed", "request_id", "sending", "subtype")

    def __init__(self, request_id: str, subtype: str) -> None:
        super().__init__()
        self.request_id = request_id
        self.subtype = subtype
        self.due = inf
        self.sending: anyio.CancelScope | None = None
        self.failed: Callable[[BaseException], object] | None = None
        self._payload: Mapping[str, Any] = {}
        self._error: BaseException | None = None

    def settle(self, payload: Mapping[str, Any] | None = None, error: BaseException | None = None) -> None:
        """The answer is there, or will never be."""
        self._payload, self._error = payload or {}, error
        self.set()
        if error is not None and self.failed is not None:
            self.failed(error)

    def answer(self) -> Mapping[str, Any]:
        """The answer that is there; raises what came in its place."""
        if self._error is not None:
            raise self._error
        return self._payload


class Link:
    """A connection over a transport that has been started.

    Args:
        transport: started.
        sink: takes the messages.
        beside: runs work beside `pump`, until the connection ends.
        host: what this process offers to the peer; a question that no desk of it knows is refused.
        redact: takes keys out of what the peer says and is no message.
        max_line_bytes: longest line of output.
        control_timeout: seconds to wait for the answer to a control request.

    Attributes:
        connection: the state machine.
        last_problem: the last line of output that could not be read, as an error.
        questions: those of the peer that are open.
        is_preparing: whether the host is still at what has to be before the first prompt.
        on_skipped: told of every line of output that was no message and no part of the control protocol.
    """

    def __init__(
        self,
        transport: Transport,
        sink: Sink,
        *,
        beside: Callable[[Callable[[], Awaitable[None]]], object],
        host: Host | None = None,
        redact: Callable[[str], str] = str,
        max_line_bytes: int,
        control_timeout: float,
    ) -> None:
        self._transport = transport
        self._redact = redact
        self._sink = sink
        self._control_timeout = control_timeout
        self._host = host
        self._waiting: dict[str, Pending] = {}
        self._closed: BaseException | None = None
        self._beside = beside
        self.is_preparing = False
        self.on_skipped: Callable[[Skipped], object] | None = None
        self._skipped: list[Skipped] = []
        self.last_problem: PeerError | None = None
        # One that goes on with a peer that was somebody else's must not take the answers to that one's requests.
        id_prefix: str = getattr(transport, "request_prefix", "ph")
        self.connection = Connection(max_line_bytes=max_line_bytes, id_prefix=id_prefix)
        self.questions = Questions(
            self.connection, {} if host is None else host.desks, transport.send_at_once, self._send_quietly
        )
        self._size = 0  # bytes of what came since the last message was complete
        self._is_over = False  # the output of the peer
        self._news = Wake()  # for the task that owns the connection
        self._errands: list[Callable[[], object]] = []
        self._alarm: anyio.CancelScope | None = None
        self._clock = anyio.current_time

    async def pump(self, look: Callable[[], float] = lambda: inf) -> None:
        """Read until the output of the peer ends, and give up on requests that wait too long for their answer.

        Runs once, in the task that owns the connection.

        Args:
            look: called when an alarm has gone off; returns when it has to be called again. `wake` makes that sooner.
        """
        self._clock = loop_clock()
        self._beside(self._read)
        while not self._is_over:
            self._news = Wake()
            while self._errands:
                self._errands.pop(0)()
            with anyio.CancelScope(deadline=min(self._give_up_late(), look())) as self._alarm:
                await self._news.wait()

    def soon(self, errand: Callable[[], object]) -> None:
        """Let the task that owns the connection do something, after all who were woken until now."""
        self._errands.append(errand)
        self._news.set()

    def wake(self, when: float) -> None:
        """Let the task that owns the connection look, then or before."""
        if self._alarm is not None and when < self._alarm.deadline:
            self._alarm.deadline = when

    def _give_up_late(self) -> float:
        """Settle the requests whose time is over; returns when it is that of the next one."""
        now = self._clock()
        for pending in self._waiting.values():
            if pending.due <= now:
                pending.due = inf
                words = (
                    f"no answer to the control request {pending.subtype!r} within {self._control_timeout:g} s "
                    "(option control_timeout)"
                )
                pending.settle(error=ControlTimeout(words, subtype=pending.subtype))
                if pending.sending is not None:
                    pending.sending.cancel()
        return min((pending.due for pending in self._waiting.values()), default=inf)

    async def _read(self) -> None:
        """Read until the output ends, or until an answer makes this task wait; then another one reads on."""
        reader = Reader()
        try:
            with reader.scope:
                if await self._read_and_answer(reader):
                    self._is_over = True
                    self._news.set()
        except anyio.get_cancelled_exc_class():
            if reader.question is not None or not reader.has_answered:
                raise
            self._read_on()  # a function that it ran may have done that; if not, the next reader ends at once
            return
        await self.questions.finish(reader)

    async def _read_and_answer(self, reader: Reader) -> bool:
        """Returns whether the output has ended."""
        receive, feed, sink, questions = self._transport.receive, self.connection.feed, self._sink, self.questions
        events, new = self.connection.events, questions.new
        while True:
            if new and await questions.answer_new(reader, self._read_on):
                return False
            # Answers may stand behind unread messages, so a full sink stops the reader only while none is awaited.
            while sink.full and not self._waiting:
                await sink.room()
            chunk = await receive()
            if not chunk:
                break
            self._size += len(chunk)
            messages = feed(chunk)
            if events:
                self._route()
            self._hand_on(messages)
        end = self.connection.end_output()
        if events:
            self._route()
        self._hand_on(end.messages)
        return True

    def _read_on(self) -> None:
        self._beside(self._read)

    def _hand_on(self, messages: list[Message]) -> None:
        skipped = self._skipped
        if skipped:
            self._skipped = []
            self._sink.lost(self._notes_of(skipped))
        if messages:
            self._sink.put(messages, self._size)
            self._size = 0
        if skipped and self.on_skipped is not None:
            for event in skipped:  # after the messages: what was lost may belong to one of them
                self.on_skipped(event)

    def _notes_of(self, skipped: list[Skipped]) -> list[LineSkippedMessage]:
        """One for each reason: a peer that says nothing else must not fill the memory."""
        notes: dict[str, LineSkippedMessage] = {}
        for event in skipped:
            reason, size, line = _described(event)
            if reason in notes:
                note = notes[reason]
                notes[reason] = replace(note, lines=note.lines + 1, size=note.size + size)
            else:
                notes[reason] = LineSkippedMessage(reason=reason, size=size, text=self._shown(line))
        return list(notes.values())

    def begin(self, subtype: str, body: Mapping[str, Any] | None = None) -> tuple[Pending, bytes]:
        """Register a control request; the caller sends the bytes and waits.

        Raises:
            PilothouseError: the error given to `close`, if the connection has ended.
        """
        if self._closed is not None:
            raise self._closed
        request_id, data = self.connection.request(subtype, body)
        pending = self._waiting[request_id] = Pending(request_id, subtype)
        self._sink.let_pass()
        return pending, data

    async def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Ask the peer and wait for its answer. A cancelled call leaves no entry and tells the peer.

        Raises:
            ControlError: the peer refused.
            ControlTimeout: no answer within `control_timeout` seconds.
            PilothouseError: the connection ended first.
        """
        pending, data = self.begin(subtype, body)
        return await self.answer_to(pending, data)

    async def answer_to(self, pending: Pending, unsent: bytes = b"") -> Mapping[str, Any]:
        """Wait for the answer to a request, for at most `control_timeout` seconds; `unsent` is sent first."""
        self._limit(pending)
        try:
            if unsent and not self._transport.send_at_once(unsent):
                # When the peer is gone, the reader finds out how it ended and settles the request with that.
                with (
                    anyio.CancelScope() as pending.sending,
                    suppress(anyio.BrokenResourceError, anyio.ClosedResourceError),
                ):
                    await self._transport.send(unsent)
            await pending.wait()
            return pending.answer()
        finally:
            if self._waiting.pop(pending.request_id, None) is not None:
                await self._withdraw(pending)

    def expect(self, pending: Pending, failed: Callable[[BaseException], object]) -> None:
        """Let `failed` hear of an error that comes in place of the answer to a request that was sent; none waits."""
        pending.failed = failed
        self._limit(pending)

    def _limit(self, pending: Pending) -> None:
        # One alarm for all, so that none of them makes a timer and cancels it.
        pending.due = self._clock() + self._control_timeout
        self.wake(pending.due)

    def open_house(self) -> None:
        """Start what the host has to run beside the connection, and give it a way to tell the peer something."""
        if self._host is not None:
            self._host.connect(self.tell)
            if self._host.serve is not None:
                self._beside(self._host.serve)

    def rehouse(self, host: Host) -> None:
        """From now on questions are answered by this host; those that are open stay with whoever works on them."""
        self._host = host
        self.questions.desks = host.desks
        host.connect(self.tell)

    async def introduce(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do the handshake again: the peer learns what has changed, and says what it still wants to know."""
        info = await self.request("initialize", body)
        if self._host is not None:
            self._host.greet(info)
        return info

    async def shake_hands(self, pending: Pending, unsent: bytes = b"") -> Mapping[str, Any]:
        """As `answer_to`, for the handshake: the host looks at the answer, and raises if that will not do."""
        info = await self.answer_to(pending, unsent)
        if self._host is not None:
            self._host.greet(info)
            if self._host.ready is not None:
                self.is_preparing = True
                await self._host.ready(self.request)
                self.is_preparing = False
        return info

    @property
    def noise(self) -> str:
        """The last line of output that was no message; "" if there was none."""
        noise = self.connection.noise
        return self._shown(noise[-1]) if noise else ""

    def _shown(self, line: bytes) -> str:
        # Keys go first: a part of one would not be known any more.
        return self._redact(line[:SHOWN_BYTES].decode("utf-8", "replace"))[:SHOWN_CHARS]

    def close(self, error: BaseException | None = None) -> None:
        """No answer will come any more: every waiting request fails with `error`."""
        if self._closed is None:
            self._closed = error or SessionClosedError("the connection is closed")
        for pending in self._waiting.values():
            pending.settle(error=self._closed)
        self._waiting.clear()

    def tell(self, subtype: str, body: Mapping[str, Any]) -> None:
        """Ask the peer beside everything else; nobody waits for the answer, and none is missed."""

        async def ask() -> None:
            with suppress(PilothouseError):
                await self.request(subtype, body)

        if self._closed is None:
            self._beside(ask)

    async def _withdraw(self, pending: Pending) -> None:
        if data := self.connection.withdraw(pending.request_id):
            with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):
                await self._send_quietly(data)

    async def _send_quietly(self, data: bytes) -> None:
        try:
            await self._transport.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            log.debug("the peer went away before it could be told: %r", data[:200])

    def _route(self) -> None:
        events = self.connection.events
        while events:
            event = events.popleft()
            match event:
                case Reply(request_id=key, payload=payload):
                    if pending := self._waiting.pop(key, None):
                        pending.settle(payload)
                case Refusal(request_id=key, subtype=subtype, error=text, code=code):
                    if pending := self._waiting.pop(key, None):
                        message = f"the CLI refused the control request {subtype!r}: {text}"
                        pending.settle(error=ControlError(message, subtype=subtype, code=code))
                case Inbound():
                    self.questions.ask(event)
                case Withdrawn(request_id=key):
                    self.questions.withdraw(key)
                case Noise() | Oversize() | BadLine():
                    self._skipped.append(event)
                    self._log_skipped(event)

    def _log_skipped(self, event: Skipped) -> None:
        match event:
            case Noise(line=line):
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("skipped a line of output that is not JSON: %r", self._shown(line))
            case Oversize(size=size):
                self.last_problem = oversize_error(size)
                log.warning("%s", self.last_problem)
            case BadLine(error=error):
                self.last_problem = error
                log.warning("skipped a line of output: %s", error)


def _described(event: Skipped) -> tuple[str, int, bytes]:
    """Why a line was skipped, its size in bytes, and its beginning."""
    match event:
        case Noise(line=line):
            return "not_json", len(line), line
        case Oversize(size=size, head=head):
            return "too_long", size, head
        case BadLine(error=LineDecodeError(line=line)):
            return "not_json", len(line), line
        case BadLine(error=error):
            return "no_message", 0, str(error).encode("utf-8", "replace")
