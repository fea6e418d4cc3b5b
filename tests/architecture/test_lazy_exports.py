"""Names that a package loads late: those that type checkers read, and each is there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest
from places import module_name, source_files
from public_names import find_names

FILES = [path for path in source_files() if path.name == "__init__.py" and "= make_lazy_exports(" in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_type_checkers_read_the_same_names(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    read = {
        f"{each.module}: {name}"
        for node in tree.body
        if isinstance(node, ast.If)
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for name in find_names(each)
    }
    [listed] = [node.args[1] for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2]
    package = module_name(path)
    table: dict[str, str] = ast.literal_eval(listed)
    assert {f"{package}.{module}: {name}" for module, names in table.items() for name in names.split()} == read
    names = {name.partition(": ")[2] for name in read}
    assert names <= set(dir(import_module(package)))
    assert [name for name in names if not hasattr(import_module(package), name)] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert len(FILES) > 5
    with pytest.raises(AttributeError, match=r"'pilothouse\.messages' has no attribute 'nonsense'"):
        import_module("pilothouse.messages").nonsense  # noqa: B018
