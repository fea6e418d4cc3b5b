"""The flags of `pilothouse batch`, and what was asked for as plain data.

Starts nothing, reads no file and prints nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse.cli.fleet_flags import FleetRequest, add_fleet, fleet_fields

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
    """What `pilothouse batch` was asked for."""

    source: str
    output: str | None = None
    enqueue: bool = False
    watch: bool = False
    json: bool = False

    @property
    def action(self) -> str:
        """What to do: one of `ACTIONS`, or "run"."""
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
    """What the flags say."""
    names = ("source", "output", "enqueue", "watch", "json")
    return BatchRequest(**{name: getattr(asked, name) for name in names}, **fleet_fields(asked, settings))
