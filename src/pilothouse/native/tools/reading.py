"""`Read`: files as the model sees them.

Owns line numbers, ranges, sizes, and what becomes of images, PDFs and notebooks.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from anyio import to_thread

from pilothouse.native.tools import contents
from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import Builtin, ToolFault, flag, schema, size_text, text

MOST_LINES = 2000
MOST_BYTES = 256 * 1024
"""Bytes of text in one answer, as in 2.1.330."""
MOST_LARGE = 10 * 1024 * 1024
"""The same with `allow_large`."""
MOST_SCANNED = 1 << 30
"""Bytes of the largest file of which a part is read."""
MOST_IMAGE = 3_750_000
"""Bytes of an image; base64 makes the 5 MB of the Messages API of them."""
MOST_PDF = 20_000_000
PIECE = 65536
EMPTY = "[The file is empty.]"
SHORTER = "[There is no line {}: the file has {} lines.]"
NOT_UTF8 = "\n\n[Some bytes of this file are of no encoding that is known here and show as U+FFFD; Edit refuses it.]"
MORE = "\n\n[Lines {} to {} of {}. Use offset and limit to read on.]"
TOO_LARGE = "The text ({}) is larger than {}. Read a part of it with offset and limit, or search it with Grep."
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


async def _read(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    return await to_thread.run_sync(_read_file, tool_input, workplace)


def _read_file(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    given = str(tool_input["file_path"])
    path = workplace.path(given)
    if not path.exists():
        raise ToolFault(f"The file does not exist. The working directory is {workplace.cwd}.")
    with os.fdopen(contents.open_regular(path, given), "rb") as file:
        beginning = file.read(contents.SNIFFED)
        size = os.fstat(file.fileno()).st_size
        file.seek(0) if file.seekable() else None
        kind = _kind(path, beginning)
        if kind.startswith("image/"):
            return _image(file, kind, size)
        if kind == "pdf":
            return _pdf(file, path, size, tool_input)
        if kind == "notebook":
            return _notebook(file, path, size, workplace)
        if kind == "binary":
            raise ToolFault(
                f"This file is binary ({path.suffix or 'no suffix'}), and Read only shows text, images, PDFs and "
                "notebooks. A command that knows its format may help."
            )
        return _text_of(file, path, given, size, tool_input, workplace)


def _kind(path: Path, beginning: bytes) -> str:
    for magic, media in _IMAGES.items():
        if beginning.startswith(magic):
            return media
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    if beginning.startswith(b"%PDF-"):
        return "pdf"
    if path.suffix == ".ipynb":
        return "notebook"
    return "binary" if contents.is_binary(beginning) else "text"


def _image(file: BinaryIO, media: str, size: int) -> ToolOutcome:
    if size > MOST_IMAGE:
        raise ToolFault(f"The image ({size_text(size)}) is larger than {size_text(MOST_IMAGE)}. Make it smaller first.")
    data = base64.b64encode(file.read(MOST_IMAGE)).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    return ToolOutcome([block], result={"type": "image", "file": {"base64": data, "type": media, "originalSize": size}})


def _pdf(file: BinaryIO, path: Path, size: int, tool_input: Mapping[str, Any]) -> ToolOutcome:
    if tool_input.get("pages"):
        raise ToolFault("Parts of a PDF cannot be read here. Read all of it, or use a command such as pdftotext.")
    if size > MOST_PDF:
        raise ToolFault(f"The PDF ({size_text(size)}) is larger than {size_text(MOST_PDF)}.")
    data = base64.b64encode(file.read(MOST_PDF)).decode()
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    told = {"type": "pdf", "file": {"filePath": str(path), "base64": data, "originalSize": size}}
    return ToolOutcome([block], result=told)


def _notebook(file: BinaryIO, path: Path, size: int, workplace: Workplace) -> ToolOutcome:
    if size > MOST_LARGE:
        raise ToolFault(TOO_LARGE.format(size_text(size), size_text(MOST_LARGE)))
    data = file.read(MOST_LARGE)
    try:
        cells = cast("list[dict[str, Any]]", json.loads(data)["cells"])
        shown = "\n\n".join(_cell(at, cell) for at, cell in enumerate(cells))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ToolFault(f"This is no notebook that can be read: {error!r}") from error
    if len(shown) > MOST_BYTES:
        raise ToolFault(TOO_LARGE.format(size_text(len(shown)), size_text(MOST_BYTES)))
    contents.note_seen(workplace, path, data)
    return ToolOutcome(shown or EMPTY, result={"type": "notebook", "file": {"filePath": str(path), "cells": cells}})


def _cell(at: int, cell: Mapping[str, Any]) -> str:
    name = cell.get("id") or f"cell-{at}"
    kind = "" if cell.get("cell_type") == "code" else f"<cell_type>{cell.get('cell_type')}</cell_type>"
    shown = [f'<cell id="{name}">{kind}{_joined(cell.get("source"))}</cell id="{name}">']
    outputs: list[dict[str, Any]] = cell.get("outputs") or []
    for output in outputs:
        told = output.get("text") or _plain(output) or output.get("traceback") or ""
        shown.append(_joined(told, "\n" if output.get("traceback") else ""))
    return "\n\n".join(piece for piece in shown if piece)


def _plain(output: Mapping[str, Any]) -> Any:
    data: Mapping[str, Any] = output.get("data") or {}
    return data.get("text/plain")


def _joined(lines: Any, between: str = "") -> str:
    return lines if isinstance(lines, str) else between.join(str(line) for line in lines or ())


def _text_of(
    file: BinaryIO, path: Path, given: str, size: int, tool_input: Mapping[str, Any], workplace: Workplace
) -> ToolOutcome:
    first = max(1, tool_input.get("offset") or 1)
    count = tool_input.get("limit")
    most = MOST_LARGE if tool_input.get("allow_large") else MOST_BYTES
    if size <= contents.MOST_LOADED:
        data = file.read(contents.MOST_LOADED + 1)
        found = contents.decode(data)
        lines = found.text.split("\n")
        total, exact = len(lines), found.exact
        if count is None and first == 1 and len(data) > most:
            raise ToolFault(TOO_LARGE.format(size_text(len(data)), size_text(most)))
        wanted = lines[first - 1 : first - 1 + (count or MOST_LINES)]
        contents.note_seen(workplace, path, data, whole=len(wanted) == total)
        if not data:
            return _told(EMPTY, given, "", 1, 1, 1)
    else:
        if count is None and first == 1:
            raise ToolFault(TOO_LARGE.format(size_text(size), size_text(most)))
        wanted, total, exact = _scan(file, size, first, count or MOST_LINES, most)
    if not wanted:
        return _told(SHORTER.format(first, total), given, "", 0, first, total)
    if sum(map(len, wanted)) > most:
        raise ToolFault(TOO_LARGE.format(size_text(sum(map(len, wanted))), size_text(most)))
    shown = "\n".join(f"{number}\t{line}" for number, line in enumerate(wanted, first))
    last = first + len(wanted) - 1
    if count is None and last < total:
        shown += MORE.format(first, last, total)
    return _told(shown + ("" if exact else NOT_UTF8), given, "\n".join(wanted), len(wanted), first, total)


def _told(shown: str, given: str, content: str, count: int, first: int, total: int) -> ToolOutcome:
    about = {"filePath": given, "content": content, "numLines": count, "startLine": first, "totalLines": total}
    return ToolOutcome(shown, result={"type": "text", "file": about})


def _scan(file: BinaryIO, size: int, first: int, count: int, most: int) -> tuple[list[str], int, bool]:
    """Some lines of a file that is too large to load; a line is taken in pieces, because it may be all of the file."""
    if size > MOST_SCANNED:
        raise ToolFault(f"The file ({size_text(size)}) is larger than {size_text(MOST_SCANNED)}.")
    number, kept, taken = 1, bytearray(), 0
    while piece := file.readline(PIECE):
        if first <= number < first + count:
            taken += len(piece)
            if taken > most:
                raise ToolFault(TOO_LARGE.format(f"more than {size_text(taken)}", size_text(most)))
            kept += piece
        number += piece.endswith(b"\n")
    found = contents.decode(bytes(kept))
    lines = found.text.split("\n")
    return (lines[:-1] if kept.endswith(b"\n") else lines) if kept else [], number, found.exact


READ = Builtin(
    "Read",
    "Reads a file.\n\n"
    f"- Gives up to {MOST_LINES} lines from the beginning, or those that `offset` and `limit` ask for, each behind its "
    "number and a tab.\n"
    "- Shows images (PNG, JPEG, GIF, WebP), whole PDFs, and notebooks as their cells with outputs.\n"
    "- Does not list directories.",
    schema(
        {
            "file_path": text("The absolute path of the file"),
            "offset": {"type": "integer", "minimum": 0, "description": "The first line to read, counted from 1"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "description": "How many lines to read"},
            "pages": text("Parts of a PDF; not supported here, a PDF is read as a whole"),
            "allow_large": flag(f"Read text of more than {size_text(MOST_BYTES)}, when all of it is really needed"),
        },
        "file_path",
    ),
    _read,
    read_only=True,
)
