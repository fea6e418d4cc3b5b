"""Which process a worker of a journal is, and whether that process is gone. Knows no journal."""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4


class Process(NamedTuple):
    """A process, as others see it.

    Attributes:
        host: name of its machine.
        space: what makes its id unique; of processes of another space nothing can be said by their ids.
        pid: its id.
        login: of the user.
    """

    host: str
    space: str
    pid: int
    login: str


def on_this_machine() -> Process:
    """This process, for others of this machine. Containers count for themselves."""
    return Process(platform.node(), _process_space(), os.getpid(), _login())


def anywhere() -> Process:
    """This process, for others on any machine: two machines may have the same name."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        start = uuid4().hex
    return Process(platform.node(), f"{start} {_process_space()}", os.getpid(), _login())


def is_gone(there: Process, here: Process) -> bool:
    """Whether a process is certainly no more, as seen from `here`, which is none of its workers."""
    return there[:2] == here[:2] and (there.pid == here.pid or not _exists(there.pid))


def _exists(pid: int) -> bool:
    if os.name == "nt":  # where asking in this way would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _process_space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name in a container
        return str(os.getuid()) if hasattr(os, "getuid") else "?"
