"""What can be done with the sessions of a store without a CLI: as with those on disk, and by the same code.

Owns how a question about a session in a store becomes one about a file: a private copy is made for it, and is gone when
it is answered. A list needs no copies. What files say, `transcripts` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse.messages import Message
from pilothouse.options.running_rows import DEFAULT_LOAD_TIMEOUT
from pilothouse.stores.base import Entry, Place, SessionStore, StoreBackend, implements, place_of
from pilothouse.stores.importing import IMPORT_LEASE_SECONDS, append_batch, import_file
from pilothouse.stores.private_config import write_session
from pilothouse.stores.recalling import Reader, Recalled
from pilothouse.stores.summaries import fold_summary
from pilothouse.stores.tenure import Tenure
from pilothouse.transcripts import (
    ForkSessionResult,
    SessionInfo,
    fork_session,
    get_session_messages,
    get_subagent_messages,
    list_subagents,
    rename_session,
    tag_session,
)
from pilothouse.transcripts import project_key as key_of
from pilothouse.transcripts.places import StrPath, is_session_id
from pilothouse.transcripts.rows import load_object
from pilothouse.transports.errands import run_briefly
from pilothouse.transports.private_directory import PrivateDirectory

T = TypeVar("T")
Messages: TypeAlias = list[Message]  # inside of the class below, `list` is a method
Infos: TypeAlias = list[SessionInfo]
Names: TypeAlias = list[str]
Items: TypeAlias = list[T]

LOADS_AT_ONCE = 8
_TITLES = ("custom_title", "ai_title", "last_prompt", "summary_hint", "first_prompt", "command_fallback")
"""What a session is listed under: the first that there is."""


class StoredSessions:
    """The sessions of a project in a store, as the functions for those on disk have them. (E85, L60)

    ::

        sessions = ph.StoredSessions(store, directory=".")
        for info in await sessions.list(limit=10):
            print(info.session_id, info.summary)

    What changes a session takes its lease meanwhile, where the store has leases. All raise `StoreError` when the store
    fails, and those that need a session `SessionNotFoundError` if the store has none with that id.

    Args:
        store: where they are.
        directory: the working directory of the project. Default: that of this process.
        project_key: the name of the project in the store, in place of `directory`.
        load_timeout: seconds to wait for each answer of the store. Default 60.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        directory: StrPath = ".",
        project_key: str | None = None,
        load_timeout: float = DEFAULT_LOAD_TIMEOUT,
    ) -> None:
        self._store: Any = store
        self._directory = directory
        self._project = project_key
        self._reader = Reader(store, load_timeout)

    async def list(self, limit: int | None = None, offset: int = 0) -> Infos:
        """What each is about, newest first; those of sub-agents, and those without a word, are left out.

        One call where the store has `list_session_summaries`; else each session is loaded.

        Args:
            limit: how many at most; None: all.
            offset: how many to leave out first.

        Raises:
            UsageError: the store cannot list sessions.
        """
        if not implements(self._store, "list_sessions"):
            raise UsageError(f"{type(self._store).__name__} has no list_sessions()")
        project = await self._key()
        listed = await self._reader.listed(project)
        told: dict[str, Any] = {}
        if implements(self._store, "list_session_summaries"):
            found = await self._reader.answer(self._store.list_session_summaries(project), "list_session_summaries()")
            told = {row["session_id"]: row for row in found}
        infos: Infos = []
        limiter = anyio.CapacityLimiter(LOADS_AT_ONCE)

        async def add(session_id: str, mtime: int) -> None:
            summary = told.get(session_id)
            if summary is None or summary["mtime"] < mtime:  # a store that was written to by something older
                async with limiter:
                    entries = await self._reader.entries(Place(project, session_id))
                data = fold_summary(None, entries)
            else:
                data = summary["data"]
            if (info := _info(session_id, mtime, data)) is not None:
                infos.append(info)

        async with anyio.create_task_group() as tasks:
            for session_id, mtime in listed.items():
                tasks.start_soon(add, session_id, mtime)
        infos.sort(key=lambda info: (-info.last_modified, info.session_id))
        start = max(offset, 0)
        return infos[start : None if limit is None or limit <= 0 else start + limit]

    async def info(self, session_id: str) -> SessionInfo | None:
        """What one is about; None if there is none with that id, or nothing was said in it."""
        place = await self._place(session_id)
        entries = await self._reader.entries(place)
        mtime = 0
        if entries and implements(self._store, "list_sessions"):
            mtime = (await self._reader.listed(place.project)).get(session_id, 0)
        return _info(session_id, mtime, fold_summary(None, entries)) if entries else None

    async def messages(self, session_id: str, limit: int | None = None, offset: int = 0, **how: Any) -> Messages:
        """The messages of one, in order; as `get_session_messages`, whose further arguments it takes."""
        return await self._copied(
            session_id, lambda config: get_session_messages(session_id, None, limit, offset, config_dir=config, **how)
        )

    async def subagents(self, session_id: str) -> Names:
        """The ids of the sub-agents that ran in one, sorted."""
        return await self._copied(session_id, lambda config: list_subagents(session_id, config_dir=config))

    async def subagent_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0
    ) -> Messages:
        """The messages of a sub-agent, in order."""
        return await self._copied(
            session_id,
            lambda config: get_subagent_messages(session_id, agent_id, None, limit, offset, config_dir=config),
        )

    async def rename(self, session_id: str, title: str) -> None:
        """Give one a title. (L60)

        Raises:
            UsageError: the title is empty.
            SessionLeasedError: somebody is at work in it.
        """
        await self._note(session_id, lambda config: rename_session(session_id, title, config_dir=config))

    async def tag(self, session_id: str, tag: str | None) -> None:
        """Give one a tag, in place of the one it has; None takes it away.

        Raises:
            UsageError: the tag is empty.
            SessionLeasedError: somebody is at work in it.
        """
        await self._note(session_id, lambda config: tag_session(session_id, tag, config_dir=config))

    async def delete(self, session_id: str) -> None:
        """Remove one, with its sub-agents. One that is not there is no error.

        Raises:
            UsageError: the store cannot delete.
            SessionLeasedError: somebody is at work in it.
        """
        if not implements(self._store, "delete"):
            raise UsageError(f"{type(self._store).__name__} has no delete()")
        place = await self._place(session_id)
        await self._reader.answer(self._store.delete(place.key), "delete()")

    async def fork(
        self, session_id: str, up_to_message_id: str | None = None, title: str | None = None
    ) -> ForkSessionResult:
        """Make a second session that begins as one stands; as `fork_session`. (E30)

        Returns:
            The new one, which is in the store; its `path` is empty.

        Raises:
            UsageError: there is no such message, or nothing was said.
        """
        place = await self._place(session_id)
        session = await self._session(place)
        copy = _Copy()
        try:
            config = await to_thread.run_sync(copy.make, session)
            made = await to_thread.run_sync(
                lambda: fork_session(session_id, None, up_to_message_id, title, config_dir=config)
            )
            fork = Place(place.project, made.session_id)
            async with _Held(self._store) as tenure:
                await import_file(Path(made.path), fork, self._store, tenure)
        finally:
            await _removed(copy)
        return ForkSessionResult(made.session_id, messages=made.messages)

    async def _copied(self, session_id: str, work: Callable[[str], Items[T]]) -> Items[T]:
        place = await self._place(session_id)
        session = await self._reader.session(place)
        if session is None:
            return []
        copy = _Copy()
        try:
            return await to_thread.run_sync(lambda: work(copy.make(session)))
        finally:
            await _removed(copy)

    async def _note(self, session_id: str, work: Callable[[str], None]) -> None:
        """Add the row to a session that `work` adds to its file; nothing else of the file is looked at."""
        place = await self._place(session_id)
        if isinstance(self._store, StoreBackend):
            is_there = await self._reader.answer(self._store.count(place.key), "count()") > 0
        else:
            is_there = bool(await self._reader.entries(place))
        if not is_there:
            raise _missing(place)
        stub = Recalled(place, [{"type": "stub"}], {})
        copy = _Copy()
        try:
            rows = await run_briefly(lambda: copy.added(copy.make(stub), place, work))
        finally:
            await _removed(copy)
        async with _Held(self._store) as tenure:
            await append_batch(self._store, place, rows, tenure)

    async def _session(self, place: Place) -> Recalled:
        session = await self._reader.session(place)
        if session is None:
            raise _missing(place)
        return session

    async def _place(self, session_id: str) -> Place:
        if not is_session_id(session_id):
            raise UsageError(f"not a session id: {session_id!r:.80}")
        return Place(await self._key(), session_id)

    async def _key(self) -> str:
        if self._project is None:
            self._project = await run_briefly(key_of, self._directory)
        return place_of({"project_key": self._project, "session_id": "any"}).project


