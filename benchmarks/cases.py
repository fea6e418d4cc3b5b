"""What is measured: one table. Each case says who does which work, how often, and what we want of it.

Owns numbers and goals. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OURS, INCUMBENT, FLOOR = "ours", "incumbent", "floor"
SUBJECTS = (OURS, INCUMBENT, FLOOR)
Size = Literal["full", "short", "smoke"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What `ours` should reach: `metric` at most `limit` times that of `of`."""

    metric: str
    of: str
    limit: float


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Args:
        name: how to ask for it.
        title: what it is, in words.
        measure: the function of each subject that does it.
        scenario: what the fake CLI says.
        sizes: for each size of run, the parameters of the measure; a size that is missing leaves the case out.
        samples: for each size, how many fresh processes a subject.
        metrics: what is reported of what the measure returns: name -> unit.
        goals: what we want.
        rate: a parameter and what it counts, if the time is to be shown as so many of them a second too.
        subjects: who can do it.
        pinned: run on one core, so that who wakes whom on which core does not decide.
        timeout: seconds after which a sample is killed and counts as failed.
    """

    name: str
    title: str
    measure: str
    scenario: str
    sizes: Mapping[Size, Mapping[str, str]]
    samples: Mapping[Size, int]
    metrics: Mapping[str, str] = field(default_factory=lambda: {"wall": "ms"})
    goals: tuple[Goal, ...] = ()
    rate: tuple[str, str] | None = None
    subjects: tuple[str, ...] = SUBJECTS
    pinned: bool = False
    timeout: float = 60.0


SAMPLES: dict[Size, int] = {"full": 9, "short": 5, "smoke": 1}
FIRST_QUERIES: dict[Size, str] = {"full": "21", "short": "11", "smoke": "2"}
FEW: dict[Size, int] = {"full": 7, "short": 3, "smoke": 1}
CALLS: dict[Size, Mapping[str, str]] = {
    "full": {"CALLS": "3000"},
    "short": {"CALLS": "1000"},
    "smoke": {"CALLS": "5"},
}
LARGE_MB = 64  # left out of a short run
PARSED_MB = 16  # at least so much is read in a sample: less is over before the clock can tell
LARGE_PIECE, SMALL_PIECE = 65536, 40  # characters: a file that is read; what a model streams


def _stream(partial: bool, full: int, short: int) -> dict[Size, Mapping[str, str]]:
    sizes: dict[Size, int] = {"full": full, "short": short, "smoke": 50}
    return {size: {"COUNT": str(count), "PARTIAL": str(int(partial))} for size, count in sizes.items()}


def _huge(megabytes: int, limit: float) -> Case:
    parameters = {"COUNT": "1", "PARTIAL": "0"}
    sizes: dict[Size, Mapping[str, str]] = {"full": parameters, "short": parameters}
    return Case(
        name=f"line-{megabytes}mb",
        title=f"one line of {megabytes} MB",
        measure="stream",
        scenario=f"huge-{megabytes}",
        sizes=sizes,
        samples=FEW,
        metrics={"wall": "ms", "memory": "MB"},
        goals=(Goal("wall", FLOOR, limit),),
    )


def _asked(name: str, title: str, limit: float) -> Case:
    return Case(
        name=name,
        title=f"{title}, round trip (one core)",
        measure=name,
        scenario=name,
        sizes=CALLS,
        samples=FEW,
        metrics={"wall": "µs"},
        goals=(Goal("wall", INCUMBENT, limit),),
        pinned=True,
    )


def _parsed(kind: str, title: str, megabytes: int, piece: int, goal: float | None = None) -> Case:
    """Text of some kind through the parser of the text bridge; `piece` is the length of what it is given at a time."""
    repeats = max(1, PARSED_MB // megabytes)
    full = {"KIND": kind, "MB": str(megabytes), "PIECE": str(piece), "REPEATS": str(repeats)}
    sizes: dict[Size, Mapping[str, str]] = {"full": full}
    if megabytes < LARGE_MB:
        sizes["short"] = full
        sizes["smoke"] = {**full, "MB": "0.01", "REPEATS": "1"}
    return Case(
        name=f"xml-{kind}-{megabytes}mb" if piece > SMALL_PIECE else f"xml-{kind}-pieces",
        title=f"XML parser, {title}, {megabytes} MB" + ("" if piece > SMALL_PIECE else f" in pieces of {piece}"),
        measure="parse",
        scenario="small",
        sizes=sizes,
        samples=FEW if megabytes < LARGE_MB else {"full": 3},
        metrics={"wall": "ms", "memory": "MB"},
        goals=() if goal is None else (Goal("wall", FLOOR, goal),),
        rate=("MB", "MB"),
        subjects=(OURS, FLOOR),
        timeout=120.0,
    )


CASES: tuple[Case, ...] = (
    Case(
        name="small",
        title="short messages, streamed",
        measure="stream",
        scenario="small",
        sizes=_stream(False, 200_000, 50_000),
        samples=FEW,
        metrics={"wall": "ms", "cpu": "ms", "memory": "MB"},
        goals=(Goal("wall", INCUMBENT, 1 / 10), Goal("wall", FLOOR, 1.2)),
        rate=("COUNT", "messages"),
    ),
    Case(
        name="deltas",
        title="text deltas, streamed",
        measure="stream",
        scenario="delta",
        sizes=_stream(True, 200_000, 50_000),
        samples=FEW,
        metrics={"wall": "ms", "cpu": "ms", "memory": "MB"},
        goals=(Goal("wall", INCUMBENT, 1 / 10), Goal("wall", FLOOR, 1.2)),
        rate=("COUNT", "messages"),
    ),
    _huge(1, 1.4),
    _huge(8, 1.2),
    _huge(64, 1.1),
    Case(
        name="many",
        title="300 one-shot queries at once",
        measure="many",
        scenario="small",
        sizes={
            "full": {"QUERIES": "300", "COUNT": "1"},
            "short": {"QUERIES": "300", "COUNT": "1"},
            "smoke": {"QUERIES": "3", "COUNT": "1"},
        },
        samples=FEW,
        metrics={"wall": "ms", "cpu": "ms"},
        goals=(Goal("wall", FLOOR, 1.2),),
    ),
    Case(
        name="first",
        title="time to the first message",
        measure="first",
        scenario="small",
        sizes={size: {"COUNT": "1", "QUERIES": queries} for size, queries in FIRST_QUERIES.items()},
        samples=SAMPLES,
        metrics={"wall": "ms", "cold": "ms"},
        goals=(Goal("wall", FLOOR, 1.4), Goal("cold", INCUMBENT, 1 / 5)),
    ),
    Case(
        name="import",
        title="import, ready to ask",
        measure="load",
        scenario="small",
        sizes={"full": {}, "short": {}, "smoke": {}},
        samples=SAMPLES,
        metrics={"wall": "ms", "memory": "MB"},
        goals=(Goal("wall", INCUMBENT, 1 / 8), Goal("memory", INCUMBENT, 0.4)),
    ),
    Case(
        name="control",
        title="control request, round trip (one core)",
        measure="control",
        scenario="hold",
        sizes=CALLS,
        samples=FEW,
        metrics={"wall": "µs"},
        goals=(Goal("wall", INCUMBENT, 1 / 2),),
        pinned=True,
    ),
    _asked("hook", "hook", 1 / 2),
    _asked("permission", "permission", 1 / 2),
    _asked("tool", "in-process tool call", 1 / 8),
    _parsed("text", "text without tags", 1, LARGE_PIECE),
    _parsed("text", "text without tags", 64, LARGE_PIECE, 3),
    _parsed("text", "text without tags", 1, SMALL_PIECE),
    _parsed("calls", "many calls", 1, LARGE_PIECE),
    _parsed("calls", "many calls", 64, LARGE_PIECE),
    _parsed("calls", "many calls", 1, SMALL_PIECE),
    _parsed("call", "one call", 1, LARGE_PIECE),
    _parsed("call", "one call", 64, LARGE_PIECE),
    Case(
        name="real",
        title="one-shot query, real CLI, scripted model",
        measure="real",
        scenario="small",
        sizes={"full": {}},
        samples={"full": 5},
        goals=(Goal("wall", FLOOR, 1.1),),
        timeout=90.0,
    ),
)
