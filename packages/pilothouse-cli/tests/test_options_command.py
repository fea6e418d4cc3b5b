"""`pilothouse options`: the table, one option in full, what is set here; and that it says what the table says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_process import Command

from pilothouse.options import TABLE
from pilothouse_cli.arguments import get_flag, parse


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    (directory / ".git").mkdir(parents=True)
    return directory


@pytest.mark.requirement("E46", "L62")
def test_every_option_is_listed_with_its_documentation(pilothouse: Command, place: Path) -> None:
    ran = pilothouse.run("options", cwd=place)
    assert (ran.code, ran.err) == (0, "")
    words = " ".join(ran.out.split())
    for option in TABLE.values():
        assert f" {option.name} {option.doc} " in words
        assert f"{option.group}: " in words


@pytest.mark.requirement("E46", "L62")
def test_one_option_in_full(pilothouse: Command, place: Path) -> None:
    (place / "pilothouse.toml").write_text("max_turns = 7\n")
    ran = pilothouse.run("options", "max-turns", "--config", "pilothouse.toml", cwd=place)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "max_turns", f"  {TABLE['max_turns'].doc}", "  value:        a whole number of at least 1",
        "  default:      None", "  goes to:      `--max-turns`", "  file:         max_turns",
        "  variable:     PILOTHOUSE_MAX_TURNS", "  command line: pilothouse ask --max-turns",
        f"  here:         7  ({place / 'pilothouse.toml'}:1)",
    ]  # fmt: skip
    secret = pilothouse.run("options", "api_key", cwd=place, env={"PILOTHOUSE_API_KEY": "sk-ant-hidden"})
    assert "not from a file" in secret.out
    assert "[redacted]  (PILOTHOUSE_API_KEY)" in secret.out
    assert "hidden" not in secret.out


def test_an_unknown_option_has_a_near_one(pilothouse: Command, place: Path) -> None:
    ran = pilothouse.run("options", "max-trns", cwd=place)
    assert ran.code == 2
    assert "unknown option 'max_trns'; did you mean '--max-turns'?" in ran.out


@pytest.mark.requirement("L62")
def test_what_is_set_here_and_where(pilothouse: Command, place: Path) -> None:
    file = place / "pyproject.toml"
    file.write_text('[tool.pilothouse]\nmodel = "opus"\nmax_turns = 3\n')
    env = {"PILOTHOUSE_MODEL": "hidden by the file", "PILOTHOUSE_EFFORT": "low", "PILOTHOUSE_CONFIG": str(file)}
    ran = pilothouse.run("options", "--explain", cwd=place, env=env)
    assert ran.out.splitlines() == [
        f"model      'opus'  {file}:2",
        "effort     'low'   PILOTHOUSE_EFFORT",
        f"max_turns  3       {file}:3",
    ]
    rows = json.loads(pilothouse.run("options", "--explain", "--json", cwd=place, env=env).out)
    assert [(row["name"], row["now"], row["from"]) for row in rows] == [
        ("model", "'opus'", f"{file}:2"),
        ("effort", "'low'", "PILOTHOUSE_EFFORT"),
        ("max_turns", "3", f"{file}:3"),
    ]
    file.write_text("[tool.pilothouse]\nmodel = 5\n")
    ran = pilothouse.run("options", "--explain", cwd=place, env=env)
    assert (ran.code, f"{file}:2: option 'model': expected" in ran.out) == (2, True)


def test_the_whole_table_as_json(pilothouse: Command, place: Path) -> None:
    rows = json.loads(pilothouse.run("options", "--json", cwd=place).out)
    assert [row["name"] for row in rows] == list(TABLE)
    assert all(row["from"] == "default" for row in rows)
    assert {row["name"]: row["flag"] for row in rows}["add_dirs"] == "--add-dir"


@pytest.mark.requirement("E46")
def test_every_option_that_can_be_text_is_a_flag_of_ask(capsys: pytest.CaptureFixture[str]) -> None:
    for option in TABLE.values():
        flag = get_flag(option)
        assert (flag is None) == (option.secret or option.value_type.parse is None), option.name
        if flag is not None:
            with pytest.raises(SystemExit):
                parse(["ask", "hi", f"{flag}-not"])
            assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.requirement("L62")
def test_flags_of_the_command_win_over_file_and_variables(pilothouse: Command, place: Path) -> None:
    from pilothouse_testing import FakeCLI

    (place / "pilothouse.toml").write_text('model = "file"\nstrict_mcp_config = true\nfallback_model = "haiku"')
    with FakeCLI().text("done") as fake:
        ran = pilothouse.run(
            *("ask", "hi", "--config", "pilothouse.toml", "--cli", fake.path),
            *("--model", "flag", "--no-strict-mcp-config", "--title", "T"),
            cwd=place,
        )
        assert (ran.code, ran.out) == (0, "done\n")
        [call] = fake.calls
    assert {"--model=flag", "--fallback-model=haiku"} <= set(call.argv)
    assert "--strict-mcp-config" not in call.argv


def test_the_policy_of_this_place(pilothouse: Command, place: Path) -> None:
    (place / "pilothouse.toml").write_text('tools = ["Read", "Bash"]\nallowed_tools = ["Bash(git:*)"]\n')
    env = {"PILOTHOUSE_PERMISSION_MODE": "acceptEdits", "PILOTHOUSE_CONFIG": "pilothouse.toml"}
    ran = pilothouse.run("options", "--policy", cwd=place, env=env)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("permission mode: acceptEdits (--permission-mode, PILOTHOUSE_PERMISSION_MODE): ")
    assert f"runs unasked:\n  Bash(git:*): --allowed-tools, {place / 'pilothouse.toml'}:2\n" in ran.out
    assert "--setting-sources '' loads none" in ran.out
    assert "--strict-mcp-config excludes them" in ran.out
    assert """--settings '{"disableSkillShellExecution": true}' forbids them""" in ran.out
    assert "--allowed-tools removes no tool" in pilothouse.run(
        "options", "--policy", cwd=place, env={"PILOTHOUSE_ALLOWED_TOOLS": "Read"}
    ).out  # fmt: skip
    assert not re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|no function|=True|=\[", ran.out.replace(str(place), ""))
    reported = json.loads(
        pilothouse.run("options", "--policy", "--json", cwd=place, env={"PILOTHOUSE_CONFIG": "pilothouse.toml"}).out
    )
    assert reported["mode"] == "default"
    assert {"tool": "Read", "calls": "in its directories", "outcome": "runs"}.items() <= reported["rows"][1].items()
