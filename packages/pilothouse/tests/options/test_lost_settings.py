"""What the CLI has not taken of settings, and what of that matters: without the CLI."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.errors import OptionsError
from pilothouse.options import Options
from pilothouse.options.cli_settings import (
    CliSettings,
    find_dead_rules,
    find_lost,
    find_similar_key,
    find_unknown_keys,
    format_path,
)

TAKEN: tuple[tuple[Any, Any], ...] = (
    ({"permissions": {"deny": ["Bash"]}}, {"permissions": {"deny": ["Read", "Bash"]}, "model": "haiku"}),
    ({"env": {"A": 1, "B": True}}, {"env": {"A": "1", "B": "true"}}),
    ({"model": None, "permissions": {"deny": [], "ask": None}, "sandbox": {"network": {}}}, {}),
    ({"apiKeyHelper": "/bin/key"}, {"apiKeyHelper": "[redacted]"}),
    ({"disableAllHooks": True}, {"allowManagedHooksOnly": True}),
    ({"includeCoAuthoredBy": False}, {"attribution": {"commitTrailers": False}}),
)


@pytest.mark.parametrize(("sent", "taken"), TAKEN)
def test_nothing_is_lost_of_what_the_cli_has(sent: Any, taken: Any) -> None:
    assert list(find_lost(sent, taken)) == []


HOOK = {"matcher": "Bash", "hooks": [{"type": "command", "command": "exit 2"}]}
LOST: tuple[tuple[Any, Any, str, bool], ...] = (
    ({"permissions": {"deny": ["Bash", "Bash("]}}, {"permissions": {"deny": ["Bash"]}}, "permissions.deny[1]", True),
    ({"permissions": {"ask": ["bash"]}}, {}, "permissions.ask[0]", True),
    ({"permissions": {"deny": "Bash"}}, {}, "permissions.deny", True),
    ({"permissions": ["Bash"]}, {}, "permissions[0]", True),
    ({"permissions": "Bash"}, {}, "permissions", True),
    ({"permissions": {"allow": ["*"]}}, {}, "permissions.allow[0]", False),
    ({"permissions": {"defaultMode": "plan"}}, {}, "permissions.defaultMode", False),
    (
        {"permissions": {"disableBypassPermissionsMode": "disable"}},
        {},
        "permissions.disableBypassPermissionsMode",
        True,
    ),
    (
        {"permissions": {"blockReadsOutsideWorkingDirectories": True}},
        {},
        "permissions.blockReadsOutsideWorkingDirectories",
        True,
    ),
    ({"permissions": {"blockReadsExemptPaths": ["/x"]}}, {}, "permissions.blockReadsExemptPaths[0]", False),
    ({"hooks": {"PreToolUs": [HOOK]}}, {"hooks": {}}, "hooks.PreToolUs", True),
    ({"hooks": [HOOK]}, {}, "hooks", True),
    ({"hooks": {"Stop": [HOOK, HOOK | {"x": 1}]}}, {"hooks": {"Stop": [HOOK]}}, "hooks.Stop[1]", True),
    ({"hooks": {"Stop": [HOOK | {"x": 1}]}}, {"hooks": {"Stop": [HOOK]}}, "hooks.Stop[0].x", False),
    ({"sandbox": {"enabled": True}}, {}, "sandbox.enabled", True),
    ({"sandbox": {"enabled": False}}, {}, "sandbox.enabled", False),
    ({"sandbox": {"allowUnsandboxedCommands": False}}, {}, "sandbox.allowUnsandboxedCommands", True),
    ({"sandbox": {"excludedCommands": ["docker"]}}, {}, "sandbox.excludedCommands[0]", False),
    ({"sandbox": {"filesystem": {"denyRead": ["/x"]}}}, {"sandbox": {}}, "sandbox.filesystem.denyRead[0]", True),
    ({"sandbox": {"filesystem": {"allowWrite": ["/x"]}}}, {}, "sandbox.filesystem.allowWrite[0]", False),
    ({"availableModels": "haiku"}, {"availableModels": []}, "availableModels", True),
    ({"deniedMcpServers": [{"serverName": "a"}]}, {}, "deniedMcpServers", True),
    ({"disableSkillShellExecution": True}, {}, "disableSkillShellExecution", True),
    ({"disableWorkflows": False}, {}, "disableWorkflows", False),
    ({"effortLevel": "nope"}, {}, "effortLevel", False),
    ({"model": "opus"}, {"model": "haiku"}, "model", False),
)


@pytest.mark.parametrize(("sent", "taken", "place", "matters"), LOST)
def test_what_is_lost_and_whether_it_matters(sent: Any, taken: Any, place: str, matters: bool) -> None:
    [lost] = find_lost(sent, taken)
    assert (format_path(lost.path), lost.is_restriction) == (place, matters)


def test_rules_that_never_apply() -> None:
    rules = ["Bash (git:*)", "Bash(git push)", 5, " Read "]
    found = find_dead_rules({"permissions": {"deny": rules, "ask": ["Web Fetch"], "allow": ["A (b)"]}})
    assert [format_path(each.path) for each in found] == ["permissions.deny[0]", "permissions.ask[0]"]
    assert list(find_dead_rules({"permissions": {"deny": "Bash (x)"}})) == []


def test_keys_that_no_setting_has() -> None:
    known: CliSettings = {"model": "haiku", "permissions": {"deny": ["Bash"]}, "$schema": "x"}
    assert list(find_unknown_keys(known)) == []
    found = list(find_unknown_keys({**known, "permisions": {}, "x": 1, "permissions": {"denny": []}}))
    assert [format_path(path) for path in found] == ["permisions", "x", "permissions.denny"]
    assert [find_similar_key(path) for path in found] == ["permissions", None, "permissions.deny"]


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"settings": {"model": "haiku"}}, "settings"),
        ({"sandbox": {"enabled": True}}, "settings"),
        ({"managed_settings": {"permissions": {}}}, "managed-settings"),
    ],
)
def test_the_same_settings_twice_are_refused(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(OptionsError, match=r"and 'extra_args' cannot be combined: the CLI takes one of the two"):
        Options(**options, extra_args={flag: '{"permissions": {"deny": ["Bash"]}}'})
