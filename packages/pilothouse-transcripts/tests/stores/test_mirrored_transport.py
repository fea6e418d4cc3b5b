"""A session from a store, on a machine that never saw it: what is read, where it is put, and that it goes again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from faulty_stores import (
    AGENT,
    ID,
    OTHER_ID,
    Moody,
    Plain,
    fail,
    hang,
    leave,
    make_entries,
    mirror_frame,
    numbers,
    peer,
    rows_of,
    turn,
)

import pilothouse as ph
from pilothouse.errors import (
    CLIStartError,
    OptionsError,
    SessionLeasedError,
    SessionNotFoundError,
    StoreError,
    UsageError,
)
from pilothouse.options import Invocation
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_transcripts import project_key
from pilothouse_transcripts.stores import MemoryStore, import_session_to_store, restore
from pilothouse_transcripts.stores.base import TranscriptKey
from pilothouse_transcripts.stores.mirror import ATTEMPT_SECONDS, SessionWriter
from pilothouse_transcripts.stores.restore import StoreReader, call_store
from pilothouse_transcripts.stores.stored_sessions import import_file

pytestmark = pytest.mark.anyio
Ask = Callable[..., ph.Query]


# What is read.


class Scripted(Plain):
    """Gives what it was made with."""

    def __init__(self, main: Any, subkeys: Any = ()) -> None:
        super().__init__()
        self.main, self.subkeys = main, subkeys

    async def load(self, key: Any) -> Any:
        return self.main if "subpath" not in key else [{"sub": key["subpath"]}]

    async def list_subkeys(self, key: Any) -> Any:
        return self.subkeys


async def test_odd_entries_in_a_store_are_skipped_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    store = Scripted([{"n": 1}, "text", None, {"n": 2}], ["subagents/agent-1", "../../etc/passwd", 7])
    found = await StoreReader(store, 5).read_session(TranscriptKey("p", ID))
    assert found is not None
    assert found.entries == [{"n": 1}, {"n": 2}]
    assert dict(found.subpaths) == {"subagents/agent-1": [{"sub": "subagents/agent-1"}]}
    assert "entry 2 is not an object" in caplog.text
    assert "'../../etc/passwd'" in caplog.text


@pytest.mark.parametrize("main", [None, [], ["text"]])
async def test_a_session_without_entries_is_none(main: Any) -> None:
    assert await StoreReader(Scripted(main), 5).read_session(TranscriptKey("p", ID)) is None


async def test_the_latest_session_is_no_sub_agent() -> None:
    store = MemoryStore()
    for number, (session, entry) in enumerate(
        [
            (OTHER_ID, {"n": 1}),
            (ID, {"n": 2}),
            ("1b1760d4-6353-4c24-b1cf-670386ad0f93", {"isSidechain": True}),
            ("x", {}),
        ]
    ):
        await store.append({"project_key": "p", "session_id": session}, [{"type": "x", "n": number, **entry}])
    assert await StoreReader(store, 5).find_latest("p") == TranscriptKey("p", ID)
    assert await StoreReader(store, 5).find_latest("q") is None


@pytest.mark.parametrize("rows", [[{"session_id": ID}], ["x"], 7, [{"session_id": ID, "mtime": "soon"}]])
async def test_a_list_of_another_shape_is_named(rows: Any) -> None:
    class Odd(Plain):
        async def list_sessions(self, project_key: str) -> Any:
            return rows

    with pytest.raises(StoreError, match="something else than rows"):
        await StoreReader(Odd(), 5).find_latest("p")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("fault", "words"),
    [(fail, "OSError: the network is gone"), (hang, "load_timeout"), (leave, r"failed in load\(\).*: SystemExit: 3")],
)
async def test_a_store_that_fails_while_it_is_read_is_named(fault: Any, words: str) -> None:
    class Failing(Plain):
        async def load(self, key: Any) -> Any:
            await fault()

    with pytest.raises(StoreError, match=words):
        await StoreReader(Failing(), 5).read_session(TranscriptKey("p", ID))


@pytest.mark.virtual_time
async def test_a_store_that_hangs_while_a_session_is_brought_there_is_named() -> None:
    store = Plain()
    store.faults = [hang]
    append = SessionWriter(store, 60.0).append(TranscriptKey("p", ID), make_entries(1))
    with pytest.raises(StoreError, match=r"append\(\) within 20 s"):
        await call_store(append, "append()", ATTEMPT_SECONDS)


@pytest.mark.parametrize(("fault", "words"), [(fail, "OSError: the network is gone"), (leave, "SystemExit: 3")])
async def test_a_store_that_fails_while_a_session_is_brought_there_is_named(
    tmp_path: Path, fault: Any, words: str
) -> None:
    path = tmp_path / f"{ID}.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in make_entries(1)))
    store = Plain()
    store.faults = [fault]
    with pytest.raises(StoreError, match=rf"failed in append\(\): {words}"):
        await import_file(path, TranscriptKey("p", ID), SessionWriter(store, 60.0))


async def test_a_store_that_gives_text_instead_of_entries_is_named() -> None:
    class Odd(Plain):
        async def load(self, key: Any) -> Any:
            return "entries"

    with pytest.raises(StoreError, match=r"gave str in load\(\); expected a list"):
        await StoreReader(Odd(), 5).read_entries(TranscriptKey("p", ID))


# Through queries and sessions, with a peer in memory.


class Seen:
    """What a child found when it was started."""

    def __init__(self) -> None:
        self.invocations: list[Invocation] = []
        self.files: list[list[str]] = []
        self.entries: list[list[int]] = []

    def transport(self, *frames: Any) -> Callable[[], MemoryTransport]:
        return lambda: peer(turn(*frames), turn(), look=self.look)

    def look(self, invocation: Invocation) -> None:
        self.invocations.append(invocation)
        if invocation.home is not None:
            config = Path(invocation.home.ensure(), ".claude")
        else:
            config = Path(invocation.env["CLAUDE_CONFIG_DIR"])
        files = sorted((config / "projects").rglob("*.jsonl"))
        self.files.append([path.name for path in files])
        self.entries.append([row["n"] for path in files for row in rows_of(path)])


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def ask(cwd: Path, config: Path, temporary: Path, seen: Seen) -> Ask:
    def ask(store: Any, *frames: Any, **more: Any) -> ph.Query:
        settings: dict[str, Any] = {"cwd": cwd, "config_dir": config, "transport": seen.transport(*frames), **more}
        return ph.query("hi", session_store=store, **settings)

    return ask


async def filled(store: Any, cwd: Path) -> Any:
    key: Any = {"project_key": project_key(cwd), "session_id": ID}
    await store.append(key, make_entries(1, 2))
    await store.append({**key, "subpath": "subagents/agent-1"}, make_entries(3))
    return store


@pytest.mark.requirement("E85", "L60")
@pytest.mark.parametrize("kind", [Plain, Moody])
async def test_a_session_from_the_store_is_there_for_the_child_and_gone_after_it(
    kind: Any, cwd: Path, temporary: Path, config: Path, seen: Seen, ask: Ask
) -> None:
    store = await filled(kind(), cwd)
    result = await ask(
        store, mirror_frame(*make_entries(4), path=f"/x/projects/{project_key(cwd)}/{ID}.jsonl"), resume=ID
    )
    assert result.text == "hi"
    has_subkeys = kind is Moody
    assert seen.files == [[f"{ID}.jsonl", *(["agent-1.jsonl"] if has_subkeys else [])]] or seen.files == [
        ["agent-1.jsonl", f"{ID}.jsonl"]
    ]
    assert sorted(seen.entries[0]) == ([1, 2, 3] if has_subkeys else [1, 2])
    assert f"--resume={ID}" in seen.invocations[0].argv
    assert list(temporary.iterdir()) == []
    assert list(config.iterdir()) == []
    assert numbers(await store.load({"project_key": project_key(cwd), "session_id": ID})) == [1, 2, 4]


@pytest.mark.parametrize("how", ["start", "child", "cancelled"])
async def test_it_is_gone_whatever_becomes_of_the_child(
    how: str, cwd: Path, temporary: Path, config: Path, seen: Seen
) -> None:
    store = await filled(MemoryStore(), cwd)
    running = anyio.Event()

    class Broken(MemoryTransport):
        async def start(self, invocation: Invocation) -> None:
            raise CLIStartError("it cannot be started")

    async def play(conn: MemoryPeer) -> None:
        seen.look(conn.invocation)
        running.set()
        if how == "child":
            conn.end(exit_code=7)
        await anyio.sleep_forever()

    transport = Broken(play) if how == "start" else MemoryTransport(play)
    query = ph.query("hi", session_store=store, cwd=cwd, config_dir=config, transport=transport, resume=ID)
    if how == "cancelled":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(query.result)
            await running.wait()
            assert len(list(temporary.iterdir())) == 1
            tasks.cancel_scope.cancel()
    else:
        with pytest.raises(ph.ProcessError):
            await query
    assert len(seen.files) == (0 if how == "start" else 1)
    assert list(temporary.iterdir()) == []
    assert (await store.acquire({"project_key": project_key(cwd), "session_id": ID}, "next", 1.0)).token == 2


async def test_a_session_that_is_nowhere_is_not_found(ask: Ask, seen: Seen, temporary: Path) -> None:
    with pytest.raises(SessionNotFoundError, match="in the session store, and none on this machine"):
        await ask(MemoryStore(), resume=ID)
    assert seen.invocations == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("session", ["../../etc/passwd", "my title", ID + "x"])
async def test_what_is_no_id_is_refused(ask: Ask, seen: Seen, session: str) -> None:
    with pytest.raises(OptionsError, match="knows sessions by id"):
        await ask(MemoryStore(), resume=session)
    assert seen.invocations == []


def on_disk(config: Path, cwd: Path) -> Path:
    folder = config / "projects" / project_key(cwd)
    (folder / ID / "subagents").mkdir(parents=True)
    path = folder / f"{ID}.jsonl"
    rows = [{"type": "user", "uuid": f"u{n}", "n": n, "message": {"content": "a"}} for n in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "half a row\n\0\0\n" + '{"type":"tag","n":3}\n')
    (folder / ID / "subagents" / "agent-1.jsonl").write_text('{"type":"x","n":9}\n')
    (folder / ID / "subagents" / "agent-1.meta.json").write_text('{"agentType":"Explore"}')
    return path


@pytest.mark.parametrize("latest", [False, True])
async def test_a_session_on_disk_alone_goes_on_there_and_the_store_gets_all_of_it(
    config: Path, cwd: Path, ask: Ask, seen: Seen, temporary: Path, latest: bool
) -> None:
    path = on_disk(config, cwd)
    path.write_text(path.read_text().replace("half a row\n\0\0\n", ""))
    store = MemoryStore()
    frame = mirror_frame(*make_entries(4), path=str(path))
    await ask(store, frame, **({"continue_conversation": True} if latest else {"resume": ID}))
    assert seen.invocations[0].env["CLAUDE_CONFIG_DIR"] == str(config)
    assert f"--resume={ID}" in seen.invocations[0].argv
    assert "--continue" not in seen.invocations[0].argv
    key: Any = {"project_key": project_key(cwd), "session_id": ID}
    assert numbers(await store.load(key)) == [1, 2, 3, 4]
    key["subpath"] = "subagents/agent-1"
    agent = await store.load(key)
    assert agent == [{"type": "x", "n": 9}, {"type": "agent_metadata", "agentType": "Explore"}]


async def test_import_leaves_out_what_is_no_row_and_may_be_repeated(config: Path, cwd: Path) -> None:
    path, store, problems = on_disk(config, cwd), MemoryStore(), list[Any]()
    for _ in range(2):
        count = await import_session_to_store(
            ID, store, directory=cwd, config_dir=config, batch_size=2, on_problem=problems.append
        )
        assert count == 5
    assert [str(problem) for problem in problems] == [f"{path}:3: not a JSON object"] * 2
    key: Any = {"project_key": project_key(cwd), "session_id": ID}
    assert numbers(await store.load(key))[:3] == [1, 2, 3]
    assert len([entry for entry in await store.load(key) or [] if "uuid" in entry]) == 2
    with pytest.raises(SessionNotFoundError):
        await import_session_to_store(OTHER_ID, store, config_dir=config)
    with pytest.raises(UsageError):
        await import_session_to_store("../x", store, config_dir=config)


@pytest.mark.requirement("E85")
async def test_a_session_that_is_in_use_is_not_started_a_second_time(
    cwd: Path, ask: Ask, seen: Seen, temporary: Path
) -> None:
    store = await filled(MemoryStore(), cwd)
    await store.acquire({"project_key": project_key(cwd), "session_id": ID}, "host-7:42", 30.0)
    with pytest.raises(SessionLeasedError, match="in use by host-7:42") as caught:
        await ask(store, resume=ID)
    assert 0 < caught.value.seconds_left <= 30
    assert seen.invocations == []
    assert (await ask(store, resume=ID, fork_session=True)).text == "hi"  # a fork writes nothing there
    assert list(temporary.iterdir()) == []


async def test_a_disk_that_is_full_is_named(
    cwd: Path, ask: Ask, seen: Seen, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(restore, "_write_lines", full)
    store = await filled(MemoryStore(), cwd)
    with pytest.raises(CLIStartError, match="No space left on device; look at TMPDIR"):
        await ask(store, resume=ID)
    assert (seen.invocations, list(temporary.iterdir())) == ([], [])
    assert (await store.acquire({"project_key": project_key(cwd), "session_id": ID}, "next", 1.0)).token == 2


async def test_a_store_that_hangs_does_not_hold_up_a_start_for_ever(
    cwd: Path, ask: Ask, seen: Seen, temporary: Path
) -> None:
    class Hanging(Moody):
        async def acquire(self, key: Any, owner: str, ttl: float) -> Any:
            await hang()

    with pytest.raises(StoreError, match=r"did not answer acquire\(\) within 0.05 s"):
        await ask(await filled(Hanging(), cwd), resume=ID, load_timeout=0.05)
    assert seen.invocations == []


@pytest.mark.requirement("E30")
async def test_a_fork_begins_with_the_whole_conversation(cwd: Path, config: Path, temporary: Path, seen: Seen) -> None:
    store = Moody()
    frame = mirror_frame(*make_entries(1, 2), path=f"/x/projects/{project_key(cwd)}/{ID}.jsonl")
    settings: Any = {"session_store": store, "cwd": cwd, "config_dir": config}
    async with ph.session(transport=seen.transport(frame), session_id=ID, **settings) as session:
        gate = anyio.Event()
        store.faults = [gate.wait]  # a slow store: the end of the turn is not there yet
        await session.query("a")
        fork = session.fork()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fork.start)
            await anyio.wait_all_tasks_blocked()
            gate.set()
        await fork.close()
    assert seen.entries[-1] == [1, 2]


async def test_an_isolated_child_has_the_session_in_its_home(
    cwd: Path, temporary: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled(MemoryStore(), cwd)
    await ph.query(
        "hi", session_store=store, cwd=cwd, transport=seen.transport(), resume=ID, isolation="strict", inherit_env=False
    )
    assert sorted(seen.entries[0]) == [1, 2, 3]
    assert seen.invocations[0].home is not None
    assert list(temporary.iterdir()) == []


async def test_a_frame_of_a_sub_agent_counts_on(cwd: Path, ask: Ask) -> None:
    store = await filled(MemoryStore(), cwd)
    path = AGENT.replace("/-w/", f"/{project_key(cwd)}/")
    await ask(store, mirror_frame(*make_entries(5), path=path), resume=ID)
    key: Any = {"project_key": project_key(cwd), "session_id": ID, "subpath": "subagents/agent-1"}
    assert numbers(await store.load(key)) == [3, 5]
