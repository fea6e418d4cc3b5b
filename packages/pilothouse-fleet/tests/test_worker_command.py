"""`pilothouse worker`, and a batch that leaves its runs to a worker: real processes on one journal."""

from __future__ import annotations

import csv
import io
import json
import logging
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_processes import LIMIT_S, asked, lasting, started, stubborn, until

from pilothouse_cli import main
from pilothouse_cli.arguments import parse
from pilothouse_cli.batch import log_warnings_to
from pilothouse_cli.flags import STOP_AFTER, BatchRequest, WorkerRequest
from pilothouse_cli.screen import Screen
from pilothouse_fleet import limits
from pilothouse_fleet.limits import RESUME_PROMPT
from pilothouse_testing import FakeCLI

SECRET = "pass-word-7"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PILOTHOUSE_JOURNAL", raising=False)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def prompts(count: int) -> str:
    path = Path("prompts.jsonl")
    path.write_text("".join(json.dumps({"prompt": f"prompt {n}", "key": str(n)}) + "\n" for n in range(count)))
    return str(path)


def states(path: str = "runs.db") -> list[str]:
    with sqlite3.connect(path) as db:
        found = [state for (state,) in db.execute("SELECT state FROM run ORDER BY number")]
    db.close()
    return found


def test_the_flags() -> None:
    assert parse(["worker"]) == WorkerRequest()
    assert parse(["worker", "--journal", "r.db", "--until-empty", "--model", "opus", "--concurrency", "2"]) == (
        WorkerRequest(journal="r.db", until_empty=True, settings={"model": "opus"}, concurrency=2)
    )
    assert parse(["batch", "x.jsonl", "--enqueue", "--stop-after", "0"]) == (
        BatchRequest(source="x.jsonl", enqueue=True, stop_after=0)
    )
    assert limits.STOP_AFTER == STOP_AFTER


