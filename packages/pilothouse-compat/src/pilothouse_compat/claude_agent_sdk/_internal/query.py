"""`Query`: one connection to the CLI, on a session of pilothouse.

The session starts and ends the child, answers its questions, and sends control requests. Prompts do not go through the
session: programs expect that each is written at once and as it is. So `PromptWire` stands between the session and the
transport; it writes prompts, and puts a line of its own at the end of the output, after the last message.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from collections.abc import AsyncIterable, Callable, Mapping
from math import inf
from typing import Any, Final

import anyio

from pilothouse.client import Agent
from pilothouse.errors import ControlError, ControlTimeout
from pilothouse.options import Invocation, PolicyWarning
from pilothouse.transports import CliTransport, ExitInfo, Health, TransportWrapper
from pilothouse.transports import Transport as ByteTransport

from .._errors import (
    CLIConnectionError,
    ProcessError,
    as_mapping,
    convert_error,
    make_result_error,
)
from .._options import make_initialize_fields, make_options
from .._permissions import check_can_use_tool
from ..types import TERMINAL_TASK_STATUSES, ClaudeAgentOptions, Message
from .message_parser import read_message
from .transport import Transport
from .transport.subprocess_cli import SubprocessCLITransport

log = logging.getLogger("pilothouse.compat")

END_SUBTYPE: Final = "end_of_output"
_END_LINE: Final = b'\n{"type":"system","subtype":"%b"}\n' % END_SUBTYPE.encode()
_HIDDEN_TYPES: Final = ("transcript_mirror", "control_request", "control_response", "control_cancel_request")
_OWN_NOTES: Final = ("asked", "settled")
_END: Final = object()
WRITE_SECONDS: Final = 60.0  # until a child that does not read its input counts as lost
DEFAULT_CEILING_MS: Final = 600_000
_CEILING: Final = "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS"
_TRACKED_TASKS: Final = ("local_agent", "local_workflow")


class RunEnd:
    """Whether the work of a run is over, from its messages: a result, no turn, and no background task.

    The run is over `ceiling` seconds after a result, even if the CLI does not become idle.
    """

    def __init__(self, ceiling: float | None) -> None:
        self._ceiling = ceiling
        self._has_result = self._is_in_turn = False
        self._state: str | None = None
        self._tasks: set[str] = set()
        self._since: float | None = None

    def observe(self, data: Mapping[str, Any]) -> None:
        kind, subtype = data.get("type"), data.get("subtype")
        if kind == "result":
            self._has_result, self._is_in_turn, self._since = True, False, anyio.current_time()
        elif kind in ("assistant", "stream_event") and data.get("parent_tool_use_id") is None:
            self._is_in_turn, self._since = True, None
        elif subtype == "session_state_changed":
            self._state = data.get("state")
            waits = self._state == "running" and self._has_result and not self._is_in_turn
            self._since = (self._since or anyio.current_time()) if waits else None
        elif subtype == "task_started" and data.get("task_type") in _TRACKED_TASKS:
            self._tasks.add(str(data.get("task_id")))
        elif subtype == "task_notification" or (
            subtype == "task_updated" and as_mapping(data.get("patch")).get("status") in TERMINAL_TASK_STATUSES
        ):
            self._tasks.discard(str(data.get("task_id")))

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come unless another prompt is sent."""
        if self._has_result and not self._is_in_turn and self._state in (None, "idle") and not self._tasks:
            return True
        return self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        if self._since is None or self._ceiling is None:
            return inf
        return self._since + self._ceiling - anyio.current_time()


class UserTransport(ByteTransport):
    """A `Transport` of the program as one of pilothouse: dictionaries become lines.

    The handshake gets the `initialize_fields`: settings that pilothouse gives to a child as flags.
    """

    def __init__(self, given: Transport, initialize_fields: Mapping[str, Any]) -> None:
        self._given = given
        self._initialize_fields = initialize_fields
        self._messages: Any = None
        self._is_left = False
        self._reading = anyio.CancelScope()
        self.failure: Exception | None = None

    async def start(self, invocation: Invocation) -> None:
        """Connect; settings that become flags of the CLI have no effect."""
        await self._given.connect()
        self._messages = aiter(self._given.read_messages())

    async def serve(self) -> None:
        """Do the background work of a transport that is a child; others have none."""
        if isinstance(self._given, SubprocessCLITransport):
            await self._given.serve()

    async def send(self, data: bytes) -> None:
        for line in data.splitlines():
            if line.strip():
                frame = json.loads(line)
                if as_mapping(frame.get("request")).get("subtype") == "initialize":
                    frame["request"] = {**self._initialize_fields, **frame["request"]}
                await self._given.write(json.dumps(frame) + "\n")

    async def receive(self) -> bytes:
        """Return the next dictionary as a line; its error ends the output, and so does `leave`."""
        message: Any = None
        try:
            with anyio.CancelScope() as self._reading:
                if self._is_left:
                    return b""
                message = await anext(self._messages, None)
        except Exception as error:  # noqa: BLE001 - raised by the reader, after the messages before it
            self.failure = error
        return b"" if message is None else json.dumps(message).encode() + b"\n"

    def leave(self) -> None:
        """End the output now: a transport of a program need not end it when its input ends, as a child does."""
        if not isinstance(self._given, SubprocessCLITransport):
            self._is_left = True
            self._reading.cancel()

    async def end_input(self) -> None:
        """End the input, unless the program leaves. If the program cannot, the messages go on."""
        if not self._is_left:
            try:
                await self._given.end_input()
            except Exception:
                log.exception("the transport of the program failed to end its input")

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._given.close()

    def health(self) -> Health:
        """What the program's transport says is only asked for when it fails."""
        return Health("healthy")


