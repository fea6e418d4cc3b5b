"""The login at Claude that an editor may begin: in the browser of this machine, where the editor is too."""

from __future__ import annotations

import webbrowser
from typing import Any

import anyio
import anyio.to_thread

from pilothouse.client import Agent, ClaudeLogin
from pilothouse.errors import PilothouseError, UsageError

_CONSOLE = "console"
METHODS: tuple[dict[str, Any], ...] = (
    {"id": "claude", "name": "Log in at Claude", "description": "With a subscription, in your browser"},
    {"id": _CONSOLE, "name": "Log in at the Claude Console", "description": "To pay by use, in your browser"},
)
"""What the editor offers, in the form of the protocol."""
_TEXT_BROWSERS = frozenset({"elinks", "links", "lynx", "w3m", "www-browser"})
"""Those that `webbrowser` starts where there is no other: in the terminal, so here on the protocol's own streams."""


async def log_in(agent: Agent, method: str) -> None:
    """Open the page of a login in the browser, and wait until the user has logged in.

    Args:
        agent: whose Claude Code keeps the login.
        method: the id of one of `METHODS`.

    Raises:
        UsageError: there is no such method, or this machine has no browser but for a terminal.
        LoginError, ControlTimeout: the user was refused, or did not log in within 300 s.
    """
    if method not in {each["id"] for each in METHODS}:
        raise UsageError(f"there is no method {method!r:.80}")
    async with agent.session(strict_mcp_config=True) as session:  # for the login alone: without servers
        login = await session.login("console" if method == _CONSOLE else "claude")
        failure = await _browse(login)
    if failure is not None:
        raise failure


async def _browse(login: ClaudeLogin) -> PilothouseError | None:
    """Open the page of a login, and wait for its end; return what went wrong."""
    failure: PilothouseError | None = None

    async def open_page() -> None:
        nonlocal failure
        url = login.local_url
        if not url or not await anyio.to_thread.run_sync(_open_window, url, abandon_on_cancel=True):
            failure = UsageError(
                "this machine has no browser with a window: run `pilothouse chat`, and /login, which shows the link"
            )
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_page)  # some browsers run until they are closed
        try:
            await login.wait()
        except PilothouseError as error:
            failure = error
        tasks.cancel_scope.cancel()
    return failure


def _open_window(url: str) -> bool:
    """Open a page in the user's browser, but in none of a terminal, which `webbrowser.open` may try after others."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    if isinstance(browser, webbrowser.GenericBrowser) and browser.basename in _TEXT_BROWSERS:
        return False
    return browser.open(url)
