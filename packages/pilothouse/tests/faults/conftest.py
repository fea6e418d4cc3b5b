"""Fixtures of the fault tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from leak_checks import Left

SHORT = 0.5  # seconds; in place of those that are given to a peer that does not let go


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "interrupt.INTERRUPT_SECONDS",
        "child.CLOSE_SECONDS",
        "child.INTERRUPT_SECONDS",
        "child.SEND_SECONDS",
        "child.EXIT_SECONDS",
    ):
        monkeypatch.setattr(f"pilothouse.engine.{name}", SHORT)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of lines are spoiled here, and each is logged."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    with Left(tmp_path, monkeypatch) as left:
        yield left
