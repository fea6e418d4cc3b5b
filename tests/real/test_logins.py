"""Logins from a program, with the real CLI: at a server of the official MCP package, and at a stand-in for Claude's."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from anyio import to_thread
from claude_login_server import EMAIL, ClaudeLogins
from oauth_mcp_server import OAuthServer, deny, follow, open_page

import pilothouse as ph
from pilothouse.errors import LoginError
from pilothouse_testing import RecordingTransport, ScriptedModel, Steps, ToolUse

pytest_plugins = ["login_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

BALANCE = "mcp__ledger__balance"


def with_ledger(claude: Any, server: OAuthServer, **settings: Any) -> Any:
    servers: Any = {"ledger": ph.HttpServer(url=server.url)}
    return claude.session(mcp_servers=servers, **settings)


async def agree(url: str | None) -> str:
    """What the browser of a user who agrees is sent on to."""
    assert url is not None
    return await to_thread.run_sync(open_page, url)


async def test_the_tools_of_a_server_work_from_the_login_on_until_it_is_cleared(
    claude: Any, model: ScriptedModel, oauth_server: OAuthServer
) -> None:
    model.reply(Steps([ToolUse(BALANCE, {"account": "Ann"})], lambda asked: asked.tool_results[-1].text))
    async with with_ledger(claude, oauth_server, allowed_tools=["mcp__ledger"]) as session:
        with pytest.raises(ph.ControlError, match="needs-auth") as caught:
            await session.mcp.wait("ledger")
        assert caught.value.code == "needs-auth"
        with pytest.raises(ph.ControlError, match="not connected"):
            await session.mcp.call(BALANCE, {"account": "Ann"})
        login = await session.mcp.authenticate("ledger")
        assert (await session.mcp.status())[0].status == "needs-auth"
        connected = await login.complete(await agree(login.url))
        assert (connected.status, [tool["name"] for tool in connected.tools]) == ("connected", ["balance"])
        assert (await session.mcp.call(BALANCE, {"account": "Ann"})).structured_content == {"result": "Ann: 7"}
        assert "Ann: 7" in (await session.query("go")).text
        with pytest.raises(LoginError, match="needs no login") as again:
            await session.mcp.authenticate("ledger")
        assert again.value.code == "no_login"
    async with with_ledger(claude, oauth_server) as session:  # it is kept for other sessions
        await session.mcp.wait("ledger")
        await session.mcp.clear_auth("ledger")
        assert (await session.mcp.status())[0].status == "needs-auth"
        with pytest.raises(ph.ControlError, match="not connected"):
            await session.mcp.call(BALANCE, {"account": "Ann"})


async def test_a_browser_on_the_same_machine_ends_the_login_by_itself(claude: Any, oauth_server: OAuthServer) -> None:
    async with with_ledger(claude, oauth_server) as session:
        login = await session.mcp.authenticate("ledger")
        async with anyio.create_task_group() as group:

            async def browse() -> None:
                await to_thread.run_sync(follow, await agree(login.url))

            group.start_soon(browse)
            with anyio.fail_after(60):
                assert (await login.wait()).status == "connected"
        assert (await session.mcp.call(BALANCE, {"account": "Ann"})).structured_content == {"result": "Ann: 7"}


async def test_a_page_of_the_program_takes_the_code(claude: Any, oauth_server: OAuthServer) -> None:
    async with with_ledger(claude, oauth_server) as session:
        login = await session.mcp.authenticate("ledger", redirect_uri="https://app.example/back")
        back = await agree(login.url)
        assert back.startswith("https://app.example/back?code=")
        assert (await login.complete(back)).status == "connected"


async def test_who_refuses_is_not_logged_in(claude: Any, oauth_server: OAuthServer) -> None:
    async with with_ledger(claude, oauth_server) as session:
        login = await session.mcp.authenticate("ledger")
        with pytest.raises(LoginError, match="access_denied") as caught:
            await login.complete(deny(login.url or ""))
        assert caught.value.code == "refused"
        login = await session.mcp.authenticate("ledger")
        await to_thread.run_sync(follow, deny(login.url or ""))  # in the browser on the same machine
        with anyio.fail_after(60), pytest.raises(LoginError, match="not logged in") as caught:
            await login.wait()
        assert caught.value.code == "refused"
        oauth_server.logins.refuses = True
        login = await session.mcp.authenticate("ledger")
        with pytest.raises(LoginError, match="code") as caught:
            await login.complete(await agree(login.url))
        assert caught.value.code == "refused"
        assert oauth_server.logins.codes[-1] not in str(caught.value)
        assert (await session.mcp.status())[0].status == "needs-auth"


async def test_a_newer_login_replaces_an_older_one(claude: Any, oauth_server: OAuthServer) -> None:
    async with with_ledger(claude, oauth_server) as session:
        older = await session.mcp.authenticate("ledger")
        newer = await session.mcp.authenticate("ledger")
        with pytest.raises(LoginError):
            await older.complete(await agree(older.url))
        with pytest.raises(ph.ControlTimeout, match=r"within 0\.5 s"):
            await newer.wait(0.5)
        assert (await newer.complete(await agree(newer.url))).status == "connected"


async def test_servers_without_a_login_say_so(claude: Any, oauth_server: OAuthServer) -> None:
    servers: Any = {
        "program": ph.StdioServer(command="/no/such/server"),
        "nowhere": ph.HttpServer(url="http://127.0.0.1:9/"),
    }
    async with claude.session(mcp_servers=servers) as session:
        codes: dict[str, str | None] = {}
        for name in ("program", "nowhere", "other"):
            with pytest.raises(LoginError) as caught:
                await session.mcp.authenticate(name)
            codes[name] = caught.value.code
        assert codes == {"program": "no_login", "nowhere": "refused", "other": "unknown_server"}


async def test_no_code_or_token_of_a_server_is_recorded(claude: Any, oauth_server: OAuthServer, tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"

    def record() -> RecordingTransport:
        return RecordingTransport(ph.CliTransport(), cassette)

    async with with_ledger(claude, oauth_server, transport=record) as session:
        login = await session.mcp.authenticate("ledger")
        await login.complete(await agree(login.url))
    text = cassette.read_text()
    assert "mcp_oauth_callback_url" in text
    assert len(oauth_server.secrets()) == 3
    assert not [secret for secret in oauth_server.secrets() if secret in text]


def without_key(claude: Any, claude_logins: ClaudeLogins) -> dict[str, str]:
    return {**claude.model.env(), **claude_logins.env(), "ANTHROPIC_API_KEY": ""}


async def test_a_login_at_claude_is_used_from_the_next_prompt_on(
    claude: Any, model: ScriptedModel, claude_logins: ClaudeLogins, tmp_path: Path
) -> None:
    model.reply("hello")
    cassette = tmp_path / "run.jsonl"

    def record() -> RecordingTransport:
        return RecordingTransport(ph.CliTransport(), cassette)

    async with claude.session(env=without_key(claude, claude_logins), transport=record) as session:
        assert session.info.account().token_source == "none"
        assert isinstance((await session.query("hi")).error, ph.AuthenticationError)
        login = await session.login()
        assert urlsplit(login.url).netloc == "claude.com"
        assert parse_qs(urlsplit(login.url).query)["redirect_uri"] == [
            "https://platform.claude.com/oauth/code/callback"
        ]
        account = await login.complete(claude_logins.show_code(login.url))
        assert (account.email, account.subscription_type) == (EMAIL, "Claude Pro")
        assert (await session.query("hi")).text == "hello"
    assert "authorization" in model.requests[-1].headers
    assert len(claude_logins.given) == 3
    text = cassette.read_text()
    assert "claude_oauth_callback" in text
    assert not [secret for secret in claude_logins.given if secret in text]
    assert {each.split()[1].partition("/")[0] for each in claude_logins.asked} <= {
        "platform.claude.com",
        "api.anthropic.com",
    }


async def test_a_refused_code_ends_a_login_at_claude(claude: Any, claude_logins: ClaudeLogins) -> None:
    claude_logins.refuses = True
    async with claude.session(env=without_key(claude, claude_logins)) as session:
        login = await session.login("console")
        assert urlsplit(login.url).netloc == "platform.claude.com"
        with pytest.raises(LoginError, match="code wasn't accepted") as caught:
            await login.complete(claude_logins.show_code(login.url))
        assert caught.value.code == "refused"
        with pytest.raises(LoginError, match="No active"):
            await login.wait()


async def test_a_browser_on_the_same_machine_ends_a_login_at_claude(claude: Any, claude_logins: ClaudeLogins) -> None:
    async with claude.session(env=without_key(claude, claude_logins)) as session:
        login = await session.login()
        with pytest.raises(ph.ControlTimeout):
            await login.wait(0.3)
        query = parse_qs(urlsplit(login.local_url or "").query)
        async with anyio.create_task_group() as group:

            async def browse() -> None:
                await anyio.wait_all_tasks_blocked()
                await session.mcp.status()  # the CLI has the request of `wait` by then
                back = f"{query['redirect_uri'][0]}?code=from-the-browser&state={query['state'][0]}"
                await to_thread.run_sync(_visit, back)

            group.start_soon(browse)
            with anyio.fail_after(60):
                assert (await login.wait()).email == EMAIL


def _visit(url: str) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}")
    connection.getresponse().read()
    connection.close()
