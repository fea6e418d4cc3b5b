"""The flags and requests of `batch` and `worker`, as plain data. Imports nothing heavy: every command loads it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pilothouse.errors import UsageError

if TYPE_CHECKING:
    from pilothouse.fleet import Artifacts, Workspace


KEEP_CHOICES = ("always", "failed", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRequest:
    """The parsed flags for working directories and artifacts of runs."""

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
    place.add_argument("--keep-workspaces", choices=KEEP_CHOICES, help="which of them stay (default: failed)")
    place.add_argument("--artifacts", metavar="URL|DIR", help="where files of the runs are saved (s3://…, gs://…, …)")
    place.add_argument("--artifact", action="append", metavar="GLOB", help="save these files; may be given many times")
    place.add_argument("--patch", action="store_true", help="save all changes of a run as changes.patch")


def workspace_request(asked: argparse.Namespace) -> WorkspaceRequest:
    """Make the request from the parsed flags."""
    values: dict[str, Any] = {one.name: getattr(asked, one.name) for one in fields(WorkspaceRequest)}
    values["artifact"] = tuple(asked.artifact or ())
    return WorkspaceRequest(**values)


def make_workspace_settings(request: WorkspaceRequest) -> dict[str, Any]:
    """Make the arguments of `Fleet` for a request.

    Raises:
        UsageError: flags that exclude each other, or a value that is not valid.
    """
    return {"workspace": _make_workspace(request), "artifacts": _make_artifacts(request)}


# Flags that have no effect without one of the others.
_REQUIRED_TOGETHER = (
    (("ref", "branch"), ("worktree",)),
    (("subdirectory", "workspaces", "keep_workspaces", "artifacts"), ("worktree", "copy_from")),
    (("artifact", "patch"), ("artifacts",)),
)


def _check_request(request: WorkspaceRequest) -> None:
    if request.worktree is not None and request.copy_from is not None:
        raise UsageError("--worktree and --copy-from are two ways to make a directory: give one of them")
    for names, needed in _REQUIRED_TOGETHER:
        for name in names:
            if getattr(request, name) and not any(getattr(request, one) for one in needed):
                raise UsageError(f"{_format_flag(name)} needs {' or '.join(map(_format_flag, needed))}")


def _make_workspace(request: WorkspaceRequest) -> Workspace | None:
    from pilothouse.fleet import (
        CopiedDirectory,
        GitWorktree,
    )  # slow to import, and other commands read these flags too

    _check_request(request)
    more: dict[str, Any] = {
        "root": request.workspaces, "keep": request.keep_workspaces or "failed", "subdirectory": request.subdirectory
    }  # fmt: skip
    if request.worktree is not None:
        return GitWorktree(request.worktree, ref=request.ref or "HEAD", branch=request.branch, **more)
    return None if request.copy_from is None else CopiedDirectory(request.copy_from, **more)


def _make_artifacts(request: WorkspaceRequest) -> Artifacts | None:
    if request.artifacts is None:
        return None
    if not request.artifact and not request.patch:
        raise UsageError("--artifacts needs --artifact, --patch, or both")
    from pilothouse.fleet import Artifacts  # as above

    return Artifacts(request.artifacts, request.artifact, patch=request.patch)


def _format_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


STOP_AFTER = 3  # as in `Fleet`, which is slow to import


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """The parsed flags of a fleet. `retry` is the value of the flag --attempts."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    journal: str | None = None
    concurrency: int = 8
    budget_usd: float | None = None
    run_budget_usd: float | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    overall_concurrency: int | None = None
    overall_requests_per_minute: float | None = None
    overall_tokens_per_minute: float | None = None
    stop_after: int = STOP_AFTER
    retry: int = 3
    on_interrupted: str = "resume"
    local: bool = False
    workspace: WorkspaceRequest = field(default_factory=WorkspaceRequest)


_LIMIT_FLAGS: dict[str, tuple[type, str, str]] = {
    "--concurrency": (int, "N", "how many run at once here (default: 8)"),
    "--budget-usd": (float, "USD", "start nothing once so much is spent"),
    "--run-budget-usd": (float, "USD", "what one run may cost"),
    "--requests-per-minute": (float, "N", "requests to the model, from here"),
    "--tokens-per-minute": (float, "N", "tokens of fresh input and of output, from here"),
    "--overall-concurrency": (int, "N", "how many run at once in all processes of the journal"),
    "--overall-requests-per-minute": (float, "N", "requests from all of them, in equal parts"),
    "--overall-tokens-per-minute": (float, "N", "tokens of all of them, in equal parts"),
    "--stop-after": (int, "N", f"runs in a row that fail for a reason of all (default: {STOP_AFTER}); 0: never"),
}
_LIMIT_DEFAULTS = {"--concurrency": 8, "--stop-after": STOP_AFTER}


def add_fleet(parser: argparse.ArgumentParser, journal: str) -> None:
    """Add the flags.

    Args:
        parser: the parser of the command.
        journal: the help on the journal for this command.
    """
    parser.add_argument(
        "--journal", metavar="FILE|postgresql://…", help=f"{journal} (default: PILOTHOUSE_JOURNAL, if it is set)"
    )
    parser.add_argument("--local", action="store_true", help="a small open model on this machine; no key")
    limits = parser.add_argument_group("limits of all runs together")
    for flag, (kind, metavar, meaning) in _LIMIT_FLAGS.items():
        limits.add_argument(flag, type=kind, metavar=metavar, help=meaning, default=_LIMIT_DEFAULTS.get(flag))
    # With its own destination: `retry` is an option of a query as well.
    limits.add_argument(
        "--attempts",
        dest="fleet_retry",
        type=int,
        default=3,
        metavar="N",
        help="further attempts after a failure that may pass (default: 3)",
    )
    limits.add_argument(
        "--on-interrupted",
        choices=("resume", "restart", "fail"),
        default="resume",
        help="what becomes of a run that was stopped on the way (default: resume)",
    )
    add_workspace(parser)


