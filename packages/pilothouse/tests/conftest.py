"""The tests of the core need no product; cases that use one are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def _skip_without_models(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("needs_models") and find_spec("pilothouse_models") is None:
        pytest.skip("pilothouse-models is not installed")
