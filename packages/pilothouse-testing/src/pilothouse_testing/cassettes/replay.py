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
from pilothouse.support import LoopCondition, Redactor, invocation_secrets, run_blocking
from pilothouse.transports import ExitInfo, Health, StderrLog, Transport
from pilothouse_testing.cassettes.format import Cassette, RecordedConnection, read_names, redact_line
from pilothouse_testing.cassettes.playback import Emit, PlaybackState, make_mismatch

PATIENCE_SECONDS = 10.0
"""Seconds to wait for a recorded message that the program leaves out."""
CHUNK_BYTES = 256 * 1024
"""Bytes that `receive` returns at most."""

CassetteSource = str | os.PathLike[str] | Cassette


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
        patience: seconds to wait for a recorded message that the program leaves out: during a turn, or once the
            program has sent a later message. No limit while a callback of the program runs. None: no limit at all.

    Raises:
        UsageError: `speed` or `patience` is not positive.
    """

    def __init__(
        self,
        cassette: CassetteSource,
        *,
        strict: bool | None = None,
        ignore: Iterable[str] = (),
        speed: float | None = None,
        patience: float | None = PATIENCE_SECONDS,
    ) -> None:
        given: dict[str, Any] = {"speed": speed, "patience": patience}
        for name, value in given.items():
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise UsageError(f"{name}: expected a number greater than 0, got {value!r}")
        self.speed = speed
        self.patience = patience
        self._source = cassette
        self._strict = strict
        self._ignore = read_names("ignore", ignore)
        self._cassette = cassette if isinstance(cassette, Cassette) else None
        self._lock = threading.Lock()
        self._next = 0
        self._playbacks: list[PlaybackState] = []

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

    @property
    def _is_strict(self) -> bool:
        return bool(self.cassette.version) if self._strict is None else self._strict

    def start(self, invocation: Invocation) -> PlaybackState:
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
            raise make_mismatch(cassette, words)
        recorded = cassette.connections[number]
        redactor = Redactor(invocation_secrets(invocation))
        playback = PlaybackState(
            cassette,
            recorded,
            strict=self._is_strict,
            ignore=self._ignore,
            moved_paths=_find_moved_paths(invocation, recorded),
            redact=partial(redact_line, redactor=redactor),
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
        if self._is_strict and self._next < len(connections):
            words = f"the program has started {self._next} connections, but {len(connections)} were recorded"
            raise make_mismatch(self.cassette, words, connections[self._next].entries[0].line)
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

    def __init__(self, cassette: CassetteSource | Player, **settings: Any) -> None:
        if isinstance(cassette, Player) and settings:
            raise UsageError("a Player has its own settings: give them to it")
        self._player = cassette if isinstance(cassette, Player) else Player(cassette, **settings)
        self._playback: PlaybackState | None = None
        self._closed = False
        self._input_ended = False
        self._output_ended = False
        self._failure: ReplayMismatch | None = None
        self._ready = bytearray()
        self._changed = LoopCondition()
        self._clock_mark = (0.0, 0.0)  # a moment now, and the same moment in the recording
        self._stderr = StderrLog(partial(Redactor, ()))

    async def start(self, invocation: Invocation) -> None:
        """Open the cassette.

        Raises:
            CassetteError: the file cannot be read.
            ReplayMismatch: the CLI was started differently in the recording.
        """
        self._mark_started(is_closed=self._closed)
        self._stderr = StderrLog(lambda: Redactor(invocation_secrets(invocation)), invocation.on_stderr)
        self._playback = await run_blocking(self._player.start, invocation)
        self._clock_mark = (anyio.current_time(), 0.0)

    async def send(self, data: bytes) -> None:
        """Match `data` with the recording.

        Raises:
            ReplayMismatch: `data` differs from the recording; `receive` raises it as well.
        """
        playback = self._require_playback()
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
            self._changed.notify_all()

    async def receive(self) -> bytes:
        """Return the next recorded output.

        Raises:
            ReplayMismatch: the program does not do what was recorded.
        """
        playback = self._require_playback()
        await checkpoint()
        while not self._ready and not self._output_ended and self._failure is None:
            try:
                await self._advance(playback)
            except ReplayMismatch as error:
                self._failure = error
        data = bytes(self._ready[:CHUNK_BYTES])
        del self._ready[:CHUNK_BYTES]
        if not data and self._failure is not None:
            raise self._failure
        return data

    async def _advance(self, playback: PlaybackState) -> None:
        """Take the output that is due now; wait if there is none."""
        if self._closed:
            raise anyio.ClosedResourceError
        step = self._next_step(playback)
        if step is None:
            with anyio.move_on_after(self._player.patience if playback.is_input_late else None) as patience:
                await self._changed.wait()
            if patience.cancelled_caught:
                playback.on_timeout()
        elif wait := self._seconds_until_due(step):
            with anyio.move_on_after(wait):
                await self._changed.wait()
        while step is not None and not self._seconds_until_due(step) and len(self._ready) < CHUNK_BYTES:
            data = playback.complete_step(step)
            if step.stream == "end":
                self._output_ended = True
                return
            if step.stream == "err":
                self._stderr.feed(data)
            else:
                self._ready += data
            step = self._next_step(playback)

    def _next_step(self, playback: PlaybackState) -> Emit | None:
        step = playback.next_step()
        if playback.last_input_time > self._clock_mark[1]:
            self._clock_mark = (anyio.current_time(), playback.last_input_time)
        return step

    def _seconds_until_due(self, step: Emit) -> float:
        """Return the seconds until this step is due."""
        if self._player.speed is None:
            return 0.0
        began, then = self._clock_mark
        return max(0.0, began + (step.time - then) / self._player.speed - anyio.current_time())

    async def end_input(self) -> None:
        """End the input of the replay."""
        playback = self._require_playback()
        self._input_ended = True
        playback.end_input()
        self._changed.notify_all()
        await checkpoint()

    async def exit_info(self) -> ExitInfo:
        """Return how the recorded CLI ended."""
        await checkpoint()
        if self._playback is None:
            return ExitInfo(detail="not started")
        ending, rest = self._playback.exit_info()
        for line in rest:
            self._stderr.feed(line)
        self._stderr.finish()
        return ExitInfo(ending.exit_code, ending.signal, self._stderr.tail(), ending.detail)

    async def close(self) -> None:
        """Close the replay; drop the rest of the recording."""
        self._closed = True
        self._changed.notify_all()
        with anyio.CancelScope(shield=True):
            await checkpoint()

    def health(self) -> Health:
        """Return whether the replay is healthy, or why not."""
        states = (
            (self._closed, Health("unhealthy", "closed")),
            (self._playback is None, Health("unhealthy", "not started")),
            (self._failure is not None, Health("unhealthy", "the program does not do what was recorded")),
            (self._output_ended, Health("unhealthy", "the recorded CLI ended its output")),
            (self._input_ended, Health("degraded", "input ended")),
        )
        return next((health for applies, health in states if applies), Health("healthy"))

    def _require_playback(self) -> PlaybackState:
        if self._playback is None or self._closed:
            raise anyio.ClosedResourceError
        return self._playback


def _find_moved_paths(invocation: Invocation, recorded: RecordedConnection) -> dict[str, str]:
    """Map the present working directory to the recorded one."""
    then = str(recorded.event("spawn").get("cwd") or "")
    now = invocation.cwd or os.getcwd()  # noqa: PTH109
    return {now: then} if then else {}
