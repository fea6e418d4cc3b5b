"""Each line of the page on what a host promises, and the tests that carry it: `host_promises.toml`."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from markdown_pages import DOCS
from places import ROOT

HOST_TESTS = ROOT / "packages" / "pilothouse-host" / "tests" / "server"
PROMISES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("host_promises.toml").read_text("utf-8"))


def test_every_line_has_its_tests() -> None:
    text = (DOCS / "host-promises.md").read_text("utf-8")
    lines = [line.removeprefix("- ") for line in re.findall(r"^- .*", text, re.MULTILINE)]
    assert len(lines) == len(PROMISES)
    for line, start in zip(lines, PROMISES, strict=True):
        assert line.startswith(start), line


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_line_exist(promise: str) -> None:
    for test in PROMISES[promise]:
        module, _, name = test.partition("::")
        tree = ast.parse((HOST_TESTS / f"{module}.py").read_text("utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, test
