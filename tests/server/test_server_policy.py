"""Which wishes of clients a host takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilothouse.options import Options, PrivateFile, render
from pilothouse.server.policy import DEFAULT_ENV, TOKEN_VARIABLE, Policy, Refusal, Wish

ARGV = ("--print", "--verbose")
BASE = {"PATH": "/bin", "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-host", TOKEN_VARIABLE: "x" * 20, "CLAUDECODE": "1"}


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    for name in ("root/sub", "root-too", "second"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to("/")
    (tmp_path / "root" / "beside").symlink_to(tmp_path / "second")
    return Policy("/bin/claude", (str(tmp_path / "root"), str(tmp_path / "second")), DEFAULT_ENV, BASE)


def test_what_a_program_renders_is_taken(policy: Policy, tmp_path: Path) -> None:
    options = Options(
        model="opus",
        allowed_tools=["Read", "Bash(git log:*)"],
        system_prompt="x" * 20_000,
        mcp_servers={"s": {"type": "stdio", "command": "server"}},
        settings='{"a": 1}',
        add_dirs=[str(tmp_path / "second")],
        resume="0b0c0d0e-0000-4000-8000-000000000000",
        extra_args={"some-new-flag": "value", "switch": None},
        cwd=str(tmp_path / "root" / "sub"),
    )
    made = render(options, {})
    admitted = policy.admit(Wish(made.argv, made.tail, made.files, {"ANTHROPIC_MODEL": "x"}, made.cwd))
    assert (admitted.argv, admitted.files, admitted.cwd) == (made.argv, made.files, made.cwd)
    assert admitted.cli == "/bin/claude"
    assert dict(admitted.env) == {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-host",
        "ANTHROPIC_MODEL": "x",
    }
    prompt = render(Options(prompt_via="argv"), {}, prompt="-what is this?")
    assert policy.admit(Wish(prompt.argv, prompt.tail)).tail == ("--print", "--", "-what is this?")


@pytest.mark.requirement("E84")
@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"argv": ("--verbose",)}, "no --print"),
        ({"argv": (*ARGV, "update")}, "--flag=value alone"),
        ({"argv": (*ARGV, "-c")}, "--flag=value alone"),
        ({"argv": (*ARGV, "--worktree=x")}, "--worktree: this host does not take it"),
        ({"argv": (*ARGV, "--bg")}, "outside of this session"),
        ({"argv": (*ARGV, "--plugin-url=https://x/y.zip")}, "fetches files from elsewhere"),
        ({"argv": (*ARGV, "--add-dir=/etc")}, "--add-dir: '/etc' is not below"),
        ({"argv": (*ARGV, "--add-dir=out/etc")}, "is not below"),
        ({"argv": (*ARGV, "--add-dir=../root-too")}, "is not below"),
        ({"argv": (*ARGV, "--settings=/etc/passwd")}, "is not below"),
        ({"argv": (*ARGV, "--debug-file=../../x")}, "is not below"),
        ({"argv": (*ARGV, "--resume=../../secret.jsonl")}, "and no path"),
        ({"argv": (*ARGV, "--model=" + "x" * 200_000)}, "too long"),
        ({"argv": (*ARGV, "--model=a\0b")}, "NUL"),
        ({"argv": ARGV, "tail": ("--print", "update")}, "could be a command"),
        ({"argv": ARGV, "tail": ("--print", "--worktree")}, "one prompt"),
        ({"argv": ARGV, "tail": ("mcp", "list")}, "one prompt"),
        ({"argv": ARGV, "cwd": "/"}, "cwd: '/' is not below"),
        ({"argv": ARGV, "cwd": "out"}, "is not below"),
        ({"argv": ARGV, "cwd": ".."}, "is not below"),
        ({"argv": ARGV, "cwd": "a\0b"}, "is not below"),
        ({"argv": ARGV, "cwd": "no/where"}, "there is no directory"),
        ({"argv": ARGV, "env": {"PATH": "/tmp"}}, "env: this host does not take 'PATH'"),
        ({"argv": ARGV, "env": {"LD_PRELOAD": None}}, "does not take 'LD_PRELOAD'"),
        ({"argv": ARGV, "env": {"ANTHROPIC_A=B": "x"}}, "cannot be set"),
        ({"argv": ARGV, "env": {"ANTHROPIC_A": "x\0"}}, "cannot be set"),
        ({"argv": ARGV, "files": (PrivateFile("settings", "/../x", b""),)}, "cannot be written"),
        ({"argv": ARGV, "files": (PrivateFile("a=b", ".json", b""),)}, "cannot be written"),
        ({"argv": ARGV, "files": (PrivateFile("plugin-url", ".json", b""),)}, "fetches"),
    ],
)
def test_what_is_refused(policy: Policy, wish: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal) as refused:
        policy.admit(Wish(**wish))
    assert words in str(refused.value)
    assert "sk-ant" not in str(refused.value)


def test_links_between_roots_and_relative_places(policy: Policy, tmp_path: Path) -> None:
    assert policy.admit(Wish(ARGV, cwd="beside")).cwd == str(tmp_path / "second")
    assert policy.admit(Wish(ARGV)).cwd == str(tmp_path / "root")
    assert policy.admit(Wish((*ARGV, "--add-dir=sub"))).argv[-1] == "--add-dir=sub"


def test_the_key_of_the_host_does_not_go_to_another_api(policy: Policy) -> None:
    elsewhere = {"ANTHROPIC_BASE_URL": "https://elsewhere.example"}
    assert dict(policy.admit(Wish(ARGV, env=elsewhere)).env) == {"PATH": "/bin", **elsewhere}
    own = {**elsewhere, "ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-client"}
    assert policy.admit(Wish(ARGV, env=own)).env["ANTHROPIC_API_KEY"] == "sk-ant-the-key-of-the-client"
    assert "ANTHROPIC_API_KEY" not in policy.admit(Wish(ARGV, env={"ANTHROPIC_API_KEY": None})).env
