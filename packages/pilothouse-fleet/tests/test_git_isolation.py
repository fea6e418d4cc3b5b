"""Git that pilothouse starts runs no program that an agent configured, and takes nothing from its configuration."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from git_repositories import git, made_repository, opened

from pilothouse.errors import UsageError, WorkspaceError
from pilothouse_fleet import Artifacts, GitWorktree, RunDirectory

pytestmark = pytest.mark.anyio


class Attack:
    """What an agent does to a git directory, and to a working tree, so that git starts `program`."""

    def __init__(self, git_directory: Path, tree: Path, program: Path, objects: Path) -> None:
        self.git_directory = git_directory
        self.tree = tree
        self.program = program
        self.objects = objects  # of the shared repository

    def configure(self, text: str) -> None:
        with (self.git_directory / "config").open("a") as file:
            file.write(text)

    def make_promisor(self, remote: str, more: str = "", missing: str = "HEAD~1:a.txt") -> None:
        """Turn the repository into a partial clone in which an object is missing."""
        missing = git(self.tree, "rev-parse", missing)
        self.configure(
            "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = x\n"
            f'[remote "x"]\n\tpromisor = true\n\t{remote}\n[protocol]\n\tallow = always\n'
            f'[protocol "ext"]\n\tallow = always\n[protocol "file"]\n\tallow = always\n{more}'
        )
        (self.objects / missing[:2] / missing[2:]).unlink()


def lazy_uploadpack(attack: Attack) -> None:
    attack.make_promisor(f"url = {attack.git_directory}\n\tuploadpack = {attack.program}")


def lazy_commit(attack: Attack) -> None:
    attack.make_promisor(f"url = {attack.git_directory}\n\tuploadpack = {attack.program}", missing="HEAD~1")


def lazy_ext(attack: Attack) -> None:
    attack.make_promisor(f'url = "ext::{attack.program}"')


def lazy_ssh(attack: Attack) -> None:
    attack.make_promisor("url = ssh://127.0.0.1/x", f"[core]\n\tsshCommand = {attack.program}\n")


def lazy_credentials(attack: Attack) -> None:
    helper = f"[credential]\n\thelper = {attack.program}\n[core]\n\taskPass = {attack.program}\n"
    attack.make_promisor("url = http://x@127.0.0.1:9/x", helper)


def lazy_include(attack: Attack) -> None:
    (attack.git_directory / "more").write_text(f'[remote "x"]\n\tuploadpack = {attack.program}\n')
    condition = '[includeIf "gitdir:/**"]\n\tpath = more\n[include]\n\tpath = more\n'
    attack.make_promisor(f"url = {attack.git_directory}", condition)


def filters(attack: Attack) -> None:
    kinds = "".join(f"\t{kind} = {attack.program}\n" for kind in ("clean", "smudge", "process"))
    attack.configure(f'[filter "x"]\n{kinds}[filter "lfs"]\n{kinds}')
    (attack.git_directory / "info").mkdir(exist_ok=True)
    (attack.git_directory / "info" / "attributes").write_text("* filter=x\n")
    (attack.tree / ".gitattributes").write_text("* filter=x\n*.bin filter=lfs\n")


def attributes(attack: Attack) -> None:
    filters(attack)
    attack.configure(f"[core]\n\tattributesFile = {attack.tree}/.gitattributes\n")
    attack.configure(f'[diff "x"]\n\ttextconv = {attack.program}\n\tcommand = {attack.program}\n')
    (attack.tree / ".gitattributes").write_text("* filter=x diff=x merge=x\n")


def fsmonitor(attack: Attack) -> None:
    programs = ("fsmonitor", "pager", "editor", "sshCommand", "askPass", "gitProxy", "alternateRefsCommand")
    attack.configure("[core]\n" + "".join(f"\t{name} = {attack.program}\n" for name in programs))
    attack.configure(f"[diff]\n\texternal = {attack.program}\n[gpg]\n\tprogram = {attack.program}\n")
    attack.configure(f"[uploadpack]\n\tpackObjectsHook = {attack.program}\n[alias]\n\treset = !{attack.program}\n")


def hooks(attack: Attack) -> None:
    folder = attack.git_directory / "hooks"
    folder.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-commit", "fsmonitor-watchman"):
        (folder / name).symlink_to(attack.program)
    attack.configure(f"[core]\n\thooksPath = {folder}\n")


def worktree_configuration(attack: Attack) -> None:
    attack.configure("[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n")
    text = f'[core]\n\tfsmonitor = {attack.program}\n[filter "x"]\n\tsmudge = {attack.program}\n'
    (attack.git_directory / "config.worktree").write_text(text)
    (attack.tree / ".gitattributes").write_text("* filter=x\n")


def alternates(attack: Attack) -> None:
    info = attack.git_directory / "objects" / "info"
    info.mkdir(exist_ok=True)
    with (info / "alternates").open("a") as file:
        file.write(f"/proc/self/fd\n../../../..\n{attack.tree}\n")


def replaced(attack: Attack) -> None:
    """The place where the configuration is looked for."""
    (attack.git_directory / "commondir").write_text(f"{attack.tree}/evil\n")
    git(attack.tree, "init", "--quiet", "--bare", "evil")
    (attack.tree / "evil" / "config").write_text(f"[core]\n\tbare = false\n\tfsmonitor = {attack.program}\n")


def own_directory(attack: Attack) -> None:
    """A git directory that the agent has made."""
    made = attack.program.parent / "made"
    git(made.parent, "clone", "--quiet", "--no-checkout", str(attack.objects.parent.parent), str(made))
    shutil.rmtree(attack.git_directory)
    (made / ".git").rename(attack.git_directory)
    filters(attack)


def elsewhere(attack: Attack) -> None:
    own_directory(attack)
    attack.git_directory.rename(attack.program.parent / "elsewhere")
    attack.git_directory.write_text(f"gitdir: {attack.program.parent}/elsewhere\n")


def submodule(attack: Attack) -> None:
    inner = attack.tree / "inner"
    made_repository(inner / "new")
    (inner / "new" / ".git").rename(inner / ".git")
    filters(Attack(inner / ".git", inner, attack.program, attack.objects))
    (inner / "a.txt").write_text("changed\n")


ATTACKS = [
    lazy_uploadpack, lazy_commit, lazy_ext, lazy_ssh, lazy_credentials, lazy_include, filters, attributes, fsmonitor,
    hooks, worktree_configuration, alternates, replaced, own_directory, elsewhere, submodule,
]  # fmt: skip


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    program.chmod(0o755)
    return program


async def save_patch(workspace: GitWorktree, place: RunDirectory, target: Path) -> str:
    [saved] = await Artifacts(target, patch=True).save("a", place, workspace)
    return Path(saved).read_text()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.parametrize("where", ["the run's repository", "the shared repository"])
async def test_git_starts_nothing_that_an_agent_configured(
    tmp_path: Path, canary: Path, attack: Callable[[Attack], None], where: str
) -> None:
    """Neither for the patch of that run, nor for the next run, nor when the fleet starts again."""
    repository = made_repository(tmp_path / "repository")
    if attack is submodule:
        made_repository(repository / "inner")
        git(repository, "add", "inner")
        git(repository, "commit", "--quiet", "-m", "with a submodule")

    def make() -> GitWorktree:
        return GitWorktree(repository, root=tmp_path / "root", keep="never")

    first = make()
    await first.open()
    place = await first.make("a", is_resumed=False)
    (place.path / "a.txt").write_text("changed\n")
    git(place.path, "commit", "--quiet", "-am", "of the agent")
    (place.path / "pkg" / "b.txt").write_text("changed too\n")
    is_shared = where == "the shared repository"
    target = repository / ".git" if is_shared else place.path / ".git"
    attack(Attack(target, place.path, canary, repository / ".git" / "objects"))
    is_broken = attack.__name__.startswith("lazy_") or (is_shared and attack is elsewhere)
    try:
        assert "+changed too" in await save_patch(first, place, tmp_path / "saved")
    except WorkspaceError:
        assert is_broken, "objects are missing"
    await first.release(place, "succeeded")
    for workspace in (first, make()):
        try:
            await workspace.open()
            again = await workspace.make("b", is_resumed=False)
            await workspace.release(again, "succeeded")
        except WorkspaceError:
            assert is_broken
        except UsageError:
            assert attack in (replaced, lazy_commit)
    assert not (tmp_path / "started").exists()


async def test_filters_of_the_user_apply_and_those_of_a_repository_do_not(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gitconfig").write_text('[filter "upper"]\n\tclean = tr a-z A-Z\n\tsmudge = tr A-Z a-z\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    repository = made_repository(tmp_path / "repository")
    (repository / ".gitattributes").write_text("a.txt filter=upper\n*.txt filter=own\n")
    (repository / "a.txt").write_text("ONE\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-am", "with filters")
    git(repository, "config", "filter.own.smudge", str(canary))
    git(repository, "config", "filter.upper.clean", str(canary))
    workspace = await opened(GitWorktree(repository, root=tmp_path / "root"))
    place = await workspace.make("a", is_resumed=False)
    (place.path / ".gitattributes").write_text("a.txt filter=upper\n")
    (place.path / "a.txt").write_text("changed\n")
    assert "+CHANGED" in await save_patch(workspace, place, tmp_path / "saved")
    assert not (tmp_path / "started").exists()


async def test_a_clone_has_what_the_git_of_an_agent_needs(tmp_path: Path) -> None:
    repository = made_repository(tmp_path / "repository")
    git(repository, "tag", "-am", "one", "v1")
    git(repository, "branch", "other")
    git(repository, "config", "user.name", 'A "quoted" \\ name')
    git(repository, "config", "user.email", "a@example.org")
    git(repository, "remote", "add", "origin", "https://example.org/shop.git")
    git(repository, "config", "remote.origin.uploadpack", "evil")
    git(repository, "config", "alias.st", "!evil")
    (repository / ".git" / "info" / "exclude").write_text("*.log\n")
    workspace = await opened(GitWorktree(repository, root=tmp_path / "root"))
    here = (await workspace.make("a", is_resumed=False)).path
    assert git(here, "config", "user.name") == 'A "quoted" \\ name'
    assert git(here, "remote", "get-url", "origin") == "https://example.org/shop.git"
    assert "evil" not in (here / ".git" / "config").read_text()
    assert git(here, "describe", "--tags") == "v1"
    assert git(here, "rev-parse", "other") == git(repository, "rev-parse", "HEAD")
    (here / "a.log").touch()
    assert git(here, "status", "--porcelain") == ""
    assert git(here, "log", "--format=%s") == "first"
    (here / "a.txt").write_text("changed\n")
    git(here, "commit", "--quiet", "-am", "second")
    git(here, "checkout", "--quiet", "main")
    git(here, "fsck", "--strict")
    assert git(repository, "for-each-ref").count("\n") == 2, "an agent changes no branch of the repository"
    assert len(list((here / ".git" / "objects").rglob("*"))) < 10, "objects are borrowed"


async def test_a_shallow_repository(tmp_path: Path) -> None:
    source = made_repository(tmp_path / "source")
    git(source, "commit", "--quiet", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{source}", "repository")
    workspace = await opened(GitWorktree(tmp_path / "repository", root=tmp_path / "root"))
    place = await workspace.make("a", is_resumed=False)
    assert git(place.path, "log", "--format=%s") == "second"
    git(place.path, "commit", "--quiet", "--allow-empty", "-m", "third")
    assert git(place.path, "log", "--format=%s").splitlines() == ["third", "second"]


@pytest.mark.parametrize("trick", ["link", "pipe", "broken", "missing"])
async def test_an_index_that_an_agent_changed(tmp_path: Path, trick: str) -> None:
    repository = made_repository(tmp_path / "repository")
    (repository / ".gitignore").write_text("a.txt\n")  # it is there all the same
    git(repository, "add", "--force", ".gitignore", "a.txt")
    git(repository, "commit", "--quiet", "-m", "ignored")
    workspace = await opened(GitWorktree(repository, root=tmp_path / "root"))
    place = await workspace.make("a", is_resumed=False)
    index = place.path / ".git" / "index"
    (place.path / "pkg" / "b.txt").write_text("changed\n")
    index.unlink()
    if trick == "link":
        index.symlink_to("/dev/zero")
    elif trick == "pipe":
        os.mkfifo(index)
    elif trick == "broken":
        index.write_bytes(b"DIRC and nothing else")
    patch = await save_patch(workspace, place, tmp_path / "saved")
    assert "+changed" in patch
    assert "a.txt" not in patch
