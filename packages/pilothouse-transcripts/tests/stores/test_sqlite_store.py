"""What goes wrong with files: other programs' files, busy, full, read-only, damaged, removed or newer ones."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilothouse.errors import StoreError, UsageError
from pilothouse_transcripts.stores import sqlite as sqlite_module
from pilothouse_transcripts.stores.base import SessionKey
from pilothouse_transcripts.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio
KEY: SessionKey = {"project_key": "-work", "session_id": "s"}
ENTRY = {"type": "x", "uuid": "u-1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folders" / "sessions.db"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
async def test_the_file_is_private_and_its_folders_are_made(path: Path) -> None:
    old = os.umask(0)
    try:
        async with SqliteStore(path) as store:
            await store.append(KEY, [ENTRY])
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert modes.pop("sessions.db") == 0o600
    assert all(mode & 0o077 == 0 for mode in modes.values())
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_nothing_is_made_before_first_use(path: Path) -> None:
    async with SqliteStore(path) as store:
        assert repr(store) == f"SqliteStore({str(path)!r})"
    assert not path.parent.exists()


@pytest.mark.parametrize("path", ["", ":memory:"])
async def test_a_path_is_a_file(path: str) -> None:
    with pytest.raises(UsageError, match="MemoryStore"):
        SqliteStore(path)


async def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with SqliteStore("~/kept.db") as store:
        await store.append(KEY, [ENTRY])
    assert (tmp_path / "kept.db").exists()


def _other_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (name)")
    connection.close()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "reported"),
    [
        (lambda path: path.write_bytes(b"this is a text, and no database" * 100), "not a SQLite database"),
        (lambda path: path.mkdir(), "cannot be opened"),
        (_other_program, "belongs to another program"),
        (_newer, "format 99, written by a newer pilothouse.*Upgrade"),
    ],
    ids=["text", "directory", "other program", "newer"],
)
async def test_a_file_that_is_none_of_ours_is_left_alone(
    tmp_path: Path, prepare: Callable[[Path], object], reported: str
) -> None:
    path = tmp_path / "file"
    prepare(path)
    before = path.read_bytes() if path.is_file() else b""
    async with SqliteStore(path) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match=reported):
                await store.append(KEY, [ENTRY])
    assert (path.read_bytes() if path.is_file() else b"") == before


@pytest.mark.parametrize(
    ("pragma", "reported", "undo"),
    [
        ("PRAGMA query_only = ON", "read only; nothing was written", "PRAGMA query_only = OFF"),
        ("PRAGMA max_page_count = 1", "disk is full; nothing was written", "PRAGMA max_page_count = 1000000"),
    ],
    ids=["read-only", "full"],
)
async def test_a_write_that_is_refused_is_reported_and_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, pragma: str, reported: str, undo: str
) -> None:
    large = {"type": "x", "text": "x" * 100_000}
    async with SqliteStore(path) as store:
        await store.append(KEY, [ENTRY], after=0)
        assert store._connection is not None
        store._connection.execute(pragma)
        with pytest.raises(StoreError, match=reported):
            await store.append(KEY, [{"type": "x", "uuid": "u-2"}, large], after=1)
        # The next call opens the file again, and nothing of the last one is there.
        assert await store.load(KEY) == [ENTRY]
        assert await store.append(KEY, [{"type": "x", "uuid": "u-2"}, large], after=1) == 3


async def test_a_file_that_others_keep_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_SECONDS", 0.05)
    async with SqliteStore(path) as store:
        await store.append(KEY, [ENTRY])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="busy"):
            await store.append(KEY, [{"type": "x"}])
        assert await store.load(KEY) == [ENTRY]  # readers wait for nobody
        other.close()
        assert await store.append(KEY, [{"type": "x"}]) == 2


async def test_a_damaged_file_is_reported(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.append(KEY, [{"type": "x", "text": "x" * 200_000}])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match="damaged"):
            await store.load(KEY)


async def test_a_file_that_was_removed_is_made_again(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.append(KEY, [ENTRY])
        for file in path.parent.iterdir():
            file.unlink()
        assert await store.append(KEY, [ENTRY], after=0) == 1
        async with SqliteStore(path) as second:
            assert await second.load(KEY) == [ENTRY]


async def test_the_tables_are_indexed_for_what_is_asked(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.append(KEY, [ENTRY])
        assert store._connection is not None
        for query in (
            "SELECT session, mtime FROM transcripts WHERE project = 'p' AND subpath = ''",
            "SELECT body FROM entries WHERE transcript = 1 ORDER BY number",
            "SELECT 1 FROM entries WHERE (transcript, uuid) = (1, 'u')",
            "SELECT subpath FROM transcripts WHERE (project, session) = ('p', 's') AND subpath <> ''",
        ):
            plan = " ".join(str(row) for row in store._connection.execute("EXPLAIN QUERY PLAN " + query))
            assert "SEARCH" in plan, query
            assert "SCAN" not in plan, query
            assert "TEMP B-TREE" not in plan, query
