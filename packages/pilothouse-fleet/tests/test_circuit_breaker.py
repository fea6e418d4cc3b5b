"""The circuit breaker: an error that no run can escape stops a fleet, and ends none of its runs."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace
from scripted_runners import Interruptible, PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import (
    ArtifactsError,
    AuthenticationError,
    CLIExitedError,
    CLINotFoundError,
    CLIStartError,
    ExecutionError,
    InvalidModelError,
    MaxTurnsError,
    OverloadedError,
    PilothouseError,
    ProvisionError,
    QuotaError,
    RateLimitError,
    RemoteError,
    UsageError,
    WorkspaceError,
)
from pilothouse_fleet import Attempt, Fleet, Run
from pilothouse_fleet.limits import SYSTEMIC_ERRORS, CircuitBreaker, is_systemic, undo_failure

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

SHARED: dict[str, PilothouseError] = {
    "key": AuthenticationError("wrong key"),
    "quota": QuotaError("used up"),
    "quota that resets": QuotaError("used up", resets_at=9e9),
    "limit that lasts": RateLimitError("five hours", resets_at=9e9),
    "model": InvalidModelError("no such model"),
    "no CLI": CLINotFoundError("there is none"),
    "broken CLI": CLIStartError("it does not start"),
    "no package": ProvisionError("no network"),
    "no host": RemoteError("nobody answers", code="unreachable"),
    "no directories": WorkspaceError("the disk is full"),
    "no place for artefacts": ArtifactsError("there is no such bucket"),
}


def failing(error: Exception, seconds: float = 1.0) -> PlayedRunner:
    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(seconds)
        raise error

    return PlayedRunner(play)


@pytest.mark.parametrize("error", SHARED.values(), ids=SHARED)
async def test_what_no_run_can_escape_stops_the_fleet(error: PilothouseError) -> None:
    runner = failing(error)
    async with Fleet(runner=runner, concurrency=1) as fleet:
        with pytest.raises(type(error), match="3 in a row") as caught:
            await all_of(fleet.map([str(n) for n in range(1000)], key=str))
        assert caught.value.__cause__ is error
        assert str(error) in str(caught.value)
        status = await fleet.status()
        assert (status.queued, status.running, status.failed) == (status.total, 0, 0)
        assert status.stopped_by == f"{type(error).__name__}: {error}"
    assert len(runner.attempts) == 3


async def test_an_answer_with_such_an_error_counts_and_what_it_cost_is_kept() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(1)
        return answer("", error=AuthenticationError("revoked"), cost=0.25)

    async with Fleet(runner=PlayedRunner(play), concurrency=2) as fleet:
        with pytest.raises(AuthenticationError):
            await fleet.gather(list("abcdefgh"))
        status = await fleet.status()
    assert status.failed == 0
    assert status.cost_usd in (0.75, 1.0)  # one more may have been started before the third failed


async def test_present_and_later_waiters_get_the_error() -> None:
    reported: list[str] = []

    async def wait_for(key: str) -> None:
        with pytest.raises(AuthenticationError, match="was stopped"):
            await fleet.wait(key)
        reported.append(key)

    async with Fleet(runner=failing(AuthenticationError("no")), concurrency=4) as fleet:
        async with anyio.create_task_group() as group:
            for key in "abcd":
                await fleet.submit(f"prompt {key}", key=key)
                group.start_soon(wait_for, key)
        with pytest.raises(AuthenticationError):
            await fleet.wait("a")
        with pytest.raises(AuthenticationError):
            await all_of(fleet.map(list("xyz")))
    assert sorted(reported) == ["a", "b", "c", "d"]


async def test_one_run_alone_fails_at_once() -> None:
    runner = failing(AuthenticationError("no"))
    async with Fleet(runner=runner) as fleet:
        started = anyio.current_time()
        [run] = await fleet.gather(["a"])
        assert anyio.current_time() - started < 5
    assert (run.state, str(run.error), run.attempts) == ("failed", "no", 1)


async def test_two_fail_and_that_is_no_row() -> None:
    async with Fleet(runner=failing(AuthenticationError("no"))) as fleet:
        runs = await fleet.gather(list("ab"))
    assert [run.state for run in runs] == ["failed", "failed"]


async def test_one_after_the_other_is_a_row_too() -> None:
    runner = failing(CLINotFoundError("none"))
    async with Fleet(runner=runner) as fleet:
        for prompt in "ab":
            [run] = await fleet.gather([prompt])
            assert run.state == "failed"
        with pytest.raises(CLINotFoundError, match="3 in a row"):
            await fleet.gather(["c"])
        assert (await fleet.status()).queued == 1
    assert len(runner.attempts) == 3


async def test_the_model_of_some_runs_is_theirs() -> None:
    """Many of them, the first ones, and quicker to fail than any other is to succeed."""

    async def play(attempt: Attempt) -> QueryResult:
        if attempt.settings.get("model") == "wrong":
            raise InvalidModelError("no such model")
        await anyio.sleep(100)
        return answer("fine")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=8) as fleet:
        items = list(range(60))
        wrong = {0, 1, 2, 3, 4, 6, 30, 31, 32, 33, 59}
        runs = await fleet.gather(
            items, key=str, prompt=str, options=lambda n: {"model": "wrong" if n in wrong else "opus"}
        )
        assert (await fleet.status()).stopped_by is None
    assert {int(run.key) for run in runs if run.state == "failed"} == wrong
    assert len(runner.attempts) == 60


async def test_nothing_is_started_while_it_is_not_clear() -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if attempt.key in "bcd":
            raise AuthenticationError("no")
        await anyio.sleep(1000 if attempt.key == "a" else 1)
        return answer("fine")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=4) as fleet:
        runs = fleet.map(list("abcdefgh"), key=str)
        first = await anext(runs)  # only the end of "a" shows it
        rest = [first, *await all_of(runs)]
    assert {run.key for run in rest if not run.is_success} == {"b", "c", "d"}
    assert runner.starts[4] - runner.starts[0] >= 1000


@pytest.mark.parametrize(
    "other", [OverloadedError("busy"), CLIExitedError("gone"), MaxTurnsError("long"), ExecutionError("odd")], ids=repr
)
async def test_every_other_end_breaks_the_row(other: PilothouseError) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        raise other if int(attempt.key) % 3 == 2 else AuthenticationError("no")

    async with Fleet(runner=PlayedRunner(play), concurrency=1, retry=None) as fleet:
        runs = await fleet.gather([str(n) for n in range(12)], key=str)
    assert [run.state for run in runs] == ["failed"] * 12


async def test_the_same_run_again_is_one_run() -> None:
    breaker = CircuitBreaker(2)
    run = Run(key="a", prompt="x", state="failed", error=AuthenticationError("no"))
    assert breaker.record_end(run)
    assert breaker.record_end(run)
    assert not breaker.has_reached_limit


async def test_never() -> None:
    runner = failing(AuthenticationError("no"))
    async with Fleet(runner=runner, stop_after=None) as fleet:
        runs = await fleet.gather([str(n) for n in range(50)])
    assert {run.state for run in runs} == {"failed"}
    assert len(runner.attempts) == 50


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_a_number_that_cannot_be(value: object) -> None:
    with pytest.raises(UsageError, match="stop_after"):
        Fleet(runner=PlayedRunner(), stop_after=value)  # pyright: ignore[reportArgumentType]


async def test_what_waits_for_its_next_attempt_goes_back_as_well() -> None:
    """In the middle of a backoff the key is revoked."""

    async def play(attempt: Attempt) -> QueryResult:
        if attempt.key == "0" and runner.tries["0"] == 1:
            raise OverloadedError("busy")
        raise AuthenticationError("revoked")

    runner = PlayedRunner(play)
    async with Fleet(runner=runner, concurrency=1) as fleet:
        with pytest.raises(AuthenticationError):
            await fleet.gather([str(n) for n in range(9)], key=str)
        status = await fleet.status()
    assert (status.failed, status.running, status.left) == (0, 0, 9)
    assert runner.tries["0"] == 1


def refusing_all_but(play: Interruptible) -> PlayedRunner:
    """The run "long" is played, and every other one is refused."""

    async def one(attempt: Attempt) -> QueryResult:
        if attempt.key == "long":
            return await play(attempt)
        raise AuthenticationError("no")

    return PlayedRunner(one)


async def test_a_run_that_is_held_can_be_cancelled_and_interrupted() -> None:
    play = Interruptible()
    async with Fleet(runner=refusing_all_but(play)) as fleet:
        await fleet.submit("x", key="long")
        await play.started.wait()
        for key in "ab":
            await fleet.submit(key, key=key)
        while len(fleet.running) < 3:
            await anyio.sleep(0.1)
        await anyio.sleep(1)
        assert {run.key for run in fleet.running} == {"long", "a", "b"}
        await fleet.cancel("a")
        assert (await fleet.wait("a")).state == "cancelled"
        await fleet.interrupt()
        status = await fleet.status()
    assert (status.running, status.failed, status.cancelled, status.left) == (0, 0, 1, 2)


async def test_a_held_failure_is_reported_within_a_minute() -> None:
    play = Interruptible()
    async with Fleet(runner=refusing_all_but(play)) as fleet:
        await fleet.submit("x", key="long")
        started = anyio.current_time()
        await fleet.submit("a", key="a")
        assert (await fleet.wait("a")).state == "failed"
        assert anyio.current_time() - started < 65
        await fleet.cancel()


def test_the_table() -> None:
    assert all(is_systemic(error) for error in SHARED.values())
    assert not is_systemic(RateLimitError("a moment"))
    assert not any(is_systemic(error) for error in (OverloadedError("x"), CLIExitedError("x"), ExecutionError("x")))
    assert list(SYSTEMIC_ERRORS) == sorted(SYSTEMIC_ERRORS, key=lambda kind: kind.__name__)


def test_a_run_that_is_put_back_waits_as_before() -> None:
    before = Run(key="a", prompt="x", state="running", failures=1, output_tokens=5)
    failed = replace(
        before, state="failed", failures=2, error=AuthenticationError("no"), ended=5.0, session_id="s", output_tokens=9
    )
    again = undo_failure(failed, before)
    assert (again.state, again.failures, again.ended, again.due) == ("queued", 1, None, 0.0)
    assert again.session_id == "s"
    nothing_said = undo_failure(replace(failed, output_tokens=5), before)
    assert nothing_said.session_id is None


async def test_runs_that_are_cancelled_while_they_are_held_stop_nothing() -> None:
    play = Interruptible()

    async def one(attempt: Attempt) -> QueryResult:
        if attempt.key == "long":
            return await play(attempt)
        if attempt.key in "abc":
            raise AuthenticationError("no")
        return answer("fine")

    async with Fleet(runner=PlayedRunner(one), concurrency=4) as fleet:
        await fleet.submit("x", key="long")
        await play.started.wait()
        for key in "abc":
            await fleet.submit(key, key=key)
        await anyio.sleep(1)
        waiting = await fleet.submit("d", key="d")
        await anyio.sleep(100)
        assert (await fleet.status()).queued == 1
        await fleet.cancel("a", "b", "c")
        await fleet.cancel("long")
        assert (await fleet.wait(waiting)).is_success
