"""No hot path has become several times slower: CPU time against the floor, in one run, with generous bounds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.guard import GUARDED, best_ratio, cpu_ratio

NAMES = ("control", "deltas", "hook", "small", "tool")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake CLI of the benchmarks is for POSIX")


@pytest.mark.parametrize("name", NAMES)
def test_a_hot_path_stays_near_its_floor(name: str, tmp_path: Path) -> None:
    ratio = cpu_ratio(name, tmp_path)
    assert ratio <= GUARDED[name].bound, "python -m benchmarks.guard tells more"


def test_every_guarded_path_is_tested() -> None:
    assert sorted(GUARDED) == sorted(NAMES)


@pytest.mark.parametrize(
    ("ours", "floor", "ratio", "rounds"),
    [
        ([2.0, 2.2], [1.0, 1.1], 2.0, 2),
        # One of three was slowed down by others: the best counts.
        ([9.0, 8.0, 2.0], [1.0, 1.0, 1.0], 2.0, 3),
        # A floor that was slowed down once hides nothing.
        ([9.0, 9.0, 9.0, 9.0], [9.0, 1.0, 1.0, 1.0], 9.0, 4),
    ],
    ids=["quiet", "noise", "slower"],
)
def test_the_best_of_each_side_is_compared(ours: list[float], floor: list[float], ratio: float, rounds: int) -> None:
    samples, asked = {"ours": iter(ours), "floor": iter(floor)}, list[str]()

    def measure(subject: str) -> float:
        asked.append(subject)
        return next(samples[subject])

    assert best_ratio(measure, 3.0, rounds=4) == ratio
    assert asked == ["ours", "floor"] * rounds
