"""Transports to another task of this event loop, without processes and files: bounded streams of bytes.

`MemoryTransport` runs a script there, for tests; `NativeTransport` runs an engine.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from pilothouse.errors import ProcessError
from pilothouse.options import Invocation
from pilothouse.options.secrets import Redactor, invocation_secrets
from pilothouse.transports.base import ExitInfo, Health, Transport
from pilothouse.transports.concurrency import LoopCondition
from pilothouse.transports.stderr import StderrLog

BUFFER_BYTES = 256 * 1024
"""Bytes that may be unread, as with a pipe."""
CHUNK_BYTES = 64 * 1024
"""Bytes that `receive` returns at most."""


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

    ENDED_BY_CLOSE: ClassVar = ExitInfo(signal="SIGTERM", detail="ended by close")
    """For `set_exit`, where `close` has ended the other side."""

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


Frame = bytes | str | dict[str, Any]
"""Bytes are sent unchanged, text as UTF-8, a dict as one line of JSON."""


class MemoryPeer:
    """The other side of a `MemoryTransport`: the argument of its script.

    Attributes:
        invocation: what the transport was started with.
    """

    def __init__(self, transport: MemoryTransport, invocation: Invocation) -> None:
        self.invocation = invocation
        self._transport = transport

    async def read_line(self) -> bytes:
        """Return the next line that was sent, with its newline; b"" once input has ended."""
        return await self._transport.input_stream.take_line()

    async def read_frame(self) -> dict[str, Any] | None:
        """Return the next line as JSON; None once input has ended."""
        line = await self.read_line()
        return json.loads(line) if line else None

    async def write(self, frame: Frame) -> None:
        """Send a frame; waits while 256 KB are unread."""
        await self._transport.output_stream.put(_encode(frame))

    def stderr(self, text: str) -> None:
        """Write to standard error."""
        self._transport.feed_stderr(text)

    def close_input(self) -> None:
        """Stop reading: the transport's `send` fails from now on."""
        self._transport.input_stream.set_state(is_read_closed=True)

    def close_output(self) -> None:
        """End the output, but keep running."""
        self._transport.output_stream.set_state(is_ended=True)

    def end(self, *, exit_code: int | None = 0, signal: str | None = None, stderr: str = "") -> None:
        """End like a process: by an exit code, or by a signal such as "SIGKILL". Later calls have no effect."""
        self._transport.end(exit_code=exit_code, signal=signal, stderr=stderr)


Script = Callable[[MemoryPeer], Awaitable[object]]


class MemoryTransport(InProcessTransport):
    """Talks to a function instead of a process.

    ::

        async def peer(conn: MemoryPeer) -> None:
            request = await conn.read_frame()
            await conn.write({"type": "result", ...})
            conn.end(exit_code=1, stderr="oh no")      # without it: exit code 0 when the function returns

        transport = MemoryTransport(peer)

    The script runs inside `serve`. If it raises, the peer ends with exit code 1; the exception is in `script_error`,
    and is the cause of the error that the query raises. Without a script, call `feed` and `end` from outside.

    Args:
        script: what the peer does; None: silent until `feed` or `end`.
        chunk: bytes that `receive` returns at most; small values cut frames anywhere.
        start_error: raised by `start`.

    Attributes:
        sent: everything that was sent, call by call.
        script_error: what the script raised.
    """

    def __init__(
        self, script: Script | None = None, *, chunk: int = CHUNK_BYTES, start_error: ProcessError | None = None
    ) -> None:
        super().__init__(chunk)
        self.sent: list[bytes] = []
        self.script_error: Exception | None = None
        self._script = script
        self._start_error = start_error
        self._receive_error: Exception | None = None
        self._scope: anyio.CancelScope | None = None

    @property
    def sent_frames(self) -> list[dict[str, Any]]:
        """The sent lines, as JSON."""
        return [json.loads(line) for line in b"".join(self.sent).split(b"\n") if line.strip()]

    async def start(self, invocation: Invocation) -> None:
        """Start; raises `start_error` if one was given."""
        self._mark_started(is_closed=self._is_closed)
        await checkpoint()
        if self._start_error is not None:
            raise self._start_error
        self._set_invocation(invocation)

    async def serve(self) -> None:
        """Run the script."""
        if self._invocation is None or self._script is None or self._is_closed:
            return
        peer = MemoryPeer(self, self._invocation)
        with anyio.CancelScope() as self._scope:
            try:
                await self._script(peer)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # the transport was closed meanwhile
            except Exception as error:  # noqa: BLE001 - reported as for a process
                self.script_error = error
                if self._exit_info is None:
                    detail = f"the script of the peer raised {type(error).__name__}: {error}"
                    self.set_exit(ExitInfo(1, detail=detail, error=error))
            self.end()

    async def send(self, data: bytes) -> None:
        """Send `data` to the script."""
        await super().send(data)
        self.sent.append(data)

    async def receive(self) -> bytes:
        """Return the next bytes from the script, at most `chunk`."""
        data = await super().receive()
        if not data and self._receive_error is not None:
            raise self._receive_error
        return data

    async def close(self) -> None:
        """End the script."""
        if not self._is_closed:
            self._is_closed = True
            if self._scope is not None:
                self._scope.cancel()
            self.input_stream.set_state(is_closed=True)
            self.output_stream.set_state(is_closed=True)
            self.set_exit(self.ENDED_BY_CLOSE)
        with anyio.CancelScope(shield=True):
            await checkpoint()

    def feed(self, frame: Frame) -> None:
        """Make the peer send a frame, from outside of a script. Does not wait."""
        self.output_stream.append(_encode(frame))

    def end(self, *, exit_code: int | None = 0, signal: str | None = None, stderr: str = "") -> None:
        """Make the peer end, as `MemoryPeer.end` does."""
        if self._exit_info is None:
            self.feed_stderr(stderr)
            self.set_exit(ExitInfo(None if signal else exit_code, signal))

    def fail_receive(self, error: Exception) -> None:
        """Make `receive` raise `error` once it has returned the pending data."""
        self._receive_error = error
        self.output_stream.set_state(is_ended=True)


def _encode(frame: Frame) -> bytes:
    if isinstance(frame, dict):
        return json.dumps(frame).encode() + b"\n"
    return frame.encode() if isinstance(frame, str) else frame
