"""The tests of the core need no product; cases that use one are skipped where it is not installed."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

# What `pilothouse-models` has: two bridges, and the uses of faults/memory_cli.py that need one.
OF_MODELS = re.compile(r"\[.*\b(deferred|xml|continued|continued_in_a_session)\b")


@pytest.fixture(autouse=True)
def _skip_without_product(request: pytest.FixtureRequest) -> None:
    if OF_MODELS.search(request.node.name) and find_spec("pilothouse_models") is None:
        pytest.skip("pilothouse-models is not installed")
