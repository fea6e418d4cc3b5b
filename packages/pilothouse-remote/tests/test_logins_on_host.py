"""A login at an MCP server for Claude Code on a host: the browser is elsewhere, and the journal keeps no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oauth_mcp_server import open_page, serve_oauth_mcp
from served_transports import host_with_proxy

from pilothouse import sync
from pilothouse.client import Agent
from pilothouse.options import HttpServer
from pilothouse.transports import CliTransport
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


async def test_a_session_on_a_host_logs_in(real_cli: Path, scripted_model: ScriptedModel) -> None:
    root = str(scripted_model.home)
    env = scripted_model.env(max_retries=0)
    place: dict[str, Any] = {"cli": str(real_cli), "roots": (root,), "env": tuple(env)}
    async with host_with_proxy(make_transport=CliTransport, **place) as (host, _):
        with serve_oauth_mcp() as server:
            servers: Any = {"ledger": HttpServer(url=server.url)}
            settings: dict[str, Any] = {"env": env, "inherit_env": False, "cwd": root, "mcp_servers": servers}
            async with Agent(**settings, transport=WebSocketTransport(host.url)).session() as session:
                login = await session.mcp.authenticate("ledger")
                await login.complete(open_page(login.url or ""))
                called = await session.mcp.call("mcp__ledger__balance", {"account": "Ann"})
                assert called.structured_content == {"result": "Ann: 7"}
                journal = Path(host.host.settings.journal)
                kept = b"".join(file.read_bytes() for file in journal.parent.glob(f"{journal.name}*"))
            assert b"authorize" in kept
            assert not [secret for secret in server.secrets() if secret.encode() in kept]


def test_plain_code_logs_in_too(real_cli: Path, scripted_model: ScriptedModel) -> None:
    with serve_oauth_mcp() as server:
        servers: Any = {"ledger": HttpServer(url=server.url)}
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
