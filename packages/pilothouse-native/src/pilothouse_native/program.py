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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from pilothouse import __version__
from pilothouse_native.engine import Engine
from pilothouse_native.flags import FlagError, make_parser, parse_arguments
from pilothouse_native.history import CLI_VERSION

ATOMIC_WRITE_BYTES: Final = 4096
"""Bytes that a writable pipe accepts without blocking (PIPE_BUF)."""
GRACE_SECONDS: Final = 3.0
"""Seconds for a clean exit after a signal."""
# Exit codes of the CLI; Ctrl-C is a clean exit.
SIGNAL_EXIT_CODES: Final = {"SIGHUP": 129, "SIGINT": 0, "SIGTERM": 143}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code. Ctrl-C and SIGTERM end it, with all processes that it started."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parse_arguments(given, Path.cwd())
    except FlagError as error:
        return _print_error(str(error))
    if arguments.version:
        sys.stdout.write(f"{CLI_VERSION} (pilothouse-agent {__version__})\n")
        return 0
    if arguments.help:
        sys.stdout.write(make_parser().format_help())
        return 0
    if not arguments.print and arguments.input_format == "text" and sys.stdout.isatty():
        return _print_error("pilothouse-agent has no interactive mode: use --print")
    code = anyio.run(_run, given, arguments.output_format, backend="asyncio")
    # `os._exit`, because the thread that reads stdin may still block; there is nothing left to clean up.
    _flush()
    os._exit(code)


def _print_error(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader has closed the pipe
            stream.flush()


async def _run(argv: Sequence[str], output_format: str) -> int:
    port = _StdioPort(output_format)
    code = 1  # also if the reader has closed the pipe
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
            pass
    return ended[0] if ended else code


class _StdioPort:
    def __init__(self, form: str) -> None:
        self._output_format = form
        self._input = open(0, "rb", closefd=False)  # noqa: SIM115 - lives as long as the program
        self._write_lock = anyio.Lock()

    async def read_line(self) -> bytes:
        """Return the next line; b"" once the input has ended."""
        return await anyio.to_thread.run_sync(self._read_line, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))

    def _read_line(self) -> bytes:
        try:
            return self._input.readline()
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
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
        sys.stderr.write(text)
        sys.stderr.flush()


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
