"""How sure a comparison may be: intervals and tests, with the standard library alone. Pure.

Owns the method, which is this.

**Success.** The rate of each configuration has a Wilson score interval of 95 %, which is honest for few runs and for
rates of 0 and 1. The difference of two rates has Newcombe's interval (his method 10, from two Wilson intervals). Runs
of different cases are put together for both, which makes them wider than they need to be, never narrower.

**Whether success changed** is decided by an exact test, not by these intervals. Given how many runs of a case succeeded
in total, and if it makes no difference which configuration a run had, the successes of the candidate have a
hypergeometric distribution; the sum over the cases has the convolution of these distributions. (For one case this is
Fisher's exact test, for several the exact test of Cochran, Mantel and Haenszel.) A case that is hard for both thus
neither hides nor feigns a difference. The value p is twice the smaller tail.

In addition each case is tested alone, with Holm's correction for the number of cases, because a change may break one
case and help another. A regression is a p below 0.05, of all cases or of one, with fewer successes than the baseline.
If the configurations are equal, each of the two tests reports a regression with a probability of at most 2.5 %, so a
comparison does with at most 5 %. In practice it is less, because the tests are discrete.

**Cost and turns** are means over the runs of each case, weighted by the number of runs, with t intervals of 95 %. Their
standard error is that within the cases: it says what the same cases would give again, not what other cases would give.
A case with one run has no spread, so there is no interval then.

Runs are taken for independent. Data that two runs share, such as a server with state, break this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import comb, nan, pi, sqrt, tan
from statistics import NormalDist, variance
from typing import NamedTuple

from msgspec import Struct

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
_Z = NormalDist().inv_cdf(1 - ALPHA / 2)


class Estimate(Struct, frozen=True):
    """A number with an interval of 95 %.

    Args:
        value: the number; NaN without any run.
        low: lower end of the interval; None: too few runs.
        high: upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


def estimate_rate(successes: int, total: int) -> Estimate:
    """Estimate a rate, with Wilson's score interval.

    >>> found = estimate_rate(9, 10)
    >>> round(found.low, 3), round(found.high, 3)
    (0.596, 0.982)
    """
    if not total:
        return Estimate(nan)
    rate, square = successes / total, _Z * _Z
    centre = (rate + square / (2 * total)) / (1 + square / total)
    half = _Z / (1 + square / total) * sqrt(rate * (1 - rate) / total + square / (4 * total * total))
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half))


def estimate_rate_difference(before: Estimate, after: Estimate) -> Estimate:
    """Estimate by how much a rate has changed, with Newcombe's interval; both have Wilson's."""
    value = after.value - before.value
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Estimate(value)
    low = value - sqrt((after.value - after.low) ** 2 + (before.high - before.value) ** 2)
    high = value + sqrt((after.high - after.value) ** 2 + (before.value - before.low) ** 2)
    return Estimate(value, low, high)


class Counts(NamedTuple):
    """Successes and runs of the baseline and of the candidate, in one case or in all."""

    baseline_passed: int
    baseline_runs: int
    candidate_passed: int
    candidate_runs: int


def compare_success(cases: Iterable[Counts]) -> float:
    """Return p of the exact test that the configuration makes no difference to success.

    >>> round(compare_success([Counts(10, 10, 2, 10)]), 5)
    0.00071
    """
    distribution, place = [1.0], 0
    for case in cases:
        passed = case.baseline_passed + case.candidate_passed
        low, high = max(0, passed - case.baseline_runs), min(passed, case.candidate_runs)
        ways = [comb(case.candidate_runs, k) * comb(case.baseline_runs, passed - k) for k in range(low, high + 1)]
        distribution = _convolve(distribution, [way / sum(ways) for way in ways])
        place += case.candidate_passed - low
    return min(1.0, 2 * min(sum(distribution[: place + 1]), sum(distribution[place:])))


def count_excess(cases: Iterable[Counts]) -> float:
    """Return how many more successes the candidate has than if the configuration made no difference.

    This is the direction of the test. The difference of the rates of all runs has another one if the cases that are
    hard have most of the runs of one side.

    >>> count_excess([Counts(10, 10, 2, 10)])
    -4.0
    """
    found = 0.0
    for case in cases:
        total = case.baseline_runs + case.candidate_runs
        passed = case.baseline_passed + case.candidate_passed
        found += case.candidate_passed - (passed * case.candidate_runs / total if total else 0.0)
    return found


def _convolve(left: Sequence[float], right: Sequence[float]) -> list[float]:
    found = [0.0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            found[i + j] += a * b
    return found


def correct_by_holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number, in the same order.

    >>> correct_by_holm([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    scaled = (min(1.0, values[index] * (len(values) - rank)) for rank, index in enumerate(order))
    corrected = dict(zip(order, accumulate(scaled, max), strict=True))
    return [corrected[index] for index in range(len(values))]


Sample = Sequence[Sequence[float]]
"""The values of a configuration, case by case."""


def estimate_mean(cases: Sample) -> Estimate:
    """Estimate the mean over runs of these cases, with a t interval."""
    return _make_estimate(*_summarize(cases))


def estimate_mean_difference(before: Sample, after: Sample) -> Estimate:
    """Estimate by how much a mean has changed, with a t interval (Welch)."""
    (old, old_parts), (new, new_parts) = _summarize(before), _summarize(after)
    return _make_estimate(new - old, [*old_parts, *new_parts] if old_parts and new_parts else [])


def _summarize(cases: Sample) -> tuple[float, list[tuple[float, int]]]:
    """Return the mean, and each case's part of its squared standard error with the degrees of freedom."""
    there = [values for values in cases if values]
    total = sum(map(len, there))
    mean = sum(map(sum, there)) / total if total else nan
    if min(map(len, there), default=0) < 2:
        return mean, []
    return mean, [(len(values) * variance(values) / total**2, len(values) - 1) for values in there]


def _make_estimate(value: float, parts: list[tuple[float, int]]) -> Estimate:
    if not parts:
        return Estimate(value)
    square = sum(part for part, _ in parts)
    freedom = square * square / sum(part * part / degrees for part, degrees in parts) if square else 1  # Satterthwaite
    half = find_t_quantile(1 - ALPHA / 2, freedom) * sqrt(square)
    return Estimate(value, value - half, value + half)


def find_t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution: exact for 1 and 2 degrees of freedom, else to about 1 %.

    >>> [round(find_t_quantile(0.975, n), 2) for n in (1, 2, 3, 9, 30)]
    [12.71, 4.3, 3.16, 2.26, 2.04]
    """
    if freedom < 2:  # between the two exact values, the greater one
        return tan(pi * (probability - 0.5))
    if freedom < 3:
        return (2 * probability - 1) * sqrt(2 / (1 - (2 * probability - 1) ** 2))
    z = NormalDist().inv_cdf(probability)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
