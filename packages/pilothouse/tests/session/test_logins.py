"""Logins at MCP servers and at Claude, against a stand-in for the CLI that answers as 2.1.332 does."""

from __future__ import annotations

import logging
import traceback
from typing import Any, cast

import anyio
import pytest
from session_cli import Cli, talking

import pilothouse as ph
from pilothouse.errors import LoginError

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

STATE = "state-of-this-login"
CODE = "code-of-the-browser"
BACK = f"http://localhost:1/callback?code={CODE}&state={STATE}"
NOT_ACTIVE = "No active OAuth flow for server: ledger"
CLAUDE_URL = f"https://claude.com/cai/oauth/authorize?code=true&state={STATE}"
PASTED = f"{CODE}#{STATE}"


class Server:
    """An MCP server of the session, as the CLI describes it."""

    def __init__(self, cli: Cli) -> None:
        self.status = "needs-auth"
        self.kind = "http"
        self.waits = False
        self.connects = True
        cli.answers |= {
            "mcp_status": self.describe,
            "mcp_authenticate": self.begin,
            "mcp_oauth_callback_url": self.take,
            "mcp_reconnect": self.connect,
        }

    def describe(self, body: Any) -> dict[str, Any]:
        return {"mcpServers": [{"name": "ledger", "status": self.status, "config": {"type": self.kind}}]}

    def begin(self, body: Any) -> dict[str, Any]:
        self.waits = True
        return {"authUrl": f"https://ledger.example/authorize?state={STATE}", "state": STATE}

    def take(self, body: dict[str, Any]) -> Any:
        if not self.waits:
            return NOT_ACTIVE
        if STATE not in body["callbackUrl"]:
            return "Callback URL not accepted: it belongs to a different sign-in attempt (OAuth state mismatch)"
        self.waits = False
        return {}

    def connect(self, body: Any) -> Any:
        if self.connects:
            self.status = "connected"
        return {} if self.connects else "Server status: needs-auth"


@pytest.fixture
def server(cli: Cli) -> Server:
    return Server(cli)


def subtypes(cli: Cli) -> list[str]:
    return [body["subtype"] for body in cli.controls]


async def test_a_login_at_a_server_ends_with_the_address_of_the_browser(cli: Cli, server: Server) -> None:
    async with talking(cli) as session:
        login = await session.mcp.authenticate("ledger")
        assert (login.server, login.url) == ("ledger", f"https://ledger.example/authorize?state={STATE}")
        connected = await login.complete(f" {BACK}\n")
    assert connected.status == "connected"
    assert subtypes(cli)[-3:] == ["mcp_oauth_callback_url", "mcp_reconnect", "mcp_status"]


async def test_a_page_of_the_program_can_take_the_code(cli: Cli, server: Server) -> None:
    async with talking(cli) as session:
        await session.mcp.authenticate("ledger", redirect_uri="https://app.example/back")
        await session.mcp.authenticate("ledger")
    begun = [body for body in cli.controls if body["subtype"] == "mcp_authenticate"]
    assert begun[0]["redirectUri"] == "https://app.example/back"
    assert begun[0]["redirectUriOnly"] is True
    assert "redirectUri" not in begun[1]


@pytest.mark.parametrize("pasted", ["", "hello", "http://[", f"http://localhost/?state={STATE}", BACK + "x"])
async def test_an_address_of_something_else_is_not_sent(pasted: str, cli: Cli, server: Server) -> None:
    async with talking(cli) as session:
        login = await session.mcp.authenticate("ledger")
        with pytest.raises(LoginError, match="still waits") as caught:
            await login.complete(pasted)
        assert caught.value.code == "wrong_callback"
        assert "mcp_oauth_callback_url" not in subtypes(cli)
        assert (await login.complete(BACK)).status == "connected"


