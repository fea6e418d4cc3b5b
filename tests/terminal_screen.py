"""A person at `pilothouse chat`: a process in a terminal of its own, its screen is read and its keys are pressed."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

ROWS, COLUMNS = 100, 120
LIMIT_S = 30.0  # until a screen that does not change counts as wrong
CTRL_C, CTRL_D, ENTER, ALT_ENTER = "\x03", "\x04", "\r", "\x1b\r"
ASKED_ADDRESS = "paste the address of the last page, or wait for your browser:"
"""What a login at an MCP server asks for."""


class _Display(pyte.Screen):
    """A screen that answers what programs ask of their terminal."""

    def __init__(self, terminal: int, rows: int, columns: int) -> None:
        super().__init__(columns, rows)
        self._terminal = terminal

    def write_process_input(self, data: str) -> None:
        os.write(self._terminal, data.encode())


class ChatScreen:
    """The terminal, and the process in it."""

    def __init__(self, child: subprocess.Popen[bytes], terminal: int, rows: int, columns: int) -> None:
        self.child = child
        self.raw = b""
        self._terminal = terminal
        self._display = _Display(terminal, rows, columns)
        self._stream = pyte.ByteStream(self._display)
        self._ended = False

    @property
    def lines(self) -> list[str]:
        """What the screen shows, without empty lines."""
        return [line.rstrip() for line in self._display.display if line.strip()]

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """The characters of each line, with their colours."""
        shown = self._display
        return [[shown.buffer[row][column] for column in range(shown.columns)] for row in range(shown.lines)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def say(self, line: str) -> None:
        """Type a line where a prompt waits."""
        self.until(lambda: self.at_prompt)
        self.press(line + ENTER)

    @property
    def at_prompt(self) -> bool:
        """Whether an empty prompt waits."""
        return self._display.display[self._display.cursor.y].rstrip() == ">"

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until it is on the screen."""
        self.until(lambda: self.text.count(text) >= times, f"{text!r} {times} times")

    def until(self, true: Callable[[], Any], what: str = "it") -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            if self._ended or time.monotonic() > deadline:
                raise AssertionError(f"never saw {what}; the screen:\n{self.text}")
            self._read()

    def _read(self) -> None:
        if not select.select([self._terminal], [], [], 0.1)[0]:
            return
        try:
            data = os.read(self._terminal, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux says so when the last process has closed it
                raise
            data = b""
        self._ended = not data
        self.raw += data
        self._stream.feed(data)

    def ends(self) -> int:
        """Wait for the end; the exit code."""
        deadline = time.monotonic() + LIMIT_S
        while not self._ended:
            assert time.monotonic() < deadline, f"still running; the screen:\n{self.text}"
            self._read()
        return self.child.wait(LIMIT_S)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed: a program must leave it as it was."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)


@contextmanager
def chatting(
    argv: list[str],
    env: dict[str, str],
    *,
    rows: int = ROWS,
    columns: int = COLUMNS,
    cwd: Path | None = None,
    **streams: Any,
) -> Generator[ChatScreen]:
    """Run `argv` in a new terminal; `streams` may put other files in the place of its streams."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    places: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **streams}
    child = subprocess.Popen(
        argv,
        env={"TERM": "xterm-256color", **env},
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_take_terminal,
        stdin=places["stdin"],
        stdout=places["stdout"],
        stderr=places["stderr"],
    )
    os.close(theirs)
    try:
        yield ChatScreen(child, ours, rows, columns)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.wait()
        os.close(ours)


def _take_terminal() -> None:
    # So that Ctrl-C is a signal; one of the streams is the terminal.
    fcntl.ioctl(next(fd for fd in (0, 2) if os.isatty(fd)), termios.TIOCSCTTY, 0)


def read_link(screen: ChatScreen, number: int = -1) -> str:
    """The link of a login; the last one, or that with a number."""
    return re.findall(r"^https?://\S+authorize\?\S+", screen.text, re.MULTILINE)[number]
