"""What the tests of the documentation share: its pages, and an environment in which its programs run hermetically."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilothouse.testing import ScriptedModel

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROGRAMS = DOCS / "programs"


@pytest.fixture(scope="session")
def pages() -> list[Path]:
    """README.md and every page of the documentation."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def program_env(model: ScriptedModel, real_cli: str) -> dict[str, str]:
    """The environment of a program: what a user would have set, but for the scripted model and a home of its own."""
    return model.env(max_retries=0, PILOTHOUSE_CLI=real_cli)
