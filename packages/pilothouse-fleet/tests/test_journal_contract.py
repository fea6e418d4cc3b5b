"""The contract of a journal: in memory and in a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from scripted_runners import answer

from pilothouse.errors import OverloadedError, UsageError
from pilothouse_fleet import Limits, Run, SqliteJournal

pytestmark = pytest.mark.anyio
KINDS = ("memory", "sqlite")


@pytest.fixture(params=KINDS)
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[SqliteJournal]:
    """An open journal."""
    made = SqliteJournal() if request.param == "memory" else SqliteJournal(tmp_path / "runs.db")
    await made.open(0.0, "resume")
    yield made
    await made.close()


def run(key: str, prompt: Any = "go", **more: Any) -> Run:
    return Run(key=key, prompt=prompt, created=1.0, **more)


async def test_runs_are_given_out_once_first_come_first_served(journal: SqliteJournal) -> None:
    added = await journal.add([run(str(n)) for n in range(5)])
    assert [one.number for one in added] == [1, 2, 3, 4, 5]
    assert [one.state for one in added] == ["queued"] * 5
    first = await journal.lease(2, 7.0)
    assert [(one.key, one.state, one.attempts, one.started) for one in first] == [
        ("0", "running", 1, 7.0), ("1", "running", 1, 7.0),
    ]  # fmt: skip
    assert [one.key for one in await journal.lease(9, 7.0)] == ["2", "3", "4"]
    assert await journal.lease(9, 7.0) == []
    assert await journal.next_due() is None


async def test_the_greater_priority_goes_first(journal: SqliteJournal) -> None:
    await journal.add([run("a"), run("b", priority=2), run("c", priority=2), run("d", priority=-1)])
    await journal.add([run("d", priority=9)])
    assert [one.key for one in await journal.lease(4, 0.0)] == ["d", "b", "c", "a"]


async def test_what_is_due_later_waits(journal: SqliteJournal) -> None:
    await journal.add([run("a"), run("b")])
    [first] = await journal.lease(1, 10.0)
    assert await journal.release(replace(first, state="queued", due=50.0, failures=1))
    assert [one.key for one in await journal.lease(2, 49.0)] == ["b"]
    assert await journal.next_due() == pytest.approx(50.0, abs=1e-5)
    assert await journal.lease(1, 49.9) == []
    [again] = await journal.lease(1, 50.0)
    assert (again.key, again.attempts, again.failures) == ("a", 2, 1)


async def test_one_key_is_one_run(journal: SqliteJournal) -> None:
    await journal.add([run("a", "one")])
    [again] = await journal.add([run("a", "one", settings={"model": "opus"})])
    assert again.number == 1
    with pytest.raises(UsageError, match="'a' is there already, with another prompt"):
        await journal.add([run("new", "x"), run("a", "two")])
    with pytest.raises(UsageError, match="'new'"):
        await journal.add([run("new", "x"), run("new", "y")])
    assert [one.settings for one in await journal.lease(9, 0.0)] == [{"model": "opus"}]  # "new" was not added


async def test_cancelling_ends_what_waits(journal: SqliteJournal) -> None:
    await journal.add([run("a"), run("b"), run("c")])
    await journal.lease(1, 0.0)
    ended = await journal.cancel(["b", "nobody"], 5.0)
    assert [(one.key, one.state, one.ended) for one in ended] == [("b", "cancelled", 5.0)]
    assert [one.key for one in await journal.cancel(None, 6.0)] == ["c"]
    assert (await journal.status()).running == 1


async def test_in_memory_what_is_parked_is_dropped() -> None:
    journal = SqliteJournal()
    await journal.open(0.0, "resume")
    await journal.add([run(key) for key in "abcde"])
    [leased] = await journal.lease(1, 0.0)
    await journal.park(["a", "b", "c", "x"], ["c"])
    assert [one.key for one in await journal.rows(None, 0, 9)] == ["a", "c", "d", "e"]
    await journal.park(None, ["d"])
    assert [one.key for one in await journal.rows(None, 0, 9)] == ["a", "d"]
    assert set(journal._settings) == {"a", "d"}
    await journal.release(replace(leased, state="succeeded", ended=1.0))
    assert [one.key for one in await journal.add([run("b")])] == ["b"]
    await journal.close()


async def test_a_run_keeps_the_options_it_was_started_with(journal: SqliteJournal) -> None:
    await journal.add([run("a", settings={"model": "one"})])
    await journal.add([run("a", settings={"model": "two"})])
    [leased] = await journal.lease(1, 0.0)
    assert leased.settings == {"model": "two"}
    [there] = await journal.add([run("a", settings={"model": "three"})])
    assert there.settings == {"model": "two"}
    await journal.release(replace(leased, state="queued"))
    assert [one.settings for one in await journal.lease(1, 0.0)] == [{"model": "two"}]


async def test_rows_are_given_in_pages(journal: SqliteJournal) -> None:
    await journal.add([run(f"k{n}") for n in range(10)])
    await journal.lease(2, 0.0)
    assert [one.key for one in await journal.rows(None, 0, 3)] == ["k0", "k1", "k2"]
    assert [one.key for one in await journal.rows("queued", 3, 3)] == ["k3", "k4", "k5"]
    assert [one.key for one in await journal.rows("running", 0, 9)] == ["k0", "k1"]


async def test_a_lease_keeps_to_the_budget(journal: SqliteJournal) -> None:
    await journal.add([run(str(n)) for n in range(9)])
    limits = Limits(budget_usd=2.5, run_budget_usd=1.0)
    first = await journal.lease(9, 0.0, limits)
    assert [one.limit_usd for one in first] == [1.0, 1.0, 0.5]
    assert await journal.lease(9, 0.0, limits) == []
    assert await journal.release(replace(first[0], state="queued", cost_usd=0.75))
    assert (await journal.status()).cost_usd == 0.75
    [again] = await journal.lease(9, 0.0, limits)  # what it did not spend of its dollar, and what it may still spend
    assert (again.key, again.limit_usd) == ("0", 0.25)
    for one in (again, *first[1:]):
        assert await journal.release(replace(one, state="succeeded", cost_usd=one.limit_usd or 0.0, ended=1.0))
    assert await journal.lease(9, 0.0, Limits(budget_usd=1.0)) == []
    [last] = await journal.lease(1, 0.0, Limits(budget_usd=3.0))
    assert last.limit_usd == pytest.approx(3.0 - (await journal.status()).cost_usd)


async def test_a_cancelled_run_is_reported_once(journal: SqliteJournal) -> None:
    await journal.add([run("a")])
    assert [one.key for one in await journal.cancel(["a"], 1.0)] == ["a"]
    assert (await journal.list_ended_since(0))[0] == []


async def test_of_a_file_all_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    journal = SqliteJournal(path)
    await journal.open(0.0, "resume")
    assert path.stat().st_mode & 0o777 == 0o600
    blocks = [{"type": "text", "text": "ahoy"}]
    await journal.add([run("a", blocks, settings={"model": "opus"}), run("b"), run("c")])
    one, two = await journal.lease(2, 3.0)
    await journal.release(
        replace(one, state="succeeded", result=answer("yes", cost=0.25), ended=4.0, cost_usd=0.25, input_tokens=7)
    )
    error = OverloadedError("no", api_error_status=529)
    await journal.release(replace(two, state="failed", error=error, failures=4, ended=5.0))
    await journal.close()

    again = SqliteJournal(path)
    await again.open(9.0, "resume")
    a, b, c = await again.rows(None, 0, 9)
    assert a.result is not None
    assert (a.prompt, a.settings, a.text, a.result.cost_usd, a.is_success) == (
        blocks,
        {"model": "opus"},
        "yes",
        0.25,
        True,
    )
    assert (a.cost_usd, a.input_tokens, a.created, a.started, a.ended, a.attempts) == (0.25, 7, 1.0, 3.0, 4.0, 1)
    assert len(a.result.messages) == 2
    assert isinstance(b.error, OverloadedError)
    assert (str(b.error), b.error.api_error_status, b.failures) == ("no", 529, 4)
    assert c.state == "queued"
    assert await again.lease(9, 9.0) == []  # nobody has asked for it yet
    await again.requeue()
    assert [one.key for one in await again.lease(9, 9.0)] == ["c"]
    await again.requeue(failed=True)
    assert [(one.key, one.failures) for one in await again.lease(9, 9.0)] == [("b", 0)]
    await again.close()


async def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    async def use(path: Path) -> None:
        journal = SqliteJournal(path)
        await journal.open(0.0, "resume", executes=False)
        await journal.close()

    for number in range(15):
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(use, tmp_path / f"{number}.db")
