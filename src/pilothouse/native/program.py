"""`pilothouse-agent`: the engine as a program with the CLI's flags and its wire format on stdin and stdout.

Owns pipes, signals and output formats. The engine makes the content.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from pilothouse._version import __version__
from pilothouse.native.api import MISSING_PACKAGE
from pilothouse.native.configuration import CommandLine, FlagError, make_help_page, parse_command_line
from pilothouse.native.engine import Engine
from pilothouse.native.history import CLI_VERSION

CHUNK_BYTES: Final = 256 * 1024
MAX_BUFFERED_CHUNKS: Final = 64
"""Limit of input chunks that are buffered for the engine."""
ATOMIC_WRITE_BYTES: Final = 4096
"""Bytes that a writable pipe accepts without blocking (PIPE_BUF)."""
GRACE_SECONDS: Final = 3.0
"""Seconds for a clean exit after a signal."""
# Exit codes of CLI 2.1.330; Ctrl-C is a clean exit.
SIGNAL_EXIT_CODES: Final = {"SIGHUP": 129, "SIGINT": 0, "SIGTERM": 143}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code. Ctrl-C and SIGTERM end it, with all processes that it started."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        line = parse_command_line(given)
    except FlagError as error:
        return _print_error(str(error))
    if line.has("version"):
        sys.stdout.write(f"{CLI_VERSION} (pilothouse-agent {__version__})\n")
        return 0
    if line.has("help"):
        sys.stdout.write(make_help_page())
        return 0
    if not line.has("print") and not line.has("input-format") and sys.stdout.isatty():
        return _print_error("pilothouse-agent has no interactive mode: use --print")
    if find_spec("anthropic") is None:
        return _print_error(MISSING_PACKAGE)
    code = anyio.run(_run, given, line, backend="asyncio")
    # `os._exit`, because the thread that reads stdin may still block; there is nothing left to clean up.
    _flush()
    os._exit(code)


def _print_error(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the reader has closed the pipe


async def _run(argv: Sequence[str], line: CommandLine) -> int:
    port = _StdioPort(line.text("output-format") or "text")
    code = 1
    ended: list[int] = []
    async with anyio.create_task_group() as group:

        def stop(exit_code: int) -> None:
            ended.append(exit_code)
            group.cancel_scope.cancel()
            loop.call_later(GRACE_SECONDS, os._exit, exit_code)  # a write to a full pipe may block the exit

        loop = asyncio.get_running_loop()
        for name, exit_code in SIGNAL_EXIT_CODES.items():
            if hasattr(signal, name) and os.name != "nt":
                loop.add_signal_handler(getattr(signal, name), stop, exit_code)
        try:
            code = await Engine(port, argv, os.environ, Path.cwd()).run()
        except* (BrokenPipeError, anyio.BrokenResourceError):
            code = 1  # the reader has closed the pipe
    return ended[0] if ended else code


class _StdioPort:
    """Standard input and output."""

    def __init__(self, form: str) -> None:
        self._output_format = form
        self._loop = asyncio.get_running_loop()
        self._chunks: list[bytes] = []
        self._buffer = bytearray()
        self._input_ended = False
        self._wakeup = asyncio.Event()
        self._free_chunks = threading.Semaphore(MAX_BUFFERED_CHUNKS)
        self._write_lock = anyio.Lock()
        self._reader: threading.Thread | None = None

    async def read_line(self) -> bytes:
        """Return the next line; b"" once the input has ended."""
        if self._reader is None:
            # A daemon thread, and without Python's buffer, whose lock would be held at exit.
            self._reader = threading.Thread(target=self._read_stdin, name="stdin", daemon=True)
            self._reader.start()
        while True:
            place = self._buffer.find(b"\n") + 1
            if place == 0 and self._input_ended and not self._chunks:
                place = len(self._buffer)
                if place == 0:
                    return b""
            if place:
                line = bytes(self._buffer[:place])
                del self._buffer[:place]
                return line
            await self._wait_for_data()

    async def _wait_for_data(self) -> None:
        while not self._chunks and not self._input_ended:
            self._wakeup.clear()
            await self._wakeup.wait()
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            self._buffer += chunk
            self._free_chunks.release()

    def _read_stdin(self) -> None:
        while True:
            self._free_chunks.acquire()
            try:
                data = os.read(0, CHUNK_BYTES)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._on_data, data)
            except RuntimeError:
                return  # the loop is closed: the program exits
            if not data:
                return

    def _on_data(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
        else:
            self._input_ended = True
        self._wakeup.set()

    async def write(self, data: bytes) -> None:
        """Write a frame in the output format."""
        shown = data if self._output_format == "stream-json" else self._format_result(data)
        if not shown:
            return
        async with self._write_lock:
            if len(shown) <= ATOMIC_WRITE_BYTES and select.select([], [1], [], 0)[1]:
                os.write(1, shown)
            else:
                await anyio.to_thread.run_sync(_write_all, shown)

    def _format_result(self, data: bytes) -> bytes:
        frame: dict[str, Any] = json.loads(data)
        if frame.get("type") != "result":
            return b""
        if self._output_format == "json":
            return data
        text = frame.get("result")
        return (str(text) if text is not None else "; ".join(frame.get("errors") or ())).encode() + b"\n"

    def stderr(self, text: str) -> None:
        """Write to standard error."""
        sys.stderr.write(text)
        sys.stderr.flush()


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
