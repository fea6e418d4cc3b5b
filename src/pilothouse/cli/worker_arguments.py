"""The flags of `pilothouse worker`, and what was asked for as plain data.

Starts nothing, reads no file and prints nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse.cli.fleet_flags import FleetRequest, add_fleet, fleet_fields

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
    """What `pilothouse worker` was asked for."""

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
    """What the flags say."""
    return WorkerRequest(
        until_empty=asked.until_empty,
        accepts=tuple(asked.accept),
        max_permission_mode=asked.max_permission_mode,
        **fleet_fields(asked, settings),
    )
