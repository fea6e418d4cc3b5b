"""The names, fields, defaults and parameters of `claude_agent_sdk`, compared with the real package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilothouse_compat import claude_agent_sdk as sdk
from pilothouse_compat.alias import PATH

DESCRIBE = """
import dataclasses, inspect, json, re, sys, typing
import claude_agent_sdk as sdk
from claude_agent_sdk import types

def show(value):
    text = re.sub(r"[\\w.]*claude_agent_sdk[\\w.]*?\\.(?=[A-Z])", "", str(value)).replace("'", '"')
    return re.sub(" at 0x[0-9a-f]+", "", text)

def show_value(value):
    return sorted(value) if isinstance(value, frozenset) else show(value)

def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    return [(p.name, str(p.kind), show(p.default)) for p in found if p.name not in ("exc_type", "exc_val", "exc_tb")]

def describe(name, value):
    if typing.is_typeddict(value):
        hints = {key: show(hint) for key, hint in typing.get_type_hints(value).items()}
        return ["dict", hints, sorted(value.__required_keys__), sorted(value.__optional_keys__)]
    if not isinstance(value, type):
        return ["function", parameters(value)] if inspect.isroutine(value) else ["value", show_value(value)]
    bases = [base.__name__ for base in value.__mro__ if base.__module__.rpartition(".")[2] in ("types", "_errors")]
    if dataclasses.is_dataclass(value) and name != "SdkMcpTool":
        hints = typing.get_type_hints(value)
        fields = [(f.name, show(hints[f.name]), show(f.default) if name != "ClaudeAgentOptions" else "",
                   f.default_factory is not dataclasses.MISSING) for f in dataclasses.fields(value)]
        return ["data", fields]
    if issubclass(value, BaseException):
        return ["error", value.__base__.__name__, parameters(value.__init__)]
    methods = {n: [parameters(m), inspect.iscoroutinefunction(m)] for n, m in vars(value).items()
               if inspect.isfunction(m) and not n.startswith("_")}
    return ["class", methods]

skipped = {"ToolAnnotations", "__version__"}
names = {name: describe(name, getattr(sdk, name)) for name in sdk.__all__ if name not in skipped}
others = [name for name in vars(types) if name[0].isupper() and getattr(getattr(types, name), "__module__", "") not in
          ("typing", "pathlib", "collections.abc", "dataclasses")]
options = sdk.ClaudeAgentOptions()
defaults = {f.name: show(getattr(options, f.name)) for f in dataclasses.fields(options) if f.name != "debug_stderr"}
print(json.dumps({"all": sorted(sdk.__all__), "names": names, "types": sorted(others), "defaults": defaults,
                  "version": sdk.__version__}))
"""


def run(code: str, *, ours: bool, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if ours:
        env["PYTHONPATH"] = str(PATH)
    return subprocess.run(
        [sys.executable, "-c", code], env={**env, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


def describe(*, ours: bool) -> dict[str, Any]:
    done = run(DESCRIBE, ours=ours)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_everything_is_there_with_the_same_shape() -> None:
    theirs, ours = describe(ours=False), describe(ours=True)
    assert len(ours["all"]) == 159
    for part in ("all", "version", "defaults"):
        assert ours[part] == theirs[part]
    assert set(theirs["types"]) - set(ours["types"]) <= {"McpServer", "TYPE_CHECKING"}
    for name, found in theirs["names"].items():
        assert ours["names"][name] == found, (name, ours["names"][name], found)


def test_importing_loads_neither_mcp_nor_a_backend_of_anyio() -> None:
    late = {"anyio._backends._asyncio", "mcp", "pydantic"}
    code = f"import claude_agent_sdk, sys; print(sorted({late} & set(sys.modules)))"
    assert run(code, ours=True).stdout.strip() == "[]"


def test_submodules_have_the_name_of_the_package() -> None:
    code = """
import importlib, pickle
import claude_agent_sdk, claude_agent_sdk.query, claude_agent_sdk._internal.sessions
from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport
from claude_agent_sdk import TextBlock
assert claude_agent_sdk.__name__ == claude_agent_sdk.__spec__.name == "claude_agent_sdk"
assert claude_agent_sdk._internal.sessions.__name__ == "claude_agent_sdk._internal.sessions"
assert callable(claude_agent_sdk.query)
assert importlib.import_module("claude_agent_sdk.query").query is claude_agent_sdk.query
assert issubclass(SubprocessCLITransport, claude_agent_sdk.Transport)
assert b"pilothouse" not in pickle.dumps(TextBlock("Hi"))
assert pickle.loads(pickle.dumps(TextBlock("Hi"))) == TextBlock("Hi")
try:
    import claude_agent_sdk.nothing
except ModuleNotFoundError as error:
    print(error)
