"""Who calls the methods of a transport: docs/invariants.md says so, and no other class of the core may."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from places import CORE

CALLERS = {
    "start": {"ChildRun"},
    "receive": {"ControlChannel"},
    "send": {"ChildRun", "ControlChannel"},
    "end_input": {"ChildRun"},
    "close": {"ChildRun"},
}


def find_calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each call of such a method on something whose name ends with "transport": the method, and the class it is in."""
    for statement in tree.body:
        owner = statement.name if isinstance(statement, ast.ClassDef) else "no class"
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Attribute(attr=method, value=ast.Attribute(attr=name) | ast.Name(id=name))):
                    if method in CALLERS and name.endswith("transport"):
                        yield method, owner
                case _:
                    pass


def test_only_the_engine_calls_a_transport() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in CORE.rglob("*.py"):
        if path.parent.name != "transports":
            for method, owner in find_calls(ast.parse(path.read_text("utf-8"))):
                found[method].add(owner)
    assert found == CALLERS
