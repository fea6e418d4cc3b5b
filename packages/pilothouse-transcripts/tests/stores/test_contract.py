"""The conformance suite over every store of the package."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pilothouse_transcripts.stores.base import SessionStore, StoreBackend
from pilothouse_transcripts.stores.memory import MemoryStore
from pilothouse_transcripts.stores.objects import ObjectStore
from pilothouse_transcripts.stores.store_suite import StoreBackendSuite, StoreSuite


class _Fresh(StoreBackendSuite):
    """Stores come from a fixture."""

    _make: Callable[[], StoreBackend]

    def make_store(self) -> StoreBackend:
        return self._make()


class TestMemory(_Fresh):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        store = MemoryStore()
        self._make = lambda: store


class TestSqlite(_Fresh):
    @pytest.fixture(autouse=True)
    def _place(self, make_sqlite: Callable[[], StoreBackend]) -> None:
        self._make = make_sqlite


class TestPostgres(_Fresh):
    @pytest.fixture(autouse=True)
    def _place(self, make_postgres: Callable[[], StoreBackend]) -> None:
        self._make = make_postgres


class TestRedis(_Fresh):
    @pytest.fixture(autouse=True)
    def _place(self, make_redis: Callable[[], StoreBackend]) -> None:
        self._make = make_redis


class TestS3(_Fresh):
    short_ttl = 1.5  # S3 tells whole seconds

    @pytest.fixture(params=["asyncio"])  # the test server takes its time; the directory below runs on both
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture(autouse=True)
    def _place(self, make_s3: Callable[[], StoreBackend]) -> None:
        self._make = make_s3


class TestDirectory(_Fresh):
    @pytest.fixture(autouse=True)
    def _place(self, make_directory: Callable[[], StoreBackend]) -> None:
        self._make = make_directory


class TestObjectsInMemory(_Fresh):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        store = ObjectStore("memory://")
        self._make = lambda: store


class TestAStoreWithTwoCalls(StoreSuite):
    """What is not there is not asked for."""

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        inner = MemoryStore()

        class Small:
            append = staticmethod(inner.append)
            load = staticmethod(inner.load)

        self._store = Small()

    def make_store(self) -> SessionStore:
        return self._store
