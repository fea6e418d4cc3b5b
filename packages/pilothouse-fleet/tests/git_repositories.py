"""Repositories and runners that work in directories, for the tests of workspaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from scripted_runners import answer

from pilothouse.client import QueryResult
from pilothouse_fleet import Attempt, Workspace

T = TypeVar("T", bound=Workspace)

WHO = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"))
}


def git(directory: Path, *arguments: str) -> str:
    """What git says."""
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", **WHO}
    done = subprocess.run(["git", *arguments], cwd=directory, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def made_repository(path: Path) -> Path:
    """A repository with two files and one commit."""
    (path / "pkg").mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    (path / "a.txt").write_text("one\n")
    (path / "pkg" / "b.txt").write_text("two\n")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "first")
    return path


def worktrees(repository: Path) -> list[str]:
    """Those that git knows, without the main one."""
    lines = git(repository, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")][1:]


def left_in(root: Path) -> list[str]:
    """Everything below a root, our own notes included."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != ".pilothouse")


async def opened(workspace: T) -> T:
    """A workspace that can make directories."""
    await workspace.open()
    return workspace


class PlacedRunner:
    """A runner that looks around: `play` is called with the directory of each attempt.

    Args:
        play: what an attempt does there.
    """

    def __init__(self, play: Callable[[Path, Attempt], Awaitable[QueryResult | None]]) -> None:
        self._play = play
        self.places: list[Path] = []
        self.sessions: list[str | None] = []  # that were resumed; None: a new one

    async def run(self, attempt: Attempt) -> QueryResult:
        place = Path(attempt.settings["cwd"])
        self.places.append(place)
        self.sessions.append(attempt.session_id if attempt.is_resumed else None)
        return await self._play(place, attempt) or answer(f"{attempt.prompt}!")
