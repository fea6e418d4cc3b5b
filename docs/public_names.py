"""Which modules have public names, and which names: read from the source, for the docs and for tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PUBLIC_MODULES = (
    "pilothouse.client",
    "pilothouse.events",
    "pilothouse.messages",
    "pilothouse.options",
    "pilothouse.protocol",
    "pilothouse.hooks",
    "pilothouse.permissions",
    "pilothouse.tools",
    "pilothouse.errors",
    "pilothouse.transports",
    "pilothouse.instrumentation",
    "pilothouse.plugins",
    "pilothouse.provision",
    "pilothouse_access",
    "pilothouse_remote",
    "pilothouse_transcripts",
    "pilothouse_transcripts.stores",
    "pilothouse_fleet",
    "pilothouse_models",
    "pilothouse_models.local",
    "pilothouse_native",
    "pilothouse_host",
    "pilothouse_otel",
    "pilothouse_policy",
    "pilothouse_pool",
    "pilothouse_testing",
)
"""Where the public names are that the root does not have, of all packages."""


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
