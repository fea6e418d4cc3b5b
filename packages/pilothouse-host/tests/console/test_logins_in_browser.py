"""Logins in the console: the card that offers one, its steps, its ends, and what stands there without a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from accessibility import find_violations
from claude_login_server import EMAIL, ClaudeLogins
from console_browser import PHONE, ConsoleProgram, View, Viewer, expect, start_session
from oauth_mcp_server import OAuthServer, deny, follow, open_page

from pilothouse_testing import ScriptedModel

pytest_plugins = ["login_fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.real_cli]


def open_session(viewer: Viewer, console: ConsoleProgram, server: OAuthServer) -> Any:
    """The page of a session whose first turn was without the tools of the server."""
    base, _, token = console.link.partition("/#token=")
    options = {"mcp_servers": {"ledger": {"type": "http", "url": server.url}}}
    with httpx2.Client(base_url=base, headers={"authorization": f"Bearer {token}"}, trust_env=False) as client:
        made = client.post("/v1/sessions", json={"options": options, "prompt": "hi"}).json()
    viewer.page.goto(f"{base}/#/sessions/{made['id']}")
    return viewer.page


def read_link(page: Any) -> str:
    link = page.get_by_role("link", name="Open the login page")
    expect(link).to_be_visible()
    assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer")
    return str(link.get_attribute("href"))


@pytest.mark.parametrize("context", [{}, {"viewport": PHONE, "has_touch": True}], ids=["desktop", "phone"])
def test_a_server_that_needs_a_login_gets_one(
    view: View,
    console: ConsoleProgram,
    oauth_server: OAuthServer,
    scripted_model: ScriptedModel,
    context: dict[str, Any],
) -> None:
    scripted_model.default = "Hello."
    page = open_session(view(**context), console, oauth_server)
    card = page.get_by_role("article", name="Login at MCP server ledger")
    expect(card).to_contain_text("Its tools are unavailable until you log in.")
    card.get_by_role("button", name="Log in").click()
    link = read_link(page)
    expect(card).to_contain_text(urlsplit(link).netloc)
    assert not find_violations(page)
    assert page.evaluate("document.querySelector('.card').scrollWidth <= document.querySelector('.card').clientWidth")
    card.get_by_label("Address of the last page").fill("http://localhost/?nothing")
    page.keyboard.press("Enter")
    expect(card.get_by_role("alert")).to_contain_text("This is not the address of this login.")
    card.get_by_role("button", name="Cancel").click()
    expect(card).to_have_count(0)
    page.reload()  # a server that needs a login is offered again
    card.get_by_role("button", name="Log in").click()
    refused = deny(read_link(page))
    card.get_by_label("Address of the last page").fill(refused)
    card.get_by_role("button", name="Finish").click()
    expect(card.get_by_role("alert")).to_have_text("The login was declined on its page.")
    card.get_by_role("button", name="Log in").click()
    back = open_page(read_link(page))
    card.get_by_label("Address of the last page").fill(back)
    card.get_by_role("button", name="Finish").click()
    expect(card).to_contain_text("Logged in. 1 tool is available.")
    page.get_by_label("Prompt", exact=True).fill("again")
    page.keyboard.press("Enter")
    expect(page.locator(".turn-end")).to_have_count(2)
    expect(card).to_have_count(0)
    kept = page.content() + page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert not [secret for secret in oauth_server.secrets() if secret in kept]


def test_a_browser_on_the_machine_of_the_host_ends_a_login_in_every_window(
    view: View, console: ConsoleProgram, oauth_server: OAuthServer, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "Hello."
    viewer, other = view(), view()
    page = open_session(viewer, console, oauth_server)
    page.get_by_role("button", name="Log in").click()
    link = read_link(page)
    other.page.goto(page.url)
    assert read_link(other.page) == link
    follow(open_page(link))
    for each in (page, other.page):
        expect(each.get_by_text("Logged in. 1 tool is available.")).to_be_visible()
    viewer.page.goto(f"{page.url.partition('#')[0]}#/policy")
    page.get_by_label("Session").select_option(index=1)
    expect(page.get_by_text("ledger", exact=True)).to_be_visible()


def test_a_link_that_is_no_web_page_is_not_opened(
    view: View, console: ConsoleProgram, oauth_server: OAuthServer, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "Hello."
    viewer = view()
    page = viewer.page

    def change(route: Any, request: Any) -> Any:
        if request.method != "GET":
            return route.continue_()
        answer = route.fetch()
        return route.fulfill(response=answer, json={**answer.json(), "url": "javascript:document.body.remove()"})

    page.route("**/logins/login_*", change)
    open_session(viewer, console, oauth_server)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("The server sent a link that is not a web page.")).to_be_visible()
    expect(page.get_by_role("link", name="Open the login page")).to_have_count(0)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("article")).to_have_count(0)


class NoKey:
    """A console without a key, whose Claude Code reaches a stand-in for the login of Claude."""

    def __init__(self, program: ConsoleProgram, logins: ClaudeLogins) -> None:
        self.program = program
        self.logins = logins


@pytest.fixture
def no_key(
    tmp_path: Path,
    real_cli: str,
    scripted_model: ScriptedModel,
    claude_logins: ClaudeLogins,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[NoKey]:
    for name, value in {**scripted_model.env(), **claude_logins.env(), "ANTHROPIC_API_KEY": ""}.items():
        monkeypatch.setenv(name, value)
    program = ConsoleProgram(tmp_path, real_cli, "--drain", "0.1")
    program.start()
    yield NoKey(program, claude_logins)
    program.stop()


def test_without_a_key_the_first_page_says_three_ways_and_leads_through_a_login(
    browser: Any, no_key: NoKey, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "Hello Ann."
    viewer = Viewer(browser, no_key.program.link)
    page = viewer.page
    ways = page.get_by_label("No key and no login")
    for way in ("Log in to Claude", "export ANTHROPIC_API_KEY=…", "pilothouse chat --local"):
        expect(ways).to_contain_text(way)
    assert not find_violations(page)
    start_session(page, "hi")
    expect(page.get_by_role("alert")).to_contain_text("neither a key nor a login")
    expect(page.locator(".chip.state")).to_have_text("Failed")
    expect(page.get_by_role("article", name="Login at Claude")).to_be_visible()
    page.get_by_role("link", name="Inbox").click()
    ways.get_by_role("button", name="Log in to Claude").click()
    card = page.get_by_role("article", name="Login at Claude")
    code = no_key.logins.show_code(read_link(page))
    card.get_by_label("Code").fill(code.partition("#")[0])
    card.get_by_role("button", name="Finish").click()
    expect(card.get_by_role("alert")).to_contain_text("Copy all of it, including what follows the #.")
    card.get_by_label("Code").fill(code)
    page.keyboard.press("Enter")
    expect(card).to_contain_text(f"Logged in as {EMAIL} (Claude Pro).")
    page.get_by_label("Prompt", exact=True).fill("hi")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Hello Ann.")).to_be_visible()
    expect(page.locator(".chip.state")).to_have_text("Idle")
    expect(card).to_have_count(0)
    page.get_by_role("link", name="Inbox").click()
    expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
    expect(ways).to_have_count(0)
    viewer.close()
    said = json.dumps(no_key.program.errors.read_text())
    assert not [secret for secret in no_key.logins.given if secret in said]


def test_who_may_not_log_in_leaves_no_session_behind(browser: Any, no_key: NoKey) -> None:
    viewer = Viewer(browser, no_key.program.link)
    page = viewer.page
    page.route(
        "**/logins", lambda route: route.fulfill(status=403, json={"error": {"code": "forbidden", "message": "no"}})
    )
    page.get_by_label("No key and no login").get_by_role("button", name="Log in to Claude").click()
    expect(page.get_by_role("alert")).to_have_text("no")
    page.get_by_role("link", name="Sessions").click()
    expect(page.get_by_text("No sessions yet")).to_be_visible()
    viewer.close()
