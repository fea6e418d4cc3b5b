"""Ratios, goals, misses and changes are what the samples say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks import report
from benchmarks.cases import CASES, SUBJECTS
from benchmarks.report import is_met, misses_of, table
from benchmarks.sampling import Samples
from benchmarks.subjects.clients import percentile


def find_case(name: str) -> Any:
    return next(case for case in CASES if case.name == name)


def summarize(case: Any, rounds: dict[str, list[dict[str, float]]], before: Any = None) -> Any:
    return report.summarize(case, "full", Samples(rounds, {}), before)


def walls(**rounds: list[float]) -> dict[str, list[dict[str, float]]]:
    return {subject: [{"wall": value, "cpu": value} for value in values] for subject, values in rounds.items()}


def test_ratios_are_taken_round_by_round() -> None:
    case = find_case("many")
    result = summarize(case, walls(ours=[10.0, 3.0, 4.0], floor=[10.0, 1.0, 1.0], incumbent=[20.0, 6.0, 8.0]))

    # The ratio of the medians would be 4.0: the machine was slow in the first round, for everybody.
    wall = result["metrics"]["wall"]
    assert (wall["ours/floor"]["median"], wall["ours/incumbent"]["median"]) == (3.0, 0.5)
    verdicts = {(goal.metric, goal.of): is_met(case, goal, result) for goal in case.goals}
    assert verdicts == {("wall", "incumbent"): True, ("wall", "floor"): False}
    assert misses_of([case], {"many": result}) == [
        "**hundreds of queries at once**, time: 3 x the floor (goal: ≤ 1.15)"
    ]


@pytest.mark.parametrize(
    ("warm", "is_met", "shown"),
    [([0.1, 0.3], True, "≤ 0.3 x cold: met"), ([0.4, 0.9], False, "≤ 0.3 x cold: MISSED")],
    ids=["met", "missed"],
)
def test_a_goal_may_be_a_ratio_to_another_number_of_ours(warm: list[float], is_met: bool, shown: str) -> None:
    case = find_case("pool")
    rounds = {"ours": [{"wall": w, "answer": 1.0, "cold": cold} for w, cold in zip(warm, (1.0, 2.0), strict=True)]}
    result = summarize(case, rounds)
    assert report.is_met(case, case.goals[0], result) is is_met
    assert report.rows_of([case], {"pool": result})[0][6] == shown
    # A file of before has no such ratio.
    del result["metrics"]["wall"]["ours/cold"]
    assert report.rows_of([case], {"pool": result})[0][6] == "≤ 0.3 x cold: ?"


@pytest.mark.parametrize(("seconds", "is_met"), [(0.099, True), (0.101, False)])
def test_a_goal_may_bound_a_number(seconds: float, is_met: bool) -> None:
    case = find_case("host")
    [goal] = [goal for goal in case.goals if goal.metric == "delay_p95"]
    result = summarize(case, {"ours": [dict.fromkeys(case.metrics, seconds)]})
    assert report.is_met(case, goal, result) is is_met
    if not is_met:
        told = "**a host, hundreds of sessions and viewers**, delay p95: 101 ms (goal: ≤ 100)"
        assert told in report.misses_of([case], {"host": result})


def test_every_goal_is_of_a_metric_of_its_case() -> None:
    for case in CASES:
        for goal in case.goals:
            assert goal.metric in case.metrics
            assert goal.of in ("", *SUBJECTS, *case.metrics)


FLOOR = [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("then", "now", "change"),
    [
        ([2.0, 2.1, 2.2, 2.3], [1.0, 1.1, 1.2, 1.3], "-47% : floor"),
        ([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3], "+87% : floor"),
        # The middle halves overlap.
        ([1.0, 1.5, 2.0, 2.5], [1.4, 1.9, 2.4, 2.9], ""),
        # Without noise, but next to nothing.
        ([1.0, 1.0, 1.0, 1.0], [1.01, 1.01, 1.01, 1.01], ""),
        # Two rounds say nothing about the noise.
        ([1.0, 1.0, 1.0, 1.0], [2.0, 2.0], ""),
    ],
    ids=["faster", "slower", "noise", "little", "few"],
)
def test_a_change_is_told_beyond_the_noise(then: list[float], now: list[float], change: str) -> None:
    case = find_case("many")
    before = summarize(case, walls(ours=then, floor=FLOOR))
    result = summarize(case, walls(ours=now, floor=FLOOR[: len(now)]), before)
    assert report.rows_of([case], {"many": result})[0][-1] == change
    # Another amount of work is not compared.
    other = replace(case, sizes={"full": {"QUERIES": "7"}})
    compared = summarize(other, walls(ours=now, floor=FLOOR), before)
    assert report.rows_of([other], {"many": compared})[0][-1] == ""


def test_without_a_ratio_the_number_itself_is_compared() -> None:
    case = replace(find_case("hook"), subjects=("ours",), goals=(), metrics={"wall": ""})
    then, now = ({"ours": [dict.fromkeys(case.metrics, value)] * 3} for value in (4.0, 2.0))
    result = summarize(case, now, summarize(case, then))
    assert report.rows_of([case], {"hook": result})[0][-1] == "-50%"


def test_what_is_left_out_stands_below_the_table() -> None:
    case = find_case("many")
    shown = table([case], {"many": summarize(case, walls(ours=[1.0]))}, {"search": "no ripgrep"})
    assert shown.endswith("\nsearch: no ripgrep")


@pytest.mark.parametrize(("percent", "value"), [(50, 2), (95, 4), (25, 1)])
def test_a_percentile_is_one_of_the_values(percent: int, value: int) -> None:
    assert percentile([1, 2, 3, 4], percent) == value
