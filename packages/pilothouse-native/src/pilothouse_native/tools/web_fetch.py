"""`WebFetch`: web pages as plain text.

Owns which hosts may be reached (public ones only), limits of size and time, redirects, a small cache, and the
conversion of HTML to text.
"""

from __future__ import annotations

import html
import http
import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import anyio
from anyio import to_thread

from pilothouse_native.tools.base import (
    BuiltinSpec,
    BuiltinToolError,
    ToolOutput,
    Workplace,
    make_property,
    make_schema,
)

if TYPE_CHECKING:
    import httpx2


MAX_BYTES = 10_000_000
MAX_SECONDS = 60.0
MAX_SHOWN_CHARS = 100_000
"""Characters of a page in one output."""
MAX_REDIRECTS = 10
MAX_ADDRESS_CHARS = 2000
CACHE_SECONDS = 900.0
"""Seconds for which a page is cached."""
MAX_CACHED_PAGES = 20
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
# Media types that can be shown as text.
TEXT_TYPES = ("text/", *(f"application/{kind}" for kind in ("json", "xml", "xhtml", "javascript", "yaml")))
# The IANA registries of special-purpose addresses, not `is_global`: it differs between versions of Python.
_SPECIAL_IPV4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 "
    "203.0.113.0/24 224.0.0.0/3"
)
_SPECIAL_IPV6 = "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20"
_SPECIAL = tuple(map(ipaddress.ip_network, f"{_SPECIAL_IPV4} {_SPECIAL_IPV6}".split()))
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class FetchedPage(NamedTuple):
    """A fetched page."""

    address: str
    status: int
    size: int
    text: str
    fetched_at: float


async def _run_web_fetch(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    began = time.monotonic()
    given = str(tool_input["url"])
    address = _check_address(given, workplace)
    page = workplace.page_cache.get(address)
    if not isinstance(page, FetchedPage) or began - page.fetched_at > CACHE_SECONDS:
        try:
            with anyio.fail_after(MAX_SECONDS):
                page = await _load_page(address, workplace)
        except TimeoutError as error:
            raise BuiltinToolError(f"{given} did not answer within {MAX_SECONDS:g} s") from error
        if isinstance(page, str):
            text = f"{given} redirects to another host: {page}\nCall WebFetch again with that address, if it is wanted."
            return ToolOutput(text, result={"url": given, "result": text})
        while len(workplace.page_cache) >= MAX_CACHED_PAGES:
            workplace.page_cache.pop(next(iter(workplace.page_cache)))
        workplace.page_cache[address] = page
    start = max(0, int(tool_input.get("offset") or 0))
    end = start + MAX_SHOWN_CHARS
    shown = page.text[start:end]
    if workplace.ask_model is not None:
        shown = await workplace.ask_model(str(tool_input["prompt"]), shown)
    if end < len(page.text):
        shown += f"\n\n[The page goes on: {len(page.text)} characters. Call again with offset {end}.]"
    result = {"bytes": page.size, "code": page.status, "codeText": http.HTTPStatus(page.status).phrase, "result": shown}
    result |= {"durationMs": round((time.monotonic() - began) * 1000), "url": given}
    return ToolOutput(shown or "(The page has no text.)", result=result)


def _check_address(given: str, workplace: Workplace) -> str:
    """Return the URL to fetch: https, unless its host may be private."""
    try:
        parts = urlsplit(given.strip())
        port = parts.port
    except ValueError as error:
        raise BuiltinToolError(f"This is not an address: {error}") from error
    host = (parts.hostname or "").rstrip(".")
    if (
        parts.scheme not in {"http", "https"}
        or not host
        or parts.username is not None
        or len(given) > MAX_ADDRESS_CHARS
    ):
        raise BuiltinToolError(
            f"Only http and https addresses can be fetched, without a user and up to {MAX_ADDRESS_CHARS} characters."
        )
    if not _is_private_allowed(host, port, workplace):
        if "." not in host and ":" not in host:
            raise BuiltinToolError(
                f"{host} is not a public host. For a server on this machine or network, use a command."
            )
        if parts.scheme == "http":
            netloc = parts.netloc.removesuffix(":80")
            parts = SplitResult("https", netloc, parts.path, parts.query, "")
    return urlunsplit(parts._replace(path=parts.path or "/", fragment=""))


def _is_private_allowed(host: str, port: int | None, workplace: Workplace) -> bool:
    return host in workplace.private_hosts or f"{host}:{port}" in workplace.private_hosts


async def _load_page(address: str, workplace: Workplace) -> FetchedPage | str:
    """Return the page, or the URL on another host to which it redirects."""
    import httpx2  # here, so that the tools load fast: few sessions fetch a page

    def client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=MAX_SECONDS)

    first = urlsplit(address).hostname or ""
    # In a thread: the client reads the certificates of the system.
    async with await to_thread.run_sync(client) as session:
        for _ in range(MAX_REDIRECTS):
            try:
                found = await _request_once(session, address, workplace)
            except httpx2.HTTPError as error:
                raise BuiltinToolError(f"{address} cannot be fetched: {error or type(error).__name__}") from error
            if isinstance(found, FetchedPage):
                return found
            target = urljoin(address, found)
            if _strip_www(urlsplit(target).hostname or "") != _strip_www(first):
                return target
            address = _check_address(target, workplace)
    raise BuiltinToolError(f"{address} redirects more than {MAX_REDIRECTS} times")


