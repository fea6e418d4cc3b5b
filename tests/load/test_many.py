"""Many at once: short queries, sessions side by side, and fewer descriptors than they need."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import anyio
import pytest
from anyio import to_thread
from load_measurements import echo, no_leaks_after, usage
from process_checks import few_descriptors

import pilothouse as ph
from pilothouse import sync
from pilothouse_testing import FakeCLI

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

slow = pytest.mark.slow
AT_ONCE = 20


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    with FakeCLI.from_function(echo) as fake:
        yield fake


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=slow)])
@pytest.mark.requirement("G10")
async def test_short_queries_leave_nothing_behind(fake: FakeCLI, count: int) -> None:
    answers: list[str] = []
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def ask(number: int) -> None:
        async with limiter:
            answers.append((await ph.query(f"question {number}", cli=fake.path)).text)

    async with no_leaks_after(fake):
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(ask, number)
        assert sorted(answers) == sorted(f"re: question {number}" for number in range(count))


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [16, pytest.param(200, marks=slow)])
async def test_sessions_side_by_side_keep_apart(fake: FakeCLI, count: int) -> None:
    agent = ph.Agent(cli=fake.path)
    up = [0]
    everybody = anyio.Event()
    pids: set[int | None] = set()
    most = [0]

    async def talk(number: int) -> None:
        async with agent.session() as session:
            assert (await session.query(f"first {number}")).text == f"re: first {number}"
            pids.add(session.pid)
            up[0] += 1
            if up[0] == count:
                most[0] = usage().fds
                everybody.set()
            await everybody.wait()  # all are alive now
            for turn in range(3):
                assert (await session.query(f"{turn} of {number}")).text == f"re: {turn} of {number}"

    async with no_leaks_after(fake):
        before = usage().fds
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(talk, number)
        assert len(pids) == count
        # Three pipes and the watch, which a waiting task holds a second time; and what the loop itself has open.
        assert most[0] - before <= 5 * count + 10


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [16, pytest.param(200, marks=slow)])
@pytest.mark.requirement("G45", "G47")
async def test_sessions_that_are_cancelled_at_once_are_gone_soon(fake: FakeCLI, count: int) -> None:
    agent = ph.Agent(cli=fake.path)
    working = [0]
    everybody = anyio.Event()

    async def talk() -> None:
        async with agent.session() as session:
            async for message in session.query("wait"):
                if isinstance(message, ph.AssistantMessage):
                    working[0] += 1
                    if working[0] == count:
                        everybody.set()

    async with no_leaks_after(fake):
        began = 0.0
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(talk)
            await everybody.wait()
            began = anyio.current_time()
            group.cancel_scope.cancel()
        seconds = anyio.current_time() - began
        print(f"{count} sessions were gone {seconds:.1f} s after they were cancelled")
        assert seconds < 4 + count / 50  # five are the limit for a peer that does not answer


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [8, pytest.param(100, marks=slow)])
async def test_threads_ask_side_by_side(fake: FakeCLI, count: int) -> None:
    answers: list[str] = []

    def ask(number: int) -> None:
        with sync.session(cli=fake.path) as session:
            answers.extend(session.query(f"{turn} of {number}").result().text for turn in range(2))
        answers.append(sync.query(f"alone {number}", cli=fake.path).result().text)

    await to_thread.run_sync(sync.query("starts the loop that stays", cli=fake.path).result)
    async with no_leaks_after(fake):
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(to_thread.run_sync, ask, number)
        wanted = [f"re: {what} {n}" for n in range(count) for what in ("0 of", "1 of", "alone")]
        assert sorted(answers) == sorted(wanted)


@pytest.mark.requirement("G10")
async def test_without_descriptors_new_ones_are_refused_and_old_ones_go_on(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What explains errors is loaded when there is one, and without a descriptor it cannot be.
    monkeypatch.delitem(sys.modules, "pilothouse.transports.child_process", raising=False)
    agent = ph.Agent(cli=fake.path)
    async with no_leaks_after(fake), agent.session() as session, agent.query("wait") as query:
        with few_descriptors(0):
            for _ in range(3):
                with pytest.raises(ph.CLIStartError, match="open files"):
                    await agent.query("one too many")
            assert (await session.query("still here")).text == "re: still here"
            await query.interrupt()
            assert (await query.result()).outcome == "interrupted"
        assert (await agent.query("after")).text == "re: after"
