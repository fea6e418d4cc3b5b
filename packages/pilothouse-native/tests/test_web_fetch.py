"""WebFetch: what may be reached, the limits, redirects, and pages as text."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from pilothouse_native.tools import BUILTIN_TOOLS, ToolOutput, Workplace, web_fetch
from pilothouse_native.tools.web_fetch import html_to_text, is_public

pytestmark = pytest.mark.anyio

PAGE = (
    "<html><head><title>T</title><script>var x = '<p>no</p>'</script><style>p {}</style></head><body><h2>Head</h2>"
    "<p>One &amp; <a href='/two'>two</a><br>three</p><ul><li>a<li>b</ul><!-- <p>no</p> --><p>4 < 5</p></body></html>"
)


# By path: type, content, status, and where a redirect leads.
SITE: dict[str, tuple[str, bytes, int, str]] = {
    "/plain": ("text/plain; charset=latin-1", b"caf\xe9", 200, ""),
    "/picture": ("image/png", b"x", 200, ""),
    "/long": ("text/plain", b"x" * 250_000, 200, ""),
    "/huge": ("text/plain", b"x" * 2_000_000, 200, ""),
    "/missing": ("text/html", b"", 404, ""),
    "/near": ("text/html", b"", 302, "/plain"),
    "/far": ("text/html", b"", 301, "http://localhost:{port}/plain"),
    "/inside": ("text/html", b"", 301, "http://169.254.169.254/latest/meta-data"),
    "/round": ("text/html", b"", 307, "/round"),
    "/odd": ("text/html", b"", 302, "file:///etc/passwd"),
}
# How many times a page is compressed.
PACKED = {"/packed": 1, "/packed-twice": 2}
SITE["/packed"] = ("text/plain", gzip.compress(b"small"), 200, "")
SITE["/packed-twice"] = ("text/plain", gzip.compress(gzip.compress(bytes(60_000_000))), 200, "")


class Answers(BaseHTTPRequestHandler):
    """A small site."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        home = ("text/html; charset=utf-8", PAGE.encode(), 200, "")
        kind, body, status, target = SITE.get(self.path, home)
        more = {"Location": target.format(port=self.connection.getsockname()[1])} if target else {}
        if self.path in PACKED:
            more["Content-Encoding"] = ", ".join(["gzip"] * PACKED[self.path])
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the base class
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def here(tmp_path: Path, port: int) -> Workplace:
    return Workplace(tmp_path, env={}, private_hosts=frozenset({f"127.0.0.1:{port}"}))


async def fetch(here: Workplace, url: str, **more: Any) -> ToolOutput:
    return await BUILTIN_TOOLS["WebFetch"].run({"url": url, "prompt": "p", **more}, here)


@pytest.mark.requirement("E83")
async def test_pages(here: Workplace, port: int) -> None:
    site = f"http://127.0.0.1:{port}"
    outcome = await fetch(here, f"{site}/#part")
    assert outcome.content == "T\n\n## Head\n\nOne & [two](/two)\nthree\n\n- a\n- b\n\n4 < 5"
    assert (outcome.result["code"], outcome.result["codeText"]) == (200, "OK")
    assert (await fetch(here, f"{site}/plain")).content == "café"
    assert (await fetch(here, f"{site}/near")).content == "café"
    before = len(Answers.asked)
    assert (await fetch(here, f"{site}/plain")).content == "café"
    assert len(Answers.asked) == before
    for path in ("picture", "missing", "round"):
        assert (await fetch(here, f"{site}/{path}")).is_error
    far = await fetch(here, f"{site}/far")
    assert f"http://localhost:{port}/plain" in str(far.content)
    assert not far.is_error
    inside = await fetch(here, f"{site}/inside")
    assert "169.254.169.254" in str(inside.content)
    assert "redirects to another host" in str(inside.content)
    assert (await fetch(here, f"{site}/odd")).content != "café"


async def test_limits(here: Workplace, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    site = f"http://127.0.0.1:{port}"
    first = await fetch(here, f"{site}/long")
    assert "offset 100000" in str(first.content)
    last = await fetch(here, f"{site}/long", offset=249_990)
    assert last.content == "x" * 10
    monkeypatch.setattr(web_fetch, "MAX_BYTES", 1_000_000)
    assert "larger" in str((await fetch(here, f"{site}/huge")).content)
    monkeypatch.setattr(web_fetch, "MAX_CACHED_PAGES", 1)
    await fetch(here, f"{site}/plain")
    assert len(here.page_cache) == 1


async def test_page_that_is_compressed_twice_fills_no_memory(here: Workplace, port: int) -> None:
    assert (await fetch(here, f"http://127.0.0.1:{port}/packed")).content == "small"
    tracemalloc.start()
    try:
        found = await fetch(here, f"http://127.0.0.1:{port}/packed-twice")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "compressed more than once" in str(found.content)
    assert most < 5_000_000


async def test_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_fetch, "MAX_SECONDS", 0.3)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        here = Workplace(tmp_path, env={}, private_hosts=frozenset({"127.0.0.1"}))
        assert "did not answer" in str((await fetch(here, f"http://127.0.0.1:{port}/")).content)
    outcome = await fetch(here, f"http://127.0.0.1:{port}/")
    assert outcome.is_error


