"""What other processes have ended is told to those who wait for it, all of it, and read by nobody else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import anyio
import pytest
from scripted_runners import PlayedRunner, all_of
from shared_memory_journal import SharedJournal, SharedRuns

from pilothouse.fleet import Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def test_more_ends_than_a_journal_gives_at_a_time() -> None:
    """Others may end a thousand runs between two signs of life."""
    shared = SharedRuns()
    keys = [str(n) for n in range(1_000)]
    worker = Fleet(runner=PlayedRunner(seconds=0.0), concurrency=50, journal=SharedJournal(shared))
    received: list[str] = []
    async with worker, Fleet(concurrency=0, journal=SharedJournal(shared)) as asking:
        await asking.enqueue(keys, key=str)
        waiting = asking.resume()

        async def listen() -> None:
            received.extend([run.key async for run in waiting])

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await all_of(worker.work(until_empty=True))
    assert sorted(received, key=int) == keys


async def test_a_worker_reads_no_answers_of_others() -> None:
    shared = SharedRuns()
    first, second = SharedJournal(shared), SharedJournal(shared)
    paces: list[float] = []
    async with Fleet(runner=PlayedRunner(), concurrency=4, journal=first) as one:
        await one.enqueue([str(n) for n in range(400)], key=str)
        async with Fleet(runner=PlayedRunner(), concurrency=4, journal=second) as two:

            async def work(fleet: Fleet) -> None:
                async for _ in fleet.work(until_empty=True):
                    paces.append((await fleet.status()).runs_per_minute)

            async with anyio.create_task_group() as group:
                group.start_soon(work, one)
                group.start_soon(work, two)
    assert shared.ended["succeeded"] == 400
    assert shared.calls["ended_after"] <= 6  # at the end, to tell that there is no more
    assert max(paces[100:]) > 350  # both of them, 240 a minute each


async def test_a_fleet_that_was_taken_for_dead_requests_again_what_its_readers_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may have begun anew meanwhile, and nobody else wants its runs."""
    shared = SharedRuns()
    journal, requests = SharedJournal(shared), list[Any]()

    async def requeue(*, failed: bool = False, keys: Collection[str] | None = None) -> None:
        requests.append(keys)

    monkeypatch.setattr(journal, "requeue", requeue)
    async with Fleet(concurrency=0, journal=journal) as asking, anyio.create_task_group() as group:
        await asking.enqueue(["a", "b"], key=str)
        group.start_soon(asking.wait, "b")
        await anyio.sleep(60)
        assert requests == []
        del shared.seen[journal.worker]
        await anyio.sleep(60)
        assert requests == [["b"]]
        group.cancel_scope.cancel()


async def test_a_later_waiter_gets_later_ends() -> None:
    """A key is asked for after a long time in which nobody listened."""
    shared = SharedRuns()
    worker = Fleet(runner=PlayedRunner(seconds=3.0), concurrency=2, journal=SharedJournal(shared))
    async with worker, Fleet(concurrency=0, journal=SharedJournal(shared)) as asking:
        await asking.enqueue([str(n) for n in range(100)], key=str)
        async with anyio.create_task_group() as group:
            group.start_soon(all_of, worker.work(until_empty=True))
            await anyio.sleep(60)
            assert shared.calls["ended_after"] == 0
            assert (await asking.wait("70")).is_success
            assert shared.calls["ended_after"] > 0
