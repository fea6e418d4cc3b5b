"""Which modules have public names, and which names: read from the source, for the docs and for tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pilothouse.hints import CORE_MODULES, EXTRAS


def list_names(module: str) -> list[str]:
    """The public names of a module: what a package exports, what a single file defines."""
    spec = find_spec(module)
    tree = ast.parse(Path((spec and spec.origin) or "").read_text("utf-8"))
    return [name for node in tree.body for name in find_names(node) if name[0].isalpha() or name == "__version__"]


def find_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement exports, as `from … import name as name`, or defines."""
    if isinstance(node, ast.ImportFrom) and node.module != "pilothouse.lazy_exports":
        yield from (
            alias.name for alias in node.names if alias.asname == alias.name and alias.name != "make_lazy_exports"
        )
    elif isinstance(node, ast.If):
        for each in node.body:
            if isinstance(each, ast.ImportFrom):
                yield from find_names(each)
    elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
        yield ast.unparse(node.target)


PUBLIC_MODULES = (*CORE_MODULES, *(module for module in EXTRAS if list_names(module)))
"""Where the public names are that the root does not have, of all packages."""
