"""What a fleet works on: one run, and how many stand where. Plain data; knows no journal and no agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, Self

from msgspec import Struct

from pilothouse.client import QueryResult
from pilothouse.client.result import OutputT

RunState = Literal["queued", "running", "succeeded", "failed", "cancelled", "interrupted"]
STATES: tuple[RunState, ...] = ("queued", "running", "succeeded", "failed", "cancelled", "interrupted")
ENDED: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})
"""States that a run does not leave by itself."""


class Run(Struct, Generic[OutputT], frozen=True, kw_only=True):
    """One prompt of a fleet and what has come of it; a snapshot that does not change.

    Args:
        key: its name; within a journal there is one run of that name.
        prompt: what is asked: text, or a list of content blocks.
        settings: the options of this run alone, by name.
        priority: those with the greater number are started first.
        state: "queued", "running", "succeeded", "failed", "cancelled", or "interrupted": it was stopped on the way and
            goes on when a fleet next works on its journal.
        attempts: how often it was started.
        failures: how often it has failed.
        session_id: id of its conversation, once it is known.
        result: the answer; None as long as there is none.
        error: why it has failed, or why its last attempt has.
        cost_usd: what it has cost, over all attempts that ended, in US dollars.
        input_tokens: all input of these, that from the cache included.
        output_tokens: all output of these.
        created: when it was added, in Unix seconds.
        started: when its last attempt began; None before.
        ended: when it ended; None before.
        due: not started before then, in Unix seconds.
        limit_usd: what its last attempt may cost, in US dollars; None: no limit.
        artifacts: where files that it has made were saved (see `Artifacts`).
        number: its place in the journal, from 1.
    """

    key: str
    prompt: str | list[Any]
    settings: Mapping[str, Any] = {}
    priority: int = 0
    state: RunState = "queued"
    attempts: int = 0
    failures: int = 0
    session_id: str | None = None
    result: QueryResult[OutputT] | None = None
    error: Exception | None = None
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    due: float = 0.0
    limit_usd: float | None = None
    artifacts: tuple[str, ...] = ()
    number: int = 0

    @property
    def is_success(self) -> bool:
        """Whether it succeeded."""
        return self.state == "succeeded"

    @property
    def is_ended(self) -> bool:
        """Whether it succeeded, failed, or was cancelled."""
        return self.state in ENDED

    @property
    def text(self) -> str:
        """Text of the answer; empty without one."""
        return "" if self.result is None else self.result.text

    def raise_for_error(self) -> Self:
        """Raise what it failed with, else return the run itself."""
        if self.error is not None and not self.is_success:
            raise self.error
        return self


class FleetStatus(Struct, frozen=True, kw_only=True):
    """Where the runs of a fleet, or of its journal, stand.

    Args:
        queued: how many wait to be started; with a journal also those that nobody has asked for this time.
        running: how many run, in all processes.
        succeeded: how many have an answer.
        failed: how many have none.
        cancelled: how many were cancelled.
        interrupted: how many were stopped on the way.
        cost_usd: what all have cost, in US dollars.
        input_tokens: all input.
        output_tokens: all output.
        runs_per_minute: how many have ended here in a minute, lately.
        eta_seconds: when all that is queued will have ended, at that pace; None if it cannot be told.
        stopped_by: the error for which this fleet starts nothing any more (see `stop_after`); None: it goes on.
    """

    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    runs_per_minute: float = 0.0
    eta_seconds: float | None = None
    stopped_by: str | None = None

    @property
    def ended(self) -> int:
        """How many have ended, in whatever way."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def left(self) -> int:
        """How many have not."""
        return self.queued + self.running + self.interrupted

    @property
    def total(self) -> int:
        """How many there are."""
        return self.ended + self.left
