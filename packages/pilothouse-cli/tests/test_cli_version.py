"""How the command asks a `claude` for its version: bounded, without keys, and nothing is left of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from process_checks import eventually, is_dead

from pilothouse.errors import CLIVersionError, PilothouseError
from pilothouse_cli import cli_version
from pilothouse_cli.cli_version import ask_version

pytestmark = pytest.mark.anyio

KEY = "sk-ant-very-secret-0123456789"
ENV = {"PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": KEY}
SAY = "echo '2.1.0 (Claude Code)'"


def make_cli(directory: Path, body: str) -> str:
    path = directory / "claude"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_it_sees_no_keys_and_no_configuration(tmp_path: Path) -> None:
    path = make_cli(tmp_path, f'env > "{tmp_path}/seen"; ls -A "$CLAUDE_CONFIG_DIR" > "{tmp_path}/found"; {SAY}')
    env = {**ENV, "CLAUDE_CONFIG_DIR": str(Path.home()), "NODE_OPTIONS": "--bad", "NVM_DIR": "/nvm"}
    assert await ask_version(path, env) == "2.1.0"
    text = (tmp_path / "seen").read_text()
    seen = dict(line.split("=", 1) for line in text.splitlines())
    assert KEY not in text
    assert "NODE_OPTIONS" not in seen
    assert (seen["PATH"], seen["NVM_DIR"]) == (ENV["PATH"], "/nvm")
    assert (tmp_path / "found").read_text() == ""
    assert not Path(seen["CLAUDE_CONFIG_DIR"]).exists()
    assert seen["CLAUDE_CONFIG_DIR"] != str(Path.home())


@pytest.mark.parametrize(
    "body",
    [
        "sleep 31",
        "sleep 31 & echo $! >> '{pids}'; wait",
        "trap '' TERM INT HUP; while :; do sleep 0.05; done",
        "yes",
        "yes >&2",
    ],
)
async def test_what_does_not_end_is_ended(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_version, "ANSWER_SECONDS", 0.3)
    pids = tmp_path / "pids"
    path = make_cli(tmp_path, f"echo $$ >> '{pids}'\n" + body.format(pids=pids))
    started = time.monotonic()
    with pytest.raises(CLIVersionError, match=r"does not work: .*(within 0\.3 s|not print a version|killed)"):
        await ask_version(path, ENV)
    assert time.monotonic() - started < 8
    if sys.platform == "linux":
        for pid in map(int, pids.read_text().split()):
            eventually(lambda pid=pid: is_dead(pid), f"{pid} lives on")


async def test_what_it_leaves_running_does_not_hold_the_answer_up(tmp_path: Path) -> None:
    path = make_cli(tmp_path, f"sleep 31 & echo $! > '{tmp_path}/pid'; {SAY}")
    started = time.monotonic()
    assert await ask_version(path, ENV) == "2.1.0"
    assert time.monotonic() - started < 5
    if sys.platform == "linux":
        pid = int((tmp_path / "pid").read_text())
        eventually(lambda: is_dead(pid), "it lives on")


@pytest.mark.requirement("R1")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo claude, version 5.2.21", "did not print a version, so it is probably not Claude Code"),
        ("echo hello", "did not print a version"),
        ("echo 2.1.0; exit 3", "ended with exit code 3"),
        ("echo nothing works here >&2; exit 1", "exit code 1.*standard error: nothing works here"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
    ],
)
async def test_a_program_without_a_version_is_an_error(body: str, words: str, tmp_path: Path) -> None:
    path = make_cli(tmp_path, body)
    with pytest.raises(CLIVersionError, match=f"{path} does not work: .*{words}"):
        await ask_version(path, ENV)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/nowhere/node\n", "the interpreter in its first line"),
        (b"#!/usr/bin/env nosuchnode\n", "exit code 127.*nosuchnode"),
        (b"\0\1\2\3" * 100, "not a program for this system"),
        (None, "no such file"),
    ],
)
async def test_what_cannot_start(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o755)
    with pytest.raises(PilothouseError, match=words) as caught:
        await ask_version(str(path), ENV)
    assert str(path) in str(caught.value)


@pytest.mark.real_cli
@pytest.mark.requirement("R1")
async def test_the_real_one(real_cli: str) -> None:
    before = set(Path.home().rglob("*"))
    assert await ask_version(real_cli, {"HOME": str(Path.home()), "PATH": os.defpath})
    assert set(Path.home().rglob("*")) == before
