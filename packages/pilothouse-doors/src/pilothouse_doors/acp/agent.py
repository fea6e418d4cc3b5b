"""An agent for editors, on the library `agent-client-protocol`: `serve_editor` answers on standard input and output.

Owns the requests of the protocol, which sessions are open, and how many children run. What a session does is in
`session`, how it looks in `updates`, what it asks in `questions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.to_thread
from acp import PROTOCOL_VERSION, RequestError, schema
from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES, AgentSideConnection
from acp.meta import AGENT_METHODS
from acp.stdio import stdio_streams
from anyio.abc import TaskGroup

from pilothouse import __version__
from pilothouse.client import Agent
from pilothouse.errors import AuthenticationError, LoginError, PilothouseError, SessionNotFoundError, UsageError
from pilothouse.messages import Message
from pilothouse.options import HttpServer, Options, SseServer, StdioServer
from pilothouse.permissions import Ask, Asks
from pilothouse_access.on_behalf import ConfinedTransports, StartRules
from pilothouse_doors.acp.logins import METHODS, log_in
from pilothouse_doors.acp.questions import Choice
from pilothouse_doors.acp.session import AcpSession, Conversations, EditorGoneError, get_time, get_title
from pilothouse_doors.acp.updates import Update, read_prompt
from pilothouse_transcripts import SessionInfo, delete_session, get_session_info, get_session_messages, list_sessions

log = logging.getLogger("pilothouse.integrations")

PAGE = 50
"""Conversations in one response of `session/list`."""
MAX_CURSOR = 12
"""Digits of a place in `session/list`."""
CLOSE_SECONDS = 2.0
"""For what is still to be sent when the editor has left."""
MAX_CHILDREN = 8
"""Children at a time: an editor keeps sessions open for long. The next prompt starts a child that was ended."""


class LocalConversations:
    """The conversations on this machine; each session is a child of this process."""

    outlives_editor = False

    def list_newest(self, cwd: str | None, offset: int, limit: int) -> Sequence[SessionInfo]:
        """List conversations, the newest first."""
        return list_sessions(cwd, limit, offset, include_worktrees=False)

    def find(self, session_id: str) -> SessionInfo | None:
        """Return a conversation."""
        return get_session_info(session_id)

    def read(self, session_id: str) -> Sequence[Message]:
        """Return the messages of a conversation."""
        return get_session_messages(session_id)

    def delete(self, session_id: str) -> None:
        """Delete a conversation, if there is one."""
        with contextlib.suppress(SessionNotFoundError):
            delete_session(session_id)

    def make_settings(self, session_id: str | None, cwd: str) -> Mapping[str, Any]:
        """Return options of a session; raises UsageError if there is no such directory."""
        if not os.path.isdir(cwd):  # noqa: PTH112 - a text of the editor
            raise UsageError(f"cwd: there is no directory {cwd!r:.200}")
        return {} if session_id is None else {"resume": session_id}


async def serve_editor(agent: Agent, conversations: Conversations | None = None) -> None:
    """Serve an agent to the editor at standard input and output, until the editor leaves.

    Meanwhile what this process prints goes to standard error.

    Args:
        agent: the agent; permissions that it does not decide are asked of the editor. The settings of a repository
            count only with its option `setting_sources`.
        conversations: where conversations are; by default on this machine.

    Raises:
        UsageError: standard input is not a pipe, or standard output is a file, so no editor is there.
    """
    async with _open_streams() as (reader, writer), anyio.create_task_group() as tasks:
        served = AcpAgent(agent, conversations or LocalConversations(), tasks)
        messages = _JsonLines(reader, writer)
        connection = AgentSideConnection(cast("Any", served), messages, listening=False, use_unstable_protocol=True)
        try:
            await connection.listen()
        finally:
            with anyio.CancelScope(shield=True):
                await served.aclose()
                with anyio.move_on_after(CLOSE_SECONDS):  # the editor may have stopped reading
                    await connection.close()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open_streams() -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield the streams of the protocol; standard output of the process is standard error meanwhile."""
    if sys.platform == "win32":  # the library writes to sys.stdout there
        yield await stdio_streams(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
        return
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise UsageError("acp: standard input is not a pipe: an editor starts this command; see docs/editors.md")
    if not stat.S_ISFIFO(mode := os.fstat(1).st_mode) and not stat.S_ISSOCK(mode) and not stat.S_ISCHR(mode):
        raise UsageError("acp: standard output is a file: an editor starts this command; see docs/editors.md")
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        pipe, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(os.dup(output.fileno()), "wb")
        )
        yield reader, asyncio.StreamWriter(pipe, protocol, None, loop)
    finally:
        sys.stdout.flush()
        os.dup2(output.fileno(), 1)
        output.close()


