"""The command runs no program that another user may have put into the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilothouse.errors import ProvisionError
from pilothouse.provision import pinned_files
from pilothouse.provision.artifacts import load_pins, write_receipt

pytestmark = pytest.mark.skipif(os.name != "posix", reason="directories of Windows have no such modes")


def plant(cache: Path, mode: int) -> tuple[Path, Path]:
    """Plant a program with the receipt of the pinned one; return it, and the file that it touches when it runs."""
    artifact = pinned_files.find_cli_artifact()
    file, canary = cache / artifact.path, cache / "ran"
    file.parent.mkdir(parents=True)
    file.write_text(f'#!/bin/sh\ntouch {canary}\necho "{load_pins().cli.version} (Claude Code)"\n')
    file.chmod(0o755)
    write_receipt(file, artifact.sha256 or "0" * 64, artifact.sources[0].digest)
    (cache / "cli").chmod(mode)
    return file, canary


@pytest.mark.requirement("E84")
def test_a_planted_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, canary = plant(tmp_path / "cache", 0o777)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PILOTHOUSE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pilothouse"]
    for arguments in (["ask", "hi"], ["doctor", "--quick"], ["install-cli"]):
        ended = subprocess.run(
            [*command, *arguments],
            env={**env, "PILOTHOUSE_INSTALL": "0", "ANTHROPIC_API_KEY": "sk-ant-x"},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        assert ended.returncode != 0
        reason = f"other users can write to {tmp_path / 'cache' / 'cli'}"
        assert arguments[0] != "install-cli" or reason in ended.stdout + ended.stderr
    assert not canary.exists()
    monkeypatch.setenv("PILOTHOUSE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ProvisionError, match="may have been written by another user"):
        pinned_files.managed_cli()
    assert file.exists()


def test_doctor_runs_no_file_with_another_digest(tmp_path: Path) -> None:
    _, canary = plant(tmp_path / "cache", 0o755)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PILOTHOUSE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-m", "pilothouse", "doctor", "--quick"],
        env={**env, "PILOTHOUSE_INSTALL": "0"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert "is not the pinned file" in ended.stdout + ended.stderr
    assert not canary.exists()
