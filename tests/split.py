"""What `make test` runs, and what is left to `make test-matrix`: the marker `matrix`, set by a table of rules.

A run of the whole suite takes each async test on one of the two loops, chosen by its name, so that both are in use; and
of a test that is marked `sample(n)`, n of its cases, spread over all of them. The others are marked `matrix`. In a run
of named files or tests nothing is left out but what carries the marker `matrix` itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pytest

TESTS = Path(__file__).parent
LOOPS = ("asyncio", "trio")
PROVEN = pytest.StashKey[set[str]]()
"""Ids of the requirements that the tests of this run carry."""


def is_whole(config: pytest.Config) -> bool:
    """Whether the run is of the whole suite, and not of some files or tests."""
    here = config.invocation_params.dir
    return {Path(here, str(arg)).resolve() for arg in config.args} <= {TESTS, TESTS.parent}


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    """Mark with `matrix` what `make test` leaves out."""
    by_test: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("matrix") is None:
            by_test[f"{item.path}::{item.cls}::{item.originalname}"].append(item)
    for name, cases in by_test.items():
        loops = sorted({_loop(case) for case in cases} & {*LOOPS})
        loop = loops[crc32(name.encode()) % len(loops)] if loops else ""
        taken = [case for case in cases if _loop(case) in ("", loop)]
        if (marker := cases[0].get_closest_marker("sample")) is not None:
            taken = spread(taken, *marker.args)
        for case in cases:
            if case not in taken:
                case.add_marker("matrix")


def spread(cases: list[pytest.Function], count: int) -> list[pytest.Function]:
    """So many of them, the first and the last included when there are two or more."""
    if count >= len(cases):
        return cases
    last = max(count - 1, 1)
    return [cases[at * (len(cases) - 1) // last] for at in range(count)]


def _loop(item: pytest.Function) -> str:
    """The loop that a case runs on; "" for a test that is not async."""
    spec = getattr(item, "callspec", None)
    loop = "" if spec is None else spec.params.get("anyio_backend", "")
    return loop if loop in LOOPS else ""
