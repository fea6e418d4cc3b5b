"""Limits over all processes of a journal: how many run, what they spend, and how much they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from scripted_runners import PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import BudgetError, UsageError
from pilothouse.fleet import Attempt, Fleet, Rate, Run
from pilothouse.fleet.journals.sql import SqlJournal
from pilothouse.fleet.limits import RateLimiter

pytestmark = pytest.mark.anyio
Make = Callable[[], SqlJournal]
NAMES = [str(n) for n in range(24)]


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEARTBEAT_SECONDS", "SHARED_HEARTBEAT_SECONDS"):
        monkeypatch.setattr(f"pilothouse.fleet.scheduler.{name}", 0.02)


async def test_so_many_run_in_all_fleets_together(make_shared: Make) -> None:
    both = PlayedRunner(seconds=0.01)
    found: list[list[str]] = []

    async def work() -> None:
        async with Fleet(runner=both, journal=make_shared(), concurrency=8, overall_concurrency=3) as fleet:
            found.append([run.text for run in await fleet.gather(NAMES, key=str)])

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(work)
    assert found == [[f"{name}!" for name in NAMES]] * 3
    assert sorted(both.keys, key=int) == NAMES
    assert both.most <= 3


async def test_all_fleets_together_keep_to_the_budget(make_shared: Make) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(0.005)
        assert attempt.max_budget_usd is not None
        return answer("done", cost=attempt.max_budget_usd)

    both = PlayedRunner(play)
    spent: list[float] = []

    async def work() -> None:
        async with Fleet(runner=both, journal=make_shared(), budget_usd=3.5, run_budget_usd=1) as fleet:
            with pytest.raises(BudgetError, match=r"\$3.5 for the fleet is spent \(\$3.5000\)"):
                await fleet.gather(NAMES, key=str)
            spent.append((await fleet.status()).cost_usd)

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(work)
    assert spent == pytest.approx([3.5, 3.5])
    assert sum(one.max_budget_usd or 0 for one in both.attempts) == pytest.approx(3.5)


async def test_a_fleet_whose_runs_must_wait_for_others_looks_seldom(
    make_shared: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEAT_SECONDS", "SHARED_HEARTBEAT_SECONDS"):
        monkeypatch.setattr(f"pilothouse.fleet.scheduler.{name}", 0.05)
    other = make_shared()
    await other.open(0.0, "resume")
    await other.add([Run(key="held", prompt="x")])
    [held] = await other.lease(1, 0.0)
    looks = 0
    async with Fleet(runner=PlayedRunner(seconds=0), journal=make_shared(), overall_concurrency=1) as fleet:
        lease = fleet._journal.lease

        async def counted(*given: Any) -> list[Any]:
            nonlocal looks
            looks += 1
            return await lease(*given)

        monkeypatch.setattr(fleet._journal, "lease", counted)
        started = anyio.current_time()
        await fleet.submit("a", key="a")
        await anyio.sleep(0.3)
        # After every beat, and once between two.
        assert 1 <= looks <= 8 + 2 * (anyio.current_time() - started) / 0.05
        assert await other.release(replace(held, state="succeeded", ended=1.0))
        assert (await fleet.wait("a")).is_success
    await other.close()


async def test_an_overall_rate_is_shared_by_live_processes(make_shared: Make) -> None:
    """By those that start runs: one that only asks takes no share."""

    def fleet(**more: Any) -> Fleet:
        return Fleet(runner=PlayedRunner(), journal=make_shared(), overall_rate=Rate(requests_per_minute=600), **more)

    def per_second(fleet: Fleet) -> Any:
        return fleet._limiter._requests._per_second

    async with fleet() as one:
        assert per_second(one) == 10
        async with fleet(concurrency=0), fleet() as two:
            assert per_second(two) == 5
            while per_second(one) != 5:
                await anyio.sleep(0.01)
        while per_second(one) != 10:
            await anyio.sleep(0.01)


def starts_in(limiter: RateLimiter, start: float, seconds: float) -> int:
    now, count = start, 0
    while (now := now + limiter.seconds_until_start(now)) < start + seconds:
        limiter.reserve_run(now)
        count += 1
    return count


def test_the_parts_of_a_rate_are_never_more_than_the_whole() -> None:
    parts = [RateLimiter(Rate(), Rate(requests_per_minute=600)) for _ in range(4)]
    assert starts_in(parts[0], 0.0, 60.0) == pytest.approx(600, abs=11)
    for part in parts:
        part.set_process_count(4, 60.0)
    assert sum(starts_in(part, 60.0, 60.0) for part in parts) == pytest.approx(600, abs=14)
    both = RateLimiter(Rate(requests_per_minute=60), Rate(requests_per_minute=600))
    both.set_process_count(2, 0.0)
    assert starts_in(both, 0.0, 60.0) == pytest.approx(60, abs=2), "the limit of the process is less than its part"
    assert not both.is_unlimited


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"overall_concurrency": 0}, "overall_concurrency is a whole number of at least 1, not 0"),
        ({"overall_concurrency": True}, "overall_concurrency"),
        ({"overall_rate": Rate(requests_per_minute=0)}, "overall_rate: requests_per_minute must be a number above 0"),
        ({"overall_rate": 5}, r"overall_rate: expected pilothouse\.fleet\.Rate, got int"),
    ],
)
def test_limits_for_all_are_checked(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Fleet(runner=PlayedRunner(), **given)


@pytest.mark.virtual_time
async def test_limits_for_all_hold_in_one_process_without_a_journal() -> None:
    runner = PlayedRunner()
    async with Fleet(runner=runner, concurrency=8, overall_concurrency=2) as fleet:
        assert len(await all_of(fleet.map(NAMES))) == len(NAMES)
    assert runner.most == 2
