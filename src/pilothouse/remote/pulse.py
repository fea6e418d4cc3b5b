"""Heartbeats: when to ask whether the other side is there, and when it is not.

Owns these two decisions. The time is given in, in seconds of any clock that does not run backwards.
"""

from __future__ import annotations

from typing import Final

HEARTBEAT: Final = 15.0
"""Seconds without a word after which the other side is asked."""
MISSED: Final = 3
"""Intervals without a word after which the connection counts as lost."""


class Pulse:
    """Of one connection.

    Args:
        interval: seconds; 0: no heartbeats, and a connection is never lost for its silence.

    Attributes:
        round_trip: seconds that the last answer took; None before the first.
    """

    def __init__(self, interval: float = HEARTBEAT) -> None:
        self.interval = interval
        self.round_trip: float | None = None
        self._heard = self._asked = 0.0

    def begin(self, now: float) -> None:
        """A new connection stands."""
        self._heard = self._asked = now

    def heard(self, now: float) -> None:
        """Something came."""
        self._heard = now

    def answered(self, t: float, now: float) -> None:
        """A pong came, for the ping that was sent at `t`."""
        if now >= t:
            self.round_trip = now - t

    def ask(self, now: float) -> bool:
        """Whether a ping is to be sent now; it counts as sent."""
        if now < self.ask_at:
            return False
        self._asked = now
        return True

    @property
    def ask_at(self) -> float:
        """When a ping is due."""
        return max(self._heard, self._asked) + self.interval if self.interval else float("inf")

    @property
    def lost_at(self) -> float:
        """When the connection counts as lost, unless something comes before."""
        return self._heard + MISSED * self.interval if self.interval else float("inf")
