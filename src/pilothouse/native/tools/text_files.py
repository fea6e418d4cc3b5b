"""Files on disk: bounded reading, encodings and line endings, and atomic writing.

Owns what a text file is, and that a written file keeps its encoding, line endings, permissions and owner. Blocking:
call it in a thread. Knows no tool's input.
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

from pilothouse.native.tools.base import BuiltinToolError, FileSnapshot, Workplace, format_size

MAX_LOADED_BYTES = 64 * 1024 * 1024
"""Size of the largest file that is loaded as a whole, in bytes."""
SNIFFED_BYTES = 8192
# Reading these blocks, never ends, or reveals the environment of a process.
SYSTEM_DIRECTORIES = ("/dev", "/proc", "/sys")
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class TextFile(msgspec.Struct, frozen=True):
    """The text of a file, with plain line feeds, and how to encode it in the same way.

    `is_exact` is False if some bytes have no known encoding.
    """

    text: str
    byte_order_mark: bytes = b""
    encoding: str = "utf-8"
    newline: str = "\n"
    is_exact: bool = True

    def encode(self, text: str) -> bytes:
        """Encode other text in the same way as this file."""
        if self.newline != "\n" and "\r\n" not in text:
            text = text.replace("\n", self.newline)
        try:
            return self.byte_order_mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise BuiltinToolError(f"The text cannot be written as {self.encoding}: {error.reason}") from error


def open_regular(path: Path, given: str) -> int:
    """Open a file for reading and return its descriptor; refuses files that could block or never end."""
    real = os.path.realpath(path)
    for name in (real, os.path.normpath(path)):
        if name != os.devnull and name.startswith(tuple(f"{place}/" for place in SYSTEM_DIRECTORIES)):
            raise BuiltinToolError(
                f"Cannot read {given!r}: it is a device or file of the system that this tool does not read"
            )
    # Without O_NONBLOCK, opening a FIFO blocks until there is a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or real == os.devnull:
        return descriptor
    os.close(descriptor)
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file (a device, FIFO or socket)"
    raise BuiltinToolError(f"{given} is {kind}")


def read_file(path: Path, given: str, max_bytes: int = MAX_LOADED_BYTES) -> bytes:
    """Read all bytes of a regular file.

    Raises:
        BuiltinToolError: the file is larger than `max_bytes`, or not a regular file.
        OSError: the file cannot be read.
    """
    with os.fdopen(open_regular(path, given), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BuiltinToolError(f"{given} is larger than {format_size(max_bytes)}")
    return data


def is_binary(beginning: bytes) -> bool:
    """Whether the beginning of a file is not text."""
    return not beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in beginning[:SNIFFED_BYTES]


def decode_text(data: bytes) -> TextFile:
    """Decode bytes. Never raises: bytes of no known encoding become U+FFFD."""
    mark, encoding = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), (b"", "utf-8"))
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


def record_read(workplace: Workplace, path: Path, data: bytes, *, whole: bool = True) -> None:
    """Record the current state of a file."""
    info = path.stat()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    workplace.files_read[Path(os.path.realpath(path))] = FileSnapshot(info.st_mtime_ns, info.st_size, digest, whole)


def require_read(workplace: Workplace, path: Path, data: bytes, *, whole: bool) -> None:
    """Refuse to change a file that was not read, or has changed since.

    Raises:
        BuiltinToolError: tells the model what to do.
    """
    seen = workplace.files_read.get(Path(os.path.realpath(path)))
    if seen is None:
        raise BuiltinToolError("The file has not been read yet. Read it before changing it.")
    if hashlib.blake2b(data, digest_size=16).digest() != seen.digest:
        raise BuiltinToolError(
            "The file has changed since it was read, by somebody else or by a command. Read it again."
        )
    if whole and not seen.is_whole:
        raise BuiltinToolError("Only a part of the file was read. Read all of it before replacing it, or use Edit.")


def require_regular_file(path: Path) -> None:
    """Refuse to write through a link: the caller may not know its target."""
    if path.is_symlink():
        raise BuiltinToolError(f"{path} is a symbolic link. Use the file it leads to: {os.path.realpath(path)}")
    if path.is_dir():
        raise BuiltinToolError(f"{path} is a directory")
    if path.exists() and not path.is_file():
        raise BuiltinToolError(f"{path} is not a regular file (a device, FIFO or socket)")


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old bytes or the new ones. Keeps permissions and owner."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        old = path.stat()
    except FileNotFoundError:
        old = None
    if old is not None and (old.st_nlink > 1 or not _can_replace(path)):
        with path.open("r+b") as file:  # other names of the same file must get the change, too
            file.write(data)
            file.truncate()
        return
    if old is not None and not os.access(path, os.W_OK):
        raise PermissionError(13, "Permission denied", str(path))
    name = path.with_name(f".{path.name[:64]}.{uuid.uuid4().hex[:8]}")
    # Never readable for more users than the old file, not even for a moment.
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if old is not None:
                _copy_permissions(file.fileno(), old)
        name.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise


def _can_replace(path: Path) -> bool:
    return os.access(path.parent, os.W_OK | os.X_OK)


def _copy_permissions(descriptor: int, old: os.stat_result) -> None:
    """Copy the owner and the permissions of the old file to the new one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
