"""One gate for all queries and sessions of an agent: until when they had better ask nothing, because the API said so.

Owns the times and the line of those who wait. It knows no event loop: queries of several loops and threads share it,
so there are only wall-clock times here, which are also what the API tells.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Literal

import anyio
from msgspec import Struct

from pilothouse.options import Options

LimitKind = Literal["usage_limit", "rate_limit"]

MAX_SLEEP_SECONDS = 30.0  # sleep at most that long: a machine that was suspended, or whose clock was set, notices then
STAGGER_SECONDS = 0.25  # between two who come back when the gate opens

_ACCOUNT = ("api_key", "auth_token", "oauth_token", "base_url", "provider", "config_dir", "env", "transport", "user")


class RateLimitKey(Struct, frozen=True):
    """Where a query asks: whose limits count, and for which model.

    Args:
        account: who pays; only a hash, no key.
        model: as it was asked for; None: that of the CLI's choice, or all of them.
    """

    account: int
    model: str | None

    @classmethod
    def from_options(cls, options: Options) -> RateLimitKey:
        """Where a query with these settings asks."""
        values = options.as_dict()
        model = options.model
        return cls(hash(tuple(repr(values.get(name)) for name in _ACCOUNT)), model)

    @property
    def whole_account(self) -> RateLimitKey:
        """The account, whatever the model."""
        return RateLimitKey(self.account, None)


class SharedRateLimits:
    """Until when a limit is known to hold, by place; open at first. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocked: dict[tuple[LimitKind, RateLimitKey], float] = {}
        self._waiter_count = 0

    def block(self, limit: LimitKind, place: RateLimitKey, until: float) -> None:
        """The API wants nothing from `place` before `until`, in Unix seconds."""
        with self._lock:
            now = time.time()
            self._blocked = {key: moment for key, moment in self._blocked.items() if moment > now}
            if not self._blocked:
                self._waiter_count = 0
            key = (limit, place)
            self._blocked[key] = max(until, self._blocked.get(key, 0.0))

    def blocked_until(self, limit: LimitKind, key: RateLimitKey) -> float | None:
        """Until when it is closed for `place`; None if it is open."""
        with self._lock:
            moment = max(self._blocked.get((limit, one), 0.0) for one in (key, key.whole_account))
        return moment if moment > time.time() else None

    def next_delay(self) -> float:
        """Seconds after the opening at which one more may come: nobody comes together with another."""
        from random import random  # slow to import, and few wait

        with self._lock:
            self._waiter_count += 1
            return (self._waiter_count - random()) * STAGGER_SECONDS  # noqa: S311 - no secret


async def sleep_until_time(moment: float) -> None:
    """Sleep until a Unix time."""
    while (left := moment - time.time()) > 0:  # noqa: ASYNC110 - no event tells the time of the day
        await anyio.sleep(min(left, MAX_SLEEP_SECONDS))
