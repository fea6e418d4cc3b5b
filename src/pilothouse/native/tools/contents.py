"""Files on disk: reading within bounds, encodings and line endings, and writing in one step.

Owns what a text file is, and that what is written keeps encoding, line endings, permissions and owner. Blocking: call
it in a thread. Knows no tool's input.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import stat
import uuid
from pathlib import Path

import msgspec

from pilothouse.native.tools.base import FileSeen, Workplace
from pilothouse.native.tools.builtin import ToolFault, size_text

MOST_LOADED = 64 * 1024 * 1024
"""Bytes of the largest file that is loaded as a whole."""
SNIFFED = 8192
# Reading these waits, never ends, or tells what the environment of a process is.
ODD_PLACES = ("/dev", "/proc", "/sys")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class TextFile(msgspec.Struct, frozen=True):
    """The text of a file, with plain line feeds, and what it takes to write it back the same way.

    `exact` is False when some bytes are of no known encoding.
    """

    text: str
    mark: bytes = b""
    encoding: str = "utf-8"
    newline: str = "\n"
    exact: bool = True

    def encoded(self, text: str) -> bytes:
        """Other text as the bytes of this file would be."""
        if self.newline != "\n" and "\r\n" not in text:
            text = text.replace("\n", self.newline)
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ToolFault(f"The text cannot be written as {self.encoding}: {error.reason}") from error


def open_regular(path: Path, given: str) -> int:
    """Open a file for reading and give its descriptor; refuses everything that could block or never end."""
    real = os.path.realpath(path)
    for name in (real, os.path.normpath(path)):
        if name != os.devnull and name.startswith(tuple(f"{place}/" for place in ODD_PLACES)):
            raise ToolFault(f"Cannot read {given!r}: it is a device or file of the system that this tool does not read")
    # Without O_NONBLOCK, opening a FIFO waits for somebody who writes.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or real == os.devnull:
        return descriptor
    os.close(descriptor)
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file (a device, FIFO or socket)"
    raise ToolFault(f"{given} is {kind}")


def load(path: Path, given: str, most: int = MOST_LOADED) -> bytes:
    """All bytes of a regular file.

    Raises:
        ToolFault: it is larger than `most`, or no regular file.
        OSError: it cannot be read.
    """
    with os.fdopen(open_regular(path, given), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ToolFault(f"{given} is larger than {size_text(most)}")
    return data


def is_binary(beginning: bytes) -> bool:
    """Whether the beginning of a file is not that of a text."""
    return not beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in beginning[:SNIFFED]


def decode(data: bytes) -> TextFile:
    """Make text of bytes. Never raises: bytes of no known encoding become U+FFFD."""
    mark, encoding = next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8"))
    body = data[len(mark) :]
    try:
        text, exact = body.decode(encoding), True
    except UnicodeDecodeError:
        text, exact = body.decode(encoding, "replace"), False
    ends = text.count("\r\n")
    newline = "\r\n" if ends and ends == text.count("\n") else "\n"
    if newline == "\r\n":
        text = text.replace("\r\n", "\n")
    return TextFile(text, mark, encoding, newline, exact)


def note_seen(workplace: Workplace, path: Path, data: bytes, *, whole: bool = True) -> None:
    """Remember what a file looks like now."""
    info = path.stat()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    workplace.read[Path(os.path.realpath(path))] = FileSeen(info.st_mtime_ns, info.st_size, digest, whole)


def check_seen(workplace: Workplace, path: Path, data: bytes, *, whole: bool) -> None:
    """Refuse to change a file that was not read, or is not what was read.

    Raises:
        ToolFault: says what to do.
    """
    seen = workplace.read.get(Path(os.path.realpath(path)))
    if seen is None:
        raise ToolFault("The file has not been read yet. Read it before changing it.")
    if hashlib.blake2b(data, digest_size=16).digest() != seen.digest:
        raise ToolFault("The file has changed since it was read, by somebody else or by a command. Read it again.")
    if whole and not seen.whole:
        raise ToolFault("Only a part of the file was read. Read all of it before replacing it, or use Edit.")


def refuse_link(path: Path) -> None:
    """Refuse to write through a link: whoever asked may not know where it leads."""
    if path.is_symlink():
        raise ToolFault(f"{path} is a symbolic link. Use the file it leads to: {os.path.realpath(path)}")
    if path.is_dir():
        raise ToolFault(f"{path} is a directory")
    if path.exists() and not path.is_file():
        raise ToolFault(f"{path} is not a regular file (a device, FIFO or socket)")


def store(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever reads it sees the old bytes or the new ones. Keeps permissions and owner."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        old = path.stat()
    except FileNotFoundError:
        old = None
    if old is not None and (old.st_nlink > 1 or not _writable_beside(path)):
        with path.open("r+b") as file:  # another name of the same file must see the change too
            file.write(data)
            file.truncate()
        return
    if old is not None and not os.access(path, os.W_OK):
        raise PermissionError(13, "Permission denied", str(path))
    name = path.with_name(f".{path.name[:64]}.{uuid.uuid4().hex[:8]}")
    # Not readable for more than the old file was, not even for a moment.
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if old is not None:
                _dress(file.fileno(), old)
        name.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise


def _writable_beside(path: Path) -> bool:
    return os.access(path.parent, os.W_OK | os.X_OK)


def _dress(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the owner and the permissions of the old one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
