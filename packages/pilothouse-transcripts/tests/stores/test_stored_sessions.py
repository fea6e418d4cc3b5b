"""The sessions of a store, asked and changed without a CLI: the same as those on disk."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from faulty_stores import Plain, Talk, rows_of

from pilothouse.errors import SessionLeasedError, SessionNotFoundError, StoreError, UsageError
from pilothouse_transcripts import (
    SessionInfo,
    get_session_info,
    get_session_messages,
    get_subagent_messages,
    list_subagents,
    project_key,
)
from pilothouse_transcripts import sync as sync_stores
from pilothouse_transcripts.stores import MemoryStore, StoredSessions, import_session_to_store, stored_sessions

pytestmark = pytest.mark.anyio
NOBODY = "00000000-0000-4000-8000-000000000000"


class Listing(Plain):
    """A store that somebody wrote for another SDK, without summaries."""

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        keys = [key for key in self.kept if key[0] == project_key and not key[2]]
        return [{"session_id": key[1], "mtime": 1_700_000_000_000 + n} for n, key in enumerate(keys)]

    async def list_subkeys(self, key: Any) -> list[str]:
        return [k[2] for k in self.kept if k[:2] == (key["project_key"], key["session_id"]) and k[2]]

    async def delete(self, key: Any) -> None:
        for kept in [kept for kept in self.kept if kept[:2] == (key["project_key"], key["session_id"])]:
            del self.kept[kept]


class Disk:
    """A configuration directory of the CLI, and a project."""

    def __init__(self, root: Path) -> None:
        self.config = root / "config"
        self.cwd = root / "project"
        self.cwd.mkdir()

    def talk(self, *output: str, **fields: Any) -> Talk:
        return Talk(self.config, self.cwd, *output, **fields)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return disk


@pytest.fixture(params=[MemoryStore, Listing])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


async def brought(store: Any, disk: Disk, *files: Talk) -> StoredSessions:
    for file in files:
        await import_session_to_store(file.id, store, directory=disk.cwd, config_dir=disk.config)
    return StoredSessions(store, directory=disk.cwd)


def talk(disk: Disk, title: str = "") -> Talk:
    file = disk.talk("find the bug", "here", "fix it", "done")
    if title:
        file.note("custom-title", customTitle=title)
    file.agent("a1", "look", "seen", agentType="Explore")
    return file


ONLY_OF_FILES = ("context_tokens", "cost_usd", "entrypoint", "file_size", "last_modified", "path")


def without_place(info: SessionInfo | None) -> dict[str, Any]:
    facts = {name: getattr(info, name) for name in info.__struct_fields__} if info is not None else {}
    return {n: v for n, v in facts.items() if n not in ONLY_OF_FILES}


@pytest.mark.requirement("L60")
async def test_answers_are_those_of_the_files(store: Any, disk: Disk, tmp_path: Path) -> None:
    file = talk(disk, "Bugs")
    sessions = await brought(store, disk, file)
    where: Any = {"config_dir": disk.config}
    assert without_place(await sessions.info(file.id)) == without_place(get_session_info(file.id, **where))
    assert await sessions.messages(file.id) == get_session_messages(file.id, **where)
    assert await sessions.messages(file.id, 2, 1) == get_session_messages(file.id, None, 2, 1, **where)
    assert await sessions.subagents(file.id) == ["a1"] == list_subagents(file.id, **where)
    assert await sessions.subagent_messages(file.id, "a1") == get_subagent_messages(file.id, "a1", **where)
    assert len(await sessions.subagent_messages(file.id, "a1")) == 2
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_list_is_newest_first_and_leaves_out_what_nobody_said(store: Any, disk: Disk) -> None:
    files = [talk(disk), disk.talk("second"), disk.talk()]
    files[2].note("mode", mode="default")
    side = disk.talk("of a sub-agent", isSidechain=True)
    sessions = await brought(store, disk, *files, side)
    infos = await sessions.list()
    assert [info.session_id for info in infos] == [files[1].id, files[0].id]
    assert [info.summary for info in infos] == ["second", "find the bug"]
    assert [info.session_id for info in await sessions.list(1)] == [files[1].id]
    assert [info.session_id for info in await sessions.list(5, 1)] == [files[0].id]
    assert await StoredSessions(store, project_key="another").list() == []


async def test_a_summary_that_is_older_than_the_session_is_not_believed(disk: Disk) -> None:
    class Stale(MemoryStore):
        async def list_session_summaries(self, project_key: str) -> Any:
            return [{**row, "mtime": 1, "data": {}} for row in await super().list_session_summaries(project_key)]

    sessions = await brought(Stale(), disk, talk(disk))
    assert [info.summary for info in await sessions.list()] == ["find the bug"]


@pytest.mark.requirement("L60")
async def test_title_and_tag(store: Any, disk: Disk, tmp_path: Path) -> None:
    file = talk(disk)
    sessions = await brought(store, disk, file)
    before = list(await store.load({"project_key": project_key(disk.cwd), "session_id": file.id}))
    await sessions.rename(file.id, "  The \n bug ")
    await sessions.tag(file.id, "urgent")
    info = await sessions.info(file.id)
    assert info is not None
    assert (info.custom_title, info.tag) == ("The bug", "urgent")
    await sessions.tag(file.id, None)
    [listed] = await sessions.list()
    assert (listed.summary, listed.tag) == ("The bug", None)
    after = await store.load({"project_key": project_key(disk.cwd), "session_id": file.id})
    assert after[: len(before)] == before
    assert [entry["type"] for entry in after[len(before) :]] == ["custom-title", "tag", "tag"]
    with pytest.raises(UsageError, match="empty"):
        await sessions.rename(file.id, " ")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("stored", [0, 1, 3, 5, 8])
async def test_what_a_killed_host_had_not_written_is_brought_from_its_disk(store: Any, disk: Disk, stored: int) -> None:
    """Titles and modes have no uuid: what the store has of them is not added again, equal ones are counted."""
    file = disk.talk("find the bug", "here")
    for mode in ("plan", "default", "plan", "plan"):
        file.note("mode", mode=mode)
    file.say("fix it")
    file.note("mode", mode="plan")
    file.agent("a1", "look", "seen", agentType="Explore")
    lines = rows_of(file.path)
    key: Any = {"project_key": project_key(disk.cwd), "session_id": file.id}
    if stored:
        await store.append(key, [dict(reversed(row.items())) for row in lines[:stored]])
        await store.append(
            {**key, "subpath": "subagents/agent-a1"}, [{"type": "agent_metadata", "agentType": "Explore"}]
        )
    for _ in range(2):
        await brought(store, disk, file)
        assert await store.load(key) == lines
        agent = await store.load({**key, "subpath": "subagents/agent-a1"})
        assert sorted(row["type"] for row in agent) == ["agent_metadata", "assistant", "user"]


@pytest.mark.requirement("E30", "L60")
async def test_a_fork_is_in_the_store(store: Any, disk: Disk, tmp_path: Path) -> None:
    file = talk(disk)
    sessions = await brought(store, disk, file)
    second = (await sessions.messages(file.id))[1]
    made = await sessions.fork(file.id, up_to_message_id=second.uuid, title="Branch")
    assert (made.messages, made.path) == (2, "")
    assert (await sessions.messages(made.session_id))[0].raw["message"]["content"] == "find the bug"
    assert {info.session_id: info.summary for info in await sessions.list()}[made.session_id] == "Branch"
    assert len(await sessions.messages(file.id)) == 4
    with pytest.raises(UsageError, match="no message"):
        await sessions.fork(file.id, up_to_message_id=NOBODY)
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_what_is_gone_is_gone(store: Any, disk: Disk) -> None:
    file = talk(disk)
    sessions = await brought(store, disk, file)
    await sessions.delete(file.id)
    await sessions.delete(file.id)
    assert await sessions.info(file.id) is None
    assert await sessions.messages(file.id) == []
    assert await sessions.subagents(file.id) == []


async def test_a_session_that_is_not_there(store: Any, disk: Disk) -> None:
    sessions = StoredSessions(store, directory=disk.cwd)
    assert (await sessions.info(NOBODY), await sessions.messages(NOBODY)) == (None, [])
    for change in (sessions.rename(NOBODY, "x"), sessions.tag(NOBODY, "x"), sessions.fork(NOBODY)):
        with pytest.raises(SessionNotFoundError, match=NOBODY):
            await change
    with pytest.raises(UsageError, match="not a session id"):
        await sessions.messages("../../etc/passwd")


async def test_what_is_in_use_is_not_changed(disk: Disk) -> None:
    store = MemoryStore()
    file = talk(disk)
    sessions = await brought(store, disk, file)
    await store.acquire({"project_key": project_key(disk.cwd), "session_id": file.id}, "host-7", 60.0)
    for change in (sessions.rename(file.id, "x"), sessions.tag(file.id, "x"), sessions.delete(file.id)):
        with pytest.raises(SessionLeasedError, match="in use by host-7"):
            await change
    assert len(await sessions.messages(file.id)) == 4


async def test_a_store_that_cannot_list_or_delete_says_so(disk: Disk) -> None:
    sessions = await brought(Plain(), disk, file := talk(disk))
    with pytest.raises(UsageError, match="no list_sessions"):
        await sessions.list()
    with pytest.raises(UsageError, match="no delete"):
        await sessions.delete(file.id)
    info = await sessions.info(file.id)
    assert info is not None
    assert info.summary == "find the bug"


async def test_a_store_that_fails_is_named() -> None:
    store = MemoryStore()
    await store.aclose()
    with pytest.raises(StoreError, match="closed"):
        await StoredSessions(store, project_key="p").list()


def test_plain_code_has_the_same(disk: Disk) -> None:
    store = MemoryStore()
    file = talk(disk)
    count = sync_stores.import_session_to_store(file.id, store, directory=disk.cwd, config_dir=disk.config)
    assert count == 7
    sessions = sync_stores.StoredSessions(store, directory=disk.cwd)
    sessions.rename(file.id, "Bugs")
    sessions.tag(file.id, "t")
    assert [info.summary for info in sessions.list(limit=1)] == ["Bugs"]
    assert len(sessions.messages(file.id, limit=3)) == 3
    assert sessions.subagents(file.id) == ["a1"]
    assert len(sessions.subagent_messages(file.id, "a1")) == 2
    fork = sessions.fork(file.id, title="Branch")
    sessions.delete(file.id)
    assert sessions.info(file.id) is None
    found = sessions.info(fork.session_id)
    assert found is not None
    assert found.custom_title == "Branch"


async def test_a_history_is_written_to_the_store(disk: Disk) -> None:
    store = MemoryStore()
    sessions = StoredSessions(store, directory=disk.cwd)
    history: list[Any] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    key = await sessions.write_history(history)
    assert [message.raw["message"]["role"] for message in await sessions.messages(key)] == ["user", "assistant"]
    (info,) = await sessions.list()
    assert (info.session_id, info.first_prompt) == (key, "hello")
    with pytest.raises(UsageError, match="already a session"):
        await sessions.write_history(history, session_id=key)
    with pytest.raises(UsageError, match="two messages of the user"):
        await sessions.write_history([history[0], history[0]])
    assert len(await sessions.list()) == 1


HISTORY: Final[list[Any]] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


async def test_of_two_histories_with_one_id_one_is_written(disk: Disk) -> None:
    """Both see that the id is free, and write one after the other."""

    class Meeting(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.looking = 0
            self.both = anyio.Event()
            self.turn = anyio.Lock()

        async def load(self, key: Any) -> Any:
            found = await super().load(key)
            self.looking += 1
            if self.looking == 2:
                self.both.set()
            await self.both.wait()
            return found

        async def acquire(self, key: Any, owner: str, ttl: float) -> Any:
            await self.turn.acquire()
            return await super().acquire(key, owner, ttl)

        async def release(self, lease: Any) -> None:
            await super().release(lease)
            self.turn.release()

    store = Meeting()
    outcomes: list[str] = []

    async def write() -> None:
        try:
            outcomes.append(await StoredSessions(store, directory=disk.cwd).write_history(HISTORY, session_id=NOBODY))
        except UsageError as error:
            outcomes.append(str(error))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(write)
    assert sorted(outcomes) == [NOBODY, f"there is already a session {NOBODY} in the store"]
    assert len(await StoredSessions(store, directory=disk.cwd).messages(NOBODY)) == 2


async def test_a_history_is_read_here_and_prepared_in_a_thread(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor of a database may belong to its thread; pictures take long."""
    here = threading.get_ident()
    readers: list[int] = []
    preparers: list[int] = []
    make_rows = stored_sessions.make_history_rows

    def spy(*args: Any) -> Any:
        preparers.append(threading.get_ident())
        return make_rows(*args)

    def read() -> Iterator[Any]:
        for message in HISTORY:
            readers.append(threading.get_ident())
            yield message

    monkeypatch.setattr(stored_sessions, "make_history_rows", spy)
    await StoredSessions(MemoryStore(), directory=disk.cwd).write_history(read())
    assert set(readers) == {here}
    assert len(preparers) == 1
    assert here not in preparers
