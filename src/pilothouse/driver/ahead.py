"""One peer that was started ahead: handshake done, waiting for somebody to talk to it.

Owns its life from the start until it is released, in one task. Who gets it, and how many there are, the pool knows.
What it says before that is kept as bytes, and what asks for an answer meanwhile makes it useless: nobody is there yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
from msgspec.structs import replace

from pilothouse.errors import CLIExitedError, ControlError, ControlTimeout
from pilothouse.options import Invocation
from pilothouse.protocol import Connection, Inbound, Refusal, Reply
from pilothouse.transports import Transport

log = logging.getLogger("pilothouse.pool")

KEPT_STDERR_LINES = 200
KEPT_BYTES = 1024 * 1024
"""A peer that says more than this before it was asked anything is not waited for."""
HANDSHAKE_SECONDS = 60.0


class PeerAhead:
    """A peer under way. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start it; with a handshake.
        idle_seconds: how long it is kept once it is ready; None: without end.
        gone: called once all of it is freed.

    Attributes:
        transport: the transport.
        opening: the bytes of the handshake that it was sent; a driver says the same.
        said: what it has said since.
        session_id: that it was started with, if any.
        failure: why it cannot be used.
        is_taken: whether it belongs to somebody.
        is_asking: whether it has asked something before.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        *,
        session_id: str | None,
        idle_seconds: float | None,
        gone: Callable[[PeerAhead], object],
    ) -> None:
        self.transport = transport
        self.session_id = session_id
        self.said = bytearray()
        self.failure: Exception | None = None
        self.is_taken = False
        self.is_asking = False
        self._invocation = replace(invocation, on_stderr=self._relay)
        self._idle_seconds = idle_seconds
        self._gone = gone
        self._on_stderr: Callable[[str], object] | None = None
        self._stderr: deque[str] = deque(maxlen=KEPT_STDERR_LINES)
        self._connection = Connection()
        self._request_id, self.opening = self._connection.request("initialize", invocation.initialize)
        self._is_ready = False
        self._listening = anyio.CancelScope()
        self._handed_over = anyio.Event()  # it is ready, or failed, and nobody here reads any more
        self._settled = anyio.Event()  # it is ready, or failed
        self._released = anyio.Event()
        self._freed = anyio.Event()

    # What the pool calls.

    @property
    def is_fit(self) -> bool:
        """Whether it can be given to somebody, as far as is known now."""
        if self.is_taken or self._released.is_set() or self.failure is not None:
            return False
        return not self._is_ready or self.transport.health().state == "healthy"

    async def settled(self) -> None:
        """Wait until it is ready, or belongs to somebody who will be told.

        Raises:
            PilothouseError: it will never be ready.
        """
        await self._settled.wait()
        if self.failure is not None and not self.is_taken:
            raise self.failure

    def take(self) -> None:
        """From now on it belongs to the caller, who waits for `handed_over` and in any case calls `release`."""
        self.is_taken = True
        if self._is_ready:
            self._listening.cancel()

    async def handed_over(self, on_stderr: Callable[[str], object] | None) -> bool:
        """Wait until it is ready, and nobody else reads what it says. False if it has failed."""
        await self._handed_over.wait()
        if self.failure is not None:
            return False
        if on_stderr is not None:
            self._catch_up(on_stderr)
        return True

    def _catch_up(self, on_stderr: Callable[[str], object]) -> None:
        try:
            while self._stderr:
                on_stderr(self._stderr.popleft())
        except Exception:
            log.exception("the callback for standard error raised; it is not called any more")
        else:
            self._on_stderr = on_stderr

    def release(self) -> None:
        """End it, from any task of the loop; `freed` tells when that is done."""
        self._released.set()
        self._listening.cancel()

    async def freed(self) -> None:
        """Wait until nothing of it is left."""
        await self._freed.wait()

    def _relay(self, line: str) -> None:
        if self._on_stderr is not None:
            self._on_stderr(line)
        else:
            self._stderr.append(line)

    # Its task.

    async def run(self) -> None:
        """The whole of it."""
        try:
            await self._live()
        except Exception as error:  # noqa: BLE001 - told to whoever waits for it
            self.failure = self.failure or error
        finally:
            if not self._is_ready and self.failure is None:
                self.failure = CLIExitedError("the child was ended before it was ready")
            self._settled.set()
            self._handed_over.set()
            try:
                with anyio.CancelScope(shield=True):
                    await self.transport.close()
            finally:
                self._freed.set()
                self._gone(self)

    async def _live(self) -> None:
        await self.transport.start(self._invocation)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._guarded, self.transport.serve)
            await self._guarded(self._listen)
            if self.is_taken and self.failure is None:
                self._handed_over.set()
                await self._released.wait()
            tasks.cancel_scope.cancel()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - told to whoever waits for it
            self.failure = self.failure or error
            self._listening.cancel()

    async def _listen(self) -> None:
        """Until it is ready and taken, or has failed, or was not wanted for too long."""
        with self._listening:
            if self._released.is_set():
                return
            with anyio.move_on_after(HANDSHAKE_SECONDS) as limit:
                await self.transport.send(self.opening)
                while not self._is_ready:
                    await self._hear()
            if not self._is_ready:
                assert limit.cancelled_caught
                raise ControlTimeout(f"no answer to the handshake within {HANDSHAKE_SECONDS:g} s", subtype="initialize")
            self._settled.set()
            with anyio.move_on_after(self._idle_seconds):
                while not self.is_taken:
                    await self._hear()

    async def _hear(self) -> None:
        data = await self.transport.receive()
        if not data:
            ending = await self.transport.ending()
            raise CLIExitedError(
                f"the child ended before anything was asked: {ending.detail or 'it closed its output'}",
                exit_code=ending.exit_code,
                signal=ending.signal,
                stderr=ending.stderr,
            )
        self.said += data
        self._connection.feed(data)
        events = cast("deque[Any]", self._connection.events)
        while events:
            self._look_at(events.popleft())
        if len(self.said) > KEPT_BYTES:
            raise CLIExitedError(f"the child said more than {KEPT_BYTES:,} bytes before anything was asked")

    def _look_at(self, event: Any) -> None:
        match event:
            case Reply(request_id=self._request_id):
                self._is_ready = True
            case Refusal(request_id=self._request_id, subtype=subtype, error=text, code=code):
                raise ControlError(
                    f"the CLI refused the control request {subtype!r}: {text}", subtype=subtype, code=code
                )
            case Inbound(subtype=subtype):
                self.is_asking = True
                words = f"the child asked {subtype!r} before anybody could answer: such a one cannot be started ahead"
                raise CLIExitedError(words)
            case _:
                pass
