"""`python -m benchmarks.guard`: has a hot path become several times slower? Ours against the floor, in CPU time.

Owns the bounds. The CPU time of two processes that run one after the other says the same on an idle machine and on a
busy one, but for what others do to the caches; so each side keeps the best of its rounds, and rounds are added only
while a bound is not kept. Absolute times are not looked at.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cases import FLOOR, OURS, Case
from benchmarks.environment import build_fake_cli
from benchmarks.sampling import Bench, run_once
from benchmarks.scenarios import write_scenario

LEAST_ROUNDS, MOST_ROUNDS = 2, 6
STREAM = {"COUNT": "20000", "PARTIAL": "0"}
DELTAS = {"COUNT": "20000", "PARTIAL": "1"}
# Many at a time: with one at a time each turn waits for a core and finds the caches full of what others do.
TURNS = {"CALLS": "1280", "AHEAD": "64", "TOOLS": "1"}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A path that is watched.

    Args:
        ours: the function of our subject.
        floor: that of the floor: on an event loop too, so that both are slowed alike.
        scenario: what the fake CLI says.
        parameters: how much of it.
        bound: at most so many times the CPU time of the floor; about twice of what it takes, so that a path that is
            three times slower is over it, and a busy machine is not.
    """

    ours: str
    floor: str
    scenario: str
    parameters: Mapping[str, str]
    bound: float


GUARDED: Mapping[str, Guarded] = {
    "small": Guarded("stream", "stream", "small", STREAM, 4.0),
    "deltas": Guarded("stream", "stream", "delta", DELTAS, 4.0),
    "control": Guarded("controls", "async_controls", "hold", TURNS, 6.0),
    "hook": Guarded("hook", "async_hook", "hook", TURNS, 6.0),
    "tool": Guarded("tool", "async_tool", "tool", TURNS, 6.0),
}


def best_ratio(measure: Callable[[str], float], bound: float, rounds: int = MOST_ROUNDS) -> float:
    """The best of ours divided by the best of the floor; stops when the bound is kept, after two rounds at least.

    Args:
        measure: a sample of a subject.
        bound: what is to be kept.
        rounds: how many samples of each there are at most.
    """
    best = dict.fromkeys((OURS, FLOOR), float("inf"))
    for done in range(1, rounds + 1):
        for subject in best:
            best[subject] = min(best[subject], measure(subject))
        if done >= LEAST_ROUNDS and best[OURS] <= bound * best[FLOOR]:
            break
    return best[OURS] / best[FLOOR]


def cpu_ratio(name: str, scratch: Path, *, source: Path | None = None, rounds: int = MOST_ROUNDS) -> float:
    """The CPU time of a guarded path, ours divided by that of the floor, with the Python that runs this.

    Args:
        name: which path.
        scratch: a directory for homes and scenarios.
        source: a directory with another pilothouse than the installed one.
        rounds: how many samples of each there are at most.

    Raises:
        MeasureError: a sample failed, or took too long.
    """
    guarded = GUARDED[name]
    case = Case(name, name, guarded.ours, guarded.scenario, {}, {})
    cases = {OURS: case, FLOOR: replace(case, measure=guarded.floor)}
    bench = Bench(Path(sys.executable), build_fake_cli()[0], scratch, source)
    parameters = {f"BENCH_{key}": value for key, value in guarded.parameters.items()}
    parameters["BENCH_SCENARIO"] = str(write_scenario(guarded.scenario, scratch / "scenarios"))

    def measure(subject: str) -> float:
        return run_once(bench, cases[subject], subject, parameters)["cpu"]

    return best_ratio(measure, guarded.bound, rounds)


def main() -> int:
    """Tell the ratios; 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--source", type=Path, help="measure the pilothouse in this directory instead")
    source: Path | None = parser.parse_args().source
    is_over = False
    with tempfile.TemporaryDirectory(prefix="pilothouse-bench-") as scratch:
        for name, guarded in GUARDED.items():
            ratio = cpu_ratio(name, Path(scratch), source=source and source.resolve())
            is_over |= ratio > guarded.bound
            verdict = "OVER" if ratio > guarded.bound else "kept"
            print(f"{name:10} {ratio:5.2f} times the floor's CPU time, at most {guarded.bound:g}: {verdict}")
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
