"""What `make test` runs, and what is left to `make test-matrix`: the marker `matrix`, set by these rules.

A run of the whole suite leaves out:

- tests of the real CLI that prove no requirement,
- of each async test one of the two loops, and of a test of all bridges two of the three; the name of the test chooses
  which one stays, so that all are in use,
- of a test that is marked `sample(n)` all but n of its cases, spread over all of them. Such a test is always in.

What it leaves out gets the marker `matrix`. In a run of named files or tests nothing is left out but what carries the
marker itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pytest

TESTS = Path(__file__).parent
VARIANTS = {"anyio_backend": ("asyncio", "trio"), "bridge": ("mcp", "deferred", "xml")}
"""Parameters of which one value will do, and the values that it may have."""
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
        sample = cases[0].get_closest_marker("sample")
        taken = [case for case in cases if sample is not None or not _is_extra(case)]
        for parameter in VARIANTS:
            values = sorted({_value(case, parameter) for case in taken} - {""})
            one = values[crc32(name.encode()) % len(values)] if values else ""
            taken = [case for case in taken if _value(case, parameter) in ("", one)]
        if sample is not None:
            taken = spread(taken, *sample.args)
        for case in cases:
            if case not in taken:
                case.add_marker("matrix")


def spread(cases: list[pytest.Function], count: int) -> list[pytest.Function]:
    """So many of them, the first and the last included when there are two or more."""
    if count >= len(cases):
        return cases
    last = max(count - 1, 1)
    return [cases[at * (len(cases) - 1) // last] for at in range(count)]


def _is_extra(item: pytest.Function) -> bool:
    """Whether it runs the real CLI without proving a requirement."""
    return "real_cli" in item.fixturenames and item.get_closest_marker("requirement") is None


def _value(item: pytest.Function, parameter: str) -> str:
    """The value of such a parameter in this case; "" if it has none of those."""
    spec = getattr(item, "callspec", None)
    value = "" if spec is None else spec.params.get(parameter, "")
    return value if value in VARIANTS[parameter] else ""
