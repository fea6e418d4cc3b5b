"""The address of a host, and the error for a lost connection. Needs no WebSocket.

Owns how an address is parsed, and which addresses are on this machine. Must not know what the connection is for.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Self
from urllib.parse import urlsplit

from msgspec import Struct

from pilothouse.errors import UsageError

DEFAULT_PATH: Final = "/v1/wire"
"""Path of the WebSocket endpoint, when the URL has none."""
SCHEMES: Final = {"http": "ws", "https": "wss"}
"""Schemes of the address in a browser, and those of the address here."""


class ConnectionLostError(Exception):
    """The connection ended: the socket failed, or either side closed it."""


class HostAddress(Struct, frozen=True):
    """The address of a host.

    Args:
        url: with its path; holds no secret.
        is_secure: whether the connection is encrypted.
        host: name or IP address.
        port: TCP port.
    """

    url: str
    is_secure: bool
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL, `ws://host:port` or `wss://host:port`, with or without a path.

        Raises:
            UsageError: the URL is invalid, or has a user name, a password, a query or a fragment.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except (AttributeError, ValueError):  # not text, or not a URL
            parts, port = urlsplit(""), None
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            # Only the scheme is repeated: the link of a console has its token in it.
            advice = f"; put {SCHEMES[parts.scheme]} in place of {parts.scheme}" if parts.scheme in SCHEMES else ""
            raise UsageError(f"the address of a host is ws://HOST:PORT or wss://HOST:PORT{advice}")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise UsageError("the address of a host has no user, query or fragment; give the token as token=")
        path = DEFAULT_PATH if parts.path in ("", "/") else parts.path
        is_secure = parts.scheme == "wss"
        default = 443 if is_secure else 80
        return cls(f"{parts.scheme}://{parts.netloc}{path}", is_secure, parts.hostname, port or default)

    @property
    def is_loopback(self) -> bool:
        """Whether the address is on this machine."""
        return is_loopback(self.host)


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address; a name other than localhost may be anywhere."""
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
