"""A transport to a Python function in this process, for tests. No processes, no files.

The second implementation of the `Transport` interface: code that works over it does not secretly depend on processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from pilothouse.errors import ProcessError, UsageError
from pilothouse.options import Invocation
from pilothouse.options.secrets import Redactor, invocation_secrets
from pilothouse.transports.base import ExitInfo, Health, Transport
from pilothouse.transports.concurrency import LoopCondition
from pilothouse.transports.stderr import StderrLog

BUFFER_BYTES = 256 * 1024
"""Bytes that may be unread in one direction, as with a pipe."""
CHUNK_BYTES = 64 * 1024
"""Bytes that `receive` returns at most."""

Frame = bytes | str | dict[str, Any]
"""Bytes are sent unchanged, text as UTF-8, a dict as one line of JSON."""


class _ByteStream:
    """Bytes in one direction: bounded, and ended by either side."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._condition = LoopCondition()
        self._lock = anyio.Lock()
        self.is_ended = False
        self.is_read_closed = False
        self.is_closed = False

    async def put(self, data: bytes) -> None:
        await checkpoint()
        async with self._lock:
            await self._wait_for_space()
            self._data += data  # whole, so that a call cancelled in its second wait leaves no partial frame
            self._condition.notify_all()
            await self._wait_for_space()

    async def _wait_for_space(self) -> None:
        await self._condition.wait_until(lambda: not self.is_full or self.is_read_closed or self.is_closed)
        if self.is_closed:
            raise anyio.ClosedResourceError
        if self.is_read_closed:
            raise anyio.BrokenResourceError

    async def take(self, limit: int, *, line: bool = False) -> bytes:
        await checkpoint()
        await self._condition.wait_until(lambda: self._length(line, limit) > 0 or self.is_ended or self.is_closed)
        if self.is_closed:
            raise anyio.ClosedResourceError
        length = self._length(line, limit) or len(self._data)
        data = bytes(self._data[:length])
        del self._data[:length]
        self._condition.notify_all()
        return data

    def _length(self, line: bool, limit: int) -> int:
        return self._data.find(b"\n") + 1 if line else min(len(self._data), limit)

    def set_state(self, *, is_ended: bool = False, is_read_closed: bool = False, is_closed: bool = False) -> None:
        self.is_ended |= is_ended
        self.is_read_closed |= is_read_closed
        self.is_closed |= is_closed
        self._condition.notify_all()

    def append(self, data: bytes) -> None:
        self._data += data
        self._condition.notify_all()

    @property
    def is_full(self) -> bool:
        return len(self._data) >= BUFFER_BYTES


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
        return await self._transport.input_stream.take(0, line=True)

    async def read_frame(self) -> dict[str, Any] | None:
        """Return the next line as JSON; None once input has ended."""
        line = await self.read_line()
        return json.loads(line) if line else None

    async def write(self, frame: Frame) -> None:
        """Send a frame; waits while `BUFFER_BYTES` bytes are unread."""
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


