"""Commands of the real CLI that detach a process: nothing of them outlives the query, the session or this program."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import both_loops
from process_checks import eventually, find_processes, is_dead, linux_only

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, linux_only]

SLEEP = "exec sleep 600"
DETACHED = {
    "setsid": f"setsid sh -c 'echo $$ >PIDS; {SLEEP}' & echo ok",
    "nohup": f"nohup sh -c 'echo $$ >PIDS; {SLEEP}' >/dev/null 2>&1 & echo ok",
    "subshell": f"(sh -c 'echo $$ >PIDS; {SLEEP}' &); echo ok",
    "double fork": f"setsid sh -c '(sh -c \"echo \\$\\$ >PIDS; {SLEEP}\" &)' & echo ok",
    "empty environment": f"env -i setsid /bin/sh -c 'echo $$ >PIDS; {SLEEP}' & echo ok",
}
ENDLESS = [Text("x" * 20, chunks=20, delay=30)]


class Detached:
    """A command that the model runs, and the process that it detaches."""

    def __init__(self, claude: Any) -> None:
        self.file: Path = claude.cwd / "pid"

    def make_use(self, how: str) -> ToolUse:
        wait = f"; while [ ! -s {self.file} ]; do sleep 0.02; done"
        return ToolUse("Bash", {"command": DETACHED[how].replace("PIDS", str(self.file)) + wait})

    @property
    def pid(self) -> int:
        return int(self.file.read_text())


@pytest.fixture
def detached(claude: Any) -> Detached:
    return Detached(claude)


@pytest.mark.requirement("G9")
@pytest.mark.sample(3)
@pytest.mark.parametrize("how", DETACHED)
async def test_a_detached_process_ends_with_the_query(
    claude: Any, model: ScriptedModel, detached: Detached, how: str
) -> None:
    model.on("go", reply=Steps([detached.make_use(how)], "done"))
    assert (await claude.ask(allowed_tools=["Bash"])).text == "done"
    assert is_dead(detached.pid)


@pytest.mark.requirement("G9", "G11", "G45", "G47")
@both_loops
async def test_a_detached_process_ends_when_the_query_is_cancelled(
    claude: Any, model: ScriptedModel, detached: Detached
) -> None:
    model.on("go", reply=Steps([detached.make_use("setsid")], ENDLESS))

    async def cancel_when_detached(scope: anyio.CancelScope) -> None:
        while not detached.file.exists() or not detached.file.read_text():
            await anyio.sleep(0.02)
        scope.cancel()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_detached, group.cancel_scope)
            await claude.ask(allowed_tools=["Bash"])
    assert is_dead(detached.pid)


async def test_a_session_keeps_its_processes_until_it_is_closed(
    claude: Any, model: ScriptedModel, detached: Detached
) -> None:
    behind = claude.cwd / "behind"
    background = ToolUse("Bash", {"command": f"echo $$ >{behind}; sleep 600", "run_in_background": True})
    model.on("go", reply=Steps([detached.make_use("nohup")], [background], "done"))
    model.default = "ok"
    async with claude.session(allowed_tools=["Bash"]) as session:
        await session.query("go")
        eventually(lambda: behind.exists() and behind.read_text(), "the background command has not begun")
        pids = [detached.pid, int(behind.read_text())]
        await session.query("and now?")
        assert not any(is_dead(pid) for pid in pids)
    assert is_dead(pids[0])
    eventually(lambda: is_dead(pids[1]), "the background command is alive")


@pytest.mark.requirement("G9")
async def test_commands_of_a_cli_that_was_killed_end(claude: Any, model: ScriptedModel, detached: Detached) -> None:
    foreground = claude.cwd / "foreground"
    model.on(
        "go",
        reply=Steps([detached.make_use("setsid")], [ToolUse("Bash", {"command": f"echo $$ >{foreground}; sleep 600"})]),
    )

    async def kill_when_running() -> None:
        while not foreground.exists() or not foreground.read_text():
            await anyio.sleep(0.02)
        [pid] = [pid for pid in claude.processes() if Path(f"/proc/{pid}/exe").resolve() == Path(claude.path).resolve()]
        os.kill(pid, signal.SIGKILL)

    async with anyio.create_task_group() as group:
        group.start_soon(kill_when_running)
        with pytest.raises(ph.CLIExitedError):
            await claude.ask(allowed_tools=["Bash"])
    assert is_dead(detached.pid)
    assert is_dead(int(foreground.read_text()))


PROGRAM = """
import asyncio, json, sys
import pilothouse as ph

settings = json.loads(sys.argv[1])
asyncio.run(ph.query("go", inherit_env=False, allowed_tools=["Bash"], **settings).result())
"""


def start_program(claude: Any, model: ScriptedModel) -> subprocess.Popen[bytes]:
    env = model.env(max_retries=0)
    settings = json.dumps({"cli": claude.path, "cwd": str(claude.cwd), "env": env})
    return subprocess.Popen([sys.executable, "-c", PROGRAM, settings], stderr=subprocess.DEVNULL)


@pytest.mark.requirement("G10")
@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.matrix)])
def test_programs_killed_at_any_moment_leave_nothing(
    claude: Any, model: ScriptedModel, detached: Detached, count: int
) -> None:
    uses = [detached.make_use(how) for how in ("setsid", "empty environment", "nohup")]
    started = time.monotonic()
    model.on("go", reply=Steps(uses, "done"))
    model.default = "done"
    with start_program(claude, model) as program:
        program.wait()
    whole = time.monotonic() - started
    for number in range(count):
        detached.file.unlink(missing_ok=True)
        seconds = random.Random(number).uniform(0, whole)
        with start_program(claude, model) as program:
            with suppress(subprocess.TimeoutExpired):
                program.wait(seconds)
            program.kill()
        eventually(lambda: not claude.processes(), f"left when killed after {seconds:.2f} s")
        eventually(lambda: not find_processes(f"PWD={claude.cwd}"), f"left when killed after {seconds:.2f} s")
        if detached.file.exists() and detached.file.read_text():
            eventually(lambda: is_dead(detached.pid), f"detached, killed after {seconds:.2f} s")
