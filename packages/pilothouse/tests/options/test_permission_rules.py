"""Permission rules: their text, the tools that they name, and how updates change a set of them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import UsageError
from pilothouse.options.permission_rules import (
    BEHAVIORS,
    PermissionBehavior,
    PermissionRule,
    RuleSet,
    matches_mcp_tool,
    normalize_mcp_name,
)

# --- one rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Bash", PermissionRule("Bash")),
        ("mcp__server__tool", PermissionRule("mcp__server__tool")),
        ("Bash(git:*)", PermissionRule("Bash", "git:*")),
        ("Bash()", PermissionRule("Bash")),
        ("Bash(*)", PermissionRule("Bash")),
        (r"Bash(python -c \"print\(1\)\")", PermissionRule("Bash", r"python -c \"print(1)\"")),
        ("Bash(echo $(date))", PermissionRule("Bash", "echo $(date)")),
        ("Bash(a\nb)", PermissionRule("Bash", "a\nb")),
    ],
)
def test_a_rule_is_read_as_the_cli_reads_it(text: str, rule: PermissionRule) -> None:
    assert PermissionRule.parse(text) == rule


@pytest.mark.parametrize(
    "text", ["", "(git)", "Bash(git", "Bash)", "Bash(git) ", "Bash)(x", ")(", r"Bash(x\)", r"Bash\(x)"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a permission rule"):
        PermissionRule.parse(text)


@given(st.text(string.ascii_letters + "_", min_size=1), st.text(min_size=1).filter(lambda text: text != "*"))
def test_a_rule_survives_its_own_text(name: str, content: str) -> None:
    rule = PermissionRule(name, content)
    assert PermissionRule.parse(str(rule)) == rule


# --- sets of rules


@pytest.mark.parametrize(
    ("text", "tool", "content"),
    [
        ("Bash", "Bash", None),
        ("Bash(*)", "Bash", None),
        ("Bash()", "Bash", None),
        (" Read(//etc/**) ", "Read", "//etc/**"),
        ("Bash(echo (a) b)", "Bash", "echo (a) b"),
        ("Bash(echo \\(a\\))", "Bash", "echo (a)"),
        ("mcp__x__y", "mcp__x__y", None),
        ("Task(a)", "Agent", "a"),
        ("Bash(a\nb)", "Bash", "a\nb"),
    ],
)
def test_a_set_reads_rules_from_text(text: str, tool: str, content: str | None) -> None:
    assert RuleSet.parse(allow=[text]).allow == (PermissionRule(tool, content),)


@pytest.mark.parametrize("text", ["", "Bash(", "Bash)", "(x)", "Bash(x) y", "Bash (x)"])
def test_rule_that_cannot_be_read_forbids_but_never_allows(text: str) -> None:
    rules = RuleSet.parse(allow=[text], deny=[text])
    assert rules.find_matching("allow", "Bash") == ()
    assert bool(rules.find_matching("deny", "Bash")) is ("Bash" in text)


@pytest.mark.parametrize(
    ("rule", "tool", "behavior", "names"),
    [
        ("Read", "Grep", "allow", False),
        ("Read(x)", "Glob", "deny", True),
        ("Edit", "Write", "allow", False),
        ("Edit", "NotebookEdit", "deny", True),
        ("Write", "Edit", "allow", False),
        ("mcp__x", "mcp__x__y", "allow", True),
        ("mcp__x", "mcp__xy__z", "allow", False),
        ("mcp__x__*", "mcp__x__y", "allow", True),
        ("mcp__x", "mcp__x__y__z", "allow", False),  # of a server x__y?
        ("mcp__x", "mcp__x___z", "allow", False),  # of a server x_?
        ("mcp__x", "mcp__x__y__z", "deny", True),
        ("mcp__x__*", "mcp__x__y__z", "allow", False),
        ("mcp__x__y_*", "mcp__x__y__z", "allow", False),
        ("mcp__x__y__*", "mcp__x__y__z", "allow", True),
        ("mcp__x__y__z", "mcp__x__y__z", "allow", True),
        ("mcp__*", "mcp__x__y", "allow", False),
        ("mcp__*", "mcp__x__y", "deny", True),
        ("mcp__x__y", "mcp__x__y__z", "allow", False),
        ("mcp__x__y", "mcp__x__y__z", "deny", True),
        ("mcp__x__get_*", "mcp__x__get_y", "allow", True),
        ("mcp__x__get_*", "mcp__x__set_y", "allow", False),
        ("mcp__x__get_?", "mcp__x__get_y", "allow", False),
        ("mcp__x__get_?", "mcp__x__get_y", "ask", True),
        ("mcp__o*", "mcp__own__y", "allow", False),
        ("mcp__o*", "mcp__own__y", "deny", True),
        ("mcp", "mcp__x__y", "allow", False),
        ("mcp", "mcp__x__y", "deny", True),
        ("*", "Bash", "allow", False),
        ("*", "Bash", "deny", True),
    ],
)
def test_which_tools_a_rule_names(rule: str, tool: str, behavior: PermissionBehavior, names: bool) -> None:
    rules = RuleSet.parse(**{behavior: [rule]})
    assert bool(rules.find_matching(behavior, tool)) is names


@pytest.mark.requirement("E83")
def test_updates_change_a_set() -> None:
    rules = RuleSet.parse(allow=["Read"], deny=["Bash(rm *)"])
    value = {"toolName": "Bash", "ruleContent": "git push *"}
    more = rules.with_updates([{"type": "addRules", "behavior": "allow", "rules": [value], "destination": "session"}])
    assert more.allow == (PermissionRule("Read"), PermissionRule("Bash", "git push *"))
    assert more.deny == rules.deny
    fewer = more.with_updates(
        [{"type": "removeRules", "behavior": "deny", "rules": [{"toolName": "Bash", "ruleContent": "rm *"}]}]
    )
    assert fewer.deny == ()
    other = more.with_updates([{"type": "replaceRules", "behavior": "allow", "rules": [{"toolName": "Edit"}]}])
    assert other.allow == (PermissionRule("Edit"),)
    ignored = [{"type": "setMode", "mode": "plan"}, {"type": "addRules", "behavior": "often", "rules": [value]}, {}]
    assert more.with_updates(ignored) == more
    literal = RuleSet().with_updates(
        [{"type": "addRules", "behavior": "allow", "rules": [{"toolName": "Bash", "ruleContent": "a (b"}]}]
    )
    assert literal.allow == (PermissionRule("Bash", "a (b"),)


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("Bash(git", "Bash"),
        ("Bash(git)x", "Bash"),
        ("Bash)", "Bash"),
        ("Bash (git)", "Bash"),
        (r"Bash(x\)", "Bash"),
        ("(Bash)", "Bash"),
    ],
)
def test_what_is_no_rule_denies_the_whole_tool_and_allows_nothing(text: str, tool: str) -> None:
    rules = RuleSet.parse(allow=[text], ask=[text], deny=[text])
    assert (rules.allow, rules.ask, rules.deny) == ((), (PermissionRule(tool),), (PermissionRule(tool),))
    for behavior in BEHAVIORS:
        update = {"type": "addRules", "behavior": behavior, "rules": [{"toolName": text}]}
        found = RuleSet().with_updates([update]).find_matching(behavior, tool)
        assert found == (() if behavior == "allow" else (PermissionRule(tool),))


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("io.github.acme/shop", "io_github_acme_shop"),
        ("@acme/shop", "_acme_shop"),
        ("läden", "l_den"),
        ("a b\tc", "a_b_c"),
        ("\U0001f6d2cart", "__cart"),
        ("Upper-case__kept_", "Upper-case__kept_"),
        ("claude.ai My  Shop!", "claude_ai_My_Shop"),
    ],
)
def test_names_of_mcp_servers_are_normalized(name: str, normalized: str) -> None:
    assert normalize_mcp_name(name) == normalized


# The rule; a server and its tool; whether a rule that denies applies, and one that allows. As in CLI 2.1.332.
MCP_RULES = [
    ("mcp__shop", "shop", "f", True, True),
    ("mcp__shop", "shop", None, True, True),
    ("mcp__shop", "Shop", "f", False, False),
    ("mcp__shop__*", "shop", None, True, True),
    ("mcp__shop__f", "shop", "f", True, True),
    ("mcp__shop__f", "shop", None, False, False),
    ("mcp__shop__g*", "shop", "get", True, True),
    ("mcp__shop__*__f", "shop", "f", False, False),
    ("mcp__shop__", "shop", "f", False, False),
    ("mcp__shop*", "shop", "f", True, False),
    ("mcp__*__f", "shop", "f", True, False),
    ("mcp__*", "shop", None, True, False),
    ("*", "shop", None, True, False),
    ("mcp__s?op", "shop", "f", False, False),
    ("mcp__a", "a__b", "f", True, False),
    ("mcp__a__b", "a__b", "f", True, False),
    ("mcp__a__b", "a", "b", True, True),
    ("mcp__a__b__*", "a__b", None, True, True),
    ("mcp__a__b__f", "a__b", "f", True, True),
    ("mcp__last_", "last_", "f", True, False),
    ("mcp__last___*", "last_", "f", True, True),
    ("mcp____k", "__k", "f", True, False),
    ("mcp____k__*", "__k", "f", True, False),
    ("mcp__", "__k", "f", False, False),
]


@pytest.mark.parametrize(("rule", "server", "tool", "denies", "allows"), MCP_RULES)
def test_which_tools_of_a_server_a_rule_covers(
    rule: str, server: str, tool: str | None, denies: bool, allows: bool
) -> None:
    assert matches_mcp_tool(rule, "deny", server, tool) is denies
    assert matches_mcp_tool(rule, "ask", server, tool) is denies
    assert matches_mcp_tool(rule, "allow", server, tool) is allows


def test_a_rule_without_a_path_allows_one_tool() -> None:
    """As in the CLI: `Edit` allows no new file, and `Read(*)` nothing outside of the directory."""
    rules = RuleSet.parse(allow=["Edit", "Read", "Glob(*)"], deny=["Edit", "Read"], ask=["Edit(a)"])
    for tool in ("Write", "NotebookEdit", "Grep"):
        assert not rules.find_matching("allow", tool)
        assert rules.find_matching("deny", tool)
    for tool, content in (("Edit", None), ("Read", None), ("Glob", "*")):
        assert rules.find_matching("allow", tool) == (PermissionRule(tool, content),)
    assert rules.find_matching("ask", "Write")
    for tool in ("Edit", "Read"):
        paths = RuleSet.parse(allow=[f"{tool}(a/**)"])
        assert paths.find_matching("allow", {"Edit": "Write", "Read": "Grep"}[tool])
        assert RuleSet.parse(allow=[f"{tool}(*)"], deny=[f"{tool}(*)"]) == RuleSet(
            deny=(PermissionRule(tool),), allow=(PermissionRule(tool, "*"),)
        )


def test_what_is_no_rule_takes_no_rule_away() -> None:
    rules = RuleSet.parse(deny=["Bash"], ask=["Bash"], allow=["Bash"])
    updates = [
        {"type": "removeRules", "behavior": behavior, "rules": [{"toolName": "Bash("}, {"toolName": ""}]}
        for behavior in BEHAVIORS
    ]
    assert rules.with_updates(updates) == rules


def test_a_set_keeps_a_doubled_backslash_and_a_rule_does_not() -> None:
    text = r"Bash(grep a\\.b \(c\))"
    assert RuleSet.parse(allow=[text]).allow == (PermissionRule("Bash", r"grep a\\.b (c)"),)
    assert PermissionRule.parse(text) == PermissionRule("Bash", r"grep a\.b (c)")


@pytest.mark.parametrize("updates", [None, "nonsense", 7, [7, None], [{"type": "addRules", "behavior": ["allow"]}]])
def test_what_is_no_update_changes_nothing(updates: object) -> None:
    rules = RuleSet.parse(allow=["Read"])
    assert rules.with_updates(updates) == rules
    none = {"type": "addRules", "behavior": "allow", "rules": updates}
    assert rules.with_updates([none]) == rules


@given(st.text("Bash()\\ *:m_cp\n"))
def test_no_text_is_too_odd_for_a_set(text: str) -> None:
    rules = RuleSet.parse(allow=[text], deny=[text])
    assert len(rules.allow) <= len(rules.deny)
    assert [*map(str, rules.allow)] == [str(rule) for rule in rules.deny if rules.allow]
