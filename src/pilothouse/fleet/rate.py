"""How much may be asked of the API in a minute, and when the next run may start. Pure: the time is given.

Owns the two buckets. A run takes from them what it is expected to need when it starts, and the difference when that is
known: so a bucket may be in debt, and then nothing starts until it has filled up again.
"""

from __future__ import annotations

from math import isfinite

from msgspec import Struct

from pilothouse.errors import UsageError

BURST_SECONDS = 1.0
"""What a bucket holds: the share of a second, so that a minute never has more than its limit and that of a second."""


class Rate(Struct, frozen=True, kw_only=True):
    """Limits of a fleet: as `rate` in each process, as `overall_rate` of all processes of a journal together.

    Args:
        requests_per_minute: requests to the model, one a turn; None: no limit.
        tokens_per_minute: tokens of input, without those read from the cache, and of output; None: no limit.

    Raises:
        UsageError: from `Fleet`, if a limit is not above 0.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


def checked_rate(rate: Rate | None, name: str = "rate") -> Rate:
    """The rate with limits that can be kept.

    Raises:
        UsageError: it is no `Rate`, or a limit is not a number above 0.
    """
    if rate is None:
        return Rate()
    if not isinstance(rate, Rate):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name}: expected pilothouse.Rate, got {type(rate).__name__}")
    for limit in Rate.__struct_fields__:
        value = getattr(rate, limit)
        if value is not None and not (isinstance(value, int | float) and isfinite(value) and value > 0):
            raise UsageError(f"{name}: {limit} must be a number above 0, got {value!r}")
    return rate


class Bucket:
    """Something of which there is so much a minute.

    Args:
        per_minute: how much; None: no limit.
        least: what it holds at least when it is full.
    """

    def __init__(self, per_minute: float | None, least: float = 1.0) -> None:
        self._least = least
        self._at: float | None = None
        self._per_second, self._size = self._sized(per_minute)
        self._held = self._size

    def _sized(self, per_minute: float | None) -> tuple[float | None, float]:
        per_second = None if per_minute is None else per_minute / 60
        return per_second, max(self._least, (per_second or 0) * BURST_SECONDS)

    def change(self, per_minute: float | None, now: float) -> None:
        """From now on there is so much a minute."""
        self._fill(now)
        self._per_second, self._size = self._sized(per_minute)
        self._held = min(self._held, self._size)

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, or give it back if it is below 0; into debt, if need be."""
        self._fill(now)
        self._held = min(self._size, self._held - amount)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there, or the bucket is full if that is less; 0 if it is there now."""
        if self._per_second is None:
            return 0.0
        self._fill(now)
        missing = min(amount, self._size) - self._held
        return 0.0 if missing <= 1e-9 else missing / self._per_second

    def _fill(self, now: float) -> None:
        if self._per_second is None:
            return
        if self._at is not None and now > self._at:
            self._held = min(self._size, self._held + (now - self._at) * self._per_second)
        self._at = now


class RateLimiter:
    """The limits of a fleet in this process, and its part of those of all processes.

    Args:
        rate: the limits of this process.
        overall: those of all processes.
    """

    def __init__(self, rate: Rate, overall: Rate = Rate()) -> None:  # noqa: B008 - it does not change
        self._rate = rate
        self._overall = overall
        self._requests = Bucket(_least(rate.requests_per_minute, overall.requests_per_minute))
        self._tokens = Bucket(_least(rate.tokens_per_minute, overall.tokens_per_minute))
        self._is_open = rate == overall == Rate()
        self._parts = 1
        self._ended = 0
        self._mean_tokens = 0.0

    def share(self, parts: int, now: float) -> None:
        """The limits of all processes are for so many processes now: this one has an equal part."""
        if parts == self._parts or self._overall == Rate():
            return
        self._parts = parts
        for bucket, name in ((self._requests, "requests_per_minute"), (self._tokens, "tokens_per_minute")):
            whole: float | None = getattr(self._overall, name)
            bucket.change(_least(getattr(self._rate, name), None if whole is None else whole / parts), now)

    @property
    def is_open(self) -> bool:
        """Whether there is no limit at all."""
        return self._is_open

    def wait(self, now: float) -> float:
        """Seconds until one more run may start; 0: now."""
        return max(self._requests.wait(1, now), self._tokens.wait(max(1.0, self._mean_tokens), now))

    def start(self, now: float) -> float:
        """A run starts; returns the tokens that are taken for it ahead."""
        self._requests.take(1, now)
        self._tokens.take(self._mean_tokens, now)
        return self._mean_tokens

    def requested(self, now: float) -> None:
        """A run has asked the model once more than was known."""
        self._requests.take(1, now)

    def end(self, tokens: float, taken: float, now: float) -> None:
        """A run has ended that used `tokens`, of which `taken` were taken ahead."""
        self._tokens.take(tokens - taken, now)
        self._ended += 1
        self._mean_tokens += (tokens - self._mean_tokens) / min(self._ended, 100)


def _least(*limits: float | None) -> float | None:
    """The smallest of limits; None: there is none."""
    return min((limit for limit in limits if limit is not None), default=None)
