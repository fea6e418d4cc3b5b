"""The tests of `claude-agent-sdk` that use its public names only: where they come from, which they are, and a run.

The source distribution has them. It is fetched once, by pip, into the cache; nothing of it is kept here.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path

from pilothouse.provision.artifacts import cache_root
from pilothouse_compat.alias import PATH
from pilothouse_compat.claude_agent_sdk import __version__

PACKAGE = "claude_agent_sdk"
_PRIVATE_PATH = re.compile(rf"{PACKAGE}\.(_|[a-z_.]*\._)")
_ABOUT_BUILDING = ("test_download_cli", "test_build_wheel", "test_changelog", "test_update_cli_version")
_OTHER_PACKAGES = ("redis", "postgres", "live")
"""Words in the names of files whose tests need packages or servers that are not here."""

# Names of private modules that the files import for other tests: they stand for nothing.
STAND_INS = f"""
import importlib, importlib.abc, importlib.machinery, sys, types

NAMES = ("{PACKAGE}.", "pilothouse_compat.{PACKAGE}.")

def make(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Exception,), {{}})

class StandIn(types.ModuleType):
    __getattr__ = staticmethod(make)

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(NAMES) else None
    def create_module(self, spec):
        return StandIn(spec.name)
    def exec_module(self, module):
        pass

import {PACKAGE}
assert "pilothouse" in {PACKAGE}.__file__
sys.meta_path.append(Finder())
for name in "sessions session_store session_mutations query message_parser transport.subprocess_cli".split():
    importlib.import_module(f"{PACKAGE}._internal.{{name}}").__getattr__ = make
for name in ("types", "_errors"):
    importlib.import_module(f"{PACKAGE}.{{name}}").__getattr__ = make
public = {PACKAGE}.__getattr__
{PACKAGE}.__getattr__ = lambda name: make(name) if name[0] == "_" and name[1] != "_" else public(name)
"""


def fetch_source() -> Path:
    """Return the directory of the source distribution; fetched by the user's own pip if it is not in the cache."""
    place = cache_root() / "judges" / f"{PACKAGE}-{__version__}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", folder]
        wanted = ["--no-deps", "--no-binary", ":all:", f"claude-agent-sdk=={__version__}"]
        subprocess.run([*pip, *wanted], check=True, timeout=300, env={**os.environ, "HOME": folder})
        [archive] = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        [made] = [each for each in Path(folder).iterdir() if each.is_dir() and (each / "tests").is_dir()]
        try:
            made.rename(place)
        except OSError:  # another worker was faster
            assert place.is_dir()
    return place


def list_public_tests(source: Path) -> Iterator[str]:
    """Names of the tests that use public names only: `file::Class::function`."""
    for path in sorted((source / "tests").glob("test_*.py")):
        if path.stem not in _ABOUT_BUILDING and not any(word in path.stem for word in _OTHER_PACKAGES):
            yield from (f"{path.name}::{name}" for name in _TestFile(path.read_text()).public_tests())


class _TestFile:
    """The definitions of one file, and which tests reach private names through them."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._private: set[str] = set()
        self._definitions: dict[str, list[ast.AST]] = {}
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                self._private |= {each.asname or each.name for each in node.names if _is_private(node, each.name)}
            for name, value in _definitions(node):
                self._definitions.setdefault(name, []).append(value)

    def public_tests(self) -> Iterator[str]:
        for prefix, function in self._tests():
            if not self._reaches_private(function, set()):
                yield prefix + function.name

    def _tests(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for node in self._tree.body:
            group = node.name if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else ""
            for each in node.body if isinstance(node, ast.ClassDef) and group else [node]:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
                    yield (f"{group}::" if group else ""), each

    def _reaches_private(self, node: ast.AST, seen: set[str]) -> bool:
        names: set[str] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, ast.arg):
                names.add(part.arg)
            elif isinstance(part, ast.Attribute):
                names.add(part.attr)
                own = isinstance(part.value, ast.Name) and part.value.id in ("self", "cls")
                if part.attr.startswith("_") and not part.attr.startswith("__") and not own:
                    return True
            elif (
                isinstance(part, ast.Constant) and isinstance(part.value, str) and _PRIVATE_PATH.search(part.value)
            ) or (isinstance(part, ast.ImportFrom) and any(_is_private(part, each.name) for each in part.names)):
                return True
        if names & self._private:
            return True
        for name in (names & self._definitions.keys()) - seen:
            seen.add(name)
            if any(self._reaches_private(each, seen) for each in self._definitions[name]):
                return True
        return False


def _is_private(node: ast.ImportFrom, name: str) -> bool:
    is_own = (node.module or "").startswith(PACKAGE)
    return is_own and ("._" in (node.module or "") or (name.startswith("_") and not name.startswith("__")))


def _definitions(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name, node
    elif isinstance(node, ast.ClassDef):
        if not node.name.startswith("Test"):
            yield node.name, node
            return
        for each in node.body:
            yield from _definitions(each)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((each.id, node.value) for each in targets if isinstance(each, ast.Name))


def run_tests(source: Path, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Run tests on pilothouse in a process of its own; returns "passed", "skipped" or "failed: why" by name."""
    work = folder / "work"
    for part in ("tests", "examples"):
        shutil.copytree(source / part, work / part)
    (work / "stand_ins.py").write_text(STAND_INS)
    options = "--import-mode=importlib -p anyio -p stand_ins -p no:cacheprovider -p no:pilothouse -p no:xdist"
    (work / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n")
    home = folder / "home"
    home.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join((str(PATH), str(work))),
        "PILOTHOUSE_INSTALL": "0",  # one test wants to be told that there is no CLI
        "PILOTHOUSE_CACHE": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--junitxml=report.xml"]
    subprocess.run(
        [*command, *(f"tests/{name}" for name in names)],
        cwd=work,
        env=env,
        capture_output=True,
        timeout=500,
        check=False,
    )
    return dict(_read_report(work / "report.xml"))


def _read_report(path: Path) -> Iterator[tuple[str, str]]:
    for case in ET.parse(path).getroot().iter("testcase"):
        module, _, group = case.get("classname", "").removeprefix("tests.").partition(".")
        name = "::".join(filter(None, (f"{module}.py", group, case.get("name", ""))))
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            yield name, f"failed: {problem.get('message', '')[:300]}"
        else:
            yield name, "passed" if case.find("skipped") is None else "skipped"
