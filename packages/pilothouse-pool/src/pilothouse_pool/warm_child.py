"""`WarmChild`: a child that is started, and perhaps initialized, before a query or session needs it.

`make_pool_key` tells which children are interchangeable; what the child gets later is left out of its settings before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.to_thread
from msgspec.structs import replace

from pilothouse.errors import CLIExitedError, ControlError, ControlTimeout
from pilothouse.options import Invocation
from pilothouse.protocol import Connection, ErrorReceived, RequestReceived, ResponseReceived, request_line
from pilothouse.support import parse_version
from pilothouse.transports import Transport

log = logging.getLogger("pilothouse.pool")

SESSION_ID_FLAG: Final = "--session-id="
CLAIM_FLAG: Final = "--await-claim"
"""Lets a child wait for the request `claim_session`, which gives it its directory."""
CLAIM: Final = "claim_session"
DIRECTORY_FLAG: Final = "--add-dir="
# Flags that continue a conversation, or do something at the start of the child.
UNPOOLABLE_FLAGS: Final = (
    "--resume",
    "--continue",
    "--fork-session",
    "--from-pr",
    "--worktree",
    "--init",
    "--maintenance",
)
TRACE_VARIABLES: Final = frozenset({"TRACEPARENT", "TRACESTATE", "BAGGAGE"})
"""The trace of the caller. It matters only to a child that reports traces itself."""
TELEMETRY_VARIABLE: Final = "CLAUDE_CODE_ENABLE_TELEMETRY"
# What a child takes with the initialize request as well: the flag, the field, and how the field has the text.
INITIALIZE_FIELDS: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("system-prompt", "systemPrompt", lambda text: [text]),
    ("append-system-prompt", "appendSystemPrompt", str),
    ("json-schema", "jsonSchema", json.loads),
)
STDERR_LINES = 200
MAX_EARLY_BYTES = 1024 * 1024
"""A child whose output exceeds this before a query claims it is ended."""
HANDSHAKE_SECONDS = 60.0
WARM_UP_ID: Final = "ph_warm_up"
"""Differs from the ids of an engine, which may read the response."""
WARM_UP_LINE: Final = request_line(WARM_UP_ID, "get_context_usage", {"detail": "summary"})
"""Lets the CLI build its system prompt and the schemas of its tools, which would delay the first answer by 50 ms.

