"""`SKILL.md`, which teaches coding agents: its programs load, and both type checkers take them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from type_checkers import mypy, pyright

import pilothouse as ph
from pilothouse.options import TABLE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SKILL.md").read_text("utf-8")
PILOTHOUSE = Path(sys.executable).with_name("pilothouse")
PROGRAM = "\n\n".join(re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))


def test_it_says_when_to_use_it() -> None:
    head = re.match(r"---\nname: pilothouse\ndescription: (.+)\n---\n", TEXT)
    assert head is not None
    assert len(head[1]) <= 1024  # characters that a skill may have there


def test_its_programs_load_and_decide_as_it_says() -> None:
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, "SKILL.md", "exec"), names)
    asked = ph.PermissionRequest(tool_name="Bash", tool_input={"command": "git log"})
    assert names["can_use_tool"](asked) is True
    denied = names["can_use_tool"](ph.PermissionRequest(tool_name="Bash", tool_input={"command": "rm x"}))
    assert isinstance(denied, ph.Deny)
    assert names["forecaster"].options.custom_tools


def test_a_reader_finds_each_name_that_it_mentions() -> None:
    """Names in backticks outside of the programs: packages and their names, options, extras and commands."""
    prose = re.sub(r"^```python\n.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    names = re.findall(r"`((?:ph|pilothouse\w*)(?:\.\w+)+)", prose)
    assert names
    for name in names:
        module, *path = name.split(".")
        found: Any = import_module("pilothouse" if module == "ph" else module)
        for part in path:
            found = getattr(found, part)
    options = set(re.findall(r"`(\w+)=", prose)) - {"output_type"}  # of a query
    assert options <= set(TABLE)
    extras = set(re.findall(r"pilothouse\[([\w,]+)\]", prose))
    declared = tomllib.loads((ROOT / "packages/pilothouse/pyproject.toml").read_text())["project"]
    assert extras
    assert extras <= declared["optional-dependencies"].keys()
    commands = re.findall(r"`pilothouse ([\w-]+)", prose)
    assert commands
    for command in commands:
        ran = subprocess.run([PILOTHOUSE, command, "--help"], capture_output=True, timeout=60, check=False)
        assert ran.returncode == 0, command


@pytest.mark.parametrize("check", [pyright, mypy])
def test_type_checkers_take_its_programs(check: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert check(tmp_path) == {}
