"""A client of a host's REST API: sessions that the host drives, and what waits for a person there.

Owns requests, streams of events and their continuation after a broken connection. `on_host` is for programs that drive
a session themselves.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self, cast
from urllib.parse import quote

import anyio
import httpx2
import msgspec
from msgspec import Struct

from pilothouse.client import LateWords, SteerOutcome, SteerTime
from pilothouse.errors import RemoteError, UsageError
from pilothouse.messages import FrameDecoder, Message
from pilothouse.options import Options
from pilothouse.protocol import encode_line
from pilothouse.support import hide_arguments
from pilothouse_remote.link import Backoff
from pilothouse_remote.messages import DEFAULT_PATH, HostAddress

log = logging.getLogger("pilothouse.remote")

WAIT_SECONDS = 15
"""Seconds for which one request waits for the end of a login."""
REQUEST_SECONDS = 60.0
"""Seconds for a response; a stream of events has a comment of the host every 15 s."""


class HostedResult(Struct, frozen=True, kw_only=True):
    """The outcome of a prompt that a host has run.

    Attributes:
        is_success: whether Claude Code reports a success.
        text: what the assistant said.
        structured: the output for `json_schema`, as JSON.
        turns: number of turns.
        cost_usd: of this prompt; None if not reported.
        session_cost_usd: of the session so far; None if not reported.
        duration_ms: of this prompt; None if not reported.
        denied: names of the tools whose calls were denied.
        error: why the result is no success.
    """

    is_success: bool
    text: str
    structured: Any = None
    turns: int | None = None
    cost_usd: float | None = None
    session_cost_usd: float | None = None
    duration_ms: float | None = None
    denied: tuple[str, ...] = ()
    error: str | None = None


class HostedState(Struct, frozen=True, kw_only=True):
    """What a host says of a session.

    Attributes:
        id: of the session at the host.
        kind: "hosted", or "wire" where a program drives it with `on_host`.
        state: "running", "idle", "dormant" (the next prompt starts a child again) or "ended".
        conversation: id of Claude Code's conversation, once known.
        waiting: number of prompts without a result.
        asks: number of approvals that wait.
        last_result: of the last prompt that had one.
        error: why the last prompt failed.
        owner: name of the token that it belongs to; None: the host's own.
        output_bytes: position of the next event.
    """

    id: str
    kind: str
    state: str
    conversation: str | None = None
    waiting: int = 0
    asks: int = 0
    last_result: HostedResult | None = None
    error: str | None = None
    owner: str | None = None
    output_bytes: int = 0


class HostedMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server of a session that a host drives.

    Attributes:
        name: of the server.
        status: "connected", "failed", "needs-auth", "pending" or "disabled".
        error: why it is not connected.
        tools: names of its tools.
    """

    name: str
    status: str
    error: str | None = None
    tools: tuple[str, ...] = ()


class HostedLoginState(Struct, frozen=True, kw_only=True):
    """What a host says of a login.

    Attributes:
        id: of the login at the host.
        state: "waiting", "done" or "failed".
        server: the MCP server; None: at Claude.
        account: at Claude, "claude" or "console".
        error: why it has failed.
        tools: of the server, once the login is done.
        email, subscription_type: of the account at Claude, once the login is done.
        api_key_source: the key at the host that goes before the login; None: there is none.
    """

    id: str
    state: str
    server: str | None = None
    account: str | None = None
    error: str | None = None
    tools: tuple[str, ...] = ()
    email: str | None = None
    subscription_type: str | None = None
    api_key_source: str | None = None


class _Event(Struct, frozen=True):
    kind: str
    data: bytes
    id: str


