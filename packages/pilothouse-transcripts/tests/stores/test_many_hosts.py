"""One conversation on several hosts: processes with homes of their own, the real CLI, and a store that they share."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk import InMemorySessionStore

import pilothouse as ph
from pilothouse import sync
from pilothouse_pool import Pool
from pilothouse_testing import Hang, ScriptedModel, ToolUse
from pilothouse_transcripts import project_key
from pilothouse_transcripts.stores import MemoryStore, StoreBackend
from pilothouse_transcripts.stores.sqlite import SqliteStore

pytestmark = [
    pytest.mark.real_cli,
    pytest.mark.skipif(os.name != "posix", reason="hosts are killed and stopped by signals"),
]

HOST = Path(__file__).with_name("session_host_program.py")
LIMIT = 60.0


class Host:
    """A process that has the session.

    Attributes:
        process: the process.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HOST), json.dumps(task)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def hears(self) -> dict[str, Any]:
        """The next thing that it says; {} at its end."""
        line = self._lines.get(timeout=LIMIT)
        return json.loads(line) if line else {}

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Region:
    """A model, a store, and hosts with nothing else in common but the path of the project."""

    def __init__(self, cli: str, model: ScriptedModel, folder: Path) -> None:
        self.id = str(uuid.uuid4())
        self.model = model
        self.folder = folder
        self.store = folder / "sessions.db"
        self.cwd = folder / "project"
        self.cwd.mkdir()
        self.hosts: list[Host] = []
        self._cli = cli

    def env(self) -> dict[str, str]:
        """That of a host that nobody has used before."""
        home = self.folder / f"home{len(list(self.folder.glob('home*')))}"
        (home / "tmp").mkdir(parents=True)
        own = {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / ".claude"), "TMPDIR": str(home / "tmp")}
        return {**self.model.env(max_retries=0), **own}

    def host(self, *prompts: str, resume: bool = True, lease: float = 2.0) -> Host:
        about = {"id": self.id, "resume": resume, "lease": lease, "prompts": prompts}
        where = {"cli": self._cli, "env": self.env(), "cwd": str(self.cwd), "store": str(self.store)}
        self.hosts.append(Host({**about, **where}))
        return self.hosts[-1]

    def settings(self, store: Any) -> dict[str, Any]:
        return {"cli": self._cli, "env": self.env(), "inherit_env": False, "cwd": self.cwd, "session_store": store}

    def entries(self) -> list[dict[str, Any]]:
        async def load() -> list[dict[str, Any]]:
            async with SqliteStore(self.store) as store:
                return await store.load({"project_key": project_key(self.cwd), "session_id": self.id}) or []

        return anyio.run(load)

    def wait_for(self, words: str) -> list[dict[str, Any]]:
        """Wait until somebody has stored these words."""
        return self.until(lambda: found if words in json.dumps(found := self.entries()) else None)

    def until(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + LIMIT
        while not (found := look()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def taken_over(self, *prompts: str) -> Host:
        """A host that has the session, as soon as it is to be had."""

        def try_it() -> Host | None:
            host = self.host(*prompts)
            output = host.hears()
            if output.get("event") == "ready":
                return host
            assert output.get("kind") == "SessionLeasedError", output
            host.end()
            return None

        return self.until(try_it)


@pytest.fixture
def region(real_cli: str, tmp_path: Path) -> Iterator[Region]:
    with ScriptedModel(default="Yes") as model:
        made = Region(real_cli, model, Path(os.path.realpath(tmp_path)))
        yield made
        for host in made.hosts:
            host.end()


def check_whole(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Nothing that was recorded is lost, or there twice, and every entry follows one that is there."""
    assert after[: len(before)] == before
    uuids = [entry["uuid"] for entry in after if "uuid" in entry]
    assert len(uuids) == len(set(uuids))
    parents = {entry["parentUuid"] for entry in after if entry.get("parentUuid")}
    assert parents <= set(uuids)


@pytest.mark.requirement("E85")
def test_a_host_is_killed_in_the_middle_of_a_turn_and_another_takes_over(region: Region) -> None:
    region.model.on("think for ever", Hang())
    first = region.host("My name is Alice", "think for ever", resume=False)
    assert first.hears() == {"event": "ready"}
    assert first.hears()["text"] == "Yes"
    before = region.wait_for("think for ever")
    refused = region.host("What is my name?").hears()
    assert refused["kind"] == "SessionLeasedError"
    assert f":{first.process.pid}:" in refused["holder"]
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(LIMIT)

    second = region.taken_over("What is my name?")
    answer = second.hears()
    assert (answer["text"], answer["id"]) == ("Yes", region.id)
    assert second.hears() == {}
    output = json.dumps(region.model.requests[-1].body["messages"])
    assert output.index("My name is Alice") < output.index("think for ever") < output.index("What is my name?")
    check_whole(before, region.wait_for("What is my name?"))


@pytest.mark.requirement("E85")
def test_a_host_that_was_away_too_long_is_shut_out(region: Region) -> None:
    region.model.on("think for ever", Hang())
    first = region.host("My name is Alice", "think for ever", resume=False)
    assert [first.hears()["event"] for _ in range(2)] == ["ready", "answer"]
    before = region.wait_for("think for ever")
    first.process.send_signal(signal.SIGSTOP)  # the machine sleeps, the network is cut: it does not know
    second = region.taken_over("What is my name?")
    assert second.hears()["text"] == "Yes"
    assert second.hears() == {}
    taken = region.entries()
    first.process.send_signal(signal.SIGCONT)
    lost = first.hears()
    assert (lost["event"], lost["kind"]) == ("error", "LeaseLostError")
    assert first.hears() == {}
    assert region.entries() == taken
    check_whole(before, taken)


@pytest.mark.requirement("E85", "E30", "L60")
@pytest.mark.parametrize("kind", ["sqlite", "theirs"])
def test_resume_continue_and_fork_from_a_store(kind: str, region: Region) -> None:
    """Over the blocking twin, and over a store that was written for another SDK."""
    model = region.model
    store: Any = SqliteStore(region.folder / "s.db") if kind == "sqlite" else InMemorySessionStore()
    model.reply(ToolUse("Task", {"description": "look", "prompt": "look", "subagent_type": "general-purpose"}))
    first = sync.query("My name is Alice", **region.settings(store)).result()
    assert first.text == "Yes"
    again = sync.query("again", resume=first.session_id, **region.settings(store)).result()
    assert again.session_id == first.session_id
    fork = sync.query("fork", resume=first.session_id, fork_session=True, **region.settings(store)).result()
    assert fork.session_id != first.session_id
    latest = sync.query("latest", continue_conversation=True, **region.settings(store)).result()
    assert latest.session_id == fork.session_id
    output = json.dumps(model.requests[-1].body["messages"])
    assert [words in output for words in ("My name is Alice", "again", "fork")] == [True] * 3
    with sync.session(resume=first.session_id, **region.settings(store)) as session:
        assert session.query("in a session").result().text == "Yes"
    output = json.dumps(model.requests[-1].body["messages"])
    assert ("again" in output, '"fork"' in output) == (True, False)

    async def check() -> None:
        key: Any = {"project_key": project_key(region.cwd), "session_id": first.session_id}
        check_whole([], await store.load(key))
        [subpath] = await store.list_subkeys(key)
        assert "agent_metadata" in {entry["type"] for entry in await store.load({**key, "subpath": subpath})}
        if isinstance(store, StoreBackend):
            await store.aclose()

    anyio.run(check)


def test_a_pool_serves_agents_with_a_store(region: Region) -> None:
    store = MemoryStore()

    async def main() -> None:
        async with Pool() as pool:
            agent = ph.Agent(transport=pool, **region.settings(store))
            await agent.prewarm(1, sessions=True)
            async with agent.session() as session:
                assert (await session.query("hi")).text == "Yes"
                key: Any = {"project_key": project_key(region.cwd), "session_id": session.id}
        check_whole([], await store.load(key) or [])
        assert await store.count(key) > 0

    anyio.run(main)
