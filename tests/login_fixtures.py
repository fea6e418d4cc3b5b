"""Places where somebody can log in, for tests; a module that needs them has `pytest_plugins = ["login_fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from claude_login_server import ClaudeLogins, serve_claude_logins
from oauth_mcp_server import OAuthServer, serve_oauth_mcp


@pytest.fixture
def oauth_server() -> Iterator[OAuthServer]:
    """An MCP server that needs a login."""
    with serve_oauth_mcp() as server:
        yield server


@pytest.fixture
def claude_logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaudeLogins]:
    """A stand-in for the login of Claude."""
    with serve_claude_logins(tmp_path_factory.mktemp("logins")) as logins:
        yield logins