class _Connection:
    """Sends requests to a host, and reads its streams of events."""

    def __init__(self, base: str, token: str | None, backoff: Backoff, http: httpx2.AsyncClient) -> None:
        self.base = base
        self.http = http
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._backoff = backoff

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        try:
            content = None if body is None else encode_line(body)
            response = await self.http.request(method, self.base + path, content=content, headers=self._headers)
        except httpx2.HTTPError as error:
            raise self._make_unreachable(error) from error
        if response.is_error:
            raise self._make_refusal(response.status_code, response.content)
        return msgspec.json.decode(response.content) if response.content else None

    async def stream(self, path: str, place: int) -> AsyncGenerator[_Event]:
        """Yield the events after a place, until the host ends them; connect again after a break."""
        last_id, tries, lost_at = str(place), 0, anyio.current_time()
        while True:
            error: httpx2.HTTPError | None = None
            try:
                headers = {**self._headers, "last-event-id": last_id}
                async with self.http.stream("GET", self.base + path, headers=headers) as response:
                    if response.is_error:
                        raise self._make_refusal(response.status_code, await response.aread())
                    rest = b""
                    async with aclosing(response.aiter_bytes()) as chunks:
                        async for chunk in chunks:
                            *blocks, rest = (rest + chunk).split(b"\n\n")
                            for event in [event for block in blocks if (event := _read_event(block))]:
                                last_id, tries, lost_at = event.id, 0, anyio.current_time()
                                yield event
                                if event.kind in ("end", "error"):
                                    return
            except httpx2.HTTPError as broken:
                error = broken
            if anyio.current_time() - lost_at >= self._backoff.give_up_after:
                raise self._make_unreachable(error) from error
            await anyio.sleep(self._backoff.delay(tries, random.random()))  # noqa: S311 - not a secret
            tries += 1

    def _make_unreachable(self, error: Exception | None) -> RemoteError:
        reason = "it ended the connection" if error is None else str(error) or type(error).__name__
        return RemoteError(f"the host {self.base} does not respond: {reason}", code="unreachable")

    def _make_refusal(self, status: int, body: bytes) -> RemoteError:
        try:
            error: Any = msgspec.json.decode(body)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError):
            code, message = "protocol", f"{self.base} answered with HTTP status {status}; is it a pilothouse host?"
        return RemoteError(message, code=code)


def _read_event(block: bytes) -> _Event | None:
    """Read a server-sent event as a host writes it, with an id and one line of data; None for a comment."""
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
    if b"data" not in fields:
        return None
    return _Event(fields.get(b"event", b"message").decode(), fields[b"data"], fields[b"id"].decode())


class HostClient:
    """Uses the sessions of a host over REST: the host drives them, and people decide what they ask.

    Use it as a context manager, in one event loop::

        async with HostClient("http://127.0.0.1:8750", token=token) as host:
            session = await host.start("What does this repository do?", model="sonnet")
            print((await session.result()).text)

    Args:
        url: of the host: `https://host.example`, `http://127.0.0.1:8750`; `wss://` and `ws://` do as well.
        token: what the host printed at its start, or was given.
        reconnect: when a broken stream of events connects again, and when it gives up.
        http: a client of your own, with proxies or certificates; it stays open.

    Raises:
        UsageError: the address is invalid, or the token would travel in the clear to another machine.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        reconnect: Backoff | None = None,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        address = HostAddress.parse(url)
        if token is not None and not (address.is_secure or address.is_loopback):
            raise UsageError(f"the token would travel in the clear to {address.host}: use https://, or a tunnel")
        base = "http" + address.url.removeprefix("ws").removesuffix(DEFAULT_PATH)
        self._owns_http = http is None
        self._connection = _Connection(
            base, token, reconnect or Backoff(), http or httpx2.AsyncClient(timeout=REQUEST_SECONDS)
        )

    def __repr__(self) -> str:
        return f"HostClient({self._connection.base!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Sessions go on."""
        if self._owns_http:
            await self._connection.http.aclose()

    async def start(self, prompt: str | None = None, **options: Any) -> HostedSession:
        """Start a session that the host drives.

        Args:
            prompt: the first one; None: none yet.
            **options: settings that a configuration file may contain, such as `model`, `cwd`, `allowed_tools`.

        Raises:
            OptionsError: there is no such option, or its value is wrong.
            RemoteError: the host cannot be reached, or refuses; `.code` says why.
        """
        Options(**options)  # raises now, with the name of the nearest option
        made = await self._connection.request("POST", "/v1/sessions", {"options": options, "prompt": prompt})
        return self.session(made["id"])

    def session(self, session_id: str) -> HostedSession:
        """Return the session with this id; sends nothing."""
        return HostedSession(self._connection, session_id)

    async def sessions(self) -> list[HostedState]:
        """Return all sessions that the token may use, the oldest first.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
        """
        found = await self._connection.request("GET", "/v1/sessions")
        return msgspec.convert(found["sessions"], list[HostedState])

    async def asks(self) -> list[HostedAsk]:
        """Return what waits for a person, the oldest first.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
        """
        found = await self._connection.request("GET", "/v1/asks")
        return [HostedAsk(self._connection, each) for each in found["asks"]]

    async def watch_asks(self) -> AsyncGenerator[HostedAsk]:
        """Yield what waits for a person, then new approvals as they come, until the host shuts down.

        Raises:
            RemoteError: the host refuses, or was lost for good.
        """
        connection = self._connection
        waiting = await connection.request("GET", "/v1/asks")
        for facts in waiting["asks"]:
            yield HostedAsk(connection, facts)
        async with aclosing(connection.stream("/v1/events", waiting["events_from"])) as events:
            async for event in events:
                facts = msgspec.json.decode(event.data)
                if event.kind == "error":
                    raise RemoteError(facts["message"], code="pruned")
                if event.kind == "asked" and facts["request"] is None:  # it is too long for an event
                    facts = next((approval.facts for approval in await self.asks() if approval.id == facts["id"]), None)
                if event.kind == "asked" and facts is not None:
                    yield HostedAsk(connection, facts)


