"""What `make test` runs, and what is left to `make test-matrix`: the marker `matrix`, set by these rules.

A run of the whole suite, or of the whole suite of a package, leaves out:

- tests of the real CLI, but for those that are needed so that each requirement is proven by one of them that can be,
- of each async test one of the two loops, and of a test of all bridges two of the three; the name of the test chooses
  which one stays, so that all are in use,
- of a test that is marked `sample(n)` all but n of its cases, spread over all of them.

What it leaves out gets the marker `matrix`. In a run of named files or tests nothing is left out but what carries the
marker itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

import pytest
from places import ROOT, TEST_FOLDERS

VARIANTS = {"anyio_backend": ("asyncio", "trio"), "bridge": ("mcp", "deferred", "xml")}
"""Parameters of which one value will do, and the values that it may have."""
OTHER_RUNS = ("matrix", "slow", "soak", "elsewhere", "browser")
"""Markers of what `make test` never takes, and what has a run of its own."""
PROVEN = pytest.StashKey[set[str]]()
"""Ids of the requirements that the tests of this run carry."""


def is_whole(config: pytest.Config) -> bool:
    """Whether the run is of whole suites, of all or of some packages, and not of some files or tests."""
    here = config.invocation_params.dir
    return {Path(here, str(arg)).resolve() for arg in config.args} <= {ROOT, *TEST_FOLDERS}


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    """Mark with `matrix` what `make test` leaves out."""
    by_test: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not any(map(item.get_closest_marker, OTHER_RUNS)):
            by_test[f"{item.path}::{item.cls}::{item.originalname}"].append(item)
    taken = [case for name, cases in by_test.items() for case in _take_cases(name, cases)]
    real = [case for case in taken if "real_cli" in case.fixturenames]
    left_out = {case for cases in by_test.values() for case in cases} - set(taken)
    for case in left_out | (set(real) - set(_choose_proofs(real))):
        case.add_marker("matrix")


def _take_cases(name: str, cases: list[pytest.Function]) -> list[pytest.Function]:
    """The cases of one test without the extra values of `VARIANTS`, and a sample of them if it is marked so."""
    taken = cases
    for parameter in VARIANTS:
        values = sorted({_value(case, parameter) for case in taken} - {""})
        one = values[crc32(name.encode()) % len(values)] if values else ""
        taken = [case for case in taken if _value(case, parameter) in ("", one)]
    sample = cases[0].get_closest_marker("sample")
    return taken if sample is None else spread(taken, *sample.args)


def _choose_proofs(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """So few of them that each requirement that one of them proves is proven; those that prove the most come first."""
    ids = {case: {key for marker in case.iter_markers("requirement") for key in marker.args} for case in cases}
    unproven = set[str]().union(*ids.values())
    chosen: list[pytest.Function] = []
    while unproven:
        chosen.append(max(cases, key=lambda case: len(ids[case] & unproven)))
        unproven -= ids[chosen[-1]]
    return chosen


def spread(cases: list[pytest.Function], count: int) -> list[pytest.Function]:
    """So many of them, the first and the last included when there are two or more."""
    if count >= len(cases):
        return cases
    last = max(count - 1, 1)
    return [cases[at * (len(cases) - 1) // last] for at in range(count)]


def _value(item: pytest.Function, parameter: str) -> str:
    """The value of such a parameter in this case; "" if it has none of those."""
    spec = getattr(item, "callspec", None)
    value = "" if spec is None else spec.params.get(parameter, "")
    return value if value in VARIANTS[parameter] else ""
