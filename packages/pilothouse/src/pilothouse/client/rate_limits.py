"""Limits of the API that all queries and sessions of an agent share: until when they should send nothing.

Owns the times, and the order in which waiting queries continue. It knows no event loop: queries of several loops and
threads share it. So all times are wall-clock times, which are also what the API reports.
"""

from __future__ import annotations

import random
import time
from threading import Lock
from typing import Literal

import anyio
from msgspec import Struct

from pilothouse.options import Options

LimitKind = Literal["usage_limit", "rate_limit"]

MAX_SLEEP_SECONDS = 30.0  # longest sleep: notices a suspended machine or a changed clock
STAGGER_SECONDS = 0.25  # between two queries that continue after a limit

_ACCOUNT = ("api_key", "auth_token", "oauth_token", "base_url", "provider", "config_dir", "env", "transport", "user")


class RateLimitKey(Struct, frozen=True):
    """The account and model that a limit belongs to.

    Args:
        account: a hash of the settings that identify the account; not the key.
        model: as requested; None: the CLI's choice, or all models.
    """

    account: int
    model: str | None

    @classmethod
    def from_options(cls, options: Options) -> RateLimitKey:
        """Make the key of a query with these settings."""
        values = options.as_dict()
        model = options.model
        return cls(hash(tuple(repr(values.get(name)) for name in _ACCOUNT)), model)

    @property
    def whole_account(self) -> RateLimitKey:
        """The key of the account, for all models."""
        return RateLimitKey(self.account, None)


class SharedRateLimits:
    """Until when limits hold, by key. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocked: dict[tuple[LimitKind, RateLimitKey], float] = {}
        self._waiter_count = 0

    def block(self, limit: LimitKind, place: RateLimitKey, until: float) -> None:
        """Block `place` until `until`, in Unix seconds."""
        with self._lock:
            now = time.time()
            self._blocked = {key: moment for key, moment in self._blocked.items() if moment > now}
            if not self._blocked:
                self._waiter_count = 0
            key = (limit, place)
            self._blocked[key] = max(until, self._blocked.get(key, 0.0))

    def blocked_until(self, limit: LimitKind, key: RateLimitKey) -> float | None:
        """Until when `key` is blocked, in Unix seconds; None if it is not."""
        with self._lock:
            moment = max(self._blocked.get((limit, one), 0.0) for one in (key, key.whole_account))
        return moment if moment > time.time() else None

    def next_delay(self) -> float:
        """Seconds to wait after the end of a limit, so that waiting queries continue one by one."""
        with self._lock:
            self._waiter_count += 1
            return (self._waiter_count - random.random()) * STAGGER_SECONDS  # noqa: S311 - not a secret


async def sleep_until_time(moment: float) -> None:
    """Sleep until a Unix time."""
    while (left := moment - time.time()) > 0:  # noqa: ASYNC110 - there is no event for the time of day
        await anyio.sleep(min(left, MAX_SLEEP_SECONDS))
