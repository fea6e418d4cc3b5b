"""The policy of options: rows, what is said beside them, contradictions, presets. The real CLI: tests/real."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pilothouse as ph
from pilothouse import sync
from pilothouse.hooks import HookMatcher, Hooks
from pilothouse.messages.core import PermissionMode
from pilothouse.options import PolicyWarning
from pilothouse.options.conflicts import ASKED_DESPITE_RULES, ASKED_GROUPS
from pilothouse.options.options import PRESETS
from pilothouse.options.permission_facts import NEEDS_PERSON, TOOLS
from pilothouse_native import NativeTransport
from pilothouse_policy import Policy, effective_policy
from pilothouse_policy.outcomes import (
    CALL_DESCRIPTIONS,
    MODE_DESCRIPTIONS,
    MODE_OUTCOMES,
    NOT_CHANGED_BY_RULES,
    TOOL_CALL_KINDS,
)

# Queries are made to see how they are checked, and not run.
pytestmark = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")

INSIDE, ELSEWHERE = CALL_DESCRIPTIONS["read"], CALL_DESCRIPTIONS["read elsewhere"]


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
    assert all(MODE_OUTCOMES[mode].keys() == CALL_DESCRIPTIONS.keys() for mode in MODE_OUTCOMES)
    assert {kind for kinds in TOOL_CALL_KINDS.values() for kind in kinds} == CALL_DESCRIPTIONS.keys() - {"serve"}


@pytest.mark.parametrize("mode", MODE_OUTCOMES)
def test_the_core_knows_which_groups_ask(mode: str) -> None:
    """The core has one fact for each group of tools; here are the calls of each group."""
    kinds = {group: TOOL_CALL_KINDS[tool] for tool, group in TOOLS.items()} | {"serve": ("serve",)}
    asked = {
        group: {kind for kind in kinds[group] if MODE_OUTCOMES[mode][kind] in ("asks", "judged")}
        for group in kinds.keys() - {"ask", "plan"}
    }
    assert {group for group in asked if asked[group]} == ASKED_GROUPS.get(mode, set())
    in_spite = {group for group in asked if asked[group] & NOT_CHANGED_BY_RULES[mode]}
    assert in_spite == ASKED_DESPITE_RULES.get(mode, set())


RULES = [
    *(
        "Read",
        "Bash",
        "Bash(git:*)",
        "Edit",
        "Edit(**)",
        "Write",
        "WebFetch",
        "WebFetch(domain:x)",
        "Skill(a)",
        "Agent",
    ),
    *(
        "mcp__shop",
        "mcp__shop__f",
        "mcp__*__get",
        "mcp__*",
        "mcp__other",
        "*",
        "Web*",
        "Glob",
        "NotebookEdit",
        "bash(x)",
    ),
]
some_rules = st.lists(st.sampled_from(RULES), min_size=1, max_size=4)


@given(
    mode=st.sampled_from([*MODE_OUTCOMES]),
    allowed=some_rules,
    permissions=st.dictionaries(st.sampled_from(["deny", "ask", "allow"]), some_rules),
    tools=st.none() | st.lists(st.sampled_from(["Read", "Bash", "Edit", "WebFetch", "Skill", "Glob"]), min_size=1),
    names=st.sets(st.sampled_from(["shop", "a__b"])),
    restricted=st.booleans(),
)
def test_the_warning_about_a_function_agrees_with_the_rows(
    mode: PermissionMode, allowed: Any, permissions: Any, tools: Any, names: set[str], restricted: bool
) -> None:
    policy = effective_policy(
        ph.Options(
            can_use_tool=ask,
            permission_mode=mode,
            allowed_tools=allowed,
            settings={"permissions": permissions},
            tools=tools,
            mcp_servers=servers(*names),
            restricted=restricted and mode != "bypassPermissions",  # they cannot be combined
        )
    )
    is_asked = any(row.outcome in ("asks", "judged") and row.tool not in NEEDS_PERSON for row in policy.rows)
    assert any("is never called" in text for text in policy.warnings) is not is_asked


def test_it_takes_what_has_options() -> None:
    options = ph.Options(allowed_tools=["WebFetch"])
    agent = ph.Agent(options)
    expected = [row.outcome for row in effective_policy(options).rows]
    for source in (agent, sync.Agent.wrap(agent), agent.query("go")):
        assert [row.outcome for row in effective_policy(source).rows] == expected


def test_it_refuses_what_cannot_run() -> None:
    with pytest.raises(ph.OptionsError, match="fork_session"):
        effective_policy(ph.Agent(fork_session=True))
    with pytest.raises(ph.UsageError, match="expected an agent or Options, got dict"):
        effective_policy({})  # pyright: ignore[reportArgumentType]


def test_a_row_says_what_decides_and_where_it_was_set() -> None:
    agent = ph.Agent(allowed_tools=["WebFetch"], permission_mode="acceptEdits")
    policy = effective_policy(agent, disallowed_tools=["Write"])
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
    assert effective_policy(sync.Agent(allowed_tools=["WebFetch"])).outcome("WebFetch") == "runs"


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
    policy = effective_policy(ph.Options(**settings))
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
    first = effective_policy(ph.Options(**settings)).rows[0]
    assert (first.tool, first.outcome) == (rule, outcome)


def test_names_of_servers_are_compared_as_the_cli_does() -> None:
    options = ph.Options(mcp_servers=servers("my.shop"), permission_mode="bypassPermissions")
    with_rule = {
        rule: effective_policy(options.with_(disallowed_tools=[rule])) for rule in ("mcp__my.shop", "mcp__my_shop")
    }
    assert [with_rule["mcp__my.shop"].outcome(f"mcp__{name}") for name in ("my.shop", "my_shop")] == ["runs"] * 2
    assert [with_rule["mcp__my_shop"].outcome(f"mcp__{name}") for name in ("my.shop", "my_shop")] == ["unavailable"] * 2
    assert "mcp__my.shop:" not in str(with_rule["mcp__my.shop"]).partition("warning:")[0]


def test_a_rule_that_the_cli_ignores_has_no_row() -> None:
    rules = ["Write(secrets/**)", "bash(git:*)", "mcp__shop__f(x)", "Edit(secrets/**)"]
    policy = effective_policy(ph.Options(disallowed_tools=rules, mcp_servers=servers("shop")))
    assert [row.tool for row in policy.rows if "(" in row.tool] == ["Edit(secrets/**)"]
    assert len(policy.warnings) == 3


def test_wildcards_that_deny_apply_to_every_name() -> None:
    rules = ["Web*", "mcp__*__delete_*"]
    policy = effective_policy(ph.Options(disallowed_tools=rules, mcp_servers=servers("shop")))
    assert policy.outcome("WebFetch") == policy.outcome("WebSearch") == "unavailable"
    assert policy.outcome("mcp__shop__delete_item") == "unavailable"
    assert policy.outcome("mcp__shop__get_item") == "denied"


def test_calls_that_differ_must_be_named() -> None:
    policy = effective_policy(ph.Options())
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
    text = str(effective_policy(options))
    assert text.startswith("permission mode: default (default): ")
    for part in (
        "permission requests go to can_use_tool", "runs unasked:\n  Bash(git:*): allowed_tools, agent",
        "is not offered to the model:", "WebSearch: disallowed_tools: WebSearch, agent",
        "may decide before: hooks for PreToolUse", "the settings in policy.json", "~/.claude/settings.json",
        "managed settings of this machine", "hooks, tools and agents of plugins",
        "--permission-mode may change everything", "'helper' has the permission mode 'acceptEdits'",
        "allowed_tools removes no tool", "may change to 'bypassPermissions'",
    ):  # fmt: skip
        assert part in text, part


def test_what_is_shut_off_is_not_called_unseen() -> None:
    policy = effective_policy(ph.Options(setting_sources=[], strict_mcp_config=True))
    assert [text.partition(" of")[0] for text in policy.unseen] == ["managed settings"]


def servers(*names: str) -> dict[str, Any]:
    return {name: {"command": "x"} for name in names}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "user, project, local"),
        ({"setting_sources": ["user"]}, "user"),
        ({"skills": "all"}, "user, project"),
        ({"setting_sources": [], "plugins": ["x"]}, "plugins"),
        ({"settings": "settings.json"}, "user, project, local"),
        ({"hooks": {"PreSkillShellCommand": hook}}, "user, project, local"),
        ({"setting_sources": []}, None),
        ({"restricted": True}, None),
        ({"isolation": "strict"}, None),
        ({"safe_mode": True}, None),
        ({"disable_slash_commands": True}, None),
        ({"tools": ["Read"]}, None),
        ({"disallowed_tools": ["Bash"]}, None),
        ({"settings": {"disableSkillShellExecution": True}}, None),
        ({"managed_settings": {"disableSkillShellExecution": True}}, None),
    ],
)
def test_shell_lines_of_skills_and_commands_are_unseen(settings: Any, named: str | None) -> None:
    policy = effective_policy(ph.Options(**settings))
    found = [text for text in policy.unseen if "disableSkillShellExecution" in text]
    assert [text.partition(" run unasked")[0] for text in found] == (
        [f"shell lines in skills and commands of {named}"] if named else []
    )
    assert ("PreSkillShellCommand" in policy.hooks) is ("hooks" in settings)


def test_the_preset_for_untrusted_repositories_asks_about_git() -> None:
    options = ph.Options.preset("untrusted_repository", settings={"permissions": {"allow": ["Bash(git status)"]}})
    policy = effective_policy(options.with_(can_use_tool=ask))
    assert (policy.rows[0].tool, policy.rows[0].outcome) == ("Bash(git:*)", "asks")  # the first row that matches counts
    assert not any("project" in text or ".mcp.json" in text for text in policy.unseen)


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
    ({"disallowed_tools": ["NotebookEdit(src/**)"]}, r"'Edit\(src/\*\*\)' holds"),
    ({"disallowed_tools": ["Glob(src/**)"]}, r"'Read\(src/\*\*\)' holds"),
    ({"disallowed_tools": ["WebFetch(https://example.com)"]}, r"'WebFetch\(domain:example.com\)'"),
    ({"disallowed_tools": ["Bash(:*)"]}, "'Bash' holds for all commands"),
    ({"settings": {"permissions": {"deny": ["Write()"]}}}, "'Write' holds for all calls"),
    ({"allowed_tools": ["Web*"]}, "ignores 'Web\\*'"),
    ({"disallowed_tools": ["mcp__shop__f(x)"]}, "'mcp__shop__f' holds for all calls"),
    ({"settings": {"permissions": {"deny": ["mcp__shop__f(*)"]}}}, "'mcp__shop__f' holds for all calls"),
    ({"mcp_servers": servers("my.shop"), "disallowed_tools": ["mcp__my.shop"]}, "write 'mcp__my_shop'"),
    ({"mcp_servers": servers("my shop"), "disallowed_tools": ["mcp__my shop"]}, "write 'mcp__my_shop'"),
    ({"mcp_servers": servers("a,b"), "allowed_tools": ["mcp__a,b"]}, "write 'mcp__a_b'"),
    ({"mcp_servers": servers("q(r)s"), "disallowed_tools": ["mcp__q(r)s__get*"]}, r"write 'mcp__q_r_s__get\*'"),
    ({"mcp_servers": servers("shop"), "disallowed_tools": ["mcp__shop__item.read"]}, "write 'mcp__shop__item_read'"),
    ({"mcp_servers": servers("Shop"), "disallowed_tools": ["mcp__shop"]}, "did you mean 'mcp__Shop'"),
    ({"mcp_servers": servers("shop"), "disallowed_tools": ["mcp__shpo__f"]}, "did you mean 'mcp__shop__f'"),
    ({"mcp_servers": servers("shop"), "disallowed_tools": ["mcp__shop__"]}, "the server as 'mcp__shop'"),
    (
        {"mcp_servers": servers("my.shop", "my_shop"), "allowed_tools": ["Read"]},
        r"'my.shop' and 'my_shop' are both 'my_shop' in the names of tools",
    ),
    (
        {"mcp_servers": servers("a__b", "a"), "disallowed_tools": ["mcp__a"]},
        r"for 'mcp__a' also apply to the server 'a__b'",
    ),
    ({"mcp_servers": servers("a__b"), "allowed_tools": ["mcp__a__b"]}, r"server 'a'; write 'mcp__a__b__\*'"),
    ({"mcp_servers": servers("__k"), "allowed_tools": ["mcp____k"]}, "write 'mcp____k__NAME for each tool"),
    (
        {"mcp_servers": servers("shop"), "strict_mcp_config": True, "disallowed_tools": ["mcp__payments"]},
        "names no server of `mcp_servers`: mcp__shop",
    ),
    (
        {
            "mcp_servers": servers("my.shop"),
            "agents": {"a": {"description": "d", "prompt": "p", "disallowedTools": ["mcp__my.shop"]}},
        },
        r"agents\['a'\].disallowed_tools: .* write 'mcp__my_shop'",
    ),
    ({"hooks": on_bash("mcp__shop")}, r"'mcp__shop__\.\*' matches the tools"),
    ({"mcp_servers": servers("my shop"), "hooks": on_bash("Bash|mcp__my shop__f")}, "write 'mcp__my_shop__f'"),
    ({"mcp_servers": servers("@acme/shop"), "hooks": on_bash("mcp__@acme/shop__.*")}, "write 'mcp___acme_shop'"),
    ({"disallowed_tools": ["mcp__git hub"]}, "write 'mcp__git_hub'"),
    ({"settings": {"permissions": {"deny": ["mcp__a/b__x.*"]}}}, r"write 'mcp__a_b__x_\*'"),
    ({"hooks": on_bash("mcp__git hub__f")}, "write 'mcp__git_hub__f'"),
    ({"tools": ["read"]}, "it is 'Read'"),
    ({"hooks": on_bash("bash")}, "matches nothing: there is no tool 'bash'"),
    ({"hooks": on_bash("Bash|Edit"), "tools": ["Read"]}, "matches nothing: the model has no Bash"),
    ({"hooks": on_bash("Bash(git push:*)")}, "matches nothing: it is no rule; write 'Bash'"),
    ({"hooks": on_bash("Bash(rm *)")}, "matches nothing: it is no rule; write 'Bash'"),
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
    assert len(effective_policy(ph.Options(**settings)).warnings) == 1


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
        {"permission_mode": "bypassPermissions", "can_use_tool": ask, "settings": {"permissions": {"ask": ["Bash"]}}},
        {
            "permission_mode": "bypassPermissions",
            "can_use_tool": ask,
            "mcp_servers": servers("shop"),
            "settings": {"permissions": {"ask": ["mcp__shop__buy"]}},
        },
        {"disallowed_tools": ["*", "mcp__*", "NewToolOfTomorrow"]},
        {"tools": ["Read"], "disallowed_tools": ["Bash"]},
        {"tools": ["Read"], "hooks": on_bash("Read|Bash")},
        {"tools": ["Read"], "hooks": on_bash("mcp__.*")},
        {"tools": ["Read"], "hooks": on_bash("NewToolOfTomorrow")},
        {"hooks": on_bash("Bash(.*)")},
        {"hooks": on_bash("Bash(Output)")},
        {"hooks": {"PreToolUse": hook, "Stop": hook}},
        {"disallowed_tools": ["Web*", "mcp__*__delete", "mcp__github"]},
        {"mcp_servers": servers("shop"), "disallowed_tools": ["mcp__payments"]},
        {"mcp_servers": servers("my.shop"), "disallowed_tools": ["mcp__my_shop", "mcp__my_shop__get_*"]},
        {"mcp_servers": servers("my.shop"), "hooks": on_bash("mcp__my.shop__f")},
        {"mcp_servers": servers("a__b"), "disallowed_tools": ["mcp__a__b"]},
        {"mcp_servers": servers("a", "a_b", "ab", "a-b"), "disallowed_tools": ["mcp__a"]},
        {"mcp_servers": servers("a__b"), "allowed_tools": ["mcp__a__b__*"]},
        *({"preset": name} for name in PRESETS),
    ],
)
def test_what_makes_sense_is_quiet(settings: Any) -> None:
    given = settings.get("preset")
    options = ph.Options(**settings) if given is None else ph.Options.preset(given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ph.Agent(options)
    assert effective_policy(options).warnings == ()


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
    assert effective_policy(agent).outcome("Write") == "unavailable"
    assert effective_policy(agent.with_options(ph.Options.preset("full"))).outcome("Write") == "runs"


def test_an_unknown_preset_names_the_nearest() -> None:
    name: Any = "readonly"
    with pytest.raises(ph.OptionsError, match="there is no preset 'readonly'; did you mean 'read_only'"):
        ph.Options.preset(name)


def test_another_peer_may_decide_otherwise() -> None:
    def noted(policy: Policy) -> bool:
        return any("native engine" in note for note in policy.notes)

    assert noted(effective_policy(ph.Options(transport=NativeTransport)))
    assert not noted(effective_policy(ph.Options()))


def test_the_policy_knows_that_nothing_else_is_loaded() -> None:
    unseen = effective_policy(ph.Options(isolation="strict")).unseen
    assert [text.partition(" of")[0] for text in unseen] == ["managed settings"]


@pytest.mark.requirement("E76")
def test_a_policy_shows_no_key() -> None:
    key = "sk-ant-of-a-policy"
    servers: Any = {"box": {"type": "http", "url": f"https://x/?t={key}", "headers": {"A": key}}}
    agent = ph.Agent(api_key=key, env={"A_TOKEN": key}, mcp_servers=servers, settings={"env": {"B_KEY": key}})
    policy = effective_policy(agent)
    assert key not in f"{policy} {policy!r} {policy.rows!r} {policy.unseen!r}"
