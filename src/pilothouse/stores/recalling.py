"""A session read from a store, so that a CLI can go on with it on a machine that never saw it.

Owns which session is meant, what is read of it, and what becomes of a store that fails meanwhile. Where it is put, so
that the CLI finds it, `private_config` knows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import anyio

from pilothouse.errors import PilothouseError, StoreError
from pilothouse.stores.base import Entry, Place, SessionStore, implements
from pilothouse.transcripts.places import is_session_id

log = logging.getLogger("pilothouse.stores")

T = TypeVar("T")


class Recalled(NamedTuple):
    """A session as it stands in a store.

    Attributes:
        place: its main transcript.
        entries: of the main transcript.
        subpaths: those of its sub-agents, by subpath.
    """

    place: Place
    entries: list[Entry]
    subpaths: Mapping[str, list[Entry]]


class Reader:
    """Reads one store, each call within a time.

    Args:
        store: what to read.
        seconds: for each call.
    """

    def __init__(self, store: SessionStore, seconds: float) -> None:
        self._store: Any = store
        self._seconds = seconds

    async def session(self, place: Place) -> Recalled | None:
        """All of a session; None if the store has none of it.

        Raises:
            StoreError: the store failed, or did not answer in time.
        """
        entries = await self.entries(place)
        if not entries:
            return None
        subpaths: dict[str, list[Entry]] = {}
        if implements(self._store, "list_subkeys"):
            for subpath in await self.answer(self._store.list_subkeys(place.key), "list_subkeys()"):
                if not is_safe(subpath):
                    log.warning("session %s: the store names a place outside of it, %r; left out", place[1], subpath)
                elif found := await self.entries(place._replace(subpath=subpath)):
                    subpaths[subpath] = found
        return Recalled(place, entries, subpaths)

    async def latest(self, project: str) -> Place | None:
        """The session of a project that was written to last, those of sub-agents left out.

        Raises:
            StoreError: the store failed, or did not answer in time.
        """
        for session_id in await self.listed(project):
            entries = await self.entries(Place(project, session_id))
            if entries and entries[0].get("isSidechain") is not True:
                return Place(project, session_id)
        return None

    async def listed(self, project: str) -> dict[str, int]:
        """The ids of the sessions of a project, newest first, and when each was written to.

        Raises:
            StoreError: the store failed, did not answer in time, or gave something else.
        """
        rows = await self.answer(self._store.list_sessions(project), "list_sessions()")
        try:
            found = {str(row["session_id"]): int(row["mtime"]) for row in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the session store gave something else than rows in list_sessions(): {error!r}") from None
        return {name: found[name] for name in sorted(found, key=lambda name: -found[name]) if is_session_id(name)}

    async def entries(self, place: Place) -> list[Entry]:
        """The entries of one transcript; none of them if the store has none.

        Raises:
            StoreError: the store failed, or did not answer in time.
        """
        found = await self.answer(self._store.load(place.key), f"load() of session {place.session}")
        entries: list[Entry] = []
        for number, entry in enumerate(cast("list[object]", found or []), 1):
            if isinstance(entry, dict):
                entries.append(cast("Entry", entry))
            else:
                log.warning("session %s in the store: entry %d is no object; left out", place.session, number)
        return entries

    async def answer(self, call: Awaitable[T], what: str) -> T:
        """What a call of the store gives; `what` names the call.

        Raises:
            StoreError: the store failed, or did not answer in time.
        """
        try:
            with anyio.fail_after(self._seconds):
                return await call
        except PilothouseError:
            raise
        except TimeoutError:
            words = f"the session store did not answer {what} within {self._seconds:g} s (option load_timeout)"
            raise StoreError(words) from None
        except Exception as error:  # stores are code of users
            raise StoreError(f"the session store failed in {what}: {type(error).__name__}: {error}") from error


def is_safe(subpath: object) -> bool:
    """Whether a subpath stays inside of the folder of its session, on every system."""
    if not isinstance(subpath, str) or any(c in subpath for c in "\\\0:") or not subpath.isprintable():
        return False
    return all(part not in ("", ".", "..") for part in subpath.split("/")) and not Path(subpath).is_absolute()
