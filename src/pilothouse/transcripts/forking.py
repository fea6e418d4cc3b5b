"""A second session that begins with the conversation of a first.

Owns what a fork takes over, under which ids, and that nobody sees half of one. The order of the rows is known to
`conversation`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.messages.jsonline import dump_line
from pilothouse.transcripts.changing import PRIVATE_FILE
from pilothouse.transcripts.conversation import Conversation
from pilothouse.transcripts.lines import OnProblem, TranscriptProblem, ignore, opened, read_part
from pilothouse.transcripts.listing import info_of
from pilothouse.transcripts.places import SUFFIX, StrPath, require_file
from pilothouse.transcripts.rows import Row, load_object, read_rows

# Notes that must hold in the fork as well: whose session it is, what it may be used for, what was cut out of it.
INHERITED = frozenset(
    {
        "atis-latch",
        "content-replacement",
        "history-suppression",
        "hybrid-organization",
        "isolation-latch",
        "memory-mode",
        "mode",
        "permission-mode",
        "relocated",
        "repl-mode",
        "session-owner",
        "tools-used",
    }
)
# Fields of a row that belong to the run in which it was written.
_OWN = ("agentName", "slug", "sourceToolAssistantUUID", "teamName")


class ForkSessionResult(Struct, frozen=True):
    """Where a fork is.

    Args:
        session_id: the id of the new session.
        path: its file.
        messages: how many messages it begins with.
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
    on_problem: OnProblem = ignore,
) -> ForkSessionResult:
    """Make a second session that begins as another one stands. The first stays as it is.

    Args:
        session_id: the session to begin with.
        directory: the working directory that it belongs to; None: any.
        up_to_message_id: the `uuid` of the last message to take over, on any branch; None: the newest.
        title: its title; None: that of the first, with " (fork)" behind it.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read, and is not taken over.

    Returns:
        The new session. Resume it with `Agent.session(resume=…)` or `claude --resume`. Its rows have new ids, and say
        in `forkedFrom` where they come from. (L60, E30)

    Raises:
        UsageError: an id is none, there is no such message, or nothing was said in the session.
        SessionNotFoundError: there is no such session.
        OSError: the fork cannot be written; then there is none.
    """
    path = require_file(session_id, directory, config_dir)
    with opened(path) as descriptor:
        rows = list(read_rows(descriptor, path, on_problem))
        if up_to_message_id is not None and not any(row.uuid == up_to_message_id for row in rows):
            raise UsageError(f"there is no message {up_to_message_id[:80]!r} in session {session_id}")
        found = Conversation(rows, up_to=up_to_message_id)
        for row, reason in found.problems:
            on_problem(TranscriptProblem(str(path), row.number, reason))
        taken = [row for row in found.rows if row.type != "progress"]
        if not any(row.is_visible for row in taken):
            raise UsageError(f"there is nothing to fork in session {session_id}")
        title = title.strip() if title and title.strip() else _title_of(path)
        new_id = str(uuid4())
        fork = _Fork(path.stem, new_id, rows, taken)
        target = path.with_name(new_id + SUFFIX)
        lines = chain(fork.notes(descriptor), fork.lines(descriptor), [fork.title(title)])
        _write(target, (dump_line(line) + b"\n" for line in lines))
    return ForkSessionResult(new_id, str(target), sum(row.is_visible for row in taken))


def _title_of(path: Path) -> str:
    info = info_of(path)
    return f"{info.custom_title or info.ai_title or info.first_prompt or info.summary if info else 'Session'} (fork)"


class _Fork:
    """The rows of a fork, made from those of its origin."""

    def __init__(self, origin: str, new_id: str, rows: Iterable[Row], chain: list[Row]) -> None:
        self._origin = origin
        self._id = new_id
        self._chain = chain
        self._inherited = [row for row in rows if row.type in INHERITED and row.agent_id is None]
        self._ids = {row.uuid: str(uuid4()) for row in chain if row.uuid is not None}
        self._now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def title(self, title: str) -> dict[str, Any]:
        return {"type": "custom-title", "customTitle": title, "sessionId": self._id}

    def notes(self, descriptor: int) -> Iterator[dict[str, Any]]:
        for row in self._inherited:
            data = load_object(read_part(descriptor, row.place, row.size))
            if data is not None and data.get("sessionId") == self._origin:
                changed = {key: self._ids.get(data[key]) for key in ("afterUuid",) if data.get(key) is not None}
                yield {**data, **changed, "sessionId": self._id}

    def lines(self, descriptor: int) -> Iterator[dict[str, Any]]:
        parent: str | None = None
        for row in self._chain:
            data = load_object(read_part(descriptor, row.place, row.size))
            if data is None or row.uuid is None:
                continue  # the file was changed meanwhile
            kept = {key: value for key, value in data.items() if key not in _OWN}
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
                kept["compactMetadata"] = self._renamed(kept["compactMetadata"])
            if row is self._chain[-1]:
                kept["timestamp"] = self._now  # the CLI takes the newest row for the last one
            parent = self._ids[row.uuid]
            yield kept

    def _renamed(self, value: Any) -> Any:
        """The same with the new ids; a compaction names the rows that it has kept, at several places."""
        if isinstance(value, dict):
            return {key: self._renamed(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self._renamed(item) for item in cast("list[Any]", value)]
        return self._ids.get(value, value) if isinstance(value, str) else value


def _write(target: Path, lines: Iterable[bytes]) -> None:
    """Write a new file that is there as a whole or not at all."""
    fresh = target.with_name(f".{target.name}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(lines)
        fresh.rename(target)
    except BaseException as error:
        with suppress(OSError):
            fresh.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
