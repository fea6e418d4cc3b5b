"""Consoles, as the command starts them, and Chromium windows that look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from console_browser import Browser, ConsoleProgram, Viewer, open_browser

from pilothouse_testing import FakeCLI, ScriptedModel


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def arguments() -> tuple[str, ...]:
    """Further arguments of the command; modules have their own."""
    return ()


@pytest.fixture
def console(
    tmp_path: Path,
    real_cli: str,
    scripted_model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> Iterator[ConsoleProgram]:
    """`pilothouse console` with the real CLI, which asks the scripted model; started."""
    for name, value in scripted_model.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PILOTHOUSE_HOST_TOKEN", raising=False)
    program = ConsoleProgram(tmp_path, real_cli, "--drain", "0.1", *arguments)
    program.start()
    yield program
    program.stop()


@pytest.fixture
def view(browser: Browser, console: ConsoleProgram) -> Iterator[Callable[..., Viewer]]:
    """Opens windows, each with storage of its own; takes a link, and settings of the window."""
    viewers: list[Viewer] = []

    def open_viewer(link: str = "", **context: Any) -> Viewer:
        viewers.append(Viewer(browser, link or console.link, **context))
        return viewers[-1]

    yield open_viewer
    for viewer in viewers:
        viewer.close()


@pytest.fixture
def fake_console(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[FakeCLI], Viewer]]:
    """Starts a console on a CLI that follows a script; gives a window on it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    opened: list[tuple[FakeCLI, ConsoleProgram, Viewer]] = []

    def start(fake: FakeCLI) -> Viewer:
        fake.__enter__()
        program = ConsoleProgram(tmp_path, fake.path, "--drain", "0.1")
        opened.append((fake, program, Viewer(browser, program.start())))
        return opened[-1][2]

    yield start
    for fake, program, viewer in opened:
        viewer.close()
        program.stop()
        fake.__exit__(None, None, None)
