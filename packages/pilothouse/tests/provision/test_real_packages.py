"""The real clients against registries on this machine, and the real managed copy against its pin."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from fake_packages import CONTENT, INSTALLED, FakePackageClients, sha256_of
from npm_registry import serve_registry
from places import ROOT

from pilothouse.provision.installer import ensure_artifact
from pilothouse.provision.pinned_files import PINNED_VERSION, find_cli_artifact, managed_cli_path

REQUIRED = os.environ.get("PILOTHOUSE_REQUIRE_CLI") == "1"
REAL_PATH = os.environ["PATH"]


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on PATH")
def test_npm_with_the_users_registry(
    package_clients: FakePackageClients, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", REAL_PATH)
    with serve_registry(monkeypatch) as registry:
        registry.packages["pack"] = {"1.0.0": package_clients.tgz.read_bytes()}
        before = {entry.name for entry in Path.home().iterdir()}
        path = ensure_artifact(package_clients.artifact(), package_clients.root)
    assert path.read_bytes() == CONTENT
    assert package_clients.files() == INSTALLED
    assert package_clients.runs() == [], "the real npm must have done it"
    assert {entry.name for entry in Path.home().iterdir()} == before, "nothing is left in the user's home"
    assert capfd.readouterr() == ("", "")


def test_pip_with_the_users_index(
    package_clients: FakePackageClients,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "pack-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pack/claude", CONTENT)
        archive.writestr("pack-1.0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pack\nVersion: 1.0.0\n")
        archive.writestr("pack-1.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("pack-1.0.0.dist-info/RECORD", "")
    package_clients.whl = wheel
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    path = ensure_artifact(package_clients.artifact(), package_clients.root)
    assert path.read_bytes() == CONTENT
    assert package_clients.files() == INSTALLED
    assert package_clients.runs() == ["npm"], "the fake npm failed, the real pip delivered"
    assert capfd.readouterr() == ("", "")


@pytest.mark.real_cli
@pytest.mark.requirement("E58")
def test_the_managed_copy_is_the_pinned_one() -> None:
    path = managed_cli_path()
    if not path.exists():
        path = ROOT / ".cache" / "pilothouse" / "cli" / PINNED_VERSION / path.name
    if not path.exists() and not REQUIRED:
        pytest.skip("there is no managed copy: pilothouse install-cli")
    expected = find_cli_artifact().sha256
    assert expected is None or sha256_of(path) == expected
    env = {"HOME": str(Path.home()), "PATH": os.defpath}
    version = subprocess.run([path, "--version"], env=env, capture_output=True, text=True, check=True)
    assert version.stdout.split()[0] == PINNED_VERSION
