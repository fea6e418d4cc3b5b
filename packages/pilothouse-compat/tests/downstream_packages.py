"""Packages that depend on `claude-agent-sdk`, in directories of the cache."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from newest_clients import find_place, install_packages, wants_newest

from pilothouse.provision.artifacts import cache_root


def fetch_packages(name: str, packages: Iterable[str]) -> Path:
    """Return the directory of these packages, without their dependencies; the user's own pip fills it once."""
    if wants_newest():
        install_packages(find_place(name), list(packages))
        return find_place(name)
    place = cache_root() / "judges" / name
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder) / "made"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--target", str(made), *packages], check=True, timeout=300)
            try:
                made.rename(place)
            except OSError:  # another worker was faster
                assert place.is_dir()
    return place
