"""Which children are alike, so that one may be used in the place of another. Pure, but for the working directory.

Owns what makes a difference. How many of a kind there are, and for how long, the pool knows.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from pilothouse.options import Invocation

if TYPE_CHECKING:
    from pilothouse.driver.ahead import PeerAhead

SESSION_ID: Final = "--session-id="
# A child with one of these goes on with a conversation, or does something as soon as it starts.
ALWAYS_NEW: Final = ("--resume", "--continue", "--fork-session", "--from-pr", "--worktree", "--init", "--maintenance")
TRACE: Final = frozenset({"TRACEPARENT", "TRACESTATE", "BAGGAGE"})
"""Who asks. It makes a difference only to a child that reports traces itself."""
REPORTS: Final = "CLAUDE_CODE_ENABLE_TELEMETRY"


class Kind:
    """Children that are alike.

    Args:
        invocation: how one of them is started.

    Attributes:
        idle: those that nobody uses yet, oldest first.
        asked: how often one was asked for.
        wanted: how many should be idle.
        is_asking: whether one has asked something before anybody was there; then none is started ahead by itself.
    """

    def __init__(self, invocation: Invocation) -> None:
        self.idle: deque[PeerAhead] = deque()
        self.asked = 0
        self.wanted = 0
        self.is_asking = False
        self._invocation = replace(invocation, on_stderr=None)

    def next_invocation(self) -> tuple[str | None, Invocation]:
        """How to start the next one, and the session id that this gives it, if it gives one."""
        invocation = self._invocation
        if not _names_itself(invocation):
            return None, invocation
        session_id = str(uuid.uuid4())
        argv = (f"{SESSION_ID}{session_id}" if arg.startswith(SESSION_ID) else arg for arg in invocation.argv)
        return session_id, replace(invocation, argv=tuple(argv))

    @property
    def has_fit(self) -> bool:
        """Whether there is one to use."""
        return any(peer.is_fit for peer in self.idle)

    def pop(self) -> PeerAhead | None:
        """The one that has waited longest; those that are of no use any more are ended."""
        while self.idle:
            peer = self.idle.popleft()
            if peer.is_fit:
                return peer
            peer.release()
        return None

    def end(self) -> None:
        """End those that nobody uses."""
        self.wanted = 0
        while self.idle:
            self.idle.popleft().release()


def kind_of(invocation: Invocation) -> bytes | None:
    """What is the same for children that are alike; None for one that must be started when it is needed. (E33)"""
    if invocation.initialize is None or invocation.home is not None:
        return None
    if any(arg.startswith(ALWAYS_NEW) for arg in invocation.argv):
        return None
    argv = invocation.argv
    if _names_itself(invocation):
        if not invocation.may_keep_its_id:
            return None
        argv = tuple(arg for arg in argv if not arg.startswith(SESSION_ID))
    env = invocation.env
    if not env.get(REPORTS):
        env = {name: value for name, value in env.items() if name not in TRACE}
    cwd = invocation.cwd or os.getcwd()  # noqa: PTH109 - a string is wanted
    files = [(file.flag, file.suffix, file.content) for file in invocation.files]
    start = (invocation.cli, argv, invocation.tail, sorted(env.items()), cwd, files)
    # Any text; JSON takes not all.
    told = repr((*start, invocation.user, invocation.isolated, dict(invocation.initialize)))
    return hashlib.blake2b(told.encode()).digest()  # keys are in it: only the digest is kept


def _names_itself(invocation: Invocation) -> bool:
    return any(arg.startswith(SESSION_ID) for arg in invocation.argv)
