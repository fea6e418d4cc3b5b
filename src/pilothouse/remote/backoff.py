"""When a client tries to reconnect, and when it gives up.

Owns the delays. The caller passes in time and random numbers.
"""

from __future__ import annotations

from msgspec import Struct

from pilothouse.errors import UsageError


class Backoff(Struct, frozen=True, kw_only=True):
    """How a client reconnects after its connection broke.

    The delay before a try doubles each time, and half of it is random, so that the clients of a restarted host do not
    all come at once. The first try is made without delay.

    Args:
        give_up_after: seconds without a connection after which the client gives up; 0: at once, `float("inf")`:
            never.
        first: seconds before the second try.
        longest: maximum seconds between two tries.

    Raises:
        UsageError: a negative number, or a delay of 0.
    """

    give_up_after: float = 120.0
    first: float = 0.1
    longest: float = 10.0

    def __post_init__(self) -> None:
        if not (self.give_up_after >= 0 and self.first > 0 and self.longest > 0):
            raise UsageError(f"reconnect: delays are greater than 0, and give_up_after at least 0; got {self!r}")

    def delay(self, tries: int, chance: float) -> float:
        """Return the seconds to wait after `tries` failed tries; `chance` is a random number from 0 to 1."""
        if tries == 0:
            return 0.0
        full = min(self.longest, self.first * 2.0 ** min(tries - 1, 60))
        return full * (0.5 + chance / 2)
