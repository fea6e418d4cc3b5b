"""Names that a package loads late: from its source, and without it."""

from __future__ import annotations

import sys

import pytest

import pilothouse.messages
from pilothouse.lazy_exports import load_name, read_lazy_names


@pytest.fixture
def _without_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a frozen program."""
    package = sys.modules["pilothouse.messages"]
    monkeypatch.setattr(package, "__file__", None)
    monkeypatch.setattr(package, "__loader__", None)


def test_names_are_those_of_the_source() -> None:
    names = read_lazy_names("pilothouse.messages")
    assert names is not None
    assert names["CompactBoundaryMessage"].startswith("pilothouse.messages.")


@pytest.mark.usefixtures("_without_source")
def test_a_program_without_sources_finds_names_too() -> None:
    assert read_lazy_names("pilothouse.messages") is None
    found = load_name("pilothouse.messages", None, "CompactBoundaryMessage")
    assert found is pilothouse.messages.CompactBoundaryMessage
    for name in ("nonsense", "__nonsense__"):
        with pytest.raises(AttributeError, match=f"'pilothouse.messages' has no attribute '{name}'"):
            load_name("pilothouse.messages", None, name)
