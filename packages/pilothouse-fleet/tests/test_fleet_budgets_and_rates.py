"""Budgets, the rate gate and fairness; simulated on virtual time, so that they say nothing of the machine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import anyio
import pytest
from scripted_runners import PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import BudgetError, CLIExitedError, OverloadedError, RateLimitError
from pilothouse.options import RetryPolicy
from pilothouse_fleet import Attempt, Fleet, Rate, SqliteJournal
from pilothouse_fleet.limits import RateLimiter

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Makes the journal of a fleet."""
    return lambda: None if request.param == "memory" else SqliteJournal(tmp_path / "runs.db")


def costing(usd: float, *, seconds: float = 1.0, tokens: int = 10) -> PlayedRunner:
    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(seconds)
        return answer("done", cost=usd, tokens=tokens)

    return PlayedRunner(play)


async def test_nothing_is_started_once_the_budget_is_spent() -> None:
    runner = costing(1.0)
    done: list[str] = []
    async with Fleet(runner=runner, concurrency=1, budget_usd=3) as fleet:
        runs = fleet.map([str(n) for n in range(10)])
        for _ in range(3):
            done.append((await anext(runs)).key)
        with pytest.raises(BudgetError, match=r"\$3 for the fleet is spent \(\$3\.0000\)"):
            await anext(runs)
        assert (await fleet.status()).cost_usd == 3.0
    assert len(done) == len(runner.attempts) == 3


async def test_items_without_end_end_with_the_budget() -> None:
    runner = costing(1.0)
    async with Fleet(runner=runner, concurrency=2, budget_usd=5, look_ahead=3) as fleet:
        with pytest.raises(BudgetError):
            await all_of(fleet.map(repeat("again")))
    assert 5 <= len(runner.attempts) <= 6


async def test_a_run_may_spend_what_is_left() -> None:
    runner = costing(0.75)
    async with Fleet(runner=runner, concurrency=1, budget_usd=2) as fleet:
        with pytest.raises(BudgetError):
            await all_of(fleet.map(list("abcdef")))
    assert [one.max_budget_usd for one in runner.attempts] == pytest.approx([2.0, 1.25, 0.5])


async def test_with_a_budget_for_each_the_sum_holds_whatever_runs_at_once() -> None:
    runner = costing(1.0)
    async with Fleet(runner=runner, concurrency=10, budget_usd=3.5, run_budget_usd=1.0) as fleet:
        with pytest.raises(BudgetError):
            await all_of(fleet.map([str(n) for n in range(20)]))
        assert (await fleet.status()).cost_usd <= 4.0
    assert sorted(one.max_budget_usd or 0 for one in runner.attempts) == pytest.approx([0.5, 1.0, 1.0, 1.0])


async def test_what_is_set_aside_and_not_spent_is_there_again() -> None:
    runner = costing(0.1)
    async with Fleet(runner=runner, concurrency=10, budget_usd=2, run_budget_usd=1.0) as fleet:
        assert len(await all_of(fleet.map([str(n) for n in range(15)]))) == 15
    assert runner.most == 2


async def test_a_run_that_has_spent_its_own_is_not_tried_again() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        return answer("", cost=0.6, error=OverloadedError("busy"))

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, run_budget_usd=1.0, retry=5) as fleet:
        [run] = await fleet.gather(["a"])
    assert isinstance(run.error, BudgetError)
    assert [one.max_budget_usd for one in runner.attempts] == pytest.approx([1.0, 0.4])


@pytest.mark.parametrize(("is_begun", "count"), [(True, 4), (False, 10)])
async def test_an_attempt_without_a_result_counts_with_what_it_may_have_cost(
    is_begun: bool, count: int, make_journal: Callable[[], Any]
) -> None:
    """Its child died: nobody knows what the model has cost, if it was asked at all."""

    async def play(attempt: Attempt) -> QueryResult:
        attempt.is_asked = is_begun
        raise CLIExitedError("killed")

    runner = PlayedRunner(play)
    limits: dict[str, Any] = {"budget_usd": 1, "run_budget_usd": 0.25, "journal": make_journal()}
    async with Fleet(runner=runner, concurrency=1, retry=0, **limits) as fleet:
        with pytest.raises(BudgetError) if is_begun else nullcontext():
            await all_of(fleet.map([str(n) for n in range(10)]))
        assert (await fleet.status()).lost_usd == (1.0 if is_begun else 0.0)
    assert len(runner.attempts) == count


@pytest.mark.parametrize("stop", ["cancel", "interrupt"])
async def test_a_stopped_attempt_counts_with_what_it_may_have_cost(stop: str, make_journal: Callable[[], Any]) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep_forever()
        raise AssertionError

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, budget_usd=1, run_budget_usd=0.25, journal=make_journal()) as fleet:
        await fleet.submit("a", key="a")
        while not runner.attempts:
            await anyio.sleep(0.1)
        await getattr(fleet, stop)()
        while fleet.running:
            await anyio.sleep(0.1)
        status = await fleet.status()
        assert (status.cost_usd, status.lost_usd) == (0.0, 0.25)


