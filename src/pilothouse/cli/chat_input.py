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
READ_BYTES = 1 << 16  # bytes


class CtrlC(Exception):  # noqa: N818 - no error
    """Ctrl-C was pressed in an editor, which gets it as a key and not as a signal."""


class ChatInput(Protocol):
    """What a person, or a pipe, says."""

    async def read_prompt(self) -> str | None:
        """The next thing to say; None at the end. Raises `CtrlC`."""
        ...

    def pause_prompt(self) -> AbstractAsyncContextManager[None]:
        """A block that has the screen: a prompt that waits is taken away, and comes back with what was typed."""
        ...

    async def ask(self, question: str) -> str | None:
        """Within `pause_prompt`: the answer to `question`; what was typed before it does not count. None at the end."""
        ...


class InterruptiblePrompt:
    """A prompt that gives way to whatever comes between."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._prompt_scope: anyio.CancelScope | None = None
        self._interruptions = 0  # who has the floor, or waits for it, beside the prompt

    async def read_interruptibly(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` gives; it is called again after each thing that came between."""
        while True:
            async with self._lock:  # first come, first served: who was waiting is next
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
    """Lines as the system gives them.

    Args:
        fd: to read from.
        notes: where prompts and questions are shown; None: nobody looks.
        terminal: whether a person types: then a line that ends in a backslash goes on, and questions can be asked.
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
        """The next line, or several that are joined by backslashes."""
        return await self.read_interruptibly(self._read_prompt_lines)

    async def _read_prompt_lines(self) -> str | None:
        line = await self._ask(PROMPT)
        while line is not None and self._terminal is not None and line.endswith(CONTINUATION):
            more = await self._ask("… ")
            line = line.removesuffix(CONTINUATION) + "\n" + (more or "")
        return line

    async def ask(self, question: str) -> str | None:
        """A line that is typed after the question was shown."""
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
            # One that was given up reads on; what it gets belongs to the next line.
            self._reader = self._reader or _ReadThread(self._fd)
            chunk = await self._reader.wait()
            self._reader = None
            self._buffer += chunk
            # Ctrl-D in a terminal ends a line that was begun, and is no end for good.
            self._ended = not chunk
        line, newline, self._buffer = self._buffer.partition(b"\n")
        if not (line or newline):
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


class _ReadThread:
    """One read, in a thread that nobody has to wait for: it may last until the process ends."""

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
    """The terminal that standard input is: whether it shows what is typed.

    Nothing is shown while an answer is written, so that the two do not mix; what is typed then is kept for the next
    prompt. Does nothing where there is no termios.

    Args:
        fd: of standard input.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._termios: Any = None
        self._saved_attributes: Any = None
        if sys.platform != "win32":
            import termios

            self._termios = termios

    def disable_echo(self) -> None:
        """Show nothing of what is typed from now on."""
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
        """Show again what is typed."""
        before, self._saved_attributes = self._saved_attributes, None
        if before is not None:
            try:
                self._termios.tcsetattr(self._fd, self._termios.TCSANOW, before)
            except self._termios.error:
                return

    def enable_echo(self) -> _EchoContext:
        """A block in which what is typed is shown."""
        return _EchoContext(self)

    @property
    def is_echo_disabled(self) -> bool:
        """Whether nothing is shown now."""
        return self._saved_attributes is not None

    def discard_typed(self) -> None:
        """Drop what was typed and not read: it was meant for something else."""
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
