"""Explains from a file's first bytes why it cannot run here: scripts, and ELF, Mach-O and Windows programs.

Explains a failed start and decides nothing: some systems do run foreign programs. So it reports only what is certain.
Reads the disk: call it off the event loop.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import sys
from pathlib import Path
from typing import NamedTuple

HEAD_BYTES = 4096
"""Bytes. Covers the first line of a script and the headers of programs that linkers make."""

_SYSTEM_NAMES = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_ELF_MACHINES = {
    3: "32-bit x86", 8: "MIPS", 20: "PowerPC", 21: "64-bit PowerPC", 22: "IBM Z", 40: "32-bit ARM", 62: "x86-64",
    183: "arm64", 243: "RISC-V", 258: "LoongArch",
}  # fmt: skip
# ELF machines that a processor can run: 64-bit processors also run their 32-bit kind.
_RUNS = {"x86_64": {62, 3}, "aarch64": {183, 40}, "i686": {3}, "armv7l": {40}}
_MACH_MAGICS = {b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe"}
_MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_PT_LOAD, _PT_INTERP = 1, 3


def misfit(path: str, search_path: str = "") -> str:
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
        return _script_misfit(head, search_path)
    if head.startswith(b"\x7fELF"):
        return _elf_misfit(head, size)
    if head[:4] in _MACH_MAGICS:
        return _mach_misfit(head)
    return _foreign("win32") if head.startswith(b"MZ") else ""


def _foreign(system: str) -> str:
    """Describe a program for another system; "" if it is for this one."""
    if sys.platform == system:
        return ""
    here = _SYSTEM_NAMES.get(sys.platform, sys.platform)
    return f"it is a program for {_SYSTEM_NAMES[system]}, and this is {here}; install the one for this system"


# --- scripts


def _script_misfit(head: bytes, search_path: str) -> str:
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


def _elf_misfit(head: bytes, size: int) -> str:
    if sys.platform != "linux":
        return _foreign("linux")
    elf = _read_elf(head)
    if elf is None:
        cut = size < HEAD_BYTES
        return f"it is cut short: {size} bytes, and its headers are not whole; install it again" if cut else ""
    host = platform.machine()
    if elf.machine not in _RUNS.get(host, {elf.machine}):
        made_for = _ELF_MACHINES.get(elf.machine, f"another processor (ELF machine {elf.machine})")
        return f"it is built for {made_for}, and this machine is {host}; install the one for this machine"
    needed = max(elf.sections_end, *(s.offset + s.size for s in elf.segments if s.kind == _PT_LOAD), 0)
    if size < needed:
        return f"it is cut short: {size} bytes of at least {needed}; install it again"
    return _loader_misfit(head, elf)


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


def _loader_misfit(head: bytes, elf: _Elf) -> str:
    for segment in elf.segments:
        if segment.kind == _PT_INTERP and segment.offset + segment.size <= len(head):
            loader = os.fsdecode(head[segment.offset : segment.offset + segment.size].rstrip(b"\0"))
            if not Path(loader).exists():
                return _no_loader(loader)
    return ""


def _no_loader(loader: str) -> str:
    from pilothouse.provision.cli import has_glibc

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


def _mach_misfit(head: bytes) -> str:
    if sys.platform != "darwin":
        return _foreign("darwin")
    if head.startswith(b"\xca\xfe") or len(head) < 8:  # a fat file has code for several processors
        return ""
    (machine,) = struct.unpack_from("<I", head, 4)
    made_for, host = _MACH_MACHINES.get(machine), platform.machine()
    if made_for is None or made_for == host:
        return ""
    return f"it is built for {made_for}, and this machine is {host}; install the one for this machine"
