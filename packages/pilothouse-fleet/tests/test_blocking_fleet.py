"""The blocking `Fleet`: the same, from plain code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_runners import Interruptible, PlayedRunner

from pilothouse import sync as ph
from pilothouse_fleet import FleetJournalError
from pilothouse_fleet.sync import Fleet
from pilothouse_testing import FakeCLI


def test_map_gather_submit(tmp_path: Path) -> None:
    with FakeCLI().text("Hello").forever() as fake:
        agent = ph.Agent(cli=fake.path)
        with Fleet(agent, concurrency=2, journal=tmp_path / "runs.db") as fleet:
            assert {run.key for run in fleet.map(["a", "b", "c"], key=str)} == {"a", "b", "c"}
            assert [run.text for run in fleet.gather(iter(["a", "d"]), key=str)] == ["Hello", "Hello"]
            run = fleet.submit("e", key="e")
            assert fleet.wait(run).is_success
            assert fleet.status().succeeded == 5
            assert fleet.running == []
            assert [row.key for row in fleet.rows(limit=2)] == ["a", "b"]
            assert fleet.enqueue(["f"]) == 1
            assert [run.prompt for run in fleet.resume()] == ["f"]
            fleet.enqueue(["g"])
            assert [run.prompt for run in fleet.work(until_empty=True)] == ["g"]
        with pytest.raises(ph.SessionClosedError):
            fleet.submit("h")


def test_slow_items_do_not_block_other_calls() -> None:
    def slow() -> Iterator[str]:
        for text in ("a", "b"):
            time.sleep(0.05)
            yield text

    with Fleet(runner=PlayedRunner(seconds=0)) as fleet:
        runs = fleet.map(slow())
        assert next(runs).text == "a!"
        assert [run.text for run in runs] == ["b!"]
        runs.close()


def test_an_error_in_the_block_stops_what_runs(tmp_path: Path) -> None:
    play = Interruptible()
    path = tmp_path / "runs.db"

    def fails() -> None:
        with Fleet(runner=PlayedRunner(play), journal=path) as fleet:
            fleet.submit("x", key="a")
            while not fleet.running:
                time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with Fleet(runner=PlayedRunner(seconds=0), journal=path) as fleet:
        [row] = fleet.rows()
        assert (row.attempts, row.state) == (1, "queued")
        assert [run.text for run in fleet.resume()] == ["x!"]


def test_an_unusable_journal_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no database at all, " * 100)
    with pytest.raises(FleetJournalError), Fleet(journal=tmp_path / "notes"):
        pass
    with pytest.raises(ph.UsageError):
        Fleet(budget_usd=0)


def test_interrupt_and_cancel() -> None:
    with Fleet(runner=PlayedRunner(Interruptible())) as fleet:
        fleet.submit("x", key="a")
        fleet.cancel("a")
        assert fleet.wait("a").state == "cancelled"
        fleet.submit("y", key="b")
        fleet.interrupt()
        assert fleet.running == []
