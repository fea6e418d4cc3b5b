"""First starts in one configuration directory: one child goes first, and nobody waits for long for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

import pilothouse as ph
from pilothouse import sync
from pilothouse.testing import FakeCLI
from pilothouse.transports import CliTransport, first_start
from pilothouse.transports.first_start import FirstStartLock, wait_for_first_start

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="knows no such locks")]

LONG = 120.0  # seconds, in place of those that others wait; no test may wait so long
DEADLINE = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and an empty directory for temporary files."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(first_start, "MAX_WAIT_SECONDS", LONG)
    return tmp_path / "home"


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    return {"HOME": str(home)}


def locks() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("pilothouse-first-*"))


def careful(child: Any) -> None:
    """Says whether all that started before it had answered, and takes its time if it is the first."""
    import os
    import pathlib
    import time

    home = pathlib.Path(child.env["HOME"])
    others = [path.suffix for path in home.glob("*.started")]
    answered = [path.suffix for path in home.glob("*.answered")]
    (home / f"{os.getpid()}.started").touch()
    if not others:
        time.sleep(0.3)  # long enough for others to start, if nothing keeps them
    child.expect("control_request", "initialize")
    (home / f"{os.getpid()}.answered").touch()
    child.reply({"commands": [], "models": [], "account": {}})
    child.expect("user")
    alone = not others or bool(answered)
    child.emit({"type": "result", "subtype": "success", "is_error": False, "result": f"{alone}"})


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    with FakeCLI.from_function(careful, manual=("initialize",)) as fake:
        yield fake


async def test_tasks_and_threads_wait_for_the_first(fake: FakeCLI, env: dict[str, str]) -> None:
    reported: list[str] = []

    async def ask() -> None:
        reported.append((await ph.query("go", cli=fake.path, env=env)).text)

    def ask_in_a_thread() -> None:
        reported.append(sync.query("go", cli=fake.path, env=env).result().text)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
                group.start_soon(to_thread.run_sync, ask_in_a_thread)
    assert reported == ["True"] * 6
    assert not locks()


PROGRAM = """
import sys
from pilothouse import sync as ph
from pilothouse.transports import CliTransport, first_start
first_start.MAX_WAIT_SECONDS = 120.0
sys.stdin.readline()
print(ph.query("go", cli=sys.argv[1]).result().text)
"""


def test_processes_wait_for_the_first(fake: FakeCLI, env: dict[str, str]) -> None:
    own = {**os.environ, **env, "TMPDIR": tempfile.gettempdir()}
    popen = partial(subprocess.Popen[str], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own, text=True)
    programs = [popen([sys.executable, "-c", PROGRAM, fake.path]) for _ in range(3)]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    assert [program.communicate(timeout=DEADLINE)[0] for program in programs] == ["True\n"] * 3
    assert not locks()


def hanging(child: Any) -> None:
    """The first answers nothing, the others all."""
    import pathlib

    try:
        (pathlib.Path(child.env["HOME"]) / "first").touch(exist_ok=False)
    except FileExistsError:
        child.expect("control_request", "initialize")
        child.reply({"commands": [], "models": [], "account": {}})
        child.expect("user")
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": "fine"})
    else:
        child.hang()


async def test_a_hanging_first_start_blocks_others_briefly(
    env: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_start, "MAX_WAIT_SECONDS", 0.1)
    with FakeCLI.from_function(hanging, manual=("initialize",)) as fake, anyio.fail_after(DEADLINE):
        agent = ph.Agent(cli=fake.path, env=env)
        first = agent.query("go", transport=lambda: CliTransport(close_grace=0, term_grace=0))
        await first.start()
        while not (home / "first").exists():
            await anyio.sleep(0.005)
        assert [(await agent.query("go")).text for _ in range(2)] == ["fine", "fine"]
        assert len(locks()) == 1
        await first.aclose()
    assert not locks()


async def test_a_first_that_dies_is_followed_by_another_first(env: dict[str, str]) -> None:
    with anyio.fail_after(DEADLINE):
        first = await wait_for_first_start(env)
        assert first is not None
        seconds: list[FirstStartLock | None] = []
        second: FirstStartLock | None = None

        async def wait() -> None:
            seconds.append(await wait_for_first_start(env))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not seconds
            first.release(has_started=False)
            while not seconds:
                await anyio.sleep(0.005)
            second = seconds[0]
            assert second is not None
            second.release(has_started=True)
        assert seconds == [second, None]
        assert await wait_for_first_start(env) is None
    assert not locks()


async def test_one_that_is_dropped_or_cancelled_is_no_first_any_more(env: dict[str, str]) -> None:
    first = await wait_for_first_start(env)
    assert first is not None
    with anyio.move_on_after(0.05) as scope:
        await wait_for_first_start(env)
    assert scope.cancelled_caught
    assert len(locks()) == 1
    del first
    gc.collect()
    assert not locks()
    with anyio.fail_after(DEADLINE):
        again = await wait_for_first_start(env)
    assert again is not None
    again.release(has_started=False)


HOLDER = """
import os, sys, anyio
from pilothouse.transports import CliTransport, first_start
first_start.MAX_WAIT_SECONDS = 120.0

