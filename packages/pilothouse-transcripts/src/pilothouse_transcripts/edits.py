"""Renames, tags, archives, deletes and forks sessions on disk, in the CLI's format."""

from __future__ import annotations

import errno
import os
import shutil
import unicodedata
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.support import encode_json
from pilothouse_transcripts.conversation import Conversation
from pilothouse_transcripts.paths import SUFFIX, StrPath, get_sidecar_directory, open_file, require_file
from pilothouse_transcripts.rows import (
    OnProblem,
    TranscriptProblem,
    TranscriptRow,
    ignore_problem,
    list_visible,
    load_object,
    open_transcript,
    read_part,
    read_rows,
)
from pilothouse_transcripts.session_info import read_session_info

PRIVATE_DIRECTORY_MODE = 0o700
PRIVATE_FILE_MODE = 0o600

# Control, format, private, surrogate and unassigned characters: invisible, or able to control a terminal.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs"})


def rename_session(
    session_id: str, title: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None
) -> None:
    """Set the title of a session. The CLI shows it in lists, and `--resume` finds the session by it.

    Args:
        session_id: the id of the session.
        title: the title; white space is collapsed to single spaces.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the title is empty or no text, or the id is not valid.
        SessionNotFoundError: there is no such session.
        OSError: the file cannot be written.
    """
    text = _clean_line(_require_text("title", title), ("Cc", "Cs"))
    if not text:
        raise UsageError("a title must not be empty")
    path = require_file(session_id, directory, config_dir)
    append_row(path, {"type": "custom-title", "customTitle": text, "sessionId": path.stem})
    with suppress(OSError):  # the row has the title; the CLI does not need the other file
        _write_sidecar(get_sidecar_directory(path) / "custom-title.json", {"customTitle": text})


def tag_session(
    session_id: str, tag: str | None, directory: StrPath | None = None, *, config_dir: StrPath | None = None
) -> None:
    """Set the tag of a session.

    Args:
        session_id: the id of the session.
        tag: the tag, without invisible characters; None removes it.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the tag is empty or no text, or the id is not valid.
        SessionNotFoundError: there is no such session.
        OSError: the file cannot be written.
    """
    text = (
        "" if tag is None else _clean_line(unicodedata.normalize("NFKC", _require_text("tag", tag)), _HIDDEN_CATEGORIES)
    )
    if tag is not None and not text:
        raise UsageError("a tag must not be empty; None takes it away")
    path = require_file(session_id, directory, config_dir)
    append_row(path, {"type": "tag", "tag": text, "sessionId": path.stem})


def delete_session(session_id: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None) -> None:
    """Remove the file of a session and the folder beside it, with its sub-agents. This cannot be undone.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the id is not valid.
        SessionNotFoundError: there is no such session.
        OSError: the session cannot be removed.
    """
    path = require_file(session_id, directory, config_dir)
    folder = get_sidecar_directory(path)
    path.unlink(missing_ok=True)
    if folder.is_symlink():
        folder.unlink()  # the link, never its target
    elif folder.is_dir():
        shutil.rmtree(folder)


def archive_session(session_id: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None) -> None:
    """Mark a session as archived, as the official SDK does (0.3.319 and later). Lists show it, with `archived`.

    The session stays on disk, and what runs it goes on. A later prompt in it ends the archiving.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.

    Raises:
        UsageError: the id is not valid.
        SessionNotFoundError: there is no such session.
        OSError: the mark cannot be written.
    """
    _write_archived(require_file(session_id, directory, config_dir), archived=True)


def unarchive_session(session_id: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None) -> None:
    """Take the mark of `archive_session` back. Arguments and errors are the same."""
    _write_archived(require_file(session_id, directory, config_dir), archived=False)


def _write_archived(path: Path, *, archived: bool) -> None:
    folder = get_sidecar_directory(path)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "the folder beside the session is a link", str(folder))
    _write_sidecar(folder / "archived.json", {"archived": archived, "at": make_timestamp(), "by": "pilothouse"})


