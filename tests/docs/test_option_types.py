"""What is generated from, or lists, what the core has: types of options, variables of an isolated child."""

from __future__ import annotations

import inspect
import runpy

import pytest
from places import DOCS

from pilothouse.options import Options
from pilothouse.options.isolation import INHERITED_VARIABLES
from pilothouse.options.table import TABLE


@pytest.mark.requirement("E46")
def test_the_static_types_are_those_of_the_table() -> None:
    reference = runpy.run_path(str(DOCS / "reference.py"))
    assert reference["OPTION_TYPES"].read_text() == reference["option_types"](), "run python docs/reference.py"
    assert str(inspect.signature(Options)).count(": ") == len(TABLE)


def test_the_documentation_has_the_list() -> None:
    page = (DOCS / "policy.md").read_text()
    assert [name for name in INHERITED_VARIABLES if f"`{name}`" not in page] == []
