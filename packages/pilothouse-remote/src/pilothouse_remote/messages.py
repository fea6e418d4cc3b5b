"""The address of a host, the messages of the link, and their encoding on a WebSocket.

Owns names, fields and limits. Must not know when a message may be sent, or how it is processed.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from pilothouse.errors import ProtocolError, UsageError
from pilothouse.messages.json_lines import to_plain_scalar
from pilothouse.options import PrivateFile

DEFAULT_PATH: Final = "/v1/wire"
"""Path of the WebSocket endpoint, when the URL has none."""
_SCHEMES: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
"""Schemes of the address of a host, also that in a browser, and of the WebSocket there."""


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
        """Parse a URL, `ws://host:port` or `wss://host:port`, with or without a path; `http` and `https` do as well.

        Raises:
            UsageError: the URL is invalid, or has a user name, a password, a query or a fragment.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except (AttributeError, ValueError):  # not text, or not a URL
            parts, port = urlsplit(""), None
        if parts.scheme not in _SCHEMES or not parts.hostname:
            # The address is not repeated: the link of a console has its token in it.
            raise UsageError("the address of a host is ws://HOST:PORT or wss://HOST:PORT")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise UsageError("the address of a host has no user, query or fragment; give the token as token=")
        path = DEFAULT_PATH if parts.path in ("", "/") else parts.path
        scheme = _SCHEMES[parts.scheme]
        is_secure = scheme == "wss"
        default = 443 if is_secure else 80
        return cls(f"{scheme}://{parts.netloc}{path}", is_secure, parts.hostname, port or default)

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


LINK_VERSION: Final = 1
SUBPROTOCOL: Final = "pilothouse.v1"
MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Maximum bytes of one WebSocket message."""
_OFFSET_BYTES: Final = 8


class LaunchMessage(Struct, frozen=True, omit_defaults=True):
    """How the client wants the child started; the host decides which parts are allowed.

    Args:
        argv: arguments after the executable, which the host chooses.
        files: values for private files; their content travels as base64.
        tail: arguments that stay last.
        env: variables that the user of the client set; None unsets one.
        cwd: working directory on the host; None: that of the host.
        user: account to run the child as.
        isolated: whether the child gets a HOME of its own.
        inbox: whether people at the host decide what the child asks, and not the client.
    """

    argv: tuple[str, ...]
    files: tuple[PrivateFile, ...] = ()
    tail: tuple[str, ...] = ()
    env: dict[str, str | None] = {}
    cwd: str | None = None
    user: str | int | None = None
    isolated: bool = False
    inbox: bool = False

    def __repr__(self) -> str:
        return f"Launch({self.argv!r}, cwd={self.cwd!r}, files={self.files!r}, {len(self.env)} variables)"


class _TaggedMessage(Struct, frozen=True, tag_field="op", omit_defaults=True):
    pass


class Start(_TaggedMessage, frozen=True, tag="start"):
    """Client: start a session. `client` is the id of this client, the same over all its connections."""

    version: int
    client: str
    invocation: LaunchMessage


class Attach(_TaggedMessage, frozen=True, tag="attach"):
    """Client: attach to a session. `received` is None when another client takes over; see `pilothouse_remote`."""

    version: int
    client: str
    session: str
    received: int | None = None
    take_over: bool = False


class Ready(_TaggedMessage, frozen=True, tag="ready"):
    """Host: attached.

    Args:
        session: id of the session at the host.
        received: offset at which the client continues with the input.
        begin: offset of the first byte of output that will come.
        end: amount of output at this moment.
        input_ended: whether the input was ended before, at `received`.
        conversation: the CLI's own id of the conversation, if the host knows it.
    """

    session: str
    received: int
    begin: int = 0
    end: int = 0
    input_ended: bool = False
    conversation: str | None = None


class Refused(_TaggedMessage, frozen=True, tag="refused"):
    """Host: refused; the connection is then closed.

    `code`: "unknown_session", "forbidden", "bad_request", "attached_elsewhere", "pruned", "version"; "limit" and
    "draining", which may be temporary; "start_failed": the child could not be started.
    """

    code: str
    message: str


class Ack(_TaggedMessage, frozen=True, tag="ack"):
    """Either: `received` so far. `keep_from` (client): offset at which a client that takes over must begin."""

    received: int
    keep_from: int | None = None


class EndInput(_TaggedMessage, frozen=True, tag="end_input"):
    """Client: the input ends at this offset."""

    at: int


class Ended(_TaggedMessage, frozen=True, tag="ended"):
    """Host: the output ends at this offset; the rest as in `transports.ExitInfo`."""

    at: int
    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""
    detail: str = ""


class Close(_TaggedMessage, frozen=True, tag="close"):
    """Client: end the child and forget the session."""


class Detach(_TaggedMessage, frozen=True, tag="detach"):
    """Client: leave; the session continues."""


class Ping(_TaggedMessage, frozen=True, tag="ping"):
    """Either: request a pong. `t` comes back."""

    t: float


class Pong(_TaggedMessage, frozen=True, tag="pong"):
    """Either: response to a ping."""

    t: float


class StderrLine(_TaggedMessage, frozen=True, tag="stderr"):
    """Host: a line of the child's standard error; not numbered, best effort."""

    line: str


class LinkError(_TaggedMessage, frozen=True, tag="error"):
    """Either: an error; the connection is then closed. Code "replaced": another connection took its place."""

    code: str
    message: str


class DataChunk(Struct, frozen=True):
    """A chunk of the stream. `offset` is that of its first byte."""

    offset: int
    data: bytes


LinkMessage = (
    Start | Attach | Ready | Refused | Ack | EndInput | Ended | Close | Detach | Ping | Pong | StderrLine | LinkError
)
LinkItem = LinkMessage | DataChunk

_decoder: Final = msgspec.json.Decoder(LinkMessage)
_encoder: Final = msgspec.json.Encoder(enc_hook=to_plain_scalar)


def encode_item(item: LinkItem) -> str | bytes:
    """Encode a message for the WebSocket: text for a `LinkMessage`, bytes for `DataChunk`.

    Raises:
        UsageError: it holds text that is not valid Unicode, or is longer than `MAX_MESSAGE_BYTES`.
    """
    if isinstance(item, DataChunk):
        return item.offset.to_bytes(_OFFSET_BYTES, "big") + item.data
    try:
        text = _encoder.encode(item)
    except UnicodeEncodeError as error:
        raise UsageError(f"{type(item).__name__}: text that cannot be sent: {error.reason}") from None
    if len(text) > MAX_MESSAGE_BYTES:
        raise UsageError(
            f"{type(item).__name__}: {len(text):,} bytes;"
            f" a message to or from a host has at most {MAX_MESSAGE_BYTES:,} bytes"
        )
    return text.decode()


def decode_item(message: str | bytes) -> LinkItem:
    """Decode a message of the WebSocket.

    Raises:
        ProtocolError: it is not a message of the link. The error omits its content, which may be a key.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(message):,} bytes; the link allows {MAX_MESSAGE_BYTES:,}")
    if isinstance(message, bytes):
        if len(message) <= _OFFSET_BYTES:
            raise ProtocolError("a binary message without data")
        return DataChunk(int.from_bytes(message[:_OFFSET_BYTES], "big"), message[_OFFSET_BYTES:])
    try:
        item = _decoder.decode(message)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ProtocolError(f"the link has no such text message: {error}") from None
    for name in ("received", "keep_from", "at", "begin", "end"):
        number = getattr(item, name, None)
        if isinstance(number, int) and number < 0:
            raise ProtocolError(f"a message {type(item).__name__!r} with a negative {name!r}")
    return item
