"""Growth is measured on all of the work, and a slope is what it says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import scale
from benchmarks.environment import build_fake_cli
from benchmarks.sampling import Bench
from benchmarks.scale import AXES, LEAST_BYTES, grow, lines_of, shown, slope


@pytest.mark.parametrize(
    ("costs", "slope"),
    [
        ([5.0, 5.0, 5.0, 5.0], 0.0),
        ([1.0, 10.0, 100.0, 1000.0], 1.0),
        ([7.0, 7.0, 700.0, 70_000.0], 2.0),
        ([0.0, 0.0, 2.0, 20.0], 1.0),
    ],
    ids=["for nothing", "linear", "quadratic after a start", "too little to see at first"],
)
def test_a_slope_is_that_of_the_right_half(costs: list[float], slope: float) -> None:
    assert scale.slope(list(zip((1, 10, 100, 1000), costs, strict=True))) == pytest.approx(slope)


def test_one_point_has_no_slope() -> None:
    assert slope([(1, 1.0)]) is None
    assert slope([]) is None


@pytest.mark.matrix
@pytest.mark.parametrize("measure", ["stream", "many", "idle", "declare", "tool", "sessions", "transcript"])
def test_every_axis_can_be_measured(measure: str, tmp_path: Path) -> None:
    axis = next(axis for axis in AXES if axis.measure == measure)
    axis = replace(axis, amounts=(2, 4), parameters={**axis.parameters, "CALLS": "3"})
    bench = Bench(Path(sys.executable), build_fake_cli()[0], tmp_path)
    samples = grow(bench, axis, ["ours"], rounds=1)

    growths = lines_of(axis, samples)
    assert set(growths) == set(axis.views)
    for growth in growths.values():
        assert [amount for amount, _ in growth["subjects"]["ours"]["points"]] == [2, 4]


def test_a_line_is_sent_often_enough_and_counted_once(tmp_path: Path) -> None:
    axis = next(axis for axis in AXES if axis.work == "bytes in a line")
    assert axis.parameters_for(1000)["COUNT"] == str(LEAST_BYTES // 1000)
    assert axis.parameters_for(64_000_000)["COUNT"] == "1"
    assert shown(axis, axis.views["line"], 1000, [{"cpu": 4.0}]) == pytest.approx(4.0 * 1e3 / (LEAST_BYTES // 1000))


def test_a_subject_that_fails_has_no_more_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axis = replace(AXES[0], amounts=(2, 4), parameters={"COUNT": "{}"})  # PARTIAL is missing
    samples = grow(Bench(Path(sys.executable), build_fake_cli()[0], tmp_path), axis, ["ours"], rounds=2)

    assert samples == {"ours": {}}
    assert "KeyError" in capsys.readouterr().err
    assert lines_of(axis, samples)["messages"]["subjects"]["ours"] == {"points": [], "slope": None}
