"""Programs of the tests that outlive none of them, and are children of none: other tests count theirs.

A program forks at once, says in a line of JSON how it is reached, and takes everything away when its standard input
ends: so whatever becomes of the tests, Ctrl-C and SIGKILL included, nothing stays behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

SendCommand = Callable[[str], dict[str, Any]]


@contextmanager
def run_detached(
    *command: str, start: float, stop: float, environment: Mapping[str, str] | None = None
) -> Generator[tuple[dict[str, Any], SendCommand]]:
    """A running program; yields what it has said, and a way to tell it a word, to which it says something.

    Args:
        command: its file, and arguments.
        start: seconds for it to say something; past them it is killed.
        stop: the same for its end.
        environment: variables beside those of this process.
    """
    env = {**os.environ, **(environment or {})}
    whole = [sys.executable, *command]
    first = subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=env)
    to, of = first.stdin, first.stdout
    assert to is not None
    assert of is not None
    first.wait()

    def read_reply() -> dict[str, Any]:
        with _limited(start, first.pid):
            line = of.readline()
        assert line, f"{' '.join(command)} has ended: see standard error above"
        return json.loads(line)

    def send_command(word: str) -> dict[str, Any]:
        to.write(word.encode() + b"\n")
        to.flush()
        return read_reply()

    try:
        yield read_reply(), send_command
    finally:
        to.close()
        with _limited(stop, first.pid):
            of.read()  # its end
        of.close()


@contextmanager
def _limited(seconds: float, group: int) -> Generator[None]:
    """Kill the group unless the block ends in time."""
    alarm = threading.Timer(seconds, os.killpg, (group, signal.SIGKILL))
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


# In the program.


def detach(*also: signal.Signals) -> None:
    """Be nobody's child, and deaf to signals: it ends when its input does, and not before all is taken away."""
    if os.fork():
        os._exit(0)
    for by in (signal.SIGINT, signal.SIGHUP, *also):
        signal.signal(by, signal.SIG_IGN)


def send_reply(reply: Mapping[str, Any]) -> None:
    """Say something to the tests."""
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
