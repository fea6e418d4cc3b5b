"""What could break the pages: hostile content, long timelines, many sessions, wrong tokens, small screens."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from console_browser import PHONE, Browser, ConsoleProgram, View, Viewer, expect, start_session
from sample_home import assistant, user, write_conversation

from pilothouse_testing import FakeCLI, ScriptedModel, Steps, Text, ToolUse, frames

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

BOMB = "<img src=x onerror=alert(1)>"
HOSTILE = f"""{BOMB} <script>alert(2)</script> <style>body {{ display: none }}</style>
<a href="javascript:alert(3)">one</a> [two](javascript:alert(4)) [three](data:text/html,<script>alert(5)</script>)
![track](http://evil.example/x.png) ![inline](/v1/sessions) <iframe src="http://evil.example"></iframe>
<form action="http://evil.example"><input name=token></form> <div style="position:fixed;inset:0">cover</div>
[four](http://evil.example/page "{BOMB}") <svg onload=alert(6)> <math><mtext></mtext></math>

| {BOMB} | b |
|---|---|
| <b onmouseover=alert(7)>c</b> | d |

```html
</code></pre>{BOMB}
```

- [x] {BOMB}

# {BOMB}
"""


def run_in_page(viewer: Viewer, script: str) -> Any:
    return viewer.page.evaluate(script)


def test_hostile_words_names_and_outcomes_are_only_shown(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    name = f"{BOMB}.txt"
    (console.root / "bad.txt").write_text(HOSTILE)
    ask = ToolUse("Write", {"file_path": str(console.root / name.replace("/", "_")), "content": HOSTILE})
    call = ToolUse("Bash", {"command": "cat bad.txt", "description": BOMB})
    odd = ToolUse("mcp__<b>x</b>__y", {BOMB: {"__proto__": BOMB, "constructor": "x"}})
    question = {
        "question": BOMB,
        "header": BOMB,
        "multiSelect": False,
        "options": [{"label": BOMB, "description": BOMB}, {"label": "b", "description": "c"}],
    }
    scripted_model.reply(
        Steps((Text(HOSTILE), call), (odd,), (ToolUse("AskUserQuestion", {"questions": [question]}),), (ask,), HOSTILE)
    )
    viewer = view()
    page = viewer.page
    start_session(page, f"Say {BOMB}")
    expect(page.locator(".ask fieldset")).to_be_visible()
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Allow Write")).to_be_visible()
    page.get_by_role("button", name="Allow").click()
    expect(page.locator(".turn-end")).to_be_visible()
    for summary in page.locator("details.call > summary").all():
        summary.click()
    page.keyboard.press("c")
    expect(page.locator("dialog .diff")).to_be_visible()
    for selector in ("script:not([src])", "iframe", "form", "#app style", "[style*=position]", "[onerror], [onload]"):
        expect(page.locator(f"#app {selector}" if "app" not in selector else selector)).to_have_count(0)
    hosts = page.evaluate("[...document.querySelectorAll('a[href]')].map((link) => link.protocol)")
    assert set(hosts) <= {"http:", "https:"}
    pictures = page.evaluate("[...document.images].map((image) => image.src)")
    assert pictures == []
    for link in page.locator(".markdown a[href]").all():
        assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("link", name=BOMB)).to_be_visible()


@pytest.mark.parametrize("link", ["{base}/", "{base}/#token=wrong-token-0123456789abc", "{base}/#token=%20"])
def test_without_its_token_the_page_asks_for_it(view: View, console: ConsoleProgram, link: str) -> None:
    base = console.link.partition("/#")[0]
    viewer = view(link.format(base=base))
    page = viewer.page
    expect(page.get_by_label("Link or token")).to_be_visible()
    assert "token=" not in page.url
    expect(page.get_by_text("The host does not accept this token")).to_have_count(int("wrong" in link))
    page.get_by_label("Link or token").fill(console.link)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    assert viewer.context.cookies() == []
    assert "token" not in page.evaluate("JSON.stringify({ ...localStorage })")


def test_a_token_that_is_out_of_date_is_asked_for_again(view: View, console: ConsoleProgram) -> None:
    page = view().page
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    port = console.port
    console.kill()
    console.start(port, token="another-token-0123456789-9876")
    expect(page.get_by_label("Link or token")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("from before a restart")
    page.goto(console.link)
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


def test_a_host_that_is_gone_while_a_list_loads_is_no_error_of_the_page(view: View) -> None:
    page = view().page
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    page.route("**/v1/transcripts*", lambda route: route.abort())
    with page.expect_event("requestfailed"):
        page.reload()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    page.wait_for_timeout(100)


def make_long_conversation(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append(user(f"Prompt {turn}"))
        for step in range(4):
            call = {
                "type": "tool_use",
                "id": f"t{turn}-{step}",
                "name": "Bash",
                "input": {"command": f"echo {turn} {step}"},
            }
            messages.append(
                assistant(f"Step **{step}** of turn {turn}: `code` and [a link](https://example.com/{turn})", call)
            )
            result = {"type": "tool_result", "tool_use_id": f"t{turn}-{step}", "content": f"{turn} {step}\n" * 20}
            messages.append(user([result]))
        messages.append(assistant(f"Turn {turn} is done."))
    return messages


def test_five_thousand_events_are_shown_at_once_and_scroll(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    home = Path(scripted_model.env()["HOME"])
    session = write_conversation(home, console.root, make_long_conversation(500))
    viewer = view()
    page = viewer.page
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    times: list[float] = []
    while min(times, default=9) >= 1 and len(times) < 10:  # other tests may have the processors at first
        page.evaluate("location.hash = '#/sessions'")
        expect(page.get_by_role("heading", name="Sessions", exact=True)).to_be_visible()
        begin = time.monotonic()
        page.evaluate(f"location.hash = '#/transcripts/{session}'")
        expect(page.get_by_text("Turn 499 is done.")).to_be_visible()
        times.append(time.monotonic() - begin)
    expect(page.get_by_role("button", name="500 turns")).to_be_visible()
    assert page.locator(".item").count() < 400  # the rest comes when one scrolls to it
    # Typing while the whole timeline is scrolled through: no frame takes so long that a key would wait for it.
    page.evaluate("""() => {
      window.slow = [];
      const note = (list) => window.slow.push(...list.getEntries().map((entry) => entry.duration));
      new PerformanceObserver(note).observe({ type: "longtask" });
    }""")
    page.get_by_label("Prompt", exact=True).focus()
    for number in range(30):
        page.evaluate("document.querySelector('.scroller').scrollBy(0, -1500)")
        page.keyboard.type(str(number % 10))
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("".join(str(number % 10) for number in range(30)))
    slow = page.evaluate("window.slow")
    page.get_by_role("button", name="500 turns").click()
    page.get_by_role("button", name="Prompt 3", exact=True).click()
    expect(page.get_by_role("heading", name="You: Prompt 3", exact=True)).to_be_in_viewport()
    print(json.dumps({"times": times, "slow": sorted(slow)[-3:]}))
    assert min(times) < 1.0
    assert sorted([0, 0, *slow])[-2] < 500


def test_an_address_that_changes_while_the_page_starts_is_shown(view: View, console: ConsoleProgram) -> None:
    viewer = view()
    # The effects of the first render wait for a frame, which does not come: a timer runs them after the change.
    viewer.context.add_init_script("""
      window.requestAnimationFrame = () => 0;
      addEventListener("load", () => { location.hash = "#/sessions/new"; });
    """)
    page = viewer.open(console.link)
    expect(page.get_by_label("What should be done?")).to_be_visible()


def test_thousands_of_pieces_arrive_as_they_are_written(view: View, scripted_model: ScriptedModel) -> None:
    words = [f"w{number}" for number in range(4000)]
    scripted_model.reply(Text(" ".join(words), chunks=[f"{word} " for word in words]))
    page = view().page
    start_session(page, "Write much")
    expect(page.locator(".turn-end")).to_be_visible()
    assert page.locator(".item.text").inner_text().split() == words
    begin = time.monotonic()
    page.reload()
    expect(page.locator(".item.text")).to_contain_text("w3999")
    print(json.dumps({"reload": time.monotonic() - begin}))
    assert page.locator(".item.text").inner_text().split() == words


def test_twenty_sessions_are_seen_and_found(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with FakeCLI().turn(frames.init(), frames.assistant("Done."), frames.result("Done.")).forever() as fake:
        program = ConsoleProgram(tmp_path, fake.path, "--drain", "0.1")
        viewer = Viewer(browser, program.start())
        page = viewer.page
        expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
        start = """async ([count, token]) => {
          for (let number = 0; number < count; number += 1) {
            const headers = { authorization: `Bearer ${token}` };
            const body = JSON.stringify({ prompt: `Task number ${number}` });
            const response = await fetch("v1/sessions", { method: "POST", headers, body });
            if (!response.ok) throw new Error(await response.text());
          }
        }"""
        page.evaluate(start, [20, program.link.partition("#token=")[2]])
        page.keyboard.press("g")
        page.keyboard.press("s")
        expect(page.locator("a.row")).to_have_count(20)
        expect(page.locator(".chip.idle")).to_have_count(20)
        page.keyboard.press("/")
        page.keyboard.type("number 13")
        expect(page.locator("a.row b")).to_have_text("Task number 13")
        viewer.close()
        program.stop()


def test_a_session_is_renamed_archived_forked_and_deleted(view: View, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Done."
    page = view().page

    def act(title: str, action: str) -> None:
        page.get_by_role("button", name=f"Actions for {title}").first.click()
        page.get_by_role("button", name=action, exact=True).click()

    start_session(page, "Task")
    expect(page.locator(".turn-end")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    act("Task", "Rename …")
    page.get_by_label("Title").fill("The lucky one")
    page.keyboard.press("Enter")
    page.get_by_label("Search sessions").fill("lucky")
    expect(page.locator("a.row b").first).to_have_text("The lucky one")
    act("The lucky one", "Fork")
    expect(page.get_by_text("Done.")).to_be_visible()  # what was said before the fork
    expect(page.get_by_role("heading", level=1)).to_have_text("New session")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.locator("a.row")).to_have_count(2)
    act("New session", "End and remove from the host")
    expect(page.locator("a.row")).to_have_count(1)
    act("The lucky one", "End and remove from the host")
    expect(page.locator(".chip.idle")).to_have_count(0)
    act("The lucky one", "Archive")
    expect(page.locator("a.row")).to_have_count(0)
    page.get_by_label("Archived").check()
    act("The lucky one", "Delete from disk …")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("a.row")).to_have_count(0)


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_many_tabs_share_the_connections_of_a_browser(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "Heard."
    viewer = view()
    start_session(viewer.page, "first")
    link = f"{viewer.page.url.partition('#')[0]}#token={console.link.partition('#token=')[2]}"
    address = viewer.page.url
    pages = [viewer.page]
    for _ in range(7):  # a browser has six connections to a host
        pages[-1].evaluate(HIDE, True)
        pages.append(viewer.open(link))
        expect(pages[-1].get_by_text("Connected")).to_be_visible()
        pages[-1].goto(address)
    page = pages[-1]
    page.get_by_label("Prompt", exact=True).fill("second")
    page.keyboard.press("Enter")
    expect(page.locator(".item.text")).to_have_text(["Heard.", "Heard."])
    page.evaluate(HIDE, True)
    pages[3].evaluate(HIDE, False)  # what it has missed comes once
    expect(pages[3].locator(".item.text")).to_have_text(["Heard.", "Heard."])
    expect(pages[3].locator(".item.prompt")).to_have_count(2)
    expect(pages[3].locator(".chip.idle")).to_be_visible()


def test_a_conversation_on_disk_is_resumed_on_a_phone(
    view: View, console: ConsoleProgram, scripted_model: ScriptedModel
) -> None:
    scripted_model.on("remember", reply="I will remember 42.")
    scripted_model.on(
        "which number",
        reply=Steps((ToolUse("Bash", {"command": "touch asked", "description": "Make a file"}),), "It was 42."),
    )
    page = view(viewport=PHONE, has_touch=True).page
    start_session(page, "remember 42")
    expect(page.get_by_text("I will remember 42.")).to_be_visible()
    page.get_by_role("link", name="All sessions").tap()
    page.get_by_role("button", name="Actions for remember 42").tap()
    page.get_by_role("button", name="End and remove").tap()
    link = page.get_by_role("link", name="remember 42")
    expect(link).to_have_attribute("href", re.compile("#/transcripts/"))  # the host has removed it
    link.tap()
    expect(page.get_by_text("I will remember 42.")).to_be_visible()
    page.get_by_label("Prompt", exact=True).fill("which number?")
    page.get_by_role("button", name="Send the prompt").tap()
    page.get_by_role("button", name="Allow").tap()
    expect(page.get_by_text("It was 42.")).to_be_visible()
    expect(page.locator(".item.text")).to_have_text(["I will remember 42.", "It was 42."])
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0
