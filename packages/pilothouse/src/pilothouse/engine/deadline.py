"""`Deadline`: the moment at which a query must be over, whatever it waits for."""

from __future__ import annotations

from math import inf

import anyio


class Deadline:
    """One moment for several scopes, one after the other.

    Args:
        seconds: how long the query may take, from the first call of `open_scope` on; None: no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._moment: float | None = None
        self._scope: anyio.CancelScope | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the scope that was opened last is cancelled."""
        return self._scope is not None and self._scope.cancel_called

    def open_scope(self) -> anyio.CancelScope:
        """Return a scope that is cancelled at the deadline. The one before it will not be: what it held has begun."""
        if self._scope is not None:
            self._scope.deadline = inf
        if self._moment is None:
            self._moment = inf if self._seconds is None else anyio.current_time() + self._seconds
        self._scope = anyio.CancelScope(deadline=self._moment)
        return self._scope
