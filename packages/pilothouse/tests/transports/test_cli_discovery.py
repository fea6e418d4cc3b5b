"""What `auto`, `bundled`, `global` and a path stand for; nothing is started to find it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from managed_cli import CONTENT, SCRIPT, ManagedInstallation

from pilothouse.errors import CLINotFoundError
from pilothouse.provision.cli_installation import install_cli
from pilothouse.provision.pinned_files import PINNED_VERSION
from pilothouse.transports import discovery
from pilothouse.transports.discovery import (
    find_cli,
    find_program,
    may_install,
)

KEY = "sk-ant-very-secret-0123456789"


def say(version: str) -> str:
    return f"echo '{version} (Claude Code)'"


class Place:
    """A machine on which a few copies of `claude` lie about."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.runs_file = root / "runs"
        self.env = {"PATH": f"{root / 'bin1'}:{root / 'bin2'}:/usr/bin:/bin", "ANTHROPIC_API_KEY": KEY}
        monkeypatch.setattr(discovery, "USUAL_DIRECTORIES", ("~/.local/bin",))

    def put(self, where: str, body: str) -> str:
        """A script at `where` that counts its runs."""
        path = self.root / where if not where.startswith("~") else Path(where).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {path.parent.name} >> '{self.runs_file}'\n{body}\n")
        path.chmod(0o755)
        return str(path)

    def runs(self) -> list[str]:
        return self.runs_file.read_text().split() if self.runs_file.exists() else []


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedInstallation:
    return ManagedInstallation(tmp_path, monkeypatch)


