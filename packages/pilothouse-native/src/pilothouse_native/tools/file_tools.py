"""`Read`, `Write` and `Edit`: bounded reading, encodings and line endings, and atomic writing.

Owns line ranges and size limits, images, PDFs and notebooks, the conditions for changing a file, and the patch for
programs. A written file keeps its encoding, line endings, permissions and owner.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import difflib
import hashlib
import json
import os
import stat
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from pilothouse.support import sniff_media_type
from pilothouse_native.tools.base import (
    BuiltinSpec,
    BuiltinToolError,
    FileSnapshot,
    ToolOutput,
    Workplace,
    format_size,
    judged_path,
    make_property,
    make_schema,
    run_in_thread,
)
from pilothouse_native.wire import JsonObject, as_object

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
    _require_judged(descriptor, judged_path.get())
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or real == os.devnull:
        return descriptor
    os.close(descriptor)
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file (a device, FIFO or socket)"
    raise BuiltinToolError(f"{given} is {kind}")


def _require_judged(descriptor: int, real: Path | None) -> None:
    """Close and refuse what is not the path that was judged: it was replaced meanwhile. Only Linux tells."""
    try:
        found = real and Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return
    if found != real:
        os.close(descriptor)
        raise BuiltinToolError(f"The path changed after permission was checked: it was {real}, and is {found}")


def read_file(path: Path, given: str, max_bytes: int = MAX_LOADED_BYTES) -> bytes:
    """Read all bytes of a regular file, unless it is larger than `max_bytes`."""
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
    """Record the content of a file."""
    workplace.files_read[Path(os.path.realpath(path))] = FileSnapshot(_digest(data), whole)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def require_read(workplace: Workplace, path: Path, data: bytes, *, whole: bool) -> None:
    """Refuse to change a file that was not read, or has changed since."""
    seen = workplace.files_read.get(Path(os.path.realpath(path)))
    if seen is None:
        raise BuiltinToolError("The file has not been read yet. Read it before changing it.")
    if _digest(data) != seen.digest:
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
    real = judged_path.get()
    folder = os.open(path.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    _require_judged(folder, None if real is None else real.parent)
    try:
        _write_in_folder(folder, path.name, data)
    finally:
        os.close(folder)


def _write_in_folder(folder: int, name: str, data: bytes) -> None:
    """Write a file in an open directory, wherever its path leads by now."""
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise BuiltinToolError(f"{name} is not a regular file any more")
    if old is not None and (old.st_nlink > 1 or not os.access(".", os.W_OK | os.X_OK, dir_fd=folder)):
        # Other names of the same file must get the change, too.
        with os.fdopen(os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder), "r+b") as file:
            file.write(data)
            file.truncate()
        return
    if old is not None and not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(13, "Permission denied", name)
    new = f".{name[:64]}.{uuid.uuid4().hex[:8]}"
    # Never readable for more users than the old file, not even for a moment.
    mode = 0o666 if old is None else 0o600
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if old is not None:
                _copy_permissions(file.fileno(), old)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


def _copy_permissions(descriptor: int, old: os.stat_result) -> None:
    """Copy the owner and the permissions of the old file to the new one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


DEFAULT_LINES = 2000
MAX_TEXT_BYTES = 256 * 1024
"""Limit of text in one output, in bytes, as in the CLI."""
MAX_LARGE_BYTES = 10 * 1024 * 1024
"""The same with `allow_large`."""
MAX_IMAGE_BYTES = 3_750_000
"""Limit of an image, in bytes; in base64 it becomes the 5 MB limit of the Messages API."""
MAX_PDF_BYTES = 20_000_000
EMPTY = "[The file is empty.]"
OFFSET_TOO_LARGE = "[There is no line {}: the file has {} lines.]"
NOT_UTF8 = "\n\n[Some bytes of this file are of no encoding that is known here and show as U+FFFD; Edit refuses it.]"
MORE_LINES = "\n\n[Lines {} to {} of {}. Use offset and limit to read on.]"
TOO_LARGE = "The text ({}) is larger than {}. Read a part of it with offset and limit, or search it with Grep."
PDF = "application/pdf"
MEDIA_TYPES = frozenset({PDF, "image/gif", "image/jpeg", "image/png", "image/webp"})


