"""What `auto`, `bundled`, `global` and a path stand for, and how the version of a candidate is learnt."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from managed_cli import CONTENT, SCRIPT, ManagedInstallation
from process_checks import eventually, is_dead

from pilothouse.errors import CLINotFoundError, CLIVersionError
from pilothouse.provision.cli_installation import install_cli
from pilothouse.provision.pinned_files import PINNED_VERSION
from pilothouse.transports import discovery
from pilothouse.transports.discovery import (
    MAX_ENTRIES,
    cache_version,
    cached_version,
    check_version,
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
    new_process(monkeypatch)
    return Place(tmp_path, monkeypatch)


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process knows, as a new one would."""
    monkeypatch.setattr(discovery, "_found_paths", {})
    monkeypatch.setattr(discovery, "_faults", {})


# --- the order


@pytest.mark.requirement("E56", "E60")
def test_the_order(place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[str, str] = {}
    for kind, where in (("usual", "~/.local/bin/claude"), ("second", "bin2/claude"), ("first", "bin1/claude")):
        expected[kind] = place.put(where, say("2.0.0"))
        new_process(monkeypatch)
        assert find_cli("auto", place.env) == find_cli("global", place.env) == expected[kind]
    install_cli()
    chosen = place.put("chosen", "exit 1")
    new_process(monkeypatch)
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
    new_process(monkeypatch)
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
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (say("1.0.128"), ["version 1.0.128 is older than 2.0.0"]),
        ("echo claude, version 5.2.21", ["not Claude Code"]),
        ("echo hello", ["did not print a version", "not Claude Code"]),
        ("echo 2.1.0; exit 3", ["ended with exit code 3"]),
        ("echo nothing works here >&2; exit 1", ["exit code 1", "standard error: nothing works here"]),
        ("kill -SEGV $$", ["was killed by SIGSEGV"]),
    ],
)
def test_auto_skips_unsuitable_files_with_the_reason(
    body: str, words: list[str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = place.put("bin1/claude", body)
    with pytest.raises(CLINotFoundError) as caught:
        find_cli("auto", place.env)
    line = next(line for line in str(caught.value).splitlines() if bad in line and ": " in line)
    for word in words:
        assert word in line
    good = place.put("bin2/claude", say("2.1.400"))
    new_process(monkeypatch)
    assert find_cli("auto", place.env) == good
    assert find_cli("global", place.env) == bad, "global takes the first that is there, as it is"


@pytest.mark.requirement("E64")
def test_auto_names_files_that_cannot_be_run(place: Place, tmp_path: Path) -> None:
    plain = Path(place.put("bin1/claude", say("2.1.0")))
    plain.chmod(0o644)
    (tmp_path / "bin2/claude").mkdir(parents=True)
    Path("~/.local/bin").expanduser().mkdir(parents=True)
    Path("~/.local/bin/claude").expanduser().write_bytes(b"")
    Path("~/.local/bin/claude").expanduser().chmod(0o755)
    with pytest.raises(CLINotFoundError) as caught:
        find_cli("auto", place.env)
    text = str(caught.value)
    assert f"{plain}: it is not executable; run `chmod +x {plain}`" in text
    assert f"{tmp_path / 'bin2/claude'}: it is not a file" in text
    assert ".local/bin/claude: it is not a program for this system" in text
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


def test_links_to_the_same_file_are_asked_once(place: Place, tmp_path: Path) -> None:
    old = place.put("bin1/claude", say("1.0.0"))
    (tmp_path / "bin2").mkdir()
    (tmp_path / "bin2/claude").symlink_to(old)
    with pytest.raises(CLINotFoundError):
        find_cli("auto", place.env)
    assert place.runs() == ["bin1"]


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
    new_process(monkeypatch)
    assert find_cli("auto", place.env) == other


def test_a_managed_copy_without_receipt_is_hashed_once(
    place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.path.parent.mkdir(parents=True)
    managed.path.write_bytes(CONTENT)
    managed.path.chmod(0o755)
    assert find_cli("bundled", place.env) == str(managed.path)
    monkeypatch.setattr("pilothouse.provision.installer.digest_file", None)
    new_process(monkeypatch)
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


# --- what is remembered of versions


def test_a_version_is_asked_for_once_a_file(
    place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.put("bin1/claude", say("2.1.0"))
    for _ in range(3):
        new_process(monkeypatch)
        assert find_cli("auto", place.env) == path
    assert place.runs() == ["bin1"]
    assert cached_version(path) == "2.1.0"
    place.put("bin1/claude", say("2.1.10"))
    assert cached_version(path) is None
    new_process(monkeypatch)
    assert find_cli("auto", place.env) == path
    assert (place.runs(), cached_version(path)) == (["bin1", "bin1"], "2.1.10")
    assert managed.files() == {"versions.json"}


@pytest.mark.parametrize("trouble", ["garbage", "no directory", "nobody can write"])
def test_without_a_cache_it_is_asked_again(
    trouble: str, place: Place, managed: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.put("bin1/claude", say("2.1.0"))
    if trouble == "garbage":
        managed.cache.mkdir()
        (managed.cache / "versions.json").write_text('{"a": ')
    elif trouble == "no directory":
        managed.cache.write_text("in the way")
    elif not Path("/sys").is_dir():
        pytest.skip("needs a place where not even root can write")
    else:
        monkeypatch.setenv("PILOTHOUSE_CACHE", "/sys/pilothouse")
    for _ in range(2):
        new_process(monkeypatch)
        assert find_cli("auto", place.env) == path
    assert len(place.runs()) == (1 if trouble == "garbage" else 2)


def test_what_failed_may_have_been_repaired(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.put("bin1/claude", f"[ -e '{place.root}/repaired' ] && {say('2.1.0')}")
    with pytest.raises(CLINotFoundError):
        find_cli("auto", place.env)
    with pytest.raises(CLINotFoundError):
        find_cli("auto", place.env)
    assert place.runs() == ["bin1"], "hundreds of queries that start at once ask once"
    (place.root / "repaired").touch()
    new_process(monkeypatch)
    assert find_cli("auto", place.env) == path


def test_few_versions_are_kept(place: Place) -> None:
    paths = [place.put(f"many/{number}", "") for number in range(MAX_ENTRIES + 5)]
    for path in paths:
        cache_version(path, "2.1.0")
    assert [cached_version(path) for path in paths] == [None] * 5 + ["2.1.0"] * MAX_ENTRIES
    assert cached_version("/nowhere/claude") is None
    cache_version("/nowhere/claude", "2.1.0")
    assert cached_version("/nowhere/claude") is None


# --- the probe


def test_a_probe_sees_no_keys_and_no_configuration(place: Place, tmp_path: Path) -> None:
    path = place.put("bin1/claude", f'env > "{tmp_path}/seen"; ls -a "$CLAUDE_CONFIG_DIR" | wc -l; {say("2.1.0")}')
    env = {**place.env, "CLAUDE_CONFIG_DIR": str(Path.home()), "NODE_OPTIONS": "--bad", "NVM_DIR": "/nvm"}
    assert check_version(path, env) == "2.1.0"
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert KEY not in (tmp_path / "seen").read_text()
    assert "NODE_OPTIONS" not in seen
    assert (seen["PATH"], seen["NVM_DIR"]) == (place.env["PATH"], "/nvm")
    assert not Path(seen["CLAUDE_CONFIG_DIR"]).exists()
    assert seen["CLAUDE_CONFIG_DIR"] != str(Path.home())


def test_a_probe_takes_a_second_try_on_a_slow_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "VERSION_TIMEOUT_SECONDS", 0.5)
    path = place.put("bin1/claude", f"[ $(wc -l < '{place.runs_file}') = 1 ] && sleep 30; {say('2.1.0')}")
    assert check_version(path, place.env) == "2.1.0"
    assert len(place.runs()) == 2


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
def test_a_probe_of_what_does_not_end(body: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "VERSION_TIMEOUT_SECONDS", 0.3)
    pids = tmp_path / "pids"
    path = place.put("bin1/claude", f"echo $$ >> '{pids}'\n" + body.format(pids=pids))
    started = time.monotonic()
    with pytest.raises(CLIVersionError, match=r"within 0\.3 s, 2 times: it is broken, or this machine is very slow"):
        check_version(path, place.env)
    assert time.monotonic() - started < 5
    if sys.platform == "linux":
        for pid in map(int, pids.read_text().split()):
            eventually(lambda pid=pid: is_dead(pid), f"{pid} lives on")


def test_what_it_leaves_running_does_not_hold_the_answer_up(place: Place, tmp_path: Path) -> None:
    path = place.put("bin1/claude", f"sleep 31 & echo $! > '{tmp_path}/pid'; {say('2.1.0')}")
    started = time.monotonic()
    assert check_version(path, place.env) == "2.1.0"
    assert time.monotonic() - started < discovery.VERSION_TIMEOUT_SECONDS + 1
    if sys.platform == "linux":
        pid = int((tmp_path / "pid").read_text())
        eventually(lambda: is_dead(pid), "it lives on")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/nowhere/node\n", "the interpreter in its first line"),
        (b"#!/usr/bin/env nosuchnode\n", "exit code 127.*nosuchnode"),
        (b"\0\1\2\3" * 100, "not a program for this system"),
        (None, "no such file"),
    ],
)
def test_a_probe_of_what_cannot_start(content: bytes | None, words: str, place: Place, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o755)
    with pytest.raises(CLIVersionError, match=words) as caught:
        check_version(str(path), place.env)
    assert str(path) in str(caught.value)


@pytest.mark.real_cli
@pytest.mark.requirement("R1")
def test_the_real_one(place: Place, real_cli: str) -> None:
    before = set(Path.home().rglob("*"))
    assert check_version(real_cli, {"HOME": str(Path.home()), "PATH": os.defpath})
    assert set(Path.home().rglob("*")) == before


def test_a_fork_while_a_probe_runs(place: Place) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    path = place.put("bin1/claude", say("2.1.0"))
    code = (
        "import os, sys; from pilothouse.transports import discovery as d\n"
        "d._probe_lock.acquire()\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(0 if d.find_cli('auto', os.environ) == sys.argv[1] else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    env = {**os.environ, **place.env}
    assert subprocess.run([sys.executable, "-c", code, path], env=env, timeout=20).returncode == 0
