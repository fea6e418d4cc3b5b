"""Where a host is, and that a connection to it is gone. Needs no WebSocket.

Owns how an address is read, and which addresses are on this machine. Must not know what is done there.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Self
from urllib.parse import urlsplit

from msgspec import Struct

from pilothouse.errors import UsageError

PATH: Final = "/v1/wire"
"""Where a host has the link, when the URL has no path."""


class ConnectionLostError(Exception):
    """The connection ended: the socket failed, or either side closed it."""


class Address(Struct, frozen=True):
    """Where a host is.

    Args:
        url: with its path; holds no secret.
        is_secure: what is sent is encrypted.
        host: name or number.
        port: of TCP.
    """

    url: str
    is_secure: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """Read a URL, `ws://host:port` or `wss://host:port`, with or without a path.

        Raises:
            UsageError: it is none, or has a name, a password, a query or a fragment.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        host = parts.hostname
        if parts.scheme not in ("ws", "wss") or not host:
            raise UsageError("the address of a host is ws://HOST:PORT or wss://HOST:PORT")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise UsageError("the address of a host has no user, query or fragment; give the token as token=")
        path = PATH if parts.path in ("", "/") else parts.path
        is_secure = parts.scheme == "wss"
        return cls(f"{parts.scheme}://{parts.netloc}{path}", is_secure, host, port or (443 if is_secure else 80))

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine; a name other than localhost may be anywhere."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
