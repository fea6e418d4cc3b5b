"""Whatever a model, a tool or a server writes: the pages live on, and a person sees all of it before it is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console_browser import Page, Viewer, expect, start_session
from places import ROOT
from sample_home import assistant, user, write_conversation

from pilothouse_testing import FakeCLI, frames

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

Start = Callable[[FakeCLI], Viewer]
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e01ef]"
)
HIDDEN = "a\u202eb\u2066c\u200bd\u3164e\u115ff\uffa0g\u2800h\ufe0fi\U000e0041j\U000e0101k\u00adl\u180em\u1160n"
REVEALED = (
    "a\\u{202e}b\\u{2066}c\\u{200b}d\\u{3164}e\\u{115f}f\\u{ffa0}g\\u{2800}h\\u{fe0f}i\\u{e0041}j\\u{e0101}k\\u{ad}l"
    "\\u{180e}m\\u{1160}n"
)
TEXTS = {
    "quotes": ">" * 20_000,
    "spaced quotes": "> " * 20_000 + "x",
    "lists in lists": "- " * 5000 + "x",
    "numbers in numbers": "1. " * 5000 + "x",
    "indented lists": "\n".join(" " * (2 * level) + "- x" for level in range(1500)),
    "quotes in lists": "> - " * 3000 + "x",
    "nested emphasis": "*a **b " * 5000 + "x" + " b** a*" * 5000,
    "underscores": "a_" * 30_000,
    "strikes": "~~a " * 10_000 + "x" + " a~~" * 10_000,
    "lazy lines": "- a\n" + "b\n" * 30_000,
    "brackets": "[" * 20_000 + "]" * 20_000,
    "pictures": "![a" * 9000 + "](b)" * 9000,
    "addresses": "http://a(" * 9000,
    "a wide table": "|a" * 9000 + "\n" + "|-" * 9000 + "\n" + "|x" * 9000,
    "tags": "<div>" * 15_000 + "<!--" * 9000,
    "one long word": "w" * 400_000,
    "many lines": "\n" * 100_000,
    "halves of characters": "\ud800\udfff\udc00" * 500,
    "hidden characters": HIDDEN * 200,
    "marks": "Z" + "\u0335\u0489\u20dd" * 5000,
}
MANY = {f"field{number}": number for number in range(20_000)}
NESTED = json.loads("[" * 400 + "]" * 400)
INPUTS: list[tuple[str, Any]] = [
    ("TodoWrite", {"todos": [None]}),
    ("TodoWrite", {"todos": "all of them"}),
    ("TodoWrite", {"todos": [None, 1, {"content": {"x": 1}, "status": ["completed"]}, {"content": HIDDEN}]}),
    ("TodoWrite", {"todos": [{"content": "x", "status": "pending"}] * 20_000}),
    ("Edit", {"file_path": {"x": 1}, "old_string": None, "new_string": ["a"], "edits": [None]}),
    ("MultiEdit", {"file_path": "a", "edits": [None, "x", {"old_string": 5, "new_string": "b", "replace_all": True}]}),
    ("MultiEdit", {"file_path": "a", "edits": "none"}),
    ("Write", {"file_path": HIDDEN, "content": "x" * 500_000}),
    ("NotebookEdit", {"notebook_path": 3, "new_source": NESTED, "edit_mode": "delete"}),
    ("Bash", {"command": HIDDEN * 2_000, "description": {"toString": 1}}),
    ("Bash", {"command": ["ls"], "timeout": 1e308}),
    ("Agent", {"description": {"a": 1}, "prompt": ["x"], "subagent_type": 3}),
    ("Agent", {"description": HIDDEN, "prompt": ">" * 20_000, "subagent_type": "general-purpose"}),
    ("mcp__a\u202eb__c\u200bd", MANY),
    ("mcp__a__b", {"k" * 100_000: NESTED, "__proto__": {"x": 1}, "constructor": None, "toString": 1}),
    ("constructor", {"toString": 1}),
    ("__proto__", {}),
]
QUESTIONS: list[Any] = [
    {"questions": [{"question": HIDDEN, "options": [{"label": HIDDEN, "description": HIDDEN}], "header": None}]},
    {"questions": [{"question": "q", "options": [{"label": str(number)} for number in range(5000)]}]},
    {"questions": [{"question": {"x": 1}, "options": "abc"}, None, 7]},
]


def open_conversation(page: Page, session: str) -> None:
    page.evaluate(f"location.hash = '#/transcripts/{session}'")
    expect(page.get_by_text("This is the end.")).to_be_visible()


def go_to_inbox(page: Page) -> None:
    page.get_by_role("link", name="Inbox").click()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


def ask_all(*requests: tuple[str, Any]) -> FakeCLI:
    """A session that waits for a decision on each of these calls."""
    fake = FakeCLI().expect("user").emit(frames.init())
    for tool, given in requests:
        fake.ask("can_use_tool", wait=False, tool_name=tool, input=given)
    return fake.wait_eof()


def test_the_page_lives_on_whatever_a_model_writes(fake_console: Start, tmp_path: Path) -> None:
    viewer = fake_console(FakeCLI())
    page = viewer.page
    for name, text in TEXTS.items():
        said = [user(text), assistant(text), assistant("This is the end.")]
        open_conversation(page, write_conversation(tmp_path, tmp_path / "work", said))
        expect(page.get_by_label("Timeline").locator(".item")).to_have_count(3)
        go_to_inbox(page)
        assert not viewer.faults, name
    page.reload()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


def test_long_ordinary_texts_are_markdown(fake_console: Start) -> None:
    page = fake_console(FakeCLI()).page
    parse = "(text) => import('/static/markdown.js').then(({ isParsable }) => isParsable(text))"
    docs = ROOT / "docs"
    row = "| `some_name` | **yes** | a_b_c | 5 |\n"
    for text in (
        *((docs / name).read_text() for name in ("console.md", "host.md", "sessions.md", "native.md")),
        row * 200,
        "- **One** _thing_ in a list\n" * 300,
        "```python\n" + "    value_of = other_value\n" * 500 + "```\n",
        "\n".join(f"{'  ' * level}- level {level}" for level in range(9)),
    ):
        assert page.evaluate(parse, text), text[:200]


def test_the_page_lives_on_whatever_a_tool_is_given(fake_console: Start, tmp_path: Path) -> None:
    viewer = fake_console(FakeCLI())
    page = viewer.page
    for number, (name, given) in enumerate(INPUTS):
        call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": given}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": HIDDEN}
        said = [user("Go"), assistant(call), user([result]), assistant("This is the end.")]
        open_conversation(page, write_conversation(tmp_path, tmp_path / "work", said))
        page.locator("details.call > summary").click()
        expect(page.locator(".call-body")).to_be_visible()
        assert not UNSEEN.search(page.locator("details.call").inner_text()), name
        page.keyboard.press("c")
        page.get_by_role("button", name="Close").click()
        go_to_inbox(page)
        assert not viewer.faults, (name, viewer.faults)


def test_requests_with_any_input_are_shown_with_all_that_is_hidden(fake_console: Start) -> None:
    requests = [*INPUTS, *(("AskUserQuestion", each) for each in QUESTIONS), ("ExitPlanMode", {"plan": HIDDEN})]
    viewer = fake_console(ask_all(*requests, ("ExitPlanMode", {"plan": {"x": ">" * 20_000}})))
    page = viewer.page
    start_session(page, "Ask me")
    go_to_inbox(page)
    expect(page.locator(".ask")).to_have_count(len(requests) + 1)
    assert not UNSEEN.search(page.locator("main").inner_text())
    assert page.locator(".ask", has_text=REVEALED).count() >= 5
    assert page.locator(".ask .markdown, .broken").count() == 0
    expect(page.get_by_text("It can only be declined here.")).to_have_count(1)
    for _ in requests:  # the keys settle and move, whatever is asked
        page.keyboard.press("j")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Sessions", exact=True)).to_be_visible()


def test_what_always_allows_and_needs_is_shown_with_all_that_is_hidden(fake_console: Start) -> None:
    rules = [{"toolName": "Bash", "ruleContent": f"ls {HIDDEN}:*"}]
    suggestion = {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"}
    fake = FakeCLI().expect("user").emit(frames.init())
    fake.ask(
        "can_use_tool",
        tool_name="Bash",
        input={"command": f"ls {HIDDEN}"},
        blocked_path=f"/{HIDDEN}",
        permission_suggestions=[suggestion],
    )
    page = fake_console(fake.emit(frames.result("Done."))).page
    start_session(page, "Look")
    card = page.locator(".ask")
    expect(card.get_by_text(f"Always in this session: Bash(ls {REVEALED}:*)")).to_be_visible()
    expect(card.get_by_text(f"Needs access to /{REVEALED}")).to_be_visible()
    expect(card.get_by_label("Command")).to_have_text(f"ls {REVEALED}")
    assert not UNSEEN.search(card.inner_text())


def test_a_key_allows_only_what_was_seen_to_its_end(fake_console: Start) -> None:
    command = "".join(f"echo {number}\n" for number in range(900)) + "rm -rf everything"
    fake = FakeCLI().expect("user").emit(frames.init())
    fake.ask("can_use_tool", tool_name="Bash", input={"command": command})
    page = fake_console(fake.emit(frames.result("Done."))).page
    start_session(page, "Work")
    hint = page.get_by_text("You have not seen all of this yet")
    expect(hint).to_be_visible()
    presses = 0
    for key in ("a", *("a" for _ in range(200))):
        if not hint.is_visible():
            break
        presses += 1
        page.keyboard.press(key)
        page.wait_for_timeout(50)
        assert page.locator(".ask").count() == 1
    assert presses > 20  # a screen has some twenty lines of it
    expect(page.get_by_text("rm -rf everything")).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator(".turn-end")).to_be_visible()


def test_a_key_for_a_request_that_went_does_not_allow_the_next(fake_console: Start) -> None:
    page = fake_console(ask_all(("Bash", {"command": "echo one"}), ("Bash", {"command": "echo two"}))).page
    start_session(page, "Work")
    expect(page.locator(".ask")).to_have_count(2)
    page.evaluate("""() => new MutationObserver((_, observer) => {
      if (document.querySelectorAll(".ask").length !== 1) return;
      observer.disconnect();
      // The next request has the keys when it is drawn again.
      requestAnimationFrame(() => document.dispatchEvent(new KeyboardEvent("keydown", { key: "a" })));
    }).observe(document.body, { childList: true, subtree: true })""")
    # As if somebody else had settled the first one.
    page.evaluate("""() => import("/static/store.js").then(({ store, settle }) =>
      settle([...store.asks.values()][0], { decision: "deny" }))""")
    expect(page.locator(".ask")).to_have_count(1)
    page.wait_for_timeout(1000)
    expect(page.locator(".ask")).to_have_count(1)
    page.keyboard.press("a")
    expect(page.locator(".ask")).to_have_count(0)


def test_who_jumps_to_the_end_has_not_seen_the_middle(fake_console: Start) -> None:
    given = {"file_path": "/a.txt", "content": "".join(f"line {number}\n" for number in range(300))}
    page = fake_console(ask_all(("Write", given))).page
    start_session(page, "Work")
    hint = page.get_by_text("You have not seen all of this yet")
    expect(hint).to_be_visible()
    body = page.locator(".ask-body")
    body.evaluate("(element) => { element.scrollTop = element.scrollHeight; }")
    page.wait_for_timeout(100)
    expect(hint).to_be_visible()
    body.evaluate("""async (element) => {
      for (let top = 0; top < element.scrollHeight; top += 40) {
        element.scrollTop = top;
        await new Promise((resolve) => requestAnimationFrame(resolve));
      }
    }""")
    expect(hint).to_have_count(0)


def test_a_click_allows_at_once(fake_console: Start) -> None:
    page = fake_console(ask_all(("Bash", {"command": "echo\n" * 500}))).page
    start_session(page, "Work")
    expect(page.get_by_text("You have not seen all of this yet")).to_be_visible()
    page.get_by_role("button", name="Allow").click()
    expect(page.locator(".ask")).to_have_count(0)


def test_fields_that_a_change_does_not_draw_are_listed(fake_console: Start) -> None:
    change = {"file_path": "/a", "old_string": "x", "new_string": "y", "replace_all": True}
    edits = [{"old_string": "x", "new_string": "y", "replace_all": True}]
    cell = {"notebook_path": "/n.ipynb", "new_source": "", "edit_mode": "delete", "cell_id": "c1"}
    page = fake_console(
        ask_all(("Edit", change), ("MultiEdit", {"file_path": "/b", "edits": edits}), ("NotebookEdit", cell))
    ).page
    start_session(page, "Work")
    go_to_inbox(page)
    cards = page.locator(".ask")
    expect(cards.nth(0).locator(".fields")).to_have_text(re.compile(r"replace_all\s*true"))
    expect(cards.nth(1).locator(".fields")).to_contain_text('"replace_all": true')
    expect(cards.nth(2).locator(".fields")).to_have_text(re.compile(r"edit_mode\s*delete\s*cell_id\s*c1"))


def test_a_change_that_cannot_be_compared_in_time_is_shown_whole(fake_console: Start) -> None:
    page = fake_console(FakeCLI()).page
    compare = "([before, after]) => import('/static/diff.js').then(({ compareTexts }) => compareTexts(before, after))"
    before = "\n".join(str(number * 7919 % 30_011) for number in range(30_000))
    after = "\n".join(str(number * 104_729 % 30_011) for number in range(30_000))
    hunks = page.evaluate(compare, [before, after])
    assert sum(len(hunk["lines"]) for hunk in hunks) >= 30_000


def test_a_form_that_nobody_can_look_through_is_declined(fake_console: Start) -> None:
    schema = {"type": "object", "properties": {f"f{number}": {} for number in range(3000)}}
    fake = FakeCLI().expect("user").emit(frames.init())
    fake.ask("elicitation", mcp_server_name="x", message="Fill in", mode="form", requested_schema=schema)
    page = fake_console(fake.emit(frames.result("Declined."))).page
    start_session(page, "Book a table")
    expect(page.get_by_text("This form has 3,000 fields; the console shows up to 100.")).to_be_visible()
    expect(page.locator(".ask input")).to_have_count(0)
    page.keyboard.press("d")
    expect(page.locator(".turn-end")).to_be_visible()
    assert fake.calls[0].frames[-1]["response"]["response"]["action"] == "decline"


def test_what_cannot_be_drawn_is_a_note_with_its_data(fake_console: Start, tmp_path: Path) -> None:
    page = fake_console(
        ask_all(("Broken", {"x": "the data of the request"}), ("Bash", {"command": "touch other"}))
    ).page

    def break_calls(route: Any) -> None:
        source = route.fetch().text()
        route.fulfill(
            body=source.replace(
                "toolLabel(name) {", 'toolLabel(name) {\n  if (name === "Broken") throw new Error("it is broken");'
            ),
            content_type="text/javascript",
        )

    page.route("**/static/calls.js", break_calls)
    page.reload()
    start_session(page, "Ask me")
    go_to_inbox(page)
    broken = page.locator(".ask", has_text="The console cannot display this request: it is broken")
    expect(broken).to_contain_text("the data of the request")
    expect(page.get_by_label("Command")).to_have_text("touch other")
    broken.get_by_role("button", name="Decline").click()
    expect(page.locator(".ask")).to_have_count(1)
    call = {"type": "tool_use", "id": "t1", "name": "Broken", "input": {"x": "the data of the call"}}
    said = [user("Go"), assistant(call), assistant("This is the end.")]
    open_conversation(page, write_conversation(tmp_path, tmp_path / "work", said))
    expect(page.locator(".item.text")).to_have_text("This is the end.")
    expect(page.get_by_text("The console cannot display this entry: it is broken")).to_be_visible()
    expect(page.get_by_text("the data of the call")).to_be_visible()
    page.evaluate("location.hash = '#/%'")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
