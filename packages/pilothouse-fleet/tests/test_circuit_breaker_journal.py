"""What the circuit breaker puts back stands in the journal, for a later program."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import anyio
import pytest
from scripted_runners import PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import AuthenticationError, ExecutionError
from pilothouse_cli import main
from pilothouse_fleet import Attempt, Fleet, SqliteJournal
from pilothouse_testing import FakeCLI


def failing() -> PlayedRunner:
    async def play(attempt: Attempt) -> QueryResult:
        await anyio.sleep(0)
        raise AuthenticationError("wrong key", api_error_status=401)

    return PlayedRunner(play)


@pytest.mark.anyio
async def test_when_it_is_mended_all_goes_on_in_turn(tmp_path: Path) -> None:
    path, runner = tmp_path / "runs.db", failing()
    async with Fleet(runner=runner, concurrency=1, journal=path) as fleet:
        with pytest.raises(AuthenticationError, match=r"3 in a row .* queued again"):
            await all_of(fleet.map([str(n) for n in range(40)], key=str))
        status = await fleet.status()
    assert (status.queued, status.running, status.failed) == (status.total, 0, 0), "those are queued again"
    assert len(runner.attempts) == 3
    mended = PlayedRunner(seconds=0)
    async with Fleet(runner=mended, concurrency=1, journal=path) as fleet:
        runs = await all_of(fleet.resume())
        assert (await fleet.status()).stopped_by is None
    assert all(run.is_success and run.failures == 0 for run in runs)
    assert mended.keys[:3] == ["0", "1", "2"]
    assert [run.attempts for run in sorted(runs, key=lambda run: int(run.key))[:4]] == [2, 2, 2, 1]


@pytest.mark.anyio
@pytest.mark.parametrize("is_persistent", [True, False])
async def test_what_ends_afterwards_reaches_its_reader(tmp_path: Path, is_persistent: bool) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if attempt.key in "ab":
            raise AuthenticationError("wrong key")
        while (await fleet.status()).stopped_by is None:
            await anyio.sleep(0.01)
        if attempt.key == "c":
            return answer("paid for")
        raise ExecutionError("odd") if attempt.key == "d" else AuthenticationError("wrong key")

    seen: dict[str, str] = {}

    async def read() -> None:
        async for run in fleet.map(list("abcde"), key=str):
            seen[run.key] = run.state

    journal = tmp_path / "runs.db" if is_persistent else None
    async with Fleet(runner=PlayedRunner(play), concurrency=5, stop_after=2, retry=None, journal=journal) as fleet:
        with pytest.raises(AuthenticationError, match="3 in a row"):
            await read()
    assert {key: seen.get(key) for key in "cde"} == {"c": "succeeded", "d": "failed", "e": None}


@pytest.mark.anyio
async def test_leaving_the_block_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with Fleet(runner=failing(), concurrency=3, stop_after=3, journal=path) as fleet:
        await fleet.enqueue(list("abcdef"), key=str)
    assert (await read_states(path)) == {"queued": 6}


@pytest.mark.anyio
async def test_while_others_run_none_stands_as_failed(tmp_path: Path) -> None:
    """A program that is killed then leaves nothing as failed; nor does one that is cancelled."""

    async def play(attempt: Attempt) -> QueryResult:
        if attempt.key == "c":
            await anyio.sleep_forever()
        raise AuthenticationError("wrong key")

    path = tmp_path / "runs.db"
    with anyio.CancelScope() as scope:
        async with Fleet(runner=PlayedRunner(play), concurrency=3, stop_after=2, journal=path) as fleet:
            await fleet.enqueue(list("abc"), key=str)
            with anyio.fail_after(20):
                while (await fleet.status()).stopped_by is None or len(fleet.running) > 1:
                    await anyio.sleep(0.01)
            assert (await read_states(path)) == {"queued": 2, "running": 1}
            scope.cancel()
    assert (await read_states(path)) == {"queued": 2, "interrupted": 1}


async def read_states(path: Path) -> Counter[str]:
    journal = SqliteJournal(path)
    await journal.open_for_reading()
    try:
        return Counter(run.state for run in await journal.rows(None, 0, 99))
    finally:
        await journal.close()


def test_a_batch_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    Path("prompts.txt").write_text("".join(f"prompt {n}\n" for n in range(30)))
    refused = {"is_error": True, "api_error_status": 401, "terminal_reason": "api_error"}
    with FakeCLI().text("Invalid API key", **refused).forever() as fake:
        arguments = ["prompts.txt", "--cli", fake.path, "--concurrency", "2", "--journal", "runs.db"]
        assert main(["batch", *arguments]) == 1
        assert len(fake.calls) <= 5
    out, err = capsys.readouterr()
    shown = [json.loads(line)["state"] for line in out.splitlines()]
    assert shown == ["failed"] * len(shown)
    assert len(shown) <= 5, "how many were shown before the fleet stopped is timing"
    assert re.search("[345] in a row failed for this reason", err)  # two run at a time, and what runs ends
    assert err.splitlines()[-1] == "once that is fixed, continue with `pilothouse batch resume --journal runs.db`"
    assert main(["batch", "status", "--journal", "runs.db", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["queued"], status["failed"], status["running"]) == (30, 0, 0)


def test_a_batch_without_a_cli_fails_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("".join(f"prompt {n}\n" for n in range(30)))
    assert main(["batch", "prompts.txt", "--cli", "/no/such/claude", "--journal", "runs.db"]) == 2
    assert "continue with" in capsys.readouterr().err
