"""What is easily overlooked: notifications, forms, the keyboard beside the mouse, small screens, and true figures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from console_browser import PHONE, ConsoleProgram, View, Viewer, expect, start_session
from sample_home import assistant, user, write_conversation

from pilothouse_testing import FakeCLI, Gate, Pause, ScriptedModel, Steps, Text, ToolUse, frames

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

TOUCH = ToolUse("Bash", {"command": "touch made", "description": "Make a file"})
QUESTION = {
    "question": "Which database?",
    "header": "DB",
    "options": [{"label": "SQLite", "description": "One file"}, {"label": "PostgreSQL", "description": "Many writers"}],
    "multiSelect": False,
}
FORM = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "seats": {"type": "integer", "default": 2},
        "size": {"type": "string", "enum": ["S", "L"]},
        "window": {"type": "boolean"},
    },
}
NOTIFY = """
window.shown = [];
window.Notification = class {
  static permission = "default";
  static async requestPermission() { return (this.permission = "granted"); }
  constructor(title, { body, tag }) {
    Object.assign(this, { title, body, tag });
    document.body.dataset.shown = window.shown.push(this);
  }
  close() {}
};
"""
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_tab_notifies_of_what_waits_and_of_the_end(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    gate, last = Gate(), Gate()
    scripted_model.reply(Steps((Pause(gate), TOUCH), (Pause(last), Text("It is there."))))
    page = view().page
    page.add_init_script(NOTIFY)
    page.reload()
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notify me")).to_have_count(0)
    start_session(page, "Make a file")
    page.evaluate(HIDE, True)
    gate.open()
    expect(page.locator("body")).to_have_attribute("data-shown", "1")
    assert page.evaluate("[shown[0].title, shown[0].body]") == [
        "Make a file is waiting for you",
        "Allow Bash: touch made?",
    ]
    page.evaluate("shown[0].onclick()")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator(".ask")).to_have_count(1)  # nobody has seen it so far
    page.evaluate(HIDE, False)
    expect(page.locator(".unread")).to_have_count(0)
    page.keyboard.press("a")
    expect(page.locator(".ask")).to_have_count(0)
    page.evaluate(HIDE, True)
    last.open()
    expect(page.locator("body")).to_have_attribute("data-shown", "2")
    assert page.evaluate("[shown[1].title, shown[1].body]") == ["Make a file: done", "It is there."]


def test_the_form_of_an_mcp_server_is_filled(fake_console: Callable[[FakeCLI], Viewer]) -> None:
    fake = FakeCLI().expect("user").emit(frames.init())
    fake.ask("elicitation", mcp_server_name="hotel", message="Who comes?", mode="form", requested_schema=FORM)
    page = fake_console(fake.emit(frames.result("Booked."))).page
    start_session(page, "Book a table")
    expect(page.get_by_text("From the MCP server hotel")).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    page.get_by_label("Your name").fill("Ann")
    page.get_by_label("size").select_option("L")
    page.get_by_label("window").check()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".turn-end")).to_be_visible()
    [answer] = [frame for frame in fake.calls[0].frames if frame.get("type") == "control_response"][-1:]
    assert answer["response"]["response"] == {
        "action": "accept",
        "content": {"name": "Ann", "seats": 2, "size": "L", "window": True},
    }


def test_enter_belongs_to_the_control_that_has_the_focus(view: View, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps((ToolUse("AskUserQuestion", {"questions": [QUESTION]}),), "So be it."))
    page = view().page
    start_session(page, "Ask me")
    expect(page.locator(".ask")).to_be_visible()
    expect(page.get_by_role("img", name="waiting for a decision")).to_be_visible()
    page.get_by_label("SQLite").click()
    page.keyboard.press("2")  # the mouse has put the focus on an option
    expect(page.get_by_label("PostgreSQL")).to_be_checked()
    page.get_by_role("link", name="Inbox").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    expect(page.locator(".ask")).to_be_visible()
    page.get_by_label("PostgreSQL").click()
    page.keyboard.press("Enter")
    expect(page.locator(".ask")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("img", name="waiting for a decision")).to_have_count(0)
    expect(page.get_by_text("So be it.")).to_be_visible()
    assert "PostgreSQL" in str(scripted_model.requests[-1].messages)


def test_a_phone_shows_all_of_a_session_and_that_its_host_is_lost(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    doing = "Compare the digests in constant time, wherever the code compares them now"
    todos = [{"content": doing, "status": "in_progress", "activeForm": "Comparing"}]
    scripted_model.reply(Steps((ToolUse("TodoWrite", {"todos": todos}), Text("I begin."), TOUCH), "It is there."))
    page = view(viewport=PHONE, has_touch=True).page
    start_session(page, "Make a file")
    height = page.locator(".session-head").bounding_box()
    expect(page.get_by_text("0 of 1 done")).to_be_visible()
    page.get_by_role("button", name="Allow").tap()
    expect(page.locator(".turn-end")).to_be_visible()
    expect(page.get_by_label("Send the prompt")).to_be_in_viewport(ratio=1)
    for name in ("1 turn", "What changed"):
        expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    after = page.locator(".session-head").bounding_box()
    assert height is not None
    assert after is not None
    assert after["height"] == height["height"]
    boxes = "[...document.querySelectorAll('.dock, .session-head, .facts')]"
    assert page.evaluate(f"{boxes}.map((each) => Math.max(0, each.scrollWidth - each.clientWidth))") == [0, 0, 0]
    expect(page.get_by_text("Connected")).not_to_be_visible()
    console.kill()
    expect(page.get_by_text("Connecting …")).to_be_visible()


def test_the_list_has_the_cost_and_the_context_of_each_session(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    home = Path(scripted_model.env()["HOME"])
    said = assistant("Done.", input_tokens=500, output_tokens=500, cache_read_input_tokens=124_000)
    write_conversation(home, console.root, [user("An old task"), said], age=timedelta(days=2), dollars=1.25)
    scripted_model.reply(Steps((TOUCH,), "It is there."))
    page = view().page
    start_session(page, "A new task")
    expect(page.locator(".ask")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    old, new = page.locator("li", has_text="An old task"), page.locator("li", has_text="A new task")
    expect(old).to_contain_text("125k tokens of context")
    expect(old).to_contain_text("$1.25")
    expect(new).to_contain_text("work")  # its directory, before its first turn has ended
    expect(new).to_contain_text("context")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(old.get_by_text("$1.25")).to_be_visible()


def test_model_and_mode_are_changed_while_the_session_lives(view: View, scripted_model: ScriptedModel) -> None:
    scripted_model.on("first", reply="One.")
    scripted_model.on("second", reply=Steps((TOUCH, ToolUse("Write", {"file_path": "made", "content": "x"})), "Two."))
    page = view().page
    start_session(page, "first")
    expect(page.get_by_text("One.")).to_be_visible()
    model = page.get_by_label("Model")
    model.fill("sonnet")
    model.press("Enter")
    page.get_by_label("Permission mode").select_option("acceptEdits")
    page.get_by_label("Prompt", exact=True).fill("second")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Two.")).to_be_visible()  # nothing was asked
    assert "sonnet" in scripted_model.requests[-1].model
    expect(page.get_by_label("Model")).to_have_value("sonnet")
    expect(page.get_by_label("Permission mode")).to_have_value("acceptEdits")
    scripted_model.on("third", reply="Three.")
    scripted_model.on("Hi", reply="Hi.")  # Claude Code tries out a model of another name
    model.fill("claude-haiku-4-5")  # a name that the list does not have
    page.get_by_label("Prompt", exact=True).fill("third")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Three.")).to_be_visible()
    assert scripted_model.requests[-1].model.startswith("claude-haiku-4-5")
    expect(model).to_have_value("claude-haiku-4-5")


def test_a_directory_elsewhere_is_refused_with_what_to_do(view: View, console: ConsoleProgram) -> None:
    page = view().page
    page.goto(f"{page.url.partition('#')[0]}#/sessions/new")
    page.get_by_label("Directory").fill("/")
    page.keyboard.press("Control+Enter")
    refusal = page.get_by_role("alert")
    expect(refusal).to_contain_text(f"Directory: sessions of this host work below {console.root}")
    expect(refusal).to_contain_text("pilothouse console --root / --journal FILE")


def test_the_first_page_offers_something_to_do(view: View, scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Two files.")
    page = view().page
    page.get_by_role("link", name="Explain what is in this directory").click()
    expect(page.get_by_label("What should be done?")).to_have_value("Explain what is in this directory")
    page.get_by_label("Directory").focus()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Two files.")).to_be_visible()
    page.goto(f"{page.url.partition('#')[0]}#/inbox")
    expect(page.get_by_role("heading", name="Nothing is waiting for you", exact=True)).to_be_visible()
    expect(page.get_by_label("For example")).to_have_count(0)


def test_a_request_says_how_long_a_yes_lasts(view: View, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps((TOUCH,), "Done."))
    page = view(viewport=PHONE, has_touch=True).page
    start_session(page, "Make a file")
    for name in ("Always in this session", "For 15 minutes"):
        expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    expect(page.get_by_text("For 15 minutes, in this session: the same call")).to_be_visible()
    box, copy = (page.locator(f".ask .code-box{inner}").first.bounding_box() for inner in ("", " .copy"))
    assert box is not None
    assert copy is not None
    assert box["y"] <= copy["y"]
    assert copy["y"] + copy["height"] <= box["y"] + box["height"]
    padding = page.locator(".ask .code-box pre").first.evaluate(
        "(pre) => parseFloat(getComputedStyle(pre).paddingRight)"
    )
    assert padding >= copy["width"]  # no text is below the button
