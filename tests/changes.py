"""What changed: skip a check whose files are as they were, and test what was edited.

    python -m tests.changes skip NAME PATH... -- COMMAND     run a check unless it has passed with these files
    python -m tests.changes quick                            format, lint, types and tests of what differs from HEAD

`make check` and `make quick` use it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.places import ROOT, SOURCES, TEST_FOLDERS, list_tests, module_name

PASSED = Path(sys.prefix) / "passed"
"""Holds a file for each check, with the digest of what it has passed with."""
PYTHON = [sys.executable, "-m"]


def list_files(paths: Iterable[str]) -> list[Path]:
    """The files of git below `paths`, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(path for name in set(listed.split("\0")) if name and (path := ROOT / name).is_file())


def digest(paths: Iterable[str], command: Sequence[str]) -> str:
    """What changes when one of the files, the command or the environment does."""
    whole = hashlib.sha256("\0".join(command).encode())
    stamp = Path(sys.prefix) / "dev.stamp"  # written when the packages of the environment are installed
    whole.update(str(stamp.stat().st_mtime_ns if stamp.exists() else 0).encode())
    for path in list_files(paths):
        whole.update(f"\0{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def skip_or_run(name: str, paths: Sequence[str], command: Sequence[str]) -> int:
    """Run `command` unless it has passed with these files; returns its exit code."""
    passed, now = PASSED / name, digest(paths, command)
    if passed.exists() and passed.read_text() == now:
        print(f"{name}: unchanged")
        return 0
    passed.unlink(missing_ok=True)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0:
        PASSED.mkdir(exist_ok=True)
        passed.write_text(now)
    return code


def find_tests(changed: Iterable[Path]) -> list[Path]:
    """The changed tests, and those that import a changed module or a changed helper of tests."""
    changed = set(changed)
    names = {module_name(path) for path in changed if any(path.is_relative_to(source) for source in SOURCES)}
    names |= {path.stem for path in changed if any(path.is_relative_to(folder) for folder in TEST_FOLDERS)}
    return [path for path in list_tests() if path in changed or names & imported_names(path)]


def imported_names(path: Path) -> set[str]:
    """The modules that a file imports, and `a.b` for `from a import b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def quick() -> int:
    """Check and test what differs from HEAD; returns 1 if something fails."""
    command = ["git", "diff", "-z", "--name-only", "HEAD"]
    named = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    named += subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    changed = [path for name in sorted({*named}) if name.endswith(".py") and (path := ROOT / name).is_file()]
    if not changed:
        print("no Python file differs from HEAD")
        return 0
    files = [str(path.relative_to(ROOT)) for path in changed]
    tests = [str(path.relative_to(ROOT)) for path in find_tests(changed)]
    commands = [["ruff", "format", "--check", *files], ["ruff", "check", *files], ["pyright", *files]]
    if tests:
        commands.append(["pytest", "-q", "-x", "-n", str(os.cpu_count() or 2), *tests])
    failed = False
    for each in commands:
        failed |= subprocess.run([*PYTHON, *each], cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["quick"]:
            sys.exit(quick())
        case ["skip", name, *rest] if "--" in rest:
            at = rest.index("--")
            sys.exit(skip_or_run(name, rest[:at], rest[at + 1 :]))
        case _:
            sys.exit(__doc__)
