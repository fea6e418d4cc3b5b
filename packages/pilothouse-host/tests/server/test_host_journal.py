"""The journal: what is kept, in which order, for how long, and what a failing disk does to it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from pilothouse.errors import UsageError
from pilothouse.transports import ExitInfo
from pilothouse_access.owners import OPERATOR, Owner
from pilothouse_host.journal import (
    RESTARTED_DETAIL,
    JournaledSession,
    JournalError,
    OutputJournal,
    OutputLog,
    OutputPrunedError,
    SqliteWorker,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def record(name: str, **more: object) -> JournaledSession:
    now = time.time()
    return JournaledSession(name, "wire", "live", "c", now, now, {"cwd": "/x"}, **more)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(path: Path, **limits: float) -> AsyncGenerator[tuple[OutputJournal, list[JournaledSession]]]:
    chosen = {"keep_bytes": 10, "keep_seconds": 1000.0, "keep_total": 10**9, **limits}
    journal = OutputJournal(path, **chosen)  # type: ignore[arg-type]
    found = await journal.open()
    try:
        yield journal, found
    finally:
        await journal.close()


async def test_output_is_read_from_any_position(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as (journal, found):
        assert found == []
        for name in "ab":
            await journal.create(record(name))
        data = bytes(range(256)) * 4
        for begin, end in pairwise([0, 1, 100, 101, 500, 1024]):
            await journal.append("a", begin, data[begin:end])
            await journal.append("b", begin, b"x" * (end - begin))
        for place in range(0, 1024, 7):
            for limit in (1, 99, 5000):
                assert await journal.read("a", place, limit) == data[place : place + limit]
        assert await journal.read("a", 1024, 10) == b""
        await journal.append("none", 0, b"of a session that was forgotten")
        assert await journal.read("none", 0, 10) == b""
    async with opened(tmp_path / "j") as (journal, found):
        assert [(r.id, r.state, r.output_end, r.start) for r in found] == [
            ("a", "ended", 1024, {"cwd": "/x"}), ("b", "ended", 1024, {"cwd": "/x"}),
        ]  # fmt: skip
        assert found[0].ending == ExitInfo(detail=RESTARTED_DETAIL)
        await journal.forget("a")
        assert await journal.read("a", 0, 10) == b""
        assert await journal.read("b", 0, 10) == b"x" * 10


async def test_changes_are_there_after_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as (journal, _):
        await journal.create(record("a"))
        ending = ExitInfo(3, "SIGTERM", "stderr", "detail")
        await journal.update("a", input_end=7, input_ended=True, client="d", conversation="e", acknowledged=2)
        await journal.update("a", state="ended", ending=ending)
    async with opened(tmp_path / "j") as (_, [found]):
        assert (found.input_end, found.input_ended, found.client, found.conversation) == (7, True, "d", "e")
        assert (found.acknowledged, found.ending) == (2, ending)


async def test_old_sessions_go_and_the_oldest_when_there_is_too_much(tmp_path: Path) -> None:
    async with opened(tmp_path / "j", keep_total=250) as (journal, _):
        for name in "abcd":
            await journal.create(record(name))
            await journal.append(name, 0, b"x" * 100)
        for name in "bca":
            await journal.update(name, state="ended")
        assert await journal.sweep() == ["b", "c"]
        assert await journal.sweep() == []
        await journal._run("UPDATE session SET changed = ?", (time.time() - 2000,))
        assert await journal.sweep() == ["a"]  # one that is live stays


def owned(name: str, owner: str) -> JournaledSession:
    return JournaledSession(name, "wire", "live", "c", time.time(), time.time(), {"owner": owner} if owner else {})


async def test_too_much_of_one_owner_costs_the_others_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "j", keep_total=1000) as (journal, _):
        for name, owner, size in (
            ("bob", "bob", 200), ("host", "", 200), ("ann1", "ann", 300), ("ann2", "ann", 300), ("ann3", "ann", 300),
        ):  # fmt: skip
            await journal.create(owned(name, owner))
            await journal.append(name, 0, b"x" * size)
            if name != "ann3":
                await journal.update(name, state="ended")
        assert await journal.sweep() == ["ann1"]
        await journal.append("ann3", 300, b"x" * 700)
        assert await journal.sweep() == ["ann2"]  # what runs stays, and bob and the operator do not pay for it
        assert await journal.sweep() == []


async def test_the_owner_of_a_conversation_is_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_host.journal.KEPT_CONVERSATIONS", 2)
    ann, bob = Owner("ann"), Owner("bob")
    async with opened(tmp_path / "j") as (journal, _):
        assert await journal.read_conversation_owner("c1") is None
        assert [await journal.claim_conversation("c1", each) for each in (ann, bob, OPERATOR)] == [ann] * 3
        assert await journal.claim_conversation("c2", OPERATOR) == OPERATOR
    async with opened(tmp_path / "j") as (journal, _):
        assert await journal.read_conversation_owner("c1") == ann
        for name in ("c3", "c4", "c5"):
            await journal.claim_conversation(name, bob)
        found = [await journal.read_conversation_owner(f"c{number}") for number in range(1, 6)]
        assert found == [ann, OPERATOR, None, bob, bob]  # the last two of each


async def test_options_are_beside_the_row_that_each_output_changes(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as (journal, _):
        start = {"cwd": "/x", "options": {"system_prompt": "y" * 1000}}
        await journal.create(JournaledSession("a", "hosted", "live", "", 1.0, 1.0, start))
        await journal.update("a", start={**start, "title": "t"})
        [[row]] = await journal._database.call(lambda found: found.execute("SELECT start FROM session").fetchall())
        assert b"y" not in row
    async with opened(tmp_path / "j") as (journal, [found]):
        assert found.start == {**start, "title": "t"}
        await journal.forget("a")
        assert await journal._database.call(lambda found: found.execute("SELECT * FROM options").fetchall()) == []


async def test_pruning_keeps_what_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_host.journal.PRUNE_STEP_BYTES", 1)
    monkeypatch.setattr("pilothouse_host.journal.TAIL_BYTES", 1)
    async with opened(tmp_path / "j") as (journal, _):
        made = record("a")
        await journal.create(made)
        output = OutputLog(journal, made, acknowledged=True)
        for number in range(10):
            await output.append(b"%d" % number * 10)
        assert output.start == 0
        await output.acknowledge(55)
        assert output.start == 40  # ten bytes below, in whole pieces
        assert await output.read(45, 100) == b"4" * 5 + b"5" * 10 + b"6" * 10 + b"7" * 10 + b"8" * 10 + b"9" * 10
        with pytest.raises(OutputPrunedError) as gone:
            await output.read(39, 1)
        assert gone.value.available_from == 40
        await output.acknowledge(10)  # an old one changes nothing
        assert made.acknowledged == 55
        output.finish()
        assert await output.read(100, 1) == b""


async def test_one_call_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    database = SqliteWorker(tmp_path / "d")
    await database.open()
    await database.call(lambda connection: connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)").close())

    def insert(number: int) -> asyncio.Future[None]:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO t VALUES (?)", (number,))

        return database.call(work)

    def broken(connection: sqlite3.Connection) -> None:
        raise ZeroDivisionError("by mistake")

    calls = [insert(1), insert(2), insert(1), database.call(broken), insert(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), JournalError, JournalError, type(None)]
    rows = await database.call(lambda connection: connection.execute("SELECT n FROM t").fetchall())
    assert rows == [(1,), (2,), (3,)]
    await database.close()
    await database.close()
    with pytest.raises(JournalError, match="closed"):
        await insert(4)


async def test_files_that_cannot_be_the_journal(tmp_path: Path) -> None:
    async with opened(tmp_path / "j"):
        with pytest.raises(UsageError, match="in use by another host"):
            async with opened(tmp_path / "j"):
                pass
    connection = sqlite3.connect(tmp_path / "newer")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(UsageError, match="another version of pilothouse"):
        async with opened(tmp_path / "newer"):
            pass
    (tmp_path / "a directory").mkdir()
    with pytest.raises(JournalError, match="cannot be opened"):
        async with opened(tmp_path / "a directory"):
            pass
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600