@pytest.fixture
def place(managed: ManagedInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


# --- the order


@pytest.mark.requirement("E56", "E60")
def test_the_order(place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[str, str] = {}
    for kind, where in (("usual", "~/.local/bin/claude"), ("second", "bin2/claude"), ("first", "bin1/claude")):
        expected[kind] = place.put(where, say("2.0.0"))
        assert find_cli("auto", place.env) == find_cli("global", place.env) == expected[kind]
    install_cli()
    chosen = place.put("chosen", "exit 1")
    assert find_cli("auto", place.env) == find_cli("bundled", place.env) == str(managed.path)
    assert find_cli("global", place.env) == expected["first"]
    assert find_cli("auto", {**place.env, "PILOTHOUSE_CLI": chosen}) == chosen
    assert find_cli(chosen, place.env) == chosen


USUAL = discovery.USUAL_DIRECTORIES
PLACES_AT_HOME = ("~/.npm-global/bin", "~/.local/bin", "~/.claude/local", "~/node_modules/.bin", "~/.yarn/bin")


@pytest.mark.requirement("E60")
@pytest.mark.parametrize("directory", PLACES_AT_HOME)
def test_what_installers_use_is_found_after_path(directory: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "USUAL_DIRECTORIES", [where for where in USUAL if where.startswith("~")])
    there = place.put(f"{directory}/claude", say("2.1.0"))
    assert find_cli("global", place.env) == there
    on_path = place.put("bin1/claude", say("2.1.0"))
    assert find_cli("global", place.env) == on_path


@pytest.mark.requirement("E60")
def test_what_homebrew_and_root_use_is_looked_at() -> None:
    assert {"/usr/local/bin", "/opt/homebrew/bin"} <= set(USUAL)


@pytest.mark.requirement("E62")
def test_a_path_is_that_file_or_an_error(place: Place, managed: ManagedInstallation, tmp_path: Path) -> None:
    install_cli()
    for where in ("~/.local/bin/claude", "bin1/claude"):
        place.put(where, say("2.1.0"))
    absent = str(tmp_path / "bin3" / "claude")
    with pytest.raises(CLINotFoundError, match="bin3/claude"):
        find_cli(absent, place.env)
    assert find_cli(place.put("bin3/claude", say("2.1.0")), place.env) == absent


@pytest.mark.requirement("R1", "E56")
@pytest.mark.parametrize("body", [say("1.0.128"), "echo claude, version 5.2.21", "exit 1", "kill -SEGV $$", "sleep 31"])
def test_the_first_is_taken_as_it_is_and_not_started(body: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its init message says how old it is."""
    first = place.put("bin1/claude", body)
    place.put("bin2/claude", say("2.1.400"))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert find_cli("auto", place.env) == find_cli("global", place.env) == first
    assert place.runs() == []


@pytest.mark.requirement("E64")
def test_auto_names_files_that_cannot_be_run(place: Place, tmp_path: Path) -> None:
    plain = Path(place.put("bin1/claude", say("2.1.0")))
    plain.chmod(0o644)
    (tmp_path / "bin2/claude").mkdir(parents=True)
    Path("~/.local/bin").expanduser().mkdir(parents=True)
    Path("~/.local/bin/claude").expanduser().symlink_to("/nowhere/claude")
    with pytest.raises(CLINotFoundError) as caught:
        find_cli("auto", place.env)
    text = str(caught.value)
    assert f"{plain}: it is not executable; run `chmod +x {plain}`" in text
    assert f"{tmp_path / 'bin2/claude'}: it is not a file" in text
    assert ".local/bin/claude: it is not a file" in text
    assert text.index("pilothouse install-cli") < text.index("npm install -g") < text.index("PILOTHOUSE_CLI.")


@pytest.mark.parametrize("cli", ["auto", "global"])
@pytest.mark.parametrize("directory", [".", "node_modules/.bin", "./node_modules/.bin"])
def test_a_relative_directory_on_path_does_not_count(
    cli: str, directory: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put(f"repository/{directory}/claude", say("2.1.330"))
    place.put(f"repository/{directory}/git", "exit 0")
    monkeypatch.chdir(tmp_path / "repository")
    with pytest.raises(CLINotFoundError, match="relative directories on PATH do not count"):
        find_cli(cli, {"PATH": f"{directory}:/usr/bin:/bin"})
    assert find_program("git", f"{directory}::/usr/bin:/bin") == "/usr/bin/git"
    assert place.runs() == []


@pytest.mark.parametrize("home", [None, "."])
def test_without_a_home_the_usual_places_are_not_those_of_the_working_directory(
    home: str | None, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(user_id: int) -> None:
        raise KeyError(user_id)

    for directory in ("~", "."):
        place.put(str(tmp_path / directory / ".local/bin/claude"), say("2.1.330"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pwd.getpwuid", fail)
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    with pytest.raises(CLINotFoundError):
        find_cli("global", {"PATH": "/usr/bin:/bin"})


def test_a_link_is_followed_only_by_the_system(place: Place, tmp_path: Path) -> None:
    """Shims find out by their name what they stand for."""
    place.put("shims/manager", say("2.1.0"))
    (tmp_path / "bin1").mkdir()
    (tmp_path / "bin1/claude").symlink_to("../shims/manager")
    assert find_cli("auto", place.env) == str(tmp_path / "bin1/claude")


# --- the managed copy


@pytest.mark.requirement("E58", "E59")
def test_the_managed_copy_is_neither_run_nor_hashed(
    place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_cli()
    monkeypatch.setenv("RUNS", str(place.runs_file))
    monkeypatch.setattr("pilothouse.provision.installer.digest_file", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert find_cli("auto", place.env) == find_cli("bundled", place.env) == str(managed.path)
    assert len(managed.runs()) == 1


@pytest.mark.requirement("E58", "E59")
def test_a_managed_copy_that_is_not_the_pinned_one_will_not_do(
    place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_cli()
    managed.path.write_text(SCRIPT)
    os.utime(managed.path, (1, 1))
    for cli in ("auto", "bundled"):
        with pytest.raises(CLINotFoundError, match=f"not the pinned {PINNED_VERSION}"):
            find_cli(cli, place.env)
    other = place.put("bin1/claude", say("2.1.0"))
    assert find_cli("auto", place.env) == other


def test_a_managed_copy_without_receipt_is_hashed_once(
    place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.path.parent.mkdir(parents=True)
    managed.path.write_bytes(CONTENT)
    managed.path.chmod(0o755)
    assert find_cli("bundled", place.env) == str(managed.path)
    monkeypatch.setattr("pilothouse.provision.installer.digest_file", None)
    assert find_cli("bundled", place.env) == str(managed.path)


# --- who installs


@pytest.mark.requirement("E57", "E61")
@pytest.mark.parametrize(
    ("cli", "env", "allowed"),
    [
        ("auto", {}, True),
        ("bundled", {}, True),
        ("global", {}, False),
        ("/some/claude", {}, False),
        ("auto", {"PILOTHOUSE_CLI": "/some/claude"}, False),
        ("auto", {"PILOTHOUSE_CLI": "bundled"}, True),
        ("auto", {"PILOTHOUSE_CLI": "global"}, False),
        ("bundled", {"PILOTHOUSE_CLI": "/some/claude"}, True),
        ("auto", {"PILOTHOUSE_INSTALL": "0"}, False),
        ("bundled", {"PILOTHOUSE_INSTALL": "No"}, False),
        ("auto", {"PILOTHOUSE_INSTALL": "1"}, True),
    ],
)
def test_installation_depends_on_the_setting(
    cli: str, env: dict[str, str], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PILOTHOUSE_INSTALL")
    assert may_install(cli, env) is allowed


def test_a_forbidden_installation_is_named_in_the_error(place: Place) -> None:
    for cli, forbidden in (("auto", True), ("bundled", True), ("global", False)):
        with pytest.raises(CLINotFoundError) as caught:
            find_cli(cli, {**place.env, "PILOTHOUSE_INSTALL": "0"})
        assert ("PILOTHOUSE_INSTALL forbids installing it now" in str(caught.value)) is forbidden


def test_the_variable_may_name_a_kind(place: Place) -> None:
    path = place.put("bin1/claude", say("1.0.0"))
    assert find_cli("auto", {**place.env, "PILOTHOUSE_CLI": "global"}) == path
    with pytest.raises(CLINotFoundError):
        find_cli("auto", {**place.env, "PILOTHOUSE_CLI": "bundled"})
