"""`pilothouse worker` and `batch` on a journal in PostgreSQL: real processes, a real server."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from test_worker_command import LIMIT_S, asked, lasting, prompts, started, until

from pilothouse.cli import main
from pilothouse.testing import FakeCLI


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    with FakeCLI().text("Hello").forever() as found:
        yield found


@pytest.fixture
def address(postgres_server: dict[str, Any]) -> str:
    """A database of its own, with its password."""
    name = "t" + uuid.uuid4().hex
    with psycopg.connect(postgres_server["url"], autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server["url"].replace("/postgres?", f"/{name}?")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str) -> Any:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("PILOTHOUSE_JOURNAL", address)
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert "suite-password" not in out + err
        return code, out, err

    return call


def killed(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()


@pytest.mark.matrix
def test_workers_on_a_server_share_the_runs_and_take_over(
    run: Callable[..., tuple[int, str, str]], address: str, fake: FakeCLI
) -> None:
    count = 12
    code, _, err = run("batch", prompts(count), "--enqueue")
    assert code == 0
    assert err.startswith(f"{count} runs are in the journal; `pilothouse worker --journal postgresql:///t")
    with (
        lasting() as slow,
        started("worker", "--cli", slow.path, "--concurrency", "2", PILOTHOUSE_JOURNAL=address) as dead,
    ):
        until(lambda: asked(slow) == 2)
        worker = ("worker", "--cli", fake.path, "--concurrency", "2", "--until-empty")
        with started(*worker, PILOTHOUSE_JOURNAL=address) as one, started(*worker, PILOTHOUSE_JOURNAL=address) as two:
            until(lambda: asked(fake) >= count - 2)
            killed(dead)
            reported = [child.communicate(timeout=LIMIT_S)[1] for child in (one, two)]
            assert [one.returncode, two.returncode] == [0, 0], reported
    assert sum(words.count("  succeeded  ") for words in reported) == count
    assert "suite-password" not in "".join(reported)

    code, out, err = run("batch", "results")
    assert (code, err) == (0, "")
    assert [(row["key"], row["text"]) for row in map(json.loads, out.splitlines())] == [
        (str(n), "Hello") for n in range(count)
    ]
    assert json.loads(run("batch", "status", "--json")[1])["succeeded"] == count


def test_a_batch_waits_for_a_worker_that_sigterm_drains(
    run: Callable[..., tuple[int, str, str]], address: str, fake: FakeCLI
) -> None:
    with started("worker", "--cli", fake.path, PILOTHOUSE_JOURNAL=address) as worker:
        code, out, err = run("batch", prompts(3), "--concurrency", "0", "-o", "out.jsonl")
        assert (code, out) == (0, ""), err
        assert len(Path("out.jsonl").read_text().splitlines()) == 3
        worker.terminate()
        err = worker.communicate(timeout=LIMIT_S)[1]
        assert worker.returncode == 0, err


def test_an_unreachable_server_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = time.monotonic()
    for arguments in (("worker",), ("batch", "status"), ("batch", "resume")):
        monkeypatch.setenv(
            "PILOTHOUSE_JOURNAL", "postgresql://me:suite-password-9876@127.0.0.1:1/fleet?connect_timeout=5"
        )
        assert main([*arguments]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("pilothouse: the journal postgresql://127.0.0.1:1/fleet cannot be reached: ")
        assert "suite-password" not in err
    assert time.monotonic() - before < LIMIT_S
