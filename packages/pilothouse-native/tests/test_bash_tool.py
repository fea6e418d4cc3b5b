"""Bash and TaskStop: where commands run, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from process_checks import eventually, is_dead, linux_only, until

from pilothouse_native.tools import BUILTIN_TOOLS, ToolOutput, Workplace, bash_tool

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")]


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Workplace]:
    work = tmp_path / "work"
    work.mkdir()
    place = Workplace(work, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)})
    yield place
    await place.close()
    assert [each.name for each in tmp_path.iterdir()] == ["work"]


async def bash(here: Workplace, command: str, **more: Any) -> ToolOutput:
    return await BUILTIN_TOOLS["Bash"].run({"command": command, **more}, here)


async def number_in(path: Path) -> int:
    with anyio.fail_after(60):
        while not (path.exists() and path.read_text().endswith("\n")):
            await anyio.sleep(0.01)
    return int(path.read_text())


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    ("command", "content", "is_error"),
    [
        ("echo hi", "hi", False),
        ("echo out; echo err >&2", "out\nerr", False),
        ("true", "(The command ended without output.)", False),
        ("printf '\\n\\na\\n\\n  b  \\n\\n'", "a\n\n  b", False),
        ("echo err >&2; exit 3", "Exit code 3\nerr", True),
        ("kill -9 $$", "Exit code 137", True),
        ("cat; echo done", "done", False),
        ('read x; echo "got=$x"', "got=", False),
        ("printf '\\377\\000x'", "\ufffd\0x", False),
        ('echo "$# $0" | grep -c .', "1", False),
        ("echo a\necho b # c", "a\nb", False),
        ("grep nothing /dev/null", "(The command ended without output.)", False),
        ("cat <<'E'\n$x\nE", "$x", False),
    ],
)
async def test_results_describe_the_command(here: Workplace, command: str, content: str, is_error: bool) -> None:
    outcome = await bash(here, command)
    assert (outcome.content, outcome.is_error) == (content, is_error)


async def test_results_for_programs(here: Workplace) -> None:
    outcome = await bash(here, "grep nothing /dev/null")
    assert outcome.result["returnCodeInterpretation"] == "No matches found"
    assert (await bash(here, "echo hi")).result["stdout"] == "hi"
    assert (await bash(here, "false")).result == "Error: Exit code 1"
    assert (await bash(here, "echo 'x")).is_error
    assert (await bash(here, "a\0b")).is_error


SHOW_GIT_SETTINGS = "env | grep '^GIT_CONFIG' | sort"


async def test_git_in_commands_takes_no_program_from_a_bare_repository(here: Workplace) -> None:
    """A directory looks like a bare repository if it has a few files, and its `config` names programs."""
    subprocess.run(["git", "init", "--quiet", "--bare", "--template=", "."], cwd=here.cwd, check=True)
    (here.cwd / "config").write_text(f'[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch {here.cwd}/PWN"\n')
    outcome = await bash(here, "git log")
    assert outcome.is_error
    assert "safe.bareRepository" in str(outcome.content)
    await bash(here, "git --git-dir=. --work-tree=. status")
    assert not (here.cwd / "PWN").exists()


async def test_git_settings_of_the_user_stay(here: Workplace) -> None:
    outcome = await bash(here, SHOW_GIT_SETTINGS)
    assert str(outcome.content).splitlines() == [
        "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.bareRepository", "GIT_CONFIG_KEY_1=core.fsmonitor",
        "GIT_CONFIG_VALUE_0=explicit", "GIT_CONFIG_VALUE_1=false",
    ]  # fmt: skip
    here.env = {**here.env, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "me"}
    assert (await bash(here, "git config user.name; git config core.fsmonitor")).content == "me\nfalse"
    here.env = {**here.env, "GIT_CONFIG_KEY_0": "Safe.bareRepository", "GIT_CONFIG_VALUE_0": "all"}
    assert (await bash(here, "git config safe.bareRepository")).content == "all"
    for count in ("x", "-1", ""):
        here.env = {**here.env, "GIT_CONFIG_COUNT": count}
        assert (await bash(here, "echo $GIT_CONFIG_COUNT")).content == (count or "2"), "git reports it"


@pytest.mark.requirement("E83")
async def test_directory_carries_over(here: Workplace) -> None:
    (here.cwd / "sub").mkdir()
    (here.cwd / "away").symlink_to("/")
    await bash(here, "cd sub; export X=1; f() { :; }")
    assert here.cwd == here.root / "sub"
    assert (await bash(here, "pwd; echo $X; type f >/dev/null 2>&1 || echo none")).content == f"{here.cwd}\n\nnone"
    await bash(here, "cd /; false")
    assert here.cwd == here.root / "sub"
    for command in ("cd /", "cd ../away"):
        outcome = await bash(here, command)
        assert (
            outcome.content
            == f"The next command starts in {here.root}: this one ended outside the working directories."
        )
        assert here.cwd == here.root
        await bash(here, "cd sub")
    await bash(here, f"cd {here.root}; rmdir sub")
    assert here.cwd == here.root
    (here.root / "gone").mkdir()
    await bash(here, "cd gone")
    (here.root / "gone").rmdir()
    assert (await bash(here, "pwd")).content == str(here.root)
    here.directories.append(Path("/usr"))
    await bash(here, "cd /usr/bin")
    assert here.cwd == Path("/usr/bin").resolve()


async def test_long_output_is_put_aside_and_may_be_read(here: Workplace) -> None:
    outcome = await bash(here, "seq 1 20000")
    assert isinstance(outcome.content, str)
    assert len(outcome.content) < 3000
    assert "106.3KB" in outcome.content
    path = outcome.content.split("All of it is in ")[1].split("\n")[0]
    assert here.scratch_directory is not None
    assert Path(path).is_relative_to(here.scratch_directory)
    read = await BUILTIN_TOOLS["Read"].run({"file_path": path, "offset": 19_999, "limit": 1}, here)
    assert read.content == "19999\t19999"
    assert len(outcome.result["stdout"]) == 30_000
    here.env = {**here.env, "BASH_MAX_OUTPUT_LENGTH": "10"}
    assert "output is long" in str((await bash(here, "seq 1 10")).content)


@pytest.mark.requirement("E83")
async def test_time_runs_out(here: Workplace) -> None:
    began = time.monotonic()
    outcome = await bash(here, "trap '' TERM; echo begun; echo $$ > pid; while :; do sleep 600; done", timeout=2000)
    assert time.monotonic() - began < 300
    assert outcome.is_error
    assert str(outcome.content).endswith("begun")
    assert "timed out after 2 s" in str(outcome.content)
    await until(partial(is_dead, await number_in(here.cwd / "pid")))


async def test_output_without_end_is_stopped(here: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash_tool, "MAX_OUTPUT_BYTES", 100_000)
    outcome = await bash(here, "yes", timeout=600_000)
    assert outcome.is_error
    assert "longer than 100000 bytes" in str(outcome.content)


@pytest.mark.requirement("E83")
async def test_children_that_keep_the_output_open_do_not_block_it(here: Workplace) -> None:
    with anyio.fail_after(300):
        outcome = await bash(here, "(sleep 600; echo late) & echo $! > pid; echo now")
    assert outcome.content == "now"
    pid = await number_in(here.cwd / "pid")
    os.kill(pid, 0)
    await here.close()
    await until(partial(is_dead, pid))


@pytest.mark.requirement("E83")
async def test_cancelling_stops_the_whole_group(here: Workplace) -> None:
    pids: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bash, here, "sleep 600 & echo $! > pid; wait")
        pids.append(await number_in(here.cwd / "pid"))
        tasks.cancel_scope.cancel()
    await until(partial(is_dead, pids[0]))


@pytest.mark.requirement("E83")
async def test_background(here: Workplace) -> None:
    outcome = await bash(here, "echo begun; echo $$ > pid; sleep 600", run_in_background=True, description="waits")
    key = outcome.result["backgroundTaskId"]
    assert key in str(outcome.content)
    pid = await number_in(here.cwd / "pid")
    path = str(outcome.content).split("goes to ")[1].split(":")[0]
    with anyio.fail_after(60):
        while "begun" not in Path(path).read_text():
            await anyio.sleep(0.01)
    stopped = await BUILTIN_TOOLS["TaskStop"].run({"task_id": key}, here)
    assert stopped.content == f"Stopped {key} (waits)"
    await until(partial(is_dead, pid))
    again = await BUILTIN_TOOLS["TaskStop"].run({"shell_id": key}, here)
    assert again.is_error


async def test_background_ends_by_itself(here: Workplace) -> None:
    outcome = await bash(here, "echo $$ > pid; sleep 600", run_in_background=True, timeout=2_000)
    pid = await number_in(here.cwd / "pid")
    await until(partial(is_dead, pid))
    command: Any = here.open_resources[outcome.result["backgroundTaskId"]]
    await command.wait()
    assert command.stop_reason.startswith("timed out")
    assert command.returncode == -signal.SIGTERM


@pytest.mark.requirement("E83")
async def test_closing_stops_everything(here: Workplace) -> None:
    for name in ("a", "b"):
        await bash(here, f"echo $$ > {name}; trap '' TERM; sleep 600; sleep 600", run_in_background=True)
    pids = [await number_in(here.cwd / name) for name in ("a", "b")]
    await here.close()
    await here.close()
    for pid in pids:
        await until(partial(is_dead, pid))
    assert here.open_resources == {}


DETACHED = {
    "setsid": "setsid sh -c 'echo $$ > pid; exec sleep 600' &",
    "empty environment": "env -i setsid sh -c 'echo $$ > pid; exec sleep 600' &",
    "its first act": "setsid sh -c 'echo $$ > pid; exec sleep 600' & exit",
}


@linux_only
@pytest.mark.requirement("E83")
@pytest.mark.parametrize("how", DETACHED)
async def test_what_a_command_detaches_ends_with_the_session(here: Workplace, how: str) -> None:
    await bash(here, DETACHED[how])
    pid = await number_in(here.cwd / "pid")
    assert not is_dead(pid)
    await here.close()
    assert is_dead(pid)


PROGRAM = """
import os, sys
from pathlib import Path
import anyio
from pilothouse_native.tools import BUILTIN_TOOLS, Workplace
from pilothouse.transports.watchdog import watchdog

