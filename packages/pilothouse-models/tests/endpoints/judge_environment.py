"""Environments of their own for libraries that judge us, and that do not fit beside what the tests need."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

from newest_clients import find_place, note_packages, wants_newest

from pilothouse.provision.artifacts import cache_root

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 300.0


def make_environment(name: str, *requirements: str) -> Path:
    """Return the Python of an environment in the cache, which is made by the first test that wants it."""
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    place = find_place(name) if wants_newest() else cache_root() / "environments" / f"{name}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    python = place / "bin" / "python"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            venv.create(place, with_pip=True, clear=True)
            # Isolated: what PYTHONPATH adds to the tests is not there for the programs.
            subprocess.run([python, "-I", "-m", "pip", "install", "-q", *requirements], check=True, timeout=LIMIT * 2)
            note_packages(place, requirements)
            (place / "complete").touch()
    return python


def run_program(python: Path, program: str, *arguments: str, **env: str) -> Any:
    """Run a program of the directory `programs`, and return the JSON that it prints last."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [python, PROGRAMS / program, *arguments], env={**kept, **env}, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