"""
    done = run(code, ours=True)
    assert done.stdout.strip() == "No module named 'claude_agent_sdk.nothing'", done.stderr


MODULES = """
import inspect, json
import claude_agent_sdk
from claude_agent_sdk import _errors, types
names = {name: getattr(claude_agent_sdk, name) for name in claude_agent_sdk.__all__}
found = {**names, **{name: value for name, value in vars(types).items() if not name.startswith("_")}}
print(json.dumps({
    name: value.__module__ for name, value in found.items()
    if isinstance(value, type) and value.__module__.startswith("claude_agent_sdk")
}))
"""


def test_classes_say_that_they_are_of_the_same_modules() -> None:
    theirs, ours = (json.loads(run(MODULES, ours=each).stdout) for each in (False, True))
    # The first is of a module that is not here; the other is made when a program asks for it.
    private = {"ForkSessionResult", "ToolAnnotations"}
    assert {name: module for name, module in theirs.items() if ours.get(name) != module}.keys() <= private


def test_a_tool_is_of_the_package() -> None:
    names = ("tool", "SdkMcpTool", "create_sdk_mcp_server")
    code = f"import claude_agent_sdk as sdk; print(*(getattr(sdk, name).__module__ for name in {names}))"
    assert run(code, ours=True).stdout.split() == ["claude_agent_sdk"] * 3


def test_the_real_package_in_memory_is_an_error_that_says_so() -> None:
    done = run("import claude_agent_sdk; from pilothouse_compat.alias import install; install()", ours=False)
    assert "ImportError: claude_agent_sdk is imported already, from " in done.stderr
    assert "pilothouse compat run" in done.stderr


PRIVATE = """
import os
from claude_agent_sdk._cli_version import __cli_version__
from claude_agent_sdk._internal import client, message_parser, query, session_store, sessions
from claude_agent_sdk._internal.sessions import project_key_for_directory
from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport

assert client.parse_message is message_parser.parse_message and client.Query is query.Query
assert client.SubprocessCLITransport is SubprocessCLITransport
place = sessions._canonicalize_path(".")
folder = sessions._get_project_dir(place)
assert sessions._find_project_dir(place) is None
folder.mkdir(parents=True)
assert sessions._find_project_dir(place) == folder == sessions._get_projects_dir() / sessions._sanitize_path(place)
home = str(sessions._get_claude_config_home_dir())
print(__cli_version__, str(folder).removeprefix(home), project_key_for_directory(place) == folder.name)
print(sessions._get_projects_dir({"CLAUDE_CONFIG_DIR": "/x"}))
"""


def test_private_names_that_programs_import(tmp_path: Path) -> None:
    theirs, ours = (
        run(PRIVATE, ours=ours, CLAUDE_CONFIG_DIR=str(tmp_path / name)) for ours, name in ((False, "a"), (True, "b"))
    )
    assert ours.stdout, ours.stderr
    assert ours.stdout == theirs.stdout


def test_annotations_of_a_tool_keep_what_only_the_program_knows() -> None:
    made = sdk.ToolAnnotations(read_only_hint=True, maxResultSizeChars=5, own=1)  # pyright: ignore[reportCallIssue]
    assert made.model_dump(by_alias=True, exclude_none=True) == {
        "readOnlyHint": True,
        "maxResultSizeChars": 5,
        "own": 1,
    }


def test_a_name_of_a_newer_version() -> None:
    with pytest.raises(AttributeError, match=r"names of claude_agent_sdk 0\.2\.189; a newer version may have added"):
        _ = sdk.BrandNew  # type: ignore[attr-defined]


def test_the_package_is_loaded_once() -> None:
    code = """
from pilothouse_compat.alias import install
install()
import claude_agent_sdk as first
install()
import claude_agent_sdk as second
print(first is second, first.__name__)
"""
    assert run(code, ours=False).stdout.split() == ["True", "claude_agent_sdk"]


PROGRAM = """
import subprocess, sys, importlib.metadata
import claude_agent_sdk
print(claude_agent_sdk.__name__, sys.argv[1:], importlib.metadata.version("claude-agent-sdk"), flush=True)
if len(sys.argv) > 1:
    subprocess.run([sys.executable, __file__], check=True)
sys.exit(len(sys.argv))
"""


def test_the_command_runs_a_program_and_its_children(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("sys.exit(len(sys.argv))", "sys.exit(len(sys.argv) - 1)"))
    command = [sys.executable, "-m", "pilothouse", "compat"]
    done = subprocess.run(
        [*command, "run", str(file), "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    own = "claude_agent_sdk"
    assert done.stdout.splitlines() == [f"{own} ['--help'] 0.2.189", f"{own} [] 0.2.189"], done.stderr
    assert done.returncode == 1
    done = subprocess.run([*command, "path"], capture_output=True, text=True, timeout=120, check=True)
    assert Path(done.stdout.strip(), "claude_agent_sdk", "__init__.py").is_file()
    done = subprocess.run([*command, "run"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "name a program" in done.stderr