def read_fleet_fields(asked: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the flags by the names of `FleetRequest`."""
    own = {"settings": settings, "retry": asked.fleet_retry, "workspace": workspace_request(asked)}
    names = [one.name for one in fields(FleetRequest)]
    return {name: own[name] if name in own else getattr(asked, name) for name in names}


BATCH_HELP = "run many prompts, a few at a time, and survive crashes"
BATCH_DESCRIPTION = (
    "Run every prompt of a file, a few at a time. With a journal a run that has ended is never repeated."
)
BATCH_EPILOG = """A prompts file has a prompt a line: with the suffix .jsonl a JSON string, or an object with "prompt"
and, if need be, "key" and "options"; else plain text. '-' is standard input, as JSON lines. Results go to the file of
--output, a line of JSON each (CSV with the suffix .csv); without it to standard output. In place of a file:

  status         what stands where in the journal; changes nothing
  results        what has ended, out of the journal; changes nothing
  resume         go on with what is left in the journal
  retry-failed   run again what has failed

With --enqueue the prompts are put into the journal, and `pilothouse worker` does them, here or elsewhere; with
--concurrency 0 as well, and the results are waited for.

Ctrl-C once: nothing is started any more, what runs is stopped and kept in the journal; twice: at once.

examples:
  pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
  pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
  pilothouse batch prompts.jsonl --enqueue --journal postgresql://db/fleet
  pilothouse batch status --journal runs.db
  pilothouse batch results --journal runs.db -o out.csv
  pilothouse batch resume --journal runs.db -o out.jsonl

exit codes:
  0 every run succeeded    1 some failed, or are left    2 wrong usage    130 Ctrl-C
"""
ACTIONS = ("status", "results", "resume", "retry-failed")
SOURCES = "|".join(("FILE", *ACTIONS))


@dataclass(frozen=True, slots=True)
class BatchRequest(FleetRequest):
    """The parsed arguments of `pilothouse batch`."""

    source: str
    output: str | None = None
    enqueue: bool = False
    watch: bool = False
    json: bool = False

    @property
    def action(self) -> str:
        """The action: one of `ACTIONS`, or "run"."""
        return self.source if self.source in ACTIONS else "run"


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command that are not options of a query."""
    parser.add_argument("source", metavar=SOURCES, help="the prompts, or what to do")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the results go (.jsonl or .csv)")
    parser.add_argument("--enqueue", action="store_true", help="put the prompts into the journal, and leave")
    parser.add_argument("--json", action="store_true", help="status: print one JSON object")
    parser.add_argument("--watch", action="store_true", help="status: again and again, until nothing is left")
    add_fleet(parser, "keep all runs there, and go on with it")


def batch_request(asked: argparse.Namespace, settings: Mapping[str, Any]) -> BatchRequest:
    """Make the request from the parsed flags."""
    names = ("source", "output", "enqueue", "watch", "json")
    return BatchRequest(**{name: getattr(asked, name) for name in names}, **read_fleet_fields(asked, settings))


WORKER_HELP = "do what others put into a journal"
WORKER_DESCRIPTION = (
    "Do the runs of a journal, those that are put in later too, a few at a time. Start one on each machine: they share "
    "the work, and when one dies the others take its runs over."
)
WORKER_EPILOG = """`pilothouse batch FILE --enqueue` puts runs in; every option of a query given here holds for those
that have none of their own. What runs programs, redirects or permits something is the worker's own, unless --accept
says otherwise: a run that asks for it fails. A line for each run goes to standard error. An address with a password
belongs into the variable PILOTHOUSE_JOURNAL, where no list of processes shows it.

SIGTERM, or Ctrl-C once: nothing is started any more, what runs is stopped in order, and other workers go on with it;
twice: at once.

examples:
  pilothouse worker --journal runs.db
  PILOTHOUSE_JOURNAL=postgresql://me:secret@db/fleet pilothouse worker --concurrency 4
  pilothouse worker --journal postgresql://db/fleet --until-empty --model haiku

exit codes:
  0 nothing is left (--until-empty), or SIGTERM    1 the journal was lost, the budget is spent, or no run can succeed
  2 wrong usage, or no Claude Code to run          130 Ctrl-C
"""


@dataclass(frozen=True, slots=True)
class WorkerRequest(FleetRequest):
    """The parsed arguments of `pilothouse worker`."""

    until_empty: bool = False
    accepts: tuple[str, ...] = ()
    max_permission_mode: str | None = None


def add_worker(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command that are not options of a query."""
    add_fleet(parser, "where the runs stand")
    parser.add_argument("--until-empty", action="store_true", help="end when nothing is left, here and elsewhere")
    journal = parser.add_argument_group("what the journal may say")
    journal.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option of a run that holds although it runs, redirects or permits something; all: every one",
    )
    journal.add_argument(
        "--max-permission-mode", metavar="MODE", help="the highest permission mode of a run (default: that given here)"
    )


def worker_request(asked: argparse.Namespace, settings: Mapping[str, Any]) -> WorkerRequest:
    """Make the request from the parsed flags."""
    return WorkerRequest(
        until_empty=asked.until_empty,
        accepts=tuple(asked.accept),
        max_permission_mode=asked.max_permission_mode,
        **read_fleet_fields(asked, settings),
    )
