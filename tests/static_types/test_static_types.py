"""What editors and type checkers know of a user's program: pyright and mypy, both strict, over files outside of the
project that use the installed package.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args

import pytest
from type_checkers import mypy, pyright

from pilothouse import events
from pilothouse.hooks import HOOK_EVENTS, matchers
from pilothouse_models import ModelEvent

USUAL = Path(__file__).with_name("usual_code.py")

HEAD = """
import pilothouse as ph
from pilothouse import sync
from pilothouse.options import CliSettings
from pilothouse_fleet import Fleet

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
    "ph.Deny(reason='x')",
    "ph.HookOutput(permission_decison='deny')",
    "ph.StdioServer(comand='x')",
    'ph.query("x", max_turns="3")',
    'ph.query("x", allowed_tools="Bash")',
    'sent: CliSettings = {"permissions": {"deny": "Bash"}}',
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
    "async with Fleet(max_concurrency=4): pass",
    "ph.Options(allowed_tools=[1])",
    'ph.query("x", {"model": "opus"})',
    'sync.query("x", timeout="soon")',
)  # fmt: skip


@pytest.fixture(params=[pyright, mypy], ids=["pyright", "mypy"])
def check(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.requirement("E44", "E47")
def test_usual_code_has_no_errors_and_the_types_that_it_states(check: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(USUAL.read_text())
    assert check(tmp_path) == {}


@pytest.mark.requirement("E44", "E47")
def test_mistakes_are_errors_before_the_program_runs(check: Any, tmp_path: Path) -> None:
    head = HEAD.strip().splitlines()
    (tmp_path / "program.py").write_text("\n".join([*head, *(f"    {line}" for line in WRONG)]) + "\n")
    found = check(tmp_path)
    assert [line for number, line in enumerate(WRONG, len(head) + 1) if number not in found] == []
    assert {number: what for number, what in found.items() if number <= len(head)} == {}


@pytest.mark.parametrize(("checker", "setting"), [(pyright, "reportUnusedCallResult"), (mypy, "unused-awaitable")])
def test_a_query_that_nobody_awaits_is_an_error_on_request(checker: Any, setting: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import pilothouse as ph\n\nph.query('x')\n")
    assert checker(tmp_path) == {}
    assert list(checker(tmp_path, setting)) == [3]


def test_each_hook_event_has_its_class() -> None:
    source = ast.parse(Path(matchers.__file__).read_text())
    [declared] = [node for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == "Hooks"]
    stated = {
        ast.unparse(item.target): ast.unparse(item.annotation)
        for item in declared.body
        if isinstance(item, ast.AnnAssign)
    }
    assert stated == {name: f"Hook[events.{rule.event_class.__name__}]" for name, rule in HOOK_EVENTS.items()}


EVENT_UNIONS = {
    "events.QueryEvent": events.QueryEvent,
    "events.ParserEvent": events.ParserEvent,
    "events.ReplyEvent": events.ReplyEvent,
    "pilothouse_models.ModelEvent": ModelEvent,
}
NARROWING_HEAD = """
from typing import assert_type
import pilothouse_models
from pilothouse import events
"""


def test_the_type_of_an_event_tells_type_checkers_its_class(check: Any, tmp_path: Path) -> None:
    lines = list[str](NARROWING_HEAD.strip().splitlines())
    for number, (name, union) in enumerate(EVENT_UNIONS.items()):
        lines.append(f"def read_{number}(event: {name}) -> None:")
        for each in get_args(union):
            home = "pilothouse_models" if each.__module__.startswith("pilothouse_models") else "events"
            lines += [f"    if event.type == {each.type!r}:", f"        assert_type(event, {home}.{each.__name__})"]
    (tmp_path / "program.py").write_text("\n".join(lines) + "\n")
    assert check(tmp_path) == {}


CALLS = """
from typing import assert_type
import pilothouse as ph
from pilothouse.messages import ToolUseBlock
from pilothouse.tools.builtin import BashInput, BashOutput, FileWriteInput, builtin_call
def decide(request: ph.PermissionRequest) -> bool:
    match builtin_call(request):
        case ("Bash", bash, _):
            assert_type(bash, BashInput)
            return bash["command"].startswith("git ")
        case ("Write" | "Edit", change, _):
            return change["file_path"].startswith("/srv/")
        case _:
            return False
def look(event: ph.PreToolUseEvent, block: ToolUseBlock) -> None:
    for call in (builtin_call(event), builtin_call(block)):
        if call is not None and call.name == "Bash":
            assert_type(call.input, BashInput)
            call.input["comand"]
def after(event: ph.PostToolUseEvent) -> None:
    call = builtin_call(event)
    if call is not None:
        match call.name:
            case "Bash":
                assert_type(call.output, BashOutput | None)
            case "Write":
                assert_type(call.input, FileWriteInput)
                call.input["old_string"]
            case _:
                pass
"""


def test_the_name_of_a_tool_tells_type_checkers_its_input(check: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CALLS)
    wrong = {number for number, line in enumerate(CALLS.splitlines(), 1) if "comand" in line or "old_string" in line}
    assert check(tmp_path).keys() == wrong
