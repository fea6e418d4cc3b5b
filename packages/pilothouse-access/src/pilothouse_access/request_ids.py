"""An id for each request, in the headers of its response and in the log."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_KEY: Final = "pilothouse.request_id"
"""Key in the ASGI scope of a request: its id."""
REQUEST_ID_HEADERS: Final = (b"request-id", b"x-request-id")
"""Where clients of Anthropic and of OpenAI look for it."""


class RequestIds:
    """ASGI middleware that gives each request an id, unless one before it has, and names it in the response.

    Args:
        app: the application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or REQUEST_ID_KEY in scope:
            await self._app(scope, receive, send)
            return
        request_id = scope[REQUEST_ID_KEY] = f"req_{secrets.token_hex(12)}"
        named = [(name, request_id.encode()) for name in REQUEST_ID_HEADERS]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *named]}
            await send(message)

        await self._app(scope, receive, send_named)
