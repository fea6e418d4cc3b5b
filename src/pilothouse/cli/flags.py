"""The flags and requests of `sessions`, `replay`, `serve` and `demo`, as plain data.

Imports nothing heavy: every command loads it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pilothouse.options import TABLE

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


def sessions_request(asked: argparse.Namespace) -> SessionsRequest:
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
    "fork": ("make a second session that begins as one stands", _add_fork),
    "list": ("list sessions, newest first", _add_list),
    "rename": ("give a session a title", _add_rename),
    "search": ("look for text in what was said", _add_search),
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


def replay_request(asked: argparse.Namespace) -> ReplayRequest:
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
    from pilothouse.transports import on_host

    try:
        # Not on the command line, which every process of the machine can read.
        return on_host(url, token=os.environ.get(TOKEN_VARIABLE) or None)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


SERVE_HELP = "own sessions for clients elsewhere"
SERVE_DESCRIPTION = (
    "Own Claude Code sessions for clients elsewhere, over WebSocket and REST: they go on while nobody is attached, and "
    "what they say is kept. Needs pip install 'pilothouse[server]'."
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
    where.add_argument("--public", action="store_true", help="allow an address that others than this machine reach")
    where.add_argument("--name", dest="names", action="append", default=[], help="a name by which this host is reached")
    where.add_argument(
        "--origin", dest="origins", action="append", default=[], help="an origin of web pages that may use this host"
    )
    where.add_argument("--token-file", metavar="FILE", help="holds the token; only you may read it")
    where.add_argument(
        "--client",
        dest="clients",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a further token, in a file, whose owner sees only sessions of its own",
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
    sessions.add_argument("--journal", metavar="FILE", help="keeps what sessions say")
    sessions.add_argument("--keep-days", type=float, default=7.0, metavar="N", help="for sessions that have ended (7)")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("what clients may have")
    limits.add_argument(
        "--max-permission-mode",
        default="bypassPermissions",
        metavar="MODE",
        help="of plan, dontAsk, default, acceptEdits, auto, bypassPermissions: this one and those before it",
    )
    limits.add_argument("--no-client-programs", action="store_true", help="no hooks, helpers and plugins of clients")
    limits.add_argument("--no-client-mcp", action="store_true", help="no MCP servers of clients")
    limits.add_argument("--no-client-settings", action="store_true", help="no settings of clients")
    limits.add_argument("--managed-settings", metavar="FILE", help="settings, as JSON, that hold for every session")
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


def serve_request(asked: argparse.Namespace) -> ServeRequest:
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


def demo_request(asked: argparse.Namespace) -> DemoRequest:
    """Make the request from the parsed flags."""
    parts = frozenset({"tools"} if asked.scripted else {"question", "tools"})
    return DemoRequest(prompt=asked.prompt, parts=parts, local=asked.local, cli=asked.cli)
