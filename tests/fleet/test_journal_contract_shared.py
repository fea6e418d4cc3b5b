"""The contract of a journal that several workers share: SQLite for the processes of a machine, PostgreSQL for many."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from scripted_runners import answer

from pilothouse.errors import OverloadedError
from pilothouse.fleet import Limits, Run
from pilothouse.fleet.journals.sql import SqlJournal, live_workers
from pilothouse.fleet.journals.transactions import SqlTransaction
from pilothouse.fleet.limits import OnInterrupted
from pilothouse.transports.concurrency import run_blocking

pytestmark = pytest.mark.anyio
Join = Callable[..., Awaitable[SqlJournal]]
LIMIT_S = 60.0


@pytest.fixture
async def join(make_shared: Callable[..., SqlJournal]) -> AsyncGenerator[Join]:
    """One more worker, as if in a process of its own."""
    async with AsyncExitStack() as stack:

        async def one_more(
            now: float = 0.0, policy: OnInterrupted = "resume", *, starts_runs: bool = True, **more: Any
        ) -> SqlJournal:
            journal = make_shared(**more)
            await journal.open(now, policy, starts_runs=starts_runs)
            stack.push_async_callback(journal.close)
            return journal

        yield one_more


def run(key: object, **more: Any) -> Run:
    return Run(key=str(key), prompt=f"prompt {key}", created=1.0, **more)


def done(one: Run) -> Run:
    return replace(one, state="succeeded", result=answer(one.key), ended=9.0, cost_usd=0.25)


async def sql(journal: SqlJournal, statement: str) -> None:
    await journal.transact(lambda db: db.execute(statement))


def make_foreign(journal: SqlJournal) -> None:
    """As if its process were of another machine, of which nothing is known but its signs of life."""
    live_workers.discard(journal._id)
    journal._process = journal._process._replace(pid_namespace="another")


async def silence(journal: SqlJournal, seconds: float) -> None:
    """Let a worker have been silent for so long, and be of another machine."""
    make_foreign(journal)
    await sql(
        journal, f"UPDATE worker SET seen = seen - {seconds}, lease = 0, space = 'another' WHERE id = '{journal._id}'"
    )


async def test_all_is_there_again(make_shared: Callable[..., SqlJournal]) -> None:
    journal = make_shared()
    await journal.open(0.0, "resume")
    blocks = [{"type": "text", "text": "ahoy \U0001f600 \x00"}]
    await journal.add([Run(key="a", prompt=blocks, settings={"model": "opus"}, created=1.0), run("b"), run("ü" * 512)])
    one, two = await journal.lease(2, 3.0)
    paths = ("file:///a", "file:///b")
    result = answer("yes \x00", cost=0.25)
    await journal.release(
        replace(
            one, state="succeeded", result=result, ended=4.0, cost_usd=0.25, input_tokens=7, session_id="s",
            artifacts=paths,
        )
    )  # fmt: skip
    error = OverloadedError("no", api_error_status=529)
    await journal.release(replace(two, state="failed", error=error, failures=4, ended=5.0))
    await journal.close()

    again = make_shared()
    await again.open_for_reading()
    a, b, c = await again.rows(None, 0, 9)
    assert a.result is not None
    assert (a.prompt, a.settings, a.text, a.result.cost_usd, a.session_id) == (
        blocks, {"model": "opus"}, "yes \x00", 0.25, "s",
    )  # fmt: skip
    assert (a.cost_usd, a.input_tokens, a.created, a.started, a.ended, a.attempts) == (0.25, 7, 1.0, 3.0, 4.0, 1)
    assert a.artifacts == paths
    assert isinstance(b.error, OverloadedError)
    assert (str(b.error), b.error.api_error_status, b.failures) == ("no", 529, 4)
    assert (c.key, c.state) == ("ü" * 512, "queued")
    assert [one.key for one in await again.rows("failed", 0, 9)] == ["b"]
    status = await again.status()
    assert (status.succeeded, status.failed, status.queued, status.cost_usd, status.input_tokens) == (1, 1, 1, 0.25, 7)
    await again.close()


async def test_each_run_is_given_to_one_worker(join: Join) -> None:
    workers = [await join() for _ in range(4)]
    await workers[0].add([run(n) for n in range(40)])
    given: list[Run] = []

    async def take(worker: SqlJournal) -> None:
        while some := await worker.lease(3, 0.0):
            given.extend(some)

    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(take, worker)
    # Who finds all the rest taken by another's transaction has none, and asks again later.
    while some := await workers[0].lease(9, 0.0):
        given.extend(some)
    assert sorted(int(one.key) for one in given) == list(range(40))


async def test_a_key_that_two_add_at_once_is_one_run(join: Join) -> None:
    workers = [await join() for _ in range(3)]
    found: list[list[int]] = []

    async def add(worker: SqlJournal) -> None:
        found.append([one.number for one in await worker.add([run(n) for n in range(20)])])

    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(add, worker)
    assert found == [list(range(1, 21))] * 3


async def test_the_runs_of_a_silent_worker_are_taken_over(join: Join) -> None:
    silent = await join()
    await silent.add([run("a"), run("b")])
    first = await silent.lease(1, 0.0)
    await silence(silent, 100)
    heir = await join(now=1.0)
    await heir.requeue()
    again = await heir.lease(9, 2.0)
    assert [(one.key, one.attempts) for one in again] == [("b", 1)]  # of what may kill it, the last one takes nothing
    assert await heir.lease(9, 2.0) == []
    assert await heir.release(done(again[0]))
    again = await heir.lease(9, 2.0)
    assert [(one.key, one.attempts, one.deaths) for one in again] == [("a", 2, 1)]
    assert not await silent.release(done(first[0]))  # it wakes up too late
    beat = await silent.heartbeat(3.0, "resume")
    assert (beat.is_lost, beat.live_workers) == (True, 2)
    assert not (await silent.heartbeat(3.0, "resume")).is_lost
    assert all([await heir.release(done(one)) for one in again])
    ended, _ = await silent.list_ended_since(0)
    assert [(one.key, one.text) for one in ended] == [("b", "b"), ("a", "a")]


async def test_what_was_given_to_a_buried_worker_is_given_again(join: Join) -> None:
    silent, heir = await join(), await join()
    await silent.add([run("a")])
    await silence(silent, 100)
    assert (await heir.heartbeat(0.0, "resume")).live_workers == 1
    [late] = await silent.lease(1, 0.0)  # it does not know yet
    assert (await silent.heartbeat(0.0, "resume")).is_lost
    [again] = await silent.lease(1, 0.0)
    assert (late.attempts, again.attempts) == (1, 2)
    assert not await silent.release(done(late))
    assert await silent.release(done(again))


async def test_a_worker_whose_process_is_gone_is_dead_at_once(join: Join) -> None:
    gone, heir = await join(), await join()
    await gone.add([run("a")])
    assert await gone.lease(1, 0.0)
    assert (await heir.heartbeat(0.0, "resume")).live_workers == 2
    live_workers.discard(gone._id)  # no more a worker of this process
    assert (await heir.heartbeat(0.0, "resume")).live_workers == 1
    assert [one.attempts for one in await heir.lease(1, 0.0)] == [2]


async def test_a_process_that_was_suspended_takes_no_other_for_dead(join: Join) -> None:
    here, there = await join(), await join()
    await there.add([run("a")])
    await there.lease(1, 0.0)
    await silence(there, 100)
    await sql(here, f"UPDATE worker SET seen = seen - 100 WHERE id = '{here._id}'")  # the database was, for both
    assert (await here.heartbeat(0.0, "resume")).live_workers == 2
    assert not (await there.heartbeat(0.0, "resume")).is_lost
    await silence(there, 100)
    here._expiry_counts_from -= 100  # later
    assert (await here.heartbeat(0.0, "resume")).live_workers == 1


@pytest.mark.parametrize("policy", ["resume", "restart", "fail"])
async def test_what_a_worker_leaves_goes_on_as_the_policy_says(join: Join, policy: OnInterrupted) -> None:
    leaving, staying = await join(), await join()
    await leaving.add([run("a")])
    [first] = await leaving.lease(1, 0.0)
    await leaving.save_session_id(replace(first, session_id="s"))
    await leaving.close()
    await staying.heartbeat(5.0, policy)
    if policy == "fail":
        [[ended], mark] = await staying.list_ended_since(0)
        assert (ended.state, ended.ended, mark) == ("failed", 5.0, 1)
    else:
        [again] = await staying.lease(1, 5.0)
        assert again.session_id == ("s" if policy == "resume" else None)


async def test_a_run_that_was_cancelled_while_it_ran_never_starts_again(join: Join) -> None:
    """Its attempt fails and is to be retried, or its worker leaves, before the worker hears of the cancellation."""
    here, there = await join(), await join()
    await here.add([run("a"), run("b")])
    a, _ = await here.lease(2, 1.0)
    assert not await there.cancel(["a", "b"], 1.0)
    assert await here.release(replace(a, state="queued", failures=1, due=2.0))
    await here.close()
    await there.heartbeat(3.0, "resume")
    await there.requeue()
    assert not await there.lease(2, 9.0)
    ended, _ = await there.list_ended_since(0)
    assert [(one.key, one.state, one.ended) for one in ended] == [("a", "cancelled", 3.0), ("b", "cancelled", 3.0)]
    assert (await there.status()).cancelled == 2


async def test_a_run_of_another_worker_is_cancelled(join: Join) -> None:
    here, there = await join(), await join()
    await here.add([run("a"), run("b"), run("c")])
    [a] = await here.lease(1, 0.0)
    mark = (await here.list_ended_since(0))[1]
    assert [one.key for one in await there.cancel(["a", "b"], 1.0)] == ["b"]
    assert (await here.heartbeat(1.0, "resume")).cancelled == {"a"}
    assert (await there.heartbeat(1.0, "resume")).cancelled == set()
    assert await here.release(replace(a, state="cancelled", ended=2.0))
    assert (await here.heartbeat(1.0, "resume")).cancelled == set()
    assert [one.key for one in (await here.list_ended_since(mark))[0]] == ["b"]
    assert [one.key for one in (await there.list_ended_since(mark))[0]] == ["a"]
    assert [one.key for one in await there.cancel(None, 1.0)] == ["c"]


async def test_a_reader_of_foreign_results_misses_none(join: Join) -> None:
    workers = [await join() for _ in range(3)]
    reader = await join()
    await reader.add([run(n) for n in range(60)])
    seen: Counter[str] = Counter()
    marks: list[int] = []
    mark = 0
    working = len(workers)

    async def work(worker: SqlJournal) -> None:
        nonlocal working
        while some := await worker.lease(2, 0.0):
            async with anyio.create_task_group() as group:
                for one in some:
                    group.start_soon(worker.release, done(one))
        working -= 1

    async def read() -> None:
        nonlocal mark
        ended, mark = await reader.list_ended_since(mark)
        seen.update(one.key for one in ended)
        marks.append(mark)

    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(work, worker)
        while working:
            await read()
    left = await reader.lease(60, 0.0)  # what was locked by another when the workers looked last
    assert all([await reader.release(done(one)) for one in left])
    await read()
    assert sorted(seen.elements(), key=int) == [str(n) for n in range(60) if str(n) not in {one.key for one in left}]
    assert marks == sorted(marks)
    assert marks[-1] == 60
    assert (await reader.status()).cost_usd == 15.0


async def test_what_runs_in_all_workers_keeps_to_the_limit(join: Join) -> None:
    workers = [await join() for _ in range(4)]
    await workers[0].add([run(n) for n in range(30)])
    limits = Limits(concurrency=5)
    held: list[tuple[SqlJournal, Run]] = []

    async def take(worker: SqlJournal) -> None:
        for _ in range(3):
            held.extend((worker, one) for one in await worker.lease(2, 0.0, limits))

    async def all_take() -> None:
        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(take, worker)

    await all_take()
    assert len(held) == 5
    for worker, one in held[:2]:
        await worker.release(done(one))
    del held[:2]
    await all_take()
    assert len(held) == 5
    assert (await workers[0].status()).running == 5


async def test_what_all_workers_may_spend_keeps_to_the_budget(join: Join) -> None:
    workers = [await join() for _ in range(4)]
    await workers[0].add([run(n) for n in range(30)])
    limits = Limits(budget_usd=3.5, run_budget_usd=1.0)
    spent = 0.0

    async def work(worker: SqlJournal) -> None:
        nonlocal spent
        for _ in range(3):
            for one in await worker.lease(2, 0.0, limits):
                assert one.limit_usd is not None
                cost = one.limit_usd * (0.5 if int(one.key) % 2 else 1.0)
                spent += cost
                await worker.release(replace(done(one), cost_usd=cost))

    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(work, worker)
    while some := await workers[0].lease(1, 0.0, limits):
        spent += some[0].limit_usd or 0.0
        await workers[0].release(replace(done(some[0]), cost_usd=some[0].limit_usd or 0.0))
    assert spent == pytest.approx(3.5)
    assert (await workers[1].heartbeat(0.0, "resume")).cost_usd == pytest.approx(3.5)


async def test_what_a_killed_attempt_may_have_cost_counts_against_the_budget(join: Join) -> None:
    heir = await join()
    await heir.add([run("a")])
    limits = Limits(budget_usd=2.5, run_budget_usd=1.0, concurrency=1)
    for expected in (1.0, 1.0):
        gone = await join()
        assert [one.limit_usd for one in await gone.lease(1, 0.0, limits)] == [expected]
        assert await heir.lease(1, 0.0, limits) == []
        live_workers.discard(gone._id)
        await heir.heartbeat(0.0, "resume")
        await (await join()).heartbeat(0.0, "resume")  # so that the next is not the last one
        await heir.heartbeat(0.0, "resume")
    status = await heir.status()
    assert (status.cost_usd, status.lost_usd) == (0.0, 2.0)
    assert (await heir.heartbeat(0.0, "resume")).cost_usd == 2.0
    [one] = await heir.lease(1, 0.0, limits)
    assert (one.limit_usd, one.deaths) == (0.5, 2)
    await heir.release(replace(done(one), cost_usd=0.5))
    await heir.add([run("b")])
    assert await heir.lease(1, 0.0, limits) == []


async def test_what_a_worker_had_not_settled_when_it_left_counts_against_the_budget(join: Join) -> None:
    heir, leaver = await join(), await join()
    await heir.add([run("a"), run("b")])
    limits = Limits(budget_usd=2.5, run_budget_usd=1.0)
    first, _ = await leaver.lease(2, 0.0, limits)
    await leaver.release(replace(first, state="interrupted"), lost_usd=0.25)
    await leaver.close()
    assert (await heir.heartbeat(0.0, "resume")).cost_usd == 1.25
    assert (await heir.status()).lost_usd == 1.25


# Who wants what.


async def keys(journal: SqlJournal) -> list[str]:
    return [one.key for one in await journal.lease(99, 0.0)]


async def test_a_new_process_does_not_request_old_runs(join: Join) -> None:
    first = await join()
    await first.add([run("a"), run("b")])
    second = await join()
    await first.close()
    third = await join()
    assert await keys(third) == ["a", "b"]  # the second has been there all the time
    await third.close()
    await second.close()
    last = await join()
    assert await keys(last) == []
    await last.add([run("b")])
    assert await keys(last) == ["b"]
    await last.requeue()
    assert await keys(last) == ["a"]


async def test_what_one_wants_no_more_another_may_want(join: Join) -> None:
    here, there = await join(), await join()
    await here.add([run("a"), run("b"), run("c")])
    await there.add([run("b")])
    await there.add([run("d")])
    await here.park(["a", "b", "d"])
    assert sorted(await keys(here)) == ["b", "c", "d"]


async def test_while_one_wants_everything_all_stays_wanted(join: Join) -> None:
    here, worker = await join(), await join()
    await worker.requeue()
    await here.add([run("a"), run("b"), run("c")])
    await here.park(["a"])
    await here.park(None)
    assert await keys(worker) == ["a", "b", "c"]


async def test_a_stopped_worker_leaves_the_runs_of_others(join: Join) -> None:
    here, there = await join(), await join()
    await here.add([run("a"), run("b"), run("c")])
    await here.park(["a"])
    await there.requeue()
    await there.add([run("d"), run("e")])
    await there.park(None, ["e"])
    assert sorted(await keys(here)) == ["b", "c", "e"]


async def test_a_worker_alone_parks_whatever_others_wanted(join: Join) -> None:
    here, there = await join(), await join()
    await here.add([run("a"), run("b")])
    await there.add([run("a")])
    await there.close()
    await here.park(["a"])
    assert await keys(here) == ["b"]


async def test_a_heartbeat_says_whether_a_run_may_be_due(join: Join) -> None:
    """An idle worker needs no other statement."""
    one = await join()
    assert not (await one.heartbeat(2.0, "resume")).is_due
    await one.add([run("a")])
    assert (await one.heartbeat(2.0, "resume")).is_due
    [leased] = await one.lease(1, 3.0)
    assert not (await one.heartbeat(3.0, "resume")).is_due
    await one.release(replace(leased, state="queued", due=1e10))
    assert not (await one.heartbeat(3.0, "resume")).is_due
    await sql(one, "UPDATE run SET due = 1")
    assert (await one.heartbeat(4.0, "resume")).is_due
    await one.park(None)
    await sql(one, "UPDATE run SET due = 0")
    assert not (await one.heartbeat(4.0, "resume")).is_due
    await one.requeue()
    assert (await one.heartbeat(4.0, "resume")).is_due


async def test_a_run_that_may_kill_the_last_worker_fails_when_all_others_have_ended(join: Join) -> None:
    last, first = await join(), await join()
    await first.add([run("deadly"), run("other")])
    assert [one.key for one in await first.lease(1, 2.0)] == ["deadly"]
    await silence(first, 3600)
    await sql(last, "UPDATE run SET deaths = 1 WHERE key = 'deadly'")
    await last.heartbeat(3.0, "resume")
    deadly = await last.get("deadly")
    assert deadly is not None
    assert (deadly.state, deadly.deaths) == ("queued", 2)
    [other] = await last.lease(2, 4.0)
    assert other.key == "other"
    await last.release(done(other))
    assert await last.lease(1, 5.0) == []
    await last.heartbeat(6.0, "resume")
    deadly = await last.get("deadly")
    assert deadly is not None
    assert (deadly.state, deadly.deaths) == ("failed", 2)
    assert "2 processes died" in str(deadly.error)


async def test_the_last_worker_is_the_last_beside_one_that_starts_no_runs(join: Join) -> None:
    asking = await join(starts_runs=False)
    last, first = await join(), await join()
    await asking.add([run("deadly")])
    await first.lease(1, 2.0)
    await silence(first, 3600)
    await sql(last, "UPDATE run SET deaths = 1")
    await asking.heartbeat(3.0, "resume")  # it may not hide the death from the last worker
    beat = await last.heartbeat(3.0, "resume")
    assert (beat.live_workers, beat.executors) == (2, 1)
    assert await last.lease(1, 4.0) == []
    deadly = await last.get("deadly")
    assert deadly is not None
    assert (deadly.state, deadly.deaths) == ("failed", 2)


async def test_one_that_starts_no_runs_leaves_them_to_workers_that_may_come(join: Join) -> None:
    asking, gone = await join(starts_runs=False), await join()
    await asking.add([run("deadly")])
    await gone.lease(1, 2.0)
    await silence(gone, 3600)
    await sql(asking, "UPDATE run SET deaths = 1")
    for now in (3.0, 4.0):
        beat = await asking.heartbeat(now, "resume")
        assert (beat.live_workers, beat.executors) == (1, 0)
    deadly = await asking.get("deadly")
    assert deadly is not None
    assert (deadly.state, deadly.deaths) == ("queued", 2)


async def test_a_process_is_looked_at_once_however_many_workers_it_has(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand workers would otherwise look at each other a million times at each change."""
    here, *others = [await join() for _ in range(9)]
    for other in others:
        live_workers.discard(other._id)  # as if of another process, which lives
        await sql(here, f"UPDATE worker SET pid = pid + 1 WHERE id = '{other._id}'")
    looked: list[int] = []

    def exists(pid: int) -> bool:
        looked.append(pid)
        return True

    monkeypatch.setattr("pilothouse.fleet.journals.base._exists", exists)
    assert (await here.heartbeat(0.0, "resume")).live_workers == 9
    assert looked == [here._process.pid + 1]


