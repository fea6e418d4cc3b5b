"""Journals of each kind, in fresh places, and a Claude Code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilothouse_fleet import SqliteJournal
from pilothouse_testing import FakeCLI


@pytest.fixture
def make_memory() -> Callable[[], SqliteJournal]:
    return SqliteJournal


@pytest.fixture
def make_sqlite(tmp_path: Path) -> Callable[[], SqliteJournal]:
    """Journals over one file, as if each were in a process of its own."""
    return lambda: SqliteJournal(tmp_path / "runs.db")


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    """A Claude Code that says hello."""
    with FakeCLI().text("Hello").forever() as found:
        yield found
