"""The data of a fleet: one run, and the number of runs by state. Knows no journal and no agent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, Self

import msgspec
from msgspec import Struct

from pilothouse.client import OutputT, QueryResult
from pilothouse.client.result import essential_messages
from pilothouse.errors import UsageError
from pilothouse.support import to_json_values

RunState = Literal["queued", "running", "succeeded", "failed", "cancelled", "interrupted"]
STATES: tuple[RunState, ...] = ("queued", "running", "succeeded", "failed", "cancelled", "interrupted")
ENDED: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})
"""States that a run does not leave by itself."""


class Run(Struct, Generic[OutputT], frozen=True, kw_only=True):
    """One prompt of a fleet and its outcome; an immutable snapshot.

    Args:
        key: its key, unique within a journal.
        prompt: text, or a list of content blocks.
        settings: the options of this run alone, by name.
        priority: runs with greater numbers start first.
        state: "queued", "running", "succeeded", "failed", "cancelled", or "interrupted": stopped before its end; it
            continues when a fleet next works on its journal.
        attempts: number of starts.
        failures: number of failed attempts.
        interruptions: number of attempts that were stopped before their end.
        deaths: number of attempts whose process died; `retry_failed()` sets this and the two above to 0.
        session_id: id of its conversation, chosen when its first attempt begins.
        result: the answer; None while there is none.
        error: why the run, or its last attempt, failed.
        cost_usd: cost of all ended attempts, in US dollars.
        input_tokens: input tokens of all ended attempts, including those from the cache.
        output_tokens: output tokens of all ended attempts.
        created: when it was added, in Unix seconds.
        started: when its last attempt began, in Unix seconds; None: not yet.
        ended: when it ended, in Unix seconds; None: not yet.
        due: earliest start, in Unix seconds.
        limit_usd: maximum cost of its last attempt, in US dollars; None: no limit.
        artifacts: where its files were saved (see `Artifacts`).
        number: its position in the journal, from 1.
    """

    key: str
    prompt: str | list[Any]
    settings: Mapping[str, Any] = {}
    priority: int = 0
    state: RunState = "queued"
    attempts: int = 0
    failures: int = 0
    interruptions: int = 0
    deaths: int = 0
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
        """Raise the error of a run that did not succeed, else return the run itself."""
        if self.error is not None and not self.is_success:
            raise self.error
        return self


class FleetStatus(Struct, frozen=True, kw_only=True):
    """Numbers of runs by state, of a fleet or of its journal.

    Args:
        queued: runs that wait to start; with a journal also those that were not requested this time.
        running: running ones.
        succeeded: runs with an answer.
        failed: failed ones.
        cancelled: cancelled ones.
        interrupted: runs that were stopped before their end.
        cost_usd: cost of all, in US dollars.
        lost_usd: what attempts without a result may have cost, in US dollars; it counts against the budget.
        input_tokens: input tokens of all.
        output_tokens: output tokens of all.
        runs_per_minute: recent rate of runs that end here.
        eta_seconds: estimated seconds until all queued runs have ended, at that rate; None: unknown.
        stopped_by: the error that stopped this fleet (see `stop_after`); None: not stopped.
    """

    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    cost_usd: float = 0.0
    lost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    runs_per_minute: float = 0.0
    eta_seconds: float | None = None
    stopped_by: str | None = None

    @property
    def ended(self) -> int:
        """Number of ended runs, in any final state."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def left(self) -> int:
        """Number of runs that have not ended."""
        return self.queued + self.running + self.interrupted

    @property
    def total(self) -> int:
        """Number of all runs."""
        return self.ended + self.left


def digest_prompt(prompt: str | Sequence[Any], settings: Mapping[str, Any] | None = None) -> str:
    """Return a short digest of a prompt and its settings; the same in every process."""
    try:
        data = msgspec.json.encode(to_json_values([prompt, settings]), order="deterministic")
    except (TypeError, ValueError, UnicodeError) as error:
        raise UsageError(f"a prompt of a fleet is text or JSON: {error}") from error
    return hashlib.sha256(data).hexdigest()[:32]


def has_all_messages(result: QueryResult) -> bool:
    """Whether a result has all its messages."""
    try:
        return bool(result.messages)
    except UsageError:
        return False


def drop_messages(result: QueryResult) -> QueryResult:
    """Return the result with only its essential messages, as a journal returns it."""
    small = QueryResult(
        essential_messages(result),
        output=result.output if result.is_success else None,
        failure=result.error,
        incomplete=True,
    )
    small.structured, small.output_attempts = result.structured, result.output_attempts
    small.callback_errors = result.callback_errors
    return small