class HostedSession:
    """A session that a host drives. It goes on without this program. Made by `HostClient`.

    Attributes:
        id: of the session at the host.
    """

    def __init__(self, connection: _Connection, session_id: str) -> None:
        self._connection = connection
        self.id = session_id
        self._path = f"/v1/sessions/{session_id}"

    def __repr__(self) -> str:
        return f"HostedSession({self.id!r})"

    async def state(self) -> HostedState:
        """Return what the host says of it.

        Raises:
            RemoteError: the host cannot be reached, or has no such session.
        """
        return msgspec.convert(await self._connection.request("GET", self._path), HostedState)

    async def send(self, prompt: str | list[dict[str, Any]]) -> str:
        """Send a prompt, text or content blocks; returns its id at once. Prompts run one after the other.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
        """
        sent = await self._connection.request("POST", f"{self._path}/prompt", {"prompt": prompt})
        return cast("str", sent["prompt"])

    async def steer(
        self, content: str | list[dict[str, Any]], *, when: SteerTime = "next", if_late: LateWords = "ask"
    ) -> HostedSteering:
        """Give words to the turn that runs; see `Query.steer`. Without one, they are a prompt of their own.

        Args:
            content: text, or content blocks.
            when: "next" (default): after the tools that run now. "now": in another turn, once Claude Code has ended
                this one.
            if_late: what to do when the turn ends before it has taken the words. "ask" (default): go on with them.
                "return": take them back; also when no turn runs.

        Returns:
            A `HostedSteering`, at once; its `outcome()` says what became of the words.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
        """
        body = {"prompt": content, "when": when, "if_late": if_late}
        return HostedSteering(
            self._connection, self._path, await self._connection.request("POST", f"{self._path}/steer", body)
        )

    async def result(self) -> HostedResult:
        """Wait until no prompt runs or waits, and return the outcome of the last one.

        Raises:
            RemoteError: that prompt failed without a result ("query_failed"), there was none ("no_result"), the session
                was closed ("unknown_session"), or the host was lost for good.
        """
        found = await self._connection.request("GET", "/v1/sessions")
        state = next((each for each in found["sessions"] if each["id"] == self.id), None)
        if state is not None and state["waiting"]:
            await self._wait_for_end(found["events_from"])
        state = await self.state()
        result = state.last_result
        if state.error is not None and (result is None or result.error != state.error):
            raise RemoteError(f"the prompt failed: {state.error}", code="query_failed")
        if result is None:
            raise RemoteError("no prompt has run in this session: send one", code="no_result")
        return result

    async def _wait_for_end(self, place: int) -> None:
        async with aclosing(self._connection.stream("/v1/events", place)) as events:
            async for event in events:
                told = msgspec.json.decode(event.data)
                if event.kind == "session" and told["id"] == self.id and not told["waiting"]:
                    return
                if event.kind == "closed" and told["session"] == self.id:
                    return
        raise RemoteError("the host could not tell of all that happened: ask it again", code="lost")

    async def messages(self, after: int = 0) -> AsyncGenerator[Message]:
        """Yield the messages of the session, then new ones as they come, until it is closed; see `Message`.

        Args:
            after: position in its output, such as `state.output_bytes`. Default: from the start.

        Raises:
            RemoteError: the host no longer keeps these messages ("pruned"), or was lost for good.
        """
        decoder = FrameDecoder()
        async with aclosing(self._connection.stream(f"{self._path}/events", after)) as events:
            async for event in events:
                if event.kind == "error":
                    raise RemoteError(msgspec.json.decode(event.data)["message"], code="pruned")
                if event.kind == "oversize":
                    log.warning("session %s: %s, and is left out", self.id, msgspec.json.decode(event.data)["message"])
                if event.kind == "message" and isinstance(message := decoder.decode(event.data), Message):
                    yield message

    async def interrupt(self) -> None:
        """Stop the turn that runs; does nothing if none does.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
        """
        await self._connection.request("POST", f"{self._path}/interrupt")

    async def login(self, account: Literal["claude", "console"] = "claude") -> HostedLogin:
        """Begin a login at Claude for the host: show its `url`, and hand over the code that the page shows.

        Claude Code keeps the login on the host, for all its sessions. Only the host's own token may do this.

        Args:
            account: as for `Session.login`. Default "claude".

        Raises:
            RemoteError: the host cannot be reached, or refuses ("forbidden", "login_failed").
        """
        return await _begin_login(self._connection, self._path, {"account": account})

    @property
    def mcp(self) -> HostedMcp:
        """The MCP servers."""
        return HostedMcp(self._connection, self._path)

    async def close(self) -> None:
        """End the child, and remove the session from the host. The conversation stays on its disk.

        Raises:
            RemoteError: the host cannot be reached, or refuses.
        """
        await self._connection.request("DELETE", self._path)


