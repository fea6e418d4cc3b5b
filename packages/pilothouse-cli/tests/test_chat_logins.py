"""Logins in `pilothouse chat` over the real CLI: the link on the screen, and what a person pastes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from claude_login_server import EMAIL, ClaudeLogins
from command_process import Command
from oauth_mcp_server import OAuthServer, follow, open_page
from terminal_screen import ASKED_ADDRESS, CTRL_C, CTRL_D, ENTER, ChatScreen, read_link

from pilothouse_testing import ScriptedModel

pytest_plugins = ["login_fixtures"]
pytestmark = pytest.mark.real_cli

Chat = Callable[..., AbstractContextManager[ChatScreen]]


@pytest.fixture(name="chat")
def wide_chat(chat: Chat) -> Chat:
    """As `chat`, in a terminal whose lines are as long as a link."""
    return partial(chat, columns=1000)


def with_ledger(server: OAuthServer, directory: Path) -> str:
    file = directory / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"ledger": {"type": "http", "url": server.url}}}))
    return f"mcp_servers={file}"


def test_a_server_that_needs_a_login_gets_one(
    chat: Chat, oauth_server: OAuthServer, tmp_path: Path, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "Hello."
    with chat("--set", with_ledger(oauth_server, tmp_path)) as screen:
        screen.until(lambda: screen.at_prompt)
        screen.say("/mcp login ledger")
        screen.shows(ASKED_ADDRESS)
        screen.press("no address" + ENTER)
        screen.shows("the address has no code. The login still waits")
        screen.shows(ASKED_ADDRESS, 2)
        screen.press(open_page(read_link(screen)) + ENTER)
        screen.shows("logged in to ledger, which has 1 tool")
        screen.say("/mcp")
        screen.shows("ledger  connected")
        screen.say("/mcp logout ledger")
        screen.shows("logged out of ledger")
        screen.say("hi")
        screen.shows("MCP server ledger needs a login, so its tools are missing: /mcp login ledger")
        screen.say("/mcp login ledger")  # and in a browser on the same machine
        screen.shows(ASKED_ADDRESS, 3)
        follow(open_page(read_link(screen)))
        screen.shows("logged in to ledger", 2)
        screen.say("/mcp login ledger")
        screen.shows("is connected and needs no login")
        screen.say("/mcp nonsense")
        screen.shows("/mcp login NAME and /mcp logout NAME change the login at one")
        screen.say(CTRL_D)
        assert screen.ends() == 0
        assert screen.echoes


def test_a_login_can_be_given_up(chat: Chat, oauth_server: OAuthServer, tmp_path: Path) -> None:
    with chat("--set", with_ledger(oauth_server, tmp_path)) as screen:
        for leave in (ENTER, CTRL_C, CTRL_D):
            screen.say("/mcp login ledger")
            screen.until(lambda: screen.lines[-1].startswith(ASKED_ADDRESS))
            before = screen.text.count("not logged in")
            screen.press(leave)
            screen.shows("not logged in", before + 1)
        screen.say("/exit")
        assert screen.ends() == 0


def test_a_person_without_a_login_at_claude_gets_one(
    chat: Chat, scripted_model: ScriptedModel, claude_logins: ClaudeLogins
) -> None:
    scripted_model.default = "Hello Ann."
    with chat(env={**claude_logins.env(), "ANTHROPIC_API_KEY": ""}) as screen:
        screen.shows("neither a key nor a login")
        screen.shows("/login")
        log_in(screen, claude_logins)
        screen.shows(f"logged in to Claude as {EMAIL} (Claude Pro)")
        screen.say("hi")
        screen.shows("Hello Ann.")
        screen.say("/login nonsense")
        screen.shows("/login takes claude or console")
        screen.say(CTRL_D)
        assert screen.ends() == 0
    with chat(env=claude_logins.env()) as screen:
        log_in(screen, claude_logins)
        screen.shows("Claude Code still uses its API key instead of this login")


def log_in(screen: ChatScreen, logins: ClaudeLogins) -> None:
    screen.say("/login")
    screen.shows("code:")
    screen.press(logins.show_code(read_link(screen)) + ENTER)


def test_a_pipe_cannot_log_in(pilothouse: Command, real_cli: str, scripted_model: ScriptedModel) -> None:
    given = {k: v for k, v in scripted_model.env().items() if k not in ("HOME", "TMPDIR", "CLAUDE_CONFIG_DIR")}
    ran = pilothouse.run("chat", "--cli", real_cli, stdin=b"/login\n", env=given)
    assert ran.code != 0
    assert "log in from a terminal" in ran.err
