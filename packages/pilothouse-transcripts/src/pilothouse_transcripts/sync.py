"""The blocking `StoredSessions` and `import_session_to_store`.

Owns only waiting. `pilothouse_transcripts.stores` does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from pilothouse.options.options import copy_signature
from pilothouse.support import copy_method_signature, get_portal, make_blocking
from pilothouse_transcripts.stores.stored_sessions import StoredSessions as AsyncStoredSessions
from pilothouse_transcripts.stores.stored_sessions import import_session_to_store as _import_session

T = TypeVar("T")


@copy_signature(_import_session)
def import_session_to_store(*args: Any, **named: Any) -> int:
    """Import a session from disk into a store; return the number of entries in its files."""
    return get_portal().call(partial(_import_session, *args, **named))


class StoredSessions:
    """The sessions of a project in a store, for blocking code; threads may share it.

    Arguments and errors are those of `pilothouse_transcripts.stores.StoredSessions`.
    """

    __slots__ = ("_inner",)

    @copy_method_signature(AsyncStoredSessions.__init__)
    def __init__(self, *args: Any, **named: Any) -> None:
        self._inner = AsyncStoredSessions(*args, **named)

    info = make_blocking(AsyncStoredSessions.info)
    messages = make_blocking(AsyncStoredSessions.messages)
    subagents = make_blocking(AsyncStoredSessions.subagents)
    subagent_messages = make_blocking(AsyncStoredSessions.subagent_messages)
    rename = make_blocking(AsyncStoredSessions.rename)
    tag = make_blocking(AsyncStoredSessions.tag)
    delete = make_blocking(AsyncStoredSessions.delete)
    fork = make_blocking(AsyncStoredSessions.fork)
    write_history = make_blocking(AsyncStoredSessions.write_history)
    list = make_blocking(AsyncStoredSessions.list)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        return get_portal().call(work, finish=finish)