class MemoryTransport(Transport):
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
        self.sent: list[bytes] = []
        self.script_error: Exception | None = None
        self.input_stream = _ByteStream()
        self.output_stream = _ByteStream()
        self._script = script
        self._chunk = chunk
        self._start_error = start_error
        self._invocation: Invocation | None = None
        self._started = False
        self._closed = False
        self._exit_info: ExitInfo | None = None
        self._exited = anyio.Event()
        self._receive_error: Exception | None = None
        self._stderr = StderrLog(partial(Redactor, ()))
        self._scope: anyio.CancelScope | None = None

    @property
    def sent_frames(self) -> list[dict[str, Any]]:
        """The sent lines, as JSON."""
        return [json.loads(line) for line in b"".join(self.sent).split(b"\n") if line.strip()]

    async def start(self, invocation: Invocation) -> None:
        """Start; raises `start_error` if one was given."""
        if self._closed:
            raise anyio.ClosedResourceError
        if self._started:
            raise UsageError("a transport serves one connection: make a new one instead of starting it again")
        self._started = True
        await checkpoint()
        if self._start_error is not None:
            raise self._start_error
        self._invocation = invocation
        self._stderr = StderrLog(lambda: Redactor(invocation_secrets(invocation)), invocation.on_stderr)

    async def serve(self) -> None:
        """Run the script."""
        if self._invocation is None or self._script is None or self._closed:
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
                    self._set_exit(ExitInfo(1, detail=detail, error=error))
            self.end()

    async def send(self, data: bytes) -> None:
        """Send `data` to the script."""
        self._require_open()
        if self.input_stream.is_ended:
            raise anyio.ClosedResourceError
        await self.input_stream.put(data)
        self.sent.append(data)

    async def receive(self) -> bytes:
        """Return the next bytes from the script, at most `chunk`."""
        self._require_open()
        data = await self.output_stream.take(self._chunk)
        if not data and self._receive_error is not None:
            raise self._receive_error
        return data

    async def end_input(self) -> None:
        """End the script's input."""
        self._require_open()
        self.input_stream.set_state(is_ended=True)
        await checkpoint()

    async def exit_info(self) -> ExitInfo:
        """Return what `end` was called with; waits for it at most a second."""
        with anyio.move_on_after(1.0):
            await self._exited.wait()
        stderr = self._stderr.tail()
        if self._exit_info is None:
            return ExitInfo(stderr=stderr, detail="still running: it closed its output but did not exit")
        return replace(self._exit_info, stderr=stderr)

    async def close(self) -> None:
        """End the script."""
        if not self._closed:
            self._closed = True
            if self._scope is not None:
                self._scope.cancel()
            self.input_stream.set_state(is_closed=True)
            self.output_stream.set_state(is_closed=True)
            self._set_exit(ExitInfo(signal="SIGTERM", detail="ended by close"))
        with anyio.CancelScope(shield=True):
            await checkpoint()

    def health(self) -> Health:
        """Return whether the peer is healthy, or why not."""
        states = (
            (self._closed, Health("unhealthy", "closed")),
            (self._invocation is None, Health("unhealthy", "not started")),
            (self._exit_info is not None, Health("unhealthy", "the peer ended")),
            (
                self.output_stream.is_ended or self.input_stream.is_read_closed,
                Health("unhealthy", "the peer closed a stream"),
            ),
            (self.input_stream.is_ended, Health("degraded", "input ended")),
            (self.input_stream.is_full, Health("degraded", "the peer is slow to read its input")),
        )
        return next((health for applies, health in states if applies), Health("healthy"))

    def feed(self, frame: Frame) -> None:
        """Make the peer send a frame, from outside of a script. Does not wait."""
        self.output_stream.append(_encode(frame))

    def feed_stderr(self, text: str) -> None:
        """Make the peer write to standard error."""
        self._stderr.feed(text.encode())

    def end(self, *, exit_code: int | None = 0, signal: str | None = None, stderr: str = "") -> None:
        """Make the peer end, as `MemoryPeer.end` does."""
        if self._exit_info is None:
            self.feed_stderr(stderr)
            self._set_exit(ExitInfo(None if signal else exit_code, signal))

    def fail_receive(self, error: Exception) -> None:
        """Make `receive` raise `error` once it has returned the pending data."""
        self._receive_error = error
        self.output_stream.set_state(is_ended=True)

    def _set_exit(self, exit_info: ExitInfo) -> None:
        if self._exit_info is None:
            self._stderr.finish()
            self._exit_info = exit_info
            self.input_stream.set_state(is_read_closed=True)
            self.output_stream.set_state(is_ended=True)
            self._exited.set()

    def _require_open(self) -> None:
        if self._invocation is None or self._closed:
            raise anyio.ClosedResourceError


def _encode(frame: Frame) -> bytes:
    if isinstance(frame, dict):
        return json.dumps(frame).encode() + b"\n"
    return frame.encode() if isinstance(frame, str) else frame


async def run_silently(peer: MemoryPeer) -> None:
    """A script that never sends anything."""
    await anyio.sleep(math.inf)
