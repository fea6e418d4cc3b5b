"""The flags of `pilothouse sessions`, and what was asked for as plain data.

Starts nothing, reads no file and prints nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

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
    """What `pilothouse sessions` was asked for."""

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
    for name, (help_text, add) in _ACTIONS.items():
        below = actions.add_parser(name, help=help_text, description=f"{help_text[:1].upper()}{help_text[1:]}.")
        add(below)


def sessions_request(asked: argparse.Namespace) -> SessionsRequest:
    """What the flags say."""
    values = {name: getattr(asked, name) for name in SessionsRequest.__slots__ if hasattr(asked, name)}
    if getattr(asked, "all", False):
        values["directory"] = None
    return SessionsRequest(**values)


def _place(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--directory", metavar="DIR", default=".", help="the sessions of this directory (default: here)")
    where.add_argument("--all", action="store_true", help="the sessions of all directories")


def _session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="its id, or the first characters of it")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _whole(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--whole", action="store_true", help="also what compactions have replaced by summaries")


def _paged(parser: argparse.ArgumentParser, default: int | None) -> None:
    parser.add_argument(
        "--limit", type=_count, default=default, metavar="N", help=f"at most so many (default: {default or 'all'})"
    )


def _add_list(parser: argparse.ArgumentParser) -> None:
    _place(parser)
    _paged(parser, 30)
    parser.add_argument("--offset", type=_count, default=0, metavar="N", help="leave out the newest N")
    _json(parser)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--agent", metavar="ID", help="the messages of this sub-agent")
    parser.add_argument("--thinking", action="store_true", help="also what the model thought")
    _whole(parser)
    _paged(parser, None)
    parser.add_argument("--offset", type=_count, default=0, metavar="N", help="leave out the first N messages")
    _json(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", help="what to look for")
    _place(parser)
    parser.add_argument("--regex", action="store_true", help="it is a regular expression")
    parser.add_argument("--case", action="store_true", help="capitals matter")
    _paged(parser, 100)
    parser.add_argument("--json", action="store_true", help="print each hit as a line of JSON, as it is found")


def _add_fork(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--up-to", dest="up_to", metavar="UUID", help="the last message to take over (default: all)")
    parser.add_argument("--title", dest="text", metavar="TITLE", help="the title of the fork")
    _json(parser)


def _add_rename(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("text", metavar="title", help="the new title")


def _add_tag(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("text", metavar="tag", nargs="?", help="the tag; none takes it away")


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_export(parser: argparse.ArgumentParser) -> None:
    _session(parser)
    parser.add_argument(
        "--format", choices=("markdown", "html", "json"), default="markdown", help="(default: markdown)"
    )
    parser.add_argument("--output", metavar="FILE", help="write to this file, which must not exist yet")
    parser.add_argument("--thinking", action="store_true", help="also what the model thought")
    _whole(parser)


def _add_usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="only this session")
    _place(parser)
    parser.add_argument("--by", choices=("day", "session", "model"), default="day", help="(default: day)")
    parser.add_argument("--since", type=_day, metavar="DAY", help="the first day, such as 2026-11-01")
    parser.add_argument("--until", type=_day, metavar="DAY", help="the last day")
    _json(parser)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!a}")
    return value


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-01, got {text!a}") from None


_ACTIONS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
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
