"""Directories of runs: git worktrees and copies, what is kept, what is cleaned, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from git_repositories import git, left_in, made_repository, opened, worktrees

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse_fleet import CopiedDirectory, GitWorktree
from pilothouse_fleet.workspaces import git as git_module
from pilothouse_fleet.workspaces.base import make_directory_name, remove_tree

pytestmark = pytest.mark.anyio

HOSTILE = [
    "../../x", "a/b", "a\\b", "/etc/passwd", "~", ".", "..", "-rf", "--force", "con", "x" * 512, "ключ", "🚢", "a b",
    "Ticket", "TICKET", "ticket", "ſ", "s", ".git", ".pilothouse", "{name}", "%2e%2e", "a:b", "$HOME", "`id`",
]  # fmt: skip


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_repository(tmp_path_factory.mktemp("made") / "repository")


@pytest.fixture
def repository(pristine: Path, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "--quiet", str(pristine), "repository")
    return tmp_path / "repository"


async def test_a_worktree_has_the_files_of_the_ref_and_is_gone_afterwards(repository: Path, root: Path) -> None:
    (repository / "a.txt").write_text("newer\n")
    git(repository, "commit", "--quiet", "-am", "second")
    workspace = await opened(GitWorktree(repository, ref="HEAD~1", root=root))
    place = await workspace.make("ticket 7", is_resumed=False)
    assert place.path == place.cwd == root.resolve() / make_directory_name("ticket 7")
    assert place.path.name.startswith("ticket-7-")
    assert (place.path / "a.txt").read_text() == "one\n"
    assert (place.path / "pkg" / "b.txt").read_text() == "two\n"
    assert git(place.path, "status", "--porcelain") == ""
    assert git(place.path, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    await workspace.release(place, "succeeded")
    assert left_in(root) == []
    assert worktrees(repository) == []


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("always", {"succeeded", "failed", "cancelled", "queued", "interrupted"}),
        ("failed", {"failed", "cancelled", "queued", "interrupted"}),
        ("never", {"queued", "interrupted"}),
    ],
)
async def test_what_is_kept(source: Path, root: Path, keep: Any, kept: set[str]) -> None:
    workspace = await opened(CopiedDirectory(source, root=root, keep=keep))
    states: Any = ("succeeded", "failed", "cancelled", "queued", "interrupted")
    for state in states:
        await workspace.release(await workspace.make(state, is_resumed=False), state)
    assert {name for name in states if (root / make_directory_name(name)).is_dir()} == kept
    assert not list(root.glob(".pilothouse/*.lock"))
    assert len(list(root.glob(".pilothouse/*"))) == len(kept)


async def test_a_session_that_goes_on_finds_its_directory_as_it_was(repository: Path, root: Path) -> None:
    first = await opened(GitWorktree(repository, root=root))
    place = await first.make("a", is_resumed=False)
    assert place.is_new
    (place.path / "a.txt").write_text("half done\n")
    await first.release(place, "interrupted")
    again = await opened(GitWorktree(repository, root=root))  # another process, later
    resumed = await again.make("a", is_resumed=True)
    assert (resumed.path, resumed.is_new) == (place.path, False)
    assert resumed.facts["base"] == place.facts["base"]
    assert (resumed.path / "a.txt").read_text() == "half done\n"
    await again.release(resumed, "queued")
    anew = await again.make("a", is_resumed=False)
    assert anew.is_new
    assert (anew.path / "a.txt").read_text() == "one\n"
    await again.release(anew, "succeeded")
    assert (await again.make("a", is_resumed=True)).is_new


@pytest.mark.parametrize("record", [None, b"", b'{"base": 1}', b"[]", b"\xff"])
async def test_a_directory_without_a_record_is_no_place_to_go_on_in(
    repository: Path, root: Path, record: bytes | None
) -> None:
    """As after a crash while it was filled, or from another version."""
    workspace = await opened(GitWorktree(repository, root=root))
    place = await workspace.make("a", is_resumed=False)
    await workspace.release(place, "interrupted")
    kept = root / ".pilothouse" / f"{place.path.name}.json"
    if record is None:
        kept.unlink()
    else:
        kept.write_bytes(record)
    (place.path / "a.txt").unlink()
    again = await workspace.make("a", is_resumed=True)
    assert (again.is_new, (again.path / "a.txt").exists()) == (True, True)
    assert again.facts == place.facts
    await workspace.release(again, "succeeded")


async def test_a_directory_that_was_partly_removed_is_no_place_to_go_on_in(
    source: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process is killed while it removes the directory, before the journal has the end of the run."""
    for name in ("a.txt", "b.txt"):
        (source / name).write_text(name)
    workspace = await opened(CopiedDirectory(source, root=root))
    place = await workspace.make("a", is_resumed=False)

    def remove_half(path: Path) -> None:
        (path / "a.txt").unlink()
        raise OSError("it does not go on")

    with monkeypatch.context() as patch:
        patch.setattr("pilothouse_fleet.workspaces.base.remove_tree", remove_half)
        await workspace.release(place, "succeeded")
    again = await workspace.make("a", is_resumed=True)
    assert again.is_new
    assert sorted(path.name for path in again.path.iterdir()) == ["a.txt", "b.txt"]
    await workspace.release(again, "succeeded")
    assert left_in(root) == []


