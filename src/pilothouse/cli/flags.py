"""The flags and requests of commands, as plain data: `sessions`, `replay`, `serve`, `demo`, `batch` and `worker`.

Imports nothing heavy: every command loads it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pilothouse.errors import UsageError
from pilothouse.options import TABLE

if TYPE_CHECKING:
    from pilothouse.fleet import Artifacts, Workspace

SESSIONS_HELP = "list, show, search, change and count the sessions on this machine"
SESSIONS_DESCRIPTION = (
    "What Claude Code keeps of its sessions on this machine: list, show, search, fork, rename, tag, delete, export, "
    "and what they used. No Claude Code is started."
)
SESSIONS_EPILOG = """A session is named by its id, or by the first characters of it.

examples:
  pilothouse sessions list
  pilothouse sessions search --all "connection reset"
  pilothouse sessions show 1f0c
  pilothouse sessions export 1f0c --format html --output session.html
  pilothouse sessions usage --all --since 2026-11-01 --json

exit codes:
  0 done    1 it failed, or nothing was found    2 wrong usage    130 Ctrl-C
"""


@dataclass(frozen=True, slots=True)
class SessionsRequest:
    """The parsed arguments of `pilothouse sessions`."""

    action: str
    session: str | None = None
    text: str | None = None
    directory: str | None = None
    limit: int | None = None
    offset: int = 0
    json: bool = False
    yes: bool = False
    regex: bool = False
    case: bool = False
    whole: bool = False
    thinking: bool = False
    agent: str | None = None
    up_to: str | None = None
    format: str = "markdown"
    output: str | None = None
    since: date | None = None
    until: date | None = None
    by: str = "day"


def add_sessions(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, (help_text, add) in _SESSION_ACTIONS.items():
        below = actions.add_parser(name, help=help_text, description=f"{help_text[:1].upper()}{help_text[1:]}.")
        add(below)


def make_sessions_request(asked: argparse.Namespace) -> SessionsRequest:
    """Make the request from the parsed flags."""
    values = {name: getattr(asked, name) for name in SessionsRequest.__slots__ if hasattr(asked, name)}
    if getattr(asked, "all", False):
        values["directory"] = None
    return SessionsRequest(**values)


def _add_directory_flag(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--directory", metavar="DIR", default=".", help="the sessions of this directory (default: here)")
    where.add_argument("--all", action="store_true", help="the sessions of all directories")


def _add_session_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="its id, or the first characters of it")


def _add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_whole_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--whole", action="store_true", help="also what compactions have replaced by summaries")


def _add_page_flags(parser: argparse.ArgumentParser, default: int | None) -> None:
    parser.add_argument(
        "--limit",
        type=_parse_count,
        default=default,
        metavar="N",
        help=f"at most so many (default: {default or 'all'})",
    )


def _add_list(parser: argparse.ArgumentParser) -> None:
    _add_directory_flag(parser)
    _add_page_flags(parser, 30)
    parser.add_argument("--offset", type=_parse_count, default=0, metavar="N", help="leave out the newest N")
    _add_json_flag(parser)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_session_argument(parser)
    parser.add_argument("--agent", metavar="ID", help="the messages of this sub-agent")
    parser.add_argument("--thinking", action="store_true", help="also what the model thought")
    _add_whole_flag(parser)
    _add_page_flags(parser, None)
    parser.add_argument("--offset", type=_parse_count, default=0, metavar="N", help="leave out the first N messages")
    _add_json_flag(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", help="what to look for")
    _add_directory_flag(parser)
    parser.add_argument("--regex", action="store_true", help="it is a regular expression")
    parser.add_argument("--case", action="store_true", help="capitals matter")
    _add_page_flags(parser, 100)
    parser.add_argument("--json", action="store_true", help="print each hit as a line of JSON, as it is found")


def _add_fork(parser: argparse.ArgumentParser) -> None:
    _add_session_argument(parser)
    parser.add_argument("--up-to", dest="up_to", metavar="UUID", help="the last message to take over (default: all)")
    parser.add_argument("--title", dest="text", metavar="TITLE", help="the title of the fork")
    _add_json_flag(parser)


def _add_rename(parser: argparse.ArgumentParser) -> None:
    _add_session_argument(parser)
    parser.add_argument("text", metavar="title", help="the new title")


def _add_tag(parser: argparse.ArgumentParser) -> None:
    _add_session_argument(parser)
    parser.add_argument("text", metavar="tag", nargs="?", help="the tag; none takes it away")


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _add_session_argument(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_session_argument(parser)
    parser.add_argument(
        "--format", choices=("markdown", "html", "json"), default="markdown", help="(default: markdown)"
    )
    parser.add_argument("--output", metavar="FILE", help="write to this file, which must not exist yet")
    parser.add_argument("--thinking", action="store_true", help="also what the model thought")
    _add_whole_flag(parser)


def _add_usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="only this session")
    _add_directory_flag(parser)
    parser.add_argument("--by", choices=("day", "session", "model"), default="day", help="(default: day)")
    parser.add_argument("--since", type=_parse_day, metavar="DAY", help="the first day, such as 2026-11-01")
    parser.add_argument("--until", type=_parse_day, metavar="DAY", help="the last day")
    _add_json_flag(parser)


def _parse_count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!a}")
    return value


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-01, got {text!a}") from None


_SESSION_ACTIONS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "delete": ("delete a session for good", _add_delete),
    "export": ("write a session as Markdown, HTML or JSON", _add_export),
    "fork": ("make a second session that begins as a copy of this one", _add_fork),
    "list": ("list sessions, newest first", _add_list),
    "rename": ("give a session a title", _add_rename),
    "search": ("look for text in sessions", _add_search),
    "show": ("show the messages of a session", _add_show),
    "tag": ("give a session a tag", _add_tag),
    "usage": ("tokens and cost by day, session or model", _add_usage),
}


TOKEN_VARIABLE = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""The environment variable with the host's token for `--transport ws://…`."""
ReplayFormat = Literal["text", "json", "stream-json"]

