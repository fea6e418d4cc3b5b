"""Logins in `pilothouse chat`: `/login` at Claude, `/mcp` at MCP servers. It shows a link, and takes what it gives.

The session is one of this process, or one of a host: both have the same methods for logins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, Protocol

import anyio

from pilothouse.errors import LoginError, PilothouseError, RemoteError, UsageError
from pilothouse.messages import InitMessage
from pilothouse_cli.screen import Style

LOGIN_COMMAND = "/login"
NEEDS_LOGIN = "needs-auth"
ACCOUNTS = ("claude", "console")
MCP_ACTIONS = ("login", "logout")


class LoginSession(Protocol):
    """What a login needs of a session."""

    async def login(self, account: Literal["claude", "console"] = "claude") -> Any:
        """Begin a login at Claude."""
        ...

    @property
    def mcp(self) -> Any:
        """The MCP servers, with `status`, `authenticate` and `clear_auth`."""
        ...


class ChatView(Protocol):
    """What a login needs of a chat."""

    @property
    def session(self) -> LoginSession:
        """The session that logs in."""
        ...

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer."""
        ...

    def print_line(self, line: str, style: Style = "") -> None:
        """Print one line."""
        ...

    async def ask(self, question: str) -> str | None:
        """Return what a person types; None at the end of input."""
        ...


async def log_in_to_claude(chat: ChatView, account: str) -> None:
    """Run `/login`."""
    if account not in ("", *ACCOUNTS):
        raise UsageError(f"/login takes {' or '.join(ACCOUNTS)}")
    _check_can_ask(chat)
    login = await chat.session.login("console" if account == "console" else "claude")
    chat.print_line("open this page and log in; it will show a code:")
    chat.print_line(login.url)
    found = await _paste(chat, "code: ", login)
    if found is None:
        await _give_up(chat, login)
    else:
        plan = f" ({found.subscription_type})" if found.subscription_type else ""
        chat.print_line(f"logged in to Claude as {found.email or 'an account without an address'}{plan}")
        if found.api_key_source:
            chat.print_line("Claude Code still uses its API key instead of this login", "warning")


async def handle_mcp(chat: ChatView, rest: str) -> None:
    """Run `/mcp`."""
    action, _, server = rest.partition(" ")
    if not rest:
        await _list_servers(chat)
    elif action not in MCP_ACTIONS or not server.strip():
        raise UsageError("/mcp lists the servers; /mcp login NAME and /mcp logout NAME change the login at one")
    elif action == "logout":
        await chat.session.mcp.clear_auth(server.strip())
        chat.print_line(f"logged out of {server.strip()}")
    else:
        await _log_in_to_server(chat, server.strip())


async def _list_servers(chat: ChatView) -> None:
    servers = await chat.session.mcp.status()
    for server in servers:
        way = f"; /mcp login {server.name}" if server.status == NEEDS_LOGIN else ""
        reason = f": {server.error}" if server.error else ""
        chat.print_line(f"  {server.name}  {server.status}{reason}{way}")
    if not servers:
        chat.print_line("no MCP servers")


async def _log_in_to_server(chat: ChatView, server: str) -> None:
    _check_can_ask(chat)
    login = await chat.session.mcp.authenticate(server)
    if login.url is not None:
        chat.print_line("open this page and log in; in a browser on another machine, the last page will not load:")
        chat.print_line(login.url)
        question = "paste the address of the last page, or wait for your browser: "
        connected = await _paste_or_wait(chat, question, login)
    else:
        connected = await login.wait()
    if connected is None:  # not earlier: giving it up ends `wait`, with an error
        await _give_up(chat, login)
    else:
        count = len(connected.tools)
        chat.print_line(f"logged in to {server}, which has {count} {'tool' if count == 1 else 'tools'}")


def _check_can_ask(chat: ChatView) -> None:
    if not chat.can_ask:
        raise UsageError("log in from a terminal, so that you can paste what the page shows")


async def _paste(chat: ChatView, question: str, login: Any) -> Any:
    """Ask until what is pasted belongs to the login; return its outcome, None if nothing was pasted."""
    while pasted := (await chat.ask(question) or "").strip():
        try:
            return await login.complete(pasted)
        except (LoginError, RemoteError) as error:
            if error.code != "wrong_callback":
                raise
            chat.print_line(str(error), "warning")
    return None


async def _give_up(chat: ChatView, login: Any) -> None:
    """Leave a login for which nothing was pasted."""
    if (cancel := getattr(login, "cancel", None)) is not None:  # of a host, which shows it until it ends
        with suppress(RemoteError):
            await cancel()
    chat.print_line("not logged in", "warning")


async def _paste_or_wait(chat: ChatView, question: str, login: Any) -> Any:
    """Return the outcome of a login that ends here or in a browser on this machine, whichever comes first."""
    outcome: list[Any] = []

    async def follow(work: Callable[[], Awaitable[Any]]) -> None:
        try:
            outcome.append(await work())
        except PilothouseError as error:
            outcome.append(error)
        racing.cancel_scope.cancel()

    async def paste() -> Any:
        return await _paste(chat, question, login)

    async with anyio.create_task_group() as racing:
        racing.start_soon(follow, login.wait)
        racing.start_soon(follow, paste)
    if isinstance(outcome[0], PilothouseError):
        raise outcome[0]
    return outcome[0]


def list_needed_logins(init: InitMessage) -> list[str]:
    """Return a line for each MCP server of a turn that waits for a login."""
    names = [server.name for server in init.mcp_servers if server.status == NEEDS_LOGIN]
    return [f"MCP server {name} needs a login, so its tools are missing: /mcp login {name}" for name in names]
