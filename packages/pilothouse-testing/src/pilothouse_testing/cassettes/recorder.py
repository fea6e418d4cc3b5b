"""A transport around another transport that records what passes through it, and the file that it writes.

The form of the entries is defined in `format`.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import anyio
from msgspec.structs import replace

from pilothouse import __version__
from pilothouse.errors import CassetteError, PilothouseError, UsageError
from pilothouse.options import Invocation
from pilothouse.support import Redactor, encode_json, invocation_secrets, run_blocking
from pilothouse.transports import (
    CliTransport,
    ExitInfo,
    Health,
    Transport,
    TransportWrapper,
    hide_settings,
    missing_methods,
)
from pilothouse_testing.cassettes.format import (
    HEADER_START,
    MAX_LINE_BYTES,
    DeltaRedactor,
    Direction,
    encode_entry,
    encode_event,
    encode_header,
    encode_wire_line,
    read_names,
    redact_line,
)

log = logging.getLogger("pilothouse.transports")

if sys.platform == "win32":

    def _lock_file(fd: int) -> None:
        """No lock on Windows: a locked file could not be read during writing. Two writers are not detected."""

else:
    import fcntl

    def _lock_file(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Recorder:
    """Records all connections of a program to one cassette: `transport=Recorder("run.jsonl")`.

    Each call makes a transport; the first connection that starts replaces the old content. The file is open while a
    connection is. It holds the messages in clear text; keys are removed.

    Args:
        path: the file; only its user may read it (0600). Its directory is created.
        inner: makes the transport that is recorded; default: the local CLI.
        secrets: texts to remove in addition to the keys that pilothouse knows (those in the environment of the child,
            and in the settings of its servers).

    Attributes:
        path: the file.
        secrets: texts to remove.
        connections: how many were started.
        failure: why the cassette is incomplete; None if it is complete.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        inner: Callable[[], Transport] = CliTransport,
        *,
        secrets: Iterable[str] = (),
    ) -> None:
        if not callable(inner):
            raise UsageError(
                f"inner: expected a class or a function that makes a transport, got {type(inner).__name__}"
            )
        self.path = Path(path)
        self.secrets = read_names("secrets", secrets)
        self.connections = 0
        self.failure: CassetteError | None = None
        self._inner = inner
        self._lock = threading.Lock()  # the connections may run in several threads
        self._fd: int | None = None
        self._open_connections = 0
        self._has_begun = False
        self._is_new = False  # whether the file did not exist before

    def __call__(self) -> RecordingTransport:
        """A transport for one connection."""
        return RecordingTransport(self._inner(), self)

    def open(self) -> None:
        """Register one more connection; opens the file if needed, unchanged until the first `write`. Blocking.

        Raises:
            CassetteError: the file is not writable, is not a cassette, or is being written by another recording.
        """
        with self._lock:
            if self._fd is None:
                self._is_new = not self.path.exists()
                try:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
                except OSError as error:
                    raise self._make_error(f"the cassette cannot be written: {_describe(error)}") from None
                try:
                    self._lock_and_check(self._fd)
                except BaseException:
                    self._close_file()
                    raise
            self._open_connections += 1

    def _lock_and_check(self, fd: int) -> None:
        try:
            _lock_file(fd)
        except BlockingIOError:
            raise self._make_error("another recording is writing this file") from None
        except OSError:
            log.debug("%s: this file system has no locks", self.path)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise self._make_error("the cassette cannot be written: it is not a file")
        if status.st_size and os.read(fd, len(HEADER_START)) != HEADER_START:
            words = "the file is not a cassette, and a recording would replace it"
            raise self._make_error(f"the cassette cannot be written: {words}")

    def write(self, lines: deque[bytes]) -> None:
        """Write and empty `lines`, which are whole. Blocking.

        The first failure is logged and kept; later lines are dropped, and the file ends with a whole line.
        """
        with self._lock:
            found: list[bytes] = []
            while lines:  # the event loop may append meanwhile
                found.append(lines.popleft())
            if self._fd is None or self.failure is not None or not found:
                return
            if not self._has_begun:
                now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                found.insert(0, encode_header(__version__, now))
            data = b"".join(found)
            end, written = 0, 0
            try:
                if not self._has_begun:
                    self._truncate(self._fd)
                end = os.lseek(self._fd, 0, os.SEEK_END)
                while written < len(data):
                    written += os.write(self._fd, memoryview(data)[written:])
            except OSError as error:
                self.failure = self._make_error(f"the cassette cannot be written any more: {_describe(error)}")
                log.error("%s; what follows is not recorded", self.failure)
                with suppress(OSError):
                    os.ftruncate(self._fd, end + data.rfind(b"\n", 0, written) + 1)

    def _truncate(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        self._has_begun = True
        with suppress(OSError, AttributeError):  # the file may be another user's; Windows has no such permissions
            os.fchmod(fd, 0o600)

    def close(self) -> None:
        """Unregister a connection; the last one closes the file. Blocking."""
        with self._lock:
            self._open_connections -= 1
            if self._open_connections == 0:
                self._close_file()

    def _close_file(self) -> None:
        if self._is_new and not self._has_begun:
            with suppress(OSError):
                self.path.unlink()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _make_error(self, problem: str) -> CassetteError:
        return CassetteError(f"{self.path}: {problem}", path=str(self.path))


def _describe(error: OSError) -> str:
    return error.strerror or type(error).__name__


class RecordingTransport(TransportWrapper):
    """Records one connection over another transport.

    Received data is on disk before it is returned. When the file becomes unwritable, for example because the disk is
    full, the run continues, health is "degraded", and `close` raises: an incomplete recording never passes as
    complete.

    Args:
        inner: the transport that does the work, not started.
        path: the file, which is replaced when the connection has started; or a `Recorder`, for several connections in
            one file.
        secrets: as for `Recorder`.
    """

    def __init__(
        self, inner: Transport, path: str | os.PathLike[str] | Recorder, *, secrets: Iterable[str] = ()
    ) -> None:
        if missing := missing_methods(inner):
            kind = type(cast("object", inner)).__name__
            raise UsageError(f"inner: expected a transport, got {kind}, which has no {missing[0]}")
        super().__init__(inner)
        self._recorder = path if isinstance(path, Recorder) else Recorder(path)
        self._extra = (*self._recorder.secrets, *read_names("secrets", secrets))
        self._invocation: Invocation | None = None  # None while nothing is recorded
        self._number = 0
        self._began = 0.0
        self._lines: deque[bytes] = deque()
        self._partial_line = bytearray()  # an incomplete line of output
        self._undelivered = b""  # recorded, not yet returned
        self._input_ended = self._output_ended = self._is_exit_recorded = False
        self._closing: anyio.Event | None = None

    async def start(self, invocation: Invocation) -> None:
        """Start the inner transport.

        Raises:
            CassetteError: the file cannot be written; nothing was started.
            PilothouseError: what the inner transport raises; the file is unchanged.
        """
        self._mark_started(is_closed=self._closing is not None)
        self._invocation = invocation
        self._recorder.connections += 1
        self._number = self._recorder.connections
        try:
            await run_blocking(self._recorder.open)
        except CassetteError:
            self._invocation = None
            raise
        try:
            self._began = time.monotonic()
            files = (f"--{file.flag}" for file in invocation.files)
            self._record_event(  # no value of the environment except HOME
                "spawn",
                args=[*invocation.argv, *files, *invocation.trailing_args],
                cwd=invocation.cwd or os.getcwd(),  # noqa: PTH109
                home=invocation.env.get("HOME", ""),
                handshake=invocation.initialize is not None,
            )
            await self.inner.start(replace(invocation, on_stderr=self._record_stderr))
        except BaseException:
            self._invocation = None
            self._lines.clear()
            with anyio.CancelScope(shield=True):
                await run_blocking(self._recorder.close)
            raise
        await self._flush()

    async def send(self, data: bytes) -> None:
        """Record and send; recorded first, because the response may arrive before the call returns."""
        if self._invocation is not None and not self._input_ended:
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._record_line("in", line)
            if rest:
                self._record_line("in", rest, is_open=True)
        await self.inner.send(data)
        await self._flush()

    async def receive(self) -> bytes:
        """Return the next bytes, once they are recorded."""
        if not self._undelivered:
            self._undelivered = await self.inner.receive()
            self._record_output(self._undelivered)
        await self._flush()
        data, self._undelivered = self._undelivered, b""
        return data

    async def end_input(self) -> None:
        """End the input of the inner transport."""
        if not self._input_ended and self._invocation is not None:
            self._input_ended = True
            self._record_event("stdin_eof")
        await self.inner.end_input()
        await self._flush()

    async def detach(self) -> str:
        """Detach, if the inner transport can; the recording ends there."""
        found_as = await self.inner.detach()
        await self.close()
        return found_as

    async def exit_info(self) -> ExitInfo:
        """Return how the CLI ended."""
        ending = await self.inner.exit_info()
        self._record_exit(ending)
        await self._flush()
        return ending

    async def close(self) -> None:
        """Close the inner transport and complete the recording.

        Raises:
            CassetteError: the recording is incomplete, because it could not be written. Raised once.
        """
        if self._closing is not None:
            with anyio.CancelScope(shield=True):
                await self._closing.wait()
            return
        self._closing = anyio.Event()
        with anyio.CancelScope(shield=True):
            try:
                if self._output_ended and not self._is_exit_recorded:
                    with suppress(PilothouseError, anyio.ClosedResourceError):
                        self._record_exit(await self.inner.exit_info())
            finally:
                try:
                    await self.inner.close()
                finally:
                    await self._finish()
                    self._closing.set()
        failure = self._recorder.failure
        if failure is not None and self._invocation is not None:
            raise failure

    def health(self) -> Health:
        """Return the health of the inner transport; degraded once the recording cannot be written."""
        health, failure = self.inner.health(), self._recorder.failure
        return Health("degraded", str(failure)) if failure is not None and health.state == "healthy" else health

    async def _finish(self) -> None:
        if self._invocation is None:
            return
        self._record_rest()
        if not self._output_ended:
            self._record_event("closed")
        await self._flush()
        await run_blocking(self._recorder.close)

    # Recording.

    @cached_property
    def _delta_redactor(self) -> DeltaRedactor:
        return DeltaRedactor(self._redactor.values)

    @cached_property
    def _redactor(self) -> Redactor:
        secrets = () if self._invocation is None else invocation_secrets(self._invocation)
        return Redactor((*secrets, *self._extra))

    async def _flush(self) -> None:
        if self._lines:
            await run_blocking(self._recorder.write, self._lines)

    def _queue_entry(self, direction: Direction, message: bytes) -> None:
        self._lines.append(encode_entry(time.monotonic() - self._began, self._number, direction, message))

    def _record_line(self, direction: Direction, line: bytes, *, is_open: bool = False) -> None:
        if direction == "out":
            line = hide_settings(self._delta_redactor.redact(line))
        self._queue_entry(direction, encode_wire_line(redact_line(line, self._redactor), is_open=is_open))

    def _record_event(self, event: str, **fields: Any) -> None:
        self._queue_entry("meta", redact_line(encode_event(event, fields), self._redactor))

    def _record_output(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            self._record_line("out", bytes(self._partial_line) + lines[0])
            self._partial_line.clear()
        for line in lines[1:]:
            self._record_line("out", line)
        self._partial_line += rest
        is_end = not data and not self._output_ended
        if is_end or len(self._partial_line) > MAX_LINE_BYTES:
            self._record_rest()
        if is_end:
            self._output_ended = True
            self._record_event("stdout_eof")

    def _record_rest(self) -> None:
        if self._partial_line:
            self._record_line("out", bytes(self._partial_line), is_open=True)
            self._partial_line.clear()

    def _record_stderr(self, line: str) -> None:
        self._queue_entry("err", encode_json(self._redactor.redact(line)))
        if self._invocation is not None and self._invocation.on_stderr is not None:
            self._invocation.on_stderr(line)

    def _record_exit(self, exit_info: ExitInfo) -> None:
        if not self._is_exit_recorded:
            self._is_exit_recorded = True
            self._record_event("exit", returncode=exit_info.exit_code, signal=exit_info.signal, detail=exit_info.detail)
