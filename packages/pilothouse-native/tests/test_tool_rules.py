"""What the content of a rule matches: commands, paths, hosts."""

from __future__ import annotations

import time

import pytest

from pilothouse.options.permission_rules import matches_wildcard
from pilothouse_native.permissions import allows_command, matches_host, matches_path


@pytest.mark.parametrize(
    ("content", "command", "allows"),
    [
        ("ls:*", "ls", True),
        ("ls:*", "ls -l", True),
        ("ls:*", "ls   -l", True),
        ("ls:*", "lsof", False),
        ("ls *", "ls", True),
        ("ls *", "ls -l", True),
        ("ls *", "lsof", False),
        ("ls *", "/bin/ls", False),
        ("npm run *", "npm run", True),
        ("npm run *", "npm run a b", True),
        ("npm run *", "npm install", False),
        ("npm run *", "npm runs", False),
        ("ls*", "lsof", False),
        ("ls*", "ls*", True),
        ("ls *.txt", "ls *.txt", True),
        ("ls *.txt", "ls a.txt", False),
        ("ls", "ls", True),
        ("ls", "ls -l", False),
        ("ls", "ls ", False),
        ("ls", " ls", False),
        ("git * main", "git push main", False),
        ("* --version", "rm --version", False),
        (":*", "ls", False),
        (" *", "ls", False),
        ("* *", "ls", False),
        ("echo $(date)", "echo $(date)", True),
        ("echo $(date):*", "echo $(date) x", False),
    ],
)
def test_commands(content: str, command: str, allows: bool) -> None:
    assert allows_command(content, command) is allows


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
        ("src/**", "/w/root/src/a", True),
        ("src/**", "/w/root/cwd/src/a", False),
        ("./src", "/w/root/src/a", True),
        ("./.env", "/w/root/.env", True),
        ("./.env", "/w/root/cwd/.env", True),
        ("/./.env", "/w/root/.env", True),
        ("**/.env", "/w/root/cwd/.env", True),
        ("*.env", "/w/root/deep/er/x.env", True),
        ("*.env", "/w/x.env", False),
        (".env", "/w/root/.env", True),
        (".env", "/w/root/.environment", False),
        ("a/*/c", "/w/root/a/b/c", True),
        ("a/*/c", "/w/root/a/b/b/c", False),
        ("a/**/c", "/w/root/a/c", True),
        ("a/**/c", "/w/root/a/b/b/c", True),
        ("**", "/w/root/x", True),
        ("**", "/elsewhere", False),
        ("a?c", "/w/root/cwd/abc", True),
        ("a.c", "/w/root/cwd/abc", False),
    ],
)
def test_paths(content: str, path: str, covers: bool) -> None:
    assert matches_path(content, path, root="/w/root", home="/home/u") is covers


def test_forbidding_takes_no_notice_of_capitals() -> None:
    for loosely in (True, False):
        found = matches_path("secret/**", "/w/SECRET/x", root="/w", home="/h", is_loose=loosely)
        assert found is loosely


def test_forbidding_a_folder_forbids_it_anywhere() -> None:
    """As in the CLI, where `secret/**` means `secret`, and blanks at the end nothing."""
    for content in ("secret/**", "./secret/**", "secret/** ", "secret"):
        assert matches_path(content, "/w/in/secret/x", root="/w", home="/h", is_loose=True), content
    for content in ("/secret/**", "a/secret/**", "in/secre/**"):
        assert not matches_path(content, "/w/in/secret/x", root="/w", home="/h", is_loose=True), content
    assert not matches_path("secret/**", "/w/in/secret/x", root="/w", home="/h")
    assert matches_path("secret/x ", "/w/secret/x", root="/w", home="/h", is_loose=True)


def test_hosts() -> None:
    assert matches_host("domain:a.com", "a.com")
    assert not matches_host("domain:a.com", "b.a.com")
    assert not matches_host("a.com", "a.com")
    assert not matches_host("domain:*", "")
    for host in ("\uff45vil.org", "evil\u3002org", "evil.org.", "EVIL.org", "\u24d4vil.org"):
        assert matches_host("domain:evil.org", host), host
    assert matches_host("domain:b\u00fccher.de", "xn--bcher-kva.de")
    assert matches_host("domain:*.evil.org", "a.\uff45vil.org")


def test_hostile_patterns_take_no_time() -> None:
    began = time.process_time()
    assert not matches_wildcard("*a" * 500 + "b", "a" * 50_000)
    assert not matches_path("**/a/" * 30 + "b", "/w" + "/a" * 60 + "/c", root="/w", home="/h")
    assert time.process_time() - began < 20
