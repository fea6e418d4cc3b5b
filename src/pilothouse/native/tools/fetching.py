"""`WebFetch`: pages of the web.

Owns what may be reached (nothing private, nothing on this machine), the limits, redirects, and a small cache. Wraps
httpx2, which the `native` extra brings.
"""

from __future__ import annotations

import http
import ipaddress
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import anyio
import msgspec
from anyio import to_thread

from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import Builtin, ToolFault, schema, text
from pilothouse.native.tools.pages import page_text

if TYPE_CHECKING:
    import httpx2

MOST_BYTES = 10_000_000
MOST_SECONDS = 60.0
MOST_SHOWN = 100_000
"""Characters of a page in one answer."""
MOST_REDIRECTS = 10
LONGEST_ADDRESS = 2000
FRESH_FOR = 900.0
"""Seconds for which a page is not fetched again."""
MOST_KEPT = 20
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What can be shown as text.
TEXTS = (
    "text/",
    "application/json",
    "application/xml",
    "application/xhtml",
    "application/javascript",
    "application/yaml",
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Not public, whatever the version of Python knows of them.
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "fec0::/10", "3fff::/20", "5f00::/16")))


class Page(msgspec.Struct, frozen=True):
    """A page as it was fetched."""

    address: str
    status: int
    size: int
    text: str
    kept_at: float


class Elsewhere(Exception):  # noqa: N818 - an answer, not a failure
    """A redirect to another host; the message is the address."""


async def _fetch(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    began = time.monotonic()
    given = str(tool_input["url"])
    address = _checked(given, workplace)
    page = workplace.pages.get(address)
    if not isinstance(page, Page) or began - page.kept_at > FRESH_FOR:
        try:
            with anyio.fail_after(MOST_SECONDS):
                page = await _load(address, workplace)
        except TimeoutError as error:
            raise ToolFault(f"{given} did not answer within {MOST_SECONDS:g} s") from error
        except Elsewhere as other:
            told = (
                f"{given} redirects to another host: {other}\nCall WebFetch again with that address, if it is wanted."
            )
            return ToolOutcome(told, result={"url": given, "result": told})
        while len(workplace.pages) >= MOST_KEPT:
            workplace.pages.pop(next(iter(workplace.pages)))
        workplace.pages[address] = page
    start = max(0, int(tool_input.get("offset") or 0))
    shown = page.text[start : start + MOST_SHOWN]
    if workplace.answer is not None:
        shown = await workplace.answer(str(tool_input["prompt"]), shown)
    if start + MOST_SHOWN < len(page.text):
        shown += f"\n\n[The page goes on: {len(page.text)} characters. Call again with offset {start + MOST_SHOWN}.]"
    told = {"bytes": page.size, "code": page.status, "codeText": http.HTTPStatus(page.status).phrase, "result": shown}
    told |= {"durationMs": round((time.monotonic() - began) * 1000), "url": given}
    return ToolOutcome(shown or "(The page has no text.)", result=told)


def _checked(given: str, workplace: Workplace) -> str:
    """The address to ask for: https, unless its host is one that may be private."""
    try:
        parts = urlsplit(given.strip())
        port = parts.port
    except ValueError as error:
        raise ToolFault(f"This is no address: {error}") from error
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None or len(given) > LONGEST_ADDRESS:
        raise ToolFault(
            f"Only http and https addresses can be fetched, without a user and up to {LONGEST_ADDRESS} characters."
        )
    if not _own(host, port, workplace):
        if "." not in host and ":" not in host:
            raise ToolFault(f"{host} is not a public host. For a server on this machine or network, use a command.")
        if parts.scheme == "http":
            netloc = parts.netloc.removesuffix(":80")
            parts = SplitResult("https", netloc, parts.path, parts.query, "")
    return urlunsplit(parts._replace(path=parts.path or "/", fragment=""))


def _own(host: str, port: int | None, workplace: Workplace) -> bool:
    return host in workplace.private_hosts or f"{host}:{port}" in workplace.private_hosts


async def _load(address: str, workplace: Workplace) -> Page:
    try:
        import httpx2
    except ModuleNotFoundError as error:
        raise ToolFault("WebFetch needs httpx2; install it with: pip install 'pilothouse[native]'") from error

    def client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=MOST_SECONDS)

    first = urlsplit(address).hostname or ""
    # In a thread: it reads the certificates of the system.
    async with await to_thread.run_sync(client) as session:
        for _ in range(MOST_REDIRECTS):
            try:
                found = await _once(session, address, workplace)
            except httpx2.HTTPError as error:
                raise ToolFault(f"{address} cannot be fetched: {error or type(error).__name__}") from error
            if isinstance(found, Page):
                return found
            target = urljoin(address, found)
            if _bare(urlsplit(target).hostname or "") != _bare(first):
                raise Elsewhere(target)
            address = _checked(target, workplace)
    raise ToolFault(f"{address} redirects more than {MOST_REDIRECTS} times")