STEERING_METHOD = "session/steering"
"""Gives words to the turn that runs: an extension that editors know of claude-agent-acp and others, after its "_"."""
_EXTENSIONS = frozenset({AGENT_METHODS["session_delete"]})
"""Methods of the protocol that the library (0.12) does not route: it takes them as extensions, which begin with "_"."""


class _JsonLines:
    """The messages of the protocol on two streams. What is not a message is answered with an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: dict[str, Any]) -> None:
        try:
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await self._writer.drain()
        except ConnectionError:  # the editor has left, or was killed
            self._reader.feed_eof()

    async def receive(self) -> dict[str, Any] | None:
        while True:
            try:
                line = await self._reader.readline()
                if not line:
                    return None
                if line.isspace():
                    continue
                message = json.loads(line)
            except (ValueError, RecursionError):  # not JSON, not UTF-8, too long, or too deep
                await self._refuse(RequestError.parse_error())
                continue
            if isinstance(message, dict):
                found = cast("dict[str, Any]", message)
                return {**found, "method": f"_{found['method']}"} if found.get("method") in _EXTENSIONS else found
            await self._refuse(RequestError.invalid_request())

    async def _refuse(self, error: RequestError) -> None:
        await self.send({"jsonrpc": "2.0", "id": None, "error": error.to_error_obj()})

    async def close(self) -> None:
        self._writer.close()


class AcpAgent:
    """Answers the requests of one editor. The library calls its methods, with the fields of each request.

    The group of `tasks` runs what sends updates.
    """

    def __init__(self, agent: Agent, conversations: Conversations, tasks: TaskGroup) -> None:
        options = agent.options
        settings: dict[str, Any] = {
            "partial_messages": True,
            "transport": ConfinedTransports(agent, StartRules(memory=True)),
        }
        if options.can_use_tool is None and options.confirm is None and options.asks is None:
            settings["asks"] = Asks(on_ask=self._ask)
        if "until" not in options:  # a turn ends when its sub-agents in the background have ended
            settings["until"] = "idle"
        self.has_forms = self.has_pages = self.has_terminals = False
        self._agent = agent.with_options(**settings)
        self._conversations = conversations
        self._tasks = tasks
        self._sessions: dict[str, AcpSession] = {}
        self._opening = anyio.Lock()
        self._editor: Any = None

    # What sessions need of the editor.

    def on_connect(self, conn: Any) -> None:
        """Remember the editor; called by the library."""
        self._editor = conn

    async def send(self, session_id: str, update: Update) -> None:
        """Send an update; nothing happens when the editor has left."""
        made = schema.SessionNotification.model_validate({"sessionId": session_id, "update": update})
        with contextlib.suppress(ConnectionError):
            await self._editor.session_update(session_id, made.update)

    async def choose(self, session_id: str, call: Update, choices: list[Choice]) -> str | None:
        """Request a choice, and return its id; None: the editor cancelled."""
        options = [schema.PermissionOption.model_validate(choice) for choice in choices]
        shown = schema.ToolCallUpdate.model_validate({**call, "status": "pending"})
        with _translate_editor_errors():
            outcome = (await self._editor.request_permission(session_id, shown, options)).outcome
        return outcome.option_id if isinstance(outcome, schema.AllowedOutcome) else None

    async def fill(self, session_id: str, message: str, form: dict[str, Any]) -> Mapping[str, Any] | None:
        """Request the values of a form, or that a page is opened; None: the user declined."""
        kind = schema.ElicitationUrlSessionMode if "url" in form else schema.ElicitationFormSessionMode
        with _translate_editor_errors():
            answer = await self._editor.create_elicitation(
                message, kind.model_validate({"sessionId": session_id, **form})
            )
        if not isinstance(answer, schema.AcceptElicitationResponse):
            return None
        return answer.model_dump(mode="json", by_alias=True).get("content") or {}

    async def _ask(self, approval: Ask) -> None:
        session = self._find_asking(approval)
        if session is None:  # a child that is taken over at a host asks again before its session is open
            async with self._opening:
                session = self._find_asking(approval)
        if session is not None:
            await session.ask(approval)
        else:
            approval.deny("no editor has opened this session")

    def _find_asking(self, approval: Ask) -> AcpSession | None:
        for each in self._sessions.values():
            if each.session is not None and approval in each.session.asks:
                return each
        return None

    # Requests.

    async def initialize(self, protocol_version: int, client_capabilities: Any = None, **_: Any) -> Any:
        """Return what the agent can do."""
        if client_capabilities is not None:
            elicitation = client_capabilities.elicitation
            self.has_forms = elicitation is not None and elicitation.form is not None
            self.has_pages = elicitation is not None and elicitation.url is not None
            meta: dict[str, Any] = client_capabilities.field_meta or {}
            self.has_terminals = meta.get("terminal_output") is True
        methods: dict[str, Any] = {
            "list": {},
            "delete": {},
            "fork": {},
            "resume": {},
            "close": {},
            "additionalDirectories": {},
        }
        return schema.InitializeResponse.model_validate(
            {
                "protocolVersion": PROTOCOL_VERSION,
                "agentInfo": {"name": "pilothouse", "title": "Claude Code (pilothouse)", "version": __version__},
                "agentCapabilities": {
                    "loadSession": True,
                    "promptCapabilities": {"image": True, "embeddedContext": True},
                    "mcpCapabilities": {"http": True, "sse": True},
                    "sessionCapabilities": methods,
                },
                "authMethods": self._list_logins(),
                "_meta": {"steering": {"supported": True}},
            }
        )

    async def new_session(self, cwd: str, **given: Any) -> Any:
        """Start a session in a directory."""
        with _translate_errors():
            made = str(uuid.uuid4())
            session = await self._open(made, cwd, given, {"session_id": made})
        return self._respond(schema.NewSessionResponse, session)

    async def load_session(self, cwd: str, session_id: str, **given: Any) -> Any:
        """Open a conversation, and send what was said in it."""
        with _translate_errors(session_id):
            history = await self._run(self._conversations.read, session_id)
            session = await self._reopen(session_id, cwd, given, history)
            await session.send_facts()
        return self._respond(schema.LoadSessionResponse, session)

    async def resume_session(self, cwd: str, session_id: str, **given: Any) -> Any:
        """Open a conversation."""
        with _translate_errors(session_id):
            session = await self._reopen(session_id, cwd, given)
        return self._respond(schema.ResumeSessionResponse, session)

    async def fork_session(self, cwd: str, session_id: str, **given: Any) -> Any:
        """Start a session that begins as a copy of a conversation."""
        with _translate_errors(session_id):
            await self._find(session_id)
            made = str(uuid.uuid4())
            start = {"resume": session_id, "fork_session": True, "session_id": made}
            session = await self._open(made, cwd, given, start)
        return self._respond(schema.ForkSessionResponse, session)

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> Any:
        """List conversations, the newest first."""
        with _translate_errors():
            if cwd is not None:
                _check_directory(cwd)
            if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= MAX_CURSOR):
                raise UsageError(f"cursor: expected that of an earlier response, got {cursor!r:.80}")
            offset = int(cursor or 0)
            found = list(await self._run(self._conversations.list_newest, cwd, offset, PAGE + 1))
        listed = [
            {"sessionId": each.session_id, "cwd": each.cwd or cwd or "/", "title": get_title(each)}
            | {"updatedAt": get_time(each)}
            for each in found[:PAGE]
        ]
        more = {"nextCursor": str(offset + PAGE)} if len(found) > PAGE else {}
        return schema.ListSessionsResponse.model_validate({"sessions": listed, **more})

    async def close_session(self, session_id: str, **_: Any) -> None:
        """End the child of a session; the conversation is kept."""
        session = self._get(session_id)
        await session.cancel()
        async with self._opening:  # else a child that is being started would be left
            if self._sessions.get(session_id) is session:
                del self._sessions[session_id]
            await session.close()

    async def ext_method(self, method: str, params: dict[str, Any]) -> Any:
        """Serve a method that the library does not route; called by the library."""
        if method == STEERING_METHOD:
            return await self._steer(params)
        if method != AGENT_METHODS["session_delete"]:
            raise RequestError.method_not_found(f"_{method}")
        await self.delete_session(schema.DeleteSessionRequest.model_validate(params).session_id)
        return {}

    async def _steer(self, params: dict[str, Any]) -> dict[str, Any]:
        """Give words to the turn that runs. Without one they are a new turn, unless the editor wants to send that."""
        request = schema.PromptRequest.model_validate(params)
        session = self._get(request.session_id)
        with _translate_errors(request.session_id):
            wants_prompt = _wants_prompt(request.field_meta or {})
            if await session.steer(_read_content(request.prompt)):
                return {"outcome": "injected"}
        if wants_prompt:
            return {"outcome": "promptRequired", "reason": "noRunningTurn"}
        self._tasks.start_soon(self._prompt_unasked, request)
        return {"outcome": "startedNewTurn"}

    async def _prompt_unasked(self, request: schema.PromptRequest) -> None:
        try:
            await self.prompt(request.session_id, request.prompt)
        except RequestError as error:  # no request of the editor waits for it
            log.warning("session %s: a turn that steering has started failed: %s", request.session_id, error)

    async def delete_session(self, session_id: str) -> None:
        """End the child of a session, and delete its conversation; nothing happens if there is none."""
        if session_id in self._sessions:
            await self.close_session(session_id)
        try:
            uuid.UUID(session_id)
        except ValueError:
            return
        with _translate_errors(session_id):
            await self._run(self._conversations.delete, session_id)

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> Any:
        """Send a prompt, and return when it is answered."""
        session = self._get(session_id)
        with _translate_errors(session_id):
            content = _read_content(prompt)
            count = session.cancel_count
            if session.session is None:
                await self._wake(session)
            reason, usage = await session.prompt(content) if session.cancel_count == count else ("cancelled", None)
        return schema.PromptResponse.model_validate({"stopReason": reason, "usage": usage})

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop what a session is doing."""
        if (session := self._sessions.get(session_id)) is not None:
            await session.cancel()

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> Any:
        """Change the mode of a session."""
        await self.set_config_option("mode", session_id, mode_id)
        return schema.SetSessionModeResponse()

    async def set_config_option(self, config_id: str, session_id: str, value: str | bool, **_: Any) -> Any:
        """Change the mode, the model or the effort of a session."""
        session = self._get(session_id)
        with _translate_errors(session_id):
            await self._wake(session)
            await session.set_option(config_id, value)
            options = session.list_options()
        return schema.SetSessionConfigOptionResponse.model_validate({"configOptions": options})

    async def authenticate(self, method_id: str, **_: Any) -> Any:
        """Let the user log in at Claude; the login is kept for every Claude Code of the user."""
        with _translate_errors():
            if not self._list_logins():
                raise UsageError("the login of a host is that of its operator")
            await log_in(self._agent, method_id)
        return schema.AuthenticateResponse()

    def _list_logins(self) -> list[dict[str, Any]]:
        return [] if self._conversations.outlives_editor else list(METHODS)

    # Sessions.

    async def aclose(self) -> None:
        """End all children, or leave them at their host. Idempotent."""
        async with anyio.create_task_group() as closing:
            for session in self._sessions.values():
                closing.start_soon(session.leave if self._conversations.outlives_editor else session.close)
        self._sessions.clear()

    def _get(self, session_id: str) -> AcpSession:
        if (session := self._sessions.get(session_id)) is None:
            raise _make_unknown(session_id)
        return session

    async def _find(self, session_id: str) -> SessionInfo:
        found = None
        with contextlib.suppress(ValueError):
            uuid.UUID(session_id)
            found = await self._run(self._conversations.find, session_id)
        if found is None:
            raise _make_unknown(session_id)
        return found

    async def _run(self, function: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments)

    async def _reopen(
        self, session_id: str, cwd: str, given: Mapping[str, Any], history: Sequence[Message] | None = None
    ) -> AcpSession:
        if session_id not in self._sessions:
            await self._find(session_id)
        return await self._open(session_id, cwd, given, None, history)

    async def _open(
        self,
        session_id: str,
        cwd: str,
        given: Mapping[str, Any],
        start: Mapping[str, Any] | None,
        history: Sequence[Message] | None = None,
    ) -> AcpSession:
        """Start a session as `start` says. None: continue it; one that is open and has the same settings stays."""
        settings = _read_settings(cwd, given, self._agent.options)
        if self._agent.options.cwd is not None:
            settings["cwd"] = str(self._agent.options.cwd)
        async with self._opening:
            session = self._sessions.pop(session_id, None)
            if session is not None and session.session is not None:
                if session.settings == settings:
                    self._sessions[session_id] = session
                    if history is not None:
                        await session.replay(history)
                    return session
                await session.close()
            session = AcpSession(session_id, self._agent, self, settings, self._conversations)
            await self._start(session, start, history)
            self._sessions[session_id] = session
            return session

    async def _start(
        self, session: AcpSession, start: Mapping[str, Any] | None = None, history: Sequence[Message] | None = None
    ) -> None:
        """Start the child of a session. If too many run, the one that was idle for longest ends."""
        running = [each for each in self._sessions.values() if each.session is not None]
        idle = sorted((each for each in running if not each.is_busy), key=lambda each: each.used_at)
        if len(running) >= MAX_CHILDREN and idle:
            await idle[0].close()
        source = session.id if start is None else None
        place = await self._run(self._conversations.make_settings, source, session.settings["cwd"])
        await session.start(self._tasks, {**place, **(start or {})}, history)

    async def _wake(self, session: AcpSession) -> None:
        """Start the child of a session that was ended, if it was; raises RequestError if the session was closed."""
        async with self._opening:
            if self._sessions.get(session.id) is not session:
                raise _make_unknown(session.id)
            session.used_at = time.monotonic()
            if session.session is None:
                await self._start(session)

    def _respond(self, kind: Any, session: AcpSession) -> Any:
        described = session.describe()
        if "session_id" in kind.model_fields:
            described["sessionId"] = session.id
        self._tasks.start_soon(session.send_commands)  # after the response: before it, the editor knows no session
        return kind.model_validate(described)


