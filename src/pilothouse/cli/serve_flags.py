"""The flags of `pilothouse serve`. Reads text; opens nothing and starts nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

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
    """What `pilothouse serve` was asked for. Times in seconds."""

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
    """The request that the flags stand for."""
    fields: dict[str, Any] = {name: getattr(asked, name) for name in ServeRequest.__dataclass_fields__}
    for name in ("roots", "env", "origins", "names", "clients", "allow_flags"):
        fields[name] = tuple(fields[name])
    return ServeRequest(**fields)