def _strip_www(host: str) -> str:
    return host.rstrip(".").removeprefix("www.")


async def _request_once(session: httpx2.AsyncClient, address: str, workplace: Workplace) -> FetchedPage | str:
    """Send one request; returns the page, or the target of a redirect."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    number = await _resolve_public_address(host, parts.port or (443 if parts.scheme == "https" else 80), workplace)
    # Connect to the address that was checked: the name could resolve to another one a moment later.
    place = f"[{number}]" if ":" in number else number
    pinned = urlunsplit(parts._replace(netloc=f"{place}:{parts.port}" if parts.port else place))
    headers = {"Host": parts.netloc, "Accept": "text/html, text/*;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"}
    headers["User-Agent"] = "pilothouse"
    request = session.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
    response = await session.send(request, stream=True)
    try:
        if response.status_code in REDIRECT_STATUSES and "location" in response.headers:
            return response.headers["location"]
        if response.status_code >= 400:
            raise BuiltinToolError(f"{address} answered with HTTP {response.status_code}")
        # Each encoding multiplies the size by up to a thousand, and the client decodes the inner ones without a limit.
        if "," in response.headers.get("content-encoding", ""):
            raise BuiltinToolError(f"{address} is compressed more than once")
        kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        if not kind.startswith(TEXT_TYPES) and not kind.endswith(("+json", "+xml")):
            raise BuiltinToolError(f"{address} is of type {kind}, which cannot be shown as text")
        data = bytearray()
        # Cancelling closes the nested streams in order; leaving the loop would leave them to the garbage collector.
        with anyio.CancelScope() as reading:
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    reading.cancel()
        if len(data) > MAX_BYTES:
            raise BuiltinToolError(f"{address} is larger than {MAX_BYTES} bytes")
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
    shown = await to_thread.run_sync(_to_text, bytes(data), response.charset_encoding, kind)
    return FetchedPage(address, response.status_code, len(data), shown, time.monotonic())


def _to_text(data: bytes, encoding: str | None, kind: str) -> str:
    try:
        shown = data.decode(encoding or "utf-8", "replace")
    except LookupError:
        shown = data.decode("utf-8", "replace")
    return html_to_text(shown) if "html" in kind else shown


async def _resolve_public_address(host: str, port: int, workplace: Workplace) -> str:
    """Return the IP address of a host, all of whose addresses must be public."""
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BuiltinToolError(f"There is no host {host}") from error
    numbers = [str(each[4][0]).partition("%")[0] for each in found]
    private = [] if _is_private_allowed(host, port, workplace) else [each for each in numbers if not is_public(each)]
    if private:
        raise BuiltinToolError(
            f"{host} is {private[0]}, which is not a public address: WebFetch reaches neither private networks nor "
            "this machine"
        )
    if not numbers:
        raise BuiltinToolError(f"There is no host {host}")
    return numbers[0]


def is_public(number: str) -> bool:
    """Whether an IP address is public; an IPv6 address that contains an IPv4 address is what that one is."""
    address = ipaddress.ip_address(number)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        if address not in _GLOBAL_IPV6:
            return False
    return not any(address in network for network in _SPECIAL)


WEB_FETCH = BuiltinSpec(
    "WebFetch",
    "Fetches a page of the web as text, and answers `prompt` about it where a model is at hand for that.\n\n"
    "- Only public hosts; http becomes https. A redirect to another host is reported, not followed.\n"
    f"- A page is kept for {CACHE_SECONDS / 60:g} minutes.",
    make_schema(
        {
            "url": make_property("string", "The address of the page", format="uri"),
            "prompt": make_property("string", "What to find out about the page"),
            "offset": make_property("integer", "The character of the text to begin with", minimum=0),
        },
        "url",
        "prompt",
    ),
    _run_web_fetch,
    read_only=True,
)


DROPPED_TAGS = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object"})
_BLOCK_TAGS = (
    "address article aside blockquote body dd div dl dt figure footer form header main nav ol p pre section table "
    "tbody thead tr ul"
)
# What the opening and the closing of a tag become.
TAG_TEXTS = {
    **dict.fromkeys(_BLOCK_TAGS.split(), ("\n\n", "\n\n")),
    **{f"h{level}": (f"\n\n{'#' * level} ", "\n\n") for level in range(1, 7)},
    "br": ("\n", "\n"),
    "li": ("\n- ", ""),
    "td": (" ", " | "),
    "th": (" ", " | "),
    "title": ("", "\n\n"),
}
_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9-]*)")
_LINK = re.compile(r"""\bhref\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE)
MAX_TAG_CHARS = 10_000


