"""The requirement manifest: every covered id has a test that carries it, and no test carries an unknown one."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest
from places import TESTS, list_tests
from split import PROVEN, is_whole

MANIFEST = tomllib.loads((TESTS / "requirements.toml").read_text())
SYSTEMS = {"L": 62, "S": 44, "R": 40, "E": 86, "G": 50}  # how many requirements each of the five systems has


@cache
def carried() -> dict[str, list[str]]:
    """Ids in `pytest.mark.requirement(...)` decorators, with the tests that carry them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in list_tests():
        for name, ids in marked(ast.parse(path.read_text())):
            for key in ids:
                found[key].append(f"{path.name}::{name}")
    return found


def marked(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.requirement"):
                    yield node.name, [ast.literal_eval(arg) for arg in decorator.args]


def test_every_covered_requirement_has_a_test() -> None:
    missing = sorted(set(MANIFEST) - set(carried()))
    assert not missing, f"covered requirements without a test: {', '.join(missing)}"


def test_make_test_proves_every_covered_requirement(request: pytest.FixtureRequest) -> None:
    """Without what is left to `make test-matrix`, and what is marked `slow` or `soak`."""
    if not is_whole(request.config) or request.config.getoption("-k"):
        pytest.skip("not all tests were collected")
    missing = sorted(set(MANIFEST) - request.config.stash[PROVEN])
    assert not missing, f"only `make test-matrix` proves: {', '.join(missing)}"


def test_tests_carry_only_known_ids() -> None:
    known = {f"{letter}{n}" for letter, count in SYSTEMS.items() for n in range(1, count + 1)}
    unknown = {key: tests for key, tests in carried().items() if key not in known}
    assert not unknown
    assert set(MANIFEST) <= known
