"""The flags that `pilothouse batch` and `pilothouse worker` have in common, and what they say as plain data.

Starts nothing, reads no file and prints nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pilothouse.cli.workspace_flags import WorkspaceRequest, add_workspace, workspace_request

STOP_AFTER = 3  # that of `Fleet`, which is slow to import


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """How a fleet was asked to work. `retry` is what the flag --attempts says."""

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


_LIMITS: dict[str, tuple[type, str, str]] = {
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
_DEFAULTS = {"--concurrency": 8, "--stop-after": STOP_AFTER}


def add_fleet(parser: argparse.ArgumentParser, journal: str) -> None:
    """Add the flags.

    Args:
        parser: of the command.
        journal: what the journal is to it.
    """
    parser.add_argument(
        "--journal", metavar="FILE|postgresql://…", help=f"{journal} (default: PILOTHOUSE_JOURNAL, if it is set)"
    )
    parser.add_argument("--local", action="store_true", help="a small open model on this machine; no key")
    limits = parser.add_argument_group("limits of all runs together")
    for flag, (kind, metavar, meaning) in _LIMITS.items():
        limits.add_argument(flag, type=kind, metavar=metavar, help=meaning, default=_DEFAULTS.get(flag))
    # With a name of its own: `retry` is an option of a query as well.
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


def fleet_fields(asked: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags say, by the names of `FleetRequest`."""
    own = {"settings": settings, "retry": asked.fleet_retry, "workspace": workspace_request(asked)}
    names = [one.name for one in fields(FleetRequest)]
    return {name: own[name] if name in own else getattr(asked, name) for name in names}
