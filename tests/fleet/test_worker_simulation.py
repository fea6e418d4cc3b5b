"""Many workers, more runs than this machine could do, failures, deaths and limits: planned on virtual time.

The desk, the budget and the rate limiter are the real ones; each worker is a process that shares the journal with all
others. Luck is drawn from the seed, the key and the number of the attempt, so that it does not hang on what the event
loop takes first.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Generator
from dataclasses import dataclass, field

import anyio
import anyio.abc
import pytest
from scripted_runners import answer
from shared_memory_journal import SharedJournal, SharedRuns

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import CLIExitedError, MaxTurnsError, OverloadedError, RateLimitError
from pilothouse.fleet import Attempt, Rate, Run
from pilothouse.fleet.limits import Budget, CircuitBreaker, RateLimiter, validate_limits
from pilothouse.fleet.observers import FleetObservers
from pilothouse.fleet.results import RunSubscribers
from pilothouse.fleet.scheduler import HEARTBEAT_SECONDS, FleetSettings, Scheduler, UnixClock
from pilothouse.fleet.submission import RunOptionsPolicy
from pilothouse.options import RetryPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

RUNS_IN_ADVANCE = 5_000
"""Runs that are put in before they are needed."""
LOOK_SECONDS = 1.0
RETRY = RetryPolicy(attempts=6, first_delay=1, max_delay=20, jitter=0)
TOKENS = 100
SECONDS, WHAT, COST, PRIORITY = range(4)  # what is drawn


@dataclass(frozen=True)
class Scenario:
    """What is simulated. Chances are those of an attempt."""

    workers: int
    slots: int  # of each worker
    runs: int
    seed: int = 7
    seconds: float = 10.0  # of an attempt, in the mean
    dies: float = 0.03  # the child
    is_limited: float = 0.03
    is_busy: float = 0.02
    fails: float = 0.02  # for good
    deaths: int = 0  # workers that are killed, and replaced
    requests_per_minute: float | None = None  # of all
    concurrency: int | None = None  # of all
    budget_usd: float | None = None
    run_budget_usd: float | None = None


@dataclass
class Seen:
    """What came of it."""

    ends: array[int]
    first_starts: array[float]
    starts: list[float] = field(default_factory=list[float])
    attempts: int = 0
    most_attempts: int = 0
    most_failures: int = 0
    running: int = 0
    most_running: int = 0
    most_leased: int = 0
    overtaken: int = 0  # starts of a run while one of greater priority could be started
    over_its_limit: int = 0
    most_spent: float = 0.0
    idle_seconds: float = 0.0  # the longest time in which somebody could have worked and did not
    busy: list[float] = field(default_factory=list[float])  # parts of all slots, as long as something is due
    seconds: float = 0.0


def drawn(*numbers: int) -> float:
    """From 0 to 1, the same for the same numbers."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed / 2**64


class SimulatedScheduler(Scheduler):
    """A scheduler without readers; it ends when all is done, or nothing more may be spent."""

    simulation: Simulation

    def _on_ended(self, run: Run, *, is_own: bool = False) -> None:
        assert is_own
        self.simulation.ended(run)

    def _on_idle(self, is_budget_exhausted: bool) -> None:
        if is_budget_exhausted or self.simulation.is_done:
            self.drain()