async def test_a_server_is_asked_for_a_login_only_if_it_can_need_one(cli: Cli, server: Server) -> None:
    async with talking(cli) as session:
        for begin in (session.mcp.authenticate, session.mcp.clear_auth):
            with pytest.raises(LoginError, match="has no MCP server 'other'") as caught:
                await begin("other")
            assert caught.value.code == "unknown_server"
            server.kind = "stdio"
            with pytest.raises(LoginError, match="is a program") as caught:
                await begin("ledger")
            assert caught.value.code == "no_login"
            server.kind = "http"
        server.status = "connected"
        with pytest.raises(LoginError, match="is connected and needs no login") as caught:
            await session.mcp.authenticate("ledger")
        assert caught.value.code == "no_login"
        assert set(subtypes(cli)) == {"mcp_status"}
        await session.mcp.clear_auth("ledger")
        assert subtypes(cli)[-1] == "mcp_clear_auth"


async def test_a_server_that_still_connects_is_awaited(cli: Cli, server: Server) -> None:
    server.status = "pending"
    async with talking(cli) as session, anyio.create_task_group() as group:

        async def need_login() -> None:
            await anyio.sleep(3)
            server.status = "needs-auth"

        group.start_soon(need_login)
        begun = anyio.current_time()
        await session.mcp.authenticate("ledger")
        assert anyio.current_time() - begun >= 3
        server.status = "pending"
        begun = anyio.current_time()
        assert (await session.mcp.authenticate("ledger")).url  # the CLI knows better
        assert 35 <= anyio.current_time() - begun < 36


async def test_a_refusal_to_begin_has_a_code(cli: Cli, server: Server) -> None:
    cli.refused |= {"mcp_authenticate", "mcp_clear_auth"}
    async with talking(cli) as session:
        for subtype, begin in (
            ("mcp_authenticate", session.mcp.authenticate),
            ("mcp_clear_auth", session.mcp.clear_auth),
        ):
            with pytest.raises(LoginError) as caught:
                await begin("ledger")
            assert (caught.value.code, caught.value.subtype) == ("refused", subtype)


async def test_waiting_ends_when_the_browser_has_come_back(cli: Cli, server: Server) -> None:
    async with talking(cli) as session, anyio.create_task_group() as group:
        login = await session.mcp.authenticate("ledger")

        async def come_back() -> None:
            await anyio.sleep(5)
            server.waits = False
            await anyio.sleep(3)  # the CLI trades the code for a login meanwhile
            server.status = "connected"

        group.start_soon(come_back)
        begun = anyio.current_time()
        assert (await login.wait()).status == "connected"
        assert 8 <= anyio.current_time() - begun < 9
        assert "mcp_reconnect" not in subtypes(cli)
        assert (await login.wait()).status == "connected"  # at once


async def test_waiting_ends_when_the_user_has_refused(cli: Cli, server: Server) -> None:
    server.connects = False
    async with talking(cli) as session:
        login = await session.mcp.authenticate("ledger")
        server.waits = False
        with pytest.raises(LoginError, match="not logged in at MCP server 'ledger'") as caught:
            await login.wait()
        assert caught.value.code == "refused"
        with pytest.raises(LoginError, match="No active") as caught:
            await login.complete(BACK)
        assert caught.value.code == "refused"


async def test_an_older_login_waits_for_the_newer_one(cli: Cli, server: Server) -> None:
    async with talking(cli) as session, anyio.create_task_group() as group:
        older, newer = await session.mcp.authenticate("ledger"), await session.mcp.authenticate("ledger")
        group.start_soon(newer.complete, BACK)
        assert (await older.wait()).status == "connected"
        with pytest.raises(LoginError) as caught:
            await older.complete(BACK)
        assert caught.value.code == "refused"


async def test_waiting_has_a_limit(cli: Cli, server: Server) -> None:
    async with talking(cli) as session:
        login = await session.mcp.authenticate("ledger")
        with pytest.raises(ph.ControlTimeout, match="no login at MCP server 'ledger' within 7 s"):
            await login.wait(7)
        assert (await login.complete(BACK)).status == "connected"


