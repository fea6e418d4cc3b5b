"""Runs a command in a terminal of its own and returns what it showed."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

ROWS, COLUMNS = 40, 120


def run_in_terminal(
    argv: list[str], env: dict[str, str], limit: float, *, interrupt_at: str | None = None
) -> tuple[int, str]:
    """Run `argv` with a new terminal as its standard input, output and error.

    Args:
        argv: the command.
        env: its whole environment.
        limit: seconds until it counts as hanging.
        interrupt_at: press Ctrl-C when this has been shown.

    Returns:
        Its exit code and all that it wrote.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    child = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True, preexec_fn=_take_terminal
    )
    os.close(theirs)
    try:
        shown = _read_all(ours, limit, interrupt_at)
        return child.wait(limit), shown
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.wait()
        os.close(ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal


def _read_all(terminal: int, limit: float, interrupt_at: str | None) -> str:
    seen = b""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError as error:  # Linux says so when the last process has closed it
            if error.errno != errno.EIO:
                raise
            break
        if not chunk:
            break
        seen += chunk
        if interrupt_at is not None and interrupt_at.encode() in seen:
            interrupt_at = None
            os.write(terminal, b"\x03")
    else:
        raise TimeoutError(f"still running after {limit} s; it showed:\n{seen.decode(errors='replace')}")
    return seen.decode(errors="replace")
