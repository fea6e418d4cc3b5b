"""The console: the pages that a host serves to browsers, and what these pages may load.

The files lie in `static`; `static/vendor/LICENSES.json` lists those of other projects, with digests and licences. A
page gets its token from the fragment of its address, which browsers do not send, so the files need no token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC_PATH = "/static/"
"""Start of the paths of the files."""
_DIRECTORY = Path(__file__).with_name("static")
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # No inline script and style, no other host, no frame: what a model writes can neither run nor call out.
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def is_console_path(path: str) -> bool:
    """Return whether a path is one of the console's files."""
    return path == "/" or path.startswith(STATIC_PATH)


def make_console_routes() -> list[Route]:
    """Build the routes of the console's files. Blocking: reads the files."""
    paths = [path for path in sorted(_DIRECTORY.rglob("*")) if path.suffix in _MEDIA_TYPES]
    routes = [_make_route(f"{STATIC_PATH}{path.relative_to(_DIRECTORY).as_posix()}", path) for path in paths]
    return [_make_route("/", _DIRECTORY / "index.html"), *routes]


def _make_route(address: str, path: Path) -> Route:
    return Route(address, _make_endpoint(path.read_bytes(), _MEDIA_TYPES[path.suffix]), methods=["GET"])


def _make_endpoint(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "content-type": media_type, "etag": tag}

    async def respond(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return respond
