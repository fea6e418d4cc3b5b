"""Rules: their text form, what they speak of, and how updates change them."""

from __future__ import annotations

import time

import pytest

from pilothouse.native.permissions import Rule, Rules
from pilothouse.native.permissions.rules import covers_command, covers_host, covers_path, wildcard


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
def test_text_form(text: str, tool: str, content: str | None) -> None:
    assert Rule.of(text) == Rule(tool, content)


@pytest.mark.parametrize("text", ["", "Bash(", "Bash)", "(x)", "Bash(x) y", "Bash (x)"])
def test_rule_that_cannot_be_read_forbids_but_never_allows(text: str) -> None:
    rules = Rules.of(allow=[text], deny=[text])
    assert rules.speaking("allow", "Bash") == ()
    assert bool(rules.speaking("deny", "Bash")) is ("Bash" in text)


@pytest.mark.parametrize(
    ("content", "command", "covers"),
    [
        ("ls:*", "ls", True),
        ("ls:*", "ls -l", True),
        ("ls:*", "lsof", False),
        ("ls *", "ls", True),
        ("ls *", "ls -l", True),
        ("ls *", "lsof", False),
        ("ls*", "lsof", True),
        ("ls", "ls -l", False),
        ("git * main", "git push origin main", True),
        ("git * main", "git push origin main2", False),
        ("git * x *", "git a x", False),
        ("* --version", "rm --version", True),
        ("a*a", "a", False),
    ],
)
def test_commands(content: str, command: str, covers: bool) -> None:
    assert covers_command(content, command) is covers


@pytest.mark.parametrize(
    ("content", "path", "covers"),
    [
        ("//etc/**", "/etc/passwd", True),
        ("//etc/**", "/etc", True),
        ("//etc/**", "/etcetera", False),
        ("//etc/passwd", "/etc/passwd", True),
        ("~/.ssh/**", "/home/u/.ssh/id", True),
        ("~/**", "/home/u2/x", False),
        ("/src/**", "/w/root/src/a/b", True),
        ("/src/**", "/w/root/cwd/src/a", False),
        ("src/**", "/w/root/cwd/src/a", True),
        ("./src", "/w/root/cwd/src/a", True),
        ("*.env", "/w/root/cwd/deep/er/x.env", True),
        ("*.env", "/w/root/x.env", False),
        (".env", "/w/root/cwd/.env", True),
        (".env", "/w/root/cwd/.environment", False),
        ("a/*/c", "/w/root/cwd/a/b/c", True),
        ("a/*/c", "/w/root/cwd/a/b/b/c", False),
        ("a/**/c", "/w/root/cwd/a/c", True),
        ("a/**/c", "/w/root/cwd/a/b/b/c", True),
        ("**", "/w/root/cwd/x", True),
        ("**", "/elsewhere", False),
        ("a?c", "/w/root/cwd/abc", True),
        ("a.c", "/w/root/cwd/abc", False),
    ],
)
def test_paths(content: str, path: str, covers: bool) -> None:
    assert covers_path(content, path, cwd="/w/root/cwd", root="/w/root", home="/home/u") is covers


def test_forbidding_takes_no_notice_of_capitals() -> None:
    for loosely in (True, False):
        found = covers_path("secret/**", "/w/SECRET/x", cwd="/w", root="/w", home="/h", loosely=loosely)
        assert found is loosely


def test_hosts() -> None:
    assert covers_host("domain:a.com", "a.com")
    assert not covers_host("domain:a.com", "b.a.com")
    assert not covers_host("a.com", "a.com")
    assert not covers_host("domain:*", "")


@pytest.mark.parametrize(
    ("rule", "tool", "behavior", "names"),
    [
        ("Read", "Grep", "allow", True),
        ("Read(x)", "Glob", "deny", True),
        ("Edit", "Write", "allow", True),
        ("Edit", "NotebookEdit", "deny", True),
        ("Write", "Edit", "allow", False),
        ("mcp__x", "mcp__x__y", "allow", True),
        ("mcp__x", "mcp__xy__z", "allow", False),
        ("mcp__x__*", "mcp__x__y", "allow", True),
        ("mcp__*", "mcp__x__y", "allow", False),
        ("mcp__*", "mcp__x__y", "deny", True),
        ("*", "Bash", "allow", False),
        ("*", "Bash", "deny", True),
    ],
)
def test_tools(rule: str, tool: str, behavior: str, names: bool) -> None:
    assert Rule.of(rule).names(tool, behavior) is names  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement("E83")
def test_updates() -> None:
    rules = Rules.of(allow=["Read"], deny=["Bash(rm *)"])
    value = {"toolName": "Bash", "ruleContent": "git push *"}
    more = rules.with_updates([{"type": "addRules", "behavior": "allow", "rules": [value], "destination": "session"}])
    assert more.allow == (Rule("Read"), Rule("Bash", "git push *"))
    assert more.deny == rules.deny
    fewer = more.with_updates(
        [{"type": "removeRules", "behavior": "deny", "rules": [{"toolName": "Bash", "ruleContent": "rm *"}]}]
    )
    assert fewer.deny == ()
    other = more.with_updates([{"type": "replaceRules", "behavior": "allow", "rules": [{"toolName": "Edit"}]}])
    assert other.allow == (Rule("Edit"),)
    ignored = [{"type": "setMode", "mode": "plan"}, {"type": "addRules", "behavior": "often", "rules": [value]}, {}]
    assert more.with_updates(ignored) == more
    literal = Rules().with_updates(
        [{"type": "addRules", "behavior": "allow", "rules": [{"toolName": "Bash", "ruleContent": "a (b"}]}]
    )
    assert literal.allow == (Rule("Bash", "a (b"),)


def test_hostile_patterns_take_no_time() -> None:
    began = time.process_time()
    assert not wildcard("*a" * 500 + "b", "a" * 50_000)
    assert not covers_path("**/a/" * 30 + "b", "/w" + "/a" * 60 + "/c", cwd="/w", root="/w", home="/h")
    assert time.process_time() - began < 20
