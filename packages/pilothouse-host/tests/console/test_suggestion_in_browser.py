"""The Policy page proposes permissions from recorded sessions, says what each stands on, and applies nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accessibility import find_violations
from console_browser import PHONE, ConsoleProgram, Viewer, expect
from sample_home import assistant, user, write_conversation

from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

ODD = "npm test\u202e<img src=x onerror=alert(1)>"


def made(tool: str, number: int, denied: bool = False, **given: Any) -> list[dict[str, Any]]:
    """A call and its result."""
    call = {"type": "tool_use", "id": f"t{number}", "name": tool, "input": given}
    answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "x", "is_error": denied}
    row = {"permissionDecision": {"decision": "reject", "source": "user_reject"}} if denied else {}
    return [assistant(call), user([answer], **row)]


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE], ids=["wide", "narrow"])
def test_the_policy_page_suggests_permissions(
    view: Callable[..., Viewer], console: ConsoleProgram, scripted_model: ScriptedModel, viewport: Any, tmp_path: Path
) -> None:
    calls = [
        *made("Bash", 1, command="npm test"),
        *made("Edit", 2, file_path="src/a.py"),
        *made("Edit", 3, file_path="src/b.py"),
        *made("Bash", 4, denied=True, command="git push"),
        *made("Bash", 5, command=ODD),
        *made("Read", 6, file_path=".env"),
    ]
    write_conversation(scripted_model.home, console.root, [user("Fix it"), *calls, assistant("Done.")])
    page = view(viewport=viewport).page
    page.goto(f"{console.link.partition('#')[0]}#/policy")
    page.get_by_role("button", name="Suggest").click()
    expect(page.get_by_text("From 6 calls of 1 session")).to_be_visible()
    panels = page.locator(".suggestion details")
    expect(panels.nth(0)).to_contain_text("Bash(npm test)")
    expect(panels.nth(0)).to_contain_text("2 calls of 1 session: 'src/a.py', 'src/b.py'")
    expect(panels.nth(1)).to_contain_text("Bash(git push)")
    expect(panels.nth(1)).to_contain_text("would have refused 1 call that ran")
    expect(panels.nth(2)).to_contain_text("npm test\\u202e<img src=x onerror=alert(1)>")
    page.get_by_text("As a settings file").click()
    expect(page.locator(".suggestion pre")).to_contain_text('"Edit(/src/**)"')
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not find_violations(page)
    page.screenshot(path=tmp_path / "suggestion.png", full_page=True)
    assert not (console.root / ".claude").exists()
