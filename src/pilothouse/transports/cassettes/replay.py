"""A transport that replays a cassette: no process, no network, no model.

Owns timing and waiting; `playback` decides what is output when.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from pilothouse.errors import ReplayMismatch, UsageError
from pilothouse.options import Invocation
from pilothouse.options.secrets import Redactor, invocation_secrets
from pilothouse.transports.base import Ending, Health, Transport
from pilothouse.transports.cassettes.form import Cassette, Recorded, hide
from pilothouse.transports.cassettes.playback import EndOfOutput, Playback, Say, mismatch
from pilothouse.transports.errands import run_briefly
from pilothouse.transports.stderr import StderrLog

PATIENCE = 10.0
"""Seconds to wait, in the middle of a turn, for a recorded message that the program does not send."""
CHUNK = 256 * 1024
"""Bytes that `receive` returns at most."""

Source = str | os.PathLike[str] | Cassette


class Player:
    """Replays all connections of a cassette, in the order of their starts: `transport=Player("run.jsonl")`.

    Each call makes a transport, which takes the next connection when it is started.

    Args:
        cassette: a file, or the result of `Cassette.load`.
        strict: whether the program must send everything that was recorded, with the same meaning. False: only the
            kind of a message counts, and missing or additional messages are ignored where the recording can continue.
            None: strict, except for recordings without a header, which other programs made.
        ignore: names of fields of sent frames that are not compared, at any depth.
        speed: 1.0 replays at the recorded speed, 2.0 twice as fast; None as fast as possible.
        patience: seconds to wait, in the middle of a turn, for a recorded message that the program does not send. No
            limit while a callback of the program runs. None: no limit at all.

    Raises:
        UsageError: `speed` or `patience` is not positive.
    """

    def __init__(
        self,
        cassette: Source,
        *,
        strict: bool | None = None,
        ignore: Iterable[str] = (),
        speed: float | None = None,
        patience: float | None = PATIENCE,
    ) -> None:
        for name, value in (("speed", speed), ("patience", patience)):
            if value is not None and not value > 0:
                raise UsageError(f"{name}: expected a number greater than 0, got {value!r}")
        self.speed = speed
        self.patience = patience
        self._source = cassette
        self._strict = strict
        self._ignore = tuple(ignore)
        self._cassette = cassette if isinstance(cassette, Cassette) else None
        self._lock = threading.Lock()
        self._next = 0
        self._playbacks: list[Playback] = []

    def __call__(self) -> ReplayTransport:
        """A transport for one connection."""
        return ReplayTransport(self)

    @property
    def cassette(self) -> Cassette:
        """The cassette; read on first use, which blocks.

        Raises:
            CassetteError: the file cannot be read.
        """
        with self._lock:
            if self._cassette is None:
                assert not isinstance(self._source, Cassette)
                self._cassette = Cassette.load(Path(self._source))
            return self._cassette

    def start(self, invocation: Invocation) -> Playback:
        """Start the next connection. Blocking.

        Raises:
            CassetteError: the file cannot be read.
            ReplayMismatch: none is left, or the recorded one was started differently.
        """
        cassette = self.cassette
        with self._lock:
            number = self._next
            self._next += 1
        if number >= len(cassette.connections):
            words = f"the program starts connection {number + 1}, but {len(cassette.connections)} were recorded"
            raise mismatch(cassette, words)
        recorded = cassette.connections[number]
        redactor = Redactor(invocation_secrets(invocation))
        playback = Playback(
            cassette,
            recorded,
            strict=bool(cassette.version) if self._strict is None else self._strict,
            ignore=self._ignore,
            here=_places(invocation, recorded),
            hide=partial(hide, redactor=redactor),
        )
        self._playbacks.append(playback)
        files = (f"--{file.flag}" for file in invocation.files)
        args = [redactor.redact(arg) for arg in (*invocation.argv, *files, *invocation.trailing_args)]
        playback.begin(args, handshake=invocation.initialize is not None)
        return playback

    def check_complete(self) -> None:
        """Check, at the end of a test, that the program did everything that was recorded.

        Raises:
            CassetteError: the file cannot be read.
            ReplayMismatch: the program started or sent less.
        """
        connections = self.cassette.connections
        strict = bool(self.cassette.version) if self._strict is None else self._strict
        if strict and self._next < len(connections):
            words = f"the program has started {self._next} connections, but {len(connections)} were recorded"
            raise mismatch(self.cassette, words, connections[self._next].entries[0].line)
        for playback in self._playbacks:
            playback.check_complete()


class ReplayTransport(Transport):
    """Replays a cassette.

    A recorded response is output when its request is sent again. This covers prompts, control requests, and the
    responses of hooks, permissions and tools, whose callbacks are called as recorded. Ids of requests, prompts and
    sessions may differ, and so may the working directory.

    Args:
        cassette: a file, also one without a header, such as `FakeCLI.from_transcript` takes; or a `Player`, for
            several connections of one file.
        strict: as for `Player`, as are `ignore`, `speed` and `patience`.

    Raises:
        UsageError: settings are given together with a `Player`, which has its own; or `speed` or `patience` is not
            positive.
    """

    def __init__(self, cassette: Source | Player, **settings: Any) -> None:
        if isinstance(cassette, Player) and settings:
            raise UsageError("a Player has its own settings: give them to it")
        self._player = cassette if isinstance(cassette, Player) else Player(cassette, **settings)
        self._playback: Playback | None = None
        self._started = False
        self._closed = False
        self._input_ended = False
        self._output_ended = False
        self._failure: ReplayMismatch | None = None
        self._ready = bytearray()
        self._changed = anyio.Event()
        self._mark = (0.0, 0.0)  # a moment now, and the same moment in the recording
        self._stderr = StderrLog(partial(Redactor, ()))

    async def start(self, invocation: Invocation) -> None:
        """Open the cassette.

        Raises:
            CassetteError: the file cannot be read.
            ReplayMismatch: the CLI was started differently in the recording.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        if self._started:
            raise UsageError("a transport serves one connection: make a new one instead of starting it again")
        self._started = True
        self._stderr = StderrLog(lambda: Redactor(invocation_secrets(invocation)), invocation.on_stderr)
        self._playback = await run_briefly(self._player.start, invocation)
        self._mark = (anyio.current_time(), 0.0)

    async def send(self, data: bytes) -> None:
        """Match `data` with the recording.

        Raises:
            ReplayMismatch: `data` differs from the recording; `receive` raises it as well.
        """
        playback = self._running()
        if self._input_ended:
            raise anyio.ClosedResourceError
        await checkpoint()
        if playback.has_exited:
            raise anyio.BrokenResourceError
        *lines, rest = data.split(b"\n")
        try:
            for line in [line + b"\n" for line in lines] + ([rest] if rest else []):
                playback.send(line)
        except ReplayMismatch as error:
            self._failure = self._failure or error
            raise
        finally:
            self._tell()

    async def receive(self) -> bytes:
        """Return the next recorded output.

        Raises:
            ReplayMismatch: the program does not do what was recorded.
        """
        playback = self._running()
        await checkpoint()
        while not self._ready and not self._output_ended and self._failure is None:
            try:
                await self._go_on(playback)
            except ReplayMismatch as error:
                self._failure = error
        data = bytes(self._ready[:CHUNK])
        del self._ready[:CHUNK]
        if not data and self._failure is not None:
            raise self._failure
        return data

    async def _go_on(self, playback: Playback) -> None:
        """Take the output that is due now; wait if there is none."""
        if self._closed:
            raise anyio.ClosedResourceError
        changed = self._changed
        step = playback.next()
        self._note_gate(playback)
        if step is None:
            await self._wait_for_program(playback, changed)
        elif wait := self._due(step):
            with anyio.move_on_after(wait):
                await changed.wait()
        else:
            while step is not None and not self._due(step) and len(self._ready) < CHUNK and not self._output_ended:
                self._take(playback, step)
                step = playback.next()
                self._note_gate(playback)

    def _take(self, playback: Playback, step: Say | EndOfOutput) -> None:
        data = playback.done(step)
        if isinstance(step, EndOfOutput):
            self._output_ended = True
        elif step.to == "err":
            self._stderr.feed(data)
        else:
            self._ready += data

    async def _wait_for_program(self, playback: Playback, changed: anyio.Event) -> None:
        limited = playback.busy and not playback.waits_for_answer and self._player.patience is not None
        with anyio.move_on_after(self._player.patience if limited else None) as patience:
            await changed.wait()
        if patience.cancelled_caught:
            playback.give_up()

    def _note_gate(self, playback: Playback) -> None:
        if playback.passed > self._mark[1]:
            self._mark = (anyio.current_time(), playback.passed)

    def _due(self, step: Say | EndOfOutput) -> float:
        """Return the seconds until this step is due."""
        if self._player.speed is None:
            return 0.0
        began, then = self._mark
        return max(0.0, began + (step.time - then) / self._player.speed - anyio.current_time())

    async def end_input(self) -> None:
        """End the input of the replay."""
        playback = self._running()
        self._input_ended = True
        playback.end_input()
        self._tell()
        await checkpoint()

    async def ending(self) -> Ending:
        """Return how the recorded CLI ended."""
        await checkpoint()
        if self._playback is None:
            return Ending(detail="not started")
        ending, rest = self._playback.ending()
        for line in rest:
            self._stderr.feed(line)
        self._stderr.finish()
        return Ending(ending.exit_code, ending.signal, self._stderr.tail(), ending.detail)

    async def close(self) -> None:
        """Close the replay; drop the rest of the recording."""
        self._closed = True
        self._tell()
        with anyio.CancelScope(shield=True):
            await checkpoint()

    def health(self) -> Health:
        """Return whether the replay is healthy, or why not."""
        states = (
            (self._closed, Health("unhealthy", "closed")),
            (self._playback is None, Health("unhealthy", "not started")),
            (self._failure is not None, Health("unhealthy", "the program does not do what was recorded")),
            (self._output_ended, Health("unhealthy", "the recorded peer ended its output")),
            (self._input_ended, Health("degraded", "input ended")),
        )
        return next((health for applies, health in states if applies), Health("healthy"))

    def _running(self) -> Playback:
        if self._playback is None or self._closed:
            raise anyio.ClosedResourceError
        return self._playback

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _places(invocation: Invocation, recorded: Recorded) -> dict[str, str]:
    """Map the present working directory to the recorded one."""
    then = str(recorded.event("spawn").get("cwd") or "")
    now = invocation.cwd or os.getcwd()  # noqa: PTH109
    return {now: then} if then else {}
