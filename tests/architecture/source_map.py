"""What the source consists of: doubled names, circles of imports, and a picture of its layers."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html import escape

from places import ROOT, module_name, source_files

PICTURE = ROOT / "docs" / "architecture.svg"

TERMS = {"steering", "encoding", "framing", "generated", "recording"}
"""Names of modules that end in -ing or -ed and are terms of the field."""

REQUIREMENT = re.compile(r"\((?:[A-Z]{1,2}\d+[a-z]?(?:, | to | and )?)+\)")


ABOUT = {
    "pilothouse_access": "who may send requests; shares",
    "pilothouse_cli": "the command",
    "pilothouse_compat": "claude_agent_sdk",
    "pilothouse_doors": "front ends, editors, notifications",
    "pilothouse_fleet": "many runs, in a journal",
    "pilothouse_host": "a server of sessions",
    "pilothouse_lab": "is one agent better than another",
    "pilothouse_models": "a language model",
    "pilothouse_native": "without the CLI",
    "pilothouse_otel": "OpenTelemetry",
    "pilothouse_policy": "what an agent may do, and why",
    "pilothouse_pool": "children started in advance",
    "pilothouse_remote": "the CLI elsewhere",
    "pilothouse_testing": "for tests of users",
    "pilothouse_transcripts": "files of the CLI's sessions; session stores",
    "pilothouse_usage": "where the tokens went",
    "sync": "the same names, blocking",
    "client": "Agent, Query, QueryResult, Session",
    "engine": "runs a child: requests, timeouts",
    "hooks": "hook requests",
    "permissions": "permission requests",
    "tools": "functions as tools",
    "callbacks": "functions of users",
    "transports": "the seam; the CLI as a child process",
    "instrumentation": "what observers get",
    "options": "every setting, in one table",
    "provision": "installs the CLI",
    "protocol": "the wire, as a state machine",
    "events": "what happens in a run",
    "messages": "typed messages",
    "errors": "one tree of errors",
}


@cache
def modules() -> dict[str, ast.Module]:
    """The modules by full name, parsed."""
    return {module_name(path): ast.parse(path.read_text()) for path in source_files()}


def imports(name: str, *, for_types: bool = True) -> Iterator[str]:
    """The modules that a module imports, also inside of functions; and, if `for_types`, for type checkers only."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(modules()[name]):
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(node.body)
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules():
                    yield full
                elif node.module in modules():
                    yield node.module


def circles() -> list[list[str]]:
    """Groups of modules that load each other. Packages count by their modules, not by their `__init__`."""
    packages = {name.rpartition(".")[0] for name in modules()}
    graph = {
        name: {to for to in imports(name, for_types=False) if to not in packages}
        for name in modules()
        if name not in packages
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for to in sorted(graph[name]):
            if to not in index:
                visit(to)
                low[name] = min(low[name], low[to])
            elif to in stack:
                low[name] = min(low[name], index[to])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def doubled_classes() -> list[str]:
    """Names of classes that two modules define; twins in `sync` and names of other libraries are no doubles."""
    names = Counter(
        node.name
        for module, tree in modules().items()
        if not module.startswith(("pilothouse.sync", "pilothouse_compat")) and not module.endswith(".sync")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def participles() -> list[str]:
    """Modules whose last word is a participle, and no term of the field."""
    own = [name for name in modules() if not name.startswith("pilothouse_compat")]
    last = ((name, name.rpartition(".")[2].rpartition("_")[2]) for name in own)
    return sorted(name for name, word in last if re.search("(ing|ed)$", word) and word not in TERMS)


def measure() -> dict[str, tuple[int, int]]:
    """What is measured: the value, and its limit."""
    import pilothouse

    return {
        "names in the root": (len(vars(pilothouse)["__all__"]), 100),
        "class names that two modules define": (len(doubled_classes()), 15),
        "circles of imports": (len(circles()), 0),
        "requirement ids": (sum(len(REQUIREMENT.findall(path.read_text())) for path in source_files()), 0),
        "modules named by a participle": (len(participles()), 1),
    }


def layers() -> list[list[str]]:
    """The layers of `pyproject.toml`, the highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [each for each in config["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    rows = [[name.strip(" ()") for name in layer.split("|")] for contract in contracts for layer in contract["layers"]]
    return [shown for row in rows if (shown := [name for name in row if name in ABOUT])]


def draw() -> str:
    """The picture: one row for each layer; a package imports only from rows below its own."""
    width, height, gap = 1000, 54, 10
    rows = layers()
    total = len(rows) * (height + gap) + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" role="img" font-family="sans-serif">',
        "<title>The packages of pilothouse: each imports only from the rows below its own</title>",
    ]
    for number, row in enumerate(rows):
        top = gap + number * (height + gap)
        wide = (width - gap * (len(row) + 1)) / len(row)
        for place, name in enumerate(row):
            left = gap + place * (wide + gap)
            fill = "#f1f5f9" if name.startswith("pilothouse_") else "#dbeafe"
            parts.append(
                f'<rect x="{left:.0f}" y="{top}" width="{wide:.0f}" height="{height}" rx="6" '
                f'fill="{fill}" stroke="#64748b"/>'
            )
            for text, y, size in ((name, 23, 15), (ABOUT[name], 42, 11 if wide > 190 else 8)):
                x = f"{left + wide / 2:.0f}"
                parts.append(
                    f'<text x="{x}" y="{top + y}" text-anchor="middle" font-size="{size}">{escape(text)}</text>'
                )
    return "\n".join([*parts, "</svg>", ""])
