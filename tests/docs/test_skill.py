"""`SKILL.md`, which teaches coding agents: its programs load, and both type checkers take them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from type_checkers import mypy, pyright

import pilothouse as ph

TEXT = (Path(__file__).parents[2] / "SKILL.md").read_text("utf-8")
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


@pytest.mark.parametrize("check", [pyright, mypy])
def test_type_checkers_take_its_programs(check: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert check(tmp_path) == {}
