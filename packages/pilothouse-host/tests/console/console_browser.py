"""Chromium, and the command `pilothouse console` as a user starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import expect as expect

LIMIT = 20_000
"""Milliseconds for anything that a page should show."""
expect.set_options(timeout=LIMIT)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
REPORT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.effectiveDirective}: ${event.blockedURI}`);
});
"""


def find_chromium() -> str:
    """The program; without it the test is skipped, and fails where everything must be there."""
    if (found := shutil.which("chromium") or shutil.which("chromium-browser")) is not None:
        return found
    reason = "no Chromium on PATH; `make test-browser` installs it with apt-get"
    if os.environ.get("CI") or os.environ.get("PILOTHOUSE_REQUIRE_CLI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def open_browser() -> Generator[Browser]:
    program = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Viewer:
    """One browser window with storage of its own, which notes what no page of the console may do."""

    def __init__(self, browser: Browser, link: str, **context: Any) -> None:
        self._allowed = urlsplit(link).netloc
        given: dict[str, Any] = {"viewport": DESKTOP, "reduced_motion": "reduce", **context}
        self.context = browser.new_context(**given)
        self.context.set_default_timeout(LIMIT)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.faults: list[str] = []
        self.page = self.open(link)

    def open(self, link: str) -> Page:
        page = self.context.new_page()
        page.add_init_script(REPORT_VIOLATIONS)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", self._check_request)
        page.on(
            "console", lambda said: self.faults.append(f"console: {said.text}") if "Security" in said.text else None
        )
        page.goto(link)
        return page

    def _check_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self._allowed:
            self.faults.append(f"request: {request.url}")

    def close(self) -> None:
        for page in self.context.pages:
            self.faults += page.evaluate("window.violations ?? []")
        self.context.close()
        assert not self.faults, self.faults


class ConsoleProgram:
    """`pilothouse console` as a process of its own; `link` is what it prints."""

    def __init__(self, directory: Path, cli: str, *arguments: str, command: str = "console") -> None:
        self.root = directory / "work"
        self.root.mkdir(exist_ok=True)
        self.journal = directory / "host.sqlite"
        self.errors = directory / "console.err"
        self._given = ("--cli", cli, "--root", str(self.root), "--journal", str(self.journal), *arguments)
        self._command = command
        self.process: subprocess.Popen[str]
        self.link = ""

    def start(self, port: int = 0, token: str = "") -> str:
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pilothouse", self._command, "--port", str(port), *self._given],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **({"PILOTHOUSE_HOST_TOKEN": token} if token else {})},
            )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        assert "/#token=" in self.link, self.errors.read_text()
        return self.link

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=20)


def start_session(page: Page, prompt: str, mode: str = "default") -> None:
    """Start a session from anywhere, by the dialog."""
    page.goto(f"{page.url.partition('#')[0]}#/sessions/new")
    page.get_by_label("What should be done?").fill(prompt)
    page.get_by_label("Permission mode").select_option(mode)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(prompt)


View = Callable[..., Viewer]
"""Opens the console in a browser."""
