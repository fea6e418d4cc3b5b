"""The numbers of the source stay within their limits, and docs/architecture.md shows the source as it is."""

from __future__ import annotations

import ast
import re

from tests.architecture.source_map import PICTURE, circles, draw, measure, modules

PAGE = (PICTURE.parent / "architecture.md").read_text()


def test_numbers_stay_within_their_limits() -> None:
    """All in one test: to measure takes seconds."""
    assert {name: value for name, (value, limit) in measure().items() if value > limit} == {}


def test_imports_form_no_circles() -> None:
    assert circles() == []


def test_the_picture_is_that_of_the_contracts() -> None:
    assert PICTURE.read_text() == draw(), "run `python -m tests.architecture --write`"


def test_the_page_names_functions_that_exist() -> None:
    defined = {"pilothouse." + name for name in ("query", "Query")}
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.add(f"{module}.{node.name}")
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                        defined.add(f"{module}.{node.name}.{member.name}")
    named = {f"pilothouse.{name}" for name in re.findall(r"`((?:\w+\.)+\w+)\(\)`", PAGE)}
    assert len(named) > 20
    assert named - defined == set()
