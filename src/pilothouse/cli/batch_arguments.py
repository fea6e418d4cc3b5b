"""The flags of `pilothouse batch`, and what was asked for as plain data.

Starts nothing, reads no file and prints nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BATCH_HELP = "run many prompts, a few at a time, and survive crashes"
BATCH_DESCRIPTION = (
    "Run every prompt of a file, a few at a time. With a journal a run that has ended is never repeated."
)
BATCH_EPILOG = """A prompts file has a prompt a line: with the suffix .jsonl a JSON string, or an object with "prompt"
and, if need be, "key" and "options"; else plain text. '-' is standard input, as JSON lines. Results go to the file of
--output, a line of JSON each (CSV with the suffix .csv); without it to standard output. In place of a file:

  status         what stands where in the journal; changes nothing
  resume         go on with what is left in the journal
  retry-failed   run again what has failed

Ctrl-C once: nothing is started any more, what runs is stopped and kept in the journal; twice: at once.

examples:
  pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
  pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
  pilothouse batch status --journal runs.db
  pilothouse batch resume --journal runs.db -o out.jsonl

exit codes:
  0 every run succeeded    1 some failed, or are left    2 wrong usage    130 Ctrl-C
"""
ACTIONS = ("status", "resume", "retry-failed")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What `pilothouse batch` was asked for."""

    source: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    concurrency: int = 8
    journal: str | None = None
    output: str | None = None
    budget_usd: float | None = None
    run_budget_usd: float | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    retry: int = 3
    on_interrupted: str = "resume"
    json: bool = False

    @property
    def action(self) -> str:
        """What to do: one of `ACTIONS`, or "run"."""
        return self.source if self.source in ACTIONS else "run"


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command that are not options of a query."""
    parser.add_argument("source", metavar="FILE|status|resume|retry-failed", help="the prompts, or what to do")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the results go (.jsonl or .csv)")
    parser.add_argument("--journal", metavar="FILE", help="keep all runs in this file, and go on with it")
    parser.add_argument("--json", action="store_true", help="status: print one JSON object")
    limits = parser.add_argument_group("limits of all runs together")
    limits.add_argument("--concurrency", type=int, default=8, metavar="N", help="how many run at once (default: 8)")
    limits.add_argument("--budget-usd", type=float, metavar="USD", help="start nothing once so much is spent")
    limits.add_argument("--run-budget-usd", type=float, metavar="USD", help="what one run may cost")
    limits.add_argument("--requests-per-minute", type=float, metavar="N", help="requests to the model")
    limits.add_argument("--tokens-per-minute", type=float, metavar="N", help="tokens of fresh input and of output")
    # With a name of its own: `retry` is an option of a query as well.
    limits.add_argument(
        "--attempts",
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


def batch_request(asked: argparse.Namespace, settings: Mapping[str, Any]) -> BatchRequest:
    """What the flags say."""
    names = (
        "source", "output", "journal", "json", "concurrency", "budget_usd", "run_budget_usd", "requests_per_minute",
        "tokens_per_minute", "on_interrupted",
    )  # fmt: skip
    return BatchRequest(settings=settings, retry=asked.attempts, **{name: getattr(asked, name) for name in names})
