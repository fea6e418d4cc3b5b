"""The circuit breaker of a fleet: an error that no run can escape must not end a hundred thousand of them. Pure.

Owns which errors those are, and how many in a row are too many. What follows from that, the desk does.
"""

from __future__ import annotations

import copy

from msgspec.structs import replace

from pilothouse.errors import (
    ArtifactsError,
    AuthenticationError,
    CLINotFoundError,
    CLIStartError,
    CLIVersionError,
    InvalidModelError,
    OptionsError,
    PilothouseError,
    ProvisionError,
    QuotaError,
    RateLimitError,
    RemoteError,
    WorkspaceError,
)
from pilothouse.fleet.run import Run

INESCAPABLE: tuple[type[PilothouseError], ...] = (
    ArtifactsError,
    AuthenticationError,
    CLINotFoundError,
    CLIStartError,
    CLIVersionError,
    InvalidModelError,
    OptionsError,
    ProvisionError,
    QuotaError,
    RemoteError,
    WorkspaceError,
)
"""Errors that have their cause in what all runs share, if they are not of one run alone."""

STOP_AFTER = 3


class Breaker:
    """Counts runs that failed in a row, each for a reason that may be that of all.

    Every other end of an attempt, a success above all, breaks the row; what was stopped from here says nothing.

    Args:
        stop_after: how many different runs are too many; None: never.
    """

    def __init__(self, stop_after: int | None) -> None:
        self._stop_after = stop_after
        self._row: dict[str, Exception] = {}
        self.error: Exception | None = None
        """For which the fleet was stopped."""

    def ended(self, run: Run) -> bool:
        """An attempt has ended by itself; whether its failure may be that of all, so that it is to wait for others."""
        if self._stop_after is None:
            return False
        if run.state == "failed" and run.error is not None and is_inescapable(run.error):
            self._row[run.key] = run.error
            return True
        self._row.clear()
        return False

    def forget(self, key: str) -> None:
        """A run that waited for others was stopped from here."""
        self._row.pop(key, None)

    @property
    def is_suspicious(self) -> bool:
        """Whether too many have failed in a row: nothing is to be started, unless what still runs breaks the row."""
        return self._stop_after is not None and len(self._row) >= self._stop_after

    def trip(self) -> Exception:
        """It was so; returns why."""
        self.error = list(self._row.values())[-1]
        return self.error

    def told(self) -> Exception:
        """What to raise for those who wait: of the class that the runs have met, with all that it holds."""
        assert self.error is not None
        told = copy.copy(self.error)
        what = f"the fleet was stopped, because {len(self._row)} in a row failed so"
        told.args = (f"{self.error}; {what}. None of them counts as failed: mend this, and go on with what is left",)
        told.__cause__ = self.error
        return told


def is_inescapable(error: Exception) -> bool:
    """Whether other runs will meet the same error: of `INESCAPABLE`, or a rate limit that lasts."""
    lasts = isinstance(error, RateLimitError) and error.resets_at is not None
    return lasts or isinstance(error, INESCAPABLE)


def put_back(run: Run, before: Run) -> Run:
    """A run that has failed for such an error, as it waits to be started again.

    Args:
        run: as it has failed.
        before: as that attempt was started. Where the model has said nothing in it, there is no session to go on with.
    """
    session_id = run.session_id if run.output_tokens > before.output_tokens else before.session_id
    failures = max(0, run.failures - 1)
    return replace(run, state="queued", failures=failures, session_id=session_id, due=0.0, ended=None)
