"""The common part of all sessions of a host: record, output, attached clients, ending.

Owns the life of a session's task. The two kinds know which child there is and what drives it: `wire_session` and
`prompted_session`.
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
        record: the session's record in the journal.

    Attributes:
        attached: number of connections that read it now.
        last_used: event loop time of the last attachment or activity.
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
        """Id of the session on this host."""
        return self.record.id

    @property
    @abstractmethod
    def has_child(self) -> bool:
        """Whether a child runs or is being started."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a turn runs, as far as the host can see."""

    @property
    def idle_seconds(self) -> float:
        """Seconds without an attached client and without activity."""
        return 0.0 if self.attached else anyio.current_time() - self.last_used

    def used(self) -> None:
        """Record activity."""
        self.last_used = anyio.current_time()

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the current turn; does nothing if none runs."""

    @abstractmethod
    async def stop(self, reason: str) -> None:
        """End the child. The session stays readable, and continues as far as its kind can."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description of the session for REST. Times in seconds since the epoch."""
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
        """The state in a word: "running", "idle", "dormant", "ended"."""

    async def keep_output(self, data: bytes) -> None:
        """Journal the child's output, and find the id of the conversation in it.

        Raises:
            JournalError: the output could not be stored.
        """
        await self.output.append(data)
        self.used()
        found = conversation_in(data) if self.record.kind == "wire" else ""  # the other kind gets it from results
        if found and found != self.record.conversation:
            self.record.conversation = found
            self.journal.note(self.id, conversation=found)

    async def keep_ending(self, ending: Ending) -> None:
        """Journal the ending, and wake the waiting tasks."""
        self.record.state, self.record.ending = "ended", ending
        with suppress(JournalError):  # if the journal is the cause, the next start of the host says "restarted"
            await self.journal.update(self.id, state="ended", ending=ending)
        self.record.changed = time.time()
        if self.record.kind == "wire":  # a session that the host drives continues with another child
            self.output.finish()
        self._ended.set()


def conversation_in(data: bytes) -> str:
    """Return the last conversation id in a piece of output, "" if there is none."""
    at = data.rfind(_SESSION_ID)
    found = _UUID.match(data, at + len(_SESSION_ID)) if at >= 0 else None
    return found[1].decode() if found else ""


def _told(ending: Ending) -> dict[str, Any]:
    return {"exit_code": ending.exit_code, "signal": ending.signal, "detail": ending.detail, "stderr": ending.stderr}
