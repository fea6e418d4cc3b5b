"""Files of runs that are saved: which, where, how many, and what happens when they cannot be."""

from __future__ import annotations

import logging
import os
import sys
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from git_repositories import PlacedRunner, git, made_repository, opened, worktrees
from obstore.store import MemoryStore, S3Store
from scripted_runners import all_of, answer
from store_servers import S3_KEYS, started

import pilothouse_fleet.workspaces.artifacts as artifacts_module
from pilothouse.client import QueryResult
from pilothouse.errors import ArtifactsError, CLIExitedError, ExecutionError, UsageError
from pilothouse.messages import from_dict
from pilothouse.options import RetryPolicy
from pilothouse_fleet import Artifacts, Attempt, CopiedDirectory, Fleet, GitWorktree, RunDirectory, RunWriter
from pilothouse_fleet.workspaces.base import make_directory_name
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def s3() -> Generator[dict[str, str]]:
    with started("s3") as how:
        urllib.request.urlopen(urllib.request.Request(f"{how['endpoint']}/saved", method="PUT")).close()
        yield {**S3_KEYS, "endpoint": how["endpoint"]}


@pytest.fixture
def place(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "place"
    path.mkdir()
    return RunDirectory(path, path, is_new=True)


@pytest.fixture
def workspace(tmp_path: Path) -> CopiedDirectory:
    return CopiedDirectory(tmp_path / "place", root=tmp_path / "root")


def below(directory: Path) -> dict[str, str]:
    """All files below a directory."""
    found = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_text() for path in found}


def fill(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        (["*.txt"], ["a.txt", "ü b.txt"]),
        (["**/*.txt"], ["a.txt", "deep/b.txt", "deep/er/c.txt", "ü b.txt"]),
        (["deep/*"], ["deep/b.txt", "deep/x.log"]),
        (["deep/**"], ["deep/b.txt", "deep/er/c.txt", "deep/x.log"]),
        (["*/er/?.txt"], ["deep/er/c.txt"]),
        (["a.txt", "a.*"], ["a.txt"]),
        (["[ab].txt", "A.TXT", ".git/config", "**/config", "missing"], []),
    ],
)
async def test_patterns(
    tmp_path: Path, place: RunDirectory, workspace: Any, patterns: list[str], taken: list[str]
) -> None:
    fill(place.path, "a.txt", "ü b.txt", "deep/b.txt", "deep/x.log", "deep/er/c.txt", ".git/config")
    saved = await Artifacts(tmp_path / "saved", patterns).save("k/1", place, workspace)
    folder = tmp_path / "saved" / make_directory_name("k/1")
    assert saved == tuple(str(folder / name) for name in taken)
    assert below(tmp_path) | {f"saved/{folder.name}/{name}": name for name in taken} == below(tmp_path)
    assert len(below(tmp_path / "saved") if taken else []) == len(taken)


async def test_links_and_odd_files_are_not_followed_out_of_the_directory(
    tmp_path: Path, place: RunDirectory, workspace: Any
) -> None:
    fill(tmp_path, "secret/key.txt")
    fill(place.path, "good.txt", "inner/x.txt")
    (place.path / "link.txt").symlink_to(tmp_path / "secret" / "key.txt")
    (place.path / "linked").symlink_to(tmp_path / "secret")
    (place.path / "inner" / "up").symlink_to("../..")
    os.mkfifo(place.path / "pipe.txt")
    await Artifacts(tmp_path / "saved", ["**", "linked/*", "**/key.txt"]).save("k", place, workspace)
    assert list(below(tmp_path / "saved" / make_directory_name("k")).values()) == ["good.txt", "inner/x.txt"]


