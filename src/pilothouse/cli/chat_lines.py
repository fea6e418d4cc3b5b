"""Where the lines of a conversation come from: a terminal without an editor, or a pipe. `chat_editor` is the editor.

Owns reading standard input without blocking the event loop, and whether a terminal shows what is typed. Knows nothing
of commands, models or permissions.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TextIO, TypeVar

import anyio

from pilothouse.driver import caller_into_loop

T = TypeVar("T")

PROMPT = "> "
CONTINUED = "\\"
CHUNK = 1 << 16  # bytes


class CtrlC(Exception):  # noqa: N818 - no error
    """Ctrl-C was pressed in an editor, which gets it as a key and not as a signal."""


class Lines(Protocol):
    """What a person, or a pipe, says."""

    async def prompt(self) -> str | None:
        """The next thing to say; None at the end. Raises `CtrlC`."""
        ...

    def aside(self) -> AbstractAsyncContextManager[None]:
        """A block that has the screen: a prompt that waits is taken away, and comes back with what was typed."""
        ...

    async def answer(self, question: str) -> str | None:
        """Within `aside`: the answer to `question`; what was typed before it does not count. None at the end."""
        ...


class OneAtATime:
    """A prompt that gives way to whatever comes between."""

    def __init__(self) -> None:
        self._floor = anyio.Lock()
        self._waiting: anyio.CancelScope | None = None
        self._wanted = 0  # who has the floor, or waits for it, beside the prompt

    async def prompting(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` gives; it is called again after each thing that came between."""
        while True:
            async with self._floor:  # first come, first served: who was waiting is next
                if not self._wanted:
                    with anyio.CancelScope() as self._waiting:
                        return await read()

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[None]:
        """See `Lines`."""
        self._wanted += 1
        try:
            if self._waiting is not None:
                self._waiting.cancel()
            async with self._floor:
                yield
        finally:
            self._wanted -= 1


class PlainLines(OneAtATime):
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
        self._reader: _Chunk | None = None

    async def prompt(self) -> str | None:
        """The next line, or several that are joined by backslashes."""
        return await self.prompting(self._prompt)

    async def _prompt(self) -> str | None:
        line = await self._shown(PROMPT)
        while line is not None and self._terminal is not None and line.endswith(CONTINUED):
            more = await self._shown("… ")
            line = line.removesuffix(CONTINUED) + "\n" + (more or "")
        return line

    async def answer(self, question: str) -> str | None:
        """A line that is typed after the question was shown."""
        if self._terminal is not None:
            self._buffer = b""
            self._terminal.forget_typed()
        return await self._shown(question)

    async def _shown(self, prompt: str) -> str | None:
        if self._notes is not None:
            self._notes.write(prompt)
            self._notes.flush()
        if self._terminal is None:
            return await self._line()
        with self._terminal.echoing():
            return await self._line()

    async def _line(self) -> str | None:
        while b"\n" not in self._buffer and not self._ended:
            # One that was given up reads on; what it gets belongs to the next line.
            self._reader = self._reader or _Chunk(self._fd)
            chunk = await self._reader.wait()
            self._reader = None
            self._buffer += chunk
            # Ctrl-D in a terminal ends a line that was begun, and is no end for good.
            self._ended = not chunk
        line, newline, self._buffer = self._buffer.partition(b"\n")
        if not (line or newline):
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


class _Chunk:
    """One read, in a thread that nobody has to wait for: it may last until the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._call: Callable[[Callable[[], object]], None] = caller_into_loop()
        self._read = anyio.Event()
        self._data = b""
        threading.Thread(target=self._run, name="pilothouse chat input", daemon=True).start()

    def _run(self) -> None:
        try:
            self._data = os.read(self._fd, CHUNK)
        except OSError:
            self._data = b""  # the terminal is gone
        self._call(self._read.set)

    async def wait(self) -> bytes:
        await self._read.wait()
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
        self._before: Any = None
        if sys.platform != "win32":
            import termios

            self._termios = termios

    def hush(self) -> None:
        """Show nothing of what is typed from now on."""
        if self._termios is None or self._before is not None:
            return
        try:
            before = self._termios.tcgetattr(self._fd)
            quiet = [*before]
            quiet[3] &= ~self._termios.ECHO
            self._termios.tcsetattr(self._fd, self._termios.TCSANOW, quiet)
        except self._termios.error:
            return
        self._before = before

    def show(self) -> None:
        """Show again what is typed."""
        before, self._before = self._before, None
        if before is not None:
            try:
                self._termios.tcsetattr(self._fd, self._termios.TCSANOW, before)
            except self._termios.error:
                return

    def echoing(self) -> _Echoing:
        """A block in which what is typed is shown."""
        return _Echoing(self)

    @property
    def is_hushed(self) -> bool:
        """Whether nothing is shown now."""
        return self._before is not None

    def forget_typed(self) -> None:
        """Drop what was typed and not read: it was meant for something else."""
        if self._termios is not None:
            try:
                self._termios.tcflush(self._fd, self._termios.TCIFLUSH)
            except self._termios.error:
                return


class _Echoing:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._was_hushed = terminal.is_hushed

    def __enter__(self) -> None:
        self._terminal.show()

    def __exit__(self, *exc: object) -> None:
        if self._was_hushed:
            self._terminal.hush()
