"""What all sessions of a host have in common: the record, the output, who is attached, how it is ended.

Owns the life of the task that a session runs in. Which child there is, and who talks to it, the two kinds know:
`wire_session` and `prompted_session`.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from pilothouse.server.journal import JournalError, OutputJournal, SessionRecord
from pilothouse.server.output import Output
from pilothouse.transports import Ending

_SESSION_ID = b'"session_id":'
_UUID = re.compile(rb' ?"([0-9a-fA-F-]{36})"')


class HostedSession(ABC):
    """One session on this host.

    Args:
        journal: of the host.
        record: what the journal knows of it.

    Attributes:
        attached: how many connections listen to it now.
        last_used: when somebody was last attached or something happened, on the clock of the event loop.
    """

    def __init__(self, journal: OutputJournal, record: SessionRecord) -> None:
        self.journal = journal
        self.record = record
        self.output = Output(journal, record, acknowledged=record.kind == "wire")
        self.attached = 0
        self.last_used = anyio.current_time()
        self._running: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._stop_reason = ""

    @property
    def id(self) -> str:
        """Of the session on this host."""
        return self.record.id

    @property
    @abstractmethod
    def has_child(self) -> bool:
        """Whether a child runs, or is being started."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether it works, as far as it can be told."""

    @property
    def idle_seconds(self) -> float:
        """For how long nobody has been attached to it while nothing happened."""
        return 0.0 if self.attached else anyio.current_time() - self.last_used

    def used(self) -> None:
        """Something happens here."""
        self.last_used = anyio.current_time()

    @abstractmethod
    async def interrupt(self) -> None:
        """Stop the turn that runs; nothing happens when none does."""

    @abstractmethod
    async def stop(self, reason: str) -> None:
        """End the child; the session can be looked at, and goes on as far as its kind can."""

    def describe(self) -> Mapping[str, Any]:
        """What REST tells of it. Times in seconds since the epoch."""
        record = self.record
        return {
            "id": record.id,
            "kind": record.kind,
            "owner": record.owner or None,
            "state": self.state,
            "created": record.created,
            "start": record.start,
            "conversation": record.conversation or None,
            "attached": self.attached,
            "output_bytes": record.output_end,
            "available_from": record.output_start,
            "ending": None if record.ending is None else _told(record.ending),
        }

    @property
    @abstractmethod
    def state(self) -> str:
        """In a word: "running", "idle", "dormant", "ended"."""

    async def keep_output(self, data: bytes) -> None:
        """Journal what the child said, and learn the id of the conversation from it.

        Raises:
            JournalError: it could not be kept.
        """
        await self.output.append(data)
        self.used()
        found = conversation_in(data) if self.record.kind == "wire" else ""  # the other kind knows better
        if found and found != self.record.conversation:
            self.record.conversation = found
            self.journal.note(self.id, conversation=found)

    async def keep_ending(self, ending: Ending) -> None:
        """It is over: journal it, and tell those who wait."""
        self.record.state, self.record.ending = "ended", ending
        with suppress(JournalError):  # the reason may be just that; then the next start of the host says "restarted"
            await self.journal.update(self.id, state="ended", ending=ending)
        self.record.changed = time.time()
        if self.record.kind == "wire":  # the host starts another child for those of its own
            self.output.finish()
        self._ended.set()


def conversation_in(data: bytes) -> str:
    """The last id of a conversation that stands in a piece of output, "" if there is none."""
    at = data.rfind(_SESSION_ID)
    found = _UUID.match(data, at + len(_SESSION_ID)) if at >= 0 else None
    return found[1].decode() if found else ""


def _told(ending: Ending) -> dict[str, Any]:
    return {"exit_code": ending.exit_code, "signal": ending.signal, "detail": ending.detail, "stderr": ending.stderr}
