"""The engine: reads the wire, queues prompts, runs one turn after the other, and answers control requests.

Owns the life of a session: its start, its end, and the exit code, and the set of control requests. Works the same
whether bytes come through pipes or from another task of this process.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import anyio
from anyio.abc import TaskGroup

from pilothouse.errors import LineDecodeError
from pilothouse.options import PrivateFile
from pilothouse.support import LoopCondition, decode_line, run_blocking
from pilothouse_native import frames, prompts
from pilothouse_native.api import ApiError, MessagesApi
from pilothouse_native.configuration import EngineSettings, read_memory, read_settings
from pilothouse_native.flags import EngineArguments, FlagError, parse_arguments
from pilothouse_native.history import CLI_VERSION, History
from pilothouse_native.mcp import McpServer, read_servers
from pilothouse_native.models import context_tokens, get_model, list_models
from pilothouse_native.pictures import fit_pictures
from pilothouse_native.state import SessionState, find_config_dir
from pilothouse_native.tool_calls import PermissionChecker
from pilothouse_native.tools.base import BuiltinTool, Workplace
from pilothouse_native.turn import EngineTurn, TranscriptWriter, TurnPrompt, find_command, run_command
from pilothouse_native.wire import JsonObject, Wire, WirePort, as_object, as_objects, join_text
from pilothouse_transcripts import list_sessions

NO_PROMPT = "Error: Input must be provided either through stdin or as a prompt argument when using --print"


class _StartRefused(Exception):  # noqa: N818 - a signal inside this file
    """The session cannot start; the message goes to standard error."""


class _SessionMissing(_StartRefused):
    """There is no session to resume; the message is that of a result, too."""


class Engine:
    """One session, with the flags of the CLI; `files` are values passed as files instead of flags."""

    def __init__(
        self,
        port: WirePort,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        files: Sequence[PrivateFile] = (),
        api: MessagesApi | None = None,
        tools: Mapping[str, BuiltinTool] | None = None,
        keep_detached: bool = False,
    ) -> None:
        self._port, self._argv, self._env, self._cwd, self._files = port, argv, env, cwd, files
        self._api = api or MessagesApi()
        self._tools = tools
        self._keep_detached = keep_detached
        self._wire = Wire(port)
        self._queue: deque[TurnPrompt] = deque()
        self._wakeup = LoopCondition()
        self._input_ended = False
        self._turn: EngineTurn | None = None
        self._turn_scope: anyio.CancelScope | None = None
        self._last_failed = False
        self._has_failed = False
        self._is_ending = False
        self._notes: list[str] = []
        self._usage: JsonObject = {}

    async def run(self) -> int:
        """Run until the input ends and every prompt is answered; returns the exit code."""
        try:
            try:
                launch, settings, history, workplace, memory = await run_blocking(self._read_configuration)
            finally:
                for note in self._notes:
                    self._wire.stderr(note)
        except (FlagError, _StartRefused) as error:
            if isinstance(error, _SessionMissing):
                await self._wire.send(frames.failed_start(str(error)))
            self._wire.stderr(str(error))
            return 1
        self._wire.session_id = history.session_id
        state = self._state = SessionState(
            launch, settings, self._env, self._wire, history, workplace, self._api, self._tools
        )
        state.memory = memory
        try:
            await self._run_session(launch, state)
        finally:
            with anyio.CancelScope(shield=True):
                await workplace.close()
                await self._api.aclose()
        return 1 if self._has_failed or (self._last_failed and not self._is_ending) else 0

    # Start.

    def _read_configuration(self) -> tuple[EngineArguments, EngineSettings, History, Workplace, str]:
        """Read everything that the session starts with. Blocking."""
        launch, config_dir = parse_arguments(self._argv, self._cwd, self._files), find_config_dir(self._env)
        settings = read_settings(launch, self._cwd, config_dir)
        self._notes += [
            f"--{flag} has no effect: the native engine has nothing like it" for flag in launch.ignored_flags
        ]
        self._notes += [f"settings: {problem}" for problem in settings.problems]
        history = self._open_history(launch, config_dir)
        folders = [(self._cwd / folder).resolve() for folder in settings.directories]
        env = {**self._env, **settings.env}  # for commands; the API client takes nothing from settings
        workplace = Workplace(self._cwd, folders, env, ask_model=self._ask_model, keep_detached=self._keep_detached)
        found = [] if launch.bare else read_memory(launch.setting_sources, self._cwd, config_dir)
        return launch, settings, history, workplace, prompts.format_memory(found)

    def _open_history(self, launch: EngineArguments, config_dir: Path) -> History:
        new = launch.session_id or str(uuid.uuid4())
        history = History(new, self._cwd, config_dir, persists=not launch.no_session_persistence)
        wanted = launch.resume
        if launch.continue_latest and wanted is None:
            found = list_sessions(self._cwd, 1, config_dir=config_dir)
            if not found:
                raise _StartRefused("No conversation found to continue")
            wanted = found[0].session_id
        if wanted is not None:
            if not history.resume(wanted, up_to=launch.resume_session_at, fork=launch.fork_session):
                raise _SessionMissing(f"No conversation found with session ID: {wanted}")
        elif launch.session_id is not None and history.exists():
            raise _StartRefused(f"Error: Session ID {launch.session_id} is already in use.")
        if launch.name:
            history.add_metadata("custom-title", customTitle=launch.name)
        return history

    # Main loop.

    async def _run_session(self, launch: EngineArguments, state: SessionState) -> None:
        self._permissions = PermissionChecker(state)
        self._writer = TranscriptWriter(state.history, self._wire, is_mirrored=launch.session_mirror)
        self._controls = ControlRequestHandler(state, self._permissions, self)
        self._task_group: TaskGroup
        async with anyio.create_task_group() as self._task_group:
            self._task_group.start_soon(self._api.connect, self._env)
            for name, config in launch.mcp_config.items():
                self.connect_server(state.servers.add(name, config))
            await self._queue_first_prompt(launch)
            if launch.input_format == "stream-json":
                self._task_group.start_soon(self._read_input)
            else:
                self._end_input()
            await self._process_queue(state)
            self._task_group.cancel_scope.cancel()
        await self._writer.flush()

    async def _queue_first_prompt(self, launch: EngineArguments) -> None:
        text = launch.prompt
        if launch.input_format == "text" and text is None:
            lines: list[bytes] = []
            while line := await self._port.read_line():
                lines.append(line)
            text = b"".join(lines).decode("utf-8", "replace").strip()
            if not text:
                self._wire.stderr(NO_PROMPT)
                self._has_failed = True
                return
        if text is not None:
            self._queue.append(TurnPrompt(text))

    async def _process_queue(self, state: SessionState) -> None:
        while not self._has_failed and not self._is_ending:
            if self._queue:
                await self._answer_prompt(state, self._queue.popleft())
            elif self._input_ended:
                return
            else:
                await self._wakeup.wait()

    async def _answer_prompt(self, state: SessionState, prompt: TurnPrompt) -> None:
        turn = self._turn = EngineTurn(state, self._permissions, self._writer, prompt)
        with anyio.CancelScope() as self._turn_scope:
            await self._send_lifecycle(prompt, "started")  # from here on an interrupt cancels the turn
            command = find_command(state, prompt.text, prompt.frame)
            if command is not None:
                about = await run_command(state, *command, prompt.uuid)
                await turn.finish_without_model(about)
            else:
                await turn.run()
        was_interrupted = not turn.is_finished
        if was_interrupted:
            with anyio.CancelScope(shield=True):
                await turn.finish_interrupted()
        self._last_failed = turn.is_error
        self._usage, self._turn = self.get_usage(), None
        await self._send_lifecycle(prompt, "cancelled" if was_interrupted else "completed")

    async def _send_lifecycle(self, prompt: TurnPrompt, state: str) -> None:
        if prompt.uuid is not None:
            await self._wire.send(frames.lifecycle(prompt.uuid, state))

    async def _ask_model(self, prompt: str, text: str) -> str:
        """Send a request of a tool to the model, outside the conversation."""
        asked: list[JsonObject] = [{"role": "user", "content": [{"type": "text", "text": f"{text}\n\n{prompt}"}]}]
        request = {"model": self._state.model, "max_tokens": 4096, "messages": asked}
        try:
            message, _ = await self._api.create(request)
        except ApiError as error:
            return f"[the model could not be asked: {error.message}]"
        return join_text(message["content"])

    # Input from the host.

    async def _read_input(self) -> None:
        while line := await self._port.read_line():
            if not line.strip():
                continue
            try:
                frame = decode_line(line)
            except LineDecodeError:
                self._fail(f"Error parsing streaming input line ({len(line.rstrip())} chars): not JSON")
                return
            if isinstance(frame, dict):
                await self._handle_frame(cast("JsonObject", frame))
            if self._has_failed or self._is_ending:
                return
        self._end_input()

    async def _handle_frame(self, frame: JsonObject) -> None:
        match frame.get("type"):
            case "control_request":
                await self._controls.handle(str(frame.get("request_id")), as_object(frame.get("request")))
            case "control_response":
                self._wire.on_response(frame)
            case "user":
                await self._queue_prompt(frame)
            case _:
                pass  # keep_alive, cancelled requests and unknown types: ignored, as in the CLI

    async def _queue_prompt(self, frame: JsonObject) -> None:
        content: Any = as_object(frame.get("message")).get("content")
        if not isinstance(content, str) and not (content and as_objects(content) == content):
            self._fail("Error: a user message has no content")
            return
        name = frame.get("uuid")
        content = await fit_pictures(cast("str | list[JsonObject]", content))
        prompt = TurnPrompt(content, str(name) if name else None, frame)
        self._queue.append(prompt)
        await self._send_lifecycle(prompt, "queued")
        self._wakeup.notify_all()

    def _fail(self, reason: str) -> None:
        """Report input that cannot be understood, and end the program, as the CLI does."""
        self._wire.stderr(reason)
        self._has_failed = True
        self._task_group.cancel_scope.cancel()

    def _end_input(self) -> None:
        self._input_ended = True
        self._wire.end_input()
        self._wakeup.notify_all()

    # Effects of control requests.

    def get_usage(self) -> JsonObject:
        """Return the usage of the last reply."""
        return (self._turn.usage if self._turn is not None else {}) or self._usage

    def interrupt(self, *, cancel_queued: bool) -> JsonObject:
        """Interrupt the running turn; the response names the queued prompts."""
        waiting = [prompt for prompt in self._queue if prompt.uuid is not None]
        names = [prompt.uuid for prompt in waiting]
        answer: JsonObject = {"still_queued": [] if cancel_queued else names}
        if cancel_queued:
            answer["cancelled"] = names
            self._queue.clear()
        self._task_group.start_soon(self._interrupt_turn, self._turn, waiting if cancel_queued else [])
        return answer

    async def _interrupt_turn(self, turn: EngineTurn | None, cancelled: list[TurnPrompt]) -> None:
        """Cancel the turn in a task, after the response to the interrupt, which comes first on the wire."""
        if turn is not None and turn is self._turn and self._turn_scope is not None:
            self._turn_scope.cancel()
        for prompt in cancelled:
            await self._send_lifecycle(prompt, "cancelled")

    def cancel_prompt(self, prompt_uuid: str) -> bool:
        """Remove a prompt from the queue; returns whether it was there."""
        found = next((prompt for prompt in self._queue if prompt.uuid == prompt_uuid), None)
        if found is None:
            return False
        self._queue.remove(found)
        self._task_group.start_soon(self._send_lifecycle, found, "cancelled")
        return True

    def connect_server(self, server: McpServer) -> None:
        """Start a handshake in a task, also after one that failed."""
        if server.is_supported:
            server.ready = anyio.Event()
            self._task_group.start_soon(server.connect)

    def end_session(self) -> None:
        """End the session and cancel the running turn."""
        self._is_ending = True
        self._task_group.start_soon(self._cancel_turn)

    async def _cancel_turn(self) -> None:
        if self._turn_scope is not None:
            self._turn_scope.cancel()
        self._wakeup.notify_all()


DEFAULT_READ_BYTES: Final = 1 << 20
"""Default limit of bytes that `read_file` returns."""
INITIALIZE_FIELDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "appendSystemPrompt": str,
    "hooks": dict,
    "jsonSchema": dict,
    "mcpServers": dict,
    "sdkMcpServerConfigs": dict,
    "sdkMcpServers": list,
    "systemPrompt": (list, str),
    "title": str,
}
"""The fields of `initialize` that the engine uses, with their types; all others have no meaning here."""


class ControlRefusedError(Exception):
    """A request cannot be carried out; the host gets the message and the code."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ControlRequestHandler:
    """Handles the control requests of one session: the method `_on_…` of each, which returns the response."""

    def __init__(self, state: SessionState, permissions: PermissionChecker, engine: Engine) -> None:
        self._state, self._permissions, self._engine = state, permissions, engine

    async def handle(self, request_id: str, request: JsonObject) -> None:
        """Respond to any request."""
        subtype = str(request.get("subtype"))
        known = getattr(self, f"_on_{subtype}", None)
        wire = self._state.wire
        if known is None:
            await wire.respond_error(
                request_id, f"Unsupported control request subtype: {subtype}", "unsupported_request"
            )
            return
        try:
            payload = await known(request)
        except ControlRefusedError as error:
            await wire.respond_error(request_id, str(error), error.code)
        except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
            await wire.respond_error(request_id, f"{subtype}: {error}")
        else:
            await wire.respond(request_id, payload)

    # The session.

    async def _on_initialize(self, request: JsonObject) -> JsonObject:
        state = self._state
        for key, kind in INITIALIZE_FIELDS.items():
            if request.get(key) is not None and not isinstance(request[key], kind):
                raise ControlRefusedError(f"initialize: {key} has a wrong type")
        state.hooks.register(request.get("hooks") or {})
        state.initialize_request = request
        if isinstance(request.get("jsonSchema"), dict):
            state.schema = request["jsonSchema"]
        if request.get("title"):
            state.history.add_metadata("custom-title", customTitle=str(request["title"]))
        for name, config in read_servers(request).items():
            if name not in state.servers:
                self._engine.connect_server(state.servers.add(name, config))
        return frames.initialize_response(state, os.getpid())

    async def _on_interrupt(self, request: JsonObject) -> JsonObject:
        return self._engine.interrupt(cancel_queued=request.get("cancel_queued") is True)

    async def _on_cancel_async_message(self, request: JsonObject) -> JsonObject:
        return {"cancelled": self._engine.cancel_prompt(str(request.get("message_uuid")))}

    async def _on_end_session(self, request: JsonObject) -> None:
        self._engine.end_session()

    async def _on_rename_session(self, request: JsonObject) -> None:
        title = str(request.get("title") or "").strip()
        if not title:
            raise ControlRefusedError("rename_session: no title")
        self._state.history.add_metadata("custom-title", customTitle=title)
        await self._state.wire.send(frames.system("session_title_changed", title=title))

    async def _on_set_has_subscribers(self, request: JsonObject) -> None:
        return None

    # The model.

    async def _on_set_model(self, request: JsonObject) -> JsonObject:
        given = request.get("model")
        if given is not None and not isinstance(given, str):
            raise ControlRefusedError("set_model: the model is not text")
        model = self._state.set_model(given)
        shown = f"{given} ({model})" if given and given != model else model
        text = f"<local-command-stdout>Set model to `{shown}`</local-command-stdout>"
        await self._state.wire.send(frames.user(text, isReplay=True))
        return {"model": model}

    async def _on_set_max_thinking_tokens(self, request: JsonObject) -> None:
        tokens = request.get("max_thinking_tokens")
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0):
            raise ControlRefusedError("set_max_thinking_tokens: not a number of tokens")
        self._state.thinking_tokens = tokens

    async def _on_list_models(self, request: JsonObject) -> JsonObject:
        return {"models": list_models()}

    async def _on_apply_flag_settings(self, request: JsonObject) -> None:
        settings = as_object(request.get("settings"))
        if others := sorted(settings.keys() - {"effortLevel", "model"}):
            raise ControlRefusedError(
                f"apply_flag_settings: the native engine changes effortLevel and model while it runs, not "
                f"{', '.join(others)}; nothing was applied"
            )
        for key in ("effortLevel", "model"):
            if not isinstance(settings.get(key), str | None):
                raise ControlRefusedError(f"apply_flag_settings: {key} is not text")
        if "effortLevel" in settings:
            self._state.effort = settings["effortLevel"]
        if "model" in settings:
            self._state.set_model(settings["model"])

    # Permissions.

    async def _on_set_permission_mode(self, request: JsonObject) -> JsonObject:
        mode = str(request.get("mode"))
        code = await self._permissions.set_mode(mode)
        if code is not None:
            raise ControlRefusedError(f"Cannot set permission mode to {mode}", code)
        return {"mode": self._state.permission_mode}

    async def _on_list_permission_rules(self, request: JsonObject) -> JsonObject:
        rules = [
            {"behavior": behavior, "source": "session", "rule": rule, "editability": "session"}
            for behavior in ("allow", "deny", "ask")
            for rule in getattr(self._state.settings, behavior)
        ]
        root = str(self._state.workplace.root)
        return {"state": {"rules": rules, "workspaceDirectories": [], "originalCwd": root, "managedOnly": False}}

    async def _on_get_hooks_listing(self, request: JsonObject) -> JsonObject:
        return {"events": [], "hooks": self._state.hooks.listing(), "eventCatalog": []}

    # Servers.

    def _get_server(self, request: JsonObject) -> McpServer:
        name = str(request.get("serverName"))
        server = self._state.servers.get(name)
        if server is None:
            raise ControlRefusedError(f"Server not found: {name}")
        return server

    async def _on_mcp_status(self, request: JsonObject) -> JsonObject:
        return {"mcpServers": [server.make_status() for server in self._state.servers.values()]}

    async def _on_mcp_set_servers(self, request: JsonObject) -> JsonObject:
        servers, wanted = self._state.servers, as_object(request.get("servers"))
        removed = [name for name in servers if name not in wanted]
        added = [name for name in wanted if name not in servers]
        for name in removed:
            del servers[name]
        for name in added:
            self._engine.connect_server(servers.add(name, as_object(wanted[name])))
        return {"added": added, "removed": removed, "errors": {n: servers[n].error for n in added if servers[n].error}}

    async def _on_mcp_reconnect(self, request: JsonObject) -> None:
        self._engine.connect_server(self._get_server(request))

    async def _on_mcp_toggle(self, request: JsonObject) -> None:
        server = self._get_server(request)
        if request.get("enabled"):
            self._engine.connect_server(server)
        else:
            server.status = "disabled"

    async def _on_mcp_message(self, request: JsonObject) -> None:
        server = self._state.servers.get(str(request.get("server_name")))
        message = as_object(request.get("message"))
        if server is not None and message.get("method") == "notifications/tools/list_changed":
            self._engine.connect_server(server)

    # Information.

    async def _on_get_binary_version(self, request: JsonObject) -> JsonObject:
        return {"version": CLI_VERSION}

    async def _on_get_session_cost(self, request: JsonObject) -> JsonObject:
        totals = self._state.totals
        unknown = " (models without a known price not counted)" if totals.has_unknown_cost else ""
        return {"text": f"Estimated cost: ${totals.cost_usd:.4f}{unknown}\nTime of the API: {totals.api_seconds:.1f} s"}

    async def _on_get_usage(self, request: JsonObject) -> JsonObject:
        totals = self._state.totals
        session = {"total_cost_usd": totals.cost_usd, "model_usage": totals.models}
        session |= {"total_api_duration_ms": round(totals.api_seconds * 1000)}
        return {"session": session, "subscription_type": None, "rate_limits_available": False, "rate_limits": None}

    async def _on_get_context_usage(self, request: JsonObject) -> JsonObject:
        window, tokens = get_model(self._state.model).window, context_tokens(self._engine.get_usage())
        about: JsonObject = {"percentage": round(100 * tokens / window, 1), "model": self._state.model}
        return about | {"categories": [], "totalTokens": tokens, "maxTokens": window, "rawMaxTokens": window}

    async def _on_get_settings(self, request: JsonObject) -> JsonObject:
        applied = {"model": self._state.model, "effort": self._state.effort}
        settings = self._state.settings
        errors = {"errors": settings.errors} if settings.errors else {}
        return {"effective": {}, "sources": settings.sources, "applied": applied, **errors}

    async def _on_read_file(self, request: JsonObject) -> JsonObject:
        given = str(request.get("path"))
        path = self._state.workplace.resolve_path(given)
        limit = request.get("max_bytes") or DEFAULT_READ_BYTES
        data = await run_blocking(_read_head, path, limit + 1)
        text = data[:limit].decode("utf-8", "replace")
        return {"contents": text, "absPath": str(path), "truncated": len(data) > limit, "requested_path": given}


def _read_head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
