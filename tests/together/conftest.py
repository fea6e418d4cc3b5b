"""Fixtures of the tests of several packages together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilothouse_testing import FakeCLI


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    with FakeCLI() as fake:
        yield fake