async def test_sizes_are_bounded(
    tmp_path: Path,
    place: RunDirectory,
    workspace: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in (("a", 40), ("b\n", 100), ("c", 50), ("d", 20)):
        (place.path / name).write_bytes(b"x" * size)
    saved = await Artifacts(tmp_path / "saved", ["*"], max_bytes=100).save("k", place, workspace)
    assert [Path(one).name for one in saved] == ["a", "c"]
    assert caplog.messages == [r"run 'k': 2 files are not saved, because they exceed the limits: 'b\n', 'd'"]
    monkeypatch.setattr(artifacts_module, "MAX_FILES", 3)
    saved = await Artifacts(tmp_path / "saved", ["*"]).save("k", place, workspace)
    assert [Path(one).name for one in saved] == ["a", "b%0A", "c"]
    assert not list((tmp_path / "saved").rglob("*.new"))


@pytest.mark.parametrize(
    "name", ["odd\n\x01.txt", "a#b?c%.txt", "ключ 🚢.txt", "back\\slash.txt", "-rf.txt", "[x]{y}~.txt"]
)
async def test_names_of_all_kinds_reach_the_storage(place: RunDirectory, workspace: Any, s3: Any, name: str) -> None:
    (place.path / name).write_text("odd")
    (place.path / os.fsdecode(b"\xff.txt")).write_text("bytes")
    store = S3Store("saved", prefix="odd", config=s3, client_options={"allow_http": True})
    saved = await Artifacts(store, ["*"]).save(name, place, workspace)
    assert len(saved) == 2
    assert sorted(bytes(store.get(one).bytes()) for one in saved) == [b"bytes", b"odd"]
    assert all(one.startswith(make_directory_name(name) + "/") for one in saved)


async def test_s3(place: RunDirectory, workspace: Any, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts_module, "_MAX_SINGLE_PUT_BYTES", 100_000)
    big = os.urandom(6_000_000)
    (place.path / "big").write_bytes(big)
    fill(place.path, "small", "empty")
    (place.path / "empty").write_bytes(b"")
    artifacts = Artifacts("s3://saved/here", ["*"], prefix="batch/7", config=s3)
    await artifacts.open()
    for text in ("first", "second"):
        (place.path / "small").write_text(text)
        saved = await artifacts.save("k", place, workspace)
        folder = f"batch/7/{make_directory_name('k')}"
        assert saved == tuple(f"s3://saved/here/{folder}/{name}" for name in ("big", "empty", "small"))
    store = S3Store("saved", prefix="here", config=s3, client_options={"allow_http": True})
    assert bytes(store.get(f"{folder}/big").bytes()) == big
    assert bytes(store.get(f"{folder}/small").bytes()) == b"second"
    assert [row["path"] for rows in store.list() for row in rows] == [
        f"{folder}/{n}" for n in ("big", "empty", "small")
    ]


async def test_an_upload_that_is_cancelled_leaves_nothing(place: RunDirectory, workspace: Any, s3: Any) -> None:
    (place.path / "big").write_bytes(os.urandom(6_000_000))
    store = S3Store("saved", prefix="cancelled", config=s3, client_options={"allow_http": True})
    artifacts = Artifacts(store, ["*"])
    with anyio.CancelScope() as scope:
        real = artifacts_module._read_chunks

        def pieces(read: Any, size: int, check: Any) -> Generator[bytes]:
            for piece in real(read, size, check):
                anyio.from_thread.run_sync(scope.cancel)
                yield piece

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(artifacts_module, "_read_chunks", pieces)
            await artifacts.save("k", place, workspace)
    assert scope.cancelled_caught
    assert [row for rows in store.list() for row in rows] == []


async def test_no_key_is_shown(place: RunDirectory, workspace: Any) -> None:
    config = {**S3_KEYS, "endpoint": "http://127.0.0.1:9"}
    artifacts = Artifacts("s3://user:hidden-word@saved/x?token=hidden-token", ["*"], config=config)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pilothouse_transcripts.stores.objects._RETRIES", 0)
        with pytest.raises(ArtifactsError) as caught:
            await artifacts.open()
    text = str(caught.value)
    assert "cannot be saved" in text
    assert not [word for word in ("hidden", *S3_KEYS.values()) if word in text and word != "us-east-1"]


async def test_a_bucket_that_is_not_there_is_reported_at_the_start(tmp_path: Path, s3: Any) -> None:
    with pytest.raises(ArtifactsError, match="there is no such bucket; create it first"):
        await Artifacts("s3://missing", ["*"], config=s3).open()
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactsError, match=r"artefacts cannot be saved: .*file"):
        await Artifacts(tmp_path / "file", ["*"]).open()
    await Artifacts((tmp_path / "new" / "one").as_uri(), ["*"]).open()
    assert below(tmp_path) == {"file": ""}


