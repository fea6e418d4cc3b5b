"""A session driven by a remote client: one child, its output to the journal, the client's bytes to its input.

Owns the child and the two tasks that copy bytes. Knows no WebSocket and no acknowledgement of output: that is `wire`.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from msgspec.structs import replace

from pilothouse.errors import PilothouseError, ProtocolError
from pilothouse.options import Invocation
from pilothouse.protocol.frame_reader import DEFAULT_MAX_LINE_BYTES
from pilothouse.remote import WINDOW, Inbound, WholeLines
from pilothouse.server.hosted import HostedSession
from pilothouse.server.input_check import InputCheck, RequestRefused
from pilothouse.server.journal import OutputJournal, SessionRecord
from pilothouse.transports import Ending, Transport

_log = logging.getLogger("pilothouse.server")

STDERR_LINES = 256
"""Lines kept while no client is attached; the oldest are dropped."""

# This only decides how long the host waits at its end, so searching the bytes is accurate enough.
_RESULT = re.compile(rb'"type": ?"result"')
_LONGEST = len(b'"type": "result"') - 1
_PROMPT = re.compile(rb'"type": ?"user"')


class WireSession(HostedSession):
    """One child, driven by a remote client.

    Args:
        journal: of the host.
        record: the session's record in the journal.
        unacknowledged: bytes of output that may wait for the client before the child must wait.
        check: checks the client's lines; None where no input will come.

    Attributes:
        stderr: the last lines of standard error that were not sent to a client.
        inbound: byte counts of the client's input.
        on_change: called for a new line of standard error, the end of the input, and the end of the child.
        on_handed_on: called with the number of bytes that the child has received.
        replace: ends the attached connection, because another one takes its place; None without a connection.
        ending_told: whether the attached client was sent the ending.
    """

    def __init__(
        self, journal: OutputJournal, record: SessionRecord, *, unacknowledged: int, check: InputCheck | None = None
    ) -> None:
        super().__init__(journal, record)
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.on_change: Callable[[], None] = _nothing
        self.on_handed_on: Callable[[int], None] = self.hand_on
        self.replace: Callable[[], None] | None = None
        self.ending_told = False
        self._unacknowledged = unacknowledged
        self._transport: Transport | None = None
        self._input: deque[bytes] = deque()
        self.inbound = Inbound(record.input_end, window=WINDOW)
        self._ends_at: int | None = None
        self._lines = WholeLines()
        self._fed = record.input_end
        self._deaf = False
        self._input_changed = anyio.Event()
        self._working = False
        self._check = check
        self._answers: list[bytes] = []
        self._speaking = anyio.Lock()
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
        ending = Ending(detail="the session failed")
        try:
            with anyio.CancelScope() as self._running:
                if not self._stop_reason:
                    ending = await self._live(transport)
        except Exception:  # noqa: BLE001 - one session must not end the others
            _log.exception("session %s failed", self.id)
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await transport.close()
                except PilothouseError as error:
                    _log.warning("session %s: %s", self.id, error)
                self._transport = None
                await self.keep_ending(Ending(detail=self._stop_reason) if self._stop_reason else ending)
                self.on_change()

    async def _live(self, transport: Transport) -> Ending:
        ending = Ending()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.serve)
            tasks.start_soon(self._guarded, self._feed, transport)
            await self._guarded(self._pump, transport)
            ending = await transport.ending()
            tasks.cancel_scope.cancel()
        return ending

    async def _guarded(self, work: Callable[[Transport], Awaitable[None]], transport: Transport) -> None:
        """Run one direction; an error in it ends both directions and becomes the ending of the session."""
        try:
            await work(transport)
        except PilothouseError as error:
            _log.error("session %s ends: %s", self.id, error)
            self._stop_reason = self._stop_reason or str(error)
            assert self._running is not None
            self._running.cancel()

    async def _pump(self, transport: Transport) -> None:
        before = b""
        while data := await transport.receive():
            await self._keep(data)
            if _RESULT.search(before + data):
                self._working = False
            before = data[-_LONGEST:]
            await self.output.room(self._unacknowledged)

    async def _keep(self, data: bytes) -> None:
        """Journal the child's output and, between two of its lines, the responses that the host gives itself."""
        async with self._speaking:
            if data:
                await self.keep_output(data)
            if self._answers and await self.output.ends_line():
                answers, self._answers = b"".join(self._answers), []
                await self.keep_output(answers)

    def hand_on(self, count: int) -> None:
        """Count bytes that the child has received, while no client is attached."""
        self.inbound.hand_on(count)

    async def stop(self, reason: str) -> None:
        """End the child, and wait until it has exited and the journal has recorded that. Idempotent."""
        self._stop_reason = self._stop_reason or reason
        if self._running is not None:
            self._running.cancel()
        await self._ended.wait()

    # Attaching.

    def detached(self) -> None:
        """Reset the callbacks, because no client is attached any more."""
        self.replace = None
        self.on_change = _nothing
        self.on_handed_on = self.hand_on

    # Input of the client.

    def accept(self, data: bytes) -> None:
        """Take the client's next bytes, which `inbound` has numbered."""
        if self.has_child:
            self._input.append(data)
            self._working = self._working or bool(_PROMPT.search(data))
            self._wake()
        self.used()

    def end_input(self, at: int) -> None:
        """End the input after byte `at`, which `inbound` has checked."""
        if self.has_child and not self.record.input_ended:
            self._ends_at = at
            self._wake()

    def changes_hands(self) -> None:
        """Prepare for another client: drop the incomplete line of the previous one. It comes again as a whole."""
        self._input.clear()
        self._ends_at = None
        self._fed -= self._lines.drop()
        self.record.input_end = self._fed
        self.journal.note(self.id, input_end=self.record.input_end)
        self.inbound = Inbound(self.record.input_end, window=WINDOW)

    def _wake(self) -> None:
        self._input_changed.set()
        self._input_changed = anyio.Event()

    async def _feed(self, transport: Transport) -> None:
        while True:
            while self._input:
                await self._hand_on(transport, self._input.popleft())
            if self._ends_at == self.inbound.received and not self.record.input_ended:
                self.record.input_ended = True
                await self._write(transport, self._lines.flush())
                await self.journal.update(self.id, input_ended=True)
                await transport.end_input()
                self.on_change()
            await self._input_changed.wait()

    async def _hand_on(self, transport: Transport, data: bytes) -> None:
        inbound = self.inbound
        self._fed += len(data)
        await self._write(transport, self._lines.feed(data))
        if self._lines.held > DEFAULT_MAX_LINE_BYTES:
            raise ProtocolError(f"a line of input is longer than {DEFAULT_MAX_LINE_BYTES:,} bytes")
        if inbound is not self.inbound:  # another client took over while the child was slow to read
            return
        # Journaled before the client is told, so that the client never has to resend data that it has dropped.
        await self.journal.update(self.id, input_end=inbound.received + len(data))
        if inbound is self.inbound:
            self.on_handed_on(len(data))
            self.record.input_end = inbound.received

    async def _write(self, transport: Transport, lines: bytes) -> None:
        whole = [line + b"\n" for line in lines.split(b"\n")]
        whole[-1] = whole[-1][:-1]  # the last one may have no newline
        data = b"".join([await self._checked(line) for line in whole if line])
        try:
            if data and not self._deaf:
                await transport.send(data)
        except anyio.BrokenResourceError:
            self._deaf = True  # the child reads no more, and will end: drop the rest

    async def _checked(self, line: bytes) -> bytes:
        """Return the line as the child gets it; b"" if the host responds itself.

        Raises:
            ProtocolError: the line ends the session.
        """
        try:
            return line if self._check is None else self._check.check(line)
        except RequestRefused as refused:
            _log.warning("session %s: %s", self.id, refused)
            self._answers.append(refused.answer())
            await self._keep(b"")
            return b""

    async def interrupt(self) -> None:
        """Send the child an interrupt request, between two lines of the client's.

        Raises:
            ValueError: the client is in the middle of a line.
        """
        if self._transport is None or self.record.input_ended:
            return
        if self._input or self._lines.held:
            raise ValueError("the client is just saying something; try again")
        request = {"type": "control_request", "request_id": f"host-{self.id}", "request": {"subtype": "interrupt"}}
        await self._transport.send(json.dumps(request).encode() + b"\n")

    # State.

    @property
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""
        return self.record.state == "live"

    @property
    def busy(self) -> bool:
        """Whether a prompt was sent and its result has not come."""
        return self.has_child and self._working

    @property
    def state(self) -> str:
        """The state in a word: "ended", "running" or "idle"."""
        return "ended" if not self.has_child else "running" if self._working else "idle"


def _nothing() -> None:
    """Do nothing: the callback while no client is attached."""
