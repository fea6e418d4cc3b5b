"""Fixtures of the instrumentation tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from otel_memory import Recorded


@pytest.fixture
def record() -> Iterator[Callable[..., Recorded]]:
    """Makes recorders, which are shut down in the end."""
    made: list[Recorded] = []

    def make(**how: Any) -> Recorded:
        made.append(Recorded(**how))
        return made[-1]

    yield make
    for one in made:
        one.close()
