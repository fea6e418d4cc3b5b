"""Explains why a child process could not be started, and what to do about it.

Reads the first bytes of scripts and of ELF, Mach-O and Windows programs. Messages name the executable and the working
directory, never arguments or variables, which may hold keys. Blocking: call it off the event loop.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from pilothouse.errors import CLIStartError, ProcessError

_REASONS = {
    errno.E2BIG: "the arguments or the environment are too large for this system ({size} bytes in all); pass large"
    " prompts, schemas and settings through options instead of extra arguments, or send a smaller environment",
    errno.ENOMEM: "there is not enough memory to start a process; run fewer children at once",
    errno.EAGAIN: "the limit on processes is reached; run fewer children at once or raise it (`ulimit -u`)",
    errno.EMFILE: "this process has too many open files; run fewer children at once or raise the limit (`ulimit -n`)",
    errno.ENFILE: "this system has too many open files; run fewer children at once",
    errno.ENOEXEC: "it is not a program for this system; install the one for this platform or give another path",
    errno.ETXTBSY: "it is being written right now; try again when the installation has ended",
    errno.ELOOP: "its path is a circle of symbolic links",
    errno.ENAMETOOLONG: "its path is too long",
}


def make_start_error(error: OSError | ValueError, executable: str, cwd: str | None, size: int) -> ProcessError:
    """Build the typed error for what `Popen` raised.

    Args:
        error: what was raised.
        executable: path of the executable.
        cwd: its working directory; None: that of this process.
        size: bytes of its arguments and environment.
    """
    return CLIStartError(f"could not start {executable}: {explain_start_failure(error, executable, cwd, size)}")


def explain_start_failure(error: OSError | ValueError, executable: str, cwd: str | None = None, size: int = 0) -> str:
    """Explain an error of `Popen` as half a sentence about "it", the executable."""
    return (
        _explain_value_error(error)
        if isinstance(error, ValueError)
        else _explain_os_error(error, executable, cwd, size)
    )


def make_files_error(error: OSError) -> ProcessError:
    """Build the typed error for private files that could not be written."""
    reason = os.strerror(error.errno) if error.errno else "unknown system error"
    return CLIStartError(
        f"could not write the private files of the child: {reason}; check the temporary directory (TMPDIR), or let it"
        " name another one"
    )


def _explain_value_error(error: ValueError) -> str:
    if "null byte" in str(error):
        return "an argument, a variable or the working directory contains a NUL character; remove it"
    return "an environment variable has a name that cannot be passed on; names have no '=' and are not empty"


def _explain_os_error(error: OSError, executable: str, cwd: str | None, size: int) -> str:
    if cwd is not None:
        directory = _explain_directory(cwd)
        if directory:
            return directory
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _explain_missing(executable)
    if error.errno in (errno.EACCES, errno.EPERM):
        return _explain_denied(executable)
    if error.errno == errno.ENOEXEC and (found := explain_exec_format(executable)):
        return found
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


def _explain_missing(executable: str) -> str:
    if Path(executable).exists():
        return explain_exec_format(executable) or (
            "the file exists, but the interpreter in its first line or the system library it is linked to does not;"
            " install that, or give another path as `cli`"
        )
    return "there is no such file any more; install it again or give another path as `cli`"


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


HEAD_BYTES = 4096
"""Bytes. Covers the first line of a script and the headers of programs that linkers make."""

_SYSTEM_NAMES = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_ELF_MACHINES = {
    3: "32-bit x86", 8: "MIPS", 20: "PowerPC", 21: "64-bit PowerPC", 22: "IBM Z", 40: "32-bit ARM", 62: "x86-64",
    183: "arm64", 243: "RISC-V", 258: "LoongArch",
}  # fmt: skip
# ELF machines that a processor can run: 64-bit processors also run their 32-bit kind.
_RUNNABLE_MACHINES = {"x86_64": {62, 3}, "aarch64": {183, 40}, "i686": {3}, "armv7l": {40}}
_MACH_MAGICS = {b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe"}
_MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_PT_LOAD, _PT_INTERP = 1, 3


def explain_exec_format(path: str, search_path: str = "") -> str:
    """Return why the file at `path` cannot run here, as half a sentence about "it"; "" if nothing is certain.

    Args:
        path: the file.
        search_path: the `PATH` of the start, for scripts that look up their interpreter there.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return ""
    if not head:
        return "it is empty; whatever wrote it was cut off"
    if head.startswith(b"#!"):
        return _explain_script(head, search_path)
    if head.startswith(b"\x7fELF"):
        return _explain_elf(head, size)
    if head[:4] in _MACH_MAGICS:
        return _explain_mach(head)
    return _explain_other_system("win32") if head.startswith(b"MZ") else ""


