"""The logins that clients begin in a session of the host: at MCP servers, and at Claude.

Owns those that wait, and how the last one at each place has ended. Claude Code trades what a browser brings for a
login, and keeps that; none of it is kept here, and no event, error or journal has it.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import anyio
import anyio.abc

from pilothouse.client import ClaudeLogin, McpLogin, Session
from pilothouse.errors import LoginError, PilothouseError
from pilothouse.support import hide_arguments
from pilothouse_access.guard import RefusedRequestError

LoginState: TypeAlias = Literal["waiting", "done", "failed"]
LoginAccount: TypeAlias = Literal["claude", "console"]
_ACCOUNT_FIELDS = ("email", "subscription_type", "api_key_source")

LOGIN_SECONDS = 900.0
"""Time for a person to log in."""
MAX_WAIT_SECONDS = 20.0
"""The longest time for which a request waits for the end of a login."""
MAX_ERROR_CHARS = 500
CLOSED = "the process that began this login has ended: begin another one"
REPLACED = "a newer login has replaced this one"
_LATE = "nobody has logged in within 15 minutes: begin another login"


class SessionLogin:
    """A login that has begun.

    Attributes:
        id: of the login.
        server: the MCP server; None: at Claude.
        account: of `Session.login`; None: at a server.
        state: "waiting", "done" or "failed".
        error: why it has failed.
        outcome: what it has brought, for people: no part of it is secret.
    """

    def __init__(self, begun: McpLogin | ClaudeLogin, account: LoginAccount | None) -> None:
        self.id = f"login_{uuid.uuid4().hex}"
        self.server = begun.server if isinstance(begun, McpLogin) else None
        self.account = account
        self.state: LoginState = "waiting"
        self.error: str | None = None
        self.outcome: Mapping[str, Any] = {}
        self._begun = begun
        self._ended = anyio.Event()
        self._lock = anyio.Lock()
        self._scope = anyio.CancelScope()  # of the task that waits for the browser

    def describe(self) -> dict[str, Any]:
        """Return the description for events, without the link and the account."""
        return {
            "id": self.id,
            "server": self.server,
            "account": self.account,
            "state": self.state,
            "error": self.error,
        }

    def describe_fully(self) -> dict[str, Any]:
        """Return the description for a client that may end the login."""
        return {**self.describe(), **self.outcome, "url": self._begun.url if self.state == "waiting" else None}

    @hide_arguments
    async def complete(self, answer: str) -> None:
        """End the login with what the browser has brought.

        Args:
            answer: the whole address that it ended at; at Claude, the code that the page shows.

        Raises:
            RefusedRequestError: the answer is not of this login, which still waits ("wrong_callback"); or it has ended,
                and no login came of it ("login_failed").
        """
        async with self._lock:
            self._check_waiting()
            refusal: RefusedRequestError
            try:
                self.end(found=await self._begun.complete(answer))
                if self.state == "done":
                    return
                refusal = self._make_ended()  # it was cancelled or replaced meanwhile
            except PilothouseError as error:
                if isinstance(error, LoginError) and error.code == "wrong_callback":
                    refusal = RefusedRequestError("wrong_callback", str(error))
                else:
                    self.end(str(error))
                    refusal = RefusedRequestError("login_failed", str(error))
        raise refusal  # outside of `except`, so that no traceback leads to what was handed in

    def _check_waiting(self) -> None:
        if self.state != "waiting":
            raise self._make_ended()

    def _make_ended(self) -> RefusedRequestError:
        reason = f": {self.error}" if self.error else ""
        return RefusedRequestError("login_failed", f"this login has ended{reason}")

    async def follow(self) -> None:
        """Wait until a browser on this machine, or `complete`, has ended the login."""
        with self._scope:
            with anyio.move_on_after(LOGIN_SECONDS):
                try:
                    if isinstance(self._begun, ClaudeLogin):  # its link shows a code, so only `complete` ends it
                        await self._ended.wait()
                    else:
                        self.end(found=await self._begun.wait(math.inf))
                except PilothouseError as error:
                    async with self._lock:  # `complete` knows better why
                        self.end(str(error))
            self.end(_LATE)

    async def wait(self, seconds: float) -> None:
        """Wait until the login has ended, `MAX_WAIT_SECONDS` at most."""
        with anyio.move_on_after(min(seconds, MAX_WAIT_SECONDS)):
            await self._ended.wait()

    def end(self, error: str | None = None, found: Any = None) -> None:
        """Note the end, once.

        Args:
            error: why no login came of it.
            found: what came of it: the account, or the server.
        """
        if self.state != "waiting":
            return
        self.state, self.error = ("done" if error is None else "failed"), error and error[:MAX_ERROR_CHARS]
        if found is not None and self.server is None:
            self.outcome = {name: getattr(found, name) for name in _ACCOUNT_FIELDS}
        elif found is not None:
            self.outcome = {"tools": [str(tool.get("name")) for tool in found.tools]}
        self._ended.set()
        self._scope.cancel()


class SessionLogins:
    """The logins of one session: one at each MCP server, and one at Claude.

    Args:
        on_change: called when one has begun or ended.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._logins: dict[str | None, SessionLogin] = {}

    def describe(self) -> list[dict[str, Any]]:
        """Return those that wait, and the last one at each place."""
        return [login.describe() for login in self._logins.values()]

    @property
    def is_waiting(self) -> bool:
        """Whether one waits for its end."""
        return any(login.state == "waiting" for login in self._logins.values())

    def get(self, login_id: str) -> SessionLogin:
        """Return a login by its id.

        Raises:
            RefusedRequestError: there is none ("unknown_login").
        """
        for login in self._logins.values():
            if login.id == login_id:
                return login
        raise RefusedRequestError("unknown_login", f"this session has no login {login_id[:80]!a}: begin another one")

    async def begin(
        self, session: Session, server: str | None, account: LoginAccount, tasks: anyio.abc.TaskGroup
    ) -> SessionLogin:
        """Begin a login; it replaces an earlier one at the same place.

        Args:
            session: whose Claude Code logs in.
            server: name of an MCP server; None: at Claude.
            account: at Claude, as for `Session.login`.
            tasks: where the login waits for its end.

        Raises:
            LoginError: as `Session.login` and `session.mcp.authenticate`.
        """
        if server is None:
            login = SessionLogin(await session.login(account), account)
        else:
            login = SessionLogin(await session.mcp.authenticate(server), None)
        if (earlier := self._logins.pop(server, None)) is not None:
            earlier.end(REPLACED)
        self._logins[server] = login
        tasks.start_soon(self._follow, login.follow)
        self._on_change()
        return login

    async def _follow(self, follow: Callable[[], Awaitable[None]]) -> None:
        try:
            await follow()
        finally:
            self._on_change()

    def cancel(self, login: SessionLogin) -> None:
        """Give a login up, or forget one that has ended."""
        self._logins.pop(login.server, None)
        login.end("cancelled")
        self._on_change()

    def end_all(self) -> None:
        """End those that wait: their process has ended."""
        for login in self._logins.values():
            login.end(CLOSED)
