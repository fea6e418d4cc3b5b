"""Heartbeats: when to ping the other side, and when it counts as lost.

Owns these two decisions. The caller passes in the time, in seconds of any clock that does not run backwards.
"""

from __future__ import annotations

from typing import Final

HEARTBEAT: Final = 15.0
"""Seconds of silence after which the other side is pinged."""
MISSED: Final = 3
"""Intervals of silence after which the connection counts as lost."""


class Pulse:
    """Heartbeats of one connection.

    Args:
        interval: seconds; 0: no heartbeats, and a connection is never lost by silence.

    Attributes:
        interval: the same.
        round_trip: seconds from the last ping to its pong; None before the first.
    """

    def __init__(self, interval: float = HEARTBEAT) -> None:
        self.interval = interval
        self.round_trip: float | None = None
        self._heard = self._asked = 0.0

    def begin(self, now: float) -> None:
        """Begin a new connection."""
        self._heard = self._asked = now

    def heard(self, now: float) -> None:
        """Record that data came."""
        self._heard = now

    def answered(self, t: float, now: float) -> None:
        """Record a pong for the ping that was sent at `t`."""
        if now >= t:
            self.round_trip = now - t

    def ask(self, now: float) -> bool:
        """Return whether to send a ping now; if so, it counts as sent."""
        if now < self.ask_at:
            return False
        self._asked = now
        return True

    @property
    def ask_at(self) -> float:
        """Time when a ping is due."""
        return max(self._heard, self._asked) + self.interval if self.interval else float("inf")

    @property
    def lost_at(self) -> float:
        """Time when the connection counts as lost, unless data comes before."""
        return self._heard + MISSED * self.interval if self.interval else float("inf")
