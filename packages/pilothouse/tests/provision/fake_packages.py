"""Small packages, and an npm and a pip that deliver them, fail, hang or lie on demand."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from pilothouse.provision.artifacts import Artifact, PackageSource

CONTENT = b"#!/bin/sh\necho pinned\nexit\n" + b"0" * 3_000_000

FAKE_CLIENT = """\
import os, shutil, sys, time
from pathlib import Path

name, args = {name!r}, sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(name + " " + " ".join(args) + "\\n")
mode = os.environ.get(f"FAKE_{{name.upper()}}", "fail")
place = next(a.split("=", 1)[1] for a in args if a.startswith(("--pack-destination=", "--dest=")))
if mode == "fail":
    print("first line\\nsecond line")
    sys.exit(f"{{name}}: cannot reach https://user:secret@mirror.example/ today")
if mode == "offline":
    print("noise " * 100)
    sys.exit("request failed, reason: connect ECONNREFUSED 127.0.0.1:9")
if mode == "empty":
    sys.exit(0)
if mode == "hang":
    Path(os.environ["TMPDIR"], "part").write_bytes(b"0" * 1000)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    sys.exit(1)
if mode == "slow":
    for size in range(1, 6):
        Path(os.environ["TMPDIR"], "part").write_bytes(b"0" * (size * 1000))
        time.sleep(0.12)
shutil.copy(os.environ[f"FAKE_{{name.upper()}}_ARCHIVE"], place)
"""


class FakePackageClients:
    """A cache, two fake clients and the packages they deliver."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.root = root / "cache"
        self.log = root / "clients.log"
        self.bin = root / "bin"
        self.bin.mkdir()
        npm = self.bin / "npm"
        npm.write_text(f"#!{sys.executable}\n{FAKE_CLIENT.format(name='npm')}")
        npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
        pip = root / "modules" / "pip"
        pip.mkdir(parents=True)
        (pip / "__init__.py").touch()
        (pip / "__main__.py").write_text(FAKE_CLIENT.format(name="pip"))
        self.tgz = root / "pack-1.0.0.tgz"
        self.whl = root / "pack-1.0.0-py3-none-any.whl"
        self.pack(CONTENT)
        for name, value in {
            "FAKE_LOG": self.log,
            "FAKE_NPM_ARCHIVE": self.tgz,
            "FAKE_PIP_ARCHIVE": self.whl,
            "PATH": self.bin,
            "PYTHONPATH": pip.parent,
        }.items():
            monkeypatch.setenv(name, str(value))

    def pack(self, content: bytes) -> None:
        """Make both packages hold `content`."""
        with tarfile.open(self.tgz, "w:gz") as tar:
            for name, data in (("package/README", b"no"), ("package/claude", content)):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        with zipfile.ZipFile(self.whl, "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr("pack/claude", content)

    def clients(self, *, npm: str = "fail", pip: str = "fail") -> None:
        """Say what the clients do: ok, slow, fail, offline, empty or hang."""
        self.monkeypatch.setenv("FAKE_NPM", npm)
        self.monkeypatch.setenv("FAKE_PIP", pip)

    def artifact(self, *, sha256: str | None = "pinned", version: str = "1.0.0") -> Artifact:
        """The pin for what the packages hold now."""
        return Artifact(
            path="cli/1/claude",
            executable=True,
            size=len(CONTENT),
            sha256=hashlib.sha256(CONTENT).hexdigest() if sha256 == "pinned" else sha256,
            sources=(
                PackageSource("npm", "pack", version, sri(self.tgz), "package/claude", self.tgz.stat().st_size),
                PackageSource("pip", "pack", version, f"sha256-{sha256_of(self.whl)}", "pack/claude"),
            ),
        )

    def runs(self) -> list[str]:
        """The clients that were run, in order."""
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def files(self) -> set[str]:
        """What lies in the cache."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}


INSTALLED = {"cli/1/claude", "cli/1/claude.json", "cli/1/.lock"}


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sri(path: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


def child_env(**extra: str) -> dict[str, str]:
    """The environment for a child interpreter."""
    return {**os.environ, **extra}
