"""Typed nested values: structs and mappings in both spellings, what is kept, and errors that name the place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

from pilothouse import options as package
from pilothouse.errors import OptionsError
from pilothouse.options import (
    AdaptiveThinking,
    AgentDefinition,
    CustomSystemPrompt,
    DisabledThinking,
    EnabledThinking,
    HttpServer,
    Options,
    Plugin,
    RetryPolicy,
    Sandbox,
    SandboxFilesystem,
    SandboxNetwork,
    SseServer,
    StdioServer,
    SystemPromptFile,
    SystemPromptPreset,
    ToolPolicy,
    value_structs,
)
from pilothouse.options.value_structs import encode_agents, encode_mcp_servers, encode_sandbox


@pytest.mark.requirement("R36")
def test_both_spellings_and_the_structs_mean_the_same() -> None:
    wire = {
        "enabled": True,
        "autoAllowBashIfSandboxed": False,
        "network": {"allowedDomains": [], "httpProxyPort": 8080},
        "filesystem": {"denyRead": ["/x"]},
        "ignoreViolations": {"some_command": ["a"]},
    }
    snake = {
        "enabled": True,
        "auto_allow_bash_if_sandboxed": False,
        "network": {"allowed_domains": [], "http_proxy_port": 8080},
        "filesystem": SandboxFilesystem(deny_read=["/x"]),
        "ignore_violations": {"some_command": ["a"]},
        "excluded_commands": None,
    }
    struct = Sandbox(
        enabled=True,
        auto_allow_bash_if_sandboxed=False,
        network=SandboxNetwork(allowed_domains=[], http_proxy_port=8080),
        filesystem=SandboxFilesystem(deny_read=["/x"]),
        ignore_violations={"some_command": ["a"]},
    )
    assert encode_sandbox(snake) == encode_sandbox(struct) == encode_sandbox(wire) == wire


def test_unknown_keys_are_kept() -> None:
    agent = {"description": "d", "prompt": "p", "new_key": {"deep_key": 1}, "maxTurns": 2}
    assert encode_agents({"a": agent}) == {"a": agent}
    server = {"command": "x", "restartPolicy": "always"}
    assert encode_mcp_servers({"a": server}) == {"a": server}
    strange = {"type": "ws", "url": "wss://x", "args": 5}
    assert encode_mcp_servers({"a": strange}) == {"a": strange}


def test_agents_and_servers_become_what_the_cli_wants() -> None:
    agent = AgentDefinition(
        description="d",
        prompt="p",
        disallowed_tools=[],
        omit_claude_md=True,
        effort=3,
        mcp_servers=["db", {"web": SseServer(url="https://x", headers={"A": "b"})}],
    )
    assert encode_agents({"a": agent}) == {
        "a": {
            "description": "d",
            "prompt": "p",
            "disallowedTools": [],
            "omitClaudeMd": True,
            "effort": 3,
            "mcpServers": ["db", {"web": {"type": "sse", "url": "https://x", "headers": {"A": "b"}}}],
        }
    }
    http = HttpServer(url="https://u", tools=[ToolPolicy(name="t", permission_policy="always_ask")], always_load=False)
    assert encode_mcp_servers({"a": http, "b": StdioServer(command="c", timeout=5)}) == {
        "a": {
            "type": "http",
            "url": "https://u",
            "tools": [{"name": "t", "permission_policy": "always_ask"}],
            "alwaysLoad": False,
        },
        "b": {"type": "stdio", "command": "c", "timeout": 5},
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mcp_servers": {"weather": {"command": "x", "args": ["a", 5]}}},
         "option 'mcp_servers': weather.args[1]: expected text, got 5 (int)"),
        ({"mcp_servers": {"a": StdioServer(command=5)}}, "a.command: expected text, got 5 (int)"),  # type: ignore[arg-type]
        ({"mcp_servers": {"a": {"url": "x"}}}, "a: 'type' is missing: 'http' or 'sse'"),
        ({"mcp_servers": {"a": {"type": "http"}}}, "a: 'url' is missing"),
        ({"mcp_servers": {"a": {"type": "sdk", "name": "x"}}},
         "a: a server of type 'sdk' runs in this process: give the server itself"),
        ({"agents": {"r": {"description": "d", "prompt": "p", "mcp_servers": [{"x": {"type": "sdk"}}]}}},
         "r.mcp_servers[0].x: a server of type 'sdk' runs in this process"),
        ({"mcp_servers": {"a": "x"}},
         "a: expected a StdioServer, HttpServer or SseServer, or a mapping, got 'x' (str)"),
        ({"mcp_servers": {"my server": {"command": 5}}}, "['my server'].command: expected text"),
        ({"mcp_servers": {"a": {"command": "x", "env": {"A": 5}}}}, "a.env.A: expected text, got a value of type int"),
        ({"mcp_servers": '{"mcpServers": {"a": {"command": 5}}}'}, "a.command: expected text, got 5 (int)"),
        ({"agents": {"r": {"description": "d"}}}, "option 'agents': r: 'prompt' is missing"),
        ({"agents": {"r": {"description": "d", "prompt": "p", "effort": "big"}}},
         "r.effort: expected one of 'low', 'medium', 'high', 'xhigh', 'max', or a whole number, got 'big' (str)"),
        ({"agents": {"r": {"description": "d", "prompt": "p", "mcp_servers": [{"x": {"args": []}}]}}},
         "r.mcp_servers[0].x: 'command' is missing"),
        ({"agents": {"r": 5}}, "r: expected an AgentDefinition, or a mapping, got 5 (int)"),
        ({"agents": ["r"]}, "option 'agents': expected a mapping, got ['r'] (list)"),
        ({"sandbox": {"network": {"httpProxyPort": "80"}}},
         "network.httpProxyPort: expected a whole number, got '80' (str)"),
        ({"sandbox": {"enabled": 1}}, "enabled: expected True or False, got 1 (int)"),
        ({"sandbox": True}, "option 'sandbox': expected a Sandbox, or a mapping, got True (bool)"),
        ({"thinking": "on"}, "expected 'adaptive', 'disabled', or an AdaptiveThinking"),
        ({"thinking": {"type": "on"}}, "option 'thinking': type: expected one of 'adaptive', 'disabled', 'enabled'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "budget_tokens: expected a whole number of at least 1"),
        ({"thinking": {"type": "enabled", "budget": 5}},
         "budget: unknown field; known are 'budget_tokens', 'display'"),
        ({"thinking": AdaptiveThinking(display="loud")}, "display: expected one of"),  # type: ignore[arg-type]
        ({"system_prompt": 5}, "option 'system_prompt': expected text, a list of its blocks, or a SystemPromptPreset"),
        ({"system_prompt": {"type": "preset", "preset": "x"}}, "preset: expected one of 'claude_code', got 'x' (str)"),
        ({"system_prompt": {"type": "file"}}, "option 'system_prompt': 'path' is missing"),
        ({"system_prompt": []}, "prompt: expected at least one block of text"),
        ({"plugins": ["a", {"type": "npm", "path": "x"}]}, "option 'plugins': [1].type: expected 'local'"),
        ({"plugins": "a"}, "option 'plugins': expected a list, got 'a' (str)"),
        ({"tool_config": {"askUserQuestion": {"preview_format": "pdf"}}}, "preview_format: expected one of"),
        ({"tool_config": {"bash": {}}}, "bash: unknown field; known are 'ask_user_question'"),
        ({"tool_config": {"askUserQuestion": {"new": 1}}}, "ask_user_question.new: unknown field"),
    ],
)  # fmt: skip
@pytest.mark.requirement("E24", "E45")
def test_an_error_names_the_place_inside_the_value(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(**settings)
    assert expected in str(caught.value)


def test_closed_values_are_read_as_structs() -> None:
    options = Options(
        thinking="adaptive",
        plugins=["/p", {"type": "local", "path": "q", "skipMcpDiscovery": True}],
        system_prompt={"type": "preset", "preset": "claude_code", "append": "x"},
        task_budget={"total": 5},
    )
    assert options.thinking == AdaptiveThinking()
    assert options.plugins == [Plugin(path="/p"), Plugin(path="q", skip_mcp_discovery=True)]
    assert options.system_prompt == SystemPromptPreset(append="x")
    assert options.task_budget == 5
    assert Options(thinking={"type": "disabled"}).thinking == DisabledThinking()
    assert Options(thinking=EnabledThinking(budget_tokens=5)) == Options(
        thinking={"type": "enabled", "budgetTokens": 5}
    )
    assert Options(system_prompt=["a"]).system_prompt == CustomSystemPrompt(prompt=["a"])


def is_option_struct(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, value_structs.OptionStruct) and cls != value_structs.OptionStruct


def test_every_nested_value_is_frozen_documented_and_exported() -> None:
    classes = [cls for cls in vars(value_structs).values() if is_option_struct(cls)]
    assert len(classes) == 17
    for cls in classes:
        name = cls.__name__
        assert getattr(package, name) is cls
        assert cls.__struct_config__.frozen
        with pytest.raises(TypeError, match="positional"):
            cls("x")
        for field in msgspec.structs.fields(cls):
            assert f"{field.name}:" in str(cls.__doc__) or issubclass(cls, SseServer), f"{name}.{field.name}"
    with pytest.raises(AttributeError):
        Plugin(path="x").path = "y"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = package.Nonsense  # type: ignore[attr-defined]


@pytest.mark.requirement("E76")
def test_a_struct_shows_what_was_set_and_no_keys() -> None:
    assert repr(StdioServer(command="x", env={"A": "hush"})) == "StdioServer(command='x', env={'A': '[redacted]'})"
    server = HttpServer(url="https://x", headers={"A": "hush"})
    agent = AgentDefinition(description="d", prompt="p", mcp_servers=[{"web": server}])
    assert "hush" not in repr(agent)
    assert "hush" not in repr(Options(agents={"a": agent}, mcp_servers={"web": server}))
    assert pretty_repr(StdioServer(command="x", env={"A": "hush"})) == repr(StdioServer(command="x", env={"A": "hush"}))
    assert repr(SystemPromptFile(path="x")) == "SystemPromptFile(path='x')"


def test_the_waits_between_attempts_grow_up_to_a_limit_and_luck_makes_them_shorter() -> None:
    policy = RetryPolicy(first_delay=2, multiplier=3, max_delay=10, jitter=0.5)
    assert [policy.delay(attempt, 0) for attempt in (1, 2, 3, 100)] == [2, 6, 10, 10]
    assert [policy.delay(attempt, 1) for attempt in (1, 2, 3, 100)] == [1, 3, 5, 5]
