"""`pilothouse-agent`: the engine as a program that takes the CLI's flags and speaks its wire on stdin and stdout.

Owns pipes, signals and the forms of output. What is said on them is the engine's.
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
"""Chunks of input that are read before the engine takes them."""
ATOMIC_WRITE_BYTES: Final = 4096
"""Bytes that a pipe takes at once when it takes any (PIPE_BUF)."""
GRACE_SECONDS: Final = 3.0
"""For a clean end after a signal."""
# Exit codes of CLI 2.1.330: it calls Ctrl-C a clean end.
SIGNAL_EXIT_CODES: Final = {"SIGHUP": 129, "SIGINT": 0, "SIGTERM": 143}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; gives the exit code. Ctrl-C and SIGTERM end it, with everything that it started."""
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
    # The thread that reads stdin may still wait for it; nothing is left to be cleaned up.
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
            continue  # whoever read it is gone


async def _run(argv: Sequence[str], line: CommandLine) -> int:
    port = _StdioPort(line.text("output-format") or "text")
    code = 1
    ended: list[int] = []
    async with anyio.create_task_group() as group:

        def stop(exit_code: int) -> None:
            ended.append(exit_code)
            group.cancel_scope.cancel()
            loop.call_later(GRACE_SECONDS, os._exit, exit_code)  # a write to somebody who does not read may hold it

        loop = asyncio.get_running_loop()
        for name, exit_code in SIGNAL_EXIT_CODES.items():
            if hasattr(signal, name) and os.name != "nt":
                loop.add_signal_handler(getattr(signal, name), stop, exit_code)
        try:
            code = await Engine(port, argv, os.environ, Path.cwd()).run()
        except* (BrokenPipeError, anyio.BrokenResourceError):
            code = 1  # nobody reads any more
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
        """The next line; b"" once the input has ended."""
        if self._reader is None:
            # A daemon, and without Python's own buffer, whose lock would be held at the end of the program.
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
                return  # the program is at its end
            if not data:
                return

    def _on_data(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
        else:
            self._input_ended = True
        self._wakeup.set()

    async def write(self, data: bytes) -> None:
        """Write a frame in the form that was asked for."""
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