async def test_twenty_worktrees_of_one_repository_at_once(repository: Path, root: Path) -> None:
    workspaces = [GitWorktree(repository, root=root) for _ in range(2)]  # as of two processes
    for workspace in workspaces:
        await workspace.open()
    seen: list[Path] = []

    async def one(number: int) -> None:
        workspace = workspaces[number % 2]
        place = await workspace.make(str(number), is_resumed=False)
        assert (place.path / "pkg" / "b.txt").read_text() == "two\n"
        seen.append(place.path)
        await workspace.release(place, "succeeded" if number < 15 else "failed")

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert len(set(seen)) == 20
    assert sum(path.exists() for path in seen) == 5
    assert git(repository, "status", "--porcelain") == ""
    git(repository, "fsck")


async def test_keys_of_all_kinds_stay_in_the_root(source: Path, tmp_path: Path, root: Path) -> None:
    names = [make_directory_name(key) for key in HOSTILE]
    assert len({name.lower() for name in names}) == len(HOSTILE)
    assert all(name.isascii() and name == name.lower() and len(name) <= 61 for name in names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and name[0] != "-" for name in names)
    workspace = await opened(CopiedDirectory(source, root=root))
    places = [await workspace.make(key, is_resumed=False) for key in HOSTILE]
    assert {place.path.parent for place in places} == {root.resolve()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "source"]
    for place in places:
        await workspace.release(place, "succeeded")


async def test_one_at_a_time_in_a_directory(source: Path, root: Path) -> None:
    one, two = CopiedDirectory(source, root=root), CopiedDirectory(source, root=root)
    await one.open()
    await two.open()
    place = await one.make("a", is_resumed=False)
    (place.path / "mine").touch()
    with pytest.raises(WorkspaceError, match=r"another process is at work in .*; give each fleet its own root"):
        await two.make("a", is_resumed=False)
    assert (place.path / "mine").exists()
    await one.release(place, "queued")
    assert not ((await two.make("a", is_resumed=True)).is_new)


async def test_hooks_and_variables_of_the_machine_do_nothing(
    repository: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\nexit 1\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", "/")
    workspace = await opened(GitWorktree(repository, root=root))
    await workspace.release(await workspace.make("a", is_resumed=False), "succeeded")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository", "root"]


async def test_worktrees_of_others_are_left_alone(repository: Path, root: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "mine"))
    (tmp_path / "mine").rename(tmp_path / "elsewhere")  # on a disk that is not there now
    workspace = await opened(GitWorktree(repository, root=root))
    await workspace.release(await workspace.make("a", is_resumed=False), "succeeded")
    assert worktrees(repository) == [str(tmp_path / "mine")]


async def test_a_worktree_that_its_agent_broke_is_removed_and_made_again(repository: Path, root: Path) -> None:
    workspace = await opened(GitWorktree(repository, root=root))
    place = await workspace.make("a", is_resumed=False)
    remove_tree(place.path / ".git")
    closed = place.path / "pkg" / "closed"
    closed.mkdir()
    (closed / "file").touch()
    closed.chmod(0o500)
    (place.path / "link").symlink_to("/")
    await workspace.release(place, "failed")
    anew = await workspace.make("a", is_resumed=False)
    assert sorted(os.listdir(anew.path)) == [".git", "a.txt", "pkg"]
    (anew.path.parent / ".pilothouse" / f"{anew.path.name}.json").unlink()
    await workspace.release(anew, "succeeded")
    assert worktrees(repository) == []


async def test_a_subdirectory(repository: Path, root: Path) -> None:
    workspace = await opened(GitWorktree(repository, root=root, subdirectory="pkg"))
    place = await workspace.make("a", is_resumed=False)
    assert place.cwd == place.path / "pkg"
    assert (place.cwd / "b.txt").exists()


