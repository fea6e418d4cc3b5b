"""`Options`: validation, merging, immutability, and that its three lists of names agree."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from pilothouse.errors import OptionsError, UsageError
from pilothouse.options import TABLE, Options, Settings


def test_table_and_static_types_name_the_same_options() -> None:
    assert list(Settings.__annotations__) == list(dict.fromkeys([*Settings.__annotations__]))
    assert set(Settings.__annotations__) == set(TABLE)
    source = Path(__import__("pilothouse.options.options", fromlist=["x"]).__file__).read_text()
    declared = {
        line.split(":")[0].strip() for line in source.splitlines() if line.startswith("        ") and ": " in line
    }
    assert set(TABLE) <= declared
    assert get_type_hints(Settings)


def test_every_row_is_documented_and_its_default_is_valid() -> None:
    for option in TABLE.values():
        assert option.doc.endswith("."), option.name
        assert option.default is None or option.kind.accepts(option.default), option.name


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"modle": "opus"}, "unknown option 'modle'; did you mean 'model'?"),
        ({"zzzzzz": 1}, "unknown option 'zzzzzz'"),
        ({"max_turns": "5"}, "option 'max_turns': expected a whole number of at least 1, got '5' (str)"),
        ({"max_turns": 0}, "got 0 (int)"),
        ({"max_turns": True}, "got True (bool)"),
        ({"max_budget_usd": float("nan")}, "got nan (float)"),
        ({"permission_mode": "yolo"}, "expected one of 'default', 'acceptEdits'"),
        ({"allowed_tools": "Bash"}, "expected a list of text, got 'Bash' (str)"),
        ({"cwd": ""}, "expected a path"),
        ({"model": "a\0b"}, "got 'a\\x00b' (str)"),
        ({"model": "\ud83d"}, "got '\\ud83d' (str)"),
        ({"session_id": "abc"}, "expected a UUID"),
        ({"env": {"A=B": "1"}}, "expected a mapping of variable names"),
        ({"extra_args": {"--model": "x"}}, "flag names without dashes"),
        ({"timeout": -1}, "seconds greater than 0"),
        ({"fork_session": True}, "option 'fork_session' needs 'resume' or 'continue_conversation'"),
        ({"resume": "x", "continue_conversation": True}, "exclude each other"),
    ],
)
@pytest.mark.requirement("E9", "E12", "E24", "E45")
def test_wrong_options_are_refused_with_one_helpful_error(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(**settings)
    assert expected in str(caught.value)
    assert caught.value.option in {*settings}
    assert isinstance(caught.value, UsageError | ValueError)


@pytest.mark.requirement("E76")
def test_secrets_are_never_shown() -> None:
    options = Options(api_key="sk-very-secret", env={"MY_TOKEN": "hush-hush"})
    assert "secret" in repr(options)
    assert "sk-very" not in repr(options)
    assert "hush" not in repr(options)
    with pytest.raises(OptionsError) as caught:
        Options(env={"MY_TOKEN": 5, "OTHER": "hush-hush"})  # pyright: ignore[reportArgumentType]
    assert "hush" not in str(caught.value)


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


def test_falsy_values_survive_and_defaults_are_read() -> None:
    options = Options(tools=[], setting_sources=[], max_budget_usd=0.001, strict_mcp_config=False)
    assert options.as_dict() == {
        "tools": [], "setting_sources": [], "max_budget_usd": 0.001, "strict_mcp_config": False,
    }  # fmt: skip
    assert Options().cli == "auto"
    assert Options(cli=None).cli == "auto"
    assert Options().timeout is None
    with pytest.raises(AttributeError):
        _ = Options().nonsense


@pytest.mark.requirement("R34")
def test_options_are_immutable_and_pickle() -> None:
    options = Options(model="opus", add_dirs=[Path("/tmp")])
    with pytest.raises(AttributeError, match="immutable"):
        options.model = "x"
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.add_dirs == ["/tmp"]
