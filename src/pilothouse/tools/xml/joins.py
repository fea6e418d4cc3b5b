"""Where a reply that hit the output limit goes on in the next API message. Pure.

Owns the guess whether the model repeats what it had written, which it does now and then although it is told not to.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_WINDOW: Final = 1024  # characters at the end of what was written that may come again
_LEAST: Final = 24  # shorter repetitions are no repetition: lines and brackets often come twice
_LEAST_KINDS: Final = 10  # different characters in it, so that rules and indentation do not count
_TAG: Final = "<tool_use"
_LONGEST_TAG: Final = 64
_OPENING: Final = re.compile(r"\s*+<(tool_use(?:-\w+)?)\s*>")


class Join(NamedTuple):
    """How two pieces go together.

    Attributes:
        kept: how much of the first one counts.
        skipped: how much of the second one does not.
    """

    kept: int
    skipped: int = 0


def join_of(written: str, more: str, *, final: bool) -> Join | None:
    """How `more` goes on from `written`; None if more of it has to come first, which `final` rules out.

    A call that was cut off and begins anew counts from its new beginning.
    """
    tail = written[-_WINDOW:]
    if not final and len(more) < _WINDOW and (more in tail or _may_open(more)):
        return None
    for size in range(min(len(tail), len(more)), _LEAST - 1, -1):
        if tail.endswith(more[:size]) and len(set(more[:size])) >= _LEAST_KINDS:
            return Join(len(written), size)
    if opening := _OPENING.match(more):
        at = written.rfind(f"<{opening[1]}>")
        if at >= 0 and f"</{opening[1]}>" not in written[at:]:
            return Join(at)
    return Join(len(written))


def _may_open(more: str) -> bool:
    begun = more.lstrip()[:_LONGEST_TAG]
    return _TAG.startswith(begun) or (begun.startswith(_TAG) and ">" not in begun and len(begun) < _LONGEST_TAG)
