"""What a session knows of itself beside its answers: what it costs, who listens to all of it, and who watches.

Owns the one thing that sees every message of every child of a session. Costs are counted in `costs`, budgets kept in
`budgets`, and watchers told in `observing`; the latter two are loaded where they are asked for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pilothouse.client.costs import Ledger
from pilothouse.driver import Continuation, Host
from pilothouse.driver.listeners import Listeners
from pilothouse.messages import Message, SystemMessage
from pilothouse.options import Invocation, Options

if TYPE_CHECKING:
    from pilothouse.client.observing import SessionStage

log = logging.getLogger("pilothouse")

RESTARTED = "session_restarted"
"""Subtype of the system message that pilothouse puts into `Session.messages()` when a new child has taken over."""


class Books(Listeners):
    """Listens first, and counts.

    Args:
        options: those of the session.

    Attributes:
        ledger: what the session has cost.
        restarts: how often a new child had to take over.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.ledger = Ledger(resumes=bool(options.resume or options.continue_conversation))
        self.restarts = 0
        self._options = options
        self._stage = _stage_of(options)

    def put(self, batch: list[Message], size: int) -> None:
        """Count a batch, and give it to each who listens."""
        self.ledger.track(batch)
        super().put(batch, size)

    @contextmanager
    def turn(self, continuation: Continuation | None) -> Generator[None]:
        """The block in which a query of the session talks.

        Raises:
            BudgetError: there is nothing left to spend.
        """
        if self._options.max_budget_tokens is not None:
            from pilothouse.client.budgets import check_left

            check_left(self._options, self.ledger)
        if self._stage is None:
            yield
            return
        with self._stage.held_by(continuation):
            yield

    def unasked(self, message: Message) -> None:
        """Watchers hear of turns that the CLI starts by itself."""
        if self._stage is not None:
            self._stage.heard(message)

    def asked(self) -> None:
        """Such a turn has become one of a query."""
        if self._stage is not None:
            self._stage.own_turn_ended()

    def gone(self, error: BaseException) -> None:
        """Such a turn has ended with the child."""
        if self._stage is not None:
            self._stage.own_turn_ended(error)

    def within_budget(self, options: Options) -> Options:
        """The settings of the next child.

        Raises:
            BudgetError: there is nothing left to spend.
        """
        if options.max_budget_usd is None:
            return options
        from pilothouse.client.budgets import for_child

        return for_child(options, self.ledger)

    def launched(self, invocation: Invocation, host: Host | None) -> tuple[Invocation, Host | None]:
        """How to start a child, and what it may ask, with what watchers want of it."""
        if self._stage is None:
            return invocation, host
        return self._stage.variables_in(invocation), self._stage.watched(host)

    def replaced(self) -> None:
        """A child was ended so that another takes over."""
        self.ledger.child_ended()

    def restarted(self, session_id: str | None, reason: BaseException | None) -> None:
        """A new child has taken over: tell all who care."""
        self.restarts += 1
        log.warning("a new child has taken over the session %s: %s", session_id, _ended_how(reason))
        self.replaced()
        if self._stage is not None and self._stage.observers is not None:
            self._stage.observers.restarted(reason)
        facts = {"type": "system", "subtype": RESTARTED, "session_id": session_id, "reason": str(reason or "")}
        line = json.dumps({**facts, "restarts": self.restarts}).encode()
        self.put([SystemMessage(subtype=RESTARTED, session_id=session_id, raw_line=line)], len(line))


def _ended_how(reason: BaseException | None) -> str:
    """In words that hold nothing of what was said; the text of an error may."""
    code, signal = getattr(reason, "exit_code", None), getattr(reason, "signal", None)
    how = f", exit code {code}" if code is not None else f", {signal}" if signal is not None else ""
    return f"{type(reason).__name__}{how}" if reason is not None else "it was gone"


def _stage_of(options: Options) -> SessionStage | None:
    if not options.instrumentation:
        return None
    from pilothouse.client.observing import SessionStage

    return SessionStage(options)
