"""The shape of the code: sizes, exports, and what a plain import loads."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pydoc
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilothouse.hints import PUBLIC_MODULES, list_names

SOURCE = Path(__file__).parents[2] / "src" / "pilothouse"
FILES = sorted(SOURCE.rglob("*.py"))
ROOT = SOURCE.parents[1]
EVERYTHING = sorted(path for part in ("src", "tests", "docs", "benchmarks") for path in (ROOT / part).rglob("*.py"))
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60


def too_long(text: str) -> Iterator[str]:
    """What is longer than it may be in a file."""
    if len(text.splitlines()) > MAX_FILE_LINES:
        yield f"{len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


def test_files_and_functions_stay_short() -> None:
    found = {str(path.relative_to(ROOT)): list(too_long(path.read_text())) for path in EVERYTHING}
    assert not {path: what for path, what in found.items() if what}


def test_what_is_too_long_is_found() -> None:
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert list(too_long("def f():\n" + body)) == ["f has 61 lines"]
    assert list(too_long("\n" * (MAX_FILE_LINES + 1))) == ["801 lines"]


def test_helpers_of_tests_have_names_of_their_own() -> None:
    """All directories of `tests` are on the path: a second helper of one name would never be imported."""
    files = [path for path in (ROOT / "tests").glob("**/*.py") if not path.name.startswith(("test_", "__"))]
    names = Counter(path.stem for path in files if path.stem != "conftest")
    assert {name for name, count in names.items() if count > 1 or name in sys.stdlib_module_names} == set()


def test_every_file_says_what_it_owns() -> None:
    assert not [path for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))]


def list_classes() -> Iterator[type]:
    for path in FILES:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if "compat" in parts or parts[-1].startswith("__"):
            continue
        module = importlib.import_module(".".join(parts))
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


def test_packages_export_explicitly_and_sorted() -> None:
    for path in SOURCE.glob("*/__init__.py"):
        names: list[tuple[str, str]] = []
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pilothouse"):
                for alias in node.names:
                    assert alias.asname == alias.name, f"{path.parent.name}: write `{alias.name} as {alias.name}`"
                    names.append((node.module or "", alias.name))
        assert len({name for _, name in names}) == len(names), f"{path.parent.name}: exported twice"


def loaded_by(code: str) -> set[str]:
    script = (
        f"import sys, json; before = set(sys.modules); {code}; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


HEAVY = {
    "claude_agent_sdk", "fastjsonschema", "httpx", "httpx2", "mcp", "opentelemetry", "prompt_toolkit", "pydantic",
    "pytest", "rich", "starlette", "trio", "uvicorn", "websockets", "xllamacpp",
}  # fmt: skip


def test_import_loads_nothing_heavy() -> None:
    loaded = loaded_by("import pilothouse; pilothouse.query")
    assert "pilothouse.client" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    packages = {name.split(".")[1] for name in loaded if name.startswith("pilothouse.")}
    assert not packages & {"cli", "testing", "local"}


def test_the_version_needs_no_other_import() -> None:
    assert not {name for name in loaded_by("import pilothouse; pilothouse.__version__") if name.startswith("anyio")}


def test_a_public_name_is_declared_in_one_package() -> None:
    names = Counter(name for each in PUBLIC_MODULES for name in list_names(f"pilothouse.{each}"))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 400


def test_public_names_are_all_there() -> None:
    import pilothouse

    for name in pilothouse.__all__:
        assert getattr(pilothouse, name) is not None
    assert list(pilothouse.__all__) == sorted(pilothouse.__all__)
    assert set(dir(pilothouse)) >= set(pilothouse.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pilothouse.nonsense  # pyright: ignore[reportAttributeAccessIssue]
