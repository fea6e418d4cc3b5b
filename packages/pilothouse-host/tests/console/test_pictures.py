"""Pictures of every page, wide and narrow, light and dark; those of the documentation are made from them.

PILOTHOUSE_PICTURES=DIRECTORY keeps all of them; with `docs` it renews those of `docs/console.md`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from accessibility import find_violations
from console_browser import DESKTOP, PHONE, ConsoleProgram, Viewer, expect, start_session
from places import DOCS
from sample_home import fill_home, make_fleet_journal

from pilothouse_testing import ScriptedModel, Steps, Text, Thinking, ToolUse

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

KEPT = os.environ.get("PILOTHOUSE_PICTURES", "")
IN_DOCS = {"inbox-wide-light", "session-wide-light", "costs-wide-dark", "inbox-narrow-dark"}
MAX_BYTES = 250_000
FOUND = """I found the cause: `check()` compares the **digest** with the plain password.

1. `app/login.py` hashes the password in `check()`
2. the comparison with `==` also leaks timing

```python
def check(password: str, stored: bytes) -> bool:
    return hmac.compare_digest(digest(password), stored)
```"""
BEFORE = "import hashlib\n\n\ndef check(password, stored):\n    return password == stored\n"
QUESTION = {
    "question": "Which database should the new service use?",
    "header": "Database",
    "multiSelect": False,
    "options": [
        {"label": "SQLite", "description": "One file, no server; enough for one machine"},
        {"label": "PostgreSQL", "description": "Many writers, backups, and a server to run"},
    ],
}


def script(model: ScriptedModel, work: Path) -> None:
    login = work / "login.py"
    login.write_text(BEFORE)
    edit = {
        "file_path": str(login),
        "old_string": "password == stored",
        "new_string": "hmac.compare_digest(password, stored)",
    }
    look = ToolUse("Bash", {"command": "pytest -q test_login.py; true", "description": "Run the test"})
    agent = {
        "description": "Look for other comparisons",
        "prompt": "Find all comparisons of digests",
        "subagent_type": "general-purpose",
    }
    model.on("Find all comparisons", reply="There is no other comparison of digests.")
    model.on(
        "login test",
        reply=Steps(
            (
                Thinking("The test fails in check(). I should read it first."),
                Text("Let me look at the test and the code it covers."),
                ToolUse("Read", {"file_path": str(login)}),
            ),
            (Text(FOUND), ToolUse("Task", agent)),
            (ToolUse("Edit", edit), look),
            "Fixed: `check()` compares digests in constant time, and the test passes.",
            "Fixed.",
        ),
    )
    model.on("the service", reply=Steps((ToolUse("AskUserQuestion", {"questions": [QUESTION]}),), "Good."))
    model.on(
        "clean up",
        reply=Steps(
            (
                Text("The old builds can go."),
                ToolUse("Bash", {"command": "rm -rf build/2025-*", "description": "Remove last year's builds"}),
            ),
            "Done.",
        ),
    )


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory whose name may stand in pictures, if nobody else has it."""
    place = Path(tempfile.gettempdir(), "website")
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        place = Path(tempfile.mkdtemp(prefix="website-"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def arguments(tmp_path: Path, scripted_model: ScriptedModel) -> tuple[str, ...]:
    """The console shows a fleet, and has conversations of the last weeks."""
    (tmp_path / "work").mkdir()
    fill_home(Path(scripted_model.env()["HOME"]), tmp_path / "work")
    journal = tmp_path / "tickets.db"
    with ThreadPoolExecutor(1) as other:  # the loop of the browser has this thread
        other.submit(anyio.run, make_fleet_journal, journal).result()
    return ("--fleet", str(journal))


def test_every_page_looks_as_it_should(
    view: Callable[..., Viewer], console: ConsoleProgram, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    target = tmp_path / "pictures" if KEPT in ("", "docs") else Path(KEPT)
    script(scripted_model, console.root)
    page = view().page
    start_session(page, "Fix the login test")
    expect(page.get_by_role("heading", name="Allow Edit: login.py?")).to_be_visible()
    session = page.url.partition("#")[2]
    start_session(page, "Plan the service")
    start_session(page, "Please clean up the builds")
    expect(page.locator(".ask")).to_be_visible()
    pages = {
        "inbox": "/inbox", "sessions": "/sessions", "session": session, "new": "/sessions/new", "costs": "/costs",
        "fleet": "/fleet", "policy": "/policy",
    }  # fmt: skip
    violations: list[str] = []
    for width, viewport in (("wide", DESKTOP), ("narrow", PHONE)):
        for scheme in ("light", "dark"):
            given: dict[str, Any] = {"viewport": viewport, "color_scheme": scheme, "has_touch": width == "narrow"}
            shown = view(**given).page
            for name, address in pages.items():
                shown.goto(f"{console.link.partition('#')[0]}#{address}")
                expect(shown.locator("h1")).to_be_visible()
                expect(shown.locator("[aria-busy=true]")).to_have_count(0)
                if name == "costs":
                    expect(shown.locator(".plot")).to_be_visible()
                if name == "fleet":  # one run failed at its only attempt
                    expect(shown.get_by_text("retry")).to_have_count(0)
                picture = target / f"{name}-{width}-{scheme}.png"
                shown.screenshot(path=picture)
                assert picture.stat().st_size > 5_000
                violations += [f"{picture.stem}: {each}" for each in find_violations(shown)]
                if picture.stem in IN_DOCS:
                    assert picture.stat().st_size < MAX_BYTES
                    if KEPT == "docs":
                        picture.replace(DOCS / f"console-{picture.name}")
    assert not violations, "\n".join(violations)
    assert {path.stem.removeprefix("console-") for path in DOCS.glob("console-*.png")} == IN_DOCS
