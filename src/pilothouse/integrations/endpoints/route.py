"""The route of an endpoint, which refuses other methods itself. Apart, because Starlette is the extra `[server]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


class EndpointRoute(Route):
    """A route with one method.

    Args:
        path: its path.
        endpoint: answers a request.
        method: the method; "" for none, so that it gets what no other route of the application takes.
        refuse: answers a request with another method than the allowed ones.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        method: str,
        refuse: Callable[[Request, Collection[str]], Response],
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self._allowed = sorted(self.methods or ()) if method else []
        self._refuse = refuse

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Route`."""
        if scope["method"] in self._allowed:
            await super().handle(scope, receive, send)
        else:
            await self._refuse(Request(scope), self._allowed)(scope, receive, send)