async def main():
    here = Workplace(sys.argv[1], env=dict(os.environ))
    for command in sys.argv[3:]:
        print((await BUILTIN_TOOLS["Bash"].run({"command": command, "timeout": 20000}, here)).content, flush=True)
    while not watchdog.shell_pid:
        await anyio.sleep(0.01)
    print("ready", flush=True)
    await (anyio.sleep_forever() if sys.argv[2] == "killed" else here.close())

anyio.run(main)
"""


@linux_only
@pytest.mark.requirement("G10")
def test_commands_end_with_a_killed_program(tmp_path: Path) -> None:
    commands = ["sleep 600 & echo $!", DETACHED["setsid"].replace("pid;", "pid2;") + " echo $!"]
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), "killed", *commands]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        *pids, ready = [running.stdout.readline().strip() for _ in range(3)]
        running.kill()
    assert ready == "ready"
    for pid in map(int, pids):
        eventually(partial(is_dead, pid), "a command is alive")


def test_a_program_that_ignores_sigchld_learns_no_exit_status(tmp_path: Path) -> None:
    ignore = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    program = [sys.executable, "-c", ignore + PROGRAM, str(tmp_path), "closed", "sh -c 'exit 3'; echo $?"]
    said = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    assert said.splitlines() == ["3", bash_tool.UNKNOWN_STATUS, "ready"]


async def test_many_at_once(here: Workplace) -> None:
    found: list[ToolOutput] = []

    async def one(at: int) -> None:
        found.append(await bash(here, f"echo {at}"))

    async with anyio.create_task_group() as tasks:
        for at in range(20):
            tasks.start_soon(one, at)
    assert sorted(int(str(each.content)) for each in found) == list(range(20))


async def test_systems_that_cannot_wait_without_reaping(here: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid", raising=False)
    assert (await bash(here, "echo hi")).content == "hi"
    outcome = await bash(here, "sleep 600 & sleep 600", timeout=100)
    assert "timed out" in str(outcome.content)
