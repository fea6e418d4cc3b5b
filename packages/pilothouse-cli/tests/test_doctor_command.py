"""`pilothouse doctor`: what it finds, what it says to do, its exit code; and that it shows no secret."""

from __future__ import annotations

import json
import os
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from command_process import Command, Ran

from pilothouse.provision.artifacts import load_pins
from pilothouse_cli.cli_version import ask_version
from pilothouse_cli.doctor import OLD_PIN_DAYS, check_pin
from pilothouse_testing import FakeCLI

PINS = load_pins().cli
SECRET = "sk-ant-must-never-be-shown"


class Doctor:
    """The command in a directory of its own, and what it found, by what was looked at."""

    def __init__(self, command: Command, directory: Path) -> None:
        self.command = command
        self.directory = directory
        directory.mkdir()
        (directory / ".git").mkdir()

    def run(self, *args: str, **env: str) -> Ran:
        """With a key, unless `env` says otherwise."""
        return self.command.run("doctor", *args, cwd=self.directory, env={"ANTHROPIC_API_KEY": SECRET, **env})

    def findings(self, *args: str, code: int = 0, **env: str) -> dict[str, list[dict[str, Any]]]:
        ran = self.run("--json", *args, **env)
        assert ran.code == code
        assert SECRET not in ran.err
        body = json.loads(ran.out)
        assert body["ok"] is (code == 0)
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in body["findings"]:
            found.setdefault(finding["what"], []).append(finding)
        assert SECRET not in ran.out
        return found


@pytest.fixture
def doctor(pilothouse: Command, tmp_path: Path) -> Doctor:
    return Doctor(pilothouse, tmp_path / "place")


@pytest.fixture
def claude() -> Any:
    with FakeCLI.shell('[ "$1" = --version ] && echo "2.1.330 (Claude Code)"') as fake:
        yield fake.path


@pytest.mark.real_cli
@pytest.mark.requirement("L62", "E49")
def test_a_healthy_place(doctor: Doctor, real_cli: str) -> None:
    (file := doctor.directory / "pilothouse.toml").write_text('model = "opus"\nmax_turns = 4')
    version = anyio.run(ask_version, real_cli, os.environ)
    ran = doctor.run("--cli", real_cli, "--config", str(file), ANTHROPIC_API_KEY=SECRET, PILOTHOUSE_EFFORT="low")
    assert (ran.code, ran.err) == (0, "")
    assert SECRET not in ran.out
    for part in (
        "ok    configuration: ", "pilothouse.toml sets model, max_turns", "ok    variables: ", "PILOTHOUSE_EFFORT",
        f"cli: Claude Code {version} at {real_cli}", "ok    pin: Claude Code ",
        "ok    key: ANTHROPIC_API_KEY is set", "open files: ",
        f"ok    round trip: Claude Code {version} answered the scripted model in ",
        "Everything that a query needs is set up.",
    ):  # fmt: skip
        assert part in ran.out


@pytest.mark.real_cli
def test_the_round_trip_reads_nothing_of_this_place(doctor: Doctor, real_cli: str) -> None:
    home = Path(doctor.command.env["HOME"])
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "settings.json").write_text("{ broken")
    found = doctor.findings("--cli", real_cli, ANTHROPIC_API_KEY=SECRET, ANTHROPIC_BASE_URL="http://127.0.0.1:1")
    assert found["round trip"][0]["status"] == "ok"
    assert found["settings files"][0]["detail"].startswith(str(home / ".claude" / "settings.json"))
    assert sorted(path.name for path in (home / ".claude").iterdir()) == ["settings.json"]


