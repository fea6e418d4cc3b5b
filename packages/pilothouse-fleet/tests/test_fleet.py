"""`Fleet` in memory and with a journal: asking, order, ends, stopping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Struct
from scripted_runners import Interruptible, PlayedRunner, all_of, answer

from pilothouse.client import Agent, QueryResult
from pilothouse.errors import (
    AuthenticationError,
    CLIExitedError,
    Interrupted,
    OverloadedError,
    PilothouseError,
    RateLimitError,
    SessionClosedError,
    SessionLeasedError,
    UsageError,
)
from pilothouse.options import RetryPolicy
from pilothouse_fleet import Attempt, Fleet, Limits, Rate
from pilothouse_fleet.limits import MAX_INTERRUPTIONS
from pilothouse_testing import mock_transport

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


class Ticket(Struct):
    id: int
    prompt: str


async def test_runs_come_as_they_end_and_never_too_many_at_once() -> None:
    seconds = {"a": 3.0, "b": 1.0, "c": 1.5, "d": 1.0}

    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(seconds[str(attempt.prompt)])
        return answer(f"{attempt.prompt}!")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=2) as fleet:
        runs = await all_of(fleet.map(list("abcd"), key=str))
    assert [run.key for run in runs] == ["b", "c", "a", "d"]
    assert [run.text for run in runs] == ["b!", "c!", "a!", "d!"]
    assert runner.most == 2
    assert all(run.is_success and run.attempts == 1 for run in runs)


async def test_gather_keeps_the_order_and_gives_one_key_twice() -> None:
    tickets = [Ticket(3, "x"), Ticket(1, "y"), Ticket(3, "x")]
    async with Fleet(runner=PlayedRunner()) as fleet:
        runs = await fleet.gather(tickets, key="id")
    assert [(run.key, run.text) for run in runs] == [("3", "x!"), ("1", "y!"), ("3", "x!")]


async def test_items_may_be_of_many_kinds() -> None:
    async def later() -> AsyncIterator[str]:
        for text in ("p", "q"):
            await anyio.sleep(1)
            yield text

    async with Fleet(runner=PlayedRunner()) as fleet:
        assert [run.text for run in await fleet.gather(later())] == ["p!", "q!"]
        assert [run.text for run in await fleet.gather(iter(["r"]))] == ["r!"]
        assert [run.text for run in await fleet.gather([{"prompt": "s"}])] == ["s!"]
        assert [run.key for run in await fleet.gather([4], prompt=lambda n: f"number {n}", key=lambda n: n)] == ["4"]
        assert await fleet.gather([]) == []


async def test_endless_items_are_read_a_few_in_advance() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"prompt {taken}"

    async with Fleet(runner=PlayedRunner(), concurrency=2, look_ahead=5) as fleet:
        runs = fleet.map(endless())
        for _ in range(20):
            await anext(runs)
    assert taken <= 26


async def test_a_map_that_was_left_stops_its_items() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "again"

    runner = PlayedRunner()
    async with Fleet(runner=runner, concurrency=2, look_ahead=3) as fleet:
        async for _ in fleet.map(endless()):
            break
        assert [run.text for run in await fleet.gather(["other"])] == ["other!"]
    assert len(runner.attempts) < 12


async def test_a_resume_that_was_left_does_not_stop_others() -> None:
    runner = PlayedRunner()
    async with Fleet(runner=runner, concurrency=2, look_ahead=3) as fleet:
        await fleet.enqueue([f"left {n}" for n in range(100)])
        async for _ in fleet.resume():
            break
        waiting = await fleet.submit("submitted")
        assert [run.text for run in await fleet.gather(["other"])] == ["other!"]
        assert (await fleet.wait(waiting)).is_success
    assert len(runner.attempts) < 15


async def test_submit_and_wait() -> None:
    async with Fleet(runner=PlayedRunner()) as fleet:
        run = await fleet.submit("one", key="a", priority=1)
        assert (run.key, run.state) == ("a", "queued")
        other = await fleet.submit("two")
        assert (await fleet.wait(other)).text == "two!"
        assert (await fleet.wait("a")).text == "one!"
        with pytest.raises(UsageError, match="no run 'a'"):
            await fleet.wait("a")
        left = await fleet.submit("three")
    assert left.state == "queued"


async def test_leaving_the_block_waits_for_what_was_submitted() -> None:
    runner = PlayedRunner(seconds=60)
    async with Fleet(runner=runner) as fleet:
        for n in range(20):
            await fleet.submit(str(n))
    assert len(runner.attempts) == 20


async def test_an_error_in_the_block_stops_what_runs() -> None:
    play = Interruptible()
    runner = PlayedRunner(play)

    async def fails() -> None:
        async with Fleet(runner=runner) as fleet:
            await fleet.submit("x")
            await play.started.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert runner.now == 0


async def test_an_idle_fleet_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    async with Fleet(runner=PlayedRunner()) as fleet:
        lease = fleet._journal.lease

        async def counted(count: int, now: float, limits: Limits) -> list[Any]:
            nonlocal looks
            looks += 1
            return await lease(count, now, limits)

        monkeypatch.setattr(fleet._journal, "lease", counted)
        await fleet.gather(["a"])
        await anyio.sleep(1000)
    assert looks < 10


async def test_options_of_a_run() -> None:
    runner = PlayedRunner()
    async with Fleet(runner=runner) as fleet:
        await fleet.gather(["a"], options={"model": "opus", "cwd": "/", "timeout": 5})
        await fleet.gather(["b"], options=lambda item: {"model": item})
    assert [dict(one.settings) for one in runner.attempts] == [
        {"model": "opus", "cwd": "/", "timeout": 5}, {"model": "b"},
    ]  # fmt: skip


async def test_an_agent_does_the_work_and_types_its_output() -> None:
    class Colour(Struct):
        name: str

    agent = Agent(transport=mock_transport('{"name": "red"}'))
    async with Fleet(agent) as fleet:
        [run] = await fleet.gather(["a colour"], output_type=Colour)
    assert run.result is not None
    assert run.result.output == Colour("red")
    assert run.session_id
    assert (run.cost_usd, run.input_tokens > 0) == (run.result.cost_usd, True)
    with pytest.raises(UsageError):
        _ = run.result.messages


async def test_all_messages_can_be_kept() -> None:
    async with Fleet(Agent(transport=mock_transport("hi")), keep_messages=True) as fleet:
        [run] = await fleet.gather(["a"])
    assert run.result is not None
    assert run.result.full_text == "hi"


PASSING: dict[str, PilothouseError] = {
    "overloaded": OverloadedError("busy"),
    "rate limit": RateLimitError("slow down"),
    "a dead child": CLIExitedError("gone"),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("is_raised", [True, False])
async def test_failures_that_pass_are_tried_again(error: PilothouseError, is_raised: bool) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if runner.tries[attempt.key] < 3:
            if is_raised:
                raise error
            return answer("", error=error, cost=0.5)
        return answer("at last", cost=0.25)

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=RetryPolicy(first_delay=10, jitter=0)) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.text, run.attempts, run.failures, run.error) == ("at last", 3, 2, None)
    assert run.cost_usd == (0.25 if is_raised else 1.25)
    first, second, third = runner.starts
    assert second - first == pytest.approx(10, abs=1)
    assert third - second == pytest.approx(20, abs=1)


async def test_what_becomes_due_between_two_questions_to_the_journal_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if runner.tries[attempt.key] == 1:
            raise OverloadedError("busy")
        return answer("done")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=RetryPolicy(first_delay=0.5, jitter=0)) as fleet:
        next_due = fleet._journal.next_due

        async def slowly() -> float | None:
            await anyio.sleep(1)
            return await next_due()

        monkeypatch.setattr(fleet._journal, "next_due", slowly)
        [run] = await fleet.gather(["a"])
    assert (run.text, run.attempts) == ("done", 2)
    first, second = runner.starts
    assert second - first == pytest.approx(1, abs=0.5)


async def test_a_slot_is_free_while_a_run_waits_for_its_next_attempt() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if runner.tries[attempt.key] == 1 and attempt.prompt == "a":
            raise OverloadedError("busy")
        return answer("done")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=1) as fleet:
        runs = await all_of(fleet.map(list("ab"), key=str))
    assert [run.key for run in runs] == ["b", "a"]


@pytest.mark.parametrize("error", [AuthenticationError("no key"), UsageError("bad"), ValueError("odd")], ids=str)
async def test_failures_that_do_not_pass_are_not_tried_again(error: Exception) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        raise error

    runner = PlayedRunner(play)
    async with Fleet(runner=runner) as fleet:
        [run] = await fleet.gather(["a"])
        status = await fleet.status()
    assert (run.state, run.error, len(runner.attempts)) == ("failed", error, 1)
    assert (status.failed, status.ended, status.left) == (1, 1, 0)
    with pytest.raises(type(error)):
        run.raise_for_error()


async def test_attempts_come_to_an_end() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        raise OverloadedError("busy")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=2) as fleet:
        [run] = await fleet.gather(["a"])
    assert (run.state, run.attempts) == ("failed", 3)


async def test_cancel(tmp_path: Path) -> None:
    play = Interruptible()
    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=1) as fleet:
        for name in ("a", "b", "c"):
            await fleet.submit(name, key=name)
        await play.started.wait()
        assert [run.key for run in fleet.running] == ["a"]
        await fleet.cancel("b")
        assert (await fleet.wait("b")).state == "cancelled"
        await fleet.cancel()
        assert [(await fleet.wait(key)).state for key in ("a", "c")] == ["cancelled"] * 2
    assert runner.keys == ["a"]


async def test_interrupt_ends_active_runs_and_informs_readers() -> None:
    play = Interruptible()
    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=2) as fleet:
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await play.started.wait()
                await fleet.interrupt()

            group.start_soon(stop)
            with pytest.raises(Interrupted, match="4 runs are left"):
                await all_of(fleet.map(list("abcd")))
        with pytest.raises(Interrupted):
            await all_of(fleet.map(list("x")))
    assert len(runner.attempts) == 2


async def test_an_attempt_that_does_not_end_in_order_is_cancelled() -> None:
    started = anyio.Event()

    async def play(attempt: Attempt) -> QueryResult:
        async def interrupt() -> None:
            await anyio.sleep_forever()

        attempt.interrupt = interrupt
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with Fleet(runner=PlayedRunner(play)) as fleet:
        await fleet.submit("a")
        await started.wait()
        before = anyio.current_time()
        await fleet.interrupt()
        assert anyio.current_time() - before < 10
        assert fleet.running == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"look_ahead": -1}, "look_ahead"),
        ({"budget_usd": 0}, "budget_usd must be a number of US dollars above 0"),
        ({"budget_usd": float("nan")}, "budget_usd"),
        ({"run_budget_usd": -1}, "run_budget_usd"),
        ({"rate": Rate(requests_per_minute=0)}, "requests_per_minute"),
        ({"rate": 7}, "Rate"),
        ({"retry": "often"}, "retry"),
        *(({"stop_after": wrong}, "stop_after") for wrong in (0, -1, 1.5, "3", True)),
        ({"on_interrupted": "cry"}, "'resume', 'restart', 'fail'"),
        ({"journal": "postgresql://host/db"}, "there is none for postgresql://"),
        ({"journal": 7}, "expected a path"),
        ({"agent": "opus"}, "expected an Agent"),
        ({"runner": 7}, "the method of a Runner"),
        ({"runner": PlayedRunner(), "agent": Agent()}, "instead of an agent"),
    ],
)  # fmt: skip
async def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Fleet(**settings)


@pytest.mark.parametrize(
    ("items", "given", "words"),
    [
        ([""], {}, "not empty"),
        ([7], {}, "an item of a fleet is a prompt"),
        ([{"text": "x"}], {"prompt": "words"}, "no 'words'"),
        (["x"], {"key": lambda _: ""}, "the key of a run"),
        (["x"], {"options": {"colour": "red"}}, "colour"),
        (["x"], {"options": lambda _: {"max_turns": "many"}}, "max_turns"),
        (["x"], {"priority": "high"}, "priority"),
        ([{"prompt": "x", "id": 1}, {"prompt": "y", "id": 1}], {"key": "id"}, "key '1' is there already"),
    ],
)  # fmt: skip
async def test_items_that_cannot_be(items: list[Any], given: dict[str, Any], words: str) -> None:
    async with Fleet(runner=PlayedRunner()) as fleet:
        with pytest.raises(UsageError, match=words):
            await all_of(fleet.map(items, **given))


async def test_what_was_given_before_a_bad_item_goes_on() -> None:
    async def items() -> AsyncIterator[str]:
        yield "a"
        yield ""

    runner = PlayedRunner()
    async with Fleet(runner=runner) as fleet:
        runs = fleet.map(items())
        with pytest.raises(UsageError):
            await anext(runs)
        assert (await fleet.status()).left == 1
    assert runner.keys == ["1"]


async def test_a_fleet_works_in_its_block_only() -> None:
    fleet = Fleet(runner=PlayedRunner())
    with pytest.raises(SessionClosedError):
        await fleet.submit("x")
    async with fleet:
        pass
    with pytest.raises(SessionClosedError):
        await all_of(fleet.map(list("x")))
    with pytest.raises(SessionClosedError):
        async with fleet:
            pass


async def test_pace_and_eta() -> None:
    async with Fleet(runner=PlayedRunner(seconds=6), concurrency=1) as fleet:
        runs = fleet.map([str(n) for n in range(21)])
        for _ in range(3):
            await anext(runs)
        assert (await fleet.status()).runs_per_minute == 0, "a few have none"
        for _ in range(8):
            await anext(runs)
        status = await fleet.status()
        assert status.runs_per_minute == pytest.approx(10, rel=0.1)
        assert status.eta_seconds == pytest.approx(60, rel=0.1)


async def test_the_rest_of_a_lease_is_waited_for() -> None:
    """The process that died holds the session for a while. That is no failure, even without retries."""

    async def play(attempt: Attempt) -> QueryResult:
        if len(runner.attempts) < 3:
            raise SessionLeasedError("another client uses it", seconds_left=14.0)
        return answer("done")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=0) as fleet:
        [run] = await fleet.gather(["go"])
    assert (run.state, run.attempts, run.failures) == ("succeeded", 3, 0)
    assert [round(later - earlier) for earlier, later in pairwise(runner.starts)] == [14, 14]


async def test_a_session_that_stays_leased_fails_the_run_at_last() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        raise SessionLeasedError("another client uses it", seconds_left=14.0)

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, retry=0) as fleet:
        [run] = await fleet.gather(["go"])
    assert run.state == "failed"
    assert isinstance(run.error, SessionLeasedError)
    assert len(runner.attempts) == MAX_INTERRUPTIONS + 1


async def test_gather_reports_each_run_that_ends() -> None:
    seen: list[tuple[str, int, int | None]] = []
    async with Fleet(runner=PlayedRunner(), concurrency=2) as fleet:
        report = lambda run, done, total: seen.append((run.key, done, total))  # noqa: E731
        await fleet.gather(["a", "b", "c"], key=str, progress=report)
        await fleet.gather(iter("d"), key=str, progress=report)
    assert [counts for _, *counts in seen] == [[1, 3], [2, 3], [3, 3], [1, None]]
    assert {key for key, *_ in seen} == set("abcd")


async def test_gather_shows_its_progress_in_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Fleet(runner=PlayedRunner()) as fleet:
        await fleet.gather(["a", "b"], progress=True)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        await fleet.gather(["a", "b"], progress=True)
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert last.startswith("\x1b[K2 of 2 runs, $0.")
    assert last.endswith(" s\n")
