"""A store that treats all projects as one: for hosts with different paths, and for tenants.

Owns only the name of that project. The inner store does everything else.
"""

from __future__ import annotations

from pilothouse.stores.base import Entry, Lease, SessionKey, StoreBackend, StoredSession, StoredSummary, parse_key


class ScopedStore(StoreBackend):
    """A part of another store, under a fixed name instead of the path of the working directory.

    Args:
        store: the inner store; `aclose` closes it too.
        project_key: the name of the part. The same name gives the same sessions, whatever the project's path.

    Raises:
        UsageError: the name is not valid.
    """

    def __init__(self, store: StoreBackend, project_key: str) -> None:
        self._store = store
        self._project = parse_key({"project_key": project_key, "session_id": "any"}).project

    def __repr__(self) -> str:
        return f"ScopedStore({self._store!r}, {self._project!r})"

    def _key(self, key: SessionKey) -> SessionKey:
        return parse_key(key)._replace(project=self._project).session_key

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """See `StoreBackend.append`."""
        return await self._store.append(self._key(key), entries, after=after, lease=lease)

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """See `StoreBackend.load`."""
        return await self._store.load(self._key(key))

    async def count(self, key: SessionKey) -> int:
        """See `StoreBackend.count`."""
        return await self._store.count(self._key(key))

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """See `StoreBackend.list_sessions`; `project_key` is ignored."""
        return await self._store.list_sessions(self._project)

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """See `StoreBackend.list_session_summaries`; `project_key` is ignored."""
        return await self._store.list_session_summaries(self._project)

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """See `StoreBackend.list_subkeys`."""
        return await self._store.list_subkeys(self._key(key))

    async def delete(self, key: SessionKey) -> None:
        """See `StoreBackend.delete`."""
        await self._store.delete(self._key(key))

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """See `StoreBackend.acquire`. The lease belongs to the inner store."""
        return await self._store.acquire(self._key(key), owner, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """See `StoreBackend.renew`."""
        return await self._store.renew(lease, ttl)

    async def release(self, lease: Lease) -> None:
        """See `StoreBackend.release`."""
        await self._store.release(lease)

    async def aclose(self) -> None:
        """See `StoreBackend.aclose`."""
        await self._store.aclose()
