"""The blocking `StoredSessions` and `import_session_to_store`.

Owns only waiting. `pilothouse.stores` does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from pilothouse.options.signatures import copy_method_signature, copy_signature
from pilothouse.stores.stored_sessions import Infos, Messages, Names
from pilothouse.stores.stored_sessions import StoredSessions as AsyncStoredSessions
from pilothouse.stores.stored_sessions import import_session_to_store as _import_session
from pilothouse.sync.portal import get_portal
from pilothouse.transcripts import ForkSessionResult, SessionInfo

T = TypeVar("T")


@copy_signature(_import_session)
def import_session_to_store(*args: Any, **named: Any) -> int:
    """Import a session from disk into a store; return the number of entries in its files."""
    return _wait(_import_session, *args, **named)


class StoredSessions:
    """The sessions of a project in a store, for blocking code; threads may share it.

    Arguments and errors are those of `pilothouse.stores.StoredSessions`.
    """

    __slots__ = ("_sessions",)

    @copy_method_signature(AsyncStoredSessions.__init__)
    def __init__(self, *args: Any, **named: Any) -> None:
        self._sessions = AsyncStoredSessions(*args, **named)

    @copy_method_signature(AsyncStoredSessions.info)
    def info(self, *args: Any, **named: Any) -> SessionInfo | None:
        """Return information on one session, or None."""
        return _wait(self._sessions.info, *args, **named)

    @copy_method_signature(AsyncStoredSessions.messages)
    def messages(self, *args: Any, **named: Any) -> Messages:
        """Return the messages of a session, in order."""
        return _wait(self._sessions.messages, *args, **named)

    @copy_method_signature(AsyncStoredSessions.subagents)
    def subagents(self, *args: Any, **named: Any) -> Names:
        """Return the ids of a session's sub-agents."""
        return _wait(self._sessions.subagents, *args, **named)

    @copy_method_signature(AsyncStoredSessions.subagent_messages)
    def subagent_messages(self, *args: Any, **named: Any) -> Messages:
        """Return the messages of a sub-agent, in order."""
        return _wait(self._sessions.subagent_messages, *args, **named)

    @copy_method_signature(AsyncStoredSessions.rename)
    def rename(self, *args: Any, **named: Any) -> None:
        """Set the title of a session."""
        _wait(self._sessions.rename, *args, **named)

    @copy_method_signature(AsyncStoredSessions.tag)
    def tag(self, *args: Any, **named: Any) -> None:
        """Set the tag of a session; None removes it."""
        _wait(self._sessions.tag, *args, **named)

    @copy_method_signature(AsyncStoredSessions.delete)
    def delete(self, *args: Any, **named: Any) -> None:
        """Remove a session."""
        _wait(self._sessions.delete, *args, **named)

    @copy_method_signature(AsyncStoredSessions.fork)
    def fork(self, *args: Any, **named: Any) -> ForkSessionResult:
        """Copy a session to a new one."""
        return _wait(self._sessions.fork, *args, **named)

    @copy_method_signature(AsyncStoredSessions.list)
    def list(self, *args: Any, **named: Any) -> Infos:
        """List information on each session, newest first."""
        return _wait(self._sessions.list, *args, **named)


def _wait(work: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
    return get_portal().call(partial(work, *args, **named))