def _explain_other_system(system: str) -> str:
    """Describe a program for another system; "" if it is for this one."""
    if sys.platform == system:
        return ""
    here = _SYSTEM_NAMES.get(sys.platform, sys.platform)
    return f"it is a program for {_SYSTEM_NAMES[system]}, and this is {here}; install the one for this system"


# --- scripts


def _explain_script(head: bytes, search_path: str) -> str:
    line, newline, _ = head[2:].partition(b"\n")
    if not newline:
        return ""
    if line.endswith(b"\r"):
        return "its first line ends as on Windows (CR LF), so its interpreter is not found; install it again"
    words = os.fsdecode(line).split()
    if not words:
        return ""
    if not Path(words[0]).exists():
        return f"it is a script for the interpreter {words[0]}, which is not there; install that"
    if Path(words[0]).name != "env":
        return ""
    program = next((word for word in words[1:] if word != "-S" and "=" not in word), "-")
    if program.startswith("-") or not search_path or shutil.which(program, path=search_path):
        return ""
    return f"it is a script for {program}, which is not on PATH; install that, or the native Claude Code"


# --- ELF: Linux


class _Segment(NamedTuple):
    kind: int
    offset: int
    size: int


class _Elf(NamedTuple):
    machine: int
    sections_end: int
    segments: tuple[_Segment, ...]


def _explain_elf(head: bytes, size: int) -> str:
    if sys.platform != "linux":
        return _explain_other_system("linux")
    elf = _read_elf(head)
    if elf is None:
        cut = size < HEAD_BYTES
        return f"it is cut short: {size} bytes, and its headers are not whole; install it again" if cut else ""
    host = platform.machine()
    if elf.machine not in _RUNNABLE_MACHINES.get(host, {elf.machine}):
        made_for = _ELF_MACHINES.get(elf.machine, f"another processor (ELF machine {elf.machine})")
        return f"it is built for {made_for}, and this machine is {host}; install the one for this machine"
    needed = max(elf.sections_end, *(s.offset + s.size for s in elf.segments if s.kind == _PT_LOAD), 0)
    if size < needed:
        return f"it is cut short: {size} bytes of at least {needed}; install it again"
    return _explain_loader(head, elf)


def _read_elf(head: bytes) -> _Elf | None:
    """Read the header fields that matter, if they are in `head`; offsets are those of the ELF specification."""
    try:
        return _unpack_elf(head, wide=head[4] == 2, order="<>"[head[5] - 1])
    except (struct.error, IndexError):
        return None


def _unpack_elf(head: bytes, *, wide: bool, order: str) -> _Elf:
    (machine,) = struct.unpack_from(order + "H", head, 18)
    programs, sections = struct.unpack_from(order + ("QQ" if wide else "II"), head, 32 if wide else 28)
    entry, count, section, section_count = struct.unpack_from(order + "HHHH", head, 54 if wide else 42)
    form = order + ("IIQQQQ" if wide else "IIIII")
    segments: list[_Segment] = []
    for number in range(count):
        fields = struct.unpack_from(form, head, programs + number * entry)
        # kind, flags, offset, address, address, size; the 32-bit form has no flags at this place
        segments.append(_Segment(fields[0], fields[2 if wide else 1], fields[5 if wide else 4]))
    return _Elf(machine, sections + section * section_count, tuple(segments))


def _explain_loader(head: bytes, elf: _Elf) -> str:
    for segment in elf.segments:
        if segment.kind == _PT_INTERP and segment.offset + segment.size <= len(head):
            loader = os.fsdecode(head[segment.offset : segment.offset + segment.size].rstrip(b"\0"))
            if not Path(loader).exists():
                return _describe_missing_loader(loader)
    return ""


def _describe_missing_loader(loader: str) -> str:
    from pilothouse.provision.pinned_files import has_glibc

    if "ld-musl" in loader and has_glibc():
        return (
            f"it is the build for musl (Alpine and the like) and its loader {loader} is not there; install the build"
            " for glibc"
        )
    if "ld-linux" in loader and not has_glibc():
        return (
            f"it is the build for glibc and its loader {loader} is not there; this system is musl (Alpine and"
            " the like), so install the build for that"
        )
    return f"its loader {loader} is not there; install the one for this system"


# --- Mach-O: macOS


def _explain_mach(head: bytes) -> str:
    if sys.platform != "darwin":
        return _explain_other_system("darwin")
    if head.startswith(b"\xca\xfe") or len(head) < 8:  # a fat file has code for several processors
        return ""
    (machine,) = struct.unpack_from("<I", head, 4)
    made_for, host = _MACH_MACHINES.get(machine), platform.machine()
    if made_for is None or made_for == host:
        return ""
    return f"it is built for {made_for}, and this machine is {host}; install the one for this machine"
