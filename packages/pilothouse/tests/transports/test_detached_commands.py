"""What a child detaches from its process group ends with the child, and with this program, however that ends."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from leak_checks import Left
from process_checks import eventually, is_dead, linux_only
from shell_children import first_line, sh

from pilothouse.transports.cli import CliTransport
from pilothouse.transports.marks import _search, end_detached, end_marked, make_mark, mark_process, remove_mark

pytestmark = [pytest.mark.anyio, linux_only]

OWN_LIMIT = resource.getrlimit(resource.RLIMIT_RSS)[0]

# The CLI starts each command in a session of its own; this does what a command may do there.
DETACHED = {
    "setsid": "setsid sleep 600 & echo $! >&3",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 & echo $! >&3",
    "subshell": "(sleep 600 & echo $! >&3)",
    "double fork": "setsid sh -c '(sleep 600 & echo $! >&3)' &",
    "empty environment": "env -i setsid /bin/sh -c 'echo $$ >&3; exec sleep 600' &",
    "deaf to SIGTERM": "setsid sh -c 'trap \"\" TERM; echo $$ >&3; while :; do sleep 0.1; done' &",
}


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Left(tmp_path, monkeypatch):
        yield


def run_command(command: str, then: str = "cat >/dev/null", *, unmarked: int | None = OWN_LIMIT) -> str:
    """A child that runs a command as the CLI does, writes the pid that the command says, and lives on.

    Args:
        unmarked: the limit in bytes that it has before its mark; a real child takes longer until its first command.
            Default: that of this process. None: it gets no mark.
    """
    before = "unlimited" if unmarked == resource.RLIM_INFINITY else str((unmarked or 0) // 1024)
    wait = "" if unmarked is None else f'until [ "$(ulimit -S -m)" != {before} ]; do sleep 0.01; done'
    return f"""
        {wait}
        ( setsid sh -c "$0" ) 3>&1 >/dev/null </dev/null 2>&1
        {then}
    """.replace("$0", command.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$"))


async def start_command(transport: CliTransport, how: str, then: str = "cat >/dev/null", **changes: object) -> int:
    """Start a child that detaches a process in this way; returns the pid of that."""
    unmarked = None if changes.get("keep_detached") else OWN_LIMIT
    await transport.start(sh(run_command(DETACHED[how], then, unmarked=unmarked), **changes))
    pid = int(await first_line(transport))
    assert not is_dead(pid)
    assert os.getpgid(pid) != transport.pid
    return pid


@pytest.mark.sample(3)
@pytest.mark.requirement("G9")
@pytest.mark.parametrize("how", DETACHED)
async def test_a_detached_process_ends_with_its_child(how: str) -> None:
    transport = CliTransport()
    pid = await start_command(transport, how)
    await transport.close()
    assert (await transport.exit_info()).exit_code == 0  # the child has left by itself
    assert is_dead(pid)


@pytest.mark.sample(2)
@pytest.mark.requirement("G9")
@pytest.mark.parametrize("way", ["killed from outside", "killed by close", "dropped"])
async def test_a_detached_process_ends_however_its_child_ends(way: str) -> None:
    transport = CliTransport(close_grace=0.0, term_grace=0.1)
    pid = await start_command(transport, "setsid", "trap '' TERM; while :; do sleep 0.1; done")
    assert transport.pid is not None
    if way == "killed from outside":
        os.kill(transport.pid, signal.SIGKILL)
    if way == "dropped":
        del transport
        gc.collect()
        eventually(lambda: is_dead(pid), "the process is alive")
    else:
        await transport.close()
        assert is_dead(pid)


CLEANS_UP = "setsid sh -c 'trap \"echo bye >done; exit\" TERM; echo $$ >&3; while :; do sleep 0.1; done' &"


def test_a_detached_process_may_clean_up_when_this_program_is_killed(tmp_path: Path) -> None:
    with start_host(CLEANS_UP, cwd=tmp_path) as host:
        assert host.stdout is not None
        _, pid = (int(word) for word in host.stdout.readline().split())
        host.kill()
    eventually(lambda: is_dead(pid), "alive after the death of the program")
    assert (tmp_path / "done").read_text() == "bye\n"


async def test_a_detached_process_may_clean_up(tmp_path: Path) -> None:
    transport = CliTransport()
    await transport.start(sh(run_command(CLEANS_UP), cwd=str(tmp_path)))
    pid = int(await first_line(transport))
    await transport.close()
    assert is_dead(pid)
    assert (tmp_path / "done").read_text() == "bye\n"


async def test_keep_detached_leaves_it_running() -> None:
    transport = CliTransport()
    pid = await start_command(transport, "setsid", keep_detached=True)
    try:
        await transport.close()
        assert not is_dead(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_only_what_this_child_has_started_ends() -> None:
    first, second = CliTransport(), CliTransport()
    mine, other = await start_command(first, "setsid"), await start_command(second, "setsid")
    await first.close()
    assert is_dead(mine)
    assert not is_dead(other)
    await second.close()
    assert is_dead(other)


async def test_children_that_end_together_share_searches() -> None:
    before = _search.begun
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(end_detached, make_mark())
    assert 1 <= _search.begun - before < 5


def test_threads_share_searches() -> None:
    before = _search.begun
    threads = [threading.Thread(target=_search.run, args=(before,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _search.begun - before == 1


async def test_a_system_without_the_mark_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr("resource.prlimit", refuse)
    monkeypatch.setattr("pilothouse.transports.marks._warned", set())
    for _ in range(2):
        transport = CliTransport()
        await transport.start(sh("cat"))
        await transport.close()
    assert caplog.text.count("this system does not let pilothouse set a resource limit of its children (prlimit)") == 1


HOST = """
import os, sys
import anyio
from pilothouse.options import Invocation
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.watchdog import watchdog

