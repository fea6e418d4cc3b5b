"""A managed copy that is pinned to a small script, and an npm that delivers it, fails, hangs or lies on demand."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pytest

from pilothouse.provision.artifacts import Artifact, PackageSource
from pilothouse.provision.pinned_files import PINNED_VERSION

SCRIPT = f'#!/bin/sh\n[ -n "$RUNS" ] && echo managed >> "$RUNS"\necho \'{PINNED_VERSION} (Claude Code)\'\n'
CONTENT = SCRIPT.encode() + b"exit\n" + b"0" * 3_000_000

FAKE_NPM = """\
import os, shutil, sys, time
from pathlib import Path

log = Path(os.environ["FAKE_LOG"])
with log.open("a") as out:
    out.write(f"{os.getpid()}\\n")
mode = Path(os.environ["FAKE_MODE"]).read_text()
if mode == "fail":
    sys.exit("npm: no way to the mirror")
if mode == "hang":
    Path(os.environ["TMPDIR"], "part").write_bytes(b"0" * 1000)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    sys.exit(1)
place = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("--pack-destination="))
shutil.copy(os.environ["FAKE_ARCHIVE"], place)
"""


class ManagedInstallation:
    """An empty cache, a fake npm as the only program on `PATH`, and the pin for what it delivers."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = root / "cache"
        self.path = self.cache / "cli" / PINNED_VERSION / "claude"
        self.bin = root / "npm-bin"
        self.log = root / "npm.log"
        self.archive = root / "pack-1.0.0.tgz"
        self._mode = root / "npm.mode"
        self.bin.mkdir()
        npm = self.bin / "npm"
        npm.write_text(f"#!{sys.executable}\n{FAKE_NPM}")
        npm.chmod(0o755)
        self.pack(CONTENT)
        self.npm("ok")
        digest = base64.b64encode(hashlib.sha512(self.archive.read_bytes()).digest()).decode()
        source = PackageSource(
            "npm", "pack", "1.0.0", f"sha512-{digest}", "package/claude", self.archive.stat().st_size
        )
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        self.artifact = Artifact(f"cli/{PINNED_VERSION}/claude", (source,), sha256, True, len(CONTENT))
        self.env = {
            "FAKE_ARCHIVE": str(self.archive),
            "FAKE_LOG": str(self.log),
            "FAKE_MODE": str(self._mode),
            "PATH": str(self.bin),
            "PILOTHOUSE_CACHE": str(self.cache),
            "PILOTHOUSE_INSTALL": "1",
        }
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("pilothouse.provision.pinned_files.find_cli_artifact", lambda: self.artifact)

    def npm(self, mode: str) -> None:
        """Say what npm does: ok, fail or hang."""
        self._mode.write_text(mode)

    def pack(self, content: bytes) -> None:
        """Make the archive hold `content`."""
        with tarfile.open(self.archive, "w:gz") as tar:
            entry = tarfile.TarInfo("package/claude")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

    def runs(self) -> list[int]:
        """The process ids of the runs of npm."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def files(self) -> set[str]:
        """What lies in the cache."""
        return {str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file()}