def _read_file(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    given = str(tool_input["file_path"])
    path = workplace.resolve_path(given)
    if not path.exists():
        raise BuiltinToolError(f"The file does not exist. The working directory is {workplace.cwd}.")
    with os.fdopen(open_regular(path, given), "rb") as file:
        beginning = file.read(SNIFFED_BYTES)
        size = os.fstat(file.fileno()).st_size
        file.seek(0) if file.seekable() else None
        kind = _detect_kind(path, beginning)
        if kind in MEDIA_TYPES:
            return _read_media(file, kind, path, size, in_parts=bool(tool_input.get("pages")))
        if kind == "notebook":
            return _read_notebook(file, path, size, workplace)
        if kind == "binary":
            raise BuiltinToolError(
                f"This file is binary ({path.suffix or 'no suffix'}), and Read only shows text, images, PDFs and "
                "notebooks. A command that knows its format may help."
            )
        return _read_text(file, path, given, size, tool_input, workplace)


def _detect_kind(path: Path, beginning: bytes) -> str:
    media = PDF if beginning.startswith(b"%PDF-") else sniff_media_type(beginning)
    if media in MEDIA_TYPES:
        return media
    if path.suffix == ".ipynb":
        return "notebook"
    return "binary" if is_binary(beginning) else "text"


def _read_media(file: BinaryIO, media: str, path: Path, size: int, *, in_parts: bool) -> ToolOutput:
    is_pdf = media == PDF
    most, name = (MAX_PDF_BYTES, "PDF") if is_pdf else (MAX_IMAGE_BYTES, "image")
    if is_pdf and in_parts:
        raise BuiltinToolError(
            "Parts of a PDF cannot be read here. Read all of it, or use a command such as pdftotext."
        )
    if size > most:
        raise BuiltinToolError(
            f"The {name} ({format_size(size)}) is larger than {format_size(most)}. Make it smaller first."
        )
    data = base64.b64encode(file.read(most)).decode()
    source = {"type": "base64", "media_type": media, "data": data}
    about = {"base64": data, "originalSize": size} | ({"filePath": str(path)} if is_pdf else {"type": media})
    return ToolOutput(
        [{"type": "document" if is_pdf else "image", "source": source}], result={"type": name.lower(), "file": about}
    )


def _read_notebook(file: BinaryIO, path: Path, size: int, workplace: Workplace) -> ToolOutput:
    if size > MAX_LARGE_BYTES:
        raise BuiltinToolError(TOO_LARGE.format(format_size(size), format_size(MAX_LARGE_BYTES)))
    data = file.read(MAX_LARGE_BYTES)
    try:
        cells = cast("list[dict[str, Any]]", json.loads(data)["cells"])
        shown = "\n\n".join(_format_cell(at, cell) for at, cell in enumerate(cells))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BuiltinToolError(f"This is not a readable notebook: {error!r}") from error
    if len(shown) > MAX_TEXT_BYTES:
        raise BuiltinToolError(TOO_LARGE.format(format_size(len(shown)), format_size(MAX_TEXT_BYTES)))
    record_read(workplace, path, data)
    return ToolOutput(shown or EMPTY, result={"type": "notebook", "file": {"filePath": str(path), "cells": cells}})


def _format_cell(at: int, cell: Mapping[str, Any]) -> str:
    name = cell.get("id") or f"cell-{at}"
    kind = "" if cell.get("cell_type") == "code" else f"<cell_type>{cell.get('cell_type')}</cell_type>"
    shown = [f'<cell id="{name}">{kind}{_join_lines(cell.get("source"))}</cell id="{name}">']
    outputs: list[dict[str, Any]] = cell.get("outputs") or []
    for output in outputs:
        text = output.get("text") or as_object(output.get("data")).get("text/plain") or output.get("traceback") or ""
        shown.append(_join_lines(text, "\n" if output.get("traceback") else ""))
    return "\n\n".join(piece for piece in shown if piece)


def _join_lines(lines: Any, between: str = "") -> str:
    return lines if isinstance(lines, str) else between.join(str(line) for line in lines or ())


def _read_text(
    file: BinaryIO, path: Path, given: str, size: int, tool_input: Mapping[str, Any], workplace: Workplace
) -> ToolOutput:
    first = max(1, tool_input.get("offset") or 1)
    count = tool_input.get("limit")
    most = MAX_LARGE_BYTES if tool_input.get("allow_large") else MAX_TEXT_BYTES
    if size > MAX_LOADED_BYTES:
        raise BuiltinToolError(
            f"The file ({format_size(size)}) is larger than {format_size(MAX_LOADED_BYTES)}: use Grep."
        )
    data = file.read(MAX_LOADED_BYTES + 1)
    found = decode_text(data)
    lines = found.text.split("\n")
    total = len(lines)
    if count is None and first == 1 and len(data) > most:
        raise BuiltinToolError(TOO_LARGE.format(format_size(len(data)), format_size(most)))
    wanted = lines[first - 1 : first - 1 + (count or DEFAULT_LINES)]
    record_read(workplace, path, data, whole=len(wanted) == total)
    if not data:
        return _make_output(EMPTY, given, "", 1, 1, 1)
    if not wanted:
        return _make_output(OFFSET_TOO_LARGE.format(first, total), given, "", 0, first, total)
    if sum(map(len, wanted)) > most:
        raise BuiltinToolError(TOO_LARGE.format(format_size(sum(map(len, wanted))), format_size(most)))
    shown = "\n".join(f"{number}\t{line}" for number, line in enumerate(wanted, first))
    last = first + len(wanted) - 1
    if count is None and last < total:
        shown += MORE_LINES.format(first, last, total)
    return _make_output(
        shown + ("" if found.is_exact else NOT_UTF8), given, "\n".join(wanted), len(wanted), first, total
    )


def _make_output(text: str, given: str, content: str, count: int, first: int, total: int) -> ToolOutput:
    about = {"filePath": given, "content": content, "numLines": count, "startLine": first, "totalLines": total}
    return ToolOutput(text, result={"type": "text", "file": about})


READ = BuiltinSpec(
    "Read",
    "Reads a file.\n\n"
    f"- Gives up to {DEFAULT_LINES} lines from the beginning, or those that `offset` and `limit` ask for, each behind "
    "its number and a tab.\n"
    "- Shows images (PNG, JPEG, GIF, WebP), whole PDFs, and notebooks as their cells with outputs.\n"
    "- Does not list directories.",
    make_schema(
        {
            "file_path": make_property("string", "The absolute path of the file"),
            "offset": make_property("integer", "The first line to read, counted from 1", minimum=0),
            "limit": make_property("integer", "How many lines to read", exclusiveMinimum=0),
            "pages": make_property("string", "Parts of a PDF; not supported here, a PDF is read as a whole"),
            "allow_large": make_property(
                "boolean", f"Read text of more than {format_size(MAX_TEXT_BYTES)}, when all of it is really needed"
            ),
        },
        "file_path",
    ),
    run_in_thread(_read_file),
    read_only=True,
)


CONTEXT_LINES = 3
"""Lines shown around a change in a patch."""
MAX_COMPARED_LINES = 500
"""Limit of changed lines that are compared one by one: comparing takes quadratic time."""
NO_END = "\\ No newline at end of file"
UNKNOWN_ENCODING = "The file is of no encoding that is known here, and nothing was written."
UP_TO_DATE = "What you know of it is up to date: there is no need to read it again."


def _write_file(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    given, content = str(tool_input["file_path"]), str(tool_input["content"])
    path = workplace.resolve_path(given)
    before = _load_for_change(
        path, given, workplace, whole=True, hint="To replace all of it with UTF-8, delete it first."
    )
    about: JsonObject = {"filePath": given, "content": content, "userModified": False}
    if before is None:
        _save(path, TextFile("").encode(content), workplace)
        about |= {"type": "create", "structuredPatch": [], "originalFile": None}
        return ToolOutput(f"Created {given}. {UP_TO_DATE}", result=about)
    _save(path, before.encode(content), workplace)
    about |= {"type": "update", "structuredPatch": make_patch(before.text, content), "originalFile": before.text}
    return ToolOutput(f"Replaced the content of {given}. {UP_TO_DATE}", result=about)


def _edit_file(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    given, everywhere = str(tool_input["file_path"]), bool(tool_input.get("replace_all"))
    old, new = str(tool_input["old_string"]), str(tool_input["new_string"])
    path = workplace.resolve_path(given)
    if old == new:
        raise BuiltinToolError("Nothing to change: old_string and new_string are the same.")
    if not old and path.is_file() and path.stat().st_size:
        raise BuiltinToolError("The file exists already. An empty old_string is for new files.")
    before = _load_for_change(path, given, workplace, whole=False, hint="Use a command that knows it.")
    if before is None and old:
        raise BuiltinToolError(f"The file does not exist. The working directory is {workplace.cwd}.")
    before = before or TextFile("")
    after = _replace_text(before.text, old, new, everywhere=everywhere) if before.text else new
    _save(path, before.encode(after), workplace)
    result = {"filePath": given, "oldString": old, "newString": new, "originalFile": before.text}
    result |= {"structuredPatch": make_patch(before.text, after), "userModified": False, "replaceAll": everywhere}
    return ToolOutput(f"Changed {given}. {UP_TO_DATE}", result=result)


def _load_for_change(path: Path, given: str, workplace: Workplace, *, whole: bool, hint: str) -> TextFile | None:
    """Return the text of a file that may be changed; None if there is no file."""
    require_regular_file(path)
    if not path.exists():
        return None
    data = read_file(path, given)
    require_read(workplace, path, data, whole=whole)
    found = decode_text(data)
    if not found.is_exact or (is_binary(data) and not whole):
        raise BuiltinToolError(f"{UNKNOWN_ENCODING} {hint}")
    return found


def _replace_text(before: str, old: str, new: str, *, everywhere: bool) -> str:
    count = before.count(old)
    if not count and "\n" in old and "\r\n" in before:
        # A file with both kinds of line endings: Read showed only one kind.
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        count = before.count(old)
    if not count:
        raise BuiltinToolError(f"The text to replace is not in the file: {old}")
    if count > 1 and not everywhere:
        raise BuiltinToolError(
            f"The text to replace is in the file {count} times. Give more of what is around the one that is meant, or "
            f"set replace_all: {old}"
        )
    return before.replace(old, new) if everywhere else before.replace(old, new, 1)


def _save(path: Path, data: bytes, workplace: Workplace) -> None:
    write_file(path, data)
    record_read(workplace, path, data)


def make_patch(before: str, after: str) -> list[dict[str, Any]]:
    """Return the changes between two texts as hunks, in the CLI's format for programs."""
    old, new = _split_lines(before), _split_lines(after)
    shorter = min(len(old), len(new))
    same = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - same) if old[-1 - at] != new[-1 - at]), shorter - same)
    skipped, left = max(0, same - CONTEXT_LINES), max(0, tail - CONTEXT_LINES)
    old, new = old[skipped : len(old) - left], new[skipped : len(new) - left]
    if max(len(old), len(new)) <= MAX_COMPARED_LINES:
        groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
    else:
        lead, end = same - skipped, tail - left
        middle = ("replace", lead, len(old) - end, lead, len(new) - end)
        ending = ("equal", len(old) - end, len(old), len(new) - end, len(new))
        groups = [[("equal", 0, lead, 0, lead), middle, ending]]
    return [_make_hunk(group, old, new, skipped) for group in groups if any(code[0] != "equal" for code in group)]


