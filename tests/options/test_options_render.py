"""Rendering: the command line, the environment, and what never reaches either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilothouse.errors import OptionsError
from pilothouse.options import TABLE, Options, render

COMMON = ("--output-format", "stream-json", "--verbose")
BIG = "x" * 1_000_000


def argv(**settings: Any) -> list[str]:
    return list(render(Options(**settings), {}).argv)


@pytest.mark.requirement("L24", "E1")
def test_every_invocation_speaks_stream_json() -> None:
    assert argv() == [*COMMON, "--print", "--input-format", "stream-json"]
    assert render(Options(), {}, prompt="hi").argv == COMMON


@pytest.mark.requirement("L23", "L25", "G1")
def test_the_argv_form_ends_with_the_prompt_verbatim() -> None:
    prompt = 'it\'s "quoted" $HOME; rm -rf\nsecond line'
    assert render(Options(), {}, prompt=prompt).tail == ("--print", prompt)
    assert render(Options(), {}, prompt="--model=evil").tail == ("--print", "--", "--model=evil")
    assert render(Options(), {}, prompt="hi").initialize is None
    with pytest.raises(OptionsError, match="does not fit into one argument"):
        render(Options(), {}, prompt=BIG)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"model": "opus"}, ["--model=opus"], id="model"),
        pytest.param({"system_prompt": "X"}, ["--system-prompt=X"], id="system_prompt"),
        pytest.param({"append_system_prompt": "-X"}, ["--append-system-prompt=-X"], id="dash"),
        pytest.param({"allowed_tools": ["View", "Bash(git:*)"]}, ["--allowedTools=View,Bash(git:*)"], id="allowed"),
        pytest.param({"tools": []}, ["--tools="], id="no-tools"),
        pytest.param({"tools": "default"}, ["--tools=default"], id="all-tools"),
        pytest.param({"max_turns": 20}, ["--max-turns=20"], id="max_turns"),
        pytest.param({"max_budget_usd": 2.0}, ["--max-budget-usd=2"], id="budget"),
        pytest.param({"max_budget_usd": 0.001}, ["--max-budget-usd=0.001"], id="small-budget"),
        pytest.param({"permission_mode": "acceptEdits"}, ["--permission-mode=acceptEdits"], id="mode"),
        pytest.param({"resume": "-id"}, ["--resume=-id"], id="resume"),
        pytest.param({"resume": "id", "fork_session": True}, ["--resume=id", "--fork-session"], id="fork"),
        pytest.param({"strict_mcp_config": False}, [], id="false-switch"),
        pytest.param({"setting_sources": []}, ["--setting-sources="], id="no-sources"),
        pytest.param({"add_dirs": ["/a", "/b"]}, ["--add-dir=/a", "--add-dir=/b"], id="dirs"),
        pytest.param({"persist_session": False}, ["--no-session-persistence"], id="persist"),
        pytest.param({"extra_args": {"debug": None, "name": "x y"}}, ["--debug", "--name=x y"], id="extra"),
        pytest.param({"json_schema": {"type": "object"}}, ['--json-schema={"type":"object"}'], id="schema"),
        pytest.param({"settings": "/etc/s.json"}, ["--settings=/etc/s.json"], id="settings-path"),
    ],
)
@pytest.mark.requirement("E4", "E5", "E6", "E7", "E9", "E11", "E12", "E77", "L7", "L11", "L15")
def test_flags(settings: dict[str, Any], expected: list[str]) -> None:
    assert argv(**settings)[len(argv()) :] == expected


@pytest.mark.requirement("E8", "E10")
def test_cwd_and_timeout_are_not_flags() -> None:
    invocation = render(Options(cwd="/tmp", timeout=5), {})
    assert list(invocation.argv) == argv()
    assert invocation.cwd == "/tmp"
    assert render(Options(cwd="~/project"), {}).cwd == str(Path.home() / "project")


@pytest.mark.parametrize("name", ["system_prompt", "append_system_prompt"])
def test_large_texts_travel_in_private_files(name: str) -> None:
    settings: Any = {name: BIG}
    invocation = render(Options(**settings), {})
    assert list(invocation.argv) == argv()
    (file,) = invocation.files
    assert (file.flag, file.content) == (f"{name.replace('_', '-')}-file", BIG.encode())


def test_what_may_hold_secrets_travels_in_private_files() -> None:
    servers = {"db": {"command": "x", "env": {"PASSWORD": "hush"}}}
    invocation = render(Options(mcp_servers=servers, settings={"apiKeyHelper": "hush"}), {})
    assert "hush" not in " ".join(invocation.argv)
    assert "hush" not in repr(invocation)
    contents = {file.flag: json.loads(file.content) for file in invocation.files}
    assert contents == {"mcp-config": {"mcpServers": servers}, "settings": {"apiKeyHelper": "hush"}}
    inline = render(Options(settings='{"apiKeyHelper": "hush"}'), {})
    assert "hush" not in " ".join(inline.argv)


def test_a_large_schema_travels_in_the_handshake() -> None:
    schema = {"type": "object", "description": BIG}
    invocation = render(Options(json_schema=schema), {})
    assert invocation.initialize == {"jsonSchema": schema}
    with pytest.raises(OptionsError, match="prompt_via='stdin'"):
        render(Options(json_schema=schema), {}, prompt="hi")
    with pytest.raises(OptionsError, match="'json_schema' cannot be written as JSON"):
        render(Options(json_schema={"a": object()}), {})


@pytest.mark.requirement("L16", "L26", "E2", "E65", "E66", "E76")
def test_environment_of_the_child() -> None:
    environ = {"PATH": "/bin", "CLAUDECODE": "1", "CLAUDE_CODE_USE_BEDROCK": "1", "GONE": "x"}
    invocation = render(Options(api_key="sk-secret", env={"A": "b", "GONE": None}), environ)
    assert invocation.env == {
        "PATH": "/bin",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "CLAUDE_CODE_ENTRYPOINT": "sdk-pilothouse",
        "ANTHROPIC_API_KEY": "sk-secret",
        "A": "b",
    }
    assert "sk-secret" not in " ".join(invocation.argv)
    assert "sk-secret" not in repr(invocation)
    assert render(Options(inherit_env=False), environ).env == {"CLAUDE_CODE_ENTRYPOINT": "sdk-pilothouse"}


def test_no_option_is_forgotten_by_the_renderer() -> None:
    for option in TABLE.values():
        assert type(option.target).__name__ in {
            "Config", "EnvVar", "Flag", "Json", "Repeated", "Sdk", "Switch", "Text",
        }  # fmt: skip
