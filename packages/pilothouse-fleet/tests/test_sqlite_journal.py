"""A journal in a file: what survives, and what is refused. `test_executor.py` has who may execute its runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec import Struct
from scripted_runners import Interruptible, PlayedRunner, all_of, answer

from pilothouse.client import QueryResult
from pilothouse.errors import Interrupted, UsageError
from pilothouse_fleet import Attempt, Fleet, FleetJournalError, Limits, Run, SqliteJournal
from pilothouse_fleet.limits import MAX_INTERRUPTIONS, OnInterrupted

pytestmark = pytest.mark.anyio
LIMIT_S = 60.0


def sql(path: Path, statement: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement)
    db.close()


class BrokenRunner(PlayedRunner):
    async def __aenter__(self) -> None:
        raise UsageError("no place to work")

    async def __aexit__(self, *error: object) -> None: ...


async def test_a_fleet_whose_runner_cannot_begin_leaves_its_journal(path: Path) -> None:
    with pytest.raises(UsageError, match="no place to work"):
        await Fleet(runner=BrokenRunner(), journal=path).__aenter__()
    async with Fleet(runner=PlayedRunner(), journal=path):
        pass


async def test_what_has_ended_is_not_run_again(path: Path) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        if attempt.key == "b":
            raise UsageError("bad")
        return answer(f"{attempt.prompt}!", cost=0.5)

    first, second = PlayedRunner(play), PlayedRunner(play)
    async with Fleet(runner=first, journal=path) as fleet:
        await fleet.gather(["a", "b"], key=str)
    async with Fleet(runner=second, journal=path, budget_usd=10) as fleet:
        runs = await fleet.gather(["a", "b", "c"], key=str)
        assert (await fleet.status()).cost_usd == 1.0
        assert [run.key for run in await fleet.rows("succeeded")] == ["a", "c"]
        assert (await fleet.wait("a")).text == "a!"
        assert [run.key for run in await all_of(fleet.retry_failed())] == ["b"]
    assert [(run.key, run.state, run.text) for run in runs] == [
        ("a", "succeeded", "a!"), ("b", "failed", ""), ("c", "succeeded", "c!"),
    ]  # fmt: skip
    assert isinstance(runs[1].error, UsageError)
    assert second.keys == ["c", "b"]


async def test_the_budget_counts_what_the_journal_has_cost(path: Path) -> None:
    async def play(attempt: Attempt) -> QueryResult:
        return answer("done", cost=1.0)

    async with Fleet(runner=PlayedRunner(play), journal=path) as fleet:
        await fleet.gather(["a"])
    runner = PlayedRunner(play)
    async with Fleet(runner=runner, journal=path, budget_usd=1) as fleet:
        with pytest.raises(Exception, match="spent"):
            await fleet.gather(["b"])
    assert runner.attempts == []


async def test_without_keys_the_same_prompt_is_the_same_run(path: Path) -> None:
    runner = PlayedRunner(seconds=0)
    for _ in range(2):
        async with Fleet(runner=runner, journal=path) as fleet:
            runs = await fleet.gather(["a", "b", "a"])
            assert [run.text for run in runs] == ["a!", "b!", "a!"]
    assert sorted(str(one.prompt) for one in runner.attempts) == ["a", "b"]
    async with Fleet(runner=runner, journal=path) as fleet:
        await fleet.gather(["a"], options={"model": "opus"})
    assert len(runner.attempts) == 3


async def test_only_what_is_asked_for_is_run(path: Path) -> None:
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=PlayedRunner(Interruptible()), journal=path, concurrency=1) as fleet:
        assert await fleet.enqueue(["a", "b", "c", "d"], key=str) == 4
        await fleet.interrupt()
    async with Fleet(runner=runner, journal=path) as fleet:
        assert (await fleet.status()).left == 4
        await fleet.gather(["c"], key=str)
        assert runner.keys == ["c"]
        assert sorted([run.key for run in await all_of(fleet.resume())]) == ["a", "b", "d"]


async def test_output_has_its_type_again(path: Path) -> None:
    class Colour(Struct):
        name: str

    async def play(attempt: Attempt) -> QueryResult:
        return answer('{"name": "red"}')

    for is_again in (False, True):
        async with Fleet(runner=PlayedRunner(play), journal=path) as fleet:
            [run] = await fleet.gather(["a colour"], key=str, output_type=Colour)
        assert run.settings["json_schema"]["properties"]
        if is_again:  # the runner of the first time gives no types
            assert run.result is not None
            assert run.result.output == Colour("red")


@pytest.mark.parametrize(
    ("policy", "resumed", "state"),
    [("resume", [True], "succeeded"), ("restart", [False], "succeeded"), ("fail", [], "failed")],
)
async def test_an_interrupted_run_goes_on_by_policy(
    path: Path, policy: OnInterrupted, resumed: list[bool], state: str
) -> None:
    play = Interruptible()
    async with Fleet(runner=PlayedRunner(play), journal=path) as fleet:
        await fleet.submit("prompt", key="a")
        await play.started.wait()
        await fleet.interrupt()
        [row] = await fleet.rows()
        assert (row.state, row.session_id) == ("interrupted", play.session_id)
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path, on_interrupted=policy) as fleet:
        [run] = await fleet.gather(["prompt"], key=lambda _: "a")
    assert run.state == state
    assert [one.is_resumed for one in runner.attempts] == resumed
    assert [one.session_id == row.session_id for one in runner.attempts] == resumed
    assert isinstance(run.error, Interrupted) == (state == "failed")


async def test_a_run_that_ends_every_process_ends_some_day(path: Path) -> None:
    async with Fleet(runner=PlayedRunner(Interruptible()), journal=path) as fleet:
        await fleet.enqueue(["a"])
        await fleet.interrupt()
    sql(path, f"UPDATE run SET interruptions = {MAX_INTERRUPTIONS}, state = 'interrupted'")
    async with Fleet(runner=PlayedRunner(), journal=path) as fleet:
        [run] = await fleet.gather(["a"])
        assert (run.state, run.interruptions) == ("failed", MAX_INTERRUPTIONS + 1)
        [run] = [run async for run in fleet.retry_failed()]
        assert (run.state, run.interruptions) == ("succeeded", 0)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
async def test_a_damaged_journal_is_told_from_another_file(path: Path, damage: str) -> None:
    async with Fleet(runner=PlayedRunner(seconds=0), journal=path) as fleet:
        await fleet.gather([f"prompt {number}" * 100 for number in range(100)])
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else whole[:4096].ljust(len(whole), b"\xff"))
    with pytest.raises(FleetJournalError, match=r"malformed; restore a copy, or save what `sqlite3 FILE .recover`"):
        async with Fleet(runner=PlayedRunner(), journal=path) as fleet:
            await fleet.gather(["prompt"])


async def test_files_that_are_no_journal_are_left_as_they_are(path: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("dear diary, " * 500)
    other = tmp_path / "other.db"
    sql(other, "CREATE TABLE mine (x)")
    for one in (text, other):
        before = one.read_bytes()
        with pytest.raises(FleetJournalError, match="is not a journal of a fleet"):
            async with Fleet(runner=PlayedRunner(), journal=one):
                pass
        assert one.read_bytes() == before
    with pytest.raises(FleetJournalError, match="cannot be used"):
        async with Fleet(runner=PlayedRunner(), journal=tmp_path):
            pass
    async with Fleet(runner=PlayedRunner(), journal=path):
        pass
    for version, age in ((3, "an older"), (7, "a newer")):
        sql(path, f"PRAGMA user_version = {version}")
        with pytest.raises(FleetJournalError, match=f"version {version}, made by {age} pilothouse"):
            async with Fleet(runner=PlayedRunner(), journal=path):
                pass


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "sk-secret"},
        {"env": {"TOKEN": "x"}},
        {"can_use_tool": lambda *_: True},
        {"base_url": "https://me:sk-secret@h"},
        {"mcp_servers": {"a": {"command": "x", "args": ["--token", "sk-secret"]}}},
        {"mcp_servers": {"a": {"command": "x", "env": {"A": "sk-secret"}}}},
        {"mcp_servers": {"a": {"type": "http", "url": "https://h/?key=sk-secret"}}},
        {"settings": {"apiKeyHelper": "echo sk-secret"}},
        {"settings": '{"env": {"A": "sk-secret"}}'},
        {"managed_settings": {"env": {"A": "sk-secret"}}},
        {"append_system_prompt": "Use ghp_0123456789abcdef."},
    ],
    ids=" ".join,
)
async def test_what_no_journal_may_keep_is_refused(path: Path, settings: dict[str, object]) -> None:
    async with Fleet(runner=PlayedRunner(), journal=path) as fleet:
        with pytest.raises(UsageError, match="set it on the agent of the fleet"):
            await fleet.gather(["a"], options=settings)
    assert b"sk-secret" not in path.read_bytes()
    assert b"ghp_" not in path.read_bytes()


async def test_a_schema_has_the_names_of_keys_and_no_keys(path: Path) -> None:
    schema = {"type": "object", "properties": {"env": {"type": "string"}, "password": {"type": "string"}}}
    async with Fleet(runner=PlayedRunner(seconds=0), journal=path) as fleet:
        await fleet.gather(["a"], options={"json_schema": schema})


async def test_a_journal_makes_no_directories(tmp_path: Path) -> None:
    fleet = Fleet(runner=PlayedRunner(), journal=tmp_path / "no" / "such" / "runs.db")
    with pytest.raises(FleetJournalError, match=r"there is no directory .*such; make it first, or correct the path"):
        async with fleet:
            pytest.fail("it has no journal")
    assert not [*tmp_path.iterdir()]


async def test_many_queued_runs_are_not_loaded(path: Path) -> None:
    runner = PlayedRunner(seconds=0.001)
    async with Fleet(runner=runner, journal=path, concurrency=4) as fleet:
        assert await fleet.enqueue(range(3000), prompt=str, key=str) == 3000
        runs = fleet.resume()
        for _ in range(20):
            await anext(runs)
        assert len(runs._buffer.ready) <= 40
        assert len(fleet._subscribers._buffers_by_key) == 0
    assert len(runner.attempts) < 100, "who leaves the loop early begins no more"


@pytest.mark.parametrize("wait", ["later", "parked", "ready"])
async def test_what_cannot_start_now_costs_a_lease_nothing(path: Path, wait: str) -> None:
    """Counted in steps of SQLite, however many runs wait."""
    steps: list[int] = []
    for count in (500, 5000):
        journal = SqliteJournal(path.with_name(f"{count}.db"))
        await journal.open(0.0, "resume")
        await journal.add([Run(key=str(number), prompt="go", created=1.0) for number in range(count)])
        if wait == "later":
            sql(path.with_name(f"{count}.db"), "UPDATE run SET due = 1e10 WHERE number > 1")
        if wait == "parked":
            await journal.park([str(number) for number in range(1, count)])
        counted: list[None] = []
        assert journal._connection is not None
        journal._connection.set_progress_handler(lambda counted=counted: counted.append(None), 10)
        assert [run.key for run in await journal.lease(1, 2.0, Limits(budget_usd=1.0))] == ["0"]
        await journal.next_due()
        steps.append(len(counted))
        await journal.close()
    assert steps[1] <= 2 * steps[0], steps
