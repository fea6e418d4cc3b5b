"""In a notebook: a real kernel runs the cells, and these are the outputs that a front end gets."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import anyio
import nbformat
import pytest
from nbclient import NotebookClient

import pilothouse as ph
from pilothouse_cli import notebook
from pilothouse_testing import FakeCLI, frames

TEXT = "**Two** tests. <img src=x onerror=alert(1)> ![spy](https://evil.example/x.png)"

Outputs = list[dict[str, Any]]


@pytest.fixture
def run(fake_cli: Callable[..., FakeCLI]) -> Callable[..., Outputs]:
    """Run cells in a kernel; returns the outputs of the last one."""
    call = frames.tool_use("Bash", {"command": "make <test>"})
    fake = fake_cli().turn(
        frames.init(),
        frames.assistant([call]),
        frames.user_tool_result("ok"),
        frames.assistant(TEXT, message_id="msg_2"),
        frames.result(TEXT),
    )

    def run(*cells: str) -> Outputs:
        first = f"""
            import pilothouse as ph
            from pilothouse_cli.notebook import watch
            ph.configure(cli={str(fake.path)!r})
        """
        notebook: Any = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(dedent(cell)) for cell in (first, *cells)]
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        return notebook.cells[-1].outputs

    return run


def test_a_cell_shows_the_answer_while_it_waits(run: Callable[..., Outputs]) -> None:
    (shown,) = run("result = await watch(ph.query('how many?'))\nassert result.text.startswith('**Two**')")
    html = shown["data"]["text/html"]
    assert "<strong>Two</strong> tests." in html
    assert "success, turns: 1" in html
    assert "<img" not in html  # neither HTML nor images of the model


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the cell of this process shows, the newest last."""
    shown: list[str] = []

    class Handle:
        def update(self, html: Any) -> None:
            shown.append(html.data)

    monkeypatch.setattr(notebook, "display", lambda _, display_id: Handle())  # pyright: ignore[reportUnknownLambdaType]
    return shown


@pytest.mark.anyio
async def test_a_cell_that_is_stopped_says_so(fake_cli: Callable[..., FakeCLI], shown: list[str]) -> None:
    fake = fake_cli().expect().emit(frames.init(), frames.assistant("Half")).hang()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notebook.watch, ph.query("go", cli=fake.path))
        with anyio.fail_after(30):
            while not any("Half" in each for each in shown):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert "<em>stopped" in shown[-1]


@pytest.mark.anyio
async def test_the_cell_says_what_it_waits_for(fake_cli: Callable[..., FakeCLI], shown: list[str]) -> None:
    async def decide(_: ph.PermissionRequest) -> ph.Allow:
        with anyio.fail_after(30):
            while not any("Bash make &lt;test&gt;" in each for each in shown):
                await anyio.sleep(0.01)
        return ph.Allow()

    call = {"command": "make <test>"}
    fake = fake_cli().expect().emit(frames.init(), frames.assistant([frames.tool_use("Bash", call)]))
    fake.ask("can_use_tool", tool_name="Bash", input=call, tool_use_id="toolu_1")
    fake.emit(frames.user_tool_result("ok"), frames.assistant("done", message_id="msg_2"), frames.result("done"))
    result = await notebook.watch(ph.query("go", cli=fake.path, can_use_tool=decide))
    assert result.text == "done"
    assert "<p>done</p>" in shown[-1]
    assert "Bash" not in shown[-1]


def test_a_failure_is_shown_and_raised_as_it_is(run: Callable[..., Outputs]) -> None:
    *shown, said = run(
        """
        try:
            await watch(ph.query("x", cli="/nowhere/claude"))
        except ph.PilothouseError as error:
            print(type(error).__name__)
        """
    )
    assert said["text"] == "CLINotFoundError\n"
    assert ["failed: CLINotFoundError" in each["data"]["text/html"] for each in shown] == [True]


def test_a_query_that_was_not_awaited_says_so(run: Callable[..., Outputs]) -> None:
    (shown,) = run("ph.query('how many?')")
    assert "not sent yet: `await` it" in shown["data"]["text/plain"]


def test_a_result_shows_the_answer(run: Callable[..., Outputs]) -> None:
    (shown,) = run("await ph.query('how many?')")
    assert "<em>success, turns: 1" in shown["data"]["text/html"]