@pytest.mark.real_cli
def test_mistakes_in_settings_files_are_shown(doctor: Doctor, real_cli: str, tmp_path: Path) -> None:
    config, project = tmp_path / "config", doctor.directory / ".claude"
    config.mkdir()
    project.mkdir()
    env: dict[str, Any] = {"PILOTHOUSE_CLI": real_cli, "CLAUDE_CONFIG_DIR": str(config)}
    canary = tmp_path / "canary"
    hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": f"touch {canary}"}]}]}
    good = {"permissions": {"deny": ["Bash"]}, "hooks": hooks, "apiKeyHelper": f"touch {canary}"}
    (project / "settings.json").write_text(json.dumps(good))
    [found] = doctor.findings(**env)["settings files"]
    assert (found["status"], found["detail"]) == ("ok", f"Claude Code takes all that is in {project / 'settings.json'}")
    (config / "settings.json").write_text(json.dumps({"permissions": {"deny": ["Bash"]}, "cleanupPeriodDays": "x"}))
    dropped = {**good, "permissions": {"deny": ["Bash(", "Read (x)"]}, "hooks": {"PreToolUs": hooks["SessionStart"]}}
    (project / "settings.json").write_text(json.dumps(dropped))
    (project / "settings.local.json").write_text("{no")
    found = doctor.findings(**env)["settings files"]
    assert {each["status"] for each in found} == {"warning"}
    texts = [each["detail"] for each in found]
    assert texts[0] == f"{config / 'settings.json'}: cleanupPeriodDays: Expected number, but received string"
    assert texts[1] == f"{project / 'settings.local.json'}: Invalid or malformed JSON"
    places = [text.removeprefix(f"{project / 'settings.json'}: ").partition(": ")[0] for text in texts[2:]]
    assert sorted(places) == ["hooks.PreToolUs", "permissions.deny[0]", "permissions.deny[1]"]
    assert [each["status"] for each in doctor.findings("--quick", **env)["settings files"]] == ["skipped"]
    assert not canary.exists()
    assert sorted(path.name for path in config.iterdir()) == ["settings.json"]


def test_a_missing_cli_is_a_failure_with_instructions(doctor: Doctor, tmp_path: Path) -> None:
    found = doctor.findings("--cli", str(tmp_path / "none"), code=1)
    assert found["cli"][0]["status"] == "failed"
    assert "pilothouse install-cli" in found["cli"][0]["detail"]
    assert found["round trip"][0]["status"] == "skipped"
    ran = doctor.run("--cli", str(tmp_path / "none"))
    assert ran.code == 1
    assert "FAIL  cli: Claude Code was not found" in ran.out
    assert "1 check failed." in ran.out


@pytest.mark.requirement("R1")
@pytest.mark.parametrize(
    ("script", "status", "detail"),
    [
        ('echo "1.0.98 (Claude Code)"', "warning", "older than 2.0.0"),
        ('echo "2.0.1 (Claude Code)"', "note", f"; tested are {PINS.oldest_tested} to {PINS.version}"),
        (f'echo "{PINS.oldest_tested} (Claude Code)"', "ok", f"; tested are {PINS.oldest_tested} to {PINS.version}"),
        (f'echo "{PINS.version} (Claude Code)"', "ok", ", the pinned version"),
        ('echo "9.0.0 (Claude Code)"', "note", f"; tested are {PINS.oldest_tested} to {PINS.version}"),
        ("exit 3", "failed", "does not work"),
        ('echo "GNU something"', "failed", "did not print a version"),
    ],
)
def test_the_version_is_judged(doctor: Doctor, script: str, status: str, detail: str) -> None:
    with FakeCLI.shell(script) as fake:
        found = doctor.findings("--cli", fake.path, "--quick", code=int(status == "failed"))
    assert found["cli"][0]["status"] == status
    assert detail in found["cli"][0]["detail"]


def test_an_old_pin_is_noted() -> None:
    built = date.fromisoformat(PINS.built)
    assert check_pin(built + timedelta(3)).detail == (
        f"Claude Code {PINS.version}, 3 days old; the tests pass on {PINS.oldest_tested} and later"
    )
    young, old = (check_pin(built + timedelta(days)) for days in (OLD_PIN_DAYS, OLD_PIN_DAYS + 1))
    assert (young.status, young.advice) == ("ok", "")
    assert (old.status, "--upgrade pilothouse" in old.advice) == ("note", True)


def test_a_cli_that_answers_nothing_fails_the_round_trip(doctor: Doctor, claude: str) -> None:
    found = doctor.findings("--cli", claude, code=1)
    assert found["round trip"][0]["status"] == "failed"
    assert "before the answer was complete" in found["round trip"][0]["detail"]
    assert doctor.findings("--cli", claude, "--quick")["round trip"][0]["detail"] == "skipped because of --quick"


def test_a_bad_configuration_is_reported_and_the_rest_is_still_checked(doctor: Doctor, claude: str) -> None:
    (doctor.directory / "pilothouse.toml").write_text('modle = "opus"')
    found = doctor.findings("--quick", "--cli", claude, "--config", "pilothouse.toml", code=1)
    assert found["configuration"][0]["status"] == "failed"
    assert "pilothouse.toml:1: unknown option 'modle'; did you mean 'model'?" in found["configuration"][0]["detail"]
    assert found["cli"][0]["status"] == "skipped"
    assert found["open files"]