def html_to_text(page: str) -> str:
    """Convert an HTML page to text: headings, paragraphs, items and links; no scripts and styles."""
    # Not by html.parser: that of Python 3.11.7 takes minutes for a page of unclosed tags.
    pieces: list[str] = []
    links: list[str] = []
    lower = page.lower()
    at = 0
    while at < len(page):
        start = page.find("<", at)
        if start < 0:
            pieces.append(html.unescape(page[at:]))
            break
        pieces.append(html.unescape(page[at:start]))
        if page.startswith("<!--", start):
            at = _find_end(page, "-->", start + 4)
            continue
        name = _NAME.match(page, start + 1)
        if name is None:
            if page.startswith(("<!", "<?"), start):
                at = _find_end(page, ">", start)
            else:
                pieces.append("<")
                at = start + 1
            continue
        at = _find_end(page, ">", start)
        closing, tag = page[start + 1] == "/", name[1].lower()
        if tag in DROPPED_TAGS and not closing:
            end = lower.find(f"</{tag}", at)
            at = len(page) if end < 0 else end
            continue
        pieces.append(_format_tag(tag, page[start : min(at, start + MAX_TAG_CHARS)], links, closing=closing))
    return _collapse_blanks("".join(pieces))


def _find_end(page: str, mark: str, start: int) -> int:
    end = page.find(mark, start)
    return len(page) if end < 0 else end + len(mark)


def _format_tag(tag: str, written: str, links: list[str], *, closing: bool) -> str:
    if tag == "a":
        if closing:
            target = links.pop() if links else ""
            return f"]({target})" if target else ""
        found = _LINK.search(written)
        target = html.unescape(next(filter(None, found.groups()), "")) if found else ""
        links.append("" if target.startswith(("#", "javascript:")) else target)
        return "[" if links[-1] else ""
    return TAG_TEXTS.get(tag, ("", ""))[closing]


def _collapse_blanks(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.split("\n")]
    kept = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return "\n".join(kept).strip()
