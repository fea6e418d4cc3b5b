"""The flags of `pilothouse batch` and `pilothouse worker` about directories of runs and the files saved of them.

Owns these flags, and the arguments of `Fleet` that they stand for. Starts nothing and prints nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pilothouse.errors import UsageError

if TYPE_CHECKING:
    from pilothouse.fleet import Artifacts, Workspace

KEEP = ("always", "failed", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRequest:
    """In which directories runs were asked to work, and what was to be saved."""

    worktree: str | None = None
    ref: str | None = None
    branch: str | None = None
    copy_from: str | None = None
    subdirectory: str | None = None
    workspaces: str | None = None
    keep_workspaces: str | None = None
    artifacts: str | None = None
    artifact: tuple[str, ...] = ()
    patch: bool = False


def add_workspace(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    place = parser.add_argument_group("a directory for each run")
    place.add_argument("--worktree", metavar="REPO", help="a git worktree of this repository")
    place.add_argument("--ref", metavar="REF", help="the commit at which it begins (default: HEAD)")
    place.add_argument("--branch", metavar="NAME", help="a branch for each run, such as agent/{name}")
    place.add_argument("--copy-from", metavar="PATH", help="a copy of this directory, archive or git bundle")
    place.add_argument("--subdirectory", metavar="PATH", help="where in its directory a run works")
    place.add_argument("--workspaces", metavar="DIR", help="where the directories lie (default: in the cache)")
    place.add_argument("--keep-workspaces", choices=KEEP, help="which of them stay (default: failed)")
    place.add_argument("--artifacts", metavar="URL|DIR", help="where files of the runs are saved (s3://…, gs://…, …)")
    place.add_argument("--artifact", action="append", metavar="GLOB", help="save these files; may be given many times")
    place.add_argument("--patch", action="store_true", help="save all changes of a run as changes.patch")


def workspace_request(asked: argparse.Namespace) -> WorkspaceRequest:
    """What the flags say."""
    values: dict[str, Any] = {one.name: getattr(asked, one.name) for one in fields(WorkspaceRequest)}
    values["artifact"] = tuple(asked.artifact or ())
    return WorkspaceRequest(**values)


def workspace_settings(request: WorkspaceRequest) -> dict[str, Any]:
    """The arguments of `Fleet` for what was asked.

    Raises:
        UsageError: flags that do not go together, or a value that cannot be.
    """
    return {"workspace": _workspace(request), "artifacts": _artifacts(request)}


# Flags that say nothing without one of others.
_NEEDS = (
    (("ref", "branch"), ("worktree",)),
    (("subdirectory", "workspaces", "keep_workspaces", "artifacts"), ("worktree", "copy_from")),
    (("artifact", "patch"), ("artifacts",)),
)


def _check(request: WorkspaceRequest) -> None:
    if request.worktree is not None and request.copy_from is not None:
        raise UsageError("--worktree and --copy-from are two ways to make a directory: give one of them")
    for names, needed in _NEEDS:
        for name in names:
            if getattr(request, name) and not any(getattr(request, one) for one in needed):
                raise UsageError(f"{_flag(name)} needs {' or '.join(map(_flag, needed))}")


def _workspace(request: WorkspaceRequest) -> Workspace | None:
    from pilothouse.fleet import CopiedDirectory, GitWorktree  # other commands read these flags as well

    _check(request)
    more: dict[str, Any] = {
        "root": request.workspaces, "keep": request.keep_workspaces or "failed", "subdirectory": request.subdirectory
    }  # fmt: skip
    if request.worktree is not None:
        return GitWorktree(request.worktree, ref=request.ref or "HEAD", branch=request.branch, **more)
    return None if request.copy_from is None else CopiedDirectory(request.copy_from, **more)


def _artifacts(request: WorkspaceRequest) -> Artifacts | None:
    if request.artifacts is None:
        return None
    if not request.artifact and not request.patch:
        raise UsageError("--artifacts needs --artifact, --patch, or both")
    from pilothouse.fleet import Artifacts  # as above

    return Artifacts(request.artifacts, request.artifact, patch=request.patch)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