class HostedMcp:
    """The MCP servers of a session that a host drives. Made by `HostedSession.mcp`.

    Each method raises `RemoteError` if the host cannot be reached, or refuses.
    """

    def __init__(self, connection: _Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    async def status(self) -> list[HostedMcpServer]:
        """Return the servers; none while no process runs."""
        found = await self._connection.request("GET", f"{self._path}/mcp")
        return msgspec.convert(found["servers"], list[HostedMcpServer])

    async def authenticate(self, server: str) -> HostedLogin:
        """Begin a login at a server whose `status` is "needs-auth": show the user its `url`, then `wait` or `complete`.

        Claude Code keeps the login on the host, for all its sessions. Only the host's own token may do this; the
        `.code` of a `RemoteError` is "unknown_server", "no_login" or "login_failed" otherwise.

        Args:
            server: its name.
        """
        return await _begin_login(self._connection, self._path, {"server": server})

    async def clear_auth(self, server: str) -> None:
        """Forget the login at a server; its status is "needs-auth" then."""
        await self._connection.request("DELETE", f"{self._path}/mcp/{quote(server)}/login")


async def _begin_login(connection: _Connection, path: str, body: Mapping[str, str]) -> HostedLogin:
    return HostedLogin(connection, f"{path}/logins", await connection.request("POST", f"{path}/logins", body))


class HostedLogin:
    """A login in a session of a host that has begun. Made by `HostedSession.login` and `HostedMcp.authenticate`.

    It ends with `complete`, in a browser on the machine of the host, or after 15 minutes. A newer one at the same place
    replaces it.

    Attributes:
        id: of the login at the host.
        server: the MCP server; None: at Claude.
        url: the page where the user agrees; None: nobody has to, and `wait` returns soon.
    """

    def __init__(self, connection: _Connection, path: str, begun: Mapping[str, Any]) -> None:
        self._connection = connection
        self.id: str = begun["id"]
        self.server: str | None = begun["server"]
        self.url: str | None = begun["url"]
        self._path = f"{path}/{self.id}"

    def __repr__(self) -> str:
        return f"HostedLogin({self.id!r})"

    @hide_arguments
    async def complete(self, answer: str) -> HostedLoginState:
        """End the login with what the browser has brought.

        Args:
            answer: at an MCP server, the whole address that the browser ended at; at Claude, the code that the page
                shows. It is neither logged nor kept.

        Raises:
            RemoteError: `.code` is "wrong_callback" if the answer is not of this login, which then still waits;
                "login_failed" if no login came of it; "unknown_login": it was cancelled, or the host was restarted.
        """
        return msgspec.convert(await self._connection.request("POST", self._path, {"answer": answer}), HostedLoginState)

    async def wait(self, timeout: float = 300.0) -> HostedLoginState:
        """Wait until the login has ended: in a browser on the machine of the host, or by `complete`.

        Args:
            timeout: seconds. Default 300.

        Raises:
            RemoteError: as `complete`; or "timeout": not in time; the login still waits.
        """
        with anyio.move_on_after(timeout):
            while True:
                found = await self._connection.request("GET", f"{self._path}?wait={WAIT_SECONDS}")
                state = msgspec.convert(found, HostedLoginState)
                if state.state == "failed":
                    raise RemoteError(state.error or "the login has failed", code="login_failed")
                if state.state == "done":
                    return state
        raise RemoteError(f"nobody has logged in within {timeout:g} s", code="timeout")

    async def cancel(self) -> None:
        """Give the login up.

        Raises:
            RemoteError: as `complete`.
        """
        await self._connection.request("DELETE", self._path)


class HostedSteering:
    """Words that were given to a session of a host while it works. Made by `HostedSession.steer`.

    Attributes:
        id: of the words as a prompt; None: nothing was sent.
    """

    def __init__(self, connection: _Connection, path: str, given: Mapping[str, Any]) -> None:
        self._connection = connection
        self._path = path
        self.id: str | None = given["steering"]
        self._place: int = given["events_from"]
        self._outcome: SteerOutcome | None = given["outcome"]

    def __repr__(self) -> str:
        return f"HostedSteering({self.id!r})"

    async def outcome(self) -> SteerOutcome:
        """Wait until the host says what became of the words.

        Returns:
            "taken", "next_turn", "query" or "returned", as `Steering.outcome`; for "query", the words are a prompt that
            the host has queued.

        Raises:
            RemoteError: the host no longer keeps these messages ("pruned"), was restarted or has
                closed the session before it knew ("lost"), or was lost for good.
        """
        if self._outcome is None:
            self._outcome = await self._wait()
        return self._outcome

    async def _wait(self) -> SteerOutcome:
        async with aclosing(self._connection.stream(f"{self._path}/events", self._place)) as events:
            async for event in events:
                if event.kind == "error":
                    raise RemoteError(msgspec.json.decode(event.data)["message"], code="pruned")
                if str(self.id).encode() not in event.data:
                    continue
                told = msgspec.json.decode(event.data)
                if told.get("subtype") == "steering" and told["steering"] == self.id:
                    return told["outcome"]
                if told.get("subtype") == "query_failed" and told["prompt"] == self.id:
                    raise RemoteError(told["error"], code="lost")
        raise RemoteError("the session was closed before it was known what became of the words", code="lost")


class HostedAsk:
    """A permission, question, plan or form that waits for a person at a host. The first decision counts.

    Each method raises `RemoteError`: somebody was first ("settled"), the decision does not fit ("bad_request"), or the
    host cannot be reached.

    Attributes:
        id: of the approval.
        session: id of its session at the host.
        kind: "permission", "question", "plan" or "elicitation".
        tool: name of the tool; None for an elicitation.
        title: what is asked, in a line.
        request: what is asked, as Claude Code sent it.
        facts: all that the host says of it.
    """

    def __init__(self, connection: _Connection, facts: Mapping[str, Any]) -> None:
        self._connection = connection
        self.facts = facts
        self.id: str = facts["id"]
        self.session: str = facts["session"]
        self.kind: str = facts["kind"]
        self.tool: str | None = facts.get("tool")
        self.title: str = facts["title"]
        self.request: Mapping[str, Any] = facts["request"]

    def __repr__(self) -> str:
        return f"<HostedAsk {self.id}: {self.kind}>"

    async def allow(
        self, *, updated_input: Mapping[str, Any] | None = None, always: bool = False, minutes: float | None = None
    ) -> None:
        """Say yes.

        Args:
            updated_input: input of the call, in place of the model's.
            always: also add the rules that Claude Code proposes, for this session.
            minutes: also allow further calls of this kind for so long.
        """
        await self._settle(decision="allow", input=updated_input, always=always, minutes=minutes)

    async def deny(self, reason: str = "", *, interrupt: bool = False) -> None:
        """Say no.

        Args:
            reason: what the model reads.
            interrupt: also end the turn.
        """
        await self._settle(decision="deny", reason=reason, interrupt=interrupt)

    async def answer(self, answers: Any) -> None:
        """Answer questions, fill in a form, or say what to change in a plan."""
        await self._settle(decision="answer", answers=answers)

    async def _settle(self, **body: Any) -> None:
        await self._connection.request("POST", f"/v1/sessions/{self.session}/asks/{self.id}", body)