async def main():
    transport = CliTransport()
    await transport.start(Invocation(cli="/bin/sh", argv=("-c", sys.argv[1]), env=dict(os.environ)))
    pid = (await transport.receive()).decode().strip()
    while not watchdog.shell_pid:
        await anyio.sleep(0.001)
    print(transport.pid, pid, flush=True)
    ENDING

anyio.run(main)
"""


def start_host(
    command: str, ending: str = "await anyio.sleep_forever()", cwd: Path | None = None
) -> subprocess.Popen[str]:
    code = HOST.replace("ENDING", ending)
    program = [sys.executable, "-c", code, run_command(command)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=cwd)


@pytest.mark.sample(2)
@pytest.mark.requirement("G10")
@pytest.mark.parametrize("how", ["setsid", "empty environment", "deaf to SIGTERM"])
@pytest.mark.parametrize("kill", [signal.SIGKILL, None])
def test_a_detached_process_ends_with_this_program(how: str, kill: signal.Signals | None) -> None:
    with start_host(DETACHED[how], "await anyio.sleep_forever()" if kill else "raise SystemExit(1)") as host:
        assert host.stdout is not None
        pids = [int(word) for word in host.stdout.readline().split()]
        if kill is not None:
            host.send_signal(kill)
    assert len(pids) == 2
    eventually(lambda: all(is_dead(pid) for pid in pids), "alive after the death of the program")


SLOW_WATCHDOG = """
import os, signal, sys, time
import anyio
from pilothouse.options import Invocation
from pilothouse.transports import cli
from pilothouse.transports.watchdog import Watchdog

start_shell, spawn = Watchdog._start_shell, cli.spawn

def start_late(*arguments):
    time.sleep(0.5)
    start_shell(*arguments)

def spawn_and_print(*arguments, **settings):
    child = spawn(*arguments, **settings)
    print(child.pid, flush=True)
    if sys.argv[1] == "spawned":
        os.kill(os.getpid(), signal.SIGKILL)
    return child

Watchdog._start_shell, cli.spawn = start_late, spawn_and_print

async def main():
    initialize = None if sys.argv[1] == "spawned" else {}
    script = "trap '' TERM; while :; do sleep 0.1; done"
    invocation = Invocation(cli="/bin/sh", argv=("-c", script), env=dict(os.environ), initialize=initialize)
    await cli.CliTransport().start(invocation)
    os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""


@pytest.mark.requirement("G10")
@pytest.mark.parametrize("moment", ["spawned", "started"])
def test_a_program_killed_while_its_watchdog_starts_leaves_nothing(moment: str) -> None:
    """It may have given the child a prompt: as an argument, or once `start` has returned."""
    program = [sys.executable, "-c", SLOW_WATCHDOG, moment]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
    eventually(lambda: is_dead(pid), "alive after the death of the program")


def test_a_program_that_a_marked_child_started_ends_with_its_own_children() -> None:
    """Its watchdog lives on for as long as that takes."""
    mark = make_mark()
    marked_start = f"import resource; resource.setrlimit(resource.RLIMIT_RSS, ({mark.limit}, -1))\n"
    script = run_command(DETACHED["setsid"], unmarked=mark.limit)
    code = marked_start + HOST.replace("ENDING", "await anyio.sleep_forever()")
    with subprocess.Popen([sys.executable, "-c", code, script], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pids = [int(word) for word in host.stdout.readline().split()]
        end_marked([mark])
    assert len(pids) == 2
    eventually(lambda: all(is_dead(pid) for pid in pids), "alive after the death of the program")


def test_marks_differ_and_limit_nothing() -> None:
    made = {make_mark() for _ in range(1000)}
    assert len(made) == 1000
    assert all(2**60 <= mark.limit < 2**63 and mark.limit == mark.kib * 1024 for mark in made)


def test_what_has_lost_its_mark_stays() -> None:
    mark = make_mark()
    with subprocess.Popen(["sleep", "600"]) as process:
        assert mark_process(process.pid, mark)
        remove_mark(process.pid)
        began = time.monotonic()
        end_marked([mark])
        assert time.monotonic() - began < 0.9
        assert process.poll() is None
        with suppress(ProcessLookupError):
            process.kill()


def test_a_fork_during_a_search_does_not_block_the_child() -> None:
    script = """
import os, signal
from pilothouse.transports import marks
marks._search._lock.acquire()  # as a thread does that searches
if (pid := os.fork()) == 0:
    signal.alarm(10)
    marks._search.run(marks._search.begun)
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 0
