"""Fixtures of the tests of the blocking twin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sync_fixtures import talk

from pilothouse_testing import FakeCLI, frames


@pytest.fixture
def hanging(fake: FakeCLI) -> FakeCLI:
    """Says a little and then waits for ever, with a grandchild."""
    fake.expect("user").spawn_grandchild(60).emit(frames.init(), frames.assistant("x")).hang()
    return fake


@pytest.fixture
def talker() -> Iterator[FakeCLI]:
    """Talks on and on; see `talk`."""
    with FakeCLI.from_function(talk) as fake:
        yield fake
