"""What `import pilothouse` loads: an exact list, so that nobody adds to the start of every program unseen.

The import loads the core, because the first query would otherwise load it inside an event loop, and so block the loop.
A module that is missing here was imported at the top of a file of the core. Import it where it is used, if few programs
need it; else add it to the list, and say in the change what it costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilothouse_testing import FakeCLI

PACKAGES: dict[str, str] = {
    "": ("_version callbacks errors events hints instrumentation json_schema lazy_exports media products tracebacks"),
    "client": (
        "agent budgets child_supervisor config_file controls costs custom_tools event_reader handlers launch logins "
        "middleware observation prompt queries result retry session_settings sessions settings_check structured_output"
    ),
    "engine": (
        "activity buffer channel child diagnostics extensions failures incoming_requests interrupt limits pending_work "
        "router run tasks turn"
    ),
    "hooks": "events matchers outputs",
    "messages": "api_messages base core decoder json_lines",
    "options": (
        "cli_settings conflicts credentials isolation options permission_facts permission_rules renderer "
        "secrets settings table value_structs value_types values"
    ),
    "permissions": "approvals dispatcher requests",
    "protocol": "connection control_frames frame_reader",
    "provision": "artifacts pinned_files",
    "tools": "calls content input_schema mcp_dispatcher server tool",
    "transports": (
        "base child_process cli concurrency discovery marks pipes private_files process_start start_errors stderr "
        "watchdog"
    ),
}
"""What the import loads, by package."""

OTHERS = {"_contextvars", "anyio", "msgspec", "sniffio", "typing_extensions"}
"""Packages that are not of the standard library. Each one is in `dependencies`, or one that is needs it."""

HEAVY = {"email", "http", "multiprocessing", "pydoc", "sqlite3", "unittest", "urllib.request", "xml"}
"""Modules of the standard library that the core does without."""


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


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules that are there after the import."""
    return modules_after("import pilothouse", tmp_path_factory.mktemp("home"))


def select_ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "pilothouse"}


def test_the_import_loads_exactly_these_modules(imported: set[str]) -> None:
    ours = select_ours(imported)
    new, gone = sorted(ours - listed()), sorted(listed() - ours)
    assert not new, f"the import now loads these too: {new}; see the top of this file"
    assert not gone, f"the import does without these now; take them off the list: {gone}"


def test_the_import_loads_no_other_package_and_nothing_heavy(imported: set[str], tmp_path: Path) -> None:
    packages = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"pilothouse", "__main__"}
    bare = modules_after("", tmp_path)
    assert packages - bare <= OTHERS
    assert not imported & HEAVY - bare


def test_the_import_starts_no_thread_and_no_event_loop(imported: set[str], tmp_path: Path) -> None:
    assert "anyio._backends._asyncio" not in imported
    code = "import pilothouse, threading; from pilothouse import sync; assert threading.active_count() == 1"
    assert "pilothouse.sync.portal" not in modules_after(code, tmp_path)


FIRST_QUERIES = {
    "messages": "async for _ in pilothouse.query('go', cli=cli): pass",
    "events": "async for _ in pilothouse.query('go', cli=cli).events(): pass",
    "text": "async for _ in pilothouse.query('go', cli=cli).text_stream(): pass",
    "tools": "await pilothouse.query('go', cli=cli, custom_tools=[price])",
    "hooks": "await pilothouse.query('go', cli=cli, hooks={'PreToolUse': decide}, permission_mode='plan')",
    "permissions": "await pilothouse.query('go', cli=cli, can_use_tool=decide, allowed_tools=['Read'])",
    "typed output": "await pilothouse.query('go', cli=cli, output_type=int)",
    "limits": "await pilothouse.query('go', cli=cli, retry=2, max_budget_tokens=1000, timeout=60)",
    "session": "async with pilothouse.session(cli=cli, can_use_tool=decide) as s: await s.query('go')",
}
"""First queries of programs."""

PROGRAM = """
import asyncio, os, sys, pilothouse
def price(item: str) -> str:
    "The price."
    return item
async def decide(request):
    return None
"""
ASK = """
async def main(cli):
    before = set(sys.modules)
    {ask}
    late = sorted(name for name in set(sys.modules) - before if name.startswith("pilothouse"))
    assert not late, late
asyncio.run(main(os.environ["FAKE"]))
"""


def test_queries_load_nothing_of_ours_inside_the_event_loop(tmp_path: Path) -> None:
    """One after the other: what one of them would load is found there, so it cannot hide what the next one loads."""
    with FakeCLI() as fake:
        fake.text("Hello").forever()
        program = PROGRAM + "".join(ASK.format(ask=ask) for ask in FIRST_QUERIES.values())
        modules_after(program, tmp_path, FAKE=str(fake.path))
