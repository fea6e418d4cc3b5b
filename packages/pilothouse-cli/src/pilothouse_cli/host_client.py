"""The REST API of a host, over httpx2: what its addresses mean, and how it refuses."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from pilothouse.errors import UsageError
from pilothouse_remote.messages import DEFAULT_PATH

CALL_SECONDS = 30.0
"""Seconds for a request other than a stream."""


class HostError(msgspec.Struct):
    """The body of a refusal."""

    error: dict[str, Any] = {}


class HostRefusedError(UsageError):
    """The host refuses a request.

    Args:
        message: why.
        code: the reason, for programs, such as "unknown_session"; None if what answers is no host.
    """

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


def client_settings(url: str, token: str) -> dict[str, Any]:
    """Make the arguments of an `httpx2.Client` or `AsyncClient`; the token goes to no proxy."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
        raise UsageError(f"--remote: expected an address such as http://127.0.0.1:8750, got {url!r}")
    base = parts._replace(
        scheme=parts.scheme.replace("ws", "http"), path=parts.path.rstrip("/").removesuffix(DEFAULT_PATH)
    )
    headers = {"Authorization": f"Bearer {token}"}
    return {"base_url": base.geturl(), "headers": headers, "timeout": CALL_SECONDS, "trust_env": False}


def explain_silence(url: object, error: httpx2.TransportError) -> str:
    """Return the text for an address at which no host answers."""
    return f"no host answers at {url} ({error}); check the address, and that the host runs"


def read_body(response: httpx2.Response) -> Any:
    """Return the decoded body of a response; raises HostRefusedError if the host refuses."""
    if response.is_success:
        return response.json() if response.content else None
    try:
        error = msgspec.json.decode(response.content, type=HostError).error
    except msgspec.DecodeError:
        error = {}
    raise HostRefusedError(f"--remote: {error.get('message') or f'HTTP {response.status_code}'}", error.get("code"))
