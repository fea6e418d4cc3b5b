"""Journals of each kind, in fresh places, and a Claude Code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilothouse_fleet import SqliteJournal
from pilothouse_testing import FakeCLI


@pytest.fixture
def make_sqlite(tmp_path: Path) -> Callable[[], SqliteJournal]:
    """Journals over one file, as if each were in a process of its own."""
    return lambda: SqliteJournal(tmp_path / "runs.db")


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    """A Claude Code that says hello."""
    with FakeCLI().text("Hello").forever() as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal that does not exist yet."""
    return tmp_path / "runs.db"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a workspace that does not exist yet."""
    return tmp_path / "root"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty directory to copy."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"
