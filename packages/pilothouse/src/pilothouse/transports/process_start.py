"""Starts a process in a session of its own, with no signal blocked, and none ignored that tools need. POSIX only.

`Popen` passes on the signals that this program blocks or ignores, and the tools of a child suffer from it: `timeout`
waits for a SIGALRM that is never delivered, and with SIGCHLD ignored a shell does not learn how its commands ended.
`posix_spawn` resets both, but it cannot set a working directory or a user and reports fewer errors, so it is used only
if there is something to reset. A `preexec_fn` of `Popen` could deadlock in a program with threads.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

if sys.platform != "win32":
    import fcntl

    # By which tools end, wait or stop. `Popen` resets those that Python itself ignores.
    _RELEVANT_SIGNALS = (
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM, signal.SIGTERM, signal.SIGCHLD,
        signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGVTALRM,
        signal.SIGPROF, signal.SIGXCPU,
    )  # fmt: skip

_CHANGE_DIRECTORY = 'cd -- "$1" && shift && exec "$@"'

_log = logging.getLogger("pilothouse.transports")


class UserAccount(NamedTuple):
    """What a process needs to become another user."""

    name: str
    uid: int
    gid: int
    groups: list[int]

    def make_arguments(self) -> dict[str, Any]:
        """Make the arguments of `subprocess.Popen`."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups}


def start_process(
    argv: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    env: Mapping[str, str],
    cwd: str | None = None,
    account: UserAccount | None = None,
) -> int:
    """Start a process as the leader of a new session and group. Blocks for about a millisecond.

    Only if this program blocks or ignores signals and `cwd` is given, a shell starts it: it changes the directory. Some
    shells pass on only variables whose name they could set.

    Args:
        argv: the path of the executable and its arguments.
        stdin: the descriptor that becomes its input.
        stdout: the same for its output.
        stderr: the same for its standard error.
        env: its complete environment.
        cwd: its working directory; None: that of this process.
        account: the user to run it as; None: that of this process. The signals that this program blocks or ignores
            stay so in the process of another user.

    Returns:
        Its pid. The caller reaps it.

    Raises:
        OSError: as `subprocess.Popen`; nothing is left behind.
        ValueError: a NUL in an argument or variable.
    """
    if _has_signals_to_reset():
        if account is None:
            return _spawn(argv, (stdin, stdout, stderr), env, cwd)
        _log.warning(
            "this program blocks or ignores signals, and the child that runs as %s inherits that: its commands may"
            " not end at a time limit",
            account.name,
        )
    process = subprocess.Popen(
        argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=True,
        **({} if account is None else account.make_arguments()),
    )  # fmt: skip
    process.returncode = 0  # the caller handles the exit: `Popen` must neither wait for it nor warn
    return process.pid


def _has_signals_to_reset() -> bool:
    if signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return True
    return any(signal.getsignal(number) is signal.SIG_IGN for number in _RELEVANT_SIGNALS)


def _spawn(argv: Sequence[str], streams: Sequence[int], env: Mapping[str, str], cwd: str | None) -> int:
    executable = argv[0]
    if cwd is not None:
        _check_start(executable, cwd)
        directory = os.path.abspath(cwd)  # noqa: PTH100
        executable, argv = "/bin/sh", ["/bin/sh", "-c", _CHANGE_DIRECTORY, "sh", directory, *argv]
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in streams]  # above the three that they replace
    try:
        actions = [(os.POSIX_SPAWN_DUP2, copy, number) for number, copy in enumerate(copies)]
        closed = [(os.POSIX_SPAWN_CLOSE, fd) for fd in _find_inheritable()]
        return os.posix_spawn(
            executable, list(argv), env, file_actions=[*actions, *closed], setsid=True,
            setsigmask=(), setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )  # fmt: skip
    finally:
        for copy in copies:
            os.close(copy)


def _check_start(executable: str, cwd: str) -> None:
    """Raise what `Popen` would: the shell that changes the directory could only write it to standard error."""
    os.stat(os.path.join(cwd, ""))  # noqa: PTH116, PTH118
    os.stat(executable)  # noqa: PTH116
    for path in (cwd, executable):
        if not os.access(path, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _find_inheritable() -> list[int]:
    """Find the descriptors that a program would keep; `Popen` closes them."""
    found: list[int] = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # closed meanwhile
            continue
    return found
