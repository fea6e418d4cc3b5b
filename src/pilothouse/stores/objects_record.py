"""The record of a session in an object storage: what one object says, and how it is written. Pure.

The record is the one object of a session that ever changes, and it changes by compare-and-swap alone, so that entries,
counts and the lease change in one step. Its lines:

1. what lists need, the lease, the ids of the last commits
2. the logs (the main transcript under "", others under their subpath): count, last batch, sealed parts, length of tail
3. the tails: the newest entries of each log, one a line, in the order of line 2
4. nothing, if the size would tell the wrong thing else: see `is_listed`
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from pilothouse.errors import StoreError
from pilothouse.stores.base import Entry, Place
from pilothouse.stores.blocking import FORMAT, newer
from pilothouse.stores.encoding import decode_entry, entry_from, entry_text

SEAL_BYTES = 128 * 1024
"""A tail that has grown beyond this becomes an object of its own, which never changes.

An append writes the tail again: smaller would make many objects, and so many requests to load a session; larger would
make each append slower.
"""

COMMITS_KNOWN = 16
"""Ids of the last commits that a record keeps: whoever did not hear the answer finds its own there."""


@dataclass
class Log:
    """One transcript: sealed parts (name and number of entries), then the tail."""

    count: int = 0
    last: str = ""
    parts: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    tail: list[str] = field(default_factory=list[str])

    @property
    def is_full(self) -> bool:
        """Whether the tail has to be sealed."""
        return sum(map(len, self.tail)) > SEAL_BYTES


@dataclass
class Record:
    """A session. `ends` is in seconds since 1970 by the clock of the store, `owner` None when nobody has the lease."""

    place: Place
    owner: str | None = None
    token: int = 0
    ends: float = 0.0
    summary: dict[str, Any] | None = None
    logs: dict[str, Log] = field(default_factory=dict[str, Log])
    commits: list[str] = field(default_factory=list[str])

    def to_bytes(self) -> bytes:
        """Write it down, with a new id of the commit behind the last ones."""
        self.commits = [*self.commits[1 - COMMITS_KNOWN :], secrets.token_hex(8)]
        listed = {
            "format": FORMAT,
            "commits": self.commits,
            "session": self.place.session,
            "lease": [self.owner, self.token, self.ends],
            "summary": self.summary,
        }
        logs = {name: [log.count, log.last, log.parts, len(log.tail)] for name, log in self.logs.items()}
        lines = [entry_text(listed), json.dumps(logs), *(line for log in self.logs.values() for line in log.tail), ""]
        data = "\n".join(lines).encode("ascii")
        return data if is_listed(len(data)) == ("" in self.logs) else data + b"\n"


def record_of(place: Place, data: bytes) -> Record:
    """Read a record.

    Raises:
        StoreError: it is damaged, or of a newer pilothouse.
    """
    try:
        first, second, *lines = data.decode("ascii").split("\n")
        listed, logs = decode_entry(first), decode_entry(second)
        if listed["format"] > FORMAT:
            raise StoreError(newer(listed["format"]))
        owner, token, ends = listed["lease"]
        record = Record(place, owner, token, ends, listed["summary"], commits=listed["commits"])
        at = 0
        for name, (count, last, parts, length) in logs.items():
            record.logs[name] = Log(count, last, [(part, size) for part, size in parts], lines[at : at + length])
            at += length
        if at > len(lines):
            raise ValueError("it ends too early")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(
            f"the record of session {place.session} is damaged ({error}); restore an older version of the object",
            session_id=place.session,
        ) from error
    return record


def listed_in(line: bytes) -> Entry:
    """Read the first line of a record: `session`, `summary`."""
    return entry_from(line)


def is_listed(size: int) -> bool:
    """Whether a record of this size has a main transcript: an odd size says so.

    Some records have none: those of sessions that were deleted, or leased and not yet written to. A list of objects
    tells names, times and sizes; nothing else of it changes in the same step as the record.
    """
    return size % 2 == 1