async def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        ArtifactsError, match=r"an object storage needs the package obstore: pip install 'pilothouse\[objects\]'"
    ):
        await Artifacts("s3://x", ["*"]).open()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("x",), "give patterns of the files to save"),
        (("x", "*.txt"), "a list of patterns, not text"),
        (("x", ["/abs"]), "a path without '..'"),
        (("x", ["a/../../b"]), "a path without '..'"),
        (("x", [""]), "a path without '..'"),
        (("ftp://x", ["*"]), "one of az://, file://, gs://, s3://, not ftp://"),
        ((7, ["*"]), "a URL, a path, or a store of obstore, not int"),
    ],
)
async def test_impossible_arguments(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Artifacts(*given)


@pytest.mark.parametrize("more", [{"prefix": "../x"}, {"prefix": "/x"}, {"max_bytes": 0}, {"max_bytes": 1.5}])
async def test_impossible_settings(more: Any) -> None:
    with pytest.raises(UsageError):
        Artifacts("x", ["*"], **more)


# Patches.


async def test_a_patch_has_all_that_was_changed(tmp_path: Path) -> None:
    repository = made_repository(tmp_path / "repository")
    (repository / ".gitignore").write_text("*.secret\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "ignore")
    workspace = await opened(GitWorktree(repository, root=tmp_path / "root"))
    place = await workspace.make("a", is_resumed=False)
    here = place.path
    (here / "a.txt").write_text("changed\n")
    git(here, "commit", "--quiet", "-am", "committed")
    (here / "pkg" / "b.txt").unlink()
    (here / "new").mkdir()
    (here / "new" / "run").write_text("#!/bin/sh\n")
    (here / "new" / "run").chmod(0o755)
    (here / "data.bin").write_bytes(bytes(range(256)))
    (here / "ключ.txt").write_text("x\n")
    (here / "link").symlink_to("a.txt")
    (here / "my.secret").write_text("hidden")
    (here / "staged.txt").write_text("s\n")
    git(here, "add", "staged.txt")
    before = git(here, "status", "--porcelain"), git(here, "count-objects")
    [saved] = await Artifacts(tmp_path / "saved", patch=True).save("a", place, workspace)
    assert (git(here, "status", "--porcelain"), git(here, "count-objects")) == before
    assert Path(saved).name == "changes.patch"
    assert "hidden" not in Path(saved).read_text()
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(repository), str(other))
    git(other, "apply", saved)
    for name in ("a.txt", "data.bin", "ключ.txt", "new/run", "staged.txt"):
        assert (other / name).read_bytes() == (here / name).read_bytes()
    assert os.access(other / "new" / "run", os.X_OK)
    assert os.readlink(other / "link") == "a.txt"
    assert not (other / "pkg" / "b.txt").exists()


async def test_no_patch_without_changes(tmp_path: Path) -> None:
    workspace = await opened(GitWorktree(made_repository(tmp_path / "repository"), root=tmp_path / "root"))
    place = await workspace.make("a", is_resumed=False)
    (place.path / "changes.patch").write_text("the agent's own")
    saved = await Artifacts(tmp_path / "saved", ["*.patch"], patch=True).save("a", place, workspace)
    assert [Path(one).read_text()[:10] for one in saved] == ["diff --git"]
    (place.path / "changes.patch").unlink()
    assert await Artifacts(tmp_path / "saved", patch=True).save("b", place, workspace) == ()


# In a fleet.


async def leave(place: Path, attempt: Attempt) -> QueryResult | None:
    (place / "out.txt").write_text(str(attempt.prompt))
    if attempt.prompt == "dies":
        raise CLIExitedError("dead")
    return answer("bad", error=ExecutionError("it cannot be done")) if attempt.prompt == "bad" else None


async def test_what_was_saved_stands_in_the_journal(source: Path, tmp_path: Path) -> None:
    journal, saved = tmp_path / "runs.db", tmp_path / "saved"
    workspace = CopiedDirectory(source, root=tmp_path / "root", keep="never")
    artifacts = Artifacts(saved, ["*.txt"])
    async with Fleet(
        runner=PlacedRunner(leave), workspace=workspace, artifacts=artifacts, journal=journal, retry=None
    ) as fleet:
        runs = await fleet.gather(["good", "bad", "dies"], key=str)
    assert [run.state for run in runs] == ["succeeded", "failed", "failed"]
    assert [[Path(one).read_text() for one in run.artifacts] for run in runs] == [["good"], ["bad"], ["dies"]]
    async with Fleet(runner=PlacedRunner(leave), journal=journal) as fleet:
        rows = await fleet.rows()
        assert [row.artifacts for row in rows] == [run.artifacts for run in runs]
    with RunWriter(tmp_path / "out.jsonl") as writer, RunWriter(tmp_path / "out.csv") as cells:
        writer.write(rows[0])
        cells.write(rows[0])
    assert f'"artifacts":["{runs[0].artifacts[0]}"]' in (tmp_path / "out.jsonl").read_text()
    assert runs[0].artifacts[0] in (tmp_path / "out.csv").read_text()


async def test_a_further_attempt_saves_once(source: Path, tmp_path: Path) -> None:
    saved: list[int] = []

    class Counted(Artifacts):
        async def save(self, key: str, run_directory: RunDirectory, workspace: Any) -> tuple[str, ...]:
            saved.append(len(runner.places))
            return await super().save(key, run_directory, workspace)

    async def play(place: Path, attempt: Attempt) -> None:
        (place / "out.txt").write_text("x")
        if len(runner.places) < 3:
            raise CLIExitedError("dead")

    runner = PlacedRunner(play)
    workspace = CopiedDirectory(source, root=tmp_path / "root")
    retry = RetryPolicy(attempts=3, first_delay=0.001)
    async with Fleet(
        runner=runner, workspace=workspace, artifacts=Counted(tmp_path / "saved", ["*"]), retry=retry
    ) as fleet:
        [run] = await fleet.gather(["a"])
    assert run.is_success
    assert saved == [3]


async def test_a_storage_that_is_gone_fails_the_run_and_keeps_its_answer(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved, journal = tmp_path / "saved", tmp_path / "runs.db"

    async def play(place: Path, attempt: Attempt) -> QueryResult:
        (place / "out.txt").write_text("x")
        if not attempt.is_resumed:
            saved.rename(tmp_path / "moved")
            saved.touch()
        given = answer("paid for", cost=0.5)
        return QueryResult([from_dict(frames.assistant("paid for")), *given.messages])

    def fleet_of(runner: PlacedRunner) -> Fleet:
        workspace = CopiedDirectory(source, root=tmp_path / "root")
        return Fleet(runner=runner, workspace=workspace, artifacts=Artifacts(saved, ["*"]), journal=journal)

    async with fleet_of(PlacedRunner(play)) as fleet:
        [run] = await fleet.gather(["a"])
    assert run.state == "failed"
    assert isinstance(run.error, ArtifactsError)
    assert (run.text, run.cost_usd, run.artifacts) == ("paid for", 0.5, ())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    saved.unlink()
    again = PlacedRunner(play)
    async with fleet_of(again) as fleet:
        [row] = await fleet.rows()
        assert isinstance(row.error, ArtifactsError)
        [run] = await all_of(fleet.retry_failed())
    assert run.is_success
    assert again.sessions == [run.session_id], "it goes on in its session and its directory"
    assert [Path(one).read_text() for one in run.artifacts] == ["x"]


async def test_memory_and_patches_of_many_runs(tmp_path: Path) -> None:
    repository = made_repository(tmp_path / "repository")
    store = MemoryStore()

    async def play(place: Path, attempt: Attempt) -> None:
        (place / "a.txt").write_text(f"{attempt.prompt}\n")

    workspace = GitWorktree(repository, root=tmp_path / "root", keep="never")
    async with Fleet(
        runner=PlacedRunner(play), workspace=workspace, artifacts=Artifacts(store, patch=True), concurrency=4
    ) as fleet:
        runs = await fleet.gather([f"line {n}" for n in range(6)])
    for run in runs:
        [saved] = run.artifacts
        assert f"+{run.prompt}\n" in bytes(store.get(saved).bytes()).decode()
    assert worktrees(repository) == []
