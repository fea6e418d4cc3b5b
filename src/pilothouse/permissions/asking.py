"""Asking the user's functions so that nothing that goes wrong there becomes a yes, or a silence.

Owns the time limit, the log, what counts as failed, and the report of who decided. Knows nothing of what is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, TypeVar

from pilothouse.callbacks import Callback, Limited, takes
from pilothouse.errors import OptionsError, UsageError
from pilothouse.messages.system import ASKED, SETTLED
from pilothouse.tracebacks import log_info

T = TypeVar("T")
Report = Callable[[str, dict[str, Any]], object]
"""Hears that something is asked, and how it is settled: a subtype, `ASKED` or `SETTLED`, and the facts."""

log = logging.getLogger("pilothouse.permissions")

NOBODY = "nobody"
"""Who decided, where no function is there that could."""
_ids = count(1)


def ask_safely(
    decide: Callable[[], Awaitable[tuple[T, str]]],
    what: Callable[[], str],
    *,
    kind: str,
    body: Mapping[str, Any],
    report: Report | None,
    timeout: float | None,
    failed: T,
    timed_out: T,
) -> Limited[T]:
    """Come to a decision, whatever happens.

    Args:
        decide: asks for it; gives the decision and the name of who decided.
        what: says what is asked, for the log.
        kind: of what is asked: "permission", "question", "plan", "elicitation" or "dialog".
        body: of the request.
        report: hears of it, before anybody is asked and before the decision is sent.
        timeout: seconds until it counts as `timed_out`; None: no limit.
        failed: the decision when `decide` raises.
        timed_out: the decision when it takes too long.
    """
    facts: dict[str, Any] = {"id": f"ask_{next(_ids)}", "kind": kind}
    if report is not None:
        report(ASKED, {**facts, "request": body})

    def settled(answer: T | None, by: str) -> None:
        if report is not None:
            report(SETTLED, {**facts, "by": by, "answer": answer})

    async def decided() -> T:
        try:
            answer, by = await decide()
        except Exception as error:
            log.error("%s: there was no valid answer, so it is refused", what(), exc_info=log_info(error))
            answer, by = failed, "error"
        except BaseException:
            if timeout is None:  # else `late` may be next
                settled(None, "withdrawn")
            raise
        settled(answer, by)
        return answer

    def late() -> T:
        log.error("%s: there was no answer within %g s, so it is refused", what(), timeout)
        settled(timed_out, "timeout")
        return timed_out

    return Limited(decided(), timeout, late)


def callback(function: Any, name: str, *parameters: str) -> Callback | None:
    """The function as a `Callback`, or None if there is none.

    Raises:
        UsageError: it cannot be called with these parameters.
    """
    try:
        return None if function is None else Callback(function, name, *parameters)
    except UsageError as error:
        if parameters != ("request",) or not takes(function, 3):
            raise
        hint = "it takes one argument, the request: what was (tool_name, tool_input, context) is request.tool_name, "
        raise UsageError(f"{error}; {hint}request.tool_input and request.suggestions") from None


def seconds(value: Any, name: str = "timeout") -> float | None:
    """A time limit, checked.

    Raises:
        OptionsError: it is neither a number above 0 nor None.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and value > 0):
        return value
    raise OptionsError(f"{name}: expected a number of seconds greater than 0, or None, got {value!r:.80}", option=name)
