"""What a session cost, by agent and tool, on a desk and on a phone, whatever the names are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from accessibility import find_violations
from console_browser import PHONE, ConsoleProgram, View, expect
from sample_home import OPUS, assistant, user, write_conversation

from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]
KEPT = os.environ.get("PILOTHOUSE_PICTURES", "")
HOSTILE = "<img src=x onerror=alert(1)>" + "x" * 200


def call(key: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": name, "input": {}}


def result(key: str, text: str) -> dict[str, Any]:
    return user([{"type": "tool_result", "tool_use_id": key, "content": text}])


def write_session_with_agents(home: Path, work: Path) -> str:
    """A conversation with two sub-agents, of which one has a hostile description."""
    messages = [
        user("Look into the import"),
        assistant(call("c1", "Agent"), call("c2", "Agent"), call("c3", HOSTILE), input_tokens=900, output_tokens=300),
        result("c1", "report"),
        result("c3", "text " * 400),
        assistant("Done.", input_tokens=1100, output_tokens=600),
    ]
    session = write_conversation(home, work, messages, dollars=0.8)
    [main] = (home / ".claude" / "projects").glob(f"*/{session}.jsonl")
    place = main.with_suffix("") / "subagents"
    place.mkdir(parents=True)
    for number, description in enumerate(("Profile the import", HOSTILE), 1):
        reply = assistant("report", input_tokens=2000 * number, output_tokens=100, model=OPUS)
        row = {**reply, "uuid": f"a{number}", "parentUuid": None, "sessionId": session, "isSidechain": True}
        (place / f"agent-a{number}.jsonl").write_text(json.dumps({**row, "agentId": f"a{number}"}) + "\n")
        facts = {"agentType": "profiler", "description": description, "toolUseId": f"c{number}"}
        (place / f"agent-a{number}.meta.json").write_text(json.dumps(facts))
    return session


@pytest.mark.parametrize("width", [1280, PHONE["width"]])
def test_agents_and_tools_of_a_session(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel, tmp_path: Path, width: int
) -> None:
    write_session_with_agents(Path(scripted_model.env()["HOME"]), console.root)
    page = view(viewport={"width": width, "height": 844}).page
    page.goto(f"{console.link.partition('#')[0]}#/costs")
    page.get_by_role("link", name="for Look into the import: what it was spent on").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Look into the import")
    agents, tools = page.locator(".cost-table").nth(0), page.locator(".cost-table").nth(1)
    expect(agents.locator("tbody tr")).to_have_count(3)
    expect(agents).to_contain_text("profiler: Profile the import")
    expect(tools.locator("tbody tr")).to_have_count(2)
    expect(tools).to_contain_text("≈ 500")
    expect(page.locator(".figure .value")).to_have_text(["$1.66", "9.1k", "2"])
    expect(page.locator("img")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not find_violations(page)
    page.screenshot(path=(Path(KEPT) if KEPT not in ("", "docs") else tmp_path) / f"breakdown-{width}.png")
    page.get_by_role("link", name="All costs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Costs")


def test_a_session_that_is_not_there_is_said(view: View, console: ConsoleProgram) -> None:
    page = view().page
    page.goto(f"{console.link.partition('#')[0]}#/costs/none")
    expect(page.get_by_role("alert")).to_contain_text("there is no transcript")
