"""Logins that a program leads its user through: at an MCP server, and at Claude.

Claude Code makes the link and keeps what comes of it; the program shows the link, and hands back what the browser
brings. `session.mcp.authenticate` and `session.login` begin one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args
from urllib.parse import parse_qs, urlsplit

import anyio

from pilothouse.errors import ControlError, ControlTimeout, LoginError, UsageError
from pilothouse.options.secrets import Redactor
from pilothouse.tracebacks import hide_arguments

if TYPE_CHECKING:
    from pilothouse.client.controls import AccountInfo, ControlSender, McpServerStatus

LoginAccount = Literal["claude", "console"]
FindServer: TypeAlias = "Callable[[str], Awaitable[McpServerStatus | None]]"
"""Returns a server of the session by its name."""
WaitForServer: TypeAlias = Callable[[str, float], Awaitable[object]]
"""Waits so many seconds until a server is connected; raises if it will not be, as `McpControls.wait` does."""
ReadAccount: TypeAlias = "Callable[[object], AccountInfo]"
TimedSender: TypeAlias = Callable[[str, Mapping[str, Any], float], Awaitable[Mapping[str, Any]]]
"""Sends a control request, and waits for so many seconds if they are more than `control_timeout`."""

POLL_SECONDS = 0.25  # between two looks at a login in a browser; the CLI sends no event
EXCHANGE_SECONDS = 10.0  # from the browser's return until the CLI has traded the code for a login, and connected
CONNECT_SECONDS = 35.0  # for a server that is still connecting; the CLI gives it 30 s
CALLBACK = "mcp_oauth_callback_url"
NOT_THEIRS = "http://localhost/?error=none&state=none"  # what the CLI never takes, but says whether it would take any
HAS_NO_LOGIN = frozenset({"stdio", "sdk"})
_RETRY = "The login still waits: hand over what its own page gave"


class McpLogin:
    """A login at an MCP server that has begun. Made by `session.mcp.authenticate`.

    It ends with `complete` or in the browser. A newer one for the same server replaces it: `complete` refuses then.
    """

    __slots__ = ("_control", "_find", "_server", "_state", "_url")

    def __init__(self, server: str, control: ControlSender, find: FindServer, answer: Mapping[str, Any]) -> None:
        self._server = server
        self._control = control
        self._find = find
        self._url: str | None = answer.get("authUrl")
        self._state: str | None = answer.get("state")

    @property
    def server(self) -> str:
        """The name of the server."""
        return self._server

    @property
    def url(self) -> str | None:
        """The page where the user agrees; None: nobody has to, and `wait` returns at once."""
        return self._url

    @hide_arguments
    async def complete(self, callback_url: str) -> McpServerStatus:
        """End the login with the address that the browser was sent on to, and connect the server.

        Needed where that browser cannot reach this machine: its page does not load then, and its address bar has the
        address. Also needed with a `redirect_uri`.

        Args:
            callback_url: the whole address, with its `code` and `state`. It is neither logged nor kept.

        Raises:
            LoginError: `.code` is "wrong_callback" if this is not an address for this login, which then still waits;
                "refused" if the user or the server refused, the login has ended, or the server does not connect.
            ControlTimeout: no answer within `control_timeout`.
        """
        found = _read_parameters(callback_url)
        if not found.keys() & {"code", "error"}:
            raise LoginError(f"the address has no code. {_RETRY}", subtype=CALLBACK, code="wrong_callback")
        if self._state is None or found.get("state") != self._state:
            raise LoginError(f"the address is of another login. {_RETRY}", subtype=CALLBACK, code="wrong_callback")
        sent = self._control(CALLBACK, serverName=self._server, callbackUrl=callback_url)
        await _answer(sent, found.get("code", ""), found["state"])
        return await self._connect()

    async def wait(self, timeout: float = 300.0) -> McpServerStatus:
        """Wait until the user has logged in, in a browser on the machine of Claude Code, and the server is connected.

        Claude Code does not say which login it was: if a newer one has replaced this one, this waits for that.

        Args:
            timeout: seconds. Default 300.

        Raises:
            LoginError: `.code` is "refused": the user or the server refused.
            ControlTimeout: not in time; the login still waits.
        """
        with anyio.move_on_after(timeout):
            last_look = None if self._url is not None else anyio.current_time()
            while True:
                server = await self._find(self._server)
                if server is not None and server.status == "connected":
                    return server
                if last_look is None and not await self._ask_whether_waiting():
                    last_look = anyio.current_time() + EXCHANGE_SECONDS
                if last_look is not None and anyio.current_time() >= last_look:
                    return await self._connect()
                await anyio.sleep(POLL_SECONDS)
        raise ControlTimeout(f"no login at MCP server {self._server!r} within {timeout:g} s", subtype=CALLBACK)

    async def _ask_whether_waiting(self) -> bool:
        try:
            await self._control(CALLBACK, serverName=self._server, callbackUrl=NOT_THEIRS)
        except ControlError as error:
            return "No active OAuth flow" not in str(error)  # the CLI has no code for it
        return False

    async def _connect(self) -> McpServerStatus:
        try:
            await self._control("mcp_reconnect", serverName=self._server)
        except ControlError as error:
            reason = f"not logged in at MCP server {self._server!r}: {error}"
            raise LoginError(reason, subtype=error.subtype, code="refused") from None
        server = await self._find(self._server)
        return server or _raise_unknown(self._server, CALLBACK)


async def begin_mcp_login(
    server: str, control: ControlSender, find: FindServer, wait: WaitForServer, redirect_uri: str | None
) -> McpLogin:
    """Begin a login; see `McpControls.authenticate`."""
    subtype = "mcp_authenticate"
    status = _check_has_login(server, await find(server), subtype)
    if status.status == "pending":
        with contextlib.suppress(ControlError, ControlTimeout):  # most of them need a login
            await wait(server, CONNECT_SECONDS)
        status = _check_has_login(server, await find(server), subtype)
    if status.status == "connected":
        reason = f"MCP server {server!r} is connected and needs no login; `clear_auth` ends the one that it has"
        raise LoginError(reason, subtype=subtype, code="no_login")
    body = {} if redirect_uri is None else {"redirectUri": redirect_uri, "redirectUriOnly": True}
    return McpLogin(server, control, find, await _answer(control(subtype, serverName=server, **body)))


async def clear_mcp_login(server: str, control: ControlSender, find: FindServer) -> None:
    """Forget a login; see `McpControls.clear_auth`."""
    subtype = "mcp_clear_auth"
    _check_has_login(server, await find(server), subtype)
    await _answer(control(subtype, serverName=server))


def _check_has_login(server: str, status: McpServerStatus | None, subtype: str) -> McpServerStatus:
    if status is None:
        _raise_unknown(server, subtype)
    if (status.config or {}).get("type") in HAS_NO_LOGIN:
        raise LoginError(f"MCP server {server!r} is a program: it has no login", subtype=subtype, code="no_login")
    return status


def _raise_unknown(server: str, subtype: str) -> NoReturn:
    raise LoginError(f"the session has no MCP server {server!r}", subtype=subtype, code="unknown_server")


class ClaudeLogin:
    """A login at Claude that has begun. Made by `session.login`.

    It ends with `complete` or in the browser; a newer one of the session replaces it.
    """

    __slots__ = ("_answer", "_read", "_request")

    def __init__(self, request: TimedSender, read: ReadAccount, answer: Mapping[str, Any]) -> None:
        self._request = request
        self._read = read
        self._answer = answer

    @property
    def url(self) -> str:
        """The page where the user agrees, on any machine. It shows a code for `complete`."""
        return str(self._answer.get("manualUrl") or "")

    @property
    def local_url(self) -> str | None:
        """The same page for a browser on the machine of Claude Code, which needs no code: call `wait`."""
        return self._answer.get("automaticUrl")

    @hide_arguments
    async def complete(self, code: str) -> AccountInfo:
        """End the login with the code that the page of `url` shows.

        Args:
            code: all of it, as in "…#…". It is neither logged nor kept.

        Returns:
            The account that Claude Code uses now: a key that it was given goes before the login.

        Raises:
            LoginError: `.code` is "wrong_callback" if this is not a code of this login, which then still waits; or
                "refused": begin another login.
            ControlTimeout: no answer within `control_timeout`.
        """
        subtype = "claude_oauth_callback"
        key, mark, state = code.strip().partition("#")
        if not key or not mark:
            raise LoginError(f"the code is not whole. {_RETRY}", subtype=subtype, code="wrong_callback")
        if state != _read_parameters(self.url).get("state"):  # which the CLI does not check
            raise LoginError(f"the code is of another login. {_RETRY}", subtype=subtype, code="wrong_callback")
        answer = await _answer(self._request(subtype, {"authorizationCode": key, "state": state}, 0.0), key, state)
        return self._read(answer.get("account"))

    async def wait(self, timeout: float = 300.0) -> AccountInfo:
        """Wait until the user has logged in, in a browser on the machine of Claude Code (`local_url`).

        Call it when you show the address: the CLI does not say how an earlier login ended.

        Args:
            timeout: seconds. Default 300.

        Returns:
            The account that Claude Code uses now: a key that it was given goes before the login.

        Raises:
            LoginError: `.code` is "refused".
            ControlTimeout: not in time; the login still waits.
        """
        subtype = "claude_oauth_wait_for_completion"
        with anyio.move_on_after(timeout):
            answer = await _answer(self._request(subtype, {}, timeout))
            return self._read(answer.get("account"))
        raise ControlTimeout(f"no login at Claude within {timeout:g} s", subtype=subtype)


async def begin_claude_login(request: TimedSender, read: ReadAccount, account: LoginAccount) -> ClaudeLogin:
    """Begin a login; see `Session.login`."""
    if account not in (accounts := get_args(LoginAccount)):
        raise UsageError(f"account: expected {' or '.join(map(repr, accounts))}, got {account!r}")
    answer = await _answer(request("claude_authenticate", {"loginWithClaudeAi": account == "claude"}, 0.0))
    return ClaudeLogin(request, read, answer)


async def _answer(sent: Awaitable[Mapping[str, Any]], *secrets: str) -> Mapping[str, Any]:
    """Wait for the answer to a request; a refusal becomes a `LoginError`, without the secrets that it repeats."""
    try:
        return await sent
    except ControlError as error:
        text = Redactor(secrets).redact(str(error))
        refusal = LoginError(text, subtype=error.subtype, code=error.code or "refused")
    raise refusal  # outside of `except`, so that the original error is not its context


def _read_parameters(url: str) -> dict[str, str]:
    try:
        query = urlsplit(url.strip()).query
    except ValueError:
        return {}
    return {name: values[-1] for name, values in parse_qs(query).items()}
