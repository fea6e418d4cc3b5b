"""The value of the option `retry`: when a query that the API refused is tried again, and after how long. Pure.

Owns the fields, their limits, and the length of a wait. Which failure is of which kind, `client.retrying` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal, cast

from msgspec import Struct, structs

from pilothouse.options.faults import Fault
from pilothouse.options.shapes import step

RetryReason = Literal["rate_limit", "overloaded", "server", "network"]
REASONS: tuple[RetryReason, ...] = ("rate_limit", "overloaded", "server", "network")


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """When a query that the API refused is tried again, after the CLI has given up.

    Args:
        attempts: how often it is tried again, at most; the first try does not count.
        first_delay: seconds before the first of them.
        max_delay: seconds that one wait takes at most. A rate limit that is said to last longer is not waited for.
        multiplier: how many times longer each wait is than the one before.
        jitter: the part of a wait that is random, from 0 to 1, so that many queries do not come back at once.
        on: after which failures: "rate_limit" (429), "overloaded" (529), "server" (other 5xx), "network" (the API
            cannot be reached).
    """

    attempts: int = 3
    first_delay: float = 2.0
    max_delay: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.5
    on: tuple[RetryReason, ...] = REASONS

    def delay(self, attempt: int, luck: float) -> float:
        """Seconds before try number `attempt`, counted from 1; `luck` is a random number from 0 to 1."""
        growth = self.multiplier ** min(attempt - 1, 64)  # no float is too small for that
        return min(self.first_delay * growth, self.max_delay) * (1 - self.jitter * luck)


def read(value: Any) -> RetryPolicy:
    """How often, a `RetryPolicy`, or a mapping with its fields.

    Raises:
        Fault: it is none of them, or a field is out of its range.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"attempts": value}
    if isinstance(value, RetryPolicy):
        value = structs.asdict(value)
    if not isinstance(value, Mapping):
        raise Fault(value, "a whole number, or a RetryPolicy")
    found: dict[str, Any] = {}
    for key, given in cast("Mapping[Any, Any]", value).items():
        if key not in RetryPolicy.__struct_fields__:
            names = ", ".join(map(repr, RetryPolicy.__struct_fields__))
            raise Fault(key, "", step(str(key)), instead=f"there is no such field; known are {names}")
        found[key] = _reasons(given) if key == "on" else _number(key, given)
    return RetryPolicy(**found)


_RANGES: dict[str, tuple[float, float, str]] = {
    "attempts": (0, 1_000_000, "a whole number of at least 0"),
    "first_delay": (0, float("inf"), "a number of seconds of at least 0"),
    "max_delay": (0, float("inf"), "a number of seconds of at least 0"),
    "multiplier": (1, 1000, "a number from 1 to 1000"),
    "jitter": (0, 1, "a number from 0 to 1"),
}


def _number(key: str, value: Any) -> Any:
    least, most, expected = _RANGES[key]
    kinds = int if key == "attempts" else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not isfinite(value) or not least <= value <= most:
        raise Fault(value, expected, key)
    return value


def _reasons(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise Fault(value, "a list of reasons", "on")
    items = cast("list[Any]", value)
    for item in items:
        if item not in REASONS:
            raise Fault(item, "one of " + ", ".join(map(repr, REASONS)), "on")
    return tuple(reason for reason in REASONS if reason in items)
