"""Transports to another task of this event loop, without a process: bounded streams of bytes, and what is common.

`MemoryTransport` runs a script there, `NativeTransport` an engine.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from pilothouse.options import Invocation
from pilothouse.options.secrets import Redactor, invocation_secrets
from pilothouse.transports.base import ExitInfo, Health, Transport
from pilothouse.transports.concurrency import LoopCondition
from pilothouse.transports.stderr import StderrLog

BUFFER_BYTES = 256 * 1024
"""Bytes that may be unread, as with a pipe."""
CHUNK_BYTES = 64 * 1024
"""Bytes that `receive` returns at most."""
ENDED_BY_CLOSE = ExitInfo(signal="SIGTERM", detail="ended by close")


class ByteStream:
    """Bytes in one direction: bounded, and ended by either side.

    Attributes:
        is_ended: the writer has ended the stream.
        is_read_closed: the reader has gone: writing raises `anyio.BrokenResourceError`.
        is_closed: reading and writing raise `anyio.ClosedResourceError`.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._condition = LoopCondition()
        self._lock = anyio.Lock()
        self.is_ended = False
        self.is_read_closed = False
        self.is_closed = False

    async def put(self, data: bytes) -> None:
        """Write `data`; waits while `BUFFER_BYTES` bytes are unread. Concurrent calls do not mix their bytes."""
        await checkpoint()
        async with self._lock:
            await self._wait_for_space()
            self.append(data)  # whole, so that a call cancelled in its second wait leaves no partial frame
            await self._wait_for_space()

    async def _wait_for_space(self) -> None:
        await self._condition.wait_until(lambda: not self.is_full or self.is_read_closed or self.is_closed)
        if self.is_closed:
            raise anyio.ClosedResourceError
        if self.is_read_closed:
            raise anyio.BrokenResourceError

    async def take(self, limit: int) -> bytes:
        """Return at most `limit` bytes, as soon as there are any; b"" once the stream has ended."""
        return await self._take(lambda: min(len(self._data), limit))

    async def take_line(self) -> bytes:
        """Return the next line with its newline; at the end the rest, then b""."""
        return await self._take(lambda: self._data.find(b"\n") + 1)

    async def _take(self, measure: Callable[[], int]) -> bytes:
        await checkpoint()
        await self._condition.wait_until(lambda: measure() > 0 or self.is_ended or self.is_closed)
        if self.is_closed:
            raise anyio.ClosedResourceError
        length = measure() or len(self._data)
        data = bytes(self._data[:length])
        del self._data[:length]
        self._condition.notify_all()
        return data

    def append(self, data: bytes) -> None:
        """Write `data` without waiting."""
        self._data += data
        self._condition.notify_all()

    def set_state(self, *, is_ended: bool = False, is_read_closed: bool = False, is_closed: bool = False) -> None:
        """Set some of the states; none is ever unset."""
        self.is_ended |= is_ended
        self.is_read_closed |= is_read_closed
        self.is_closed |= is_closed
        self._condition.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether `put` waits."""
        return len(self._data) >= BUFFER_BYTES


class InProcessTransport(Transport):
    """A transport to a task of this process, which `serve` runs and which `set_exit` ends.

    Args:
        chunk: bytes that `receive` returns at most.

    Attributes:
        input_stream: what was sent.
        output_stream: what will be received.
    """

    def __init__(self, chunk: int = CHUNK_BYTES) -> None:
        self.input_stream = ByteStream()
        self.output_stream = ByteStream()
        self._chunk = chunk
        self._invocation: Invocation | None = None
        self._is_closed = False
        self._exit_info: ExitInfo | None = None
        self._exited = anyio.Event()
        self._stderr = StderrLog(lambda: Redactor(()))

    def _set_invocation(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._stderr = StderrLog(lambda: Redactor(invocation_secrets(invocation)), invocation.on_stderr)

    async def send(self, data: bytes) -> None:
        """Send `data`; waits while the other side does not read."""
        self._require_open()
        if self.input_stream.is_ended:
            raise anyio.ClosedResourceError
        await self.input_stream.put(data)

    async def receive(self) -> bytes:
        """Return the next bytes."""
        self._require_open()
        return await self.output_stream.take(self._chunk)

    async def end_input(self) -> None:
        """End the input of the other side."""
        self._require_open()
        self.input_stream.set_state(is_ended=True)
        await checkpoint()

    async def exit_info(self) -> ExitInfo:
        """Return how the other side ended; waits for it at most a second."""
        with anyio.move_on_after(1.0):
            await self._exited.wait()
        found = self._exit_info or ExitInfo(detail="still running: it closed its output but did not exit")
        return replace(found, stderr=self._stderr.tail())

    def health(self) -> Health:
        """Return the state, and the reason if it is not healthy."""
        given, output = self.input_stream, self.output_stream
        states = (
            (self._is_closed, Health("unhealthy", "closed")),
            (self._invocation is None, Health("unhealthy", "not started")),
            (self._exit_info is not None, Health("unhealthy", "the peer ended")),
            (output.is_ended or given.is_read_closed, Health("unhealthy", "the peer closed a stream")),
            (given.is_ended, Health("degraded", "input ended")),
            (given.is_full, Health("degraded", "the peer is slow to read its input")),
        )
        return next((health for applies, health in states if applies), Health("healthy"))

    def feed_stderr(self, text: str) -> None:
        """Write to standard error."""
        self._stderr.feed(text.encode())

    def set_exit(self, exit_info: ExitInfo) -> None:
        """End the streams; only the first call counts."""
        if self._exit_info is None:
            self._stderr.finish()
            self._exit_info = exit_info
            self.input_stream.set_state(is_read_closed=True)
            self.output_stream.set_state(is_ended=True)
            self._exited.set()

    def _require_open(self) -> None:
        if self._invocation is None or self._is_closed:
            raise anyio.ClosedResourceError
