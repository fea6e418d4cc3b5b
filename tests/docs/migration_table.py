"""The tables of "Coming from …": their rows, the code in the right-hand cells, and how one piece of it is run.

A right-hand cell holds code spans, each a line of Python, and words between them. Knows nothing of what the code means.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, cast

import anyio.to_thread

from pilothouse.options import TABLE

OURS = "pilothouse"

_CELL = re.compile(r"(?<!\\)\|")
_SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Call:
    """One row: the name of their side, and the code of ours."""

    system: str
    line: int
    theirs: str
    ours: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.system}:{self.line}"


def calls(page: Path) -> list[Call]:
    return list(_rows(page))


def _rows(page: Path) -> Iterator[Call]:
    heading, inside = "", False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip().replace(r"\|", "|") for cell in _CELL.split(line)[1:-1]]
        if not cells:
            inside = False
        elif not inside:
            inside = cells[-1] == OURS
        elif not set(cells[-1]) <= set("-: "):
            assert len(cells) == 2, f"line {number} has {len(cells)} cells"
            yield Call(heading, number, cells[0], tuple(_SPAN.findall(cells[-1])))


def settings(code: str) -> Iterator[str]:
    """What `code` sets, each as `name=value`: keywords that are options, and the steps of a builder."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            yield from (ast.unparse(keyword) for keyword in node.keywords if keyword.arg in TABLE)
            if isinstance(node.func, ast.Attribute) and node.func.attr in TABLE and node.args:
                yield f"{node.func.attr}={ast.unparse(node.args[0])}"


def used(code: str) -> set[str]:
    """Names that `code` expects to be there."""
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    return {n.id for n in names} - {n.id for n in names if isinstance(n.ctx, ast.Store)}


async def run(code: str, namespace: dict[str, Any]) -> Any:
    """Run `code` and give its value: of the expression, or of the name that it assigns."""
    (statement,) = ast.parse(code).body
    mode = "eval" if isinstance(statement, ast.Expr) else "exec"
    value = await _execute(compile(code, code, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), namespace)
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets
        return namespace[ast.unparse(target)]
    return value


async def _execute(code: CodeType, namespace: dict[str, Any]) -> Any:
    if code.co_flags & inspect.CO_COROUTINE:
        return await cast("Awaitable[Any]", eval(code, namespace))
    if "sync" in code.co_names:  # it blocks
        return await anyio.to_thread.run_sync(eval, code, namespace)
    return eval(code, namespace)