REPLAY_HELP = "show a recorded run"
REPLAY_DESCRIPTION = (
    "Show a recorded run as the command would have shown it: answers on standard output, prompts, tools and the "
    "closing line on standard error. Nothing is started. Ends as the run did."
)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The parsed arguments of `pilothouse replay`."""

    file: str
    form: ReplayFormat = "text"
    speed: float | None = None
    thinking: bool = False
    verbose: bool = False


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("file", metavar="FILE", help="a cassette, made by --transport record:FILE or in a program")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--json", dest="form", action="store_const", const="json", default="text", help="one JSON object for each turn"
    )
    forms.add_argument(
        "--stream-json",
        dest="form",
        action="store_const",
        const="stream-json",
        help="every message as a line of JSON, as it came",
    )
    parser.add_argument(
        "--speed", type=_parse_speed, metavar="N", help="1 as fast as it was, 2 twice as fast; without it, all at once"
    )
    parser.add_argument("--thinking", action="store_true", help="show what the model thought")
    parser.add_argument("--verbose", action="store_true", help="show what was written to standard error")


def make_replay_request(asked: argparse.Namespace) -> ReplayRequest:
    """Make the request from the parsed flags."""
    return ReplayRequest(asked.file, asked.form, asked.speed, asked.thinking, asked.verbose)


def _parse_speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number greater than 0, got {text!a}")
    return speed


def parse_transport(text: str) -> Callable[[], Any]:
    """Parse the value of `--transport`.

    Raises:
        argparse.ArgumentTypeError: the value is not known.
    """
    if text == "native":
        from pilothouse.native import NativeTransport

        return NativeTransport
    if text.startswith(("ws://", "wss://")):
        return _make_host_transport(text)
    kind, colon, path = text.partition(":")
    if kind not in ("record", "replay") or not colon or not path:
        raise argparse.ArgumentTypeError(
            f"expected native, record:FILE, replay:FILE, ws://HOST:PORT or wss://HOST:PORT, got {text!a}"
        )
    # The process may run in another directory: a path is relative to this one.
    from pilothouse.transports import Player, Recorder

    return (Recorder if kind == "record" else Player)(Path(path).absolute())


def _make_host_transport(url: str) -> Callable[[], Any]:
    from pilothouse.errors import UsageError
    from pilothouse.remote import on_host

    try:
        # Not on the command line, which every process of the machine can read.
        return on_host(url, token=os.environ.get(TOKEN_VARIABLE) or None)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


SERVE_HELP = "own sessions for clients elsewhere"
SERVE_DESCRIPTION = (
    "Own Claude Code sessions for clients elsewhere, over WebSocket and REST: they go on while no client is attached, "
    "and their messages are kept. Needs pip install 'pilothouse[server]'."
)
SERVE_EPILOG = """The token is read from --token-file, else from PILOTHOUSE_HOST_TOKEN; else one is made and shown once.
SIGTERM and Ctrl-C let running turns end, for --drain seconds; a second one ends at once.

