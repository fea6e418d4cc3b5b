"""Journals of each kind, in fresh places."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilothouse.fleet import MemoryJournal, PostgresJournal, SqliteJournal
from pilothouse.fleet.journals.sql import SqlJournal

MakeJournal = Callable[..., SqlJournal]


@pytest.fixture
def make_memory() -> Callable[[], MemoryJournal]:
    return MemoryJournal


@pytest.fixture
def make_sqlite(tmp_path: Path) -> MakeJournal:
    return lambda **more: SqliteJournal(tmp_path / "runs.db", **more)


@pytest.fixture
def make_postgres(postgres_server: dict[str, Any]) -> MakeJournal:
    schema = "f" + uuid.uuid4().hex
    return lambda **more: PostgresJournal(postgres_server["url"], schema=schema, **more)


@pytest.fixture(params=["sqlite", "postgres"])
def make_shared(request: pytest.FixtureRequest) -> MakeJournal:
    """Journals that several workers share: each call gives one more worker."""
    return request.getfixturevalue(f"make_{request.param}")