class _Copy(PrivateDirectory):
    """A configuration directory with one session in it."""

    def make(self, session: Recalled) -> str:
        directory = self._open("pilothouse-copy-")
        # The name of the project may be anything in a store.
        write_session(Path(directory), session._replace(place=session.place._replace(project="copy")))
        return directory

    @staticmethod
    def added(directory: str, place: Place, work: Callable[[str], None]) -> list[Entry]:
        work(directory)
        lines = Path(directory, "projects", "copy", f"{place.session}.jsonl").read_bytes().splitlines()[1:]
        return [row for line in lines if (row := load_object(line)) is not None]


async def _removed(copy: _Copy) -> None:
    with anyio.CancelScope(shield=True):
        await run_briefly(copy.remove)


class _Held:
    """Leases for a change that is over in a moment; none where the store has none."""

    def __init__(self, store: SessionStore) -> None:
        self._tenure = Tenure(store, IMPORT_LEASE_SECONDS) if isinstance(store, StoreBackend) else None

    async def __aenter__(self) -> Tenure | None:
        return self._tenure

    async def __aexit__(self, *_: object) -> None:
        if self._tenure is not None:
            with anyio.CancelScope(shield=True):
                await self._tenure.release()


def _missing(place: Place) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {place.session} of the project {place.project} in the store")


def _info(session_id: str, mtime: int, data: Mapping[str, Any]) -> SessionInfo | None:
    summary = next((text for name in _TITLES if (text := data.get(name))), None)
    if summary is None or data.get("is_sidechain"):
        return None
    facts: dict[str, Any] = {name: data.get(name) or None for name in _FACTS}
    return SessionInfo(session_id=session_id, summary=str(summary), last_modified=int(mtime), file_size=0, **facts)


_FACTS = ("ai_title", "created_at", "custom_title", "cwd", "first_prompt", "git_branch", "last_prompt", "tag")