examples:
  pilothouse serve
  pilothouse serve --root ~/work --max-sessions 8
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse serve --port 8750 --name pilot.example.com

exit codes:
  0 ended in order    1 the journal cannot be written    2 wrong usage, or the address or the journal is taken
"""
DEFAULT_PORT = 8750


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The parsed arguments of `pilothouse serve`. Times in seconds."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    public: bool = False
    token_file: str | None = None
    roots: tuple[str, ...] = ()
    journal: str | None = None
    cli: str = "auto"
    env: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    max_sessions: int = 32
    idle: float = 3600.0
    drain: float = 30.0
    keep_days: float = 7.0
    clients: tuple[str, ...] = ()
    max_permission_mode: str = "bypassPermissions"
    no_client_programs: bool = False
    no_client_mcp: bool = False
    no_client_settings: bool = False
    managed_settings: str | None = None
    verbatim_prompts: bool = False
    allow_flags: tuple[str, ...] = ()


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    where = parser.add_argument_group("where")
    where.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    where.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"0 takes a free one ({DEFAULT_PORT})")
    where.add_argument("--public", action="store_true", help="allow an address that other machines can reach")
    where.add_argument("--name", dest="names", action="append", default=[], help="a name by which this host is reached")
    where.add_argument(
        "--origin", dest="origins", action="append", default=[], help="an origin of web pages that may use this host"
    )
    where.add_argument("--token-file", metavar="FILE", help="the file with the token, readable by you alone")
    where.add_argument(
        "--client",
        dest="clients",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a file with a further token; its clients see only their own sessions",
    )
    sessions = parser.add_argument_group("sessions")
    sessions.add_argument(
        "--root",
        dest="roots",
        action="append",
        default=[],
        metavar="DIR",
        help="sessions work below this directory (.)",
    )
    sessions.add_argument("--cli", default="auto", metavar="PATH", help="which Claude Code runs; clients do not choose")
    sessions.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="PATTERN",
        help="variables that clients may set (ANTHROPIC_*, CLAUDE_CODE_*); replaces these",
    )
    _add_limits(parser)
    sessions.add_argument("--max-sessions", type=int, default=32, metavar="N", help="children at a time (32)")
    sessions.add_argument("--idle", type=float, default=3600.0, metavar="SECONDS", help="until an unused child ends")
    sessions.add_argument("--drain", type=float, default=30.0, metavar="SECONDS", help="for running turns at the end")
    sessions.add_argument("--journal", metavar="FILE", help="the file that keeps the messages of sessions")
    sessions.add_argument("--keep-days", type=float, default=7.0, metavar="N", help="for sessions that have ended (7)")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits of clients")
    limits.add_argument(
        "--max-permission-mode",
        default="bypassPermissions",
        metavar="MODE",
        help="of plan, dontAsk, default, acceptEdits, auto, bypassPermissions: this one and those before it",
    )
    limits.add_argument("--no-client-programs", action="store_true", help="no hooks, helpers and plugins of clients")
    limits.add_argument("--no-client-mcp", action="store_true", help="no MCP servers of clients")
    limits.add_argument("--no-client-settings", action="store_true", help="no settings of clients")
    limits.add_argument("--managed-settings", metavar="FILE", help="settings, as JSON, that apply to every session")
    limits.add_argument(
        "--verbatim-prompts", action="store_true", help="send prompts as they are: no @path, no /command"
    )
    limits.add_argument(
        "--allow-flag",
        dest="allow_flags",
        action="append",
        default=[],
        metavar="NAME",
        help="a further flag of the CLI that clients may give",
    )


def make_serve_request(asked: argparse.Namespace) -> ServeRequest:
    """Make the request from the parsed flags."""
    fields: dict[str, Any] = {name: getattr(asked, name) for name in ServeRequest.__dataclass_fields__}
    for name in ("roots", "env", "origins", "names", "clients", "allow_flags"):
        fields[name] = tuple(fields[name])
    return ServeRequest(**fields)


DEMO_HELP = "show what it does; needs no key"
DEMO_DESCRIPTION = "Show what pilothouse does, with the real Claude Code and without a key."
DEMO_EPILOG = """Part 1 asks one question: the embedded open model answers, or the real one if a key is set in the
environment. Part 2 runs the Python program that it shows: the real Claude Code calls a function of it, a hook denies a
command, and a permission is asked, in a temporary directory; what the model says there is scripted.
"""


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """The parsed arguments of `pilothouse demo`."""

    prompt: str
    parts: frozenset[str] = field(default_factory=frozenset[str])
    local: bool = False
    cli: str = "auto"


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("--prompt", default="What is the capital of France?", help="the question of part 1")
    force = parser.add_mutually_exclusive_group()
    force.add_argument("--local", action="store_true", help="part 1 with the embedded model even if a key is set")
    force.add_argument("--scripted", action="store_true", help="only part 2, the scripted one")
    parser.add_argument("--cli", default="auto", metavar="PATH", help=TABLE["cli"].doc.replace("%", "%%"))


def make_demo_request(asked: argparse.Namespace) -> DemoRequest:
    """Make the request from the parsed flags."""
    parts = frozenset({"tools"} if asked.scripted else {"question", "tools"})
    return DemoRequest(prompt=asked.prompt, parts=parts, local=asked.local, cli=asked.cli)


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
    group = parser.add_argument_group("a directory for each run")
    group.add_argument("--worktree", metavar="REPO", help="a git worktree of this repository")
    group.add_argument("--ref", metavar="REF", help="the commit at which it begins (default: HEAD)")
    group.add_argument("--branch", metavar="NAME", help="a branch for each run, such as agent/{name}")
    group.add_argument("--copy-from", metavar="PATH", help="a copy of this directory, archive or git bundle")
    group.add_argument("--subdirectory", metavar="PATH", help="where in its directory a run works")
    group.add_argument("--workspaces", metavar="DIR", help="the directory of these directories (default: in the cache)")
    group.add_argument("--keep-workspaces", choices=KEEP_CHOICES, help="which of them are kept (default: failed)")
    group.add_argument("--artifacts", metavar="URL|DIR", help="where files of the runs are saved (s3://…, gs://…, …)")
    group.add_argument("--artifact", action="append", metavar="GLOB", help="save these files; may be given many times")
    group.add_argument("--patch", action="store_true", help="save all changes of a run as changes.patch")


def make_workspace_request(asked: argparse.Namespace) -> WorkspaceRequest:
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
    "--budget-usd": (float, "USD", "start nothing once this much is spent"),
    "--run-budget-usd": (float, "USD", "what one run may cost"),
    "--requests-per-minute": (float, "N", "requests to the model, from here"),
    "--tokens-per-minute": (float, "N", "tokens of fresh input and of output, from here"),
    "--overall-concurrency": (int, "N", "how many run at once in all processes of the journal"),
    "--overall-requests-per-minute": (float, "N", "requests from all of them, in equal parts"),
    "--overall-tokens-per-minute": (float, "N", "tokens of all of them, in equal parts"),
    "--stop-after": (
        int,
        "N",
        f"stop after this many runs in a row fail for a common reason (default: {STOP_AFTER}); 0: never",
    ),
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
        help="further attempts after a temporary failure (default: 3)",
    )
    limits.add_argument(
        "--on-interrupted",
        choices=("resume", "restart", "fail"),
        default="resume",
        help="what happens to an interrupted run (default: resume)",
    )
    add_workspace(parser)


def read_fleet_fields(asked: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the flags by the names of `FleetRequest`."""
    own = {"settings": settings, "retry": asked.fleet_retry, "workspace": make_workspace_request(asked)}
    names = [one.name for one in fields(FleetRequest)]
    return {name: own[name] if name in own else getattr(asked, name) for name in names}


