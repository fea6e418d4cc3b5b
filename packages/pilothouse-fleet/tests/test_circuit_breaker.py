"""The circuit breaker: an error that no run can escape stops a fleet."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace
from scripted_runners import PlayedRunner, all_of, answer

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
    WorkspaceError,
)
from pilothouse_fleet import Attempt, Fleet, Run
from pilothouse_fleet.limits import SYSTEMIC_ERRORS, CircuitBreaker, is_systemic

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
        assert (status.running, status.failed) == (0, 3)
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
    assert status.cost_usd in (0.75, 1.0)  # one more may have been started before the third failed


async def test_present_and_later_waiters_get_the_error() -> None:
    reported: list[str] = []

    async def wait_for(key: str) -> None:
        try:
            await fleet.wait(key)
        except AuthenticationError:
            reported.append(key)

    async with Fleet(runner=failing(AuthenticationError("no")), concurrency=4) as fleet:
        async with anyio.create_task_group() as group:
            for key in "abcd":
                await fleet.submit(f"prompt {key}", key=key)
                group.start_soon(wait_for, key)
        with pytest.raises(AuthenticationError):
            await all_of(fleet.map(list("xyz")))
    assert len(reported) == 2, "two have failed before"


async def test_in_memory_the_one_that_stopped_the_fleet_has_its_error() -> None:
    async with Fleet(runner=failing(AuthenticationError("no")), concurrency=1, stop_after=2) as fleet:
        runs = [await fleet.submit(f"prompt {n}") for n in range(3)]
        await anyio.sleep(60)
        assert (await fleet.wait(runs[0])).state == "failed"
        for run in runs[1:]:
            with pytest.raises(AuthenticationError, match="2 in a row") as caught:
                await fleet.wait(run)
            assert "queued again" not in str(caught.value), "in memory nothing that has ended is kept"


@pytest.mark.parametrize("prompts", ["a", "ab"])
async def test_one_or_two_fail_at_once_and_that_is_no_row(prompts: str) -> None:
    async with Fleet(runner=failing(AuthenticationError("no"))) as fleet:
        started = anyio.current_time()
        runs = await fleet.gather(list(prompts))
        assert anyio.current_time() - started < 5
    assert [(run.state, str(run.error), run.attempts) for run in runs] == [("failed", "no", 1)] * len(prompts)


async def test_one_after_the_other_is_a_row_too() -> None:
    runner = failing(CLINotFoundError("none"))
    async with Fleet(runner=runner) as fleet:
        for prompt in "ab":
            [run] = await fleet.gather([prompt])
            assert run.state == "failed"
        with pytest.raises(CLINotFoundError, match="3 in a row"):
            await fleet.gather(["c"])
    assert len(runner.attempts) == 3


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
    assert not breaker.record_end(run)
    assert not breaker.record_end(run)
    assert breaker.record_end(replace(run, key="b"))


async def test_never() -> None:
    runner = failing(AuthenticationError("no"))
    async with Fleet(runner=runner, stop_after=None) as fleet:
        runs = await fleet.gather([str(n) for n in range(50)])
    assert {run.state for run in runs} == {"failed"}
    assert len(runner.attempts) == 50


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
    assert (status.failed, status.running, status.left) == (3, 0, 6)
    assert runner.tries["0"] == 1


def test_the_table() -> None:
    assert all(is_systemic(error) for error in SHARED.values())
    assert not is_systemic(RateLimitError("a moment"))
    assert not any(is_systemic(error) for error in (OverloadedError("x"), CLIExitedError("x"), ExecutionError("x")))
    assert list(SYSTEMIC_ERRORS) == sorted(SYSTEMIC_ERRORS, key=lambda kind: kind.__name__)