class PromptWire(TransportWrapper):
    """The transport of the session. It knows neither the session nor its owner, so that both can be collected.

    The `prompts` are sent in the background once the CLI has answered the handshake, which sets `is_open`; then the
    input ends as after `finish_input`: when `run_end` says so. `exit` is how the other side has ended.
    """

    def __init__(
        self, inner: ByteTransport, prompts: AsyncIterable[Any] | None, *, is_verbatim: bool, run_end: RunEnd | None
    ) -> None:
        super().__init__(inner)
        self.is_open = anyio.Event()
        self.has_prompt = self.awaits_result = False
        self.prompt_failure: Exception | None = None
        self.exit: ExitInfo | None = None
        self._prompts = prompts
        self._is_verbatim = is_verbatim
        self._run_end = run_end
        self._has_all = self._is_input_ended = False

    async def serve(self) -> None:
        """Do the work of the transport, and send the prompts."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.inner.serve)
            if self._prompts is not None:
                await self._send_prompts(self._prompts)

    async def _send_prompts(self, prompts: AsyncIterable[Any]) -> None:
        await self.is_open.wait()
        try:
            async for prompt in prompts:
                await self.write_prompt(prompt)
        except Exception as error:  # noqa: BLE001 - raised by the reader, after the messages
            self.prompt_failure = error
        await self.finish_input()

    async def write_prompt(self, prompt: Mapping[str, Any]) -> None:
        marked = {**prompt, "client_composed": True} if self._is_verbatim else prompt
        self.has_prompt = self.awaits_result = True
        await self.write(json.dumps(marked) + "\n")

    async def write(self, data: str) -> None:
        """Write a line. Raises CLIConnectionError if the CLI has gone away, or does not read."""
        try:
            with anyio.fail_after(WRITE_SECONDS):
                await self.inner.send(data.encode())
        except TimeoutError:
            raise CLIConnectionError(f"Claude Code has not read its input for {WRITE_SECONDS:g} s") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise CLIConnectionError("Cannot write to Claude Code: its input is closed") from error

    async def finish_input(self) -> None:
        """End the input now, or when the run is over and no callback can be called any more."""
        self._has_all = True
        if not self.has_prompt:
            self._run_end = None
        await self.end_if_over()

    async def end_if_over(self) -> None:
        """End the input if all prompts were sent and the run is over."""
        if self._has_all and not self._is_input_ended and (self._run_end is None or self._run_end.is_over):
            self._is_input_ended = True
            try:
                await self.inner.end_input()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # it has ended already

    @property
    def seconds_left(self) -> float:
        """Seconds until `end_if_over` has to be called again."""
        waits = self._has_all and not self._is_input_ended and self._run_end is not None
        return self._run_end.seconds_left if waits and self._run_end is not None else inf

    def observe(self, data: Mapping[str, Any]) -> None:
        if data.get("type") == "result":
            self.awaits_result = False
        if self._run_end is not None:
            self._run_end.observe(data)

    async def receive(self) -> bytes:
        """Return the next bytes; at the end first a line that says so."""
        if self.exit is not None:
            return b""
        data = await self.inner.receive()
        if data:
            return data
        self.exit = await self.inner.exit_info()
        return _END_LINE


class Query:
    """One connection to the CLI, a child unless there is a transport of the program.

    The `prompts` are sent in the background; then the input ends. Raises ValueError, TypeError.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions,
        transport: Transport | None = None,
        *,
        prompts: AsyncIterable[Any] | None = None,
        read: Callable[[dict[str, Any]], Message | None] = read_message,
    ) -> None:
        self._read = read
        check_can_use_tool(options)
        self._directory = None if transport is not None else options.cwd
        settings = make_options(options)
        if transport is not None:
            settings = settings.with_(partial_messages=True)  # what the other side sends is for the program
            if not isinstance(transport, SubprocessCLITransport):  # it gets no flags, so nothing of them is checked
                settings = settings.with_(settings=None, sandbox=None, extra_args=None)
        has_callbacks = any(name in settings for name in ("can_use_tool", "hooks")) or _has_own_server(options)
        run_end = RunEnd(_get_ceiling(options.env)) if has_callbacks else None
        self._user = None if transport is None else UserTransport(transport, make_initialize_fields(options))
        self.wire = PromptWire(
            self._user or CliTransport(), prompts, is_verbatim=options.verbatim_prompts, run_end=run_end
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyWarning)  # `check_can_use_tool` has warned in other words
            self._session = Agent(settings).session(transport=self.wire)
        self._messages = self._session.messages()
        self._has_ended = self._is_closing = False
        self._last_error: dict[str, Any] | None = None

    async def start(self) -> None:
        """Start the CLI, and wait until it has answered the handshake."""
        if self._directory is not None and not await anyio.Path(self._directory).is_dir():
            raise CLIConnectionError(f"Working directory does not exist: {self._directory}")
        try:
            await self._session.start()
        except Exception as error:
            if self._user is None:
                while self.wire.exit is not None and await self._next_data() is not None:
                    pass  # a result among the messages says why the CLI has ended
                raise self._explain(error) from error
            if self._user.failure is not None:
                raise self._user.failure from error
            if self.wire.exit is None:  # else its output has ended after the handshake: `receive` tells
                raise convert_error(error) from error
        self.wire.is_open.set()

    @property
    def server_info(self) -> dict[str, Any]:
        return dict(self._session.server_info)

    async def control(self, subtype: str, **body: Any) -> dict[str, Any]:
        """Send a control request, and return its response. Raises ClaudeSDKError."""
        try:
            return dict(await self._session.control(subtype, **body))
        except (ControlError, ControlTimeout) as error:
            raise convert_error(error) from error
        except Exception as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> Exception:
        exit_info = self.wire.exit
        return (self._make_exit_error(exit_info) if exit_info is not None else None) or convert_error(error)

    async def receive(self) -> Message | None:
        """Wait for the next message; None at the end. Raises ProcessError; a `ResultError` if the CLI has said why."""
        while not self._has_ended:
            data = await self._next_data()
            if data is None:
                self._has_ended = True
                self._raise_failure()
                return None
            if data.get("sdk_host_only") or data.get("type") in _HIDDEN_TYPES or data.get("subtype") in _OWN_NOTES:
                continue
            message = self._read(data)
            if message is not None:
                return message
        return None

    async def _next_data(self) -> dict[str, Any] | None:
        found: Any = None
        while found is None:
            await self.wire.end_if_over()
            left = self.wire.seconds_left
            if left == inf:  # the usual case: a scope for each message would cost as much as the message
                found = await anext(self._messages, _END)
                break
            with anyio.move_on_after(max(left, 0.0)):
                found = await anext(self._messages, _END)
        if found is _END:
            return None
        data: dict[str, Any] = dict(found.raw)
        if data.get("subtype") == END_SUBTYPE:
            return None
        if not data:  # a note of pilothouse, such as a line that could not be read
            data = {
                "type": "system",
                **{name: getattr(found, name) for name in found.__struct_fields__ if name[0] != "_"},
            }
            data.pop("raw_line", None)
        self._observe(data)
        return data

    def _observe(self, data: dict[str, Any]) -> None:
        self.wire.observe(data)
        if data.get("type") == "result":
            self._last_error = data if data.get("is_error") else None
        elif data.get("subtype") != "session_state_changed":
            self._last_error = None

    def _raise_failure(self) -> None:
        """Raise why the output has ended, unless that was a normal end."""
        if self._is_closing:
            return
        if self.wire.prompt_failure is not None:
            raise self.wire.prompt_failure
        failure = None if self._user is None else self._user.failure
        if failure is not None:
            if self._last_error is not None and isinstance(failure, ProcessError):
                raise make_result_error(self._last_error, failure.exit_code) from failure
            raise failure
        ended = self.wire.exit
        if ended is None:
            return
        if (error := self._make_exit_error(ended)) is not None:
            raise error
        if self._user is None and self.wire.awaits_result:
            raise ProcessError("Claude Code ended without a result", ended.exit_code, ended.stderr or None)

    def _make_exit_error(self, ended: ExitInfo) -> Exception | None:
        code = _get_code(ended)
        if not code:
            return None
        if self._last_error is not None:
            return make_result_error(self._last_error, code)
        return ProcessError(f"Command failed with exit code {code}", code, ended.stderr or None)

    async def close(self) -> None:
        """End the CLI, and wait until it is gone. Bounded, and safe to repeat."""
        self._is_closing = True
        self.wire.is_open.set()
        if self._user is not None:
            self._user.leave()
        try:
            await self._session.close()
        except Exception as error:  # noqa: BLE001 - the store has reported it as a message
            log.warning("closing Claude Code: %s", error)


def _get_code(ended: ExitInfo) -> int | None:
    if ended.signal is not None:
        return -int(getattr(signal, ended.signal, 1))
    return ended.exit_code


def _has_own_server(options: ClaudeAgentOptions) -> bool:
    return any(as_mapping(each).get("type") == "sdk" for each in as_mapping(options.mcp_servers).values())


def _get_ceiling(env: Mapping[str, str]) -> float | None:
    text = env.get(_CEILING, os.environ.get(_CEILING, ""))
    milliseconds = int(text) if text.strip().isdecimal() else DEFAULT_CEILING_MS
    return milliseconds / 1000 or None
