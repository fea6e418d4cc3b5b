"""What editors and type checkers know of a user's program: pyright and mypy, both strict, over files outside of the
project that use the installed package.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilothouse.hooks import HOOK_EVENTS, matchers

USUAL = Path(__file__).with_name("usual_code.py")
SECONDS = 600

HEAD = """
import pilothouse as ph
from pilothouse import sync

def before(event: ph.PreToolUseEvent) -> None: raise
def after(event: ph.PostToolUseEvent) -> None: raise
def three(name: str, tool_input: dict[str, object], context: object) -> bool: raise
def text(request: ph.PermissionRequest) -> str: raise
def answer(event: ph.PreToolUseEvent) -> bool: raise
async def ask() -> None:
    result = await ph.query("x", output_type=int)
"""

WRONG = (
    'ph.query("x", modle="x")',
    'ph.query("x", max_turns="3")',
    'ph.query("x", permission_mode="accept_edits")',
    'ph.query("x", hooks={"PreTooluse": before})',
    'ph.query("x", hooks={"PostToolUse": before})',
    'ph.query("x", hooks={"PreToolUse": [after]})',
    'ph.query("x", hooks={"PreToolUse": ph.HookMatcher("Bash", [after])})',
    'ph.query("x", hooks={"PreToolUse": answer})',
    'ph.query("x", can_use_tool=three)',
    'ph.query("x", can_use_tool=text)',
    "ph.Agent(can_use_tool=three)",
    "ph.Options(can_use_tool=three)",
    "ph.Options.make().can_use_tool(three)",
    'ph.query("x", on_question=before)',
    'ph.query("x", on_message=three)',
    'ph.query("x", custom_tools=["Read"])',
    'ph.query("x", instrumentation=before)',
    'ph.query("x").text',
    'sync.query("x").text',
    'sync.query("x", output_type=int).result().output.upper()',
    'sync.Agent(hooks={"PreTooluse": before})',
    "result.output.upper()",
    "async with ph.Fleet(max_concurrency=4): pass",
)  # fmt: skip


def pyright(directory: Path) -> dict[int, str]:
    """What pyright says against the program of a directory, by line."""
    (directory / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    found: Any = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, done.stdout
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found["generalDiagnostics"]}


def mypy(directory: Path) -> dict[int, str]:
    """What mypy says against the program of a directory, by line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert {path for path, _, _ in lines} <= {"program.py"}, done.stdout
    return {int(line): message for _, line, message in lines}


@pytest.fixture(params=[pyright, mypy], ids=["pyright", "mypy"])
def check(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_usual_code_has_no_errors_and_the_types_that_it_states(check: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(USUAL.read_text())
    assert check(tmp_path) == {}


def test_mistakes_are_errors_before_the_program_runs(check: Any, tmp_path: Path) -> None:
    head = HEAD.strip().splitlines()
    (tmp_path / "program.py").write_text("\n".join([*head, *(f"    {line}" for line in WRONG)]) + "\n")
    found = check(tmp_path)
    assert [line for number, line in enumerate(WRONG, len(head) + 1) if number not in found] == []
    assert {number: what for number, what in found.items() if number <= len(head)} == {}


def test_each_hook_event_has_its_class() -> None:
    source = ast.parse(Path(matchers.__file__).read_text())
    [declared] = [node for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == "Hooks"]
    stated = {
        ast.unparse(item.target): ast.unparse(item.annotation)
        for item in declared.body
        if isinstance(item, ast.AnnAssign)
    }
    assert stated == {name: f"Hook[events.{rule.event_class.__name__}]" for name, rule in HOOK_EVENTS.items()}
