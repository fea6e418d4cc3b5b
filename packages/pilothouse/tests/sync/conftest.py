"""Fixtures of the tests of the blocking twin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sync_fixtures import talk

from pilothouse_testing import FakeCLI


@pytest.fixture
def talker() -> Iterator[FakeCLI]:
    """Talks on and on; see `talk`."""
    with FakeCLI.from_function(talk) as fake:
        yield fake
