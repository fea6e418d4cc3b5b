"""`/login` and `/mcp` in `pilothouse chat --remote`: the host is logged in, from a terminal elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from claude_login_server import EMAIL, ClaudeLogins
from oauth_mcp_server import OAuthServer, follow, open_page
from served_host import TOKEN, MakeHost, Served
from terminal_screen import ASKED_ADDRESS, CTRL_D, ENTER, chatting, read_link

from pilothouse_testing import ScriptedModel

pytest_plugins = ["login_fixtures"]
pytestmark = pytest.mark.real_cli


def chat(served: Served, *flags: str) -> Any:
    url = f"http://127.0.0.1:{served.port}"
    argv = [sys.executable, "-m", "pilothouse", "chat", "--remote", url, *flags]
    return chatting(argv, {**os.environ, "PILOTHOUSE_HOST_TOKEN": TOKEN}, columns=1000)


def test_a_server_that_needs_a_login_gets_one(
    serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel, oauth_server: OAuthServer
) -> None:
    scripted_model.default = "Hello."
    served = serve_host(cli=str(real_cli), environ=scripted_model.env(max_retries=0))
    options = {"mcp_servers": {"ledger": {"type": "http", "url": oauth_server.url}}}
    _, made = served.request("POST", "/v1/sessions", {"options": options})
    with chat(served, "--resume", made["id"]) as screen:
        screen.shows("/login [console] and /mcp")
        screen.press("hi" + ENTER)
        screen.shows("MCP server ledger needs a login, so its tools are missing: /mcp login ledger")
        screen.press("/mcp" + ENTER)
        screen.shows("ledger  needs-auth; /mcp login ledger")
        screen.press("/mcp login ledger" + ENTER)
        screen.shows(ASKED_ADDRESS)
        screen.press("no address" + ENTER)
        screen.shows("the address has no code")
        screen.shows(ASKED_ADDRESS, 2)
        screen.press(open_page(read_link(screen)) + ENTER)
        screen.shows("logged in to ledger, which has 1 tool")
        screen.press("/mcp logout ledger" + ENTER)
        screen.shows("logged out of ledger")
        screen.press("/mcp login ledger" + ENTER)
        screen.shows(ASKED_ADDRESS, 3)
        follow(open_page(read_link(screen)))
        screen.shows("logged in to ledger", 2)
        screen.press("go on" + ENTER)  # the line is not lost to the login, which waited for one
        screen.shows("Hello.", 2)
        screen.press("/mcp login nobody" + ENTER)
        screen.shows("the session has no MCP server 'nobody'")
        screen.press("/quit" + ENTER)
        assert screen.ends() == 0


def test_a_host_without_a_login_at_claude_gets_one(
    serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel, claude_logins: ClaudeLogins
) -> None:
    scripted_model.default = "Hello Ann."
    environ = {**scripted_model.env(max_retries=0), **claude_logins.env(), "ANTHROPIC_API_KEY": ""}
    served = serve_host(cli=str(real_cli), environ=environ)
    with chat(served) as screen:
        screen.shows("/quit leaves; the session continues.")
        screen.press("/login nonsense" + ENTER)
        screen.shows("/login takes claude or console")
        screen.press("/login" + ENTER)
        screen.shows("code:")
        screen.press(claude_logins.show_code(read_link(screen)) + ENTER)
        screen.shows(f"logged in to Claude as {EMAIL} (Claude Pro)")
        screen.press("hi" + ENTER)
        screen.shows("Hello Ann.")
        screen.press(CTRL_D)
        assert screen.ends() == 0