def _make_hunk(
    group: Sequence[tuple[str, int, int, int, int]], old: Sequence[str], new: Sequence[str], skipped: int
) -> dict[str, Any]:
    lines: list[str] = []
    for kind, a, b, c, d in group:
        if kind == "equal":
            lines += [f" {line}" for line in old[a:b]]
        else:
            lines += [f"-{line}" for line in old[a:b]] + [f"+{line}" for line in new[c:d]]
    first, last = group[0], group[-1]
    counts = {"oldStart": first[1] + 1 + skipped, "oldLines": last[2] - first[1]}
    counts |= {"newStart": first[3] + 1 + skipped, "newLines": last[4] - first[3]}
    return {**counts, "lines": "\n".join(lines).split("\n")}


def _split_lines(text: str) -> list[str]:
    """Split a text; a last line without an end has a note about it."""
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n{NO_END}"] if last else lines


_PATH = make_property("string", "The absolute path of the file")
WRITE = BuiltinSpec(
    "Write",
    "Writes a file: a new one, or all of one that was read before. To change a part of a file, use Edit.",
    make_schema(
        {"file_path": _PATH, "content": make_property("string", "All that is to be in the file")},
        "file_path",
        "content",
    ),
    run_in_thread(_write_file),
)
EDIT = BuiltinSpec(
    "Edit",
    "Replaces text in a file that was read before.\n\n"
    "- `old_string` must be exactly what is in the file, without the line numbers that Read shows, and be there once.\n"
    "- `replace_all` replaces it wherever it is.\n"
    "- An empty `old_string` creates a file.",
    make_schema(
        {
            "file_path": _PATH,
            "old_string": make_property("string", "The text to replace"),
            "new_string": make_property("string", "What to put in its place"),
            "replace_all": make_property("boolean", "Replace it wherever it is", default=False),
        },
        "file_path",
        "old_string",
        "new_string",
    ),
    run_in_thread(_edit_file),
)
