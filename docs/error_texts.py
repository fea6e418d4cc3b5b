"""Makes the page of the site with the text of every error, so that a search for a text finds it.

Reads the source. What a program fills in stands as `…`; texts that come from the CLI or another library are not here.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from pilothouse import errors

SOURCES = sorted(Path(__file__).parents[1].glob("packages/*/src"))
HEAD = """\
# Texts of errors

Search this page for the text of an error. `…` stands for what your program, a file or the CLI fills in.
[Troubleshooting](guides/troubleshooting.md) says what to do about the most frequent ones, [Errors](errors.md) shows the
tree.
"""
_LEAST_LETTERS = 8
_CLASS = re.compile(r"^ *[├└│─ ]*([A-Z]\w+)", re.MULTILINE)


def make_page() -> str:
    found = collect_texts()
    sections = (f"\n## {name}\n\n" + "".join(f"- {text}\n" for text in sorted(found[name])) for name in sorted(found))
    return HEAD + "".join(sections)


def collect_texts() -> dict[str, set[str]]:
    """The texts with which each error of the tree is made."""
    tree = (errors.__doc__ or "").partition("::\n")[2]
    names = frozenset(_CLASS.findall(tree))
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in (path for source in SOURCES for path in sorted(source.rglob("*.py"))):
        if "pilothouse_compat" not in path.parts:  # what is raised there has the texts of another library
            for name, text in find_calls(ast.parse(path.read_text("utf-8")), names):
                found[name].add(text)
    return found


def find_calls(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            text = escape(render(node.args[0], constants))
            if name in names and len(re.findall(r"[a-z]", text)) >= _LEAST_LETTERS:
                yield name, text


def render(node: ast.expr, constants: Mapping[str, str]) -> str:
    """The text of an expression, with `…` for what is only known when the program runs."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.JoinedStr(values=parts):
            return "".join(render(part, constants) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in constants:
            return constants[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return render(left, constants) + render(right, constants)
        case _:
            return "…"


def escape(text: str) -> str:
    """One line in which Markdown changes nothing."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.split()))
