"""An HTTP server in a thread that keeps what it is asked, and answers what a test says, piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Upstream:
    """Stands for the API.

    Attributes:
        status, headers: of the answers.
        pieces: the body; a function is called in its place, for what it does.
        requests: method, path, headers (names in lower case) and body of each request.
        before_head: called before an answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.headers: dict[str, str] = {"content-type": "text/event-stream"}
        self.pieces: list[bytes | Callable[[], object]] = []
        self.before_head: Callable[[], object] = bool
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []


@contextmanager
def serve_upstream() -> Generator[Upstream]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            upstream.requests.append((self.command, self.path, headers, body))
            upstream.before_head()
            self.send_response(upstream.status)
            for name, value in upstream.headers.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in upstream.pieces if self.command != "HEAD" else ():
                if isinstance(piece, bytes):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                elif piece() == "cut":
                    self.close_connection = True
                    return
            if self.command != "HEAD":
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_HEAD = do_POST = answer  # noqa: N815 - names of http.server

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - the name of http.server

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    upstream = Upstream(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield upstream
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
