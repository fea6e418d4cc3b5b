"""Official clients from npm, as pinned in the `package-lock.json` of each folder, on the node that pyright brings.

They are installed once, into the cache. The lock names no registry: npm takes the one of the user, and checks digests.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from newest_clients import ASKED, find_place, locked, note_packages, wants_newest
from npm_packages import ENVIRON, find_node

from pilothouse.provision.artifacts import cache_root

HERE = Path(__file__).parent
FLAGS = ("--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--loglevel=error")
"""Of npm. Optional packages are a CLI of 320 MB: ours runs."""


def install(folder: str = "npm") -> Path:
    """Return the directory with the installed packages and the client programs of a folder."""
    source = HERE / folder
    if wants_newest():
        with locked(find_place(folder)):
            return _install_newest(source, find_place(folder))
    lock = (source / "package-lock.json").read_bytes()
    place = cache_root() / "judges" / f"{folder}-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as fresh:
            made = Path(fresh) / "made"
            shutil.copytree(source, made)
            subprocess.run([*find_node(), "ci", *FLAGS], cwd=made, env=ENVIRON, check=True, timeout=300)
            try:
                made.rename(place)
            except OSError:  # another worker was faster
                assert place.is_dir()
    return place


def _install_newest(source: Path, place: Path) -> Path:
    """Install the newest releases; an alias of one major version keeps that."""
    if not (place / ASKED).exists():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("package-lock.json"), dirs_exist_ok=True)
        package = json.loads((place / "package.json").read_text())
        wanted: dict[str, str] = package["dependencies"]
        package["dependencies"] = {
            name: version.partition(".")[0] if version.startswith("npm:") else "latest"
            for name, version in wanted.items()
        }
        (place / "package.json").write_text(json.dumps(package))
        subprocess.run([*find_node(), "install", *FLAGS], cwd=place, env=ENVIRON, check=True, timeout=300)
        note_packages(place, wanted)
    return place


def run_client(program: str, *arguments: str, folder: str = "npm") -> Any:
    """Run a program of a folder with its packages; returns the JSON value that it prints last."""
    place = install(folder)
    shutil.copyfile(HERE / folder / program, place / program)  # it may be newer than the packages
    done = subprocess.run(
        [find_node()[0], program, *arguments], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
