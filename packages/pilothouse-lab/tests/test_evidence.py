"""Intervals and tests: known values, and how often two equal agents are called different."""

from __future__ import annotations

import random
from math import isnan

import pytest

from pilothouse_lab.evidence import (
    Counts,
    compare_success,
    correct_by_holm,
    estimate_mean,
    estimate_mean_difference,
    estimate_rate,
    estimate_rate_difference,
    find_t_quantile,
)
from pilothouse_lab.report import VARIANTS, Report, RunRecord


def test_a_rate_has_wilsons_interval() -> None:
    """Values of Newcombe, 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for passed, total, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = estimate_rate(passed, total)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_a_difference_has_newcombes_interval() -> None:
    """Values of Newcombe, 1998, part II, table II, method 10: 56/70 and 48/80; 9/10 and 3/10; 10/10 and 0/10."""
    for before, after, low, high in [
        ((48, 80), (56, 70), 0.0524, 0.3339),
        ((3, 10), (9, 10), 0.1705, 0.8090),
        ((0, 10), (10, 10), 0.6075, 1.0),
    ]:
        found = estimate_rate_difference(estimate_rate(*before), estimate_rate(*after))
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_one_case_is_fishers_test() -> None:
    assert compare_success([Counts(8, 10, 1, 10)]) == pytest.approx(2 * (45 * 10 + 10) / 167960)
    assert compare_success([Counts(5, 10, 5, 10)]) == 1
    assert compare_success([Counts(0, 0, 0, 0)]) == 1


def test_a_case_that_never_passes_adds_nothing() -> None:
    one = Counts(9, 10, 2, 10)
    assert compare_success([one, Counts(0, 10, 0, 10), Counts(10, 10, 10, 10)]) == pytest.approx(compare_success([one]))


def test_small_losses_in_many_cases_add_up() -> None:
    one = Counts(5, 5, 3, 5)
    assert compare_success([one]) > 0.4
    assert compare_success([one] * 4) < 0.01


def test_holms_correction_never_reorders() -> None:
    assert correct_by_holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert correct_by_holm([]) == []


def test_a_mean_has_a_t_interval() -> None:
    found = estimate_mean([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert (found.value, found.low, found.high) == pytest.approx((3, 3 - 1.963, 3 + 1.963), abs=0.01)


def test_the_spread_between_cases_does_not_count() -> None:
    found = estimate_mean_difference([[1.0, 1.1], [100.0, 100.1]], [[2.0, 2.1], [101.0, 101.1]])
    assert found.value == pytest.approx(1)
    assert found.low is not None
    assert found.low > 0.8


def test_few_runs_have_no_interval() -> None:
    assert estimate_mean([[1.0], [2.0, 3.0]]).low is None
    assert isnan(estimate_mean([[]]).value)
    assert isnan(estimate_rate(0, 0).value)
    assert estimate_mean_difference([[1.0, 2.0]], [[1.0]]).high is None
    assert estimate_mean([[2.0, 2.0]]).high == 2


def test_t_quantiles() -> None:
    for freedom, value in {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 38: 2.024}.items():
        assert find_t_quantile(0.975, freedom) == pytest.approx(value, rel=0.01)
    assert find_t_quantile(0.975, 1.5) >= find_t_quantile(0.975, 2)


def simulate(rates: tuple[float, ...], change: float, runs: int, chance: random.Random) -> Report:
    records = [
        RunRecord(case=str(case), variant=variant, number=number, passed=chance.random() < rate + shift)
        for case, rate in enumerate(rates)
        for variant, shift in zip(VARIANTS, (0.0, change), strict=True)
        for number in range(runs)
    ]
    return Report([str(case) for case in range(len(rates))], records, len(records))


def test_equal_agents_are_rarely_called_different() -> None:
    """At most 5 % of comparisons of equal agents find a regression, in all cases or in one."""
    chance = random.Random(1)
    for rates in [(0.5,), (0.9,), (0.8, 0.3, 0.6), (0.95,) * 5]:
        found = [simulate(rates, 0, 20 // len(rates), chance).conclusion for _ in range(200)]
        assert found.count("worse") <= 10 + 2 * 3.1  # 5 %, and two standard errors of this simulation
        assert found.count("better") <= 10 + 2 * 3.1


def test_a_large_loss_is_found() -> None:
    chance = random.Random(2)
    found = [simulate((0.9, 0.8), -0.6, 10, chance).conclusion for _ in range(100)]
    assert found.count("worse") > 95
