"""Permission updates: as typed values, and as the wire has them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from permission_frames import BASH

from pilothouse.errors import UsageError
from pilothouse.permissions import (
    AddDirectories,
    AddRules,
    PermissionRule,
    RemoveDirectories,
    RemoveRules,
    ReplaceRules,
    SetMode,
    UnknownUpdate,
)
from pilothouse.permissions.requests import update_from_wire, update_to_wire

GIT = PermissionRule("Bash", "git:*")
UPDATES = [
    (
        AddRules([GIT, PermissionRule("Read")], behavior="deny", destination="userSettings"),
        {
            "type": "addRules",
            "rules": [{"toolName": "Bash", "ruleContent": "git:*"}, {"toolName": "Read"}],
            "behavior": "deny",
            "destination": "userSettings",
        },
    ),
    (
        ReplaceRules([GIT]),
        {
            "type": "replaceRules",
            "rules": [{"toolName": "Bash", "ruleContent": "git:*"}],
            "behavior": "allow",
            "destination": "session",
        },
    ),
    (
        RemoveRules([], behavior="ask"),
        {"type": "removeRules", "rules": [], "behavior": "ask", "destination": "session"},
    ),
    (SetMode("acceptEdits"), {"type": "setMode", "mode": "acceptEdits", "destination": "session"}),
    (AddDirectories(["/a", "b"]), {"type": "addDirectories", "directories": ["/a", "b"], "destination": "session"}),
    (
        RemoveDirectories(["/a"], "localSettings"),
        {"type": "removeDirectories", "directories": ["/a"], "destination": "localSettings"},
    ),
]


@pytest.mark.parametrize(("update", "wire"), UPDATES, ids=lambda value: type(value).__name__)
def test_every_kind_goes_to_the_wire_and_back(update: Any, wire: dict[str, Any]) -> None:
    assert update_to_wire(update) == wire
    assert update_from_wire(wire) == update


def test_suggestions_of_the_cli_are_typed() -> None:
    rules, directories, mode = (update_from_wire(item) for item in BASH["permission_suggestions"])
    assert rules == AddRules([PermissionRule("Bash", "touch allowed.txt")], destination="localSettings")
    assert directories == AddDirectories(["/home/user/project"])
    assert mode == SetMode("acceptEdits")
    assert rules.with_destination("session") == AddRules([PermissionRule("Bash", "touch allowed.txt")])
    with pytest.raises(UsageError, match="destination"):
        rules.with_destination("nowhere")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        {"type": "addHosts", "hosts": ["a"]},
        {"type": "setMode", "mode": "yolo", "destination": "session"},
        {"type": "addRules", "rules": [{"toolName": "Bash(x)"}], "behavior": "allow", "destination": "session"},
        {"type": "addRules", "rules": [{"toolName": 3}]},
        {"no": "type"},
    ],
)
def test_an_unknown_suggestion_is_kept_and_can_be_handed_back(data: dict[str, Any]) -> None:
    update = update_from_wire(data)
    assert update == UnknownUpdate(str(data.get("type", "")), data)
    assert update_to_wire(update) == data
    assert update_to_wire(update.with_destination("session")) == {**data, "destination": "session"}
    with pytest.raises(UsageError, match="destination"):
        update.with_destination("nowhere")  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [None, 3, "addRules", ["addRules"]])
def test_a_suggestion_that_is_no_object_is_unknown(data: Any) -> None:
    assert update_from_wire(data) == UnknownUpdate("", {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddRules([GIT], behavior="maybe"), "behavior: expected one of allow, deny, ask, got 'maybe'"),  # type: ignore[arg-type]
        (lambda: AddRules([GIT], destination=None), "destination"),  # type: ignore[arg-type]
        (lambda: AddRules("Bash"), "rules: expected a list, got str"),  # type: ignore[arg-type]
        (lambda: AddRules(["Bash"]), "PermissionRule.parse\\('Bash'\\)"),  # type: ignore[list-item]
        (lambda: AddRules(None), "rules"),  # type: ignore[arg-type]
        (lambda: SetMode("yolo"), "mode"),  # type: ignore[arg-type]
        (lambda: AddDirectories([""]), "directories"),
        (lambda: AddDirectories("/tmp"), "directories"),
        (lambda: PermissionRule(""), "name of a tool"),
        (lambda: PermissionRule("Bash(ls)"), "name of a tool"),
        (lambda: PermissionRule("Bash", 3), "text"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_update_cannot_be_made(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_only_updates_go_to_the_wire() -> None:
    with pytest.raises(UsageError, match="not a permission update: dict"):
        update_to_wire({"type": "setMode", "mode": "plan", "destination": "session"})


@pytest.mark.parametrize("make", [AddRules, ReplaceRules])
@pytest.mark.parametrize(
    ("rule", "meant"),
    [
        (PermissionRule("mcp__my.shop__buy"), "mcp__my_shop__buy"),
        (PermissionRule("mcp__my shop__*"), "mcp__my_shop__*"),
        (PermissionRule("mcp__shop__buy", "boats"), "mcp__shop__buy"),
    ],
)
def test_a_rule_that_the_cli_would_ignore_is_not_sent(make: Any, rule: PermissionRule, meant: str) -> None:
    with pytest.raises(UsageError, match=f"write '{re.escape(meant)}'"):
        update_to_wire(make([rule], "deny"))
    assert update_to_wire(make([PermissionRule(meant)], "deny"))["rules"] == [{"toolName": meant}]
    assert update_to_wire(RemoveRules([rule], "deny"))  # it may be there
