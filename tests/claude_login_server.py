"""A stand-in for the login of Claude: the CLI reaches it through a proxy on loopback, and no other address at all.

The CLI takes no other address for its login, but a proxy (`HTTPS_PROXY`) and the certificate of whoever is behind it
(`NODE_EXTRA_CA_CERTS`), as in a company. Nothing here leaves the machine, and no code or token is a real one.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOSTS = (
    "platform.claude.com", "claude.com", "claude.ai", "api.anthropic.com", "console.anthropic.com",
    "docs.example.com",
)  # fmt: skip
EMAIL = "ann@example.com"


class ClaudeLogins(ThreadingHTTPServer):
    """The proxy, and what stands behind it.

    Attributes:
        refuses: every code, from now on.
        asked: method, host and path of each request.
        given: every code and token that was given out.
    """

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Proxy)
        self.refuses = False
        self.asked: list[str] = []
        self.given: list[str] = []
        self.ca_file = directory / "ca.pem"
        self.tls = _make_tls(directory, self.ca_file)

    def env(self) -> dict[str, str]:
        """Variables that lead the CLI here."""
        address = f"http://127.0.0.1:{self.server_address[1]}"
        names = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), address)
        return {**names, "NO_PROXY": "127.0.0.1,localhost", "NODE_EXTRA_CA_CERTS": str(self.ca_file)}

    def show_code(self, url: str) -> str:
        """Return the code that the page of a login shows, for the user to copy."""
        self.given.append(code := secrets.token_urlsafe(24))
        return f"{code}#{parse_qs(urlsplit(url).query)['state'][0]}"

    def answer(self, host: str, path: str) -> tuple[int, Any]:
        """Return status and body of the answer: a value that becomes JSON, or a page."""
        if path.startswith("/v1/oauth/token"):
            if self.refuses:
                return 400, {"error": "invalid_grant", "error_description": "Invalid 'code' in request."}
            self.given += (tokens := [secrets.token_urlsafe(24) for _ in range(2)])
            return 200, {
                "access_token": tokens[0],
                "refresh_token": tokens[1],
                "expires_in": 3600,
                "token_type": "Bearer",
                "scope": "user:profile user:inference",
                "account": {"uuid": "3f2c6a1e-0000-4000-8000-000000000001", "email_address": EMAIL},
                "organization": {"uuid": "3f2c6a1e-0000-4000-8000-000000000002", "name": "Example"},
            }
        if path.startswith("/api/oauth/profile"):
            return 200, {
                "account": {
                    "uuid": "3f2c6a1e-0000-4000-8000-000000000001",
                    "email": EMAIL,
                    "full_name": "Ann",
                    "display_name": "Ann",
                    "has_claude_max": False,
                    "has_claude_pro": True,
                },
                "organization": {
                    "uuid": "3f2c6a1e-0000-4000-8000-000000000002",
                    "name": "Example",
                    "organization_type": "claude_pro",
                    "rate_limit_tier": "default",
                },
            }
        return 404, {"error": {"type": "not_found_error", "message": "not here"}}


class _Proxy(BaseHTTPRequestHandler):
    server: ClaudeLogins  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_CONNECT(self) -> None:
        host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        tls = self.server.tls
        with suppress(OSError), tls.wrap_socket(self.connection, server_side=True) as connection:
            _Behind(connection, self.client_address, self.server, host)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the standard library
        pass


class _Behind(BaseHTTPRequestHandler):
    server: ClaudeLogins  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, connection: socket.socket, client: Any, server: ClaudeLogins, host: str) -> None:
        self._host = host
        super().__init__(connection, client, server)

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append(f"{self.command} {self._host}{self.path.partition('?')[0]}")
        status, body = self.server.answer(self._host, self.path)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if isinstance(body, bytes) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the standard library
        pass


def serve_claude_logins(directory: Path) -> AbstractContextManager[ClaudeLogins]:
    """Run the stand-in; its certificate lies in `directory`."""
    return serve_behind_proxy(ClaudeLogins(directory))


@contextmanager
def serve_behind_proxy(made: ClaudeLogins) -> Generator[ClaudeLogins]:
    """Run a stand-in for servers of the internet."""
    with made as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def _make_tls(directory: Path, ca_file: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file = directory / "key.pem"
    kinds = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(key.private_bytes(*kinds))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_file, key_file)
    return context
