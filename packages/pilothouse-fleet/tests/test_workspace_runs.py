"""Fleets whose runs have directories of their own: sessions that go on, hosts that change, cwds, failures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from git_repositories import PlacedRunner, made_repository, worktrees
from scripted_runners import Interruptible, all_of, answer

from pilothouse import errors
from pilothouse.client import QueryResult
from pilothouse.errors import CLIExitedError, OverloadedError, UsageError, WorkspaceError
from pilothouse.options import RetryPolicy
from pilothouse_fleet import Artifacts, Attempt, CopiedDirectory, Fleet
from pilothouse_fleet.workspaces.base import make_directory_name
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio
PROGRAM = Path(__file__).with_name("worktree_worker_program.py")
SOON = RetryPolicy(attempts=3, first_delay=0.001)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("one")
    return tmp_path / "source"


async def edit(place: Path, attempt: Attempt) -> None:
    with (place / "file").open("a") as file:
        file.write(f" {attempt.prompt}")


async def test_each_run_has_a_directory_of_its_own(source: Path, tmp_path: Path) -> None:
    runner = PlacedRunner(edit)
    workspace = CopiedDirectory(source, root=tmp_path / "root", keep="always")
    async with Fleet(runner=runner, workspace=workspace, journal=tmp_path / "runs.db") as fleet:
        runs = await fleet.gather(["two", "three"], key=str)
    assert [run.state for run in runs] == ["succeeded"] * 2
    assert [(tmp_path / "root" / make_directory_name(run.key) / "file").read_text() for run in runs] == [
        "one two", "one three",
    ]  # fmt: skip
    assert (source / "file").read_text() == "one"


async def test_a_further_attempt_goes_on_where_the_last_one_stopped(source: Path, tmp_path: Path) -> None:
    async def play(place: Path, attempt: Attempt) -> QueryResult | None:
        await edit(place, attempt)
        if len(runner.places) < 3:
            raise CLIExitedError("it died")
        return None

    runner = PlacedRunner(play)
    workspace = CopiedDirectory(source, root=tmp_path / "root", keep="never")
    async with Fleet(runner=runner, workspace=workspace, retry=SOON, journal=tmp_path / "runs.db") as fleet:
        [run] = await fleet.gather(["x"], options={"max_turns": 3})
        assert run.is_success
    [none, session, again] = runner.sessions
    assert none is None
    assert session == again is not None
    assert len(set(runner.places)) == 1
    assert not runner.places[0].exists()


@pytest.mark.parametrize("policy", ["resume", "restart"])
async def test_what_the_policy_of_the_fleet_means_for_directories(source: Path, tmp_path: Path, policy: Any) -> None:
    found: list[str] = []

    async def play(place: Path, attempt: Attempt) -> QueryResult | None:
        found.append((place / "file").read_text())
        await edit(place, attempt)
        if len(found) < 2:
            return answer("", error=OverloadedError("busy"))
        return None

    workspace = CopiedDirectory(source, root=tmp_path / "root")
    async with Fleet(
        runner=PlacedRunner(play), workspace=workspace, retry=SOON, on_interrupted=policy, journal=tmp_path / "runs.db"
    ) as fleet:
        [run] = await fleet.gather(["x"])
    assert run.is_success
    assert found == (["one", "one x"] if policy == "resume" else ["one", "one"])


async def test_on_another_host_a_run_starts_anew(source: Path, tmp_path: Path) -> None:
    play = Interruptible()

    async def played(place: Path, attempt: Attempt) -> QueryResult | None:
        await edit(place, attempt)
        return await play(attempt)

    journal = tmp_path / "runs.db"
    workspace = CopiedDirectory(source, root=tmp_path / "a")
    async with Fleet(runner=PlacedRunner(played), workspace=workspace, journal=journal) as fleet:
        await fleet.submit("x", key="k")
        await play.started.wait()
        await fleet.interrupt()
    left = tmp_path / "a" / make_directory_name("k") / "file"
    assert left.read_text() == "one x", "an interrupted run goes on there"
    shutil.copytree(tmp_path / "a", tmp_path / "same")
    for root, session, text in (("same", play.session_id, "one x x"), ("b", None, "one x")):
        shutil.copyfile(journal, tmp_path / f"{root}.db")
        seen: list[str] = []

        async def look(place: Path, attempt: Attempt, seen: list[str] = seen) -> None:
            await edit(place, attempt)
            seen.append((place / "file").read_text())

        runner = PlacedRunner(look)
        workspace = CopiedDirectory(source, root=tmp_path / root)
        async with Fleet(runner=runner, workspace=workspace, journal=tmp_path / f"{root}.db") as fleet:
            [run] = await all_of(fleet.resume())
        assert (run.state, run.attempts) == ("succeeded", 2)
        assert runner.sessions == [session]
        assert seen == [text]


async def test_a_relative_cwd_of_a_run_is_a_place_in_its_directory(source: Path, tmp_path: Path) -> None:
    (source / "pkg").mkdir()
    (source / "out").symlink_to("/")
    runner = PlacedRunner(lambda place, attempt: _nothing())
    workspace = CopiedDirectory(source, root=tmp_path / "root")
    cwds = {"a": "pkg", "b": str(source), "c": "../..", "d": "out", "e": "missing"}
    async with Fleet(runner=runner, workspace=workspace, journal=tmp_path / "runs.db", stop_after=None) as fleet:
        runs = await fleet.gather(list(cwds), key=str, options=lambda key: {"cwd": cwds[key]})
    assert [run.state for run in runs] == ["succeeded", *["failed"] * 4]
    assert [place.name for place in runner.places] == ["pkg"]
    for run in runs[1:4]:
        assert isinstance(run.error, UsageError)
        assert "has its own cwd" in str(run.error)
    assert isinstance(runs[4].error, WorkspaceError)
    assert "missing is not a directory" in str(runs[4].error)


async def _nothing() -> None: ...


async def test_mistakes_are_reported_before_anything_is_started(tmp_path: Path) -> None:
    runner = PlacedRunner(lambda place, attempt: _nothing())
    copied = CopiedDirectory(tmp_path / "missing", root=tmp_path / "root")
    fleet = Fleet(runner=runner, workspace=copied, journal=tmp_path / "runs.db")
    with pytest.raises(UsageError, match="there is no directory or archive"):
        await fleet.__aenter__()
    async with Fleet(runner=runner, journal=tmp_path / "runs.db") as fleet:
        assert (await fleet.status()).total == 0, "the journal is free again"
    for make, words in (
        (lambda: Fleet(artifacts=Artifacts("x", ["*"])), "give a workspace as well"),
        (lambda: Fleet(workspace="here"), "workspace: a GitWorktree"),  # pyright: ignore[reportArgumentType]
        (lambda: Fleet(workspace=copied, artifacts="s3://x"), "expected Artifacts, got str"),  # pyright: ignore[reportArgumentType]
        (lambda: Fleet(workspace=copied, artifacts=Artifacts("x", patch=True)), "made from a git repository"),
    ):
        with pytest.raises(UsageError, match=words):
            make()


async def test_a_run_without_a_directory_fails_and_the_others_go_on(source: Path, tmp_path: Path) -> None:
    workspace = CopiedDirectory(source, root=tmp_path / "root")
    other = CopiedDirectory(source, root=tmp_path / "root")
    await other.open()
    place = await other.make("b", is_resumed=False)
    journal = tmp_path / "runs.db"
    async with Fleet(runner=PlacedRunner(edit), workspace=workspace, journal=journal, concurrency=1) as fleet:
        runs = await fleet.gather(["a", "b", "c"], key=str)
    await other.release(place, "failed")
    assert [run.state for run in runs] == ["succeeded", "failed", "succeeded"]
    async with Fleet(runner=PlacedRunner(edit), journal=journal) as fleet:
        [row] = await fleet.rows("failed")
    assert isinstance(row.error, WorkspaceError)
    assert row.error.path is None
    assert "another process is at work" in str(row.error)
    assert errors.WorkspaceError is WorkspaceError


@pytest.mark.parametrize("how", ["one", "all"])
async def test_a_cancelled_run_gives_its_directory_up(source: Path, tmp_path: Path, how: str) -> None:
    play = Interruptible()
    workspace = CopiedDirectory(source, root=tmp_path / "root", keep="never")

    async def played(place: Path, attempt: Attempt) -> QueryResult | None:
        return await play(attempt)

    with anyio.CancelScope() as scope:
        async with Fleet(runner=PlacedRunner(played), workspace=workspace, journal=tmp_path / "runs.db") as fleet:
            await fleet.submit("x", key="k")
            await play.started.wait()
            if how == "one":
                await fleet.cancel("k")
                assert (await fleet.wait("k")).state == "cancelled"
            else:
                scope.cancel()
                await anyio.sleep_forever()
    is_there = (tmp_path / "root" / make_directory_name("k")).exists()
    assert is_there == (how == "all"), "what was only interrupted goes on there"
    assert not list((tmp_path / "root" / ".pilothouse").glob("*.lock"))


def test_a_killed_process_leaves_what_the_next_one_uses_or_removes(tmp_path: Path) -> None:
    repository, root = made_repository(tmp_path / "repository"), tmp_path / "root"

    def play(child: Any) -> None:
        import os
        from pathlib import Path

        child.expect("user")
        session = f"5e551017-0000-4000-8000-{os.getpid():012}"
        is_first = not Path("again").exists()
        Path("again").touch()
        child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332", "session_id": session})
        if is_first:
            child.expect("user")  # in vain
        text = str("--resume" in " ".join(child.argv))
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session})

    with FakeCLI.from_function(play) as fake:
        command = [sys.executable, str(PROGRAM), str(tmp_path / "runs.db"), fake.path, str(repository), str(root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "all run\n"
            child.kill()
        inside = sorted(path.name for path in root.iterdir())
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert sorted(done.stdout.splitlines()[1:]) == [f"{n} succeeded True" for n in range(4)], "in the same directories"
    assert len(inside) == 5
    assert worktrees(repository) == []
    assert [path.name for path in root.iterdir()] == [".pilothouse"]
    assert not any((root / ".pilothouse").iterdir())
