"""Renaming, tagging and deleting sessions: small rows at the end of a file, as the CLI writes them.

Owns what is written and how: one append of one whole line, so that a CLI that is writing to the same file loses
nothing and neither do we. Knows nothing of what else stands in the file.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pilothouse.errors import UsageError
from pilothouse.messages.jsonline import dump_line
from pilothouse.transcripts.lines import opened
from pilothouse.transcripts.places import StrPath, companion_folder, require_file

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600

# Control, format, private, surrogate and unassigned characters: invisible, or able to steer a terminal.
_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs"})


def rename_session(
    session_id: str, title: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None
) -> None:
    """Give a session a title. The CLI lists it under that, and `--resume` finds it by that.

    Args:
        session_id: its id.
        title: the title; white space is made single spaces.
        directory: the working directory that it belongs to; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the title is empty, or the id is none.
        SessionNotFoundError: there is no such session.
        OSError: the file cannot be written to.
    """
    text = _one_line(title)
    if not text:
        raise UsageError("a title must not be empty")
    path = require_file(session_id, directory, config_dir)
    append_row(path, {"type": "custom-title", "customTitle": text, "sessionId": path.stem})
    with suppress(OSError):  # the row has the title; the CLI does without the other file as well
        _write_sidecar(companion_folder(path) / "custom-title.json", {"customTitle": text})


def tag_session(
    session_id: str, tag: str | None, directory: StrPath | None = None, *, config_dir: StrPath | None = None
) -> None:
    """Give a session a tag, in place of the one it has.

    Args:
        session_id: its id.
        tag: the tag, without invisible characters; None takes it away.
        directory: the working directory that it belongs to; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the tag is empty, or the id is none.
        SessionNotFoundError: there is no such session.
        OSError: the file cannot be written to.
    """
    text = "" if tag is None else _plain(tag)
    if tag is not None and not text:
        raise UsageError("a tag must not be empty; None takes it away")
    path = require_file(session_id, directory, config_dir)
    append_row(path, {"type": "tag", "tag": text, "sessionId": path.stem})


def delete_session(session_id: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None) -> None:
    """Remove the file of a session and the folder beside it, with its sub-agents. It does not come back.

    Args:
        session_id: its id.
        directory: the working directory that it belongs to; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the id is none.
        SessionNotFoundError: there is no such session.
        OSError: it cannot be removed.
    """
    path = require_file(session_id, directory, config_dir)
    folder = companion_folder(path)
    path.unlink(missing_ok=True)
    if folder.is_symlink():
        folder.unlink()  # the link, never what it leads to
    elif folder.is_dir():
        shutil.rmtree(folder)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Append one row to a file that exists, in one write.

    Raises:
        OSError: the file is gone or empty, read-only, or the disk is full. What a full disk has taken of the line is
            told apart by the next row, which begins on a line of its own.
    """
    line = dump_line(row) + b"\n"
    with opened(path, os.O_RDWR | os.O_APPEND) as descriptor:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise FileNotFoundError(2, "the transcript is empty", str(path))
        os.lseek(descriptor, size - 1, os.SEEK_SET)
        if os.read(descriptor, 1) != b"\n":
            line = b"\n" + line  # a crash has left half a row
        try:
            written = os.write(descriptor, line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    if written != len(line):
        raise OSError(28, "no space left on device: the row is not whole", str(path))


def _write_sidecar(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    if path.parent.is_symlink():
        return  # it would be written somewhere else; the row in the file has the title
    fresh = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        fresh.touch(PRIVATE_FILE)
        fresh.write_bytes(dump_line(value))
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def _one_line(text: str) -> str:
    shown = "".join(char for char in text if char.isspace() or unicodedata.category(char) not in ("Cc", "Cs"))
    return " ".join(shown.split())


def _plain(text: str) -> str:
    composed = unicodedata.normalize("NFKC", text)
    shown = "".join(char for char in composed if char.isspace() or unicodedata.category(char) not in _HIDDEN)
    return " ".join(shown.split())