async def main():
    first = await first_start.wait_for_first_start({"HOME": sys.argv[1]})
    ours, theirs = os.pipe()
    if sys.argv[2] == "fork" and not os.fork():
        os.close(theirs)
        os.read(ours, 1)  # until the parent is gone
        os._exit(0)
    print(first is not None, flush=True)
    sys.stdin.readline()
    first.release(has_started=False)
    print("over", flush=True)
    sys.stdin.read()

anyio.run(main)
"""


@pytest.mark.parametrize("end", ["is killed", "fork"])
def test_the_lock_of_a_process_that_is_gone_or_forked_is_free(env: dict[str, str], home: Path, end: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLDER, str(home), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == b"True\n"
        mine = FirstStartLock(first_start.find_config_file(env) or "")
        assert mine._try_acquire() is None  # somebody is on the way
        if end == "fork":
            holder.stdin.write(b"\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == b"over\n"
            assert mine._try_acquire() is False  # the copy in the child holds nobody up
        else:
            holder.kill()
            holder.wait()
            assert mine._try_acquire() is True
        mine.release(has_started=False)
        holder.stdin.close()
    assert not locks()


async def test_where_a_child_has_run_before_nothing_is_locked(env: dict[str, str], home: Path) -> None:
    (home / ".claude.json").write_text("{}")
    assert await wait_for_first_start(env) is None
    (home / ".claude.json").unlink()
    assert await wait_for_first_start(env) is None  # looked at once
    assert not locks()


async def test_without_a_lock_no_start_waits(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert await wait_for_first_start({}) is None
    assert await wait_for_first_start({"HOME": "relative"}) is None
    Path(first_start._make_lock_path(first_start.find_config_file(env) or "")).symlink_to("elsewhere")
    assert await wait_for_first_start(env) is None


async def test_an_old_lock_blocks_no_start(env: dict[str, str]) -> None:
    first = await wait_for_first_start(env)
    assert first is not None
    os.utime(locks()[0], (1e9, 1e9))
    assert FirstStartLock(first_start.find_config_file(env) or "")._try_acquire() is False
    first.release(has_started=False)


async def test_it_is_where_the_child_looks(env: dict[str, str]) -> None:
    assert first_start.find_config_file(env) == f"{env['HOME']}/.claude.json"
    assert first_start.find_config_file({**env, "CLAUDE_CONFIG_DIR": "/etc/it"}) == "/etc/it/.claude.json"


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_start, "_started_paths", set[str]())
    for number in range(first_start.MAX_STARTED_PATHS + 5):
        FirstStartLock(f"/{number}/.claude.json").release(has_started=True)
    assert len(first_start._started_paths) <= first_start.MAX_STARTED_PATHS


def test_a_lock_needs_nothing_that_is_slow_to_import(env: dict[str, str]) -> None:
    code = (
        "import sys\nfrom pilothouse.transports import first_start\nfirst_start._make_lock_path('/home/.claude.json')\n"
    )
    code += "assert not {'tempfile', 'hashlib', 'random', 'shutil'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, check=True, timeout=DEADLINE)
