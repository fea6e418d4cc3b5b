"""The shape of the code: names, docstrings, exports."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import sys
from collections import Counter
from collections.abc import Iterator

from places import CORE, SOURCES, TEST_FOLDERS, module_name, source_files
from public_names import PUBLIC_MODULES, list_names

FILES = source_files()


def test_helpers_of_tests_have_names_of_their_own() -> None:
    """All directories of tests are on the path: a second helper of one name would never be imported."""
    helpers = [path for folder in TEST_FOLDERS for path in folder.rglob("*.py")]
    files = [path for path in helpers if not path.name.startswith(("test_", "__"))]
    names = Counter(path.stem for path in files if path.stem != "conftest")
    assert {name for name, count in names.items() if count > 1 or name in sys.stdlib_module_names} == set()


def test_every_file_says_what_it_owns() -> None:
    assert not [path for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))]


NOT_INSTALLED = {"pilothouse_lab.inspect"}
"""Modules for libraries that the environment of the tests does not have."""


def list_classes() -> Iterator[type]:
    for path in FILES:
        if "compat" in path.parts or path.name.startswith("__") or module_name(path) in NOT_INSTALLED:
            continue
        module = importlib.import_module(module_name(path))
        yield from (
            each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__
        )


def test_help_can_show_every_class() -> None:
    """`help()` and editors evaluate the hints of a struct, so its module has to have their names at run time."""
    failures: dict[str, str] = {}
    for each in list_classes():
        if issubclass(each, type):
            continue  # the signature of a metaclass is that of its classes
        try:
            inspect.signature(each)
        except ValueError:
            pass  # some have none
        except Exception as error:
            failures[each.__qualname__] = repr(error)
    assert failures == {}
    for module in ("pilothouse", "pilothouse.sync"):
        assert "query" in pydoc.render_doc(importlib.import_module(module))


# All packages but what has code of its own in its first file.
PACKAGES = [
    *CORE.glob("*/__init__.py"),
    *(source / "__init__.py" for source in SOURCES if source.name != "pilothouse_otel" and source != CORE),
    *(path for source in SOURCES for name in ("stores", "local") for path in source.glob(f"{name}/__init__.py")),
]


def test_packages_export_explicitly_and_sorted() -> None:
    for path in PACKAGES:
        names: list[tuple[str, str]] = []
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pilothouse"):
                for alias in node.names:
                    assert alias.asname == alias.name, f"{path.parent.name}: write `{alias.name} as {alias.name}`"
                    names.append((node.module or "", alias.name))
        assert len({name for _, name in names}) == len(names), f"{path.parent.name}: exported twice"


def test_a_public_name_is_declared_in_one_package() -> None:
    names = Counter(name for each in PUBLIC_MODULES for name in list_names(each))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 400
