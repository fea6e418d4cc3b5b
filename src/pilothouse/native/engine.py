"""The engine: reads the wire, queues prompts, and runs one turn after the other.

Owns the life of a session: its start, its end, and the exit code. Works the same whether bytes come through pipes or
from another task of this process.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from pilothouse.errors import LineDecodeError
from pilothouse.messages.json_lines import decode_line
from pilothouse.native import frames, prompts
from pilothouse.native.api import ApiError, MessagesApi
from pilothouse.native.commands import find_command, run_command
from pilothouse.native.configuration import EngineArguments, FlagError, parse_arguments, read_memory, read_settings
from pilothouse.native.controls import ControlRequestHandler
from pilothouse.native.history import History
from pilothouse.native.mcp import McpServer
from pilothouse.native.state import SessionState, find_config_dir
from pilothouse.native.tool_calls import PermissionChecker
from pilothouse.native.tools.base import BuiltinTool, Workplace
from pilothouse.native.turn import EngineTurn, TranscriptWriter, TurnEnd, TurnPrompt
from pilothouse.native.wire import JsonObject, Wire, WirePort, as_objects
from pilothouse.options import PrivateFile
from pilothouse.options.permission_rules import RuleSet
from pilothouse.options.secrets import mask
from pilothouse.transcripts import list_sessions
from pilothouse.transports.concurrency import run_blocking

NO_PROMPT = "Error: Input must be provided either through stdin or as a prompt argument when using --print"


class ApiAccess(Struct, frozen=True):
    """How to reach the Messages API; None values come from the environment."""

    base_url: str | None = None
    api_key: str | None = None
    client: Any = None

    def __repr__(self) -> str:
        return f"ApiAccess({mask(self.base_url)!r})"


class _StartRefused(Exception):  # noqa: N818 - a signal inside this file
    """The session cannot start; the message goes to standard error."""


class Engine:
    """One session.

    Args:
        port: input and output lines.
        argv: the flags of the CLI.
        env: the environment.
        cwd: the working directory.
        files: values passed as files instead of flags.
        access: how to reach the API.
        tools: the built-in tools, by name; None: those of the engine.
    """

    def __init__(
        self,
        port: WirePort,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        files: Sequence[PrivateFile] = (),
        access: ApiAccess | None = None,
        tools: Mapping[str, BuiltinTool] | None = None,
    ) -> None:
        self._port, self._argv, self._env, self._cwd, self._files = port, argv, env, cwd, files
        self._access = access or ApiAccess()
        self._tools = tools
        self._wire = Wire(port)
        self._queue: deque[TurnPrompt] = deque()
        self._wakeup = anyio.Event()
        self._input_ended = False
        self._turn: EngineTurn | None = None
        self._turn_scope: anyio.CancelScope | None = None
        self._task_group: TaskGroup | None = None
        self._api: MessagesApi | ApiError | None = None
        self._api_ready = anyio.Event()
        self._last_failed = False
        self._has_failed = False
        self._is_ending = False
        self._usage: JsonObject = {}

    async def run(self) -> int:
        """Run until the input ends and every prompt is answered; returns the exit code."""
        try:
            launch = await run_blocking(parse_arguments, self._argv, self._cwd, self._files)
            state = await self._make_state(launch)
        except (FlagError, _StartRefused) as error:
            self._wire.stderr(str(error))
            return 1
        if state is None:
            return 1
        try:
            await self._run_session(launch, state)
        finally:
            with anyio.CancelScope(shield=True):
                await state.workplace.close()
                if isinstance(self._api, MessagesApi):
                    await self._api.aclose()
        return 1 if self._has_failed or (self._last_failed and not self._is_ending) else 0

    # Start.

    async def _make_state(self, launch: EngineArguments) -> SessionState | None:
        for flag in launch.ignored_flags:
            self._wire.stderr(f"--{flag} has no effect: the native engine has nothing like it")
        config_dir = find_config_dir(self._env)
        settings = await run_blocking(read_settings, launch, self._cwd, config_dir)
        for problem in settings.problems:
            self._wire.stderr(f"settings: {problem}")
        history = await self._open_history(launch, config_dir)
        if history is None:
            return None
        env = {**self._env, **settings.env}  # for commands; the API client takes nothing from settings
        workplace = await run_blocking(self._make_workplace, settings.directories, env)
        rules = RuleSet.parse(allow=settings.allow, ask=settings.ask, deny=settings.deny)
        tools = _load_builtin_tools() if self._tools is None else self._tools
        state = self._state = SessionState(launch, settings, self._env, self._wire, history, workplace, rules, tools)
        state.totals.restore(history.cost_row)
        if not launch.is_bare:
            found = await run_blocking(read_memory, launch.setting_sources, self._cwd, config_dir)
            state.memory = prompts.format_memory(found)
        if launch.title:
            history.add_metadata("custom-title", customTitle=launch.title)
        return state

    def _make_workplace(self, directories: Sequence[str], env: Mapping[str, str]) -> Workplace:
        folders = [(self._cwd / folder).resolve() for folder in directories]
        return Workplace(self._cwd, folders, env, ask_model=self._ask_model)

    async def _open_history(self, launch: EngineArguments, config_dir: Path) -> History | None:
        new = launch.session_id or str(uuid.uuid4())
        history = await run_blocking(lambda: History(new, self._cwd, config_dir, persists=launch.persists))
        wanted = launch.resume
        if launch.continue_latest and wanted is None:
            found = await run_blocking(lambda: list_sessions(self._cwd, 1, config_dir=config_dir))
            if not found:
                raise _StartRefused("No conversation found to continue")
            wanted = found[0].session_id
        if wanted is None:
            if launch.session_id is not None and await run_blocking(history.exists):
                raise _StartRefused(f"Error: Session ID {launch.session_id} is already in use.")
        elif not await run_blocking(lambda: history.resume(wanted, up_to=launch.resume_at, fork=launch.fork)):
            await self._report_missing_session(wanted)
            return None
        self._wire.session_id = history.session_id
        return history

    async def _report_missing_session(self, wanted: str) -> None:
        text = f"No conversation found with session ID: {wanted}"
        self._wire.stderr(text)
        about: JsonObject = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 0}
        about |= {"duration_ms": 0, "duration_api_ms": 0, "stop_reason": None, "total_cost_usd": 0, "usage": {}}
        await self._wire.send(about | {"modelUsage": {}, "permission_denials": [], "errors": [text], "result_index": 0})

    # Main loop.

    async def _run_session(self, launch: EngineArguments, state: SessionState) -> None:
        self._permissions = PermissionChecker(state)
        self._writer = TranscriptWriter(state.history, self._wire, is_mirrored=launch.session_mirror)
        self._controls = ControlRequestHandler(state, self._permissions, self)
        async with anyio.create_task_group() as self._task_group:
            self._task_group.start_soon(self._connect_api)
            for name, config in launch.mcp_servers.items():
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

    async def _connect_api(self) -> None:
        access = self._access
        try:
            self._api = await MessagesApi.connect(self._state.env, access.base_url, access.api_key, access.client)
        except ApiError as error:
            self._api = error
        self._api_ready.set()

    async def _wait_for_api(self) -> MessagesApi:
        await self._api_ready.wait()
        if isinstance(self._api, ApiError):
            raise ApiError(self._api.message, status=self._api.status, kind=self._api.kind)
        assert self._api is not None
        return self._api

    async def _process_queue(self, state: SessionState) -> None:
        while not self._has_failed and not self._is_ending:
            if self._queue:
                await self._answer_prompt(state, self._queue.popleft())
            elif self._input_ended:
                return
            else:
                await self._wakeup.wait()

    async def _answer_prompt(self, state: SessionState, prompt: TurnPrompt) -> None:
        turn = self._turn = EngineTurn(state, self._wait_for_api, self._permissions, self._writer, prompt)
        with anyio.CancelScope() as self._turn_scope:
            await self._send_lifecycle(prompt, "started")  # from here on an interrupt cancels the turn
            command = find_command(state, prompt.text, prompt.frame)
            if command is not None:
                about = await run_command(state, self._wait_for_api, *command, prompt.uuid)
                await turn.finish_command(TurnEnd(about, is_error=about["is_error"]))
            else:
                await turn.run()
        was_interrupted = not turn.is_finished
        if was_interrupted:
            with anyio.CancelScope(shield=True):
                await turn.finish_interrupted()
        self._last_failed = turn.is_error
        self._usage, self._turn = self.usage, None
        await self._send_lifecycle(prompt, "cancelled" if was_interrupted else "completed")

    async def _send_lifecycle(self, prompt: TurnPrompt, state: str) -> None:
        if prompt.uuid is not None:
            await self._wire.send(frames.lifecycle(prompt.uuid, state))

    async def _ask_model(self, prompt: str, text: str) -> str:
        """Send a request of a tool to the model, outside the conversation."""
        api = await self._wait_for_api()
        asked: list[JsonObject] = [{"role": "user", "content": [{"type": "text", "text": f"{text}\n\n{prompt}"}]}]
        request = {"model": self._state.model, "max_tokens": 4096, "messages": asked}
        try:
            message, _ = await api.create(request)
        except ApiError as error:
            return f"[the model could not be asked: {error.message}]"
        return "\n".join(block["text"] for block in message["content"] if block.get("type") == "text")

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
                request = frame.get("request")
                body = cast("JsonObject", request) if isinstance(request, dict) else {}
                await self._controls.handle(str(frame.get("request_id")), body)
            case "control_response":
                self._wire.on_response(frame)
            case "user":
                await self._queue_prompt(frame)
            case _:
                pass  # keep_alive, cancelled requests and unknown types: ignored, as in the CLI

    async def _queue_prompt(self, frame: JsonObject) -> None:
        message: Any = frame.get("message")
        content: Any = cast("JsonObject", message).get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) and not (content and as_objects(content) == content):
            self._fail("Error: a user message has no content")
            return
        name = frame.get("uuid")
        prompt = TurnPrompt(cast("str | list[JsonObject]", content), str(name) if name else None, frame)
        self._queue.append(prompt)
        await self._send_lifecycle(prompt, "queued")
        self._wake()

    def _fail(self, reason: str) -> None:
        """Report input that cannot be understood, and end the program, as the CLI does."""
        self._wire.stderr(reason)
        self._has_failed = True
        if self._task_group is not None:
            self._task_group.cancel_scope.cancel()

    def _end_input(self) -> None:
        self._input_ended = True
        self._wire.end_input()
        self._wake()

    def _wake(self) -> None:
        self._wakeup.set()
        self._wakeup = anyio.Event()

    # Effects of control requests.

    @property
    def usage(self) -> JsonObject:
        """Usage of the last reply."""
        return (self._turn.usage if self._turn is not None else {}) or self._usage

    def interrupt(self, *, cancel_queued: bool) -> JsonObject:
        """Interrupt the running turn; the response names the queued prompts."""
        waiting = [prompt for prompt in self._queue if prompt.uuid is not None]
        names = [prompt.uuid for prompt in waiting]
        answer: JsonObject = {"still_queued": [] if cancel_queued else names}
        if cancel_queued:
            answer["cancelled"] = names
            self._queue.clear()
        if self._task_group is not None:
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
        if self._task_group is not None:
            self._task_group.start_soon(self._send_lifecycle, found, "cancelled")
        return True

    def connect_server(self, server: McpServer) -> None:
        """Start a handshake in a task."""
        if self._task_group is not None and not server.error:
            server.ready = anyio.Event()
            self._task_group.start_soon(server.connect)

    def end_session(self) -> None:
        """End the session and cancel the running turn."""
        self._is_ending = True
        if self._task_group is not None:
            self._task_group.start_soon(self._cancel_turn)

    async def _cancel_turn(self) -> None:
        if self._turn_scope is not None:
            self._turn_scope.cancel()
        self._wake()


def _load_builtin_tools() -> Mapping[str, BuiltinTool]:
    from pilothouse.native.tools import BUILTIN_TOOLS

    return BUILTIN_TOOLS