BATCH_HELP = "run many prompts, a few at a time, and survive crashes"
BATCH_DESCRIPTION = (
    "Run every prompt of a file, a few at a time. With a journal a run that has ended is never repeated."
)
BATCH_EPILOG = """A prompts file has a prompt a line: with the suffix .jsonl a JSON string, or an object with "prompt"
and, if need be, "key" and "options"; else plain text. '-' is standard input, as JSON lines. Results go to the file of
--output, a line of JSON each (CSV with the suffix .csv); without it to standard output. In place of a file:

  status         show the number of runs in the journal by state; changes nothing
  results        write the ended runs of the journal; changes nothing
  resume         continue the unfinished runs of the journal
  retry-failed   repeat the failed runs

With --enqueue the prompts are put into the journal, and `pilothouse worker` executes them, here or elsewhere. With
--concurrency 0 workers execute them too, and this command waits for the results.

Ctrl-C once: nothing more is started, running ones are stopped and kept in the journal; twice: at once.

examples:
  pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
  pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
  pilothouse batch prompts.jsonl --enqueue --journal postgresql://db/fleet
  pilothouse batch status --journal runs.db
  pilothouse batch results --journal runs.db -o out.csv
  pilothouse batch resume --journal runs.db -o out.jsonl

exit codes:
  0 every run succeeded    1 some failed or are left    2 wrong usage    130 Ctrl-C
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
    parser.add_argument("--enqueue", action="store_true", help="put the prompts into the journal, and exit")
    parser.add_argument("--json", action="store_true", help="status: print one JSON object")
    parser.add_argument("--watch", action="store_true", help="status: again and again, until nothing is left")
    add_fleet(parser, "keep all runs there, and continue with them")


def make_batch_request(asked: argparse.Namespace, settings: Mapping[str, Any]) -> BatchRequest:
    """Make the request from the parsed flags."""
    names = ("source", "output", "enqueue", "watch", "json")
    return BatchRequest(**{name: getattr(asked, name) for name in names}, **read_fleet_fields(asked, settings))


WORKER_HELP = "execute the runs of a journal"
WORKER_DESCRIPTION = (
    "Execute the runs of a journal, also those added later, a few at a time. Start one on each machine: they share "
    "the work, and when one dies the others take its runs over."
)
WORKER_EPILOG = """`pilothouse batch FILE --enqueue` adds runs. Options of a query given here apply to runs that do not
set them. A run that sets an option which runs programs, redirects or permits something fails, unless --accept names
the option. A line for each run goes to standard error. Put an address with a password into the variable
PILOTHOUSE_JOURNAL, where no list of processes shows it.

SIGTERM, or Ctrl-C once: nothing more is started, running ones are stopped gracefully, and other workers continue them;
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
    add_fleet(parser, "the journal with the runs")
    parser.add_argument("--until-empty", action="store_true", help="end when nothing is left, here and elsewhere")
    journal = parser.add_argument_group("options of runs in the journal")
    journal.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="OPTION",
        help="accept this option although it runs, redirects or permits something; all: every option",
    )
    journal.add_argument(
        "--max-permission-mode", metavar="MODE", help="the highest permission mode of a run (default: that given here)"
    )


def make_worker_request(asked: argparse.Namespace, settings: Mapping[str, Any]) -> WorkerRequest:
    """Make the request from the parsed flags."""
    return WorkerRequest(
        until_empty=asked.until_empty,
        accepts=tuple(asked.accept),
        max_permission_mode=asked.max_permission_mode,
        **read_fleet_fields(asked, settings),
    )
