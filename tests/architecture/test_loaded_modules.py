"""What is loaded on the way to a first answer: an exact list, so that nobody adds to the start of every program unseen.

A module that is missing here was imported at the top of a file that a plain `query()` loads. Import it where it is
used, if most queries do without; else add it to the list, and say in the change what it costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilothouse.testing import FakeCLI

PACKAGES: dict[str, str] = {
    "": "callbacks errors lazy_exports tracebacks",
    "client": "agent config_file custom_tools handlers prompt queries query_plan rate_limits result",
    "driver": "child_run connection failures incoming_requests pending_work query_run tasks",
    "messages": "api_messages base core decoder json_lines",
    "options": "invocation options renderer secrets settings signatures table value_types values",
    "protocol": "connection control_frames frame_reader",
    "transports": "base child cli concurrency discovery pipes stderr watchdog",
}
"""What one answered `query()` loads, by package."""

OTHERS = {"_contextvars", "anyio", "msgspec", "sniffio", "typing_extensions"}
"""Packages that are not of the standard library. None is added without an entry in `dependencies`."""

STANDARD = {"uuid"}
"""Modules of the standard library that the event loop, anyio and msgspec have not loaded already."""

BASE = "import asyncio, subprocess, anyio, msgspec; from anyio._backends import _asyncio"
QUERY = """
import asyncio, os, pilothouse
async def main():
    result = await pilothouse.query("go", cli=os.environ["FAKE"])
    assert (result.text, result.is_success) == ("Hello", True), result.error
asyncio.run(main())
"""


def modules_after(code: str, directory: Path, **variables: str) -> set[str]:
    """The modules that are there when `code` has run in an interpreter of its own, in an empty home."""
    script = f"{code}\nimport sys; found = sorted(sys.modules); import json; print(json.dumps(found))"
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "PYTHONPATH") if name in os.environ}
    env = {**kept, "HOME": str(directory), "PILOTHOUSE_INSTALL": "0", **variables}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=directory, env=env, check=True, capture_output=True, text=True, timeout=60)
    names: Any = json.loads(done.stdout.splitlines()[-1])
    return set(names)


def listed() -> set[str]:
    """The names of `PACKAGES` in full, packages included."""
    modules = {
        ".".join(filter(None, ("pilothouse", package, name)))
        for package, names in PACKAGES.items()
        for name in names.split()
    }
    return modules | {f"pilothouse.{package}".rstrip(".") for package in PACKAGES}


def test_importing_the_package_loads_one_small_module_of_it_and_no_event_loop(tmp_path: Path) -> None:
    loaded = modules_after("import pilothouse", tmp_path)
    assert {name for name in loaded if name.startswith("pilothouse")} == {"pilothouse", "pilothouse.lazy_exports"}
    assert not loaded & {"anyio", "asyncio", "msgspec", "subprocess", "inspect", "dataclasses"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules that are there after one answered query."""
    with FakeCLI() as fake:
        fake.text("Hello").forever()
        return modules_after(QUERY, tmp_path_factory.mktemp("home"), FAKE=str(fake.path))


def test_a_plain_query_loads_exactly_these_modules(loaded: set[str]) -> None:
    ours = {name for name in loaded if name.partition(".")[0] == "pilothouse"}
    new, gone = sorted(ours - listed()), sorted(listed() - ours)
    assert not new, f"a plain query now loads these too: {new}; see the top of this file"
    assert not gone, f"a plain query does without these now; take them off the list: {gone}"


def test_a_plain_query_loads_no_other_package_and_little_of_the_standard_library(
    loaded: set[str], tmp_path: Path
) -> None:
    found = {name.partition(".")[0] for name in loaded - modules_after(BASE, tmp_path)} - {"pilothouse"}
    new = sorted(found - STANDARD - OTHERS)
    assert not new, f"a plain query now loads these too: {new}; see the top of this file"


@pytest.mark.parametrize("code", ["from pilothouse import sync", "import pilothouse.sync as ph; ph.Options"])
def test_the_blocking_api_starts_no_thread_and_no_loop_before_use(tmp_path: Path, code: str) -> None:
    loaded = modules_after(code, tmp_path)
    assert not loaded & {"anyio", "asyncio", "pilothouse.sync.portal", "pilothouse.client"}
