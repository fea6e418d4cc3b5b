"""The policy of options: rows, what is said beside them, contradictions, presets. The real CLI: tests/real."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.hooks import HookMatcher, Hooks
from pilothouse.messages.core import PermissionMode
from pilothouse.options import Policy, PolicyWarning
from pilothouse.options.policy import (
    CALL_KINDS,
    MODE_DESCRIPTIONS,
    MODE_OUTCOMES,
    NOT_CHANGED_BY_RULES,
    PRESETS,
    TOOL_CALL_KINDS,
)

# Queries are made to see how they are checked, and not run.
pytestmark = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")

INSIDE, ELSEWHERE = CALL_KINDS["read"], CALL_KINDS["read elsewhere"]


def ask(request: ph.PermissionRequest) -> bool:
    return True


def hook(event: ph.PreToolUseEvent) -> None:
    return None


def on_bash(matcher: str) -> Hooks:
    return {"PreToolUse": [HookMatcher(matcher, hook)]}


def test_every_mode_says_what_becomes_of_every_kind_of_call() -> None:
    assert (
        set(MODE_OUTCOMES)
        == set(MODE_DESCRIPTIONS)
        == set(NOT_CHANGED_BY_RULES)
        == set(PermissionMode.__args__) - {"manual"}
    )
    assert all(MODE_OUTCOMES[mode].keys() == CALL_KINDS.keys() for mode in MODE_OUTCOMES)
    assert {kind for kinds in TOOL_CALL_KINDS.values() for kind in kinds} == CALL_KINDS.keys() - {"serve"}


def test_a_row_says_what_decides_and_where_it_was_set() -> None:
    agent = ph.Agent(allowed_tools=["WebFetch"], permission_mode="acceptEdits")
    policy = agent.effective_policy(disallowed_tools=["Write"])
    rows = {row.tool: row for row in policy.rows if not row.calls}
    assert (rows["WebFetch"].outcome, rows["WebFetch"].option, rows["WebFetch"].origin) == (
        "runs",
        "allowed_tools",
        "agent",
    )
    assert (rows["Write"].outcome, rows["Write"].option, rows["Write"].origin) == (
        "unavailable",
        "disallowed_tools",
        "call",
    )
    assert policy.mode_origin == "permission_mode, agent"
    assert sync.Agent(allowed_tools=["WebFetch"]).effective_policy().outcome("WebFetch") == "runs"


@pytest.mark.parametrize(
    ("settings", "tool", "calls", "outcome"),
    [
        ({}, "Read", INSIDE, "runs"),
        ({}, "Read", ELSEWHERE, "denied"),
        ({"can_use_tool": ask}, "Read", ELSEWHERE, "asks"),
        ({"confirm": lambda prompt, request: True}, "WebFetch", "", "asks"),
        ({"permission_prompt_tool_name": "mcp__desk__ask"}, "WebFetch", "", "asks"),
        ({"permission_mode": "manual"}, "WebFetch", "", "denied"),
        ({"extra_args": {"dangerously-skip-permissions": None}}, "WebFetch", "", "runs"),
        ({"tools": ["Task"]}, "Agent", "", "runs"),
        ({"tools": ["Agent"]}, "Task", "", "runs"),
        ({"disallowed_tools": ["Task"]}, "Agent", "", "unavailable"),
        ({"settings": '{"permissions": {"deny": ["Agent"]}}'}, "Agent", "", "unavailable"),
        ({"mcp_servers": {"own": {"command": "x"}}}, "mcp__own__f", "", "denied"),
        ({"mcp_servers": {"own": {"command": "x"}}, "allowed_tools": ["mcp__own__*"]}, "mcp__own", "", "runs"),
        ({"mcp_servers": {"own": {"command": "x"}}, "allowed_tools": ["mcp__own__f"]}, "mcp__own__f", "", "runs"),
        ({"mcp_servers": {"own": {"command": "x"}}, "allowed_tools": ["mcp__own__f"]}, "mcp__own__g", "x", "denied"),
        ({"custom_tools": [abs]}, "mcp__tools", "", "runs"),
        ({"custom_tools": [abs], "can_use_tool": ask}, "mcp__tools", "", "asks"),
        ({"custom_tools": [abs], "tool_bridge": "xml"}, "Bash", "", "unavailable"),
        ({"skills": "all", "permission_mode": "dontAsk"}, "Skill", "", "runs"),
        ({"permission_mode": "plan", "on_plan": ask}, "ExitPlanMode", "", "asks"),
        ({"permission_mode": "plan", "confirm": lambda prompt, request: True}, "ExitPlanMode", "", "asks"),
        ({"permission_mode": "plan"}, "ExitPlanMode", "", "unavailable"),
        ({"confirm": lambda prompt, request: True}, "AskUserQuestion", "", "denied"),
        ({"permission_mode": "dontAsk", "on_question": ask}, "AskUserQuestion", "", "denied"),
    ],
)
def test_outcomes(settings: Any, tool: str, calls: str, outcome: str) -> None:
    policy = ph.Options(**settings).effective_policy()
    if tool == "mcp__own__g":  # the others of a server of which one tool has a rule
        assert policy.rows_for("mcp__own")[0].outcome == outcome
    else:
        assert policy.outcome(tool, calls) == outcome


@pytest.mark.parametrize(
    ("settings", "rule", "outcome"),
    [
        ({"allowed_tools": ["Bash(git:*)"]}, "Bash(git:*)", "runs"),
        ({"disallowed_tools": ["Bash(git:*)"], "permission_mode": "bypassPermissions"}, "Bash(git:*)", "denied"),
        ({"disallowed_tools": ["Bash", "Bash(git:*)"]}, "Bash(git:*)", "unavailable"),
        ({"settings": {"permissions": {"ask": ["Bash(git:*)"]}}, "can_use_tool": ask}, "Bash(git:*)", "asks"),
        ({"settings": {"permissions": {"ask": ["Bash(git:*)"]}}}, "Bash(git:*)", "denied"),
        (
            {"settings": {"permissions": {"ask": ["Bash"]}}, "allowed_tools": ["Bash(git:*)"], "can_use_tool": ask},
            "Bash(git:*)",
            "asks",
        ),
        ({"allowed_tools": ["Bash(git:*)"], "permission_mode": "plan"}, "Bash(git:*)", "judged"),
    ],
)
def test_rules_with_a_pattern_come_first(settings: Any, rule: str, outcome: str) -> None:
    first = ph.Options(**settings).effective_policy().rows[0]
    assert (first.tool, first.outcome) == (rule, outcome)


def test_calls_that_differ_must_be_named() -> None:
    policy = ph.Options().effective_policy()
    with pytest.raises(KeyError, match="say which calls"):
        policy.outcome("Read")
    with pytest.raises(KeyError):
        policy.outcome("NoSuchTool")


def test_printing_it_shows_everything() -> None:
    options = ph.Options(
        can_use_tool=ask,
        allowed_tools=["Bash(git:*)"],
        disallowed_tools=["WebSearch"],
        hooks={"PreToolUse": hook},
        settings="policy.json",
        mcp_servers="servers.json",
        plugins=["plugin"],
        extra_args={"permission-mode": "plan"},
        agents={"helper": ph.AgentDefinition(description="d", prompt="p", permission_mode="acceptEdits")},
        allow_dangerously_skip_permissions=True,
    ).with_origin("agent")
    text = str(options.effective_policy())
    assert text.startswith("permission mode: default (default): ")
    for part in (
        "permission requests go to can_use_tool",
        "runs unasked:\n  Bash(git:*): allowed_tools, agent",
        "is not offered to the model:",
        "WebSearch: disallowed_tools: WebSearch, agent",
        "may decide before: hooks for PreToolUse",
        "the settings in policy.json",
        "~/.claude/settings.json",
        "managed settings of this machine",
        "hooks, tools and agents of plugins",
        "--permission-mode may change everything",
        "'helper' has the permission mode 'acceptEdits'",
        "allowed_tools removes no tool",
        "may change to 'bypassPermissions'",
    ):
        assert part in text, part


def test_what_is_shut_off_is_not_called_unseen() -> None:
    policy = ph.Options(setting_sources=[], strict_mcp_config=True).effective_policy()
    assert [text.partition(" of")[0] for text in policy.unseen] == ["managed settings"]


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"allowed_tools": ["Read"], "permission_mode": "bypassPermissions"}, "allowed_tools has no effect"),
    ({"can_use_tool": ask, "permission_mode": "bypassPermissions"}, "can_use_tool is never called"),
    ({"confirm": lambda prompt, request: True, "permission_mode": "dontAsk"}, "confirm is never called"),
    (
        {"can_use_tool": ask, "tools": ["Bash"], "allowed_tools": ["Bash"]},
        "never called for the tools that are known here: the rules",
    ),
    ({"tools": ["Read"], "allowed_tools": ["Bash"]}, "'Bash' has no effect"),
    ({"disallowed_tools": ["Bash"], "allowed_tools": ["Bash(git:*)"]}, r"'Bash\(git:\*\)' has no effect"),
    ({"allowed_tools": ["*"]}, "ignores '\\*'"),
    ({"allowed_tools": ["mcp__*"]}, "ignores 'mcp__\\*'"),
    ({"allowed_tools": ["Write(src/**)"]}, r"'Edit\(src/\*\*\)' holds"),
    ({"disallowed_tools": ["Write(src/**)"]}, r"'Edit\(src/\*\*\)' holds"),
    ({"disallowed_tools": ["Bash(rm:*"]}, r"ignores 'Bash\(rm:\*'"),
    ({"allowed_tools": ["Bash (git:*)"]}, "as a rule for all of Bash; leave out the blank"),
    ({"disallowed_tools": ["bash"]}, "it is 'Bash'"),
    ({"tools": ["read"]}, "it is 'Read'"),
    ({"hooks": on_bash("bash")}, "matches nothing: there is no tool 'bash'"),
    ({"hooks": on_bash("Bash|Edit"), "tools": ["Read"]}, "matches nothing: the model has no Bash"),
]


@pytest.mark.parametrize(("settings", "reported"), CONTRADICTIONS)
def test_a_contradiction_warns_where_it_is_written(settings: dict[str, Any], reported: str) -> None:
    with pytest.warns(PolicyWarning, match=reported) as caught:
        ph.Agent(**settings)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(PolicyWarning, match=reported) as caught:
        query = ph.Agent().query("go", **settings)
    assert [warning.filename for warning in caught] == [__file__]
    del query
    assert len(ph.Options(**settings).effective_policy().warnings) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"allowed_tools": ["Read"]},
        {"allowed_tools": ["Read"], "permission_mode": "dontAsk"},
        {"allowed_tools": ["Read"], "can_use_tool": ask},
        {"permission_mode": "bypassPermissions"},
        {"permission_mode": "bypassPermissions", "disallowed_tools": ["Bash(rm:*)"]},
        {"permission_mode": "acceptEdits", "can_use_tool": ask},
        {"permission_mode": "plan"},
        {"permission_mode": "plan", "can_use_tool": ask},
        {"permission_mode": "auto", "can_use_tool": ask},
        {"permission_mode": "bypassPermissions", "can_use_tool": ask, "hooks": {"PreToolUse": hook}},
        {
            "permission_mode": "bypassPermissions",
            "can_use_tool": ask,
            "settings": {"permissions": {"ask": ["Bash(git push:*)"]}},
        },
        {"disallowed_tools": ["*", "mcp__*", "NewToolOfTomorrow"]},
        {"tools": ["Read"], "disallowed_tools": ["Bash"]},
        {"tools": ["Read"], "hooks": on_bash("Read|Bash")},
        {"tools": ["Read"], "hooks": on_bash("mcp__.*")},
        {"tools": ["Read"], "hooks": on_bash("NewToolOfTomorrow")},
        {"hooks": {"PreToolUse": hook, "Stop": hook}},
        *({"preset": name} for name in PRESETS),
    ],
)
def test_what_makes_sense_is_quiet(settings: Any) -> None:
    given = settings.get("preset")
    options = ph.Options(**settings) if given is None else ph.Options.preset(given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ph.Agent(options)
    assert options.effective_policy().warnings == ()


def test_a_layer_may_narrow_what_one_beneath_it_allows() -> None:
    agent = ph.Agent(allowed_tools=["Read", "Bash(git:*)"], hooks=on_bash("Bash"))
    agent.query("go", tools=["Read"])  # warnings are errors here


def test_a_contradiction_between_layers_warns_when_they_meet() -> None:
    agent = ph.Agent(allowed_tools=["Read"])
    with pytest.warns(PolicyWarning, match="allowed_tools has no effect"):
        agent.query("go", permission_mode="bypassPermissions")
    with pytest.warns(PolicyWarning, match="allowed_tools has no effect"):
        agent.session(permission_mode="bypassPermissions")


def test_it_can_be_silenced() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", PolicyWarning)
        ph.Agent(allowed_tools=["Read"], permission_mode="bypassPermissions")
    assert caught == []


def test_presets_are_layers_that_explain_names() -> None:
    agent = ph.Agent(ph.Options.preset("read_only", model="opus"), tools=["Read"])
    rows = agent.options.explain()
    assert (rows["tools"].value, rows["tools"].origin) == ("['Read']", "agent")
    assert rows["permission_mode"].origin == "preset 'read_only'"
    assert rows["model"].origin == "agent"
    assert agent.effective_policy().outcome("Write") == "unavailable"
    assert agent.effective_policy(ph.Options.preset("full")).outcome("Write") == "runs"


def test_an_unknown_preset_names_the_nearest() -> None:
    name: Any = "readonly"
    with pytest.raises(ph.OptionsError, match="there is no preset 'readonly'; did you mean 'read_only'"):
        ph.Options.preset(name)


def test_another_peer_may_decide_otherwise() -> None:
    def noted(policy: Policy) -> bool:
        return any("native engine" in note for note in policy.notes)

    assert noted(ph.Options(transport=ph.NativeTransport).effective_policy())
    assert not noted(ph.Options().effective_policy())