def _read_content(prompt: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the content of a prompt; raises UsageError."""
    return read_prompt([block.model_dump(mode="json", by_alias=True) for block in prompt], UsageError)


def _wants_prompt(meta: Mapping[str, Any]) -> bool:
    """Whether words without a turn are left to the editor; raises UsageError for an unknown behaviour."""
    steering = meta.get("steering")
    behaviour: Any = cast("Mapping[str, Any]", steering).get("idleBehavior") if isinstance(steering, Mapping) else None
    if behaviour not in (None, "promptRequired"):
        raise UsageError(f"_meta.steering.idleBehavior: expected promptRequired, got {behaviour!r:.80}")
    return behaviour is not None


def _read_settings(cwd: str, given: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the options of a session that the editor chooses, added to those of the agent."""
    _check_directory(cwd)
    settings: dict[str, Any] = {"cwd": cwd}
    if directories := given.get("additional_directories"):
        for directory in directories:
            _check_directory(directory, "additionalDirectories")
        settings["add_dirs"] = [*(options.add_dirs or ()), *directories]
    servers: dict[str, Any] = {}
    for server in given.get("mcp_servers") or ():
        if isinstance(server, schema.McpServerStdio):
            env = {each.name: each.value for each in server.env}
            servers[server.name] = StdioServer(command=server.command, args=list(server.args), env=env)
        elif isinstance(server, schema.HttpMcpServer | schema.SseMcpServer):
            kind = HttpServer if isinstance(server, schema.HttpMcpServer) else SseServer
            headers = {each.name: each.value for each in server.headers}
            servers[server.name] = kind(url=str(server.url), headers=headers)
        else:
            raise UsageError(f"mcpServers: {server.name!r:.80} has a transport that is not supported")
    if servers:
        own = options.mcp_servers
        settings["mcp_servers"] = {**(own if isinstance(own, dict) else {}), **servers}
    return settings


def _check_directory(path: str, name: str = "cwd") -> None:
    if not os.path.isabs(path):  # noqa: PTH117 - a text of the editor
        raise UsageError(f"{name}: expected an absolute path, got {path!r:.200}")


def _make_unknown(session_id: str) -> RequestError:
    return RequestError(-32002, f"there is no session {session_id!r:.80}", {"sessionId": session_id})


@contextlib.contextmanager
def _translate_errors(session_id: str = "") -> Any:
    try:
        yield
    except SessionNotFoundError:
        raise _make_unknown(session_id) from None
    except PilothouseError as error:
        is_login = isinstance(error, AuthenticationError | LoginError)
        code = -32000 if is_login else -32602 if isinstance(error, UsageError) else -32603
        raise RequestError(code, str(error), {"type": type(error).__name__}) from None


@contextlib.contextmanager
def _translate_editor_errors() -> Any:
    try:
        yield
    except ConnectionError as error:
        raise EditorGoneError from error
    except RequestError as error:
        raise ValueError(f"{error} ({error.code})") from error
