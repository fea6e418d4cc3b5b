"""A transport to a Python function in this process, for tests. No processes, no files.

The second implementation of the `Transport` interface: code that works over it does not secretly depend on processes.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from pilothouse.errors import ProcessError
from pilothouse.options import Invocation
from pilothouse.transports.base import ExitInfo
from pilothouse.transports.byte_stream import CHUNK_BYTES, ENDED_BY_CLOSE, InProcessTransport

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
            self.set_exit(ENDED_BY_CLOSE)
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
