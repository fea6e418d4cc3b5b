"""When a peer has been silent for too long: two phases, a warning at half of the limit, and the end at the limit.

Owns these decisions, and the form of the notes that pilothouse itself puts between the messages of the peer. What
counts as silence, and what is done about it, those know who ask. Pure: the times are given.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilothouse.driver.failures import silence_error
from pilothouse.driver.outgoing import Limits
from pilothouse.errors import QueryTimeout
from pilothouse.messages import SystemMessage
from pilothouse.protocol import encode_line

STALLED = "stalled"
"""Subtype of the system message that pilothouse puts into the stream of a query that has been silent for long."""
WARNING_AT = 0.5  # of the limit: early enough to do something, late enough not to cry at every pause


class Look(Struct, frozen=True):
    """What is to be done now.

    Args:
        again_at: when to look again.
        note: to be told to the consumer.
        limit: the limit that was passed, in seconds; None: none was.
        kind: the option that set it.
    """

    again_at: float
    note: SystemMessage | None = None
    limit: float | None = None
    kind: str = ""

    def error(self, consequence: str, *, heard: bool) -> QueryTimeout:
        """What the query fails with."""
        return silence_error(self.limit or 0.0, consequence, heard=heard, kind=self.kind)


class Silence:
    """The silence of one peer during one query.

    Args:
        limits: of the query.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._told_of: float | None = None  # the beginning of the silence that was told of

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to watch."""
        return self._limits.idle_timeout is not None or self._limits.startup_timeout is not None

    def look(self, since: float, now: float, *, heard: bool, session_id: str | None = None) -> Look | None:
        """The peer has been silent `since` then; `heard`: it has said something in this query. None: no limit."""
        limit, kind = self._limits.idle_timeout, "idle_timeout"
        if not heard and self._limits.startup_timeout is not None:
            limit, kind = self._limits.startup_timeout, "startup_timeout"
        if limit is None:
            return None
        warn_at, cut_at = since + limit * WARNING_AT, since + limit
        if now < warn_at:
            return Look(self._soon(warn_at, now, heard=heard))
        note = None
        if self._told_of != since:  # also when it comes too late: nothing is cut unsaid
            self._told_of = since
            facts = {"seconds": round(now - since, 3), "limit": limit, "phase": "idle" if heard else "startup"}
            note = own_message(STALLED, session_id, facts)
        if now >= cut_at:
            return Look(now, note, limit, kind)
        return Look(self._soon(cut_at, now, heard=heard), note)

    def _soon(self, moment: float, now: float, *, heard: bool) -> float:
        """`moment`, or before it, where the phase may change meanwhile into one with a shorter limit."""
        idle = self._limits.idle_timeout
        return moment if heard or idle is None else min(moment, now + idle * WARNING_AT)


def own_message(subtype: str, session_id: str | None, facts: dict[str, Any]) -> SystemMessage:
    """A system message of pilothouse's own; `facts` are in its `raw`."""
    named = {} if session_id is None else {"session_id": session_id}
    line = encode_line({"type": "system", "subtype": subtype, **named, **facts})[:-1]
    return SystemMessage(subtype=subtype, session_id=session_id, raw_line=line)
