"""A plugin for pytest that runs the first case of each test: for runs in which the case makes no difference."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)  # after `-k` and `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of each test."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    kept = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