def _bare(host: str) -> str:
    return host.rstrip(".").removeprefix("www.")


async def _once(session: httpx2.AsyncClient, address: str, workplace: Workplace) -> Page | str:
    """Ask once: the page, or where it redirects to."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    number = await _public_address(host, parts.port or (443 if parts.scheme == "https" else 80), workplace)
    # The address that was checked is the one that is used: the name could mean another one a moment later.
    place = f"[{number}]" if ":" in number else number
    pinned = urlunsplit(parts._replace(netloc=f"{place}:{parts.port}" if parts.port else place))
    headers = {"Host": parts.netloc, "Accept": "text/html, text/*;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"}
    headers["User-Agent"] = "pilothouse"
    request = session.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
    response = await session.send(request, stream=True)
    try:
        if response.status_code in REDIRECTS and "location" in response.headers:
            return response.headers["location"]
        if response.status_code >= 400:
            raise ToolFault(f"{address} answered with HTTP {response.status_code}")
        kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        if not kind.startswith(TEXTS) and not kind.endswith(("+json", "+xml")):
            raise ToolFault(f"{address} is of type {kind}, which cannot be shown as text")
        data = bytearray()
        # Cancelling ends the streams inside one another in their order; leaving the loop would leave them to the
        # garbage collector.
        with anyio.CancelScope() as reading:
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MOST_BYTES:
                    reading.cancel()
        if len(data) > MOST_BYTES:
            raise ToolFault(f"{address} is larger than {MOST_BYTES} bytes")
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
    shown = await to_thread.run_sync(_as_text, bytes(data), response.charset_encoding, kind)
    return Page(address, response.status_code, len(data), shown, time.monotonic())


def _as_text(data: bytes, encoding: str | None, kind: str) -> str:
    try:
        shown = data.decode(encoding or "utf-8", "replace")
    except LookupError:
        shown = data.decode("utf-8", "replace")
    return page_text(shown) if "html" in kind else shown


async def _public_address(host: str, port: int, workplace: Workplace) -> str:
    """The number of a host.

    Raises:
        ToolFault: there is no such host, or one of its numbers is not a public one.
    """
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolFault(f"There is no host {host}") from error
    numbers = [str(each[4][0]).partition("%")[0] for each in found]
    if not _own(host, port, workplace):
        for number in numbers:
            if not is_public(number):
                raise ToolFault(
                    f"{host} is {number}, which is not a public address: WebFetch reaches neither private networks "
                    "nor this machine"
                )
    if not numbers:
        raise ToolFault(f"There is no host {host}")
    return numbers[0]


def is_public(number: str) -> bool:
    """Whether an IP address is one of the public internet; what is wrapped in another kind of address counts too."""
    address = ipaddress.ip_address(number)
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(each is not None and not is_public(str(each)) for each in inner):
            return False
        if address.ipv4_mapped is not None:
            return True
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


WEB_FETCH = Builtin(
    "WebFetch",
    "Fetches a page of the web as text, and answers `prompt` about it where a model is at hand for that.\n\n"
    "- Only public hosts; http becomes https. A redirect to another host is told, not followed.\n"
    f"- A page is kept for {FRESH_FOR / 60:g} minutes.",
    schema(
        {
            "url": text("The address of the page", format="uri"),
            "prompt": text("What to find out about the page"),
            "offset": {"type": "integer", "minimum": 0, "description": "The character of the text to begin with"},
        },
        "url",
        "prompt",
    ),
    _fetch,
    read_only=True,
)
