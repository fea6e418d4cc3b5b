"""`Options`: validation, merging, immutability, and that its lists of names agree."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pilothouse.errors import OptionsError, UsageError
from pilothouse.options import GROUPS, TABLE, Options, OptionsBuilder
from pilothouse.permissions import Asks


@pytest.mark.requirement("E46")
def test_every_row_is_documented_and_its_default_is_valid() -> None:
    assert [row.name for rows in GROUPS.values() for row in rows] == list(TABLE)
    for option in TABLE.values():
        assert option.doc.endswith("."), option.name
        assert option.group in GROUPS
        assert option.default is None or option.value_type.clean(option.default) == option.default, option.name
    assert TABLE["verbatim_prompts"].min_cli_version == "2.1.248"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"modle": "opus"}, "unknown option 'modle'; did you mean 'model'?"),
        ({"zzzzzz": 1}, "unknown option 'zzzzzz'"),
        ({"max_turns": "5"}, "option 'max_turns': expected a whole number of at least 1, got '5' (str)"),
        ({"max_turns": 0}, "got 0 (int)"),
        ({"max_turns": True}, "got True (bool)"),
        ({"output_repairs": -1}, "expected a whole number of at least 0, got -1 (int)"),
        ({"max_budget_usd": float("nan")}, "got nan (float)"),
        ({"permission_mode": "yolo"}, "expected one of 'default', 'acceptEdits'"),
        ({"effort": ["low"]}, "got ['low'] (list)"),
        ({"allowed_tools": "Bash"}, "expected a list of text, got 'Bash' (str)"),
        ({"tools": "Bash"}, "expected a list of tool names, or 'default', got 'Bash' (str)"),
        ({"tools": {"type": "preset", "preset": "other"}}, "expected a list of tool names, or 'default'"),
        ({"skills": ["a)"]}, "option 'skills': [0]: expected the name of a skill, got 'a)' (str)"),
        ({"skills": "a"}, "expected a list of skill names, or 'all'"),
        ({"fallback_model": []}, "expected a model, or a list of models"),
        ({"task_budget": {"total": 0}}, "expected a whole number of tokens of at least 1"),
        ({"cwd": ""}, "expected a path"),
        ({"model": "a\0b"}, "got 'a\\x00b' (str)"),
        ({"model": "\ud83d"}, "got '\\ud83d' (str)"),
        ({"session_id": "abc"}, "expected a UUID"),
        ({"base_url": "example.org"}, "expected an address such as 'https://…', got 'example.org' (str)"),
        ({"user": -1}, "expected the name of a user, or a number"),
        ({"env": {"A=B": "1"}}, "cannot be the name of a variable"),
        ({"extra_args": {"--model": "x"}}, "flag names without dashes"),
        ({"extra_args": {"output-format": "json"}}, "output-format: pilothouse sets this flag itself"),
        ({"timeout": -1}, "seconds greater than 0"),
        ({"settings": "{bad"}, "option 'settings': the JSON text cannot be read"),
        (
            {"json_schema": {"a": {"b": [1, object]}}},
            "a.b[1]: expected a value that can be written as JSON, got <class",
        ),
        ({"json_schema": {"a": float("inf")}}, "option 'json_schema': a: expected a number that JSON can represent"),
        ({"json_schema": {1: 2}}, "expected a mapping with text keys, got 1 (int)"),
        ({"fork_session": True}, "option 'fork_session' needs 'resume' or 'continue_conversation'"),
        ({"resume_session_at": "x"}, "option 'resume_session_at' needs 'resume'"),
        ({"resume_drops_turn": "x", "resume": "y"}, "option 'resume_drops_turn' needs 'resume_session_at'"),
        ({"resume": "x", "continue_conversation": True}, "cannot be combined"),
        ({"resume": "x", "session_id": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}, "set fork_session=True"),
        ({"restricted": True, "permission_mode": "bypassPermissions"}, "cannot be combined"),
        ({"sandbox": {"enabled": True}, "settings": "s.json"}, "pass the settings as a mapping"),
        ({"append_system_prompt": "x", "system_prompt": {"type": "preset", "append": "y"}}, "use one of the two"),
        ({"permission_prompts": "none", "permission_prompt_tool_name": "x"}, "cannot be combined"),
        ({"permission_prompts": "none", "on_plan": print}, "'none' denies without a request"),
        ({"permission_prompt_tool_name": "x", "confirm": print}, "only one of them can decide"),
        ({"asks": SimpleNamespace(park=print), "confirm": print}, "both ask a person"),
        ({"asks": Asks(), "confirm": print}, "both ask a person"),  # without an entry, it is false
        ({"asks": Asks(), "permission_prompt_tool_name": "mcp__a__b"}, "only one of them can decide"),
        ({"asks": Asks(), "permission_prompts": "none"}, "'none' denies without a request"),
    ],
)
@pytest.mark.requirement("E9", "E12", "E24", "E45")
def test_wrong_options_are_refused_with_one_helpful_error(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(**settings)
    assert expected in str(caught.value)
    assert caught.value.option in {*settings}
    assert isinstance(caught.value, UsageError | ValueError)
    assert len(str(caught.value)) < 350


def test_a_value_that_is_hard_to_look_at_is_a_wrong_value_and_no_crash() -> None:
    class Odd(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError

        def __iter__(self) -> Any:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

        def __repr__(self) -> str:
            return "Odd()"

    circle: dict[str, Any] = {}
    circle["again"] = circle
    for name in ("json_schema", "settings", "agents", "mcp_servers", "sandbox", "env", "extra_args", "thinking"):
        with pytest.raises(OptionsError, match=f"option '{name}'"):
            Options(**{name: Odd()})  # type: ignore[misc]
    with pytest.raises(OptionsError, match="nested too deeply"):
        Options(json_schema=circle)


@pytest.mark.requirement("E76")
def test_secrets_are_never_shown() -> None:
    servers = {"db": {"command": "x", "env": {"PASSWORD": "hush"}, "headers": "hush"}}
    options = Options(
        api_key="sk-very-secret", auth_token="hush", oauth_token="hush", env={"MY_TOKEN": "hush-hush"},
        mcp_servers={"db": {"command": "x", "env": {"PASSWORD": "hush"}}}, settings='{"apiKeyHelper": "hush"}',
    )  # fmt: skip
    assert "redacted" in repr(options)
    assert "command" in repr(options)
    assert "sk-very" not in repr(options)
    assert "hush" not in repr(options)
    wrong: list[dict[str, Any]] = [
        {"env": {"MY_TOKEN": 5, "OTHER": "hush-hush"}},
        {"env": {"MY_TOKEN": "hush\0"}},
        {"env": ["hush"]},
        {"env": {"A": ["hush"]}},
        {"env": "hush"},
        {"api_key": ["hush"]},
        {"api_key": "hush\0"},
        {"settings": {"env": {"MY_TOKEN": "hush", "OTHER": object()}}},
        {"mcp_servers": {"db": {"type": "http", "url": "x", "headers": {"A": "hush", "B": 5}}}},
        {"mcp_servers": {"db": {"type": "http", "url": "x", "headers": ["hush"]}}},
        {"mcp_servers": {"db": {"env": {"A": "hush"}}}},
        {"mcp_servers": {"db": {"command": "x", "env": {"A": ["hush"]}}}},
        {"mcp_servers": {"db": {"command": "x", "env": "hush"}}},
        {"mcp_servers": [servers]},
        {"mcp_servers": {"db": [servers]}},
        {"agents": {"a": {"description": "d", "prompt": "p", "mcpServers": [servers, 5]}}},
        {"mcp_servers": {"db": {"command": "x", "args": "--token hush"}}},
        {"mcp_servers": {"db": {"command": "x", "args": ["--token", {"a": "hush"}]}}},
        {"mcp_servers": {"db": {"type": "http", "url": "me:hush@example.com/x"}}},
        {"base_url": "me:hush@example.com"},
        {"env": {"MY_TOKEN=hush": "x"}},
        {"extra_args": {"--token=hush": None}},
        {"extra_args": {"api-key": ["hush"]}},
    ]
    for settings in wrong:
        with pytest.raises(OptionsError) as caught:
            Options(**settings)
        assert "hush" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


@pytest.mark.requirement("L17", "L20", "E39", "R35")
def test_merging_is_field_by_field_and_changes_nothing() -> None:
    agent = Options(model="opus", allowed_tools=["Read"], max_turns=9)
    call = Options(max_turns=2, partial_messages=False)
    merged = agent.merge(call)
    assert (merged.model, merged.allowed_tools, merged.max_turns, merged.partial_messages) == (
        "opus",
        ["Read"],
        2,
        False,
    )
    assert agent == Options(model="opus", allowed_tools=["Read"], max_turns=9)
    assert call == Options(max_turns=2, partial_messages=False)
    assert merged.with_(max_turns=None).max_turns is None


@pytest.mark.requirement("R35", "E12")
def test_a_layer_may_need_what_is_beneath_it() -> None:
    resumed = Options(resume="x")
    assert resumed.with_(fork_session=True).fork_session
    layer = Options.layer(fork_session=True)
    assert resumed.merge(layer) == resumed.merge(layer.with_origin("call")) == Options(resume="x", fork_session=True)
    assert pickle.loads(pickle.dumps(layer)) == layer
    with pytest.raises(OptionsError, match="needs 'resume'"):
        Options().with_(fork_session=True)
    with pytest.raises(OptionsError, match="needs 'resume'"):
        resumed.with_(fork_session=True).with_(resume=None)
    with pytest.raises(OptionsError, match="cannot be combined"):
        Options.layer(resume="x", continue_conversation=True)


def test_falsy_values_survive_and_defaults_are_read() -> None:
    options = Options(
        tools=[],
        setting_sources=[],
        max_budget_usd=0.001,
        strict_mcp_config=False,
        max_thinking_tokens=0,
        mcp_servers={},
    )
    assert options.as_dict() == {
        "tools": [], "setting_sources": [], "max_budget_usd": 0.001, "strict_mcp_config": False,
        "max_thinking_tokens": 0, "mcp_servers": {},
    }  # fmt: skip
    assert Options().cli == "auto"
    assert Options(cli=None).cli == "auto"
    assert Options().timeout is None
    assert Options().nonessential_traffic is True
    with pytest.raises(AttributeError):
        _ = Options().nonsense  # pyright: ignore[reportAttributeAccessIssue]


DEEP: dict[str, Any] = {
    "allowed_tools": ["Read"],
    "env": {"A": "b"},
    "json_schema": {"required": ["a"]},
    "settings": {"permissions": {"deny": ["Bash"]}},
    "mcp_servers": {"db": {"command": "x", "args": ["-v"]}},
    "agents": {"r": {"description": "d", "prompt": "p", "tools": ["Read"]}},
    "sandbox": {"network": {"allowed_domains": ["x"]}},
    "add_dirs": ["/a"],
    "plugins": ["/p"],
    "system_prompt": ["a", "b"],
    "thinking": {"type": "enabled", "budget_tokens": 5},
}


@pytest.mark.requirement("R34", "R35")
def test_values_are_copied_in_and_out_of_the_options() -> None:
    given = copy.deepcopy(DEEP)
    options = Options(**given)
    same = Options(**copy.deepcopy(DEEP))
    ruin(given)
    assert options == same
    ruin(options.as_dict())
    for name in DEEP:
        ruin(getattr(options, name))
    assert options == same
    assert Options(json_schema=MappingProxyType({"a": MappingProxyType({})})).json_schema == {"a": {}}


def ruin(value: Any) -> None:
    """Change every container in `value`."""
    if isinstance(value, dict):
        for item in list(value.values()):
            ruin(item)
        value["ruined"] = True
    elif isinstance(value, list):
        for item in value:
            ruin(item)
        value.append("ruined")
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            ruin(getattr(value, name))


@pytest.mark.requirement("R34")
def test_options_are_immutable_and_pickle() -> None:
    settings: dict[str, Any] = {**DEEP, "add_dirs": [Path("/tmp")]}
    options = Options(model="opus", **settings)
    with pytest.raises(AttributeError, match="immutable"):
        options.model = "x"
    assert pickle.loads(pickle.dumps(options)) == options
    assert copy.deepcopy(options) == options
    assert options.add_dirs == ["/tmp"]


@pytest.mark.requirement("L6", "L7", "L8", "L9", "L10", "L11", "L12", "L13", "L14", "L15", "L16")
def test_the_builder_says_the_same_as_keywords() -> None:
    made = (
        Options.make()
        .model("opus")
        .allowed_tools(["Read", "Grep"])
        .permission_mode("plan")
        .max_turns(5)
        .max_budget_usd(0.001)
        .system_prompt("Be brief.")
        .cwd("/srv")
        .json_schema({"type": "object"})
        .api_key("sk-1")
    )
    options = Options(
        model="opus", allowed_tools=["Read", "Grep"], permission_mode="plan", max_turns=5, max_budget_usd=0.001,
        system_prompt="Be brief.", cwd="/srv", json_schema={"type": "object"}, api_key="sk-1",
    )  # fmt: skip
    assert made.build() == options
    assert made.to_cli_args() == options.to_cli_args()
    assert made.to_env() == options.to_env() == {"ANTHROPIC_API_KEY": "sk-1"}
    assert "--allowedTools=Read,Grep" in made.to_cli_args()
    assert "sk-1" not in repr(made)


@pytest.mark.requirement("L6", "E45")
def test_builders_share_nothing_and_check_at_the_call() -> None:
    first, second = Options.make(), Options.make()
    built = first.model("opus").build()
    first.model("sonnet")
    assert second.build() == Options()
    assert built.model == "opus"
    tools = ["Read"]
    first.tools(tools)
    tools.append("Bash")
    assert first.build().tools == ["Read"]
    assert first.tools(None).build().tools is None
    with pytest.raises(OptionsError, match="option 'max_turns'"):
        first.max_turns(0)
    with pytest.raises(OptionsError, match="needs 'resume'"):
        first.fork_session(True).build()
    assert first.resume("x").build().fork_session
    with pytest.raises(AttributeError, match="did you mean 'model'"):
        first.modle("x")  # type: ignore[attr-defined]


def test_every_option_is_a_method_of_the_builder_with_its_documentation() -> None:
    for option in TABLE.values():
        assert getattr(OptionsBuilder, option.name).__doc__ == option.doc


@pytest.mark.parametrize("name", ["timeout", "idle_timeout", "startup_timeout", "control_timeout"])
def test_a_time_limit_in_milliseconds_is_refused(name: str) -> None:
    with pytest.raises(OptionsError, match=r"300,000 seconds are 3\.5 days; the unit is seconds"):
        Options(**{name: 300_000})  # type: ignore[misc]
    assert Options(**{name: 86_400}).as_dict() == {name: 86_400}  # type: ignore[misc]
    assert Options(**{name: float("inf")}).as_dict() == {name: float("inf")}  # type: ignore[misc]
