"""Over a real ssh server on loopback, and in real containers: the suites of transports and agents, and faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from far_side import KeyTransport, command_lines, peer, processes, until_gone
from process_checks import child_pids
from real_places import engine, find_engine_fault, make_root, run_flags, ssh_server

import pilothouse as ph
from pilothouse import sync
from pilothouse.options import Invocation
from pilothouse.transports import Transport
from pilothouse_fleet import Fleet, GitWorktree
from pilothouse_pool import Pool
from pilothouse_remote import in_container, over_ssh
from pilothouse_testing import Gate, Pause, ScriptedModel, Text, ToolUse
from pilothouse_testing.conformance import AgentSuite, Behaviour, TransportSuite
from pilothouse_transcripts.stores import MemoryStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.elsewhere,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux programs"),
]
PYTHON = f"{sys.base_prefix}/bin/python3"


@pytest.fixture(scope="module")
def ssh_flags() -> Generator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="ph-test-ssh-") as place, ssh_server(Path(place) / "box") as flags:
        yield flags


@pytest.fixture(scope="module")
def root() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="ph-test-root-") as place:
        made = make_root(Path(place))
        if fault := find_engine_fault(made):
            pytest.skip(f"this machine starts no containers: {fault[:300]}")
        yield made


class _BothOutputsEnd:
    """ssh and the engines report the end of standard output when standard error has ended too."""

    async def test_ending_does_not_wait_for_a_peer_that_goes_on(self) -> None:
        pytest.skip("only the real end of the child ends the stream")


class _OverSsh:
    @pytest.fixture(autouse=True)
    def _flags(self, ssh_flags: list[str]) -> None:
        self.flags = ssh_flags


class _InContainer:
    @pytest.fixture(autouse=True)
    def _root(self, root: Path) -> None:
        self.root = root


class TestBytesOverSsh(_OverSsh, _BothOutputsEnd, TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return KeyTransport(over_ssh("127.0.0.1", flags=self.flags, cli=PYTHON)()), peer(behaviour)


class TestBytesOfAContainer(_InContainer, _BothOutputsEnd, TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        made = in_container(str(self.root), engine=engine(), flags=run_flags(), cli=PYTHON)()
        return KeyTransport(made), peer(behaviour)


def ssh_settings(flags: list[str], cli: str, model: ScriptedModel) -> dict[str, Any]:
    return {
        "transport": over_ssh("127.0.0.1", flags=flags, cli=cli, directory=str(model.home)),
        "env": model.env(max_retries=0) | {"PH_TEST_NEAR": str(model.home)},
    }


def container_settings(root: Path, cli: str, model: ScriptedModel) -> dict[str, Any]:
    home, folder = str(model.home), str(Path(cli).parent)
    transport = in_container(str(root), engine=engine(), mounts={home: "/work"}, flags=run_flags(folder), cli=cli)
    home_there = {"HOME": "/tmp", "CLAUDE_CONFIG_DIR": "/tmp/.claude", "PH_TEST_NEAR": home}
    return {"transport": transport, "env": model.env(max_retries=0) | home_there, "cwd": home}


@pytest.mark.real_cli
class TestAgentOverSsh(_OverSsh, AgentSuite):
    @pytest.fixture(autouse=True)
    def _cli(self, real_cli: str) -> None:
        self.cli = real_cli

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return ssh_settings(self.flags, self.cli, model)


@pytest.mark.real_cli
class TestAgentInAContainer(_InContainer, AgentSuite):
    @pytest.fixture(autouse=True)
    def _cli(self, real_cli: str) -> None:
        self.cli = real_cli

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return container_settings(self.root, self.cli, model)


@pytest.fixture(params=["ssh", "container"])
def settings(request: pytest.FixtureRequest, real_cli: str, scripted_model: ScriptedModel) -> dict[str, Any]:
    if request.param == "ssh":
        return ssh_settings(request.getfixturevalue("ssh_flags"), real_cli, scripted_model)
    return container_settings(request.getfixturevalue("root"), real_cli, scripted_model)


def find_first_shell(near: str) -> int:
    """The process id of the shell that waits for the child."""
    (relay,) = [pid for pid, held in processes(f"PH_TEST_NEAR={near}").items() if "\0relay\0" in held]
    return int(Path(f"/proc/{relay}/stat").read_text().rpartition(")")[2].split()[1])


def find_client() -> int:
    """The process id of the ssh or podman that this process has started."""
    (found,) = [
        pid
        for pid in child_pids()
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith((b"ssh", b"podman"))
    ]
    return found


FAULTS: dict[str, Callable[[str], None]] = {
    "client killed": lambda near: os.kill(find_client(), signal.SIGKILL),
    "supervisor killed": lambda near: os.kill(find_first_shell(near), signal.SIGKILL),
    "network dead": lambda near: os.kill(find_client(), signal.SIGSTOP),
}


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_left(settings: dict[str, Any], scripted_model: ScriptedModel, fault: str) -> None:
    gate, near = Gate(), str(scripted_model.home)
    scripted_model.default = lambda _: [Text("A "), Pause(gate), Text("ship.")]

    async def ask() -> None:
        with pytest.raises(ph.CLIExitedError):
            await ph.query("Go on.", **settings)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.to_thread.run_sync(gate.wait_reached, 60)
            FAULTS[fault](near)
            # 10 s from the moment when the other side can know it, and what a loaded machine needs
            await anyio.to_thread.run_sync(lambda: until_gone(f"PH_TEST_NEAR={near}", "/nowhere", 12.0))
    finally:
        gate.open()


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_death_of_this_process_leaves_nothing(
    settings: dict[str, Any], scripted_model: ScriptedModel
) -> None:
    gate, near = Gate(), str(scripted_model.home)
    scripted_model.default = lambda _: [Text("A "), Pause(gate), Text("ship.")]
    program = os.fork()
    if not program:
        with suppress(BaseException):
            sync.query("Go on.", **settings).result()
        os._exit(0)
    try:
        await anyio.to_thread.run_sync(gate.wait_reached, 60)
        os.kill(program, signal.SIGKILL)
        os.waitpid(program, 0)
        await anyio.to_thread.run_sync(lambda: until_gone(f"PH_TEST_NEAR={near}", "/nowhere", 12.0))
    finally:
        gate.open()


KEY = "sk-ant-elsewhere-0123456789"


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_large_prompt_travels_and_the_key_is_shown_nowhere(
    settings: dict[str, Any], scripted_model: ScriptedModel, request: pytest.FixtureRequest
) -> None:
    is_ssh = "ssh_flags" in request.fixturenames
    shown: list[str] = []
    holders: list[str] = []

    def answer(_: Any) -> str:
        shown.append(command_lines())
        if is_ssh:
            shown.append(Path(request.getfixturevalue("ssh_flags")[3]).with_name("log").read_text())
        else:
            running = ask_engine("ps", "--quiet").split()
            shown.extend(ask_engine(what, name) for name in running for what in ("inspect", "logs"))
        holders.extend(processes(f"ANTHROPIC_API_KEY={KEY}").values())
        return "Done."

    scripted_model.default = answer
    prompt = "Be brief. " * 105_000
    del settings["env"]["ANTHROPIC_API_KEY"]
    result = await ph.query("Hi", system_prompt=prompt, api_key=KEY, **settings)
    assert result.text == "Done."
    assert prompt.strip() in scripted_model.requests[-1].system_text
    assert holders, "claude has it"
    assert len(shown) > 1
    assert KEY not in "".join(shown)


def ask_engine(*words: str) -> str:
    done = subprocess.run([*engine(), *words], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_answered_is_in_the_store_after_a_kill(
    settings: dict[str, Any], scripted_model: ScriptedModel
) -> None:
    gate, near = Gate(), str(scripted_model.home)
    scripted_model.reply("Hello Alice.")
    scripted_model.reply([Text("A "), Pause(gate), Text("ship.")])
    scripted_model.default = "Alice."
    settings["session_store"] = MemoryStore()
    first = await ph.query("My name is Alice.", **settings)
    try:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(ph.CLIExitedError):
                    await ph.query("Go on.", resume=first.session_id, **settings)

            group.start_soon(ask)
            await anyio.to_thread.run_sync(gate.wait_reached, 60)
            os.kill(find_client(), signal.SIGKILL)
            await anyio.to_thread.run_sync(lambda: until_gone(f"PH_TEST_NEAR={near}", "/nowhere", 12.0))
    finally:
        gate.open()
    again = await ph.query("What is my name?", resume=first.session_id, **settings)
    assert again.text == "Alice."
    asked = str(scripted_model.requests[-1].body["messages"])
    assert all(text in asked for text in ("My name is Alice.", "Hello Alice.", "Go on."))


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_twenty_at_once(settings: dict[str, Any], scripted_model: ScriptedModel) -> None:
    scripted_model.default = lambda request: request.last_user_text.upper()
    answers: dict[int, str] = {}

    async def ask(number: int) -> None:
        answers[number] = (await ph.query(f"word {number}", **settings)).text

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
    assert answers == {number: f"WORD {number}" for number in range(20)}
    await anyio.to_thread.run_sync(lambda: until_gone(f"PH_TEST_NEAR={scripted_model.home}", "/nowhere"))


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("booted", [False, True])
async def test_a_pool_keeps_children_ready(
    settings: dict[str, Any], scripted_model: ScriptedModel, booted: bool
) -> None:
    scripted_model.default = lambda request: request.last_user_text.upper()
    made: list[Transport] = []

    def make() -> Transport:
        made.append(settings["transport"]())
        return made[-1]

    async with Pool(transport=make, max_live=2, booted=booted) as pool:
        agent = ph.Agent(ph.Options(**settings), transport=pool)
        await agent.prewarm(2)
        async with agent.session() as session:
            assert (await session.query("one")).text == "ONE"
            assert (await agent.query("two")).text == "TWO"
            assert (await session.query("three")).text == "THREE"
            assert pool.in_use == 1
            assert len(made) <= 3  # two, and one that is kept ready for the next query
    await anyio.to_thread.run_sync(lambda: until_gone(f"PH_TEST_NEAR={scripted_model.home}", "/nowhere"))


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_thirty_runs_of_a_fleet_each_in_a_container_with_a_worktree(
    root: Path, real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    """Each run writes into its own working tree, and sees no other."""
    repository, runs = tmp_path / "shop", tmp_path / "runs"
    git(tmp_path, "init", "-q", "-b", "main", str(repository))
    (repository / "README").write_text("The shop.")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Begin")

    def play(request: Any) -> Any:
        if request.body["messages"][-1]["content"][-1].get("type") == "tool_result":
            return "done"
        command = f"ls -d /work {runs} 2>&1; cat /work/README > /work/{request.last_user_text}"
        return ToolUse("Bash", {"command": command, "description": "Copy"})

    scripted_model.default = play
    settings = container_settings(root, real_cli, scripted_model)
    del settings["cwd"]
    folder = str(Path(real_cli).parent)
    transport = in_container(str(root), engine=engine(), mounts={".": "/work"}, flags=run_flags(folder), cli=real_cli)
    settings |= {"transport": transport, "env": settings["env"] | {"IS_SANDBOX": "1"}}
    agent = ph.Agent(permission_mode="bypassPermissions", **settings)
    workspace = GitWorktree(repository, root=runs, keep="always")
    async with Fleet(agent, concurrency=4, workspace=workspace) as fleet:
        done = await fleet.gather([f"file-{number}" for number in range(30)])
    assert [run.state for run in done] == ["succeeded"] * 30, [run.error for run in done]
    trees = [path for path in runs.iterdir() if (path / "README").exists()]
    written = sorted(path.name for tree in trees for path in tree.glob("file-*"))
    assert written == sorted(f"file-{number}" for number in range(30))
    assert all(len(list(tree.glob("file-*"))) == 1 for tree in trees)
    seen = str([request.body["messages"] for request in scripted_model.requests])
    assert f"cannot access '{runs}'" in seen
    assert not (repository / "file-0").exists()
    await anyio.to_thread.run_sync(lambda: until_gone(f"PH_TEST_NEAR={scripted_model.home}", "/nowhere"))


def git(directory: Path, *words: str) -> None:
    config = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *config, *words], cwd=directory, check=True)