The CLI sends nothing to the API for it. Older versions may not know `detail`, and then they would.
"""
WARM_UP_VERSION: Final = (2, 1, 330)
WARM_UP_SECONDS = 2.0


def make_pool_key(invocation: Invocation, *, booted: bool = False) -> bytes | None:
    """Digest of the launch settings, equal for interchangeable children; None for one that cannot be prewarmed.

    Args:
        invocation: how to start the child.
        booted: whether the child gets the initialize request later, so that it does not matter here.
    """
    if invocation.initialize is None or invocation.home is not None:
        return None
    if any(arg.startswith(UNPOOLABLE_FLAGS) for arg in invocation.argv):
        return None
    argv = invocation.argv
    if has_session_id(invocation):
        if not invocation.has_generated_session_id:
            return None
        argv = tuple(arg for arg in argv if not arg.startswith(SESSION_ID_FLAG))
    env = invocation.env
    if not env.get(TELEMETRY_VARIABLE):
        env = {name: value for name, value in env.items() if name not in TRACE_VARIABLES}
    cwd = invocation.cwd or os.getcwd()  # noqa: PTH109 - a string is wanted
    files = [(file.flag, file.suffix, file.content) for file in invocation.files]
    start = (invocation.cli, argv, invocation.trailing_args, sorted(env.items()), cwd, files)
    # Any text; JSON does not accept everything.
    fields = {} if booted else dict(invocation.initialize)
    description = repr((*start, invocation.user, invocation.is_isolated, invocation.keep_detached, fields))
    return hashlib.blake2b(description.encode()).digest()  # the settings contain keys: only the digest is kept


def move_to_initialize(invocation: Invocation) -> Invocation:
    """Return an invocation that gives the child in the initialize request what else is in its arguments and files."""
    if invocation.initialize is None:
        return invocation
    argv, files, fields = list(invocation.argv), list(invocation.files), {**invocation.initialize}
    for flag, field, convert in INITIALIZE_FIELDS:
        for arg in [arg for arg in argv if arg.startswith(f"--{flag}=")]:
            argv.remove(arg)
            fields[field] = convert(arg.partition("=")[2])
        for file in [file for file in files if file.flag == f"{flag}-file"]:
            files.remove(file)
            fields[field] = convert(file.content.decode())
    return replace(invocation, argv=tuple(argv), files=tuple(files), initialize=fields)


def remove_directories(invocation: Invocation) -> Invocation:
    """Return an invocation that is the same for every directory; `make_claim` has what is left out."""
    argv = (*(arg for arg in invocation.argv if not arg.startswith(DIRECTORY_FLAG)), CLAIM_FLAG)
    return replace(invocation, argv=argv, cwd="/")


def make_claim(invocation: Invocation) -> dict[str, Any]:
    """Return the body of the request that gives a waiting child the directories of `invocation`."""
    directories = [arg.removeprefix(DIRECTORY_FLAG) for arg in invocation.argv if arg.startswith(DIRECTORY_FLAG)]
    return {
        "cwd": invocation.cwd or os.getcwd(),  # noqa: PTH109 - a string is wanted
        "additional_directories": directories,
        "sdk_mcp_servers": [],
        "include_initialize": True,
    }


def has_session_id(invocation: Invocation) -> bool:
    """Whether the child is started with a session id."""
    return any(arg.startswith(SESSION_ID_FLAG) for arg in invocation.argv)


class WarmChild:
    """A child that is started before it is needed. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the child; with an initialize request.
        session_id: that the child is started with, if any.
        booted: whether the initialize request is left to the query that claims the child.
        any_directory: whether the child waits in an empty directory of its own, and gets that of the query later.
        idle_seconds: how long it is kept once it is ready; None: without end.
        on_released: called once everything is released.

    Attributes:
        transport: the transport.
        initialize_line: the bytes of the initialize request that was sent, if any; an engine sends the same.
        early_output: its output since then.
        session_id: that it was started with, if any.
        failure: why it cannot be used.
        is_claimed: whether it is in use.
        has_early_request: whether it sent a request before it was claimed.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        *,
        session_id: str | None,
        booted: bool,
        any_directory: bool,
        idle_seconds: float | None,
        on_released: Callable[[WarmChild], object],
    ) -> None:
        self.transport = transport
        self.session_id = session_id
        self._is_booted = booted
        self._waits_for_claim = any_directory
        self.early_output = bytearray()
        self.failure: Exception | None = None
        self.is_claimed = False
        self.has_early_request = False
        self._invocation = replace(invocation, on_stderr=self._on_stderr_line)
        self._idle_seconds = idle_seconds
        self._on_released = on_released
        self._on_stderr: Callable[[str], object] | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._connection = Connection()
        self._request_id, line = self._connection.request("initialize", invocation.initialize)
        self.initialize_line = b"" if booted else line
        self._responses: dict[str, dict[str, Any]] = {}
        self._is_ready = False
        self._read_scope = anyio.CancelScope()
        self._reader_stopped = anyio.Event()  # it is ready, or failed, and this task does not read any more
        self._ready_or_failed = anyio.Event()  # it is ready, or failed
        self._released = anyio.Event()
        self._freed = anyio.Event()

    # Called by the pool.

    @property
    def is_usable(self) -> bool:
        """Whether it can be given to a query, as far as is known now."""
        if self.is_claimed or self._released.is_set() or self.failure is not None:
            return False
        return not self._is_ready or self.transport.health().state == "healthy"

    async def wait_ready(self) -> None:
        """Wait until it is ready, or claimed: then the claimer sees the failure.

        Raises:
            PilothouseError: it will never be ready.
        """
        await self._ready_or_failed.wait()
        if self.failure is not None and not self.is_claimed:
            raise self.failure

    def claim(self) -> None:
        """Claim it for the caller, who then awaits `wait_handover` and in any case calls `release`."""
        self.is_claimed = True
        if self._is_ready:
            self._read_scope.cancel()

    async def wait_handover(self, on_stderr: Callable[[str], object] | None) -> bool:
        """Wait until it is ready and this task has stopped reading its output. False if it has failed."""
        await self._reader_stopped.wait()
        if self.failure is not None:
            return False
        if on_stderr is not None:
            self._replay_stderr(on_stderr)
        return True

    async def claim_directory(self, invocation: Invocation) -> None:
        """Give it the directories of `invocation`. The caller has awaited `wait_handover`.

        Raises:
            PilothouseError: the CLI refused, or ended.
        """
        if not self._waits_for_claim:
            return
        _, line = self._connection.request(CLAIM, make_claim(invocation))
        claim = await self._request(CLAIM, line)
        # The first response describes the directory in which it waited. What is said meanwhile stays for the engine.
        first = {"subtype": "success", "request_id": self._request_id, "response": claim.get("initialize")}
        *lines, rest = bytes(self.early_output).split(b"\n")
        mark = "control_response"
        kept = [line for line in lines if mark.encode() not in line or json.loads(line).get("type") != mark]
        opening = json.dumps({"type": mark, "response": first}).encode()
        self.early_output[:] = b"\n".join([opening, *kept, rest])

    def _replay_stderr(self, on_stderr: Callable[[str], object]) -> None:
        try:
            while self._stderr:
                on_stderr(self._stderr.popleft())
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("the callback for standard error raised and is disabled")
        else:
            self._on_stderr = on_stderr

    def release(self) -> None:
        """End it, from any task of the loop; `wait_freed` waits until that is done."""
        self._released.set()
        self._read_scope.cancel()

    async def wait_freed(self) -> None:
        """Wait until everything is released."""
        await self._freed.wait()

    def _on_stderr_line(self, line: str) -> None:
        if self._on_stderr is not None:
            self._on_stderr(line)
        else:
            self._stderr.append(line)

    # The owner task.

    async def run(self) -> None:
        """Run it from start to close, in one task."""
        try:
            await self._run_transport()
        except Exception as error:  # noqa: BLE001 - raised by `wait_ready`
            self.failure = self.failure or error
        finally:
            if not self._is_ready and self.failure is None:
                self.failure = CLIExitedError("the child was ended before it was ready")
            self._ready_or_failed.set()
            self._reader_stopped.set()
            try:
                with anyio.CancelScope(shield=True):
                    await self.transport.close()
            finally:
                self._freed.set()
                self._on_released(self)

    async def _run_transport(self) -> None:
        if not self._waits_for_claim:
            return await self._run_child(self._invocation)
        directory = await anyio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="pilothouse-waiting-"))
        try:
            await self._run_child(replace(self._invocation, cwd=directory))
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))

    async def _run_child(self, invocation: Invocation) -> None:
        await self.transport.start(invocation)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_recording_failure, self.transport.serve)
            await self._run_recording_failure(self._read_until_claimed)
            if self.is_claimed and self.failure is None:
                self._reader_stopped.set()
                await self._released.wait()
            self._released.set()  # nobody may claim it while it ends
            tasks.cancel_scope.cancel()

    async def _run_recording_failure(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised by `wait_ready`
            self.failure = self.failure or error
            self._read_scope.cancel()

    async def _read_until_claimed(self) -> None:
        """Read until it is ready and claimed, has failed, or was idle for too long."""
        with self._read_scope:
            if self._released.is_set():
                return
            info = {} if self._is_booted else await self._request("initialize", self.initialize_line)
            self._is_ready = True
            try:
                await self._warm_up(info)
            finally:
                self._ready_or_failed.set()
            with anyio.move_on_after(self._idle_seconds):
                while not self.is_claimed:
                    await self._receive()

    async def _warm_up(self, info: Mapping[str, Any]) -> None:
        """Let the CLI prepare what its first answer needs. A claim may interrupt this, and an error does no harm."""
        version = parse_version(str(info.get("claude_code_version")))
        if self._waits_for_claim or version is None or version < WARM_UP_VERSION:
            return
        with anyio.move_on_after(WARM_UP_SECONDS):
            await self.transport.send(WARM_UP_LINE)
            while WARM_UP_ID.encode() not in self.early_output:
                await self._receive()

    async def _request(self, subtype: str, line: bytes) -> dict[str, Any]:
        with anyio.move_on_after(HANDSHAKE_SECONDS):
            await self.transport.send(line)
            while subtype not in self._responses:
                await self._receive()
            return self._responses.pop(subtype)
        raise ControlTimeout(f"no response to {subtype!r} within {HANDSHAKE_SECONDS:g} s", subtype=subtype)

    async def _receive(self) -> None:
        data = await self.transport.receive()
        if not data:
            ending = await self.transport.exit_info()
            raise CLIExitedError(
                f"the child ended before a query claimed it: {ending.detail or 'it closed its output'}",
                exit_code=ending.exit_code,
                signal=ending.signal,
                stderr=ending.stderr,
            )
        self.early_output += data
        self._connection.feed(data)
        events = cast("deque[Any]", self._connection.events)
        while events:
            self._check_event(events.popleft())
        if len(self.early_output) > MAX_EARLY_BYTES:
            raise CLIExitedError(f"the child said more than {MAX_EARLY_BYTES:,} bytes before a query claimed it")

    def _check_event(self, event: Any) -> None:
        match event:
            case ResponseReceived(subtype=subtype, payload=payload):
                self._responses[subtype] = payload
            case ErrorReceived(subtype=subtype, error=text, code=code):
                raise ControlError(
                    f"the CLI refused the control request {subtype!r}: {text}", subtype=subtype, code=code
                )
            case RequestReceived(subtype=subtype) if not self._reader_stopped.is_set():
                self.has_early_request = True
                raise CLIExitedError(
                    f"the child asked {subtype!r} before a query claimed it: a process with startup requests "
                    "cannot be prewarmed"
                )
            case _:
                pass
