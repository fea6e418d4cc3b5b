"""Test the doors with the newest releases of their clients: endpoints, frameworks, front ends, editors, tracers.

    python -m tests.newest_clients     run their tests; other arguments go to pytest

The variable PILOTHOUSE_CLIENTS=newest makes the helpers of these tests install the newest releases, into a directory of
the cache for this day, in place of the pinned ones. Packages come through npm and pip, from the registries of the user.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import distributions
from pathlib import Path

from pilothouse.provision.artifacts import cache_root

VARIABLE = "PILOTHOUSE_CLIENTS"
NEWEST = "newest"
ROOT = Path(__file__).parents[1]
TESTS = (
    "packages/pilothouse-doors/tests",
    "packages/pilothouse-models/tests/endpoints",
    "packages/pilothouse-compat/tests/test_packages.py",
    "packages/pilothouse-compat/tests/test_tracers.py",
)
OWN_CLIENTS = (
    "agent-client-protocol", "anthropic", "langchain-core", "mcp", "openai", "opentelemetry-sdk", "pydantic-ai-slim",
)  # fmt: skip
"""Clients that tests import in their own process: of the group `dev`, in which they stay as old as the environment."""
_WANTS_NEWEST = os.environ.get(VARIABLE) == NEWEST  # before a test has changed the environment
ASKED = "asked.json"
"""File of a directory of packages with the names of those that were asked for."""


def wants_newest() -> bool:
    """Whether tests install the newest clients in place of the pinned ones."""
    return _WANTS_NEWEST


def find_place(name: str) -> Path:
    """Return the directory for the newest packages of this name."""
    return cache_root() / "newest-clients" / date.today().isoformat() / name


def drop_versions(packages: Iterable[str]) -> list[str]:
    """Return requirements without their pins."""
    return [re.split(r"[=<>~!]", each)[0] for each in packages]


def note_packages(place: Path, names: Iterable[str]) -> None:
    """Note which packages of a directory were asked for."""
    (place / ASKED).write_text(json.dumps(drop_versions(names)))


@contextmanager
def locked(place: Path) -> Generator[None]:
    """Wait until no other worker of pytest fills this directory."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_packages(place: Path, packages: Sequence[str]) -> None:
    """Install the newest releases of packages and what they need into a directory, once a day.

    The wheels of claude-agent-sdk carry a CLI of 170 MB, which nothing here runs: its source does.
    """
    with locked(place):
        if (place / ASKED).exists():
            return
        shutil.rmtree(place, ignore_errors=True)
        names = drop_versions(packages)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command = [*pip, "--no-binary", "claude-agent-sdk", "--target", str(place), *names]
        subprocess.run(command, check=True, timeout=600)
        note_packages(place, names)


def list_versions(place: Path) -> dict[str, str]:
    """Return the versions of the packages of a directory that were asked for: of pip, or of npm."""
    names: list[str] = json.loads((place / ASKED).read_text())
    if (modules := place / "node_modules").is_dir():
        return {name: json.loads((modules / name / "package.json").read_text())["version"] for name in names}
    paths = [str(path) for path in place.glob("lib/python*/site-packages")] or [str(place)]
    known = {each.name.lower().replace("_", "-"): each.version for each in distributions(path=paths)}
    return {name: known.get(re.sub(r"\[.*", "", name).lower().replace("_", "-"), "?") for name in names}


def main(flags: Sequence[str]) -> int:
    """Run the tests, print which versions they ran with, and return pytest's exit code."""
    today = find_place("")
    for old in today.parent.glob("*"):
        if old != today:
            shutil.rmtree(old)
    own = find_place("own")
    install_packages(own, OWN_CLIENTS)
    python_path = os.pathsep.join(filter(None, [str(own), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, VARIABLE: NEWEST, "PYTHONPATH": python_path, "PILOTHOUSE_REQUIRE_CLI": "1"}
    which = "not slow and not soak and not elsewhere and not browser"
    command = [sys.executable, "-m", "pytest", "-q", "-m", which, "-p", "no:cacheprovider", *TESTS, *flags]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    print(f"Newest clients: exit code {done.returncode}")
    for asked in sorted(today.glob(f"*/{ASKED}")):
        versions = ", ".join(f"{name} {version}" for name, version in list_versions(asked.parent).items())
        print(f"  {asked.parent.name}: {versions}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