@pytest.mark.requirement("E76")
def test_variables_are_named_and_never_shown(doctor: Doctor, claude: str) -> None:
    found = doctor.findings(
        "--quick",
        "--cli",
        claude,
        PILOTHOUSE_API_KEY=SECRET,
        PILOTHOUSE_MODLE=SECRET,
        PILOTHOUSE_ENV=f'{{"MY_TOKEN": "{SECRET}"}}',
    )
    assert {"PILOTHOUSE_API_KEY", "PILOTHOUSE_ENV"} <= set(found["variables"][0]["detail"].split(", "))
    assert found["variables"][1]["status"] == "warning"
    assert found["variables"][1]["advice"] == "did you mean PILOTHOUSE_MODEL?"


def test_no_key_and_no_login_is_a_failure(doctor: Doctor, claude: str, tmp_path: Path) -> None:
    place = ("--quick", "--cli", claude)
    (key,) = doctor.findings(*place, code=1, ANTHROPIC_API_KEY="")["key"]
    assert (key["status"], key["advice"].count("--local")) == ("failed", 1)
    ran = doctor.run(*place, ANTHROPIC_API_KEY="")
    assert (ran.code, ran.out.splitlines()[-1]) == (1, "Only a key or a login is missing.")
    assert "2 checks failed." in doctor.run("--cli", "/none", ANTHROPIC_API_KEY="").out
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['xllamacpp'] = None\n")
    (key,) = doctor.findings(*place, code=1, ANTHROPIC_API_KEY="", PYTHONPATH=str(tmp_path))["key"]
    assert key["advice"].endswith("no key, no tools; it needs: pip install 'pilothouse[local]'")


def test_keys_and_logins(doctor: Doctor, claude: str) -> None:
    def output(**env: str) -> str:
        env.setdefault("ANTHROPIC_API_KEY", "")
        (key,) = doctor.findings("--quick", "--cli", claude, code=0, **env)["key"]
        assert key["status"] == "ok"
        return key["detail"]

    assert output(CLAUDE_CODE_USE_BEDROCK="1") == "CLAUDE_CODE_USE_BEDROCK is set"
    assert output(PILOTHOUSE_API_KEY=SECRET) == "the option api_key is set"
    assert output(PILOTHOUSE_ENV=f'{{"ANTHROPIC_AUTH_TOKEN": "{SECRET}"}}') == "ANTHROPIC_AUTH_TOKEN is set"
    config = doctor.directory / "config"
    config.mkdir()
    settings = config / "settings.json"
    settings.write_text('{"apiKeyHelper": "print-key"}')
    found = output(CLAUDE_CONFIG_DIR=str(config))
    assert found == f"{settings} says where to get one"
    (config / ".credentials.json").write_text('{"mcpOAuth": {}}')  # a login at an MCP server is none at Claude
    assert output(CLAUDE_CONFIG_DIR=str(config)) == f"{settings} says where to get one"
    (config / ".claude.json").write_text(f'{{"primaryApiKey": "{SECRET}"}}')
    assert output(CLAUDE_CONFIG_DIR=str(config)) == f"the key of a login is stored in {config / '.claude.json'}"
    (config / ".credentials.json").write_text(f'{{"claudeAiOauth": {{"accessToken": "{SECRET}"}}}}')
    assert output(CLAUDE_CONFIG_DIR=str(config)) == f"a login is stored in {config}"


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="nothing is read-only for root")
def test_directories_that_cannot_be_written(doctor: Doctor, claude: str, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    found = doctor.findings("--quick", "--cli", claude, PILOTHOUSE_CACHE=str(locked), code=1)
    assert found["cache"][0]["status"] == "failed"


def test_the_other_side_is_tried_by_the_command_of_a_query(doctor: Doctor, claude: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n')
    ssh.chmod(0o700)
    path = f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"
    missing = doctor.findings("--transport", "ssh:user@box", code=1, PATH=path, HOME=str(tmp_path))
    detail = missing["other side"][0]["detail"]
    assert detail.endswith("there is no claude over there, on PATH or in its usual places; install it, or name it")
    assert missing.keys().isdisjoint({"cli", "key", "round trip"})
    (programs / "claude").symlink_to(claude)
    found = doctor.findings("--transport", "ssh:user@box", PATH=path)
    assert "Claude Code 2.1.330 at the end of `ssh -T" in found["cli"][0]["detail"]
    refused = doctor.findings("--transport", "pod:agents/claude-0", code=1, PATH=str(programs))
    assert "no command 'kubectl'" in refused["other side"][0]["detail"]