async def test_what_another_worker_has_taken_over_is_not_written_again(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many workers notice a death at the same moment; only the first has to write."""
    gone, here = await join(), await join()
    await silence(gone, 100)
    take_over_dead = here._take_over_dead
    attempts: list[float] = []

    def after_another(db: Any, now: float, policy: OnInterrupted) -> Any:
        db.execute(f"DELETE FROM worker WHERE id = '{gone._id}'")
        attempts.append(now)
        return take_over_dead(db, now, policy)

    def write(*_: object) -> None:
        pytest.fail("runs were read and written")

    monkeypatch.setattr(here, "_take_over_dead", after_another)
    monkeypatch.setattr(here, "_take_over", write)
    assert (await here.heartbeat(0.0, "resume")).live_workers == 1
    assert attempts == [0.0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_caller_that_asyncio_cancels_leaves_its_transaction_alone(join: Join) -> None:
    """Shields do not stop `asyncio.timeout`. The next transaction, on the same connection, waits for the thread."""
    journal = await join()
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def work(db: SqlTransaction) -> None:
        begun.set()
        may_end.wait(LIMIT_S)
        order.append("first")

    first = asyncio.create_task(journal.transact(work))
    await run_blocking(begun.wait)
    first.cancel()
    second = asyncio.create_task(journal.transact(lambda db: order.append("second")))
    await asyncio.wait([second], timeout=0.2)
    may_end.set()
    await second
    assert order == ["first", "second"]
    assert first.cancelled()