def make_timestamp() -> str:
    """Return the current time in the format of rows."""
    return format_timestamp(datetime.now(UTC))


def format_timestamp(moment: datetime) -> str:
    """Return a time in UTC in the format of rows."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Append one row to an existing file, in one write.

    Raises:
        OSError: the file is missing, empty or read-only, or the disk is full. A line cut by a full disk stays
            separate, because the next row begins on a new line.
    """
    line = encode_json(row) + b"\n"
    descriptor, size = open_file(path, os.O_RDWR | os.O_APPEND)
    try:
        if size == 0:
            raise FileNotFoundError(2, "the transcript is empty", str(path))
        os.lseek(descriptor, size - 1, os.SEEK_SET)
        if os.read(descriptor, 1) != b"\n":
            line = b"\n" + line  # a crash has left half a row
        try:
            written = os.write(descriptor, line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
    if written != len(line):
        raise OSError(28, "no space left on device: the row is not whole", str(path))


def _write_sidecar(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(mode=PRIVATE_DIRECTORY_MODE, exist_ok=True)
    if path.parent.is_symlink():
        return  # following the link would write elsewhere; the row in the file has the title
    fresh = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        fresh.touch(PRIVATE_FILE_MODE)
        fresh.write_bytes(encode_json(value))
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"a {name} is text, not {type(value).__name__}")
    return value


def _clean_line(text: str, removed: Container[str]) -> str:
    """Join lines, and remove characters of these Unicode categories."""
    shown = "".join(char for char in text if char.isspace() or unicodedata.category(char) not in removed)
    return " ".join(shown.split())


# Rows that must also apply in the fork: the session's owner, its permitted use, what was removed from it.
INHERITED_TYPES = frozenset({
    "atis-latch", "content-replacement", "history-suppression", "hybrid-organization", "isolation-latch",
    "memory-mode", "mode", "permission-mode", "relocated", "repl-mode", "session-owner", "tools-used",
})  # fmt: skip
# Fields of a row that belong to the process that wrote it.
_REMOVED_FIELDS = ("agentName", "slug", "sourceToolAssistantUUID", "teamName")


class ForkSessionResult(Struct, frozen=True):
    """The location of a fork.

    Args:
        session_id: the id of the new session.
        path: its file.
        messages: number of messages it begins with.
    """

    session_id: str
    path: str = ""
    messages: int = 0


def fork_session(
    session_id: str,
    directory: StrPath | None = None,
    up_to_message_id: str | None = None,
    title: str | None = None,
    *,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> ForkSessionResult:
    """Copy a session up to a message. The original is not changed.

    Args:
        session_id: the session to copy.
        directory: the working directory of the session; None: any.
        up_to_message_id: the `uuid` of the last message to copy, on any branch; None: the newest.
        title: the new title; None: the original title plus " (fork)".
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read; the line is not copied.

    Returns:
        The new session. Resume it with `Agent.session(resume=…)` or `claude --resume`. Its rows have new ids, and
        their origin in `forkedFrom`.

    Raises:
        UsageError: an id is not valid, there is no such message, or the session is empty.
        SessionNotFoundError: there is no such session.
        OSError: the fork cannot be written; then there is no fork.
    """
    path = require_file(session_id, directory, config_dir)
    with open_transcript(path) as file:
        rows = list(read_rows(file, path, on_problem))
        if up_to_message_id is not None and not any(row.uuid == up_to_message_id for row in rows):
            raise UsageError(f"there is no message {up_to_message_id[:80]!r} in session {session_id}")
        found = Conversation(rows, up_to=up_to_message_id)
        for row, reason in found.problems:
            on_problem(TranscriptProblem(str(path), row.number, reason))
        taken = [row for row in found.rows if row.type != "progress"]
        visible = list_visible(taken)
        if not visible:
            raise UsageError(f"there is nothing to fork in session {session_id}")
        title = title.strip() if title and title.strip() else _make_fork_title(path)
        new_id = str(uuid4())
        fork = _ForkRows(path.stem, new_id, rows, taken)
        target = path.with_name(new_id + SUFFIX)
        lines = chain(fork.iterate_inherited_rows(file), fork.iterate_lines(file), [fork.make_title_row(title)])
        write_new_file(target, (encode_json(line) + b"\n" for line in lines))
    return ForkSessionResult(new_id, str(target), len(visible))


def _make_fork_title(path: Path) -> str:
    info = read_session_info(path)
    return f"{info.custom_title or info.ai_title or info.first_prompt or info.summary if info else 'Session'} (fork)"


class _ForkRows:
    """The rows of a fork, made from those of the original."""

    def __init__(self, origin: str, new_id: str, rows: Iterable[TranscriptRow], chain: list[TranscriptRow]) -> None:
        self._origin = origin
        self._id = new_id
        self._chain = chain
        self._inherited = [row for row in rows if row.type in INHERITED_TYPES and row.agent_id is None]
        self._ids = {row.uuid: str(uuid4()) for row in chain if row.uuid is not None}
        self._now = make_timestamp()

    def make_title_row(self, title: str) -> dict[str, Any]:
        return {"type": "custom-title", "customTitle": title, "sessionId": self._id}

    def iterate_inherited_rows(self, file: BufferedReader) -> Iterator[dict[str, Any]]:
        for row in self._inherited:
            data = load_object(read_part(file, row))
            if data is not None and data.get("sessionId") == self._origin:
                changed = {key: self._ids.get(data[key]) for key in ("afterUuid",) if data.get(key) is not None}
                yield {**data, **changed, "sessionId": self._id}

    def iterate_lines(self, file: BufferedReader) -> Iterator[dict[str, Any]]:
        parent: str | None = None
        for row in self._chain:
            data = load_object(read_part(file, row))
            if data is None or row.uuid is None:
                continue  # the file was changed meanwhile
            kept = {key: value for key, value in data.items() if key not in _REMOVED_FIELDS}
            kept |= {
                "parentUuid": parent,
                "uuid": self._ids[row.uuid],
                "sessionId": self._id,
                "isSidechain": False,
                "forkedFrom": {"sessionId": self._origin, "messageUuid": row.uuid},
            }
            if row.logical_parent_uuid is not None:
                kept["logicalParentUuid"] = self._ids.get(row.logical_parent_uuid)
            if row.compact_metadata is not None:
                kept["compactMetadata"] = self._replace_ids(kept["compactMetadata"])
            if row.is_steering:
                kept["attachment"] = self._replace_ids(kept["attachment"])
            if row is self._chain[-1]:
                kept["timestamp"] = self._now  # the CLI takes the newest row for the last one
            parent = self._ids[row.uuid]
            yield kept

    def _replace_ids(self, value: Any) -> Any:
        """Replace ids by the new ones; a compaction names its kept rows at several places."""
        if isinstance(value, dict):
            return {key: self._replace_ids(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self._replace_ids(item) for item in cast("list[Any]", value)]
        return self._ids.get(value, value) if isinstance(value, str) else value


def write_new_file(target: Path, lines: Iterable[bytes]) -> None:
    """Write the file of a new session atomically, also beside other writers.

    Raises:
        UsageError: there is already such a file; it stays as it is.
        OSError: the file cannot be written; then there is none.
    """
    fresh = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(lines)
        _move_new_file(fresh, target)
    except FileExistsError:
        raise UsageError(f"there is already a session {target.stem}") from None
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        with suppress(OSError):
            fresh.unlink()


def _move_new_file(fresh: Path, target: Path) -> None:
    """Give a file another name, unless another file has it."""
    try:
        os.link(fresh, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: an empty file takes the name first
        target.touch(PRIVATE_FILE_MODE, exist_ok=False)
        try:
            fresh.replace(target)
        except OSError:
            target.unlink()
            raise
