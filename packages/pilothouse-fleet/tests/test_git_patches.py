"""A patch is saved without anything that an agent has configured: filters, its own `.git`, its own index."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from git_repositories import git, made_repository

from pilothouse_fleet import Artifacts, GitWorktree

pytestmark = pytest.mark.anyio
FILTERS = ("clean", "smudge", "process")


def made_evil(tmp_path: Path) -> Path:
    """A program that tells when it was started."""
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\ncat\n")
    program.chmod(0o755)
    return program


def set_filters(directory: Path, program: Path) -> None:
    for kind in FILTERS:
        git(directory, "config", f"filter.x.{kind}", str(program))
    git(directory, "config", "filter.x.required", "false")


@pytest.mark.parametrize(
    "how", ["clean", "process", "replaced", "elsewhere", "global attributes", "submodule", "config"]
)
async def test_no_filter_of_an_agent_runs_when_a_patch_is_saved(tmp_path: Path, how: str) -> None:
    repository = made_repository(tmp_path / "repository")
    if how == "submodule":
        inner = made_repository(repository / "inner")
        git(repository, "add", "inner")
        git(repository, "commit", "--quiet", "-m", "with a submodule")
        assert inner.is_dir()
    workspace = GitWorktree(repository, root=tmp_path / "root")
    await workspace.open()
    place = await workspace.make("a", is_resumed=False)
    here, program = place.path, made_evil(tmp_path)
    (here / "a.txt").write_text("changed\n")
    (here / ".gitattributes").write_text("* filter=x\n")
    if how in ("clean", "process"):
        git(here, "config", f"filter.x.{how}", str(program))
    elif how in ("replaced", "elsewhere"):
        shutil.rmtree(here / ".git")
        evil = tmp_path / "own"
        git(tmp_path, "clone", "--quiet", "--no-checkout", str(repository), str(evil))
        set_filters(evil, program)
        if how == "replaced":
            (evil / ".git").rename(here / ".git")
        else:
            (here / ".git").write_text(f"gitdir: {evil}/.git\n")
    elif how == "global attributes":
        set_filters(here, program)
        (repository / ".git" / "info" / "attributes").write_text("* filter=x\n")
    elif how == "submodule":
        made_repository(here / "inner" / "new")
        (here / "inner" / "new" / ".git").rename(here / "inner" / ".git")
        set_filters(here / "inner", program)
        (here / "inner" / ".gitattributes").write_text("* filter=x\n")
        (here / "inner" / "a.txt").write_text("changed\n")
    else:
        for name in ("core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.pager", "core.askPass", "gpg.program"):
            git(here, "config", name, str(program))
        git(here, "config", "core.attributesFile", str(here / ".gitattributes"))
    (tmp_path / "started").unlink(missing_ok=True)  # the agent's own git may have run it
    [saved] = await Artifacts(tmp_path / "saved", patch=True).save("a", place, workspace)
    assert "+changed" in Path(saved).read_text()
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("trick", ["link", "pipe", "broken", "missing"])
async def test_an_index_that_an_agent_changed(tmp_path: Path, trick: str) -> None:
    repository = made_repository(tmp_path / "repository")
    (repository / ".gitignore").write_text("a.txt\n")  # it is there all the same
    git(repository, "add", "--force", ".gitignore", "a.txt")
    git(repository, "commit", "--quiet", "-m", "ignored")
    workspace = GitWorktree(repository, root=tmp_path / "root")
    await workspace.open()
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
    [saved] = await Artifacts(tmp_path / "saved", patch=True).save("a", place, workspace)
    output = Path(saved).read_text()
    assert "+changed" in output
    assert "a.txt" not in output
