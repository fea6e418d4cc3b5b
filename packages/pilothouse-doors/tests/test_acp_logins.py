"""The login at Claude in an editor: offered by `pilothouse acp`, made in a browser, used by the next prompt."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_login_server import ClaudeLogins
from editor import Editor, RequestFailedError
from served_agents import ServedCli
from session_cli import Cli

import pilothouse as ph
from pilothouse_doors.acp.logins import log_in
from pilothouse_testing import ScriptedModel

pytest_plugins = ["login_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]  # that of the library
real = pytest.mark.real_cli

BROWSER = """
import http.client, sys, urllib.parse
query = urllib.parse.parse_qs(urllib.parse.urlsplit(sys.argv[1]).query)
back = urllib.parse.urlsplit(query["redirect_uri"][0])
answer = urllib.parse.urlencode({WHAT: "from-the-browser", "state": query["state"][0]})
connection = http.client.HTTPConnection("127.0.0.1", back.port)
connection.request("GET", back.path + "?" + answer)
connection.getresponse().read()
"""


def browse(directory: Path, what: str) -> str:
    """The variable BROWSER for somebody who logs in ("code"), or refuses ("error")."""
    program = directory / f"{what}.py"
    program.write_text(BROWSER.replace("WHAT", repr(what)))
    return f"{sys.executable} {program} %s"


@real
async def test_a_user_logs_in_and_goes_on(
    served_cli: ServedCli, scripted_model: ScriptedModel, claude_logins: ClaudeLogins, tmp_path: Path
) -> None:
    scripted_model.default = "Hello."
    env = {**claude_logins.env(), "ANTHROPIC_API_KEY": "", "BROWSER": browse(tmp_path, "code")}
    async with Editor(served_cli, **env) as editor:
        offered = await editor.request("initialize", protocolVersion=1, clientCapabilities={})
        assert [each["id"] for each in offered["authMethods"]] == ["claude", "console"]
        session = await editor.start()
        with pytest.raises(RequestFailedError) as caught:
            await editor.prompt(session, "hi")
        assert caught.value.code == -32000
        assert await editor.request("authenticate", methodId="claude") == {}
        assert await editor.prompt(session, "hi") == "end_turn"
        assert editor.text().endswith("Hello.")


@real
async def test_a_user_who_refuses_is_not_logged_in(
    served_cli: ServedCli, claude_logins: ClaudeLogins, tmp_path: Path
) -> None:
    env = {**claude_logins.env(), "ANTHROPIC_API_KEY": "", "BROWSER": browse(tmp_path, "error")}
    async with Editor(served_cli, **env) as editor:
        await editor.request("initialize", protocolVersion=1, clientCapabilities={})
        with pytest.raises(RequestFailedError) as caught:
            await editor.request("authenticate", methodId="console")
        assert caught.value.code == -32000


@pytest.mark.parametrize(
    ("opens", "cli_says", "expected"),
    [
        (False, {"account": {}}, "this machine has no browser with a window: run `pilothouse chat`, and /login"),
        (True, "it was refused", "it was refused"),
        (True, {"account": {}}, None),
    ],
)
async def test_a_login_ends_as_the_cli_says(
    opens: bool, cli_says: Any, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, opened = Cli(), list[str]()
    cli.answers["claude_authenticate"] = {"manualUrl": "https://x/?state=s", "automaticUrl": "https://local/?state=s"}
    cli.answers["claude_oauth_wait_for_completion"] = cli_says
    if not opens:
        cli.silent.add("claude_oauth_wait_for_completion")

    class Browser(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            opened.append(url)
            return opens

    monkeypatch.setattr(webbrowser, "get", Browser)
    agent = ph.Agent(transport=cli.transport)
    if expected is None:
        await log_in(agent, "console")
    else:
        with pytest.raises(ph.PilothouseError, match=expected):
            await log_in(agent, "console")
    assert opens or opened == ["https://local/?state=s"]  # this CLI may answer before a browser opens
    assert cli.controls[0]["loginWithClaudeAi"] is False


@pytest.mark.parametrize("name", ["lynx", "w3m", "www-browser", None])
async def test_no_browser_takes_the_input_of_the_editor(
    name: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cli = Cli()
    cli.answers["claude_authenticate"] = {"manualUrl": "https://x/?state=s", "automaticUrl": "https://local/?state=s"}
    cli.silent.add("claude_oauth_wait_for_completion")
    if name is None:
        monkeypatch.setattr(webbrowser, "get", raise_none)
    else:
        browser = tmp_path / name
        browser.write_text(f"#!/bin/sh\necho started > {tmp_path}/started\n")
        browser.chmod(0o700)
        monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser(str(browser)))
    with anyio.fail_after(10), pytest.raises(ph.UsageError, match=r"no browser with a window.* shows the link"):
        await log_in(ph.Agent(transport=cli.transport), "claude")
    assert not (tmp_path / "started").exists()


def raise_none() -> webbrowser.BaseBrowser:
    raise webbrowser.Error("could not locate runnable browser")


async def test_there_is_no_other_method() -> None:
    with pytest.raises(ph.UsageError, match="there is no method 'x'"):
        await log_in(ph.Agent(transport=Cli().transport), "x")
