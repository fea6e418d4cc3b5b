"""The managed copies: install, prune, uninstall, and what a killed or failed installation leaves."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from managed_cli import CONTENT, ManagedInstallation
from process_checks import eventually

from pilothouse import provision
from pilothouse.errors import ProvisionError, UsageError
from pilothouse.provision import cli_installation as managed_room
from pilothouse.provision.cli_installation import install_cli, managed_versions, prune_cli, uninstall_cli
from pilothouse.provision.file_lock import lock_file
from pilothouse.provision.pinned_files import PINNED_VERSION, ensure_cli, managed_cli

DAY = 86_400.0

IN_CHILD = """
import sys, time, msgspec
from pilothouse.errors import ProvisionError
from pilothouse.provision import install_cli, pinned_files
from pilothouse.provision.artifacts import Artifact

artifact = msgspec.json.decode(sys.argv[1], type=Artifact)
pinned_files.find_cli_artifact = lambda: artifact
stop_at = sys.argv[2]
def report(stage, done, total):
    if stage == stop_at and done:
        print(stage, flush=True)
        time.sleep(60)
try:
    print(install_cli(progress=report))
except ProvisionError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedInstallation:
    return ManagedInstallation(tmp_path, monkeypatch)


def in_child(installation: ManagedInstallation, stop_at: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IN_CHILD, msgspec.json.encode(installation.artifact).decode(), stop_at]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **installation.env}, stdout=pipe, stderr=pipe, text=True)


def installed(installation: ManagedInstallation) -> set[str]:
    home = installation.path.parent.relative_to(installation.cache)
    return {str(home / name) for name in ("claude", "claude.json", ".lock")}


def other_version(installation: ManagedInstallation, version: str, days: float) -> Path:
    """An installation of another version that was last used some days ago."""
    directory = installation.path.parent.parent / version
    directory.mkdir(parents=True)
    for name in ("claude", "claude.json", ".lock"):
        (directory / name).write_text("x")
        age(directory / name, days)
    age(directory, days)
    return directory


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


# --- install


@pytest.mark.requirement("E57", "E59")
def test_install_and_again(installation: ManagedInstallation) -> None:
    assert managed_cli() is None
    assert install_cli() == install_cli(PINNED_VERSION) == managed_cli() == installation.path
    assert installation.path.read_bytes() == CONTENT
    assert len(installation.runs()) == 1
    assert installation.files() == installed(installation)
    install_cli(force=True)
    assert len(installation.runs()) == 2


def test_only_the_pinned_version_is_installed(installation: ManagedInstallation) -> None:
    with pytest.raises(
        UsageError, match=rf"installs Claude Code {PINNED_VERSION}.* and not 2\.0\.1.*claude-code@2\.0\.1"
    ):
        install_cli("2.0.1")
    assert installation.runs() == []


@pytest.mark.requirement("E58")
def test_only_the_pinned_copy_counts(installation: ManagedInstallation) -> None:
    install_cli()
    os.utime(installation.path, (1, 1))
    assert managed_cli() is None
    assert managed_cli(hashing=True) == installation.path, "its digest is right"
    assert managed_cli() == installation.path, "and that is noted"
    installation.path.chmod(0o644)
    assert managed_cli(hashing=True) is None


def test_every_public_name_is_there() -> None:
    for name in ("ensure_model", "install_cli", "managed_versions", "model_path", "prune_cli", "uninstall_cli"):
        assert callable(getattr(provision, name))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = provision.nonsense  # pyright: ignore[reportAttributeAccessIssue]


# --- killed, and at the same time


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize("stage", ["verify", "extract"])
def test_what_a_killed_installer_had_fetched_is_used(installation: ManagedInstallation, stage: str) -> None:
    with in_child(installation, stage) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == f"{stage}\n"
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    assert not installation.path.exists()
    assert list(installation.path.parent.glob(".fetch-*/archive.tgz"))
    installation.npm("fail")
    assert install_cli() == installation.path
    assert installation.path.read_bytes() == CONTENT
    assert len(installation.runs()) == 1, "the second needed no npm"
    assert installation.files() == installed(installation)


@pytest.mark.parametrize("damage", ["cut", "tampered", "of another pin"])
def test_a_left_archive_that_is_not_the_pinned_one_is_dropped(installation: ManagedInstallation, damage: str) -> None:
    left = installation.path.parent / ".fetch-killed"
    left.mkdir(parents=True)
    good = installation.archive.read_bytes()
    contents = {"cut": good[:-1], "tampered": good[:-1] + bytes([good[-1] ^ 1]), "of another pin": b"x"}
    (left / "archive.tgz").write_bytes(contents[damage])
    (left / "file").write_bytes(b"half")
    (installation.path.parent / ".receipt-killed").write_text("{")
    install_cli()
    assert len(installation.runs()) == 1
    assert installation.files() == installed(installation)


