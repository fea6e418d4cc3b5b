"""Explains why a child process could not be started, and what to do about it.

Goes by the error number. Messages name the executable and the working directory, never arguments or variables, which
may hold keys. Blocking: call it off the event loop.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilothouse.errors import CLIStartError, ProcessError
from pilothouse.transports.discovery import make_not_found_error

if sys.platform != "win32":
    import pwd

_REASONS = {
    errno.E2BIG: "the arguments or the environment are too large for this system ({size} bytes in all); pass large"
    " prompts, schemas and settings through options instead of extra arguments, or send a smaller environment",
    errno.ENOMEM: "there is not enough memory to start a process; run fewer children at once",
    errno.EAGAIN: "the limit on processes is reached; run fewer children at once or raise it (`ulimit -u`)",
    errno.EMFILE: "this process has too many open files; run fewer children at once or raise the limit (`ulimit -n`)",
    errno.ENFILE: "this system has too many open files; run fewer children at once",
    errno.ENOEXEC: "it is not a program for this system and processor, or its file is cut short; install the one for"
    " this machine, or give another path as `cli`",
    errno.ETXTBSY: "it is being written right now; try again when the installation has ended",
    errno.ELOOP: "its path is a circle of symbolic links",
    errno.ENAMETOOLONG: "its path is too long",
}
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def check_system() -> None:
    """Raise `CLIStartError` where the CLI cannot be started at all."""
    if sys.platform == "win32":
        raise CLIStartError("pilothouse starts the CLI on Linux and macOS only; on Windows, use it inside WSL")


def make_start_error(
    error: OSError | ValueError, argv: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> ProcessError:
    """Build the typed error for what `spawn` raised. Raise it outside of `except`: the original may hold arguments.

    Args:
        error: what was raised.
        argv: path of the executable, and its arguments.
        env: its complete environment.
        cwd: its working directory; None: that of this process.
    """
    executable = argv[0]
    if isinstance(error, ValueError):
        reason = _explain_value_error(error)
    elif error.errno in _MISSING and not Path(executable).exists():
        return make_not_found_error(executable, [executable])
    else:
        size = sum(len(os.fsencode(text)) + 1 for pair in (argv, *env.items()) for text in pair)
        reason = _explain_os_error(error, executable, cwd, size)
    return CLIStartError(f"could not start {executable}: {reason}")


def make_files_error(error: OSError) -> ProcessError:
    """Build the typed error for private files that could not be written."""
    reason = os.strerror(error.errno) if error.errno else "unknown system error"
    return CLIStartError(
        f"could not write the private files of the child: {reason}; check the temporary directory (TMPDIR), or let it"
        " name another one"
    )


def find_home_error(user_id: int) -> CLIStartError | None:
    """Build the error for a child without HOME if the system does not know its user, else None.

    The CLI asks for the home directory first of all and ends with a stack trace, also if CLAUDE_CONFIG_DIR is
    set.
    """
    try:
        pwd.getpwuid(user_id)
    except KeyError:
        return CLIStartError(
            f"could not start the CLI: it has no home directory, because HOME is not set and this system has no user"
            f" with the id {user_id}; set HOME to a directory that this user can write, such as"
            " env={'HOME': '/tmp/me'}"
        )
    return None


def _explain_value_error(error: ValueError) -> str:
    if "null byte" in str(error):
        return "an argument, a variable or the working directory contains a NUL character; remove it"
    return "an environment variable has a name that cannot be passed on; names have no '=' and are not empty"


def _explain_os_error(error: OSError, executable: str, cwd: str | None, size: int) -> str:
    if cwd is not None:
        directory = _explain_directory(cwd)
        if directory:
            return directory
    if error.errno in _MISSING:
        return (
            "the file exists, but the interpreter in its first line or the system library it is linked to does not;"
            " install that, or give another path as `cli`"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return _explain_denied(executable)
    known = _REASONS.get(error.errno or 0)
    return known.format(size=size) if known else os.strerror(error.errno) if error.errno else "unknown system error"


def _explain_directory(cwd: str) -> str:
    path = Path(cwd)
    try:
        if not path.exists():
            return f"the working directory {cwd} does not exist; create it or pass another `cwd`"
        if not path.is_dir():
            return f"the working directory {cwd} is not a directory; pass another `cwd`"
        if not os.access(cwd, os.X_OK):
            return f"the working directory {cwd} may not be entered; check its permissions"
    except OSError as error:
        return f"the working directory {cwd} cannot be used: {error.strerror}"
    return ""


def _explain_denied(executable: str) -> str:
    path = Path(executable)
    try:
        if path.is_dir():
            return "it is a directory; give the path of the executable inside as `cli`"
        if not os.access(executable, os.X_OK):
            return f"it is not executable; run `chmod +x {executable}` or give another path as `cli`"
    except OSError:
        pass
    return "the system does not permit it (is its file system mounted `noexec`?)"
