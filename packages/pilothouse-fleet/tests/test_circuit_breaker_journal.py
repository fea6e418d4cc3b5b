"""What the circuit breaker puts back stands in the journal, for a later program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import pytest
from scripted_runners import PlayedRunner, all_of

import pilothouse_fleet.sync
from pilothouse.client import QueryResult
from pilothouse.errors import AuthenticationError
from pilothouse_cli import main
from pilothouse_fleet import Attempt, Fleet, Runner
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
        with pytest.raises(AuthenticationError, match="3 in a row"):
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


def test_blocking_code_gets_the_error_too() -> None:
    runner: Runner = failing()
    with pilothouse_fleet.sync.Fleet(runner=runner) as fleet:
        with pytest.raises(AuthenticationError, match="was stopped"):
            list(fleet.map(list("abcdef")))
        status = fleet.status()
    assert status.stopped_by == "AuthenticationError: wrong key"


def test_a_batch_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
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
    assert err.splitlines()[-1] == "when that is corrected, `pilothouse batch resume --journal runs.db` continues"
    assert main(["batch", "status", "--journal", "runs.db", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["queued"], status["failed"], status["running"]) == (30, 0, 0)


def test_a_batch_without_a_cli_fails_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("".join(f"prompt {n}\n" for n in range(30)))
    assert main(["batch", "prompts.txt", "--cli", "/no/such/claude", "--journal", "runs.db"]) == 2
    assert "continues" in capsys.readouterr().err
