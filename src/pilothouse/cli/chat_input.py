"""The input of a conversation: lines of a plain terminal or a pipe. `chat_editor` has the line editor."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TextIO, TypeVar

import anyio

from pilothouse.driver import make_loop_caller

T = TypeVar("T")

PROMPT = "> "
CONTINUATION = "\\"
READ_BYTES = 1 << 16


class CtrlC(Exception):  # noqa: N818 - not an error
    """Ctrl-C was pressed in an editor, where it arrives as a key instead of a signal."""


class ChatInput(Protocol):
    """The input of a person or a pipe."""

    async def read_prompt(self) -> str | None:
        """Return the next prompt; None at the end. Raises `CtrlC`."""
        ...

    def pause_prompt(self) -> AbstractAsyncContextManager[None]:
        """A block that owns the screen: a waiting prompt is removed, and restored later with its text."""
        ...

    async def ask(self, question: str) -> str | None:
        """Within `pause_prompt`: return the answer to `question`, ignoring text typed before it. None at the end."""
        ...


class InterruptiblePrompt:
    """A prompt that other output can interrupt."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._prompt_scope: anyio.CancelScope | None = None
        self._interruptions = 0  # number of blocks that own the screen or wait for it

    async def read_interruptibly(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`, which is called again after each interruption."""
        while True:
            async with self._lock:  # first in, first out: the block that was waiting is next
                if not self._interruptions:
                    with anyio.CancelScope() as self._prompt_scope:
                        return await read()

    @asynccontextmanager
    async def pause_prompt(self) -> AsyncGenerator[None]:
        """See `ChatInput`."""
        self._interruptions += 1
        try:
            if self._prompt_scope is not None:
                self._prompt_scope.cancel()
            async with self._lock:
                yield
        finally:
            self._interruptions -= 1


class PlainInput(InterruptiblePrompt):
    """Lines without editing.

    Args:
        fd: the descriptor to read from.
        notes: the output of prompts and questions; None: none.
        terminal: the terminal of a person, if there is one: a line that ends in a backslash continues, and questions
            can be asked.
    """

    def __init__(self, fd: int, notes: TextIO | None, terminal: Terminal | None = None) -> None:
        super().__init__()
        self._fd = fd
        self._notes = notes
        self._terminal = terminal
        self._buffer = b""
        self._ended = False
        self._reader: _ReadThread | None = None

    async def read_prompt(self) -> str | None:
        """Return the next line, or several lines joined by backslashes."""
        return await self.read_interruptibly(self._read_prompt_lines)

    async def _read_prompt_lines(self) -> str | None:
        line = await self._ask(PROMPT)
        while line is not None and self._terminal is not None and line.endswith(CONTINUATION):
            more = await self._ask("… ")
            line = line.removesuffix(CONTINUATION) + "\n" + (more or "")
        return line

    async def ask(self, question: str) -> str | None:
        """Return a line that is typed after the question was shown."""
        if self._terminal is not None:
            self._buffer = b""
            self._terminal.discard_typed()
        return await self._ask(question)

    async def _ask(self, prompt: str) -> str | None:
        if self._notes is not None:
            self._notes.write(prompt)
            self._notes.flush()
        if self._terminal is None:
            return await self._read_line()
        with self._terminal.enable_echo():
            return await self._read_line()

    async def _read_line(self) -> str | None:
        while b"\n" not in self._buffer and not self._ended:
            # An abandoned read continues; its data belongs to the next line.
            self._reader = self._reader or _ReadThread(self._fd)
            chunk = await self._reader.wait()
            self._reader = None
            self._buffer += chunk
            # Ctrl-D in a terminal ends a partial line, but not the input.
            self._ended = not chunk
        line, newline, self._buffer = self._buffer.partition(b"\n")
        if not (line or newline):
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


class _ReadThread:
    """One read in a thread without a join: it may last until the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._call: Callable[[Callable[[], object]], None] = make_loop_caller()
        self._read_event = anyio.Event()
        self._data = b""
        threading.Thread(target=self._run, name="pilothouse chat input", daemon=True).start()

    def _run(self) -> None:
        try:
            self._data = os.read(self._fd, READ_BYTES)
        except OSError:
            self._data = b""  # the terminal is gone
        self._call(self._read_event.set)

    async def wait(self) -> bytes:
        await self._read_event.wait()
        return self._data


class Terminal:
    """The terminal of standard input, and its echo.

    Echo is off while an answer is written, so that the two do not mix; text typed then is kept for the next prompt.
    Does nothing on systems without termios.

    Args:
        fd: descriptor of standard input.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._termios: Any = None
        self._saved_attributes: Any = None
        if sys.platform != "win32":
            import termios

            self._termios = termios

    def disable_echo(self) -> None:
        """Turn the echo off."""
        if self._termios is None or self._saved_attributes is not None:
            return
        try:
            before = self._termios.tcgetattr(self._fd)
            quiet = [*before]
            quiet[3] &= ~self._termios.ECHO
            self._termios.tcsetattr(self._fd, self._termios.TCSANOW, quiet)
        except self._termios.error:
            return
        self._saved_attributes = before

    def restore_echo(self) -> None:
        """Turn the echo on again."""
        before, self._saved_attributes = self._saved_attributes, None
        if before is not None:
            try:
                self._termios.tcsetattr(self._fd, self._termios.TCSANOW, before)
            except self._termios.error:
                return

    def enable_echo(self) -> _EchoContext:
        """A block with the echo on."""
        return _EchoContext(self)

    @property
    def is_echo_disabled(self) -> bool:
        """Whether the echo is off."""
        return self._saved_attributes is not None

    def discard_typed(self) -> None:
        """Discard typed text that was not read: it was meant for something else."""
        if self._termios is not None:
            try:
                self._termios.tcflush(self._fd, self._termios.TCIFLUSH)
            except self._termios.error:
                return


class _EchoContext:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._was_echo_disabled = terminal.is_echo_disabled

    def __enter__(self) -> None:
        self._terminal.restore_echo()

    def __exit__(self, *exc: object) -> None:
        if self._was_echo_disabled:
            self._terminal.disable_echo()
