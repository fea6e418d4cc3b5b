"""An npm registry on loopback."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Registry:
    """`packages` holds archives by name and version; `asked` the paths that were asked for."""

    def __init__(self) -> None:
        self.packages: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []

    def answer(self, path: str, url: str) -> bytes | None:
        self.asked.append(path)
        name, _, file = path.strip("/").replace("%2f", "/").replace("%2F", "/").partition("/-/")
        archives = self.packages.get(name)
        if archives is None:
            return None
        if file:
            return archives[file.removesuffix(".tgz")]
        versions = {
            version: {
                "name": name,
                "version": version,
                "dist": {
                    "tarball": f"{url}/{name}/-/{version}.tgz",
                    "integrity": "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode(),
                },
            }
            for version, data in archives.items()
        }
        return json.dumps({"name": name, "dist-tags": {"latest": list(archives)[-1]}, "versions": versions}).encode()


@contextmanager
def serve_registry(monkeypatch: pytest.MonkeyPatch) -> Generator[Registry]:
    """A registry without packages, which the npm of a test uses."""
    registry = Registry()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = registry.answer(self.path, url)
            self.send_response(200 if body is not None else 404)
            self.send_header("content-length", str(len(body or b"{}")))
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name there

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    Path.home().joinpath(".npmrc").write_text(f"registry={url}/\n")
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.lower().startswith("npm_")]:
        monkeypatch.delenv(name)
    yield registry
    server.shutdown()
    thread.join()
    server.server_close()