async def test_a_bare_repository(repository: Path, root: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
    workspace = await opened(GitWorktree(tmp_path / "bare.git", root=root))
    place = await workspace.make("a", is_resumed=False)
    assert (place.path / "a.txt").exists()
    await workspace.release(place, "succeeded")


async def test_mistakes_with_git_are_reported_before_anything_is_started(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, empty = tmp_path / "root", tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for workspace, words in (
        (GitWorktree(tmp_path / "none", root=root), "there is no directory"),
        (GitWorktree(empty, root=root), "is not a usable git repository: .*not a git repository"),
        (GitWorktree(repository, ref="nix", root=root), "'nix' names no commit"),
        (GitWorktree(repository, ref="--all", root=root), "'--all' names no commit"),
        (GitWorktree(repository, ref="main:a.txt", root=root), "names no commit"),
    ):
        with pytest.raises(UsageError, match=words):
            await workspace.open()
    git(empty, "init", "--quiet")
    with pytest.raises(UsageError, match="'HEAD' names no commit"):
        await GitWorktree(empty, root=root).open()
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(UsageError, match="there is no git to run"):
        await GitWorktree(repository, root=root).open()
    assert not root.exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GitWorktree(".", keep="sometimes"), "keep is one of 'always', 'failed', 'never', not 'sometimes'"),  # pyright: ignore[reportArgumentType]
        (lambda: GitWorktree(".", subdirectory="../x"), "subdirectory: a path inside the directory"),
        (lambda: GitWorktree(".", subdirectory="/x"), "subdirectory: a path inside the directory"),
        (lambda: CopiedDirectory(".", ignore="*.pyc"), "ignore: a list of names"),
    ],
)
async def test_impossible_arguments(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


# Trouble.


async def test_a_full_disk_and_missing_rights_are_errors_of_one_run(
    source: Path, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "big").touch()
    workspace = await opened(CopiedDirectory(source, root=root))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copy2", full)
        with pytest.raises(WorkspaceError, match="No space left on device"):
            await workspace.make("a", is_resumed=False)
    assert left_in(root) == [], "what was begun makes room again"
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(WorkspaceError, match=r"no directory could be made for the run: .*No space left"):
            await workspace.make("a", is_resumed=False)
    await workspace.release(await workspace.make("a", is_resumed=False), "succeeded")
    blocked = tmp_path / "blocked"
    blocked.touch()
    with pytest.raises(WorkspaceError, match="the directories of runs cannot be made"):
        await CopiedDirectory(source, root=blocked).open()


async def test_git_that_fails_is_an_error_of_one_run(repository: Path, root: Path) -> None:
    workspace = await opened(GitWorktree(repository, root=root))
    (repository / ".git").rename(repository / "gone")
    with pytest.raises(WorkspaceError):
        await workspace.make("a", is_resumed=False)
    (repository / "gone").rename(repository / ".git")
    assert (await workspace.make("a", is_resumed=False)).is_new


@pytest.mark.parametrize("command", ["init", "reset"])
async def test_cancelled_while_it_is_made(
    repository: Path, root: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Nothing is left; also when the directory of an earlier attempt was to be replaced."""
    workspace = await opened(GitWorktree(repository, root=root))
    await workspace.release(await workspace.make("a", is_resumed=False), "failed")
    with anyio.CancelScope() as scope:
        real = git_module.run_git

        async def cancelled(*arguments: str, **more: Any) -> str:
            if arguments[0] == command and not scope.cancel_called:
                scope.cancel()
            result = await real(*arguments, **more)
            await anyio.lowlevel.checkpoint()
            return result

        with monkeypatch.context() as patched:
            patched.setattr(git_module, "run_git", cancelled)
            await workspace.make("a", is_resumed=False)
    assert scope.cancelled_caught
    assert left_in(root) == []
    assert (await workspace.make("a", is_resumed=False)).is_new


async def test_a_tree_is_removed_without_its_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    (tree / "deep" / "closed").mkdir(parents=True)
    (tree / "deep" / "closed" / "file").touch()
    (tree / "link").symlink_to(kept)
    (tree / "deep" / "link").symlink_to(kept)
    (tree / "deep" / "closed").chmod(0o500)
    (tree / "deep").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert (kept / "file").exists()
    (tmp_path / "link").symlink_to(kept)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "missing")
    assert os.listdir(tmp_path) == ["kept"]
