"""Rendering: the command line as a whole, the environment, and what never reaches either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import OptionsError
from pilothouse.options import AgentDefinition, Options, StdioServer, render, render_child_env
from pilothouse.options.renderer import MAX_ARGUMENT_BYTES, OWN_VARIABLES
from pilothouse.options.value_types import is_text

COMMON = ("--output-format", "stream-json", "--verbose")
BIG = "x" * 1_000_000


def argv(**settings: Any) -> list[str]:
    return list(render(Options(**settings), {}).argv)


@pytest.mark.requirement("L24", "E1")
def test_every_invocation_uses_stream_json() -> None:
    assert argv() == [*COMMON, "--print", "--input-format", "stream-json"]
    assert render(Options(), {}, prompt="hi").argv == COMMON


@pytest.mark.requirement("L23", "L25", "G1")
def test_the_argv_form_ends_with_the_prompt_verbatim() -> None:
    prompt = 'it\'s "quoted" $HOME; rm -rf\nsecond line'
    assert render(Options(), {}, prompt=prompt).trailing_args == ("--print", prompt)
    assert render(Options(), {}, prompt="--model=evil").trailing_args == ("--print", "--", "--model=evil")
    assert render(Options(), {}, prompt="hi").initialize is None
    with pytest.raises(OptionsError, match="does not fit into one argument"):
        render(Options(), {}, prompt=BIG)
    with pytest.raises(OptionsError, match="does not fit into one argument"):
        render(Options(), {}, prompt="é" * (MAX_ARGUMENT_BYTES // 2 + 1))


@pytest.mark.requirement("E8", "E10", "L13")
def test_cwd_and_timeout_are_not_flags() -> None:
    invocation = render(Options(cwd="/tmp", timeout=5), {})
    assert list(invocation.argv) == argv()
    assert invocation.cwd == "/tmp"
    assert render(Options(cwd="~/project"), {}).cwd == str(Path.home() / "project")


VALUES = st.text(max_size=40).filter(is_text)


@given(st.fixed_dictionaries({
    "model": VALUES.filter(str.strip), "resume": VALUES.filter(str.strip), "system_prompt": VALUES,
    "append_subagent_system_prompt": VALUES, "title": VALUES.filter(str.strip),
    "allowed_tools": st.lists(VALUES), "add_dirs": st.lists(VALUES.filter(bool)),
    "extra_args": st.dictionaries(st.sampled_from(["brief", "chrome"]), VALUES),
}))  # fmt: skip
def test_no_value_can_become_a_flag(settings: Any) -> None:
    added = render(Options(**settings), {}).argv[len(argv()) :]
    known = {
        "--model", "--resume", "--system-prompt", "--append-subagent-system-prompt", "--name", "--allowedTools",
        "--add-dir", "--brief", "--chrome",
    }  # fmt: skip
    assert {argument.partition("=")[0] for argument in added} <= known
    assert all("=" in argument for argument in added)


@pytest.mark.parametrize("name", ["system_prompt", "append_system_prompt", "append_subagent_system_prompt"])
def test_large_texts_travel_in_private_files(name: str) -> None:
    settings: Any = {name: BIG}
    invocation = render(Options(**settings), {})
    assert list(invocation.argv) == argv()
    (file,) = invocation.files
    assert (file.flag, file.content) == (f"{name.replace('_', '-')}-file", BIG.encode())
    assert render(Options(**settings), {}, prompt="hi").files == invocation.files


def test_what_may_hold_secrets_travels_in_private_files() -> None:
    servers = {"db": {"command": "x", "env": {"PASSWORD": "hush"}}}
    invocation = render(Options(mcp_servers=servers, settings={"apiKeyHelper": "hush"}), {})
    assert "hush" not in " ".join(invocation.argv)
    assert "hush" not in repr(invocation)
    contents = {file.flag: json.loads(file.content) for file in invocation.files}
    assert contents == {"mcp-config": {"mcpServers": servers}, "settings": {"apiKeyHelper": "hush"}}
    inline = render(Options(settings='{"apiKeyHelper": "hush"}'), {})
    assert "hush" not in " ".join(inline.argv)
    server = StdioServer(command="x", env={"PASSWORD": "hush"})
    agents = {"r": AgentDefinition(description="d", prompt="p", mcp_servers=[{"db": server}])}
    for prompt in (None, "hi"):
        invocation = render(Options(agents=agents), {}, prompt=prompt)
        assert "hush" not in " ".join(invocation.argv)
        assert "hush" in str(dict(invocation.initialize or {})) + str([file.content for file in invocation.files])


@pytest.mark.parametrize(
    ("name", "value", "key", "wire"),
    [
        ("json_schema", {"type": "object", "description": BIG}, "jsonSchema", {"type": "object", "description": BIG}),
        ("managed_settings", {"a": BIG}, "managedSettings", {"a": BIG}),
        ("plan_mode_instructions", BIG, "planModeInstructions", BIG),
        ("tool_aliases", {"Bash": "b"}, "toolAliases", {"Bash": "b"}),
        ("system_prompt", ["a", "b"], "systemPrompt", ["a", "b"]),
    ],
)
def test_the_handshake_carries_what_no_flag_can(name: str, value: Any, key: str, wire: Any) -> None:
    options = Options(**{name: value})
    invocation = render(options, {})
    assert invocation.initialize == {key: wire}
    assert sum(map(len, invocation.argv)) < 1000
    with pytest.raises(OptionsError, match=f"option '{name}': .*prompt_via='stdin'"):
        render(options, {}, prompt="hi")


@pytest.mark.parametrize("value", ["small", BIG])
def test_managed_settings_are_no_argument(value: str) -> None:
    found = argv(managed_settings={"env": {"X_TOKEN": value}})
    assert value not in " ".join(found)
    assert found[-2:] == ["--managed-settings-in-initialize", "--await-initialize"]


def test_no_argument_is_longer_than_one_may_be() -> None:
    tools = [f"Bash(tool-{number}:*)" for number in range(20_000)]
    spread = [arg for arg in argv(allowed_tools=tools) if arg.startswith("--allowedTools=")]
    assert 1 < len(spread) < 10
    assert max(map(len, spread)) <= MAX_ARGUMENT_BYTES
    assert ",".join(arg.partition("=")[2] for arg in spread) == ",".join(tools)
    settings: list[dict[str, Any]] = [
        {"model": BIG}, {"allowed_tools": [BIG]}, {"extra_args": {"x": BIG}}, {"add_dirs": [BIG]},
        {"title": "é" * 70_000},
    ]  # fmt: skip
    for one in settings:
        (name,) = one
        with pytest.raises(OptionsError, match="do not fit into one argument") as caught:
            argv(**one)
        assert caught.value.option == name
        assert len(str(caught.value)) < 200


@pytest.mark.requirement("L16", "L26", "E2", "E65", "E66", "E76")
def test_environment_of_the_child() -> None:
    environ = {"PATH": "/bin", "CLAUDECODE": "1", "CLAUDE_CODE_USE_BEDROCK": "1", "GONE": "x"}
    invocation = render(Options(api_key="sk-secret", env={"A": "b", "GONE": None}), environ)
    assert invocation.env == {
        "PATH": "/bin",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        **OWN_VARIABLES,
        "ANTHROPIC_API_KEY": "sk-secret",
        "A": "b",
    }
    assert "sk-secret" not in " ".join(invocation.argv)
    assert "sk-secret" not in repr(invocation)
    assert render(Options(inherit_env=False), environ).env == OWN_VARIABLES
    assert OWN_VARIABLES["CLAUDE_CODE_ENTRYPOINT"] == "sdk-pilothouse"


def test_an_environment_by_names_and_prefixes() -> None:
    environ = {"PATH": "/bin", "AWS_REGION": "eu", "AWSX": "1", "SECRET": "x", "CLAUDECODE": "1"}
    options = Options(inherit_env=["PATH", "AWS_*", "CLAUDECODE", "NONE"], env={"A": "b"})
    assert render_child_env(options, environ) == {"PATH": "/bin", "AWS_REGION": "eu", "A": "b", **OWN_VARIABLES}
    assert render_child_env(Options(inherit_env=[]), environ) == OWN_VARIABLES
    assert render_child_env(Options(inherit_env=["*"]), environ).keys() > {"SECRET", "AWSX"}


@pytest.mark.requirement("L16", "L26")
def test_an_option_beats_what_is_inherited_and_env_beats_both() -> None:
    environ = {
        "ANTHROPIC_API_KEY": "old",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "CLAUDE_CODE_USE_VERTEX": "1",
    }
    same = OWN_VARIABLES
    assert render_child_env(Options(), environ) == {**environ, **same}
    options = Options(api_key="new", provider="vertex", nonessential_traffic=True)
    assert render_child_env(options, environ) == {"ANTHROPIC_API_KEY": "new", "CLAUDE_CODE_USE_VERTEX": "1", **same}
    options = Options(provider="anthropic", env={"ANTHROPIC_API_KEY": None, "CLAUDE_CODE_ENTRYPOINT": "mine"})
    assert render_child_env(options, environ) == {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **OWN_VARIABLES,
        "CLAUDE_CODE_ENTRYPOINT": "mine",
    }


def test_options_are_rendered_in_the_order_of_the_table() -> None:
    assert argv(max_turns=1, model="opus") == argv(model="opus", max_turns=1)
