"""A login at an MCP server for Claude Code on a host: the browser is elsewhere, and the journal keeps no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oauth_mcp_server import OAuthServer, open_page
from served_transports import host_with_proxy

from pilothouse import sync
from pilothouse.client import Agent
from pilothouse.options import HttpServer
from pilothouse.transports import CliTransport
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing import ScriptedModel

pytest_plugins = ["login_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


def place(cli: Path, model: ScriptedModel) -> dict[str, Any]:
    return {"make_transport": CliTransport, "cli": str(cli), "roots": (str(model.home),)}


def kept_bytes(host: Any) -> bytes:
    journal = Path(host.host.settings.journal)
    return b"".join(file.read_bytes() for file in journal.parent.glob(f"{journal.name}*"))


async def test_a_session_on_a_host_logs_in(
    real_cli: Path, scripted_model: ScriptedModel, oauth_server: OAuthServer
) -> None:
    env = scripted_model.env(max_retries=0)
    async with host_with_proxy(**place(real_cli, scripted_model), env=tuple(env)) as (host, _):
        servers: Any = {"ledger": HttpServer(url=oauth_server.url)}
        home = str(scripted_model.home)
        settings: dict[str, Any] = {"env": env, "inherit_env": False, "cwd": home, "mcp_servers": servers}
        async with Agent(**settings, transport=WebSocketTransport(host.url)).session() as session:
            login = await session.mcp.authenticate("ledger")
            await login.complete(open_page(login.url or ""))
            called = await session.mcp.call("mcp__ledger__balance", {"account": "Ann"})
            assert called.structured_content == {"result": "Ann: 7"}
            kept = kept_bytes(host)
        assert b"authorize" in kept
        assert not [secret for secret in oauth_server.secrets() if secret.encode() in kept]


def test_plain_code_logs_in_too(real_cli: Path, scripted_model: ScriptedModel, oauth_server: OAuthServer) -> None:
    servers: Any = {"ledger": HttpServer(url=oauth_server.url)}
    settings: dict[str, Any] = {"env": scripted_model.env(), "inherit_env": False, "cwd": str(scripted_model.home)}
    with sync.session(cli=str(real_cli), mcp_servers=servers, **settings) as session:
        login = session.mcp.authenticate("ledger")
        assert (login.server, type(login).__module__) == ("ledger", "pilothouse.sync.generated")
        assert login.complete(open_page(login.url or "")).status == "connected"
        assert login.wait().status == "connected"
        session.mcp.clear_auth("ledger")
        assert session.mcp.status()[0].status == "needs-auth"
        at_claude = session.login()
        assert at_claude.url.startswith("https://claude.com/")
        assert "localhost" in (at_claude.local_url or "")