def test_what_a_batch_leaves_is_done_by_workers_and_read_from_the_journal(run: Any, fake: FakeCLI) -> None:
    code, out, err = run("batch", prompts(4), "--enqueue", "--journal", "runs.db", "--model", "opus")
    assert (code, out) == (0, "")
    assert err == "added to the journal: 4 runs; execute them with `pilothouse worker --journal runs.db`\n"
    assert fake.calls == []

    code, out, err = run("worker", "--journal", "runs.db", "--until-empty", "--cli", fake.path)
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert lines[0] == "working on runs.db, 8 at a time"
    assert sorted(line.split("  ")[1:3] for line in lines[1:-1]) == [
        [f"{n}: prompt {n}", "succeeded"] for n in range(4)
    ]
    assert lines[-1].startswith("4 succeeded, 0 failed, $0.00")
    assert all(any("opus" in word for word in call.argv) for call in fake.calls), "options go with their runs"

    code, out, err = run("batch", "results", "--journal", "runs.db")
    assert (code, err) == (0, "")
    assert [(row["key"], row["state"], row["text"]) for row in map(json.loads, out.splitlines())] == [
        (str(n), "succeeded", "Hello") for n in range(4)
    ]
    code, out, err = run("batch", "results", "--journal", "runs.db", "-o", "out.csv")
    assert (code, out, err) == (0, "", "wrote 4 runs to out.csv\n")
    with Path("out.csv").open(newline="") as file:
        assert [row["key"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]


def test_results_say_what_has_not_ended(run: Any, fake: FakeCLI) -> None:
    run("batch", prompts(3), "--enqueue", "--journal", "runs.db")
    assert run("batch", "results", "--journal", "runs.db") == (0, "", "3 runs have not finished\n")
    assert states() == ["queued"] * 3


def test_results_come_page_by_page(run: Any, fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_cli.batch.PAGE_SIZE", 2)
    run("batch", prompts(5), "--journal", "runs.db", "--cli", fake.path)
    assert len(run("batch", "results", "--journal", "runs.db")[1].splitlines()) == 5


def test_what_the_fleet_warns_of_is_shown_once_and_without_a_key() -> None:
    notes = io.StringIO()
    log = logging.getLogger("pilothouse.fleet")
    with log_warnings_to(Screen(notes, notes), lambda text: text.replace(SECRET, "[redacted]")):
        log.warning("the journal %s is gone\nand %s", "x", SECRET)
        log.info("nothing to worry about")
    log.info("not for this screen any more")
    assert notes.getvalue() == "the journal x is gone and [redacted]\n"


def test_a_worker_does_what_a_batch_waits_for(run: Any, fake: FakeCLI) -> None:
    count = 24
    with started("worker", "--journal", "runs.db", "--cli", fake.path, "--concurrency", "2") as worker:
        with started("batch", prompts(count), "--journal", "runs.db", "--concurrency", "0") as batch:
            out, err = batch.communicate(timeout=LIMIT_S)
            assert batch.returncode == 0, err
        rows = [json.loads(line) for line in out.splitlines()]
        assert sorted((int(row["key"]), row["text"]) for row in rows) == [(n, "Hello") for n in range(count)]
        until(lambda: Path("runs.db-executor").exists())
        code, _, err = run("worker", "--journal", "runs.db", "--cli", fake.path)
        assert (code, f"are executed by process {worker.pid} on " in err) == (1, True)
        worker.terminate()
        reported = worker.communicate(timeout=LIMIT_S)[1]
        assert worker.returncode == 0, reported
    assert asked(fake) == count
    assert reported.count("  succeeded  ") == count


def test_sigterm_leaves_what_runs_to_the_next_worker(run: Any, fake: FakeCLI) -> None:
    run("batch", prompts(2), "--enqueue", "--journal", "runs.db")
    with lasting() as slow, started("worker", "--journal", "runs.db", "--cli", slow.path) as worker:
        until(lambda: asked(slow) == 2)
        worker.terminate()
        err = worker.communicate(timeout=LIMIT_S)[1]
        assert worker.returncode == 0, err
        assert "stopping the runs" in err
        assert states() == ["interrupted"] * 2
    assert run("worker", "--journal", "runs.db", "--cli", fake.path, "--until-empty")[0] == 0
    assert states() == ["succeeded"] * 2
    assert [call.prompts for call in fake.calls] == [[RESUME_PROMPT]] * 2


def test_ctrl_c_once_and_twice(run: Any) -> None:
    run("batch", prompts(1), "--enqueue", "--journal", "runs.db")
    with lasting() as slow, started("worker", "--journal", "runs.db", "--cli", slow.path) as worker:
        until(lambda: asked(slow) == 1)
        worker.send_signal(signal.SIGINT)
        err = worker.communicate(timeout=LIMIT_S)[1]
        assert worker.returncode == 130, err
    assert states() == ["interrupted"]
    with stubborn() as fake, started("worker", "--journal", "runs.db", "--cli", fake.path) as worker:
        until(lambda: asked(fake) == 1)
        worker.terminate()
        assert worker.stderr is not None
        while "press Ctrl-C again" not in worker.stderr.readline():
            pass
        worker.terminate()
        err = worker.communicate(timeout=LIMIT_S)[1]
        assert worker.returncode == 143, err
    assert states() == ["interrupted"]


def test_the_journal_comes_from_the_environment(run: Any, fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTHOUSE_JOURNAL", "runs.db")
    assert run("batch", prompts(1), "--enqueue")[0] == 0
    assert states() == ["queued"]
    assert run("worker", "--until-empty", "--cli", fake.path)[0] == 0
    assert states() == ["succeeded"]


BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no journal": (("worker",), 2, "worker needs --journal, or the variable PILOTHOUSE_JOURNAL"),
    "nothing to look at": (
        ("batch", "results"), 2, "batch results needs --journal, or the variable PILOTHOUSE_JOURNAL",
    ),
    "nowhere to leave it": (
        ("batch", "prompts.jsonl", "--enqueue"), 2, "--enqueue needs --journal, or the variable PILOTHOUSE_JOURNAL",
    ),
    "nothing to leave": (
        ("batch", "resume", "--enqueue", "--journal", "x.db"), 2,
        "--enqueue needs a file of prompts",
    ),
    "a worker that does not work": (
        ("worker", "--journal", "x.db", "--concurrency", "0"), 2,
        "work() needs a concurrency of at least 1; with 0 a fleet starts nothing",
    ),
    "a batch that nobody does": (
        ("batch", "prompts.jsonl", "--concurrency", "0"), 2,
        "concurrency=0 leaves all runs to another fleet, which needs a journal that both use",
    ),
    "no journal at all": (
        ("worker", "--journal", "prompts.jsonl"), 1, "prompts.jsonl is not a journal of a fleet; it was not changed",
    ),
    "a server": (
        ("worker", "--journal", "postgresql://me:pass-word-7@db/fleet"), 2,
        "journal: the path of a file; there is none for postgresql://…",
    ),
    "one that is not there": (("batch", "results", "--journal", "none.db"), 1, "there is no journal none.db"),
    "nowhere to write": (
        ("batch", "results", "--journal", "there.db", "-o", "no/where.csv"), 2, "there is no directory no",
    ),
    "a budget of nothing": (
        ("worker", "--journal", "x.db", "--budget-usd", "0"), 2,
        "budget_usd must be a number of US dollars above 0, got 0.0; omit it for no limit",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be(run: Any, arguments: tuple[str, ...], code: int, words: str) -> None:
    run("batch", prompts(1), "--enqueue", "--journal", "there.db")
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert err.splitlines()[-1] == f"pilothouse: {words}"
