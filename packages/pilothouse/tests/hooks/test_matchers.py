"""Hooks as they are given: what is taken, what is refused before anything runs, and what initialize gets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pilothouse.errors import UsageError
from pilothouse.hooks import HOOK_EVENTS, HookMatcher
from pilothouse.hooks.matchers import HookDispatcher, matches


def check(event: Any) -> None: ...


async def look(event: Any) -> None: ...


class Guard:
    def __call__(self, event: Any) -> None: ...

    def method(self, event: Any) -> None: ...


def test_the_config_names_every_callback_once() -> None:
    dispatcher = HookDispatcher(
        {
            "PreToolUse": [
                HookMatcher("Bash", [check, look], timeout=30),
                HookMatcher(None, check, on_failure="continue"),
            ],
            "PostToolUse": HookMatcher("mcp__.*", look, on_failure="block"),
            "Stop": check,
            "Notification": [check, Guard(), Guard().method, partial(check)],
            "SessionEnd": [],
        }
    )
    assert dispatcher.config == {
        "PreToolUse": [
            {"matcher": "Bash", "hookCallbackIds": ["hook_0", "hook_1"], "timeout": 30, "onFailure": "block"},
            {"matcher": None, "hookCallbackIds": ["hook_2"], "onFailure": "continue"},
        ],
        "PostToolUse": [{"matcher": "mcp__.*", "hookCallbackIds": ["hook_3"], "onFailure": "block"}],
        "Stop": [{"matcher": None, "hookCallbackIds": ["hook_4"]}],
        "Notification": [{"matcher": None, "hookCallbackIds": [f"hook_{n}"]} for n in (5, 6, 7, 8)],
    }  # fmt: skip
    assert dispatcher


def test_no_hooks_make_an_empty_dispatcher() -> None:
    assert HookDispatcher({}).config == {}
    assert not HookDispatcher({})


def test_gates_block_by_default() -> None:
    gates = {name for name in HOOK_EVENTS if HookDispatcher({name: check}).config[name][0].get("onFailure") == "block"}
    assert gates == {
        "PreToolUse", "PreSkillShellCommand", "PreModelSwitch", "PreCompact", "PermissionRequest", "UserPromptSubmit",
        "UserPromptExpansion", "TaskCreated", "ConfigChange", "Elicitation", "ElicitationResult",
    }  # fmt: skip


def test_an_unknown_event_before_a_step_is_a_gate() -> None:
    def find_on_failure(event: str) -> str | None:
        return HookDispatcher({event: HookMatcher(None, check, is_unlisted=True)}).config[event][0].get("onFailure")

    assert find_on_failure("PreMarsLanding") == "block"
    assert find_on_failure("PostMarsLanding") is None
    assert find_on_failure("Prefix") == "block"  # one gate too many is better than one too few


def two(first: Any, second: Any) -> None: ...


def old(input_data: Any, tool_use_id: str | None, context: Any) -> None: ...


@pytest.mark.parametrize(
    ("hooks", "complaint"),
    [
        ([check], "expected a dict"),
        ({"PreTooluse": check}, "did you mean 'PreToolUse'"),
        ({"pre_tool_use": check}, "unknown event 'pre_tool_use'"),
        ({"Zzz": []}, "unknown event 'Zzz'"),
        ({3: check}, "unknown event 3"),
        ({"Stop": "check"}, "expected HookMatcher or a function, got str"),
        ({"Stop": [None]}, "got NoneType"),
        ({"Stop": {"hooks": [check]}}, "got dict"),
        ({"Stop": two}, r"cannot be called with 1 argument \(event\)"),
        ({"Stop": old}, r"instead of \(input, tool_use_id, context\) use event.raw"),
        ({"Stop": [lambda: None]}, "cannot be called with 1 argument"),
        ({"Stop": HookMatcher("Bash", check)}, "omit 'Bash'"),
        ({"Stop": HookMatcher(None, check, on_failure="block")}, "cannot be refused"),
    ],
)
def test_wrong_hooks_are_refused_when_they_are_given(hooks: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        HookDispatcher(hooks)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"hooks": []}, "hooks is empty"),
        ({}, "hooks is empty"),
        ({"hooks": 5}, "expected a function, got int"),
        ({"hooks": [old]}, "one argument"),
        ({"hooks": check, "matcher": 5}, "string or None, not int"),
        ({"hooks": check, "matcher": ["Bash"]}, "string or None, not list"),
        ({"hooks": check, "matcher": " | "}, "matches nothing"),
        ({"hooks": check, "matcher": "(Bash"}, "not a valid regular expression"),
        ({"hooks": check, "matcher": "*Bash"}, "not a valid regular expression"),
        ({"hooks": check, "matcher": "Bash["}, "not a valid regular expression"),
        ({"hooks": check, "matcher": "(?i)bash"}, "as JavaScript"),
        ({"hooks": check, "matcher": r"\ABash\Z"}, "as JavaScript"),
        ({"hooks": check, "matcher": "(?P<tool>Bash)"}, "as JavaScript"),
        ({"hooks": check, "timeout": 0}, "more than 0"),
        ({"hooks": check, "timeout": -1}, "more than 0"),
        ({"hooks": check, "timeout": float("nan")}, "more than 0"),
        ({"hooks": check, "timeout": float("inf")}, "at most"),
        ({"hooks": check, "timeout": 1e9}, "at most"),
        ({"hooks": check, "timeout": True}, "not bool"),
        ({"hooks": check, "timeout": "5"}, "not str"),
        ({"hooks": check, "on_failure": "deny"}, "'block' or 'continue'"),
    ],
)
def test_wrong_matchers_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        HookMatcher(**arguments)


@pytest.mark.parametrize(
    "matcher",
    [None, "", "*", "Bash", "Edit|Write", "Edit, Write", "mcp__.*", "^Notebook", r"\\A", r"(?<name>a)\k<name>", "[^]a",
     "(?<=a+)b", r"\(?P", "[[]x"],
)  # fmt: skip
def test_right_matchers_are_taken(matcher: str | None) -> None:
    assert HookDispatcher({"PreToolUse": HookMatcher(matcher, check)}).config["PreToolUse"][0]["matcher"] == matcher


def test_an_event_of_a_newer_cli_can_be_asked_for() -> None:
    dispatcher = HookDispatcher({"AfterAll": HookMatcher("x", check, is_unlisted=True)})
    assert dispatcher.config == {"AfterAll": [{"matcher": "x", "hookCallbackIds": ["hook_0"]}]}


def test_a_matcher_does_not_change_with_the_list_it_came_from() -> None:
    functions: list[Any] = [check]
    matcher = HookMatcher("Bash", functions)
    functions.append(look)
    assert matcher.functions == (check,)


@pytest.mark.parametrize(
    ("matcher", "value", "expected"),
    [
        (None, "Bash", True),
        ("*", "Bash", True),
        ("Bash", "Bash", True),
        ("Bash", "BashOutput", False),
        ("Edit|Write", "Write", True),
        ("Edit, Write", "Write", True),
        ("Ba.h", "xBashx", True),
        ("^mcp__", "Bash", False),
        ("(?<=a+)b", "Bash", True),
    ],
)
def test_matching_for_peers_that_do_not(matcher: str | None, value: str, expected: bool) -> None:
    assert matches(matcher, value) is expected
