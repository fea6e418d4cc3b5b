"""A user at the console, with the real CLI and the scripted model: prompts, requests, what a reload shows."""

from __future__ import annotations

import re

import pytest
from console_browser import ConsoleProgram, View, expect, start_session

from pilothouse_testing import Gate, Pause, RecordedRequest, ScriptedModel, Steps, Text, Thinking, ToolUse

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

TOUCH = ToolUse("Bash", {"command": "touch made", "description": "Make a file"})
QUESTION = {
    "question": "Which database?",
    "header": "DB",
    "options": [{"label": "SQLite", "description": "One file"}, {"label": "PostgreSQL", "description": "Many writers"}],
    "multiSelect": False,
}


def write_plan(request: RecordedRequest) -> ToolUse:
    """Write the plan into the file that Claude Code names."""
    found = re.search(r"[^\s`\"]+/plans/[^\s`\"]+?\.md", str(request.messages) + request.system_text)
    assert found is not None, request.system_text
    return ToolUse("Write", {"file_path": found[0], "content": "# Plan\n\n1. First\n2. Second"})


def test_a_session_from_the_first_prompt_to_its_end_by_keyboard(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply(Steps((Thinking("Let me see."), Text("I make a **file**."), TOUCH), "It is there."))
    page = view().page
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
    start_session(page, "Make a file")
    expect(page.get_by_role("heading", name="Allow Bash: touch made?")).to_be_visible()
    expect(page).to_have_title("(1) pilothouse")
    expect(page.locator(".item.prompt")).to_have_text("You: Make a file")
    expect(page.locator(".markdown strong")).to_have_text("file")
    page.keyboard.press("a")
    expect(page.get_by_text("It is there.")).to_be_visible()
    expect(page).to_have_title("pilothouse")
    assert (console.root / "made").exists()
    expect(page.locator("details.call")).to_have_count(1)
    page.locator("details.call > summary").click()
    expect(page.locator("details.call pre").first).to_have_text("touch made")
    page.get_by_label("Prompt", exact=True).fill("Thanks")
    page.keyboard.press("Enter")
    expect(page.locator(".item.prompt")).to_have_count(2)


def test_prompts_wait_in_a_queue_and_are_withdrawn(view: View, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.on("begin", reply=(Pause(gate), Text("begun")))
    scripted_model.on("then this", reply="then done")
    page = view().page
    start_session(page, "begin")
    gate.wait_reached(20)
    for prompt in ("never mind", "then this"):
        page.get_by_label("Prompt", exact=True).fill(prompt)
        page.keyboard.press("Alt+Enter")
    queue = page.get_by_label("Queued prompts")
    expect(queue.locator("li > span")).to_have_text(["never mind", "then this"])
    queue.get_by_role("button", name="Withdraw: never mind").click()
    expect(queue.locator("li > span")).to_have_text(["then this"])
    gate.open()
    expect(page.get_by_text("then done")).to_be_visible()
    expect(queue).to_have_count(0)
    assert "never mind" not in str([request.messages for request in scripted_model.requests])


def test_requests_are_settled_in_the_inbox_by_keyboard(view: View, scripted_model: ScriptedModel) -> None:
    scripted_model.on("deny me", reply=Steps((TOUCH,), "denied"))
    scripted_model.on("ask me", reply=Steps((ToolUse("AskUserQuestion", {"questions": [QUESTION]}),), "answered"))
    scripted_model.on("plan it", reply=Steps(write_plan, (ToolUse("ExitPlanMode", {}),), "planned"))
    page = view().page
    for count, prompt in enumerate(("deny me", "ask me", "plan it"), 1):
        start_session(page, prompt, mode="plan" if prompt == "plan it" else "default")
        expect(page.locator(".badge")).to_have_text(str(count))
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.locator(".ask")).to_have_count(3)
    page.keyboard.press("d")
    page.keyboard.type("Not in this directory")
    page.keyboard.press("Enter")
    expect(page.locator(".ask")).to_have_count(2)
    page.keyboard.press("2")
    expect(page.get_by_label("PostgreSQL")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.locator(".ask")).to_have_count(1)
    expect(page.get_by_role("region", name="Text")).to_have_text("# Plan\n\n1. First\n2. Second")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    for prompt, answer in (("deny me", "denied"), ("ask me", "answered"), ("plan it", "planned")):
        page.get_by_role("link", name=prompt).click()
        expect(page.get_by_text(answer, exact=True)).to_be_visible()
        page.go_back()
    results = ""
    for _ in range(100):  # the page shows what was decided before the CLI has told the model
        results = str([request.messages for request in scripted_model.requests])
        if "Not in this directory" in results and "PostgreSQL" in results:
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail(f"the model does not know what was decided: {results}")


def test_a_reload_in_mid_stream_loses_and_doubles_nothing(view: View, scripted_model: ScriptedModel) -> None:
    gate, last = Gate(), Gate()
    words = [f"word{number}" for number in range(40)]
    scripted_model.reply((Text(" ".join(words[:20])), Pause(gate), Text(" ".join(words[20:])), Pause(last)))
    viewer, other = view(), view()
    start_session(viewer.page, "Count")
    gate.wait_reached(20)
    other.page.goto(viewer.page.url)
    for page in (viewer.page, other.page):
        expect(page.get_by_text("word19")).to_be_visible()
    viewer.page.reload()
    expect(viewer.page.get_by_text("word19")).to_be_visible()
    gate.open()
    last.open()
    for page in (viewer.page, other.page):
        expect(page.locator(".turn-end")).to_be_visible()
        assert " ".join(page.locator(".item.text").all_inner_texts()).split() == words


def test_a_killed_host_goes_on_where_it_was(view: View, console: ConsoleProgram, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.on("first", reply=(Text("half of it"), Pause(gate)))
    scripted_model.on("second", reply="the other half")
    page = view().page
    start_session(page, "first")
    gate.wait_reached(20)
    expect(page.get_by_text("half of it")).to_be_visible()
    token, port = console.link.partition("#token=")[2], console.port
    console.kill()
    expect(page.get_by_text("Connecting …")).to_be_visible()
    console.start(port, token=token)
    gate.open()
    expect(page.get_by_text("Connected")).to_be_visible()
    expect(page.get_by_text("Ended")).to_be_visible()
    expect(page.locator(".item.text")).to_have_text("half of it")
    page.get_by_label("Prompt", exact=True).fill("second")
    page.keyboard.press("Enter")
    expect(page.get_by_text("the other half")).to_be_visible()
    expect(page.locator(".item.text")).to_have_text(["half of it", "the other half"])
    expect(page.locator(".item.prompt")).to_have_count(2)
