"""The page about logs and spans says what is so: every logger with its levels, and nothing that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from markdown_pages import DOCS, prose
from places import source_files

from pilothouse.instrumentation import Observer
from pilothouse_otel import genai

LEVELS = {
    "exception": "ERROR", "error": "ERROR", "warning": "WARNING", "info": "INFO", "debug": "DEBUG",
}  # fmt: skip
PAGE = prose(DOCS / "observability.md")


def loggers_in(path: Path) -> dict[str, str]:
    """The names that loggers have in a file, and the loggers."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            if isinstance(call.func, ast.Attribute) and call.func.attr == "getLogger":
                assert isinstance(target, ast.Name)
                assert isinstance(call.args[0], ast.Constant), "the name of a logger is written out"
                found[target.id] = str(call.args[0].value)
    return found


def output() -> set[tuple[str, str]]:
    """What the code logs: logger and level."""
    found: set[tuple[str, str]] = set()
    for path in source_files():
        loggers = loggers_in(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in loggers and node.func.attr in LEVELS:
                found.add((loggers[owner.id], LEVELS[node.func.attr]))
    return found


def documented() -> set[tuple[str, str]]:
    """What the page says of it; a row without a logger belongs to the one before."""
    found: set[tuple[str, str]] = set()
    logger = ""
    for name, level in re.findall(r"^\| (`pilothouse[\w.]*`)? ?\| (ERROR|WARNING|INFO|DEBUG) \|", PAGE, re.MULTILINE):
        logger = name.strip("`") or logger
        found.add((logger, level))
    return found


def test_every_logger_stands_in_the_table_with_its_levels() -> None:
    used = output()
    assert {("pilothouse.stderr", "DEBUG"), ("pilothouse", "WARNING")} <= used
    assert documented() == used


def test_every_module_names_its_logger() -> None:
    """None is called after its module: names of loggers are public, those of modules are not."""
    for path in source_files():
        assert "getLogger(__name__)" not in path.read_text(), path.name
        for name in loggers_in(path).values():
            assert name == "pilothouse" or name.startswith("pilothouse."), path.name


def test_every_method_of_an_observer_stands_in_the_table() -> None:
    methods = {name for name in vars(Observer) if not name.startswith("_")}
    assert set(re.findall(r"`(on_\w+|environ|run_context)\([\w, ]*\)`", PAGE)) == methods


OWN_NAMES = [value for name, value in vars(genai).items() if name.isupper() and f"{value}".startswith("pilothouse.")]


@pytest.mark.parametrize("name", [name for name in OWN_NAMES if "retry." not in name])
def test_every_name_of_ours_is_reported(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_version_of_the_conventions_is_reported() -> None:
    assert genai.SCHEMA_URL.rpartition("/")[2] in PAGE
