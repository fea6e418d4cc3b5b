"""Where things lie, what is pinned, and how cheap it is to ask."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_packages import FakePackageClients

from pilothouse.errors import ProvisionError
from pilothouse.provision import __main__ as command
from pilothouse.provision import pinned_files
from pilothouse.provision.artifacts import cache_root, load_pins

PACKAGE = Path(pinned_files.__file__).parent


@pytest.mark.parametrize(
    ("platform", "env", "expected"),
    [
        ("linux", {"PILOTHOUSE_CACHE": "/c"}, "/c"),
        ("linux", {"PILOTHOUSE_CACHE": "~/c"}, "/h/c"),
        ("darwin", {"PILOTHOUSE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ("linux", {"PILOTHOUSE_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/pilothouse"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/h/.cache/pilothouse"),
        ("linux", {}, "/h/.cache/pilothouse"),
        ("darwin", {}, "/h/Library/Caches/pilothouse"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/x/pilothouse"),
        ("win32", {"LOCALAPPDATA": r"C:\L", "XDG_CACHE_HOME": "/x"}, r"C:\L\pilothouse\Cache"),
    ],
)
def test_cache_root(monkeypatch: pytest.MonkeyPatch, platform: str, env: dict[str, str], expected: str) -> None:
    for name in ("PILOTHOUSE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert str(cache_root()) == expected


def test_a_relative_choice_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PILOTHOUSE_CACHE", "c")
    assert cache_root() == tmp_path / "c"


@pytest.mark.requirement("E56")
def test_managed_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTHOUSE_CACHE", "/c")
    assert pinned_files.managed_cli_path() == Path("/c/cli") / pinned_files.PINNED_VERSION / "claude"
    assert pinned_files.model_path().suffix == ".gguf"
    for key, artifact in load_pins().cli.platforms.items():
        name = "claude.exe" if key.startswith("win32") else "claude"
        assert artifact.path == f"cli/{pinned_files.PINNED_VERSION}/{name}", (
            "ensure_cli and managed_cli_path must agree"
        )


@pytest.mark.parametrize(
    ("system", "machine", "glibc", "expected"),
    [
        ("linux", "x86_64", "glibc 2.36", "linux-x64"),
        ("linux", "aarch64", "glibc 2.36", "linux-arm64"),
        ("linux", "x86_64", "", "linux-x64-musl"),
        ("linux", "aarch64", None, "linux-arm64-musl"),
        ("darwin", "arm64", None, "darwin-arm64"),
        ("win32", "AMD64", None, "win32-x64"),
    ],
)
def test_platform_key(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, glibc: str | None, expected: str
) -> None:
    def confstr(name: str) -> str:
        if glibc is None:
            raise ValueError("unrecognized configuration name")
        return glibc

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("os.confstr", confstr)
    assert pinned_files.find_platform_key() == expected
    assert pinned_files.find_cli_artifact().sources[0].package.endswith(expected)


def test_a_machine_without_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ProvisionError, match=r"riscv64.*linux-x64.*cli="):
        pinned_files.ensure_cli()


def test_every_pin_is_whole() -> None:
    systems = {f"{system}-{machine}" for system in ("linux", "darwin", "win32") for machine in ("x64", "arm64")}
    assert set(load_pins().cli.platforms) == systems | {"linux-x64-musl", "linux-arm64-musl"}
    for artifact in (*load_pins().cli.platforms.values(), load_pins().model):
        assert artifact.sha256 is None or re.fullmatch("[0-9a-f]{64}", artifact.sha256)
        for source in artifact.sources:
            algorithm, _, value = source.digest.partition("-")
            assert len(base64.b64decode(value, validate=True) if algorithm == "sha512" else value) == 64
            assert re.fullmatch(r"[0-9.]+", source.version), "exact versions only"


def test_no_registry_is_named() -> None:
    for file in PACKAGE.iterdir():
        if file.is_file():
            assert "://" not in file.read_text().replace("(?<=://)", ""), f"{file.name} names a host"


def test_asking_for_the_path_loads_no_installer() -> None:
    code = (
        "import sys; from pilothouse.provision.pinned_files import managed_cli_path; managed_cli_path();"
        "print(*sorted({'pilothouse.provision.installer', 'tarfile', 'zipfile'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_command(
    package_clients: FakePackageClients, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTHOUSE_CACHE", str(package_clients.root))
    monkeypatch.setattr(pinned_files, "find_cli_artifact", package_clients.artifact)
    package_clients.clients(npm="ok")
    assert command.main(["cli"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines[:-1]] == ["cli: download", "cli: verify", "cli: extract"]
    assert lines[-1] == f"cli: {package_clients.root / 'cli/1/claude'}"


def test_the_command_fails_in_one_line(
    package_clients: FakePackageClients, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTHOUSE_CACHE", str(package_clients.root))
    package_clients.clients()
    assert command.main(["model", "cli"]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("model: could not fetch")
    assert shown.err.count("\n") == 1