async def test_a_login_that_nobody_has_to_agree_to_connects(cli: Cli, server: Server) -> None:
    cli.answers["mcp_authenticate"] = {"requiresUserAction": False, "callbackExpected": False}
    async with talking(cli) as session:
        login = await session.mcp.authenticate("ledger")
        assert login.url is None
        assert (await login.wait()).status == "connected"
        with pytest.raises(LoginError, match="another login"):
            await login.complete("http://localhost/?code=x")


async def test_a_login_at_claude_ends_with_the_code_of_its_page(cli: Cli) -> None:
    cli.answers["claude_authenticate"] = {"manualUrl": CLAUDE_URL, "automaticUrl": "https://claude.com/other"}
    cli.answers["claude_oauth_callback"] = {"account": {"email": "ann@example.com"}}
    async with talking(cli) as session:
        login = await session.login("console")
        assert (login.url, login.local_url) == (CLAUDE_URL, "https://claude.com/other")
        for pasted in ("", CODE, f"#{STATE}", f"{CODE}#", f"{CODE}#other"):
            with pytest.raises(LoginError, match="still waits") as caught:
                await login.complete(pasted)
            assert caught.value.code == "wrong_callback"
        assert (await login.complete(f" {PASTED}\n")).email == "ann@example.com"
    sent = {body["subtype"]: body for body in cli.controls}
    assert sent["claude_authenticate"]["loginWithClaudeAi"] is False
    assert (sent["claude_oauth_callback"]["authorizationCode"], sent["claude_oauth_callback"]["state"]) == (CODE, STATE)
    assert len(cli.controls) == 2


async def test_a_login_at_claude_takes_longer_than_other_requests(cli: Cli) -> None:
    cli.silent.add("claude_oauth_wait_for_completion")
    async with talking(cli, control_timeout=1) as session:
        login = await session.login()
        begun = anyio.current_time()
        with pytest.raises(ph.ControlTimeout, match="no login at Claude within 50 s"):
            await login.wait(50)
        assert 50 <= anyio.current_time() - begun < 51
        begun = anyio.current_time()
        with pytest.raises(ph.ControlTimeout):
            await login.wait(0.5)
        assert anyio.current_time() - begun < 1
        with pytest.raises(ph.UsageError, match="account: expected 'claude' or 'console', got 'github'"):
            await session.login(cast("Any", "github"))


async def test_a_login_at_claude_may_be_refused(cli: Cli) -> None:
    async with talking(cli) as session:
        cli.answers["claude_authenticate"] = "Login blocked"
        with pytest.raises(LoginError, match="Login blocked") as caught:
            await session.login()
        assert caught.value.code == "refused"
        cli.answers["claude_authenticate"] = {"manualUrl": CLAUDE_URL}
        login = await session.login()
        cli.answers["claude_oauth_wait_for_completion"] = "No active claude_authenticate flow"
        with pytest.raises(LoginError, match="No active"):
            await login.wait()


async def test_no_code_is_shown(cli: Cli, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cli.answers["claude_authenticate"] = {"manualUrl": CLAUDE_URL}
    cli.answers["claude_oauth_callback"] = f"bad code {CODE}"
    cli.answers["mcp_oauth_callback_url"] = f"cannot use {CODE} of {BACK}"
    async with talking(cli) as session:
        login, at_claude = await session.mcp.authenticate("ledger"), await session.login()
        with pytest.raises(LoginError, match=r"bad code \[redacted\]") as pasted:
            await at_claude.complete(PASTED)
        with pytest.raises(LoginError, match=r"cannot use \[redacted\] of") as returned:
            await login.complete(BACK)
    for error in (pasted.value, returned.value):
        assert error.__cause__ is error.__context__ is None
        assert CODE not in str(error)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_globals["__name__"].startswith("pilothouse."):
                assert CODE not in repr(frame.f_locals)
    assert CODE not in caplog.text
    assert STATE not in repr((login, at_claude))
