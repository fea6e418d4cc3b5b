"""Which configuration file a command reads: a named one, or the user's own; never one that lies there."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from command_process import Command

from pilothouse_cli.config import find_own_file
from pilothouse_testing import FakeCLI


@pytest.fixture
def fake() -> Generator[FakeCLI]:
    with FakeCLI() as made:
        yield made.text("Aye.").forever()


@pytest.fixture
def own(pilothouse: Command) -> Path:
    """The user's own file."""
    file = pilothouse.home / ".config" / "pilothouse" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('model = "own"\nmax_turns = 3\n')
    return file


def explained(
    pilothouse: Command, *flags: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> list[tuple[str, str, str]]:
    ran = pilothouse.run("options", "--explain", "--json", *flags, cwd=cwd, env=env)
    assert (ran.code, ran.err) == (0, "")
    return [(row["name"], row["now"], row["from"]) for row in json.loads(ran.out)]


@pytest.mark.requirement("E49", "L62")
def test_the_flag_wins_over_the_variable_and_that_over_the_users_file(
    pilothouse: Command, own: Path, tmp_path: Path
) -> None:
    of_variable, of_flag = tmp_path / "variable.toml", tmp_path / "flag.toml"
    of_variable.write_text('model = "variable"')
    of_flag.write_text('model = "flag"')
    assert explained(pilothouse) == [("model", "'own'", f"{own}:1"), ("max_turns", "3", f"{own}:2")]
    named = {"PILOTHOUSE_CONFIG": str(of_variable)}
    assert explained(pilothouse, env=named) == [("model", "'variable'", f"{of_variable}:1")]
    assert explained(pilothouse, "--config", "flag.toml", cwd=tmp_path, env=named) == [
        ("model", "'flag'", f"{of_flag}:1")
    ]
    empty = {"PILOTHOUSE_CONFIG": "", "PILOTHOUSE_MODEL": "hidden by the file"}
    assert explained(pilothouse, env=empty)[0] == ("model", "'own'", f"{own}:1")


def test_the_users_file_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    for chosen in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", chosen)
        assert find_own_file() == Path("/home/alice/.config/pilothouse/config.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_own_file() == tmp_path / "pilothouse" / "config.toml"


@pytest.mark.requirement("E49")
@pytest.mark.parametrize("name", ["pilothouse.toml", "pyproject.toml", "config.toml", ".config/pilothouse/config.toml"])
@pytest.mark.parametrize("command", [("ask", "hi"), ("chat", "hi"), ("batch", "prompts.txt"), ("doctor", "--quick")])
def test_no_command_reads_a_file_that_lies_there(
    pilothouse: Command, fake: FakeCLI, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    clone = tmp_path / "clone"
    file, canary = clone / name, tmp_path / "ran"
    file.parent.mkdir(parents=True)
    (clone / ".git").mkdir()
    (clone / "prompts.txt").write_text("hi\n")
    program = clone / "claude"
    program.write_text(f"#!/bin/sh\ntouch {canary}\necho '2.1.330 (Claude Code)'\n")
    program.chmod(0o755)
    header = "[tool.pilothouse]\n" if name == "pyproject.toml" else ""
    file.write_text(f'{header}cli = "{program}"\nmax_turns = 1\n')
    env = {"PILOTHOUSE_CLI": str(fake.path), "ANTHROPIC_API_KEY": "sk-ant-victim"}
    ran = pilothouse.run(*command, cwd=clone, env=env)
    assert not canary.exists()
    assert name not in ran.out + ran.err or command[0] == "doctor"
    assert not [flag for call in fake.calls for flag in call.argv if flag.startswith("--max-turns")]


@pytest.mark.parametrize(
    "command", [("ask", "hi"), ("chat", "hi"), ("batch", "prompts.txt"), ("worker", "--until-empty")]
)
def test_queries_of_a_command_have_the_settings_of_the_file(
    pilothouse: Command, fake: FakeCLI, own: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    own.write_text(f'cli = "{fake.path}"\nmax_turns = 3\n')
    (tmp_path / "prompts.txt").write_text("hi\n")
    env = {"ANTHROPIC_API_KEY": "sk-ant-x", "PILOTHOUSE_JOURNAL": str(tmp_path / "runs.db")}
    if command[0] == "worker":
        assert pilothouse.run("batch", "prompts.txt", "--enqueue", cwd=tmp_path, env=env).code == 0
    ran = pilothouse.run(*command, cwd=tmp_path, env=env)
    assert (ran.code, "config.toml" in ran.out + ran.err) == (0, False)
    assert "--max-turns=3" in fake.calls[0].argv


@pytest.mark.requirement("E45", "L59")
@pytest.mark.parametrize("command", [("ask", "hi"), ("options",), ("serve", "--port", "0"), ("batch", "prompts.txt")])
def test_a_bad_file_is_one_line_and_nothing_is_started(
    pilothouse: Command, own: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    own.write_text('modle = "opus"\n')
    ran = pilothouse.run(*command)
    said = (ran.out + ran.err).splitlines()
    assert (ran.code, said) == (2, [f"pilothouse: {own}:1: unknown option 'modle'; did you mean 'model'?"])
    missing = tmp_path / "missing.toml"
    ran = pilothouse.run(*command, "--config", str(missing))
    assert (ran.code, (ran.out + ran.err).splitlines()) == (
        2,
        [f"pilothouse: there is no configuration file {missing}"],
    )