async def test_question_is_answered_by_the_model(here: Workplace, port: int) -> None:
    async def answer(prompt: str, text: str) -> str:
        return f"{prompt}: {text}"

    here.ask_model = answer
    assert (await fetch(here, f"http://127.0.0.1:{port}/plain", prompt="Which?")).content == "Which?: café"


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/",
        "http://localhost./",
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://0.0.0.0/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://224.0.0.1/",
        "http://intranet/",
        "http://user:pw@example.com/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "nonsense",
        "http://[::1",
        "http://a.b:99999/",
        "http://" + "a" * 3000 + ".com/",
        "http:///x",
        "http://a..b/",
    ],
)
async def test_what_is_not_public_is_refused_before_anything_is_sent(tmp_path: Path, url: str) -> None:
    outcome = await fetch(Workplace(tmp_path, env={}), url)
    assert outcome.is_error


async def test_name_with_a_private_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_args: Any, **_more: Any) -> list[Any]:
        return [(2, 1, 6, "", ("8.8.8.8", 443)), (2, 1, 6, "", ("10.1.2.3", 443))]

    monkeypatch.setattr(web_fetch.anyio, "getaddrinfo", found)
    outcome = await fetch(Workplace(tmp_path, env={}), "https://rebind.example.com/")
    assert "10.1.2.3" in str(outcome.content)


PUBLIC = """1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1
169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 198.17.255.255 198.20.0.0 203.0.112.1
223.255.255.255 2001:4860:4860::8888 2606:4700::1111 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::808:808"""
# The first and the last address of each range in the IANA registries of special-purpose addresses that is not globally
# reachable, or reaches hosts of another kind: https://www.iana.org/assignments/iana-ipv4-special-registry and ipv6-.
SPECIAL = """0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.0 127.255.255.255
169.254.0.0 169.254.169.254 169.254.255.255 172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.7 192.0.0.8 192.0.0.9
192.0.0.10 192.0.0.170 192.0.0.171 192.0.0.192 192.0.0.255 192.0.2.0 192.0.2.255 192.31.196.0 192.31.196.255
192.52.193.0 192.52.193.255 192.88.99.0 192.88.99.1 192.88.99.2 192.88.99.255 192.168.0.0 192.168.255.255
192.175.48.0 192.175.48.255 198.18.0.0 198.19.255.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255
224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255
:: ::1 ::2 ::7f00:1 ::808:808 ::ffff:0.0.0.0 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:192.0.0.192 ::ffff:255.255.255.255
::ffff:0:808:808 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b::a9fe:a9fe 64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:ffff:ffff
100:: 100::ffff:ffff:ffff:ffff 100:0:0:1:: 100:0:0:1:ffff:ffff:ffff:ffff 2001:: 2001:0:808:808:0:0:f7f7:f7f7
2001:0:7f00:1:: 2001:1::1 2001:1::2 2001:1::3 2001:2:: 2001:2:0:ffff:ffff:ffff:ffff:ffff 2001:3:: 2001:4:112::
2001:10:: 2001:1f:ffff:ffff:ffff:ffff:ffff:ffff 2001:20:: 2001:2f:ffff:ffff:ffff:ffff:ffff:ffff 2001:30::
2001:3f:ffff:ffff:ffff:ffff:ffff:ffff 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff 2001:db8::
2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 2002:808:808::1 2002:a00:1:: 2002:7f00:1:: 2002:c058:6301:: 2002:c0a8:101::
2620:4f:8000:: 2620:4f:8000:ffff:ffff:ffff:ffff:ffff 3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff 4000:: 5f00::
5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff fc00:: fd00::1 fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff fe80::
fe80::1%1 febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff fec0:: feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ff02::1 ff0e::1"""


def test_public_addresses() -> None:
    assert [number for number in PUBLIC.split() if not is_public(number)] == []
    assert [number for number in SPECIAL.split() if is_public(number)] == []


def test_hostile_pages_take_no_time() -> None:
    began = time.process_time()
    for piece in ("<a ", "<!--", "<script>", "<a href=' ", "</", "<", "&", "<p>", "&#", "<script></script>", "<a>"):
        html_to_text(piece * 50_000)
    assert time.process_time() - began < 30
    assert html_to_text("a<b") == "a"
    assert html_to_text("1 < 2") == "1 < 2"
    assert html_to_text('<a href="javascript:x">a</a><table><tr><td>1<td>2</td></tr></table>') == "a\n\n1 2 |"