def most_in_a_minute(times: list[float], weights: list[float] | None = None) -> float:
    """The most that any minute has, for times in order."""
    weights = weights or [1.0] * len(times)
    most = held = 0.0
    first = 0
    for moment, weight in zip(times, weights, strict=True):
        held += weight
        while times[first] <= moment - 60:
            held -= weights[first]
            first += 1
        most = max(most, held)
    return most


async def test_requests_are_paced() -> None:
    runner = PlayedRunner()
    async with Fleet(runner=runner, concurrency=50, rate=Rate(requests_per_minute=60)) as fleet:
        await all_of(fleet.map([str(n) for n in range(180)]))
    assert most_in_a_minute(runner.starts) <= 61
    assert runner.starts[-1] - runner.starts[0] == pytest.approx(179, abs=5)


async def test_every_turn_is_a_request() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        return answer("done", turns=4)

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=50, rate=Rate(requests_per_minute=60)) as fleet:
        await all_of(fleet.map([str(n) for n in range(30)]))
    assert [round(later - one) for one, later in pairwise(runner.starts)][5:] == [4] * 24


async def test_turns_count_while_they_happen() -> None:
    """Before any run has ended: nobody knows yet how many a run has."""
    asked: list[float] = []

    async def play(attempt: Attempt) -> QueryResult:
        for _ in range(20):
            attempt.requests += 1
            asked.append(anyio.current_time())
            await anyio.sleep(3)
        return answer("done", turns=20)

    async with Fleet(runner=PlayedRunner(play), concurrency=50, rate=Rate(requests_per_minute=60)) as fleet:
        await all_of(fleet.map([str(n) for n in range(10)]))
    assert sum(moment < asked[0] + 60 for moment in asked) <= 90


async def test_an_attempt_that_is_lost_counts_as_the_others_did() -> None:
    """How many requests it has made is not known, so it may have been as many."""

    async def play(attempt: Attempt) -> QueryResult:
        if int(attempt.key) >= 10:
            raise CLIExitedError("gone")
        return answer("done", turns=4)

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=50, rate=Rate(requests_per_minute=60), retry=0) as fleet:
        await all_of(fleet.map([str(n) for n in range(30)], key=str))
    assert [round(later - one) for one, later in pairwise(runner.starts)][5:] == [4] * 24


async def test_tokens_are_paced() -> None:
    runner = costing(0.001, tokens=1000)
    async with Fleet(runner=runner, concurrency=4, rate=Rate(tokens_per_minute=10_000)) as fleet:
        await all_of(fleet.map([str(n) for n in range(40)]))
    assert most_in_a_minute(runner.starts, [1000.0] * 40) <= 10_000 + 4 * 1000 + 1000
    assert runner.starts[-1] - runner.starts[0] >= 35 / 10 * 60 - 5


def test_a_limiter_is_exact_over_many_starts() -> None:
    limiter, now, starts = RateLimiter(Rate(requests_per_minute=6000)), 0.0, 0
    while starts < 100_000:
        if wait := limiter.seconds_until_start(now):
            now += wait
        else:
            limiter.reserve_run(now)
            starts += 1
    assert starts / now * 60 == pytest.approx(6000, rel=0.002)


async def simulate(workers: int, runs: int) -> None:
    """Thousands of workers, failures and rate limits: all ends, once, in turn, within the rate and the budget."""
    draw = random.Random(7)
    succeeded: Counter[str] = Counter()

    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(5 + 10 * draw.random())
        luck = draw.random()
        if luck < 0.03:
            raise CLIExitedError("gone")
        if luck < 0.06:
            return answer("", cost=0.001, error=RateLimitError("slow"))
        succeeded[attempt.key] += 1
        return answer("done", cost=0.001)

    runner = PlayedRunner(play)
    per_minute = workers * 60 / 20  # less than the workers could do
    fleet = Fleet(
        runner=runner,
        concurrency=workers,
        rate=Rate(requests_per_minute=per_minute),
        budget_usd=runs * 0.0015,
        retry=RetryPolicy(attempts=20, first_delay=1, max_delay=30),
    )
    async with fleet:
        count = 0
        async for run in fleet.map(range(runs), prompt=str, key=str):
            count += 1
            assert run.is_success
        status = await fleet.status()
    assert count == status.succeeded == len(succeeded) == runs
    assert max(succeeded.values()) == 1
    assert runner.most <= workers
    assert most_in_a_minute(runner.starts) <= per_minute * (1 + 1 / 60) + 1
    minutes = (runner.starts[runs - 1] - runner.starts[0]) / 60  # the last ones wait for their next attempt
    assert runs / minutes == pytest.approx(per_minute, rel=0.05)
    assert status.cost_usd <= runs * 0.0015
    firsts = [int(key) for key in dict.fromkeys(runner.keys)]
    # Nobody is overtaken, but by those who start in the same moment: trio takes their tasks in any order.
    assert max(abs(place - number) for place, number in enumerate(firsts)) <= per_minute / 60 + 1


@pytest.mark.matrix
async def test_a_thousand_workers_simulated() -> None:
    await simulate(workers=1000, runs=2_500)
