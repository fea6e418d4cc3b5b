"""A user who writes while a turn runs, with the real CLI and the scripted model: who reads the words, what is shown."""

from __future__ import annotations

import pytest
from console_browser import PHONE, ConsoleProgram, View, expect, start_session

from pilothouse_testing import Gate, Pause, ScriptedModel, Steps, Text, ToolUse

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

TOUCH = ToolUse("Bash", {"command": "touch made", "description": "Make a file"})
WORDS = "Only the unit tests, please"


@pytest.mark.parametrize("context", [{}, {"viewport": PHONE, "has_touch": True}], ids=["desktop", "phone"])
def test_words_reach_the_turn_that_runs(view: View, scripted_model: ScriptedModel, context: dict[str, object]) -> None:
    gate = Gate()
    scripted_model.reply(Steps((Text("I make a file."), Pause(gate), TOUCH), "It is there."))
    viewer, other = view(**context), view()
    page = viewer.page
    start_session(page, "Make a file")
    gate.wait_reached(20)
    other.page.goto(page.url)
    page.get_by_label("Prompt", exact=True).fill(WORDS)
    if context:
        for name in ("Send now", "Queue", "Interrupt"):
            expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
        page.get_by_role("button", name="Send now").tap()
    else:
        page.keyboard.press("Enter")
    for each in (page, other.page):
        expect(each.get_by_label("Being added to the turn").locator("li")).to_contain_text(WORDS)
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("")
    gate.open()
    page.get_by_role("button", name="Allow").click()
    for each in (page, other.page):
        expect(each.locator(".item.prompt").last).to_contain_text("added to the running turn")
        expect(each.get_by_text("It is there.")).to_be_visible()
        expect(each.get_by_label("Being added to the turn")).to_have_count(0)
        expect(each.locator(".turn-end")).to_have_count(1)
    expect(page.get_by_role("button", name="1 turn", exact=True)).to_be_visible()
    assert [WORDS in str(request.messages) for request in scripted_model.requests] == [False, True]


def test_words_that_come_too_late_are_the_next_prompt(view: View, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.on("begin", reply=(Pause(gate), Text("begun")))
    scripted_model.on(WORDS, reply="then done")
    page = view().page
    start_session(page, "begin")
    gate.wait_reached(20)
    page.get_by_label("Prompt", exact=True).fill(WORDS)
    page.get_by_role("button", name="Send now").click()
    expect(page.get_by_label("Being added to the turn").locator("li")).to_contain_text(WORDS)
    gate.open()
    expect(page.locator(".item.prompt").last).to_contain_text("sent as the next prompt")
    expect(page.get_by_text("then done")).to_be_visible()
    expect(page.get_by_role("button", name="2 turns", exact=True)).to_be_visible()


def test_words_that_nobody_has_read_come_back(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    gate = Gate()
    scripted_model.on("begin", reply=(Text("half of it"), Pause(gate)))
    page = view().page
    start_session(page, "begin")
    gate.wait_reached(20)
    composer = page.get_by_label("Prompt", exact=True)
    composer.fill(f"{WORDS}\nand no others")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_label("Being added to the turn").locator("li")).to_contain_text(WORDS)
    token, port = console.link.partition("#token=")[2], console.port
    console.kill()
    expect(page.get_by_text("Connecting …")).to_be_visible()
    console.start(port, token=token)
    gate.open()
    expect(composer).to_have_value(f"{WORDS}\nand no others")
    expect(page.get_by_text(f"before the end of the prompt '{WORDS}'")).to_be_visible()
