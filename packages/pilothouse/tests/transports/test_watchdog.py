"""The watchdog: what it guards ends with the host, what was released does not, and nobody waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_checks import child_pids, eventually, is_dead, linux_only, process_state, until
from shell_children import sh

from pilothouse.transports.cli import CliTransport
from pilothouse.transports.watchdog import watchdog


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    watchdog.guard(0x7FFFFFF0)
    watchdog.release(0x7FFFFFF0)
    eventually(lambda: watchdog.shell_pid > 0, "the watchdog did not start")
    yield
    eventually(lambda: not child_pids(), f"children left: {child_pids()}")
    assert not watchdog.groups


@linux_only
@pytest.mark.anyio
async def test_a_stuck_watchdog_blocks_no_start() -> None:
    transport = CliTransport(close_grace=0.0)
    await transport.start(sh("sleep 600"))
    await until(lambda: watchdog.shell_pid != 0, "no watchdog")
    shell = watchdog.shell_pid
    os.kill(shell, signal.SIGSTOP)
    odd = [f"/nonexistent/{'x' * 3000}/{n}" for n in range(40)]  # more than a pipe holds
    for path in odd:
        watchdog.guard(path)
    for path in odd:
        watchdog.release(path)
    assert watchdog.shell_pid == shell
    os.kill(shell, signal.SIGCONT)
    assert transport.health().state == "healthy"
    await transport.close()


REUSING_HOST = """
import os, subprocess, sys, time
from pilothouse.transports.watchdog import watchdog

def group():
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

free, held, late = group(), group(), group()
for _ in range(1000):  # each takes the line that the one before had
    watchdog.guard(free)
    watchdog.guard(sys.argv[1] + "/free")
    watchdog.release(free)
    watchdog.release(sys.argv[1] + "/free")
watchdog.guard(held)
watchdog.guard(sys.argv[1] + "/held")
watchdog.guard(sys.argv[1] + "/late")
watchdog.guard(late)
size = os.fstat(watchdog._file.fd).st_size
while not watchdog.shell_pid:
    time.sleep(0.001)
print(free, held, late, size, flush=True)
time.sleep(600)
"""


@linux_only
@pytest.mark.requirement("G10")
def test_what_was_released_outlives_a_killed_host_and_what_took_its_line_does_not(tmp_path: Path) -> None:
    places = tmp_path / "places"
    for name in ("free", "held", "late"):
        (places / name).mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", REUSING_HOST, str(places)], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        free, held, late, size = map(int, host.stdout.readline().split())
        host.kill()
    try:
        eventually(lambda: is_dead(held) and is_dead(late), "a group is alive after the death of the host")
        eventually(lambda: [path.name for path in places.iterdir()] == ["free"], "too many directories are left")
        assert not is_dead(free)
        assert (places / "free").exists()
        assert size < 3 * (len(str(places)) + 20), "lines are not used again"
    finally:
        os.kill(free, signal.SIGKILL)


@linux_only
@pytest.mark.anyio
async def test_the_watchdog_is_replaced_when_it_died() -> None:
    old = watchdog.shell_pid
    os.kill(old, signal.SIGKILL)
    eventually(lambda: is_dead(old), "watchdog alive")
    transport = CliTransport(close_grace=0.0)
    await transport.start(sh("sleep 600"))
    await until(lambda: watchdog.shell_pid not in (0, old), "no new watchdog")
    assert watchdog.groups == {transport.pid}
    assert process_state(old) == ""
    await transport.close()
