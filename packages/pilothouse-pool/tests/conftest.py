"""Fixtures of the tests of pools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from session_cli import cli as cli

from pilothouse_testing import FakeCLI


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    with FakeCLI() as fake:
        yield fake
