"""An MCP server over HTTP that wants a login by OAuth, on a free port of loopback, and a browser that follows its page.

Server and OAuth are those of the official `mcp` package. Whoever opens the page of a login agrees at once.
"""

from __future__ import annotations

import http.client
import secrets
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

SCOPE = "ledger"
LIMIT = 20.0


class Logins(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The logins of a server, in memory.

    Attributes:
        refuses: every code that comes back, from now on.
        codes, tokens: all that were given out.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.codes: list[str] = []
        self.tokens: list[str] = []
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._access: dict[str, AccessToken] = {}
        self._refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self._clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_urlsafe(24)
        self.codes.append(code)
        self._codes[code] = AuthorizationCode(
            code=code,
            client_id=str(client.client_id),
            scopes=params.scopes or [SCOPE],
            expires_at=time.time() + 60,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return None if self.refuses else self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._make_token(str(client.client_id), authorization_code.scopes, authorization_code.resource)

    def _make_token(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.tokens += [access, refresh]
        expires = int(time.time()) + 3600
        self._access[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=expires, resource=resource
        )
        self._refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes))

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str], **_: Any
    ) -> OAuthToken:
        raise TokenError("invalid_grant")

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self._access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self._access.pop(token.token, None)
        self._refresh.pop(token.token, None)


class OAuthServer:
    """A server that runs; `url` is for `ph.HttpServer`."""

    def __init__(self, origin: str, logins: Logins) -> None:
        self.url = f"{origin}/mcp"
        self.logins = logins

    def secrets(self) -> list[str]:
        """Every code and token that was given out."""
        return [*self.logins.codes, *self.logins.tokens]


@contextmanager
def serve_oauth_mcp() -> Generator[OAuthServer]:
    """Run a server with one tool, `balance`, for which a login is needed."""
    logins, servers = Logins(), list[uvicorn.Server]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def run() -> None:
            # Made here: its locks belong to the event loop of this thread, not to that of the test, which may be trio.
            application = make_ledger(origin, logins).streamable_http_app()
            config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1)
            servers.append(uvicorn.Server(config))
            servers[0].run(sockets=[listener])

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield OAuthServer(origin, logins)
        finally:
            servers[0].should_exit = True
            thread.join(LIMIT)


def make_ledger(origin: str, logins: Logins) -> MCPServer[Any]:
    settings = AuthSettings(
        issuer_url=AnyHttpUrl(origin),
        resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
        required_scopes=[SCOPE],
        validate_token_resource=True,
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=[SCOPE], default_scopes=[SCOPE]
        ),
        revocation_options=RevocationOptions(enabled=True),
    )
    ledger: MCPServer[Any] = MCPServer("ledger", auth_server_provider=logins, auth=settings)

    @ledger.tool()
    def balance(account: str) -> str:
        """The balance of an account."""
        return f"{account}: 7"

    return ledger


def open_page(url: str) -> str:
    """Open the page of a login, as a browser does, and agree; return the address that it is sent on to."""
    return _get(url)


def follow(callback_url: str) -> None:
    """Open the address that a browser is sent on to: somebody listens there."""
    _get(callback_url)


def deny(url: str) -> str:
    """Return the address that a browser is sent on to by somebody who does not agree."""
    query = parse_qs(urlsplit(url).query)
    return construct_redirect_uri(query["redirect_uri"][0], error="access_denied", state=query["state"][0])


def _get(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        response = connection.getresponse()
        response.read()
        return response.headers.get("location", "")
    finally:
        connection.close()
