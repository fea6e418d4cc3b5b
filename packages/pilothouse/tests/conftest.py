"""The tests of the core need no product; cases that use one are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from pilothouse_testing import FakeCLI, frames


@pytest.fixture(autouse=True)
def _skip_without_models(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("needs_models") and find_spec("pilothouse_models") is None:
        pytest.skip("pilothouse-models is not installed")


@pytest.fixture
def hanging(fake: FakeCLI) -> FakeCLI:
    """Says a little and then waits for ever, with a grandchild."""
    fake.expect("user").spawn_grandchild(60).emit(frames.init(), frames.assistant("x")).hang()
    return fake
