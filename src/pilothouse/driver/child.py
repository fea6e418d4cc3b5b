"""A peer from its start to its close, in the task that owns it.

Owns the transport, the handshake's place in it, what runs beside the reader, and what is known of the peer's work.
What is said, and when that is enough, those who own one know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import anyio

from pilothouse.driver.background import BackgroundTasks
from pilothouse.driver.link import Link, Pending, Sink, Skipped
from pilothouse.driver.outgoing import Limits
from pilothouse.errors import LineDecodeError, PilothouseError
from pilothouse.messages import ApiRetryMessage, InitMessage, Message
from pilothouse.options import Invocation
from pilothouse.options.invocation import Opening
from pilothouse.protocol import BadLine, Noise, Oversize, StreamValidator
from pilothouse.transports import Transport, warn_if_executable_is_old, warn_if_old

if TYPE_CHECKING:
    from pilothouse.driver.host import Host
    from pilothouse.options.secrets import Redactor

WAKE_SECONDS = 1.0  # from the end of a background task until the model has been woken by it
# From a line that could not be read until a tool, whose result may have been in it, does not count as running any more:
# the longest that the CLI lets a command run (2.1.330), so that none is cut for a line that was of something else.
LOST_RESULT_SECONDS = 600.0

Work = Callable[[], Awaitable[None]]


class Child:
    """One connection to one peer.

    Args:
        transport: not started yet.
        invocation: how to start the peer.
        limits: sizes, and the time for control requests.
        sink: takes its messages.
        host: what this process offers to the peer, if anything.

    Attributes:
        failure: the first error of anything that runs here.
        close_failure: what the transport raised at its end: what it was to keep, such as a recording, is not complete.
        last_heard: when it last said something, or did what takes its time; later than now, if it said that it waits.
        in_turn: whether it works, for a prompt or by itself.
        may_be_woken: whether a background task was seen; one that ends wakes the peer, once it has nothing else to do.
    """

    def __init__(
        self, transport: Transport, invocation: Invocation, limits: Limits, sink: Sink, host: Host | None
    ) -> None:
        self.transport = transport
        self.invocation = invocation
        self.background = BackgroundTasks()
        self.failure: BaseException | None = None
        self.close_failure: PilothouseError | None = None
        self.last_heard = 0.0
        self.in_turn = False
        self.may_be_woken = False
        self._sink = sink
        self._limits = limits
        self._host = host
        self._redactor: Redactor | None = None
        self._doubted_until = 0.0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._running = 0  # how many of them have not ended

    # These are made when they are first asked for, which is after the start: the peer takes its time to come up.

    @cached_property
    def link(self) -> Link:
        """The connection over the transport."""
        link = Link(
            self.transport,
            self._sink,
            beside=self.beside,
            host=self._host,
            redact=self._redact,
            max_line_bytes=self._limits.max_line_bytes,
            control_timeout=self._limits.control_timeout,
        )
        link.on_skipped = self._on_skipped
        return link

    @cached_property
    def validator(self) -> StreamValidator:
        """What follows from the order of its messages."""
        return StreamValidator()

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[tuple[Pending | None, bytes]]:
        """Started on entry, closed on exit; gives the handshake, which the caller sends, if there is one.

        Raises:
            BaseException: the first error of what ran here, as it is and not inside a group.
        """
        await self.transport.start(self.invocation)
        try:
            self.last_heard = anyio.current_time()
            # Registered before anybody reads: a short peer may have said everything before the first task runs.
            hello = self.invocation.initialize
            pending, line = (None, b"") if hello is None else self.link.begin("initialize", hello)
            opening, line = (pending, Opening(line)), b""  # reporters of errors print the variables of every frame
            async with anyio.create_task_group() as self._tasks:
                self.beside(self.transport.serve)
                self.link.open_house()
                yield opening
                if self._running:  # to cancel nothing would cost as much as a task: it notes down who cancelled what
                    self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            with anyio.CancelScope(shield=True):
                try:
                    await self.transport.close()
                except PilothouseError as error:
                    self.close_failure = error
                    raise
        if self.failure is not None:
            raise self.failure

    def _redact(self, text: str) -> str:
        if self._redactor is None:  # most children give no occasion for it
            from pilothouse.options.secrets import Redactor, invocation_secrets

            self._redactor = Redactor(invocation_secrets(self.invocation))
        return self._redactor.redact(text)

    def beside(self, work: Work) -> None:
        """Run `work` beside the reader, until the connection ends; nothing runs after that."""
        if self._tasks is not None:
            self._running += 1
            self._tasks.start_soon(self._run, work)

    async def _run(self, work: Work) -> None:
        await self.guarded(work)
        self._running -= 1  # if it is cancelled, so is all the rest

    async def guarded(self, work: Work) -> None:
        """Run a part of it; its error ends the whole."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - handed on by `living`
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End all of it; the first error counts."""
        self.failure = self.failure or error
        self.leave()

    def leave(self) -> None:
        """End all of it, without an error."""
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    # What is known of its work.

    @property
    def takes_its_time(self) -> bool:
        """Whether it is silent for a reason: a tool runs, it has asked us, or the host still prepares."""
        return self._tool_runs or self.link.questions.at_work or self.link.is_preparing

    @property
    def _tool_runs(self) -> bool:
        if fragment := self.link.connection.fragment:
            self._doubt(fragment)
        validator = self.validator
        return validator.waiting_for_tools or (validator.in_doubt and anyio.current_time() < self._doubted_until)

    def _on_skipped(self, event: Skipped) -> None:
        match event:
            case Noise(line=line):  # of no message; or of one whose first byte is wrong
                self._doubt(line, is_frame=False)
            case Oversize(head=head):
                self._doubt(head)
            case BadLine(error=error):
                self._doubt(error.line if isinstance(error, LineDecodeError) else b"")

    def _doubt(self, line: bytes, *, is_frame: bool = True) -> None:
        if self.validator.skipped(line, is_frame=is_frame):
            self._doubted_until = anyio.current_time() + LOST_RESULT_SECONDS

    def quiet_since(self, *, busy: bool) -> float:
        """When it fell silent: now, while something runs that may take its time, or nobody reads."""
        if busy or self._sink.full:
            self.last_heard = max(self.last_heard, anyio.current_time())
        return self.last_heard

    def note_retry(self, message: ApiRetryMessage) -> None:
        """It has said for how long it will wait for the API: that is no silence."""
        self.last_heard = max(self.last_heard, anyio.current_time() + max(0.0, message.retry_delay_ms / 1000))

    def note_task(self, message: Message) -> None:
        """A message about a background task."""
        self.background.note(message)
        self.may_be_woken = True

    def note_init(self, message: InitMessage) -> None:
        """It begins a turn."""
        self.in_turn = True
        executable: str | None = getattr(self.transport, "executable", None)
        if message.claude_code_version:
            warn_if_old(message.claude_code_version)
        elif executable is not None:  # CLIs up to 2.0.0, at least, do not say it
            warn_if_executable_is_old(executable)
