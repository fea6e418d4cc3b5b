"""The pages of `agui_app.py` and `vercel_app.py` in Chromium, with the real CLI and the scripted model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from accessibility import find_violations
from console_browser import Browser, Viewer, expect
from places import PROGRAMS

from pilothouse_testing import Gate, Pause, ScriptedModel, Steps, Text, ToolUse

pytestmark = [pytest.mark.browser, pytest.mark.real_cli]

PICTURES = os.environ.get("PILOTHOUSE_PICTURES") == "docs"


@pytest.fixture
def view(
    browser: Browser, tmp_path: Path, real_cli: str, scripted_model: ScriptedModel
) -> Iterator[Callable[..., Viewer]]:
    """Starts a program as its first lines say; gives a window on its page."""
    env = {"PATH": os.environ["PATH"], **scripted_model.env(max_retries=0, PILOTHOUSE_CLI=real_cli)}
    with ExitStack() as stack:

        def start(program: str) -> Viewer:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            command = [sys.executable, str(PROGRAMS / program), str(port)]
            server = stack.enter_context(
                subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
            )
            stack.callback(server.terminate)
            assert server.stderr is not None
            while "Uvicorn running" not in (line := server.stderr.readline()):
                assert line
            viewer = Viewer(browser, f"http://127.0.0.1:{port}/")
            stack.callback(viewer.close)
            expect(viewer.page.get_by_role("button", name="Send")).to_be_enabled()
            return viewer

        yield start


def touch(name: str) -> ToolUse:
    return ToolUse("Bash", {"command": f"touch {name}", "description": "Make a file"})


@pytest.mark.parametrize("program", ["agui_app.py", "vercel_app.py"])
def test_a_page_of_its_own_asks_and_goes_on(
    view: Callable[..., Viewer], program: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    first = Steps((Text("I make <b>two</b>."), touch("one")), touch("two"), "One is there.")
    scripted_model.on("Make files", reply=first)
    scripted_model.on("Thanks", reply="You are welcome.")
    page = view(program).page
    page.get_by_label("Prompt").fill("Make files")
    page.keyboard.press("Enter")
    expect(page.get_by_text("I make <b>two</b>.")).to_be_visible()
    page.get_by_role("button", name="Allow").click()
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("One is there.")).to_be_visible()
    assert ((tmp_path / "one").exists(), (tmp_path / "two").exists()) == (True, False)
    page.get_by_label("Prompt").fill("Thanks")
    page.keyboard.press("Enter")
    expect(page.get_by_text("You are welcome.")).to_be_visible()
    page.reload()  # the page gets the past of its thread from the route
    for text in ("Make files", "I make <b>two</b>.", "One is there.", "Thanks", "You are welcome."):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    assert find_violations(page) == []
    if PICTURES:
        page.set_viewport_size({"width": 720, "height": 560})
        page.screenshot(path=PROGRAMS.parent / f"front-end-{program.removesuffix('_app.py')}.png")


def test_a_decision_is_asked_again_after_a_reload(
    view: Callable[..., Viewer], scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    scripted_model.on("Make a file", reply=Steps((Text("I make it."), touch("one")), "It is there."))
    page = view("agui_app.py").page
    page.get_by_label("Prompt").fill("Make a file")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Allow")).to_be_visible()
    page.reload()
    page.get_by_role("button", name="Allow").click()
    expect(page.get_by_text("It is there.")).to_be_visible()
    assert (tmp_path / "one").exists()


def test_an_answer_goes_on_after_a_reload_and_is_stopped(
    view: Callable[..., Viewer], scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    gate, last = Gate(), Gate()
    scripted_model.on("Count", reply=Steps((Text("I count."), touch("one")), (Text("one "), Pause(gate), Text("two"))))
    scripted_model.on("Write much", reply=(Text("much "), Pause(last), Text("more")))
    page = view("vercel_app.py").page
    page.get_by_label("Prompt").fill("Count")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Allow")).to_be_visible()
    page.reload()
    page.get_by_role("button", name="Allow").click()
    expect(page.get_by_text("one", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_text("one", exact=True)).to_be_visible()
    gate.open()
    expect(page.locator("p")).to_have_text(["Count", "I count.", "one two"])
    assert (tmp_path / "one").exists()
    page.get_by_label("Prompt").fill("Write much")
    page.keyboard.press("Enter")
    expect(page.get_by_text("much", exact=True)).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped")).to_be_visible()
    last.open()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
