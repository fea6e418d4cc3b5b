"""The commands that are printed as the next step work as they are printed, and `--local` brings what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_process import LIMIT_S, Command
from places import CORE, ROOT

from pilothouse.errors import PilothouseError
from pilothouse.options import Options
from pilothouse_cli.failures import describe_failure, find_key, get_own_command, lacks_key
from pilothouse_testing import FakeCLI, frames


def program(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "pilothouse"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_command_is_printed_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = program(tmp_path / ".venv" / "bin")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert get_own_command() == ".venv/bin/pilothouse"
    monkeypatch.setenv("PATH", str(path.parent))
    assert get_own_command() == "pilothouse"
    monkeypatch.setenv("PATH", str(program(tmp_path / "another").parent))
    assert get_own_command() == ".venv/bin/pilothouse"
    spaced = program(tmp_path / "my tools")
    monkeypatch.setattr(sys, "argv", [str(spaced)])
    assert get_own_command() == "'my tools/pilothouse'"
    monkeypatch.chdir("/")
    assert get_own_command() == f"'{spaced}'"
    monkeypatch.setattr(sys, "argv", [str(CORE / "__main__.py")])
    assert get_own_command() == f"{sys.executable} -m pilothouse"


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_local_installs_the_cli_that_is_missing(pilothouse: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("npm", "pip", "pip3"):
        client = tmp_path / "bin" / name
        client.write_text("#!/bin/sh\necho 'the registry is not there' >&2; exit 3\n")
        client.chmod(0o755)
    env = {
        "PATH": f"{tmp_path / 'bin'}:/bin",
        "PILOTHOUSE_CACHE": str(tmp_path / "cache"),
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_RETRIES": "0",
    }
    ran = pilothouse.run(command, "--local", "hi", env=env)
    assert "downloading Claude Code" in ran.err
    assert ran.code != 0
    ran = pilothouse.run(command, "--local", "hi", env={**env, "PILOTHOUSE_INSTALL": "0"})
    assert "Claude Code was not found" in ran.err


def test_local_names_the_extra_that_is_missing(pilothouse: Command, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['xllamacpp'] = None\n")
    for command in ("ask", "chat"):
        env = {"PYTHONPATH": str(tmp_path), "PILOTHOUSE_CACHE": str(tmp_path / "cache")}
        ran = pilothouse.run(command, "--local", "hi", env=env)
        assert "the local model needs an extra: pip install 'pilothouse[local]'" in ran.err
        assert "downloading" not in ran.err


def test_make_and_the_command_use_one_cache(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    shown = subprocess.run(["make", "-n", "demo"], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    assert ".venv/bin/pilothouse demo\n" in shown
    assert "PILOTHOUSE_CACHE" not in shown


def test_a_batch_without_a_key_names_the_same_three_ways(pilothouse: Command, tmp_path: Path) -> None:
    output, prompts = "Not logged in · Please run /login", tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\nfour\n")
    with FakeCLI() as fake:
        for _ in range(4):
            closing = frames.result(output, is_error=True)
            fake.turn(frames.init(), frames.assistant(output, error="authentication_failed"), closing)
        ran = pilothouse.run("batch", str(prompts), "--cli", fake.path)
        assert not fake.calls, "before the first prompt"
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 4)
        (tmp_path / ".claude").mkdir()
        (tmp_path / ".claude" / "settings.json").write_text("{}")  # it may name a program that prints a key
        ran = pilothouse.run("batch", str(prompts), "--cli", fake.path, cwd=tmp_path)
        assert fake.calls
    assert ran.code == 1
    for way in ("neither a key nor a login", "export ANTHROPIC_API_KEY=", "then /login", f"batch --local {prompts}"):
        assert way in ran.err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a login is in a keychain")
def test_a_batch_starts_where_a_login_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    empty = Options(cwd=tmp_path / "project")
    assert lacks_key(empty)
    (tmp_path / "account").mkdir()
    (tmp_path / "account" / ".credentials.json").write_text('{"claudeAiOauth": {}}')
    elsewhere = empty.with_(config_dir=tmp_path / "account")
    assert not lacks_key(elsewhere)
    assert find_key({}, elsewhere) == f"a login is stored in {tmp_path / 'account'}"
    for options in (empty.with_(user="nobody"), empty.with_(extra_args={"settings": "{}"})):
        assert not lacks_key(options)
    for name in ("CLAUDE_CODE_USE_MANTLE", "ANTHROPIC_PROFILE", "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR"):
        assert not lacks_key(empty.with_(env={name: "1"}))
    (tmp_path / ".claude").mkdir()
    for text, lacks in (("{}", True), ('{"env": {"CLAUDE_CODE_USE_MANTLE": "1"}}', False)):
        (tmp_path / ".claude" / "settings.json").write_text(text)
        assert lacks_key(empty) is lacks


def test_results_in_a_journal_need_no_key(pilothouse: Command, tmp_path: Path) -> None:
    prompts, journal = tmp_path / "prompts.txt", tmp_path / "runs.db"
    prompts.write_text("one\n")
    with FakeCLI() as fake:
        fake.turn(frames.init(), frames.assistant("1"), frames.result("1"))
        command = ("batch", str(prompts), "--journal", str(journal), "--cli", fake.path)
        assert pilothouse.run(*command, env={"ANTHROPIC_API_KEY": "x"}).code == 0
        again = pilothouse.run(*command)
    assert (again.code, "neither a key" in again.err, '"one"' in again.out or "1" in again.out) == (0, False, True)


@pytest.mark.parametrize(
    "said",
    [
        "API Error: 404 not_found_error: model: claude-9",
        "the working directory /home/max_turns does not exist",
        "the program ended: user: not found",
    ],
)
def test_words_of_others_are_no_options(said: str) -> None:
    assert describe_failure(PilothouseError(said)).line == said


def test_acp_does_not_write_to_a_file(pilothouse: Command, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        ran = subprocess.run(
            pilothouse.argv("acp"), input="", stdout=file, env=pilothouse.env, stderr=subprocess.PIPE, text=True,
            timeout=LIMIT_S,
        )  # fmt: skip
    says = "acp: standard output is a file: an editor starts this command; see docs/editors.md"
    assert (ran.returncode, ran.stderr) == (2, f"pilothouse: {says}\n")
    assert not (tmp_path / "file").read_bytes()


@pytest.mark.parametrize("given", ["/dev/null", "file", "terminal"])
def test_acp_needs_an_editor(pilothouse: Command, tmp_path: Path, given: str) -> None:
    (tmp_path / "file").touch()
    outside, inside = os.openpty() if given == "terminal" else (None, os.open(tmp_path / given, os.O_RDONLY))
    try:
        argv = pilothouse.argv("acp")
        ran = subprocess.run(argv, stdin=inside, env=pilothouse.env, capture_output=True, text=True, timeout=LIMIT_S)
    finally:
        os.close(inside)
        if outside is not None:
            os.close(outside)
    assert (ran.returncode, ran.stdout) == (2, "")
    says = "acp: standard input is not a pipe: an editor starts this command; see docs/editors.md"
    assert ran.stderr == f"pilothouse: {says}\n"


def test_a_wrong_limit_of_the_host_names_its_flag(pilothouse: Command) -> None:
    ran = pilothouse.run("serve", "--max-permission-mode", "yolo")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("pilothouse: --max-permission-mode: expected one of plan, ")