class Simulation:
    """All workers of a world, from the first run to the last."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.shared = SharedRuns(lease_seconds=30.0)
        self.seen = Seen(array("i", bytes(4 * scenario.runs)), array("d", bytes(8 * scenario.runs)))
        self.clock = UnixClock()
        self.schedulers: dict[int, tuple[Scheduler, RateLimiter, anyio.CancelScope, SharedJournal]] = {}
        self.put_in = 0
        self.answers: dict[float, QueryResult] = {}

    # Its parts.

    def luck(self, key: str, attempt: int, what: int) -> float:
        return drawn(self.scenario.seed, int(key), attempt, what)

    def answer(self, cost: float) -> QueryResult:
        return self.answers.setdefault(cost, answer("done", cost=cost, tokens=TOKENS))

    async def run(self, attempt: Attempt) -> QueryResult:
        """The work of an attempt."""
        scenario, seen, shared = self.scenario, self.seen, self.shared
        run = shared.runs[attempt.key]
        now = self.clock.now()
        seen.starts.append(now)
        seen.attempts += 1
        seen.most_attempts = max(seen.most_attempts, run.attempts)
        seen.most_leased = max(seen.most_leased, len(shared.owners))
        seen.running += 1
        seen.most_running = max(seen.most_running, seen.running)
        if not seen.first_starts[int(run.key)]:
            seen.first_starts[int(run.key)] = now
        if (first := shared.first()) is not None and first.priority > run.priority:
            seen.overtaken += shared.due.get(first.key, first.created) < (run.started or now)
        seconds = scenario.seconds * (0.5 + self.luck(run.key, run.attempts, SECONDS))
        try:
            await anyio.sleep(round(seconds, 1))
        finally:
            seen.running -= 1
        return self._said(run, attempt)

    def _said(self, run: Run, attempt: Attempt) -> QueryResult:
        scenario, luck = self.scenario, self.luck(run.key, run.attempts, WHAT)
        cost = round(0.01 + 0.04 * self.luck(run.key, run.attempts, COST), 3)
        if attempt.max_budget_usd is not None:
            cost = min(cost, attempt.max_budget_usd)
            self.seen.over_its_limit += attempt.max_budget_usd > (scenario.run_budget_usd or 1e9) + 1e-9
        for chance, error in (
            (scenario.dies, CLIExitedError("gone")),
            (scenario.is_limited, RateLimitError("slow down")),
            (scenario.is_busy, OverloadedError("busy")),
        ):
            if luck < chance:
                raise error
            luck -= chance
        if luck < scenario.fails:
            return answer("", cost=cost, tokens=TOKENS, error=MaxTurnsError("long"))
        return self.answer(cost)

    def ended(self, run: Run) -> None:
        seen = self.seen
        seen.ends[int(run.key)] += 1
        seen.most_failures = max(seen.most_failures, run.failures)

    async def work(self, journal: SharedJournal) -> None:
        """One worker, until all is done or it is killed."""
        scenario = self.scenario
        rate = Rate(requests_per_minute=scenario.requests_per_minute)
        limiter = RateLimiter(Rate(), rate)
        owner = SimulatedScheduler(
            journal,
            self,
            FleetSettings(scenario.slots, RETRY, "resume", keep_messages=False),
            Budget(validate_limits(scenario.concurrency, scenario.budget_usd, scenario.run_budget_usd)),
            limiter,
            CircuitBreaker(3),
            RunSubscribers(1, lambda: None),
            RunOptionsPolicy(),
            Agent(),
            FleetObservers(),
        )
        owner.simulation = self
        owner.now = self.clock.now  # processes of one time of the day
        with anyio.CancelScope() as scope:
            await owner.open()
            self.schedulers[journal.worker] = owner, limiter, scope, journal
            await owner.work()
        self.schedulers.pop(journal.worker, None)
        await journal.close()

    @property
    def is_done(self) -> bool:
        return self.put_in == self.scenario.runs and not self.shared.runs

    # What happens to it.

    async def feed(self) -> None:
        """A million runs are not put in at once."""
        scenario, shared = self.scenario, self.shared
        while self.put_in < scenario.runs:
            if shared.left["queued"] < RUNS_IN_ADVANCE:
                count = min(RUNS_IN_ADVANCE, scenario.runs - self.put_in)
                shared.add([self._item(n) for n in range(self.put_in, self.put_in + count)])
                self.put_in += count
            await anyio.sleep(LOOK_SECONDS)

    def _item(self, number: int) -> Run:
        key = str(number)
        return Run(key=key, prompt="go", priority=int(3 * self.luck(key, 0, PRIORITY)), created=self.clock.now())

    async def kill(self, group: anyio.abc.TaskGroup) -> None:
        """Workers die as with kill -9, one after the other over all the time, and others come."""
        scenario = self.scenario
        whole = scenario.runs * scenario.seconds / (scenario.workers * scenario.slots)
        for number in range(scenario.deaths):
            await anyio.sleep(0.8 * whole / scenario.deaths)
            if not self.schedulers or self.is_done:
                return
            worker = sorted(self.schedulers)[int(drawn(scenario.seed, number) * len(self.schedulers))]
            _, _, scope, journal = self.schedulers.pop(worker)
            journal.is_dead = True
            scope.cancel()
            group.start_soon(self.work, SharedJournal(self.shared))

    async def look(self) -> None:
        """Whether anybody has nothing to do although there is something, and how much is spent."""
        shared, seen, scenario = self.shared, self.seen, self.scenario
        idle_since: dict[int, float] = {}
        while True:
            await anyio.sleep(LOOK_SECONDS)
            now = self.clock.now()
            shared.due_by(now)
            seen.most_spent = max(seen.most_spent, shared.cost_usd)
            # Else another may have taken it, the room or the money, when a worker looks.
            has_room = scenario.concurrency is None and scenario.budget_usd is None
            if shared.first() is not None:
                seen.busy.append(seen.running / (scenario.workers * scenario.slots))
            there_is = shared.first() is not None and has_room
            for worker, (owner, limiter, _, _) in self.schedulers.items():
                if there_is and len(owner.active) < scenario.slots and not limiter.seconds_until_start(now):
                    seen.idle_seconds = max(seen.idle_seconds, now - idle_since.setdefault(worker, now))
                else:
                    idle_since.pop(worker, None)

    async def go(self) -> Seen:
        began = self.clock.now()
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(self.feed)
            helpers.start_soon(self.look)
            async with anyio.create_task_group() as group:
                helpers.start_soon(self.kill, group)
                for _ in range(self.scenario.workers):
                    group.start_soon(self.work, SharedJournal(self.shared))
                await self._over()
                for owner, *_ in self.schedulers.values():
                    owner.drain()
            helpers.cancel_scope.cancel()
        self.seen.seconds = self.clock.now() - began
        return self.seen

    async def _over(self) -> None:
        await anyio.sleep(LOOK_SECONDS)
        while self.schedulers and not self.is_done:
            await anyio.sleep(LOOK_SECONDS)


def most_in_a_minute(times: list[float]) -> int:
    """The most that any minute has, for times in order."""
    most = first = 0
    for number, moment in enumerate(times):
        while times[first] <= moment - 60:
            first += 1
        most = max(most, number - first + 1)
    return most


async def simulate(scenario: Scenario) -> tuple[Simulation, Seen]:
    """Run it, and check what holds in every world."""
    logging.getLogger("pilothouse.fleet").setLevel(logging.ERROR)  # of every run that was taken over there is a line
    simulation = Simulation(scenario)
    seen, shared = await simulation.go(), simulation.shared
    reported = f"{scenario}"
    assert seen.most_running <= scenario.workers * scenario.slots, reported
    assert seen.most_failures <= RETRY.attempts + 1, reported
    assert seen.most_attempts <= RETRY.attempts + 1 + scenario.deaths, reported
    assert seen.overtaken == 0, reported
    # A worker looks again at the latest with its next sign of life.
    assert seen.idle_seconds <= HEARTBEAT_SECONDS + 2 * LOOK_SECONDS, reported
    assert not shared.owners, reported
    assert set(seen.ends) <= {0, 1}, reported
    return simulation, seen


def in_turn(scenario: Scenario, simulation: Simulation, seen: Seen) -> bool:
    """Whether those of one priority were started in the order in which they came."""
    latest: dict[int, float] = {}
    for number, started in enumerate(seen.first_starts):
        priority = int(3 * simulation.luck(str(number), 0, PRIORITY))
        if started < latest.get(priority, 0.0) - LOOK_SECONDS:  # those of one moment are started in any order
            return False
        latest[priority] = max(started, latest.get(priority, 0.0))
    return True


@pytest.fixture(autouse=True)
def _levels() -> Generator[None]:
    logger = logging.getLogger("pilothouse.fleet")
    level = logger.level
    yield
    logger.setLevel(level)


async def all_end(scenario: Scenario) -> Seen:
    """Failures and deaths: every run ends once, nobody is idle, no run starves."""
    simulation, seen = await simulate(scenario)
    shared, reported = simulation.shared, f"{scenario}"
    assert sum(seen.ends) == sum(shared.ended.values()) == scenario.runs, reported
    assert 0 < shared.ended["failed"] < scenario.runs * (scenario.fails + 0.02), reported
    assert shared.taken_over >= scenario.deaths // 2, reported
    assert in_turn(scenario, simulation, seen), reported
    # A further attempt waits for those of greater priority, and for nothing else.
    assert shared.latest[max(shared.latest)] <= HEARTBEAT_SECONDS + 2 * LOOK_SECONDS, reported
    busy = sum(seen.busy) / len(seen.busy)
    least = 0.97 if scenario.runs >= 10_000 else 0.9  # of few runs, the first and the last weigh more
    assert busy > least, f"{busy} of {reported}"
    return seen


async def all_limited(scenario: Scenario) -> Seen:
    """The same with limits for all workers together."""
    assert scenario.requests_per_minute is not None
    _, seen = await simulate(scenario)
    reported = f"{scenario}"
    assert sum(seen.ends) == scenario.runs, reported
    assert seen.most_leased <= (scenario.concurrency or scenario.runs), reported
    # Each worker may hold one start ahead. How many workers there are is known with the first signs of life.
    steady = [moment for moment in seen.starts if moment > seen.starts[0] + 2 * HEARTBEAT_SECONDS]
    assert most_in_a_minute(steady) <= scenario.requests_per_minute * (1 + 1 / 60) + scenario.workers, reported
    # And what is allowed is used, as long as there is enough to do.
    most = steady[: len(steady) * 9 // 10]
    assert len(most) / (most[-1] - most[0]) * 60 > 0.93 * scenario.requests_per_minute, reported
    return seen


async def all_within_a_budget(scenario: Scenario) -> Seen:
    """Nothing is passed, and what is there is used."""
    assert scenario.budget_usd is not None
    simulation, seen = await simulate(scenario)
    reported = f"{scenario}"
    assert seen.most_spent <= scenario.budget_usd + 1e-6, reported
    assert simulation.shared.cost_usd == pytest.approx(scenario.budget_usd, abs=1e-6), reported
    assert seen.over_its_limit == 0, reported
    assert sum(seen.ends) < scenario.runs, reported
    return seen


@pytest.mark.matrix
async def test_ten_thousand_runs_on_a_hundred_workers(anyio_backend_name: str) -> None:
    runs = 10_000 if anyio_backend_name == "asyncio" else 2_000  # once is enough
    await all_end(Scenario(workers=100, slots=1, runs=runs, seconds=3, deaths=runs // 800))


async def test_limits_of_a_hundred_workers() -> None:
    await all_limited(Scenario(workers=100, slots=2, runs=2_000, requests_per_minute=1_000, concurrency=190, deaths=2))


async def test_the_budget_of_a_hundred_workers() -> None:
    await all_within_a_budget(Scenario(workers=100, slots=2, runs=2_000, budget_usd=30, run_budget_usd=0.04))


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # it takes minutes
async def test_a_million_runs_on_a_thousand_workers() -> None:
    await all_end(Scenario(workers=100, slots=10, runs=1_000_000, seconds=3, deaths=200))


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_limits_of_a_thousand_workers() -> None:
    await all_limited(
        Scenario(workers=1_000, slots=2, runs=30_000, requests_per_minute=6_000, concurrency=1_500, deaths=20)
    )