# --- prune and uninstall


def test_unused_old_versions_are_removed(installation: ManagedInstallation, caplog: pytest.LogCaptureFixture) -> None:
    old, recent = other_version(installation, "2.0.5", 8), other_version(installation, "2.1.100", 6)
    older = other_version(installation, "1.99.0", 400)
    (old / ".fetch-killed").mkdir()
    age(old, 8)
    foreign = installation.path.parent.parent / "something-else"
    foreign.mkdir()
    with caplog.at_level(logging.INFO, logger="pilothouse.provision"):
        install_cli()
    assert (old.exists(), older.exists(), recent.exists(), foreign.exists()) == (False, False, True, True)
    assert managed_versions() == ["2.1.100", PINNED_VERSION]
    assert [record.args and record.args[0] for record in caplog.records] == ["1.99.0", "2.0.5"]  # pyright: ignore[reportArgumentType]
    assert prune_cli() == []
    assert prune_cli(unused_days=0) == ["2.1.100"]
    assert managed_cli() == installation.path


def test_a_version_that_was_used_lately_stays(installation: ManagedInstallation) -> None:
    used = other_version(installation, "2.0.5", 100)
    os.utime(used / "claude", (time.time(), time.time() - 100 * DAY))  # read a moment ago, written long ago
    assert prune_cli() == []


@pytest.mark.skipif(sys.platform != "linux" or not Path("/bin/sleep").exists(), reason="needs a program to run")
def test_a_version_that_runs_stays(installation: ManagedInstallation) -> None:
    directory = other_version(installation, "2.0.5", 100)
    (directory / "claude").unlink()
    shutil.copy("/bin/sleep", directory / "claude")
    running = subprocess.Popen([directory / "claude", "60"])
    try:
        eventually(lambda: Path(f"/proc/{running.pid}/exe").resolve() == directory / "claude")
        assert prune_cli(unused_days=-1) == []
        install_cli()
        with pytest.raises(ProvisionError, match=r"cannot remove Claude Code 2\.0\.5 .*it is running; end it first"):
            uninstall_cli()
        assert managed_versions() == ["2.0.5"], "the others are gone"
    finally:
        running.kill()
        running.wait()
    assert uninstall_cli() == ["2.0.5"]


def test_a_version_that_is_being_installed_stays(
    installation: ManagedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = other_version(installation, "2.0.5", 100)
    monkeypatch.setattr(managed_room, "UNINSTALL_WAIT_SECONDS", 0.2)
    with lock_file(directory / ".lock", wait=0, on_wait=lambda: None):
        assert prune_cli() == []
        with pytest.raises(ProvisionError, match="another process has been holding"):
            uninstall_cli()
    assert uninstall_cli() == ["2.0.5"]


def test_uninstall(installation: ManagedInstallation) -> None:
    install_cli()
    other_version(installation, "2.0.5", 0)
    (installation.cache / "models").mkdir()
    assert uninstall_cli() == ["2.0.5", PINNED_VERSION]
    assert (installation.files(), (installation.cache / "models").is_dir()) == (set(), True)
    assert (uninstall_cli(), managed_versions(), managed_cli()) == ([], [], None)
    assert install_cli() == installation.path


def test_a_waiter_recreates_a_removed_directory(installation: ManagedInstallation) -> None:
    lock = installation.path.parent / ".lock"
    waits: list[str] = []
    installed_paths: list[Path] = []

    def wait_and_install() -> None:
        installed_paths.append(ensure_cli(lambda stage, done, total: waits.append(stage)))

    thread = threading.Thread(target=wait_and_install)
    with lock_file(lock, wait=0, on_wait=lambda: None):
        thread.start()
        eventually(lambda: "wait" in waits)
        shutil.rmtree(lock.parent)
    thread.join(20)
    assert installed_paths == [installation.path]
    assert managed_cli() == installation.path


# --- a cache that is full or read-only


# --- the clients


def test_any_pip_on_path_will_do(
    installation: ManagedInstallation, without_site_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilothouse.provision.artifacts import PackageSource

    pip = installation.bin / "pip3"
    pip.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nshutil.copy({str(installation.archive)!r}, sys.argv[-2][7:])\n"
    )
    pip.chmod(0o755)
    source = installation.artifact.sources[0]
    installation.artifact = msgspec.structs.replace(
        installation.artifact, sources=(PackageSource("pip", "pack", "1.0.0", source.digest, source.member),)
    )
    assert install_cli() == installation.path
    assert installation.runs() == []
