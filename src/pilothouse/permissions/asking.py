"""Asking the user's functions so that nothing that goes wrong there becomes a yes, or a silence.

Owns the time limit, the log, and what counts as failed. Knows nothing of what is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pilothouse.callbacks import Callback, Limited
from pilothouse.errors import OptionsError
from pilothouse.tracebacks import log_info

T = TypeVar("T")

log = logging.getLogger("pilothouse.permissions")


def ask_safely(
    decide: Callable[[], Awaitable[T]], what: Callable[[], str], *, timeout: float | None, failed: T, timed_out: T
) -> Limited[T]:
    """Come to a decision, whatever happens.

    Args:
        decide: asks for it.
        what: says what is asked, for the log.
        timeout: seconds until it counts as `timed_out`; None: no limit.
        failed: the decision when `decide` raises.
        timed_out: the decision when it takes too long.
    """

    async def decided() -> T:
        try:
            return await decide()
        except Exception as error:
            log.error("%s: there was no valid answer, so it is refused", what(), exc_info=log_info(error))
            return failed

    def late() -> T:
        log.error("%s: there was no answer within %g s, so it is refused", what(), timeout)
        return timed_out

    return Limited(decided(), timeout, late)


def callback(function: Any, name: str, *parameters: str) -> Callback | None:
    """The function as a `Callback`, or None if there is none.

    Raises:
        UsageError: it cannot be called with these parameters.
    """
    return None if function is None else Callback(function, name, *parameters)


def seconds(value: Any, name: str = "timeout") -> float | None:
    """A time limit, checked.

    Raises:
        OptionsError: it is neither a number above 0 nor None.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and value > 0):
        return value
    raise OptionsError(f"{name}: expected a number of seconds greater than 0, or None, got {value!r:.80}", option=name)
