"""Many real CLIs at once, in one home: each gets its answer, and the configuration that they share stays whole.

CLI 2.1.330 sees to that itself: a lock beside the file, a rename to put it in place. These tests say so for each
version that is pinned.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import anyio
import pytest
from process_checks import child_pids

import pilothouse as ph
from pilothouse.transports import CliTransport
from pilothouse_testing import ScriptedModel

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_cli,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

AT_ONCE = 20
DEADLINE = 120.0
LOOKS = 0.005  # seconds between two looks at the file
KEPT = {"hasCompletedOnboarding": True, "somethingOfTheUser": list(range(1000))}


@pytest.fixture
def anyio_backend() -> str:
    """Half a second of processor time for each CLI: once is enough."""
    return "asyncio"


class Watched:
    """The configuration that all children share, read over and over while they run.

    What counts is that every child answers and none complains or puts the file aside as broken, what the file holds in
    the end, and that nobody ever saw half of it.
    """

    def __init__(self, model: ScriptedModel) -> None:
        self.env = model.env(max_retries=0)
        del self.env["CLAUDE_CONFIG_DIR"]  # the usual place, and the one that users report
        self.home = model.home
        self.path = model.home / ".claude.json"
        self.seen: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOKS):
            try:
                whole = isinstance(json.loads(self.path.read_text()), dict)
            except FileNotFoundError:
                self.seen["absent"] += 1
            except ValueError:
                self.seen["broken"] += 1
            else:
                self.seen["whole" if whole else "broken"] += 1

    def content(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())

    def spoiled(self) -> list[str]:
        """What the CLI puts aside when it finds its configuration broken, and what it leaves when it is killed."""
        return [
            path.name for path in self.home.rglob(".claude.json*") if "corrupted" in path.name or ".tmp" in path.name
        ]


@pytest.fixture
def watched(scripted_model: ScriptedModel) -> Iterator[Watched]:
    scripted_model.default = "Hello"
    with Watched(scripted_model) as watched:
        yield watched


async def ask_all(cli: str, watched: Watched, count: int) -> tuple[Counter[str], list[str]]:
    answers: Counter[str] = Counter()
    complaints: list[str] = []

    async def ask(number: int) -> None:
        cwd = watched.home / f"project{number}"
        cwd.mkdir()
        result = await ph.query(
            "go", cli=cli, env=watched.env, inherit_env=False, cwd=cwd, stderr=complaints.append, timeout=DEADLINE
        )
        answers[result.text] += 1

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(ask, number)
    return answers, complaints


async def test_twenty_first_starts_in_one_home(real_cli: str, watched: Watched) -> None:
    answers, complaints = await ask_all(real_cli, watched, AT_ONCE)
    assert answers == {"Hello": AT_ONCE}
    # A child that finds no file, but the backup of a faster one, says so and goes on.
    words = ("not found", "backup", "restore", "cp ")
    assert all(any(word in line for word in words) for line in complaints if line.strip()), complaints
    assert not child_pids()
    assert watched.seen["whole"]
    assert not watched.seen["broken"]
    assert watched.content()["userID"]
    assert not watched.spoiled()


async def test_starts_at_once_keep_what_the_configuration_held(real_cli: str, watched: Watched) -> None:
    # 1.5 MB: long enough to write that a reader would see half of it.
    projects = {f"/project/{n}": {"hasTrustDialogAccepted": True, "history": ["y" * 1500]} for n in range(1000)}
    watched.path.write_text(json.dumps({**KEPT, "projects": projects}))
    answers, complaints = await ask_all(real_cli, watched, 5)
    assert answers == {"Hello": 5}
    assert not complaints
    content = watched.content()
    assert {key: content[key] for key in KEPT} == KEPT
    assert content["projects"].keys() >= projects.keys()
    assert not watched.spoiled()


def test_what_several_write_at_once_is_all_there(real_cli: str, watched: Watched) -> None:
    # A query writes little of its own; this writes a line each, and would lose one where there is no lock.
    names = [f"server{number}" for number in range(6)]
    watched.path.write_text(json.dumps(KEPT))
    command = [real_cli, "mcp", "add", "-s", "user"]
    adding = [
        subprocess.Popen([*command, name, "/bin/true"], env=watched.env, cwd=watched.home, stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [process.wait(DEADLINE) for process in adding] == [0] * len(names)
    assert sorted(watched.content()["mcpServers"]) == names
    assert watched.content()["somethingOfTheUser"] == KEPT["somethingOfTheUser"]


async def test_children_killed_while_they_write_leave_it_whole(real_cli: str, watched: Watched) -> None:
    cwd = watched.home / "project"
    cwd.mkdir()
    agent = ph.Agent(cli=real_cli, env=watched.env, inherit_env=False, cwd=cwd, timeout=DEADLINE)

    async def start_and_die() -> None:
        async with agent.query("go", transport=lambda: CliTransport(close_grace=0, term_grace=0)):
            while not watched.path.exists():
                await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(start_and_die)
    assert not child_pids()
    assert isinstance(watched.content(), dict)
    assert (await agent.query("go")).text == "Hello"


async def test_a_broken_configuration_is_named(real_cli: str, watched: Watched) -> None:
    watched.path.write_text('{"projects": {')
    with pytest.raises(ph.PilothouseError, match=r"\.claude\.json"):
        (await ph.query("go", cli=real_cli, env=watched.env, inherit_env=False, cwd=watched.home)).raise_for_error()
