"""`Read`, `Write` and `Edit`.

Owns line ranges and size limits, images, PDFs and notebooks, the conditions for changing a file, and the patch for
programs.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from anyio import to_thread

from pilothouse.native.tools import text_files
from pilothouse.native.tools.base import (
    BuiltinSpec,
    BuiltinToolError,
    JsonObject,
    ToolOutput,
    Workplace,
    format_size,
    make_boolean_schema,
    make_schema,
    make_text_schema,
)

DEFAULT_LINES = 2000
MAX_TEXT_BYTES = 256 * 1024
"""Limit of text in one output, in bytes, as in 2.1.330."""
MAX_LARGE_BYTES = 10 * 1024 * 1024
"""The same with `allow_large`."""
MAX_SCANNED_BYTES = 1 << 30
"""Size of the largest file of which a part can be read."""
MAX_IMAGE_BYTES = 3_750_000
"""Limit of an image, in bytes; in base64 it becomes the 5 MB limit of the Messages API."""
MAX_PDF_BYTES = 20_000_000
PIECE_BYTES = 65536
EMPTY = "[The file is empty.]"
OFFSET_TOO_LARGE = "[There is no line {}: the file has {} lines.]"
NOT_UTF8 = "\n\n[Some bytes of this file are of no encoding that is known here and show as U+FFFD; Edit refuses it.]"
MORE_LINES = "\n\n[Lines {} to {} of {}. Use offset and limit to read on.]"
TOO_LARGE = "The text ({}) is larger than {}. Read a part of it with offset and limit, or search it with Grep."
_IMAGE_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


async def _run_read(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    return await to_thread.run_sync(_read_any, tool_input, workplace)


def _read_any(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    given = str(tool_input["file_path"])
    path = workplace.resolve_path(given)
    if not path.exists():
        raise BuiltinToolError(f"The file does not exist. The working directory is {workplace.cwd}.")
    with os.fdopen(text_files.open_regular(path, given), "rb") as file:
        beginning = file.read(text_files.SNIFFED_BYTES)
        size = os.fstat(file.fileno()).st_size
        file.seek(0) if file.seekable() else None
        kind = _detect_kind(path, beginning)
        if kind.startswith("image/"):
            return _read_image(file, kind, size)
        if kind == "pdf":
            return _read_pdf(file, path, size, tool_input)
        if kind == "notebook":
            return _read_notebook(file, path, size, workplace)
        if kind == "binary":
            raise BuiltinToolError(
                f"This file is binary ({path.suffix or 'no suffix'}), and Read only shows text, images, PDFs and "
                "notebooks. A command that knows its format may help."
            )
        return _read_text(file, path, given, size, tool_input, workplace)


def _detect_kind(path: Path, beginning: bytes) -> str:
    for magic, media in _IMAGE_TYPES.items():
        if beginning.startswith(magic):
            return media
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    if beginning.startswith(b"%PDF-"):
        return "pdf"
    if path.suffix == ".ipynb":
        return "notebook"
    return "binary" if text_files.is_binary(beginning) else "text"


def _read_image(file: BinaryIO, media: str, size: int) -> ToolOutput:
    if size > MAX_IMAGE_BYTES:
        raise BuiltinToolError(
            f"The image ({format_size(size)}) is larger than {format_size(MAX_IMAGE_BYTES)}. Make it smaller first."
        )
    data = base64.b64encode(file.read(MAX_IMAGE_BYTES)).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    return ToolOutput([block], result={"type": "image", "file": {"base64": data, "type": media, "originalSize": size}})


def _read_pdf(file: BinaryIO, path: Path, size: int, tool_input: Mapping[str, Any]) -> ToolOutput:
    if tool_input.get("pages"):
        raise BuiltinToolError(
            "Parts of a PDF cannot be read here. Read all of it, or use a command such as pdftotext."
        )
    if size > MAX_PDF_BYTES:
        raise BuiltinToolError(f"The PDF ({format_size(size)}) is larger than {format_size(MAX_PDF_BYTES)}.")
    data = base64.b64encode(file.read(MAX_PDF_BYTES)).decode()
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    told = {"type": "pdf", "file": {"filePath": str(path), "base64": data, "originalSize": size}}
    return ToolOutput([block], result=told)


def _read_notebook(file: BinaryIO, path: Path, size: int, workplace: Workplace) -> ToolOutput:
    if size > MAX_LARGE_BYTES:
        raise BuiltinToolError(TOO_LARGE.format(format_size(size), format_size(MAX_LARGE_BYTES)))
    data = file.read(MAX_LARGE_BYTES)
    try:
        cells = cast("list[dict[str, Any]]", json.loads(data)["cells"])
        shown = "\n\n".join(_format_cell(at, cell) for at, cell in enumerate(cells))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BuiltinToolError(f"This is no notebook that can be read: {error!r}") from error
    if len(shown) > MAX_TEXT_BYTES:
        raise BuiltinToolError(TOO_LARGE.format(format_size(len(shown)), format_size(MAX_TEXT_BYTES)))
    text_files.record_read(workplace, path, data)
    return ToolOutput(shown or EMPTY, result={"type": "notebook", "file": {"filePath": str(path), "cells": cells}})


def _format_cell(at: int, cell: Mapping[str, Any]) -> str:
    name = cell.get("id") or f"cell-{at}"
    kind = "" if cell.get("cell_type") == "code" else f"<cell_type>{cell.get('cell_type')}</cell_type>"
    shown = [f'<cell id="{name}">{kind}{_join_lines(cell.get("source"))}</cell id="{name}">']
    outputs: list[dict[str, Any]] = cell.get("outputs") or []
    for output in outputs:
        told = output.get("text") or _get_plain_text(output) or output.get("traceback") or ""
        shown.append(_join_lines(told, "\n" if output.get("traceback") else ""))
    return "\n\n".join(piece for piece in shown if piece)


def _get_plain_text(output: Mapping[str, Any]) -> Any:
    data: Mapping[str, Any] = output.get("data") or {}
    return data.get("text/plain")


def _join_lines(lines: Any, between: str = "") -> str:
    return lines if isinstance(lines, str) else between.join(str(line) for line in lines or ())


def _read_text(
    file: BinaryIO, path: Path, given: str, size: int, tool_input: Mapping[str, Any], workplace: Workplace
) -> ToolOutput:
    first = max(1, tool_input.get("offset") or 1)
    count = tool_input.get("limit")
    most = MAX_LARGE_BYTES if tool_input.get("allow_large") else MAX_TEXT_BYTES
    if size <= text_files.MAX_LOADED_BYTES:
        data = file.read(text_files.MAX_LOADED_BYTES + 1)
        found = text_files.decode_text(data)
        lines = found.text.split("\n")
        total, exact = len(lines), found.is_exact
        if count is None and first == 1 and len(data) > most:
            raise BuiltinToolError(TOO_LARGE.format(format_size(len(data)), format_size(most)))
        wanted = lines[first - 1 : first - 1 + (count or DEFAULT_LINES)]
        text_files.record_read(workplace, path, data, whole=len(wanted) == total)
        if not data:
            return _make_output(EMPTY, given, "", 1, 1, 1)
    else:
        if count is None and first == 1:
            raise BuiltinToolError(TOO_LARGE.format(format_size(size), format_size(most)))
        wanted, total, exact = _scan_lines(file, size, first, count or DEFAULT_LINES, most)
    if not wanted:
        return _make_output(OFFSET_TOO_LARGE.format(first, total), given, "", 0, first, total)
    if sum(map(len, wanted)) > most:
        raise BuiltinToolError(TOO_LARGE.format(format_size(sum(map(len, wanted))), format_size(most)))
    shown = "\n".join(f"{number}\t{line}" for number, line in enumerate(wanted, first))
    last = first + len(wanted) - 1
    if count is None and last < total:
        shown += MORE_LINES.format(first, last, total)
    return _make_output(shown + ("" if exact else NOT_UTF8), given, "\n".join(wanted), len(wanted), first, total)


def _make_output(text: str, given: str, content: str, count: int, first: int, total: int) -> ToolOutput:
    about = {"filePath": given, "content": content, "numLines": count, "startLine": first, "totalLines": total}
    return ToolOutput(text, result={"type": "text", "file": about})


def _scan_lines(file: BinaryIO, size: int, first: int, count: int, max_bytes: int) -> tuple[list[str], int, bool]:
    """Read some lines of a file that is too large to load, in pieces, because one line may be the whole file."""
    if size > MAX_SCANNED_BYTES:
        raise BuiltinToolError(f"The file ({format_size(size)}) is larger than {format_size(MAX_SCANNED_BYTES)}.")
    number, kept, taken = 1, bytearray(), 0
    while piece := file.readline(PIECE_BYTES):
        if first <= number < first + count:
            taken += len(piece)
            if taken > max_bytes:
                raise BuiltinToolError(TOO_LARGE.format(f"more than {format_size(taken)}", format_size(max_bytes)))
            kept += piece
        number += piece.endswith(b"\n")
    found = text_files.decode_text(bytes(kept))
    lines = found.text.split("\n")
    return (lines[:-1] if kept.endswith(b"\n") else lines) if kept else [], number, found.is_exact


READ = BuiltinSpec(
    "Read",
    "Reads a file.\n\n"
    f"- Gives up to {DEFAULT_LINES} lines from the beginning, or those that `offset` and `limit` ask for, each behind "
    "its number and a tab.\n"
    "- Shows images (PNG, JPEG, GIF, WebP), whole PDFs, and notebooks as their cells with outputs.\n"
    "- Does not list directories.",
    make_schema(
        {
            "file_path": make_text_schema("The absolute path of the file"),
            "offset": {"type": "integer", "minimum": 0, "description": "The first line to read, counted from 1"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "description": "How many lines to read"},
            "pages": make_text_schema("Parts of a PDF; not supported here, a PDF is read as a whole"),
            "allow_large": make_boolean_schema(
                f"Read text of more than {format_size(MAX_TEXT_BYTES)}, when all of it is really needed"
            ),
        },
        "file_path",
    ),
    _run_read,
    read_only=True,
)


CONTEXT_LINES = 3
"""Lines shown around a change in a patch."""
MAX_COMPARED_LINES = 500
"""Limit of changed lines that are compared one by one: comparing takes quadratic time."""
NO_END = "\\ No newline at end of file"
UNKNOWN_ENCODING = "The file is of no encoding that is known here, and nothing was written."
UP_TO_DATE = "What you know of it is up to date: there is no need to read it again."


async def _run_write(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    # Not abandoned when cancelled: a half-written file is worse than a late change.
    return await to_thread.run_sync(_write_file, str(tool_input["file_path"]), str(tool_input["content"]), workplace)


def _write_file(given: str, content: str, workplace: Workplace) -> ToolOutput:
    path = workplace.resolve_path(given)
    text_files.require_regular_file(path)
    if not path.exists():
        _save(path, text_files.TextFile("").encode(content), workplace)
        told: JsonObject = {"type": "create", "filePath": given, "content": content, "structuredPatch": []}
        told |= {"originalFile": None, "userModified": False}
        return ToolOutput(f"Created {given}. {UP_TO_DATE}", result=told)
    old = text_files.read_file(path, given)
    text_files.require_read(workplace, path, old, whole=True)
    before = text_files.decode_text(old)
    if not before.is_exact:
        raise BuiltinToolError(f"{UNKNOWN_ENCODING} To replace all of it with UTF-8, delete it first.")
    _save(path, before.encode(content), workplace)
    told = {
        "type": "update",
        "filePath": given,
        "content": content,
        "structuredPatch": make_patch(before.text, content),
    }
    told |= {"originalFile": before.text, "userModified": False}
    return ToolOutput(f"Replaced the content of {given}. {UP_TO_DATE}", result=told)


async def _run_edit(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    return await to_thread.run_sync(_edit_file, tool_input, workplace)


def _edit_file(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    given, everywhere = str(tool_input["file_path"]), bool(tool_input.get("replace_all"))
    old, new = str(tool_input["old_string"]), str(tool_input["new_string"])
    path = workplace.resolve_path(given)
    if old == new:
        raise BuiltinToolError("Nothing to change: old_string and new_string are the same.")
    text_files.require_regular_file(path)
    if not path.exists():
        if old:
            raise BuiltinToolError(f"The file does not exist. The working directory is {workplace.cwd}.")
        data, before, after = b"", text_files.TextFile(""), new
    else:
        data = text_files.read_file(path, given)
        if not old and data:
            raise BuiltinToolError("The file exists already. An empty old_string is for new files.")
        text_files.require_read(workplace, path, data, whole=False)
        before = text_files.decode_text(data)
        if not before.is_exact or text_files.is_binary(data):
            raise BuiltinToolError(f"{UNKNOWN_ENCODING} Use a command that knows it.")
        after = _replace_text(before.text, old, new, everywhere=everywhere) if data else new
    _save(path, before.encode(after), workplace)
    told = {"filePath": given, "oldString": old, "newString": new, "originalFile": before.text}
    told |= {"structuredPatch": make_patch(before.text, after), "userModified": False, "replaceAll": everywhere}
    return ToolOutput(f"Changed {given}. {UP_TO_DATE}", result=told)


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
    text_files.write_file(path, data)
    text_files.record_read(workplace, path, data)


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
            lines += _add_sign("-", old[a:b]) + _add_sign("+", new[c:d])
    first, last = group[0], group[-1]
    plain = [piece for line in lines for piece in (line.split("\n") if line.endswith(NO_END) else (line.rstrip("\n"),))]
    counts = {"oldStart": first[1] + 1 + skipped, "oldLines": last[2] - first[1]}
    counts |= {"newStart": first[3] + 1 + skipped, "newLines": last[4] - first[3]}
    return {**counts, "lines": plain}


def _add_sign(sign: str, lines: Sequence[str]) -> list[str]:
    return [f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n{NO_END}" for line in lines]


def _split_lines(whole: str) -> list[str]:
    pieces = whole.split("\n")
    return [f"{piece}\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


_PATH = make_text_schema("The absolute path of the file")
WRITE = BuiltinSpec(
    "Write",
    "Writes a file: a new one, or all of one that was read before. To change a part of a file, use Edit.",
    make_schema(
        {"file_path": _PATH, "content": make_text_schema("All that is to be in the file")}, "file_path", "content"
    ),
    _run_write,
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
            "old_string": make_text_schema("The text to replace"),
            "new_string": make_text_schema("What to put in its place"),
            "replace_all": {"type": "boolean", "default": False, "description": "Replace it wherever it is"},
        },
        "file_path",
        "old_string",
        "new_string",
    ),
    _run_edit,
)
