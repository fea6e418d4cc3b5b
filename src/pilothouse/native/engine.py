"""The engine: reads the wire, keeps prompts in their order, and runs one turn after the other.

Owns the life of a session: how it begins, what ends it, and the exit code. It is the same whether bytes come through
pipes or from another task of this process.
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
from pilothouse.messages.jsonline import load_line
from pilothouse.native import frames, prompts
from pilothouse.native.api import Api, ApiError
from pilothouse.native.commands import carry_out, command_in
from pilothouse.native.controls import Controls
from pilothouse.native.flags import FlagError
from pilothouse.native.history import History
from pilothouse.native.launch import Launch, launch_of
from pilothouse.native.mcp import McpServer
from pilothouse.native.permissions import Rules
from pilothouse.native.permitting import Permitting
from pilothouse.native.saving import Saving
from pilothouse.native.settings import memory, settings_of
from pilothouse.native.shapes import JSON, mappings
from pilothouse.native.state import State, config_dir_of
from pilothouse.native.tools.base import BuiltinTool, Workplace
from pilothouse.native.turn import End, Prompt, Turn
from pilothouse.native.wire import Port, Wire
from pilothouse.options import PrivateFile
from pilothouse.options.secrets import mask
from pilothouse.transcripts import list_sessions
from pilothouse.transports.errands import run_briefly

NO_PROMPT = "Error: Input must be provided either through stdin or as a prompt argument when using --print"


class Access(Struct, frozen=True):
    """How the Messages API is reached; what is None comes from the environment."""

    base_url: str | None = None
    api_key: str | None = None
    client: Any = None

    def __repr__(self) -> str:
        return f"Access({mask(self.base_url)!r})"


class _Refused(Exception):  # noqa: N818 - a signal inside this file
    """The session cannot begin; the message goes to standard error."""


class Engine:
    """One session.

    Args:
        port: where lines come from and go to.
        argv: the flags of the CLI.
        env: the environment.
        cwd: the working directory.
        files: values that travel beside the flags.
        access: how the API is reached.
        tools: the built-in tools, by name; None: those of the engine.
    """

    def __init__(
        self,
        port: Port,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        files: Sequence[PrivateFile] = (),
        access: Access | None = None,
        tools: Mapping[str, BuiltinTool] | None = None,
    ) -> None:
        self._port, self._argv, self._env, self._cwd, self._files = port, argv, env, cwd, files
        self._access = access or Access()
        self._tools = tools
        self._wire = Wire(port)
        self._queue: deque[Prompt] = deque()
        self._news = anyio.Event()
        self._input_is_over = False
        self._turn: Turn | None = None
        self._scope: anyio.CancelScope | None = None
        self._group: TaskGroup | None = None
        self._api: Api | ApiError | None = None
        self._reached = anyio.Event()
        self._last_failed = False
        self._broken = False
        self._ends = False
        self._usage: JSON = {}

    async def run(self) -> int:
        """Run until the input ends and every prompt is answered; gives the exit code."""
        try:
            launch = await run_briefly(launch_of, self._argv, self._cwd, self._files)
            state = await self._begin(launch)
        except (FlagError, _Refused) as error:
            self._wire.stderr(str(error))
            return 1
        if state is None:
            return 1
        try:
            await self._live(launch, state)
        finally:
            with anyio.CancelScope(shield=True):
                await state.workplace.close()
                if isinstance(self._api, Api):
                    await self._api.aclose()
        return 1 if self._broken or (self._last_failed and not self._ends) else 0

    # The beginning.

    async def _begin(self, launch: Launch) -> State | None:
        for flag in launch.without_effect:
            self._wire.stderr(f"--{flag} has no effect: the native engine has nothing like it")
        config_dir = config_dir_of(self._env)
        settings = await run_briefly(settings_of, launch, self._cwd, config_dir)
        for problem in settings.problems:
            self._wire.stderr(f"settings: {problem}")
        history = await self._history(launch, config_dir)
        if history is None:
            return None
        env = {**self._env, **settings.env}  # for commands; the client takes nothing from settings
        workplace = await run_briefly(self._workplace, settings.directories, env)
        rules = Rules.of(allow=settings.allow, ask=settings.ask, deny=settings.deny)
        tools = _builtin() if self._tools is None else self._tools
        state = self._state = State(launch, settings, self._env, self._wire, history, workplace, rules, tools)
        state.spending.restore(history.cost)
        if not launch.bare:
            found = await run_briefly(memory, launch.setting_sources, self._cwd, config_dir)
            state.memory = prompts.memories(found)
        if launch.title:
            history.note("custom-title", customTitle=launch.title)
        return state

    def _workplace(self, directories: Sequence[str], env: Mapping[str, str]) -> Workplace:
        folders = [(self._cwd / folder).resolve() for folder in directories]
        return Workplace(self._cwd, folders, env, answer=self._answer_about)

    async def _history(self, launch: Launch, config_dir: Path) -> History | None:
        new = launch.session_id or str(uuid.uuid4())
        history = await run_briefly(lambda: History(new, self._cwd, config_dir, persists=launch.persists))
        wanted = launch.resume
        if launch.continue_latest and wanted is None:
            found = await run_briefly(lambda: list_sessions(self._cwd, 1, config_dir=config_dir))
            if not found:
                raise _Refused("No conversation found to continue")
            wanted = found[0].session_id
        if wanted is None:
            if launch.session_id is not None and await run_briefly(history.exists):
                raise _Refused(f"Error: Session ID {launch.session_id} is already in use.")
        elif not await run_briefly(lambda: history.resume(wanted, up_to=launch.resume_at, fork=launch.fork)):
            await self._no_such_session(wanted)
            return None
        self._wire.session_id = history.session_id
        return history

    async def _no_such_session(self, wanted: str) -> None:
        text = f"No conversation found with session ID: {wanted}"
        self._wire.stderr(text)
        about: JSON = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 0}
        about |= {"duration_ms": 0, "duration_api_ms": 0, "stop_reason": None, "total_cost_usd": 0, "usage": {}}
        await self._wire.say(about | {"modelUsage": {}, "permission_denials": [], "errors": [text], "result_index": 0})

    # Living.

    async def _live(self, launch: Launch, state: State) -> None:
        self._permitting = Permitting(state)
        self._saving = Saving(state.history, self._wire, mirrors=launch.mirror)
        self._controls = Controls(state, self._permitting, self)
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._reach)
            for name, config in launch.mcp_servers.items():
                self.connect_server(state.servers.add(name, config))
            await self._first_prompt(launch)
            if launch.input_format == "stream-json":
                self._group.start_soon(self._read)
            else:
                self._over()
            await self._work(state)
            self._group.cancel_scope.cancel()
        await self._saving.flush()

    async def _first_prompt(self, launch: Launch) -> None:
        text = launch.prompt
        if launch.input_format == "text" and text is None:
            lines: list[bytes] = []
            while line := await self._port.read_line():
                lines.append(line)
            text = b"".join(lines).decode("utf-8", "replace").strip()
            if not text:
                self._wire.stderr(NO_PROMPT)
                self._broken = True
                return
        if text is not None:
            self._queue.append(Prompt(text))

    async def _reach(self) -> None:
        access = self._access
        try:
            self._api = await Api.connect(self._state.env, access.base_url, access.api_key, access.client)
        except ApiError as error:
            self._api = error
        self._reached.set()

    async def _connect(self) -> Api:
        await self._reached.wait()
        if isinstance(self._api, ApiError):
            raise ApiError(self._api.message, status=self._api.status, kind=self._api.kind)
        assert self._api is not None
        return self._api

    async def _work(self, state: State) -> None:
        while not self._broken and not self._ends:
            if self._queue:
                await self._answer(state, self._queue.popleft())
            elif self._input_is_over:
                return
            else:
                await self._news.wait()

    async def _answer(self, state: State, prompt: Prompt) -> None:
        turn = self._turn = Turn(state, self._connect, self._permitting, self._saving, prompt)
        with anyio.CancelScope() as self._scope:
            await self._tell(prompt, "started")  # from here on an interrupt reaches it
            command = command_in(state, prompt.text, prompt.frame)
            if command is not None:
                about = await carry_out(state, self._connect, *command, prompt.name)
                await turn.end_command(End(about, is_error=about["is_error"]))
            else:
                await turn.run()
        was_interrupted = not turn.is_over
        if was_interrupted:
            with anyio.CancelScope(shield=True):
                await turn.interrupted()
        self._last_failed = turn.is_error
        self._usage, self._turn = self.usage, None
        await self._tell(prompt, "cancelled" if was_interrupted else "completed")

    async def _tell(self, prompt: Prompt, state: str) -> None:
        if prompt.name is not None:
            await self._wire.say(frames.lifecycle(prompt.name, state))

    async def _answer_about(self, prompt: str, text: str) -> str:
        """What a tool asks the model beside the conversation."""
        api = await self._connect()
        asked: list[JSON] = [{"role": "user", "content": [{"type": "text", "text": f"{text}\n\n{prompt}"}]}]
        request = {"model": self._state.model, "max_tokens": 4096, "messages": asked}
        try:
            message, _ = await api.whole(request)
        except ApiError as error:
            return f"[the model could not be asked: {error.message}]"
        return "\n".join(block["text"] for block in message["content"] if block.get("type") == "text")

    # What the host says.

    async def _read(self) -> None:
        while line := await self._port.read_line():
            if not line.strip():
                continue
            try:
                frame = load_line(line)
            except LineDecodeError:
                self._break(f"Error parsing streaming input line ({len(line.rstrip())} chars): not JSON")
                return
            if isinstance(frame, dict):
                await self._take(cast("JSON", frame))
            if self._broken or self._ends:
                return
        self._over()

    async def _take(self, frame: JSON) -> None:
        match frame.get("type"):
            case "control_request":
                request = frame.get("request")
                told = cast("JSON", request) if isinstance(request, dict) else {}
                await self._controls.answer(str(frame.get("request_id")), told)
            case "control_response":
                self._wire.on_answer(frame)
            case "user":
                await self._prompt(frame)
            case _:
                pass  # keep_alive, withdrawn questions, and what is not known: ignored, as by the CLI

    async def _prompt(self, frame: JSON) -> None:
        message: Any = frame.get("message")
        content: Any = cast("JSON", message).get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) and not (content and mappings(content) == content):
            self._break("Error: a user message has no content")
            return
        name = frame.get("uuid")
        prompt = Prompt(cast("str | list[JSON]", content), str(name) if name else None, frame)
        self._queue.append(prompt)
        await self._tell(prompt, "queued")
        self._wake()

    def _break(self, reason: str) -> None:
        """What was said cannot be understood: the program ends, as the CLI does."""
        self._wire.stderr(reason)
        self._broken = True
        if self._group is not None:
            self._group.cancel_scope.cancel()

    def _over(self) -> None:
        self._input_is_over = True
        self._wire.end()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    # What control requests do.

    @property
    def usage(self) -> JSON:
        """Usage of the last reply."""
        return (self._turn.usage if self._turn is not None else {}) or self._usage

    def interrupt(self, *, cancel_queued: bool) -> JSON:
        """Interrupt the turn that runs; the answer names the prompts that wait."""
        waiting = [prompt for prompt in self._queue if prompt.name is not None]
        names = [prompt.name for prompt in waiting]
        answer: JSON = {"still_queued": [] if cancel_queued else names}
        if cancel_queued:
            answer["cancelled"] = names
            self._queue.clear()
        if self._group is not None:
            self._group.start_soon(self._stop, self._turn, waiting if cancel_queued else [])
        return answer

    async def _stop(self, turn: Turn | None, cancelled: list[Prompt]) -> None:
        """After the answer to the interrupt: it comes first on the wire."""
        if turn is not None and turn is self._turn and self._scope is not None:
            self._scope.cancel()
        for prompt in cancelled:
            await self._tell(prompt, "cancelled")

    def cancel(self, name: str) -> bool:
        """Take a prompt out of the queue."""
        found = next((prompt for prompt in self._queue if prompt.name == name), None)
        if found is None:
            return False
        self._queue.remove(found)
        if self._group is not None:
            self._group.start_soon(self._tell, found, "cancelled")
        return True

    def connect_server(self, server: McpServer) -> None:
        """Begin a handshake beside everything else."""
        if self._group is not None and not server.error:
            server.ready = anyio.Event()
            self._group.start_soon(server.connect)

    def end(self) -> None:
        """End the session; what runs is cancelled."""
        self._ends = True
        if self._group is not None:
            self._group.start_soon(self._leave)

    async def _leave(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        self._wake()


def _builtin() -> Mapping[str, BuiltinTool]:
    from pilothouse.native.tools import BUILTIN_TOOLS

    return BUILTIN_TOOLS
