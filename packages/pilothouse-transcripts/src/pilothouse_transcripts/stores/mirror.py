"""Writes what the CLI adds to its transcripts to a store.

Splits mirror frames from the CLI's output, holds the leases, writes in batches and retries.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self, cast
from weakref import WeakSet

import anyio
import anyio.lowlevel

from pilothouse.callbacks import is_failure
from pilothouse.errors import LeaseLostError, LineDecodeError, SessionLeasedError, StoreConflictError, UsageError
from pilothouse.support import LoopCondition, decode_line
from pilothouse_transcripts.stores.base import Entry, Lease, SessionStore, StoreBackend, TranscriptKey

_FRAME_START = b'{"type":"transcript_mirror"'
_FRAME_TYPE = b'"transcript_mirror"'
_MAX_START_BYTES = 64
"""Number of bytes at the start of a line, white space included, that contain the start of a frame."""
_ID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PATH = re.compile(
    rf"(?:.*[/\\])?projects[/\\](?P<project>[^/\\]+)[/\\](?P<session>{_ID})(?:[/\\](?P<subpath>.+))?\.jsonl", re.DOTALL
)


class MirrorFrame(NamedTuple):
    """The entries added to one file."""

    path: str
    entries: list[Entry]
    size: int  # bytes on the wire


class MirrorFrameSplitter:
    """Splits the output of the CLI into mirror frames and other output, which is passed on in whole lines.

    Args:
        limit: maximum size of a frame in bytes; a longer line is passed on, so that the line reader reports it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[bytes] = []  # the start of a line
        self._held_size = 0
        self._frames: list[MirrorFrame] = []
        self.is_mid_line = False
        """Whether the last byte passed on was not the end of a line, because the line is too long."""

    def take_frames(self) -> list[MirrorFrame]:
        """Return the frames since the last call."""
        found, self._frames = self._frames, []
        return found

    def feed(self, chunk: bytes) -> bytes:
        """Remove the frames from a chunk of output; return the rest, up to the end of the last line."""
        cut = chunk.rfind(b"\n") + 1
        shown = b""
        if cut:
            lines = self.flush() + chunk[:cut]
            if self.is_mid_line:
                end = lines.index(b"\n") + 1
                shown, lines, self.is_mid_line = lines[:end], lines[end:], False
            if _FRAME_TYPE in lines:
                ended = (line + b"\n" for line in lines[:-1].split(b"\n"))
                lines = b"".join(line for line in ended if not self._take_frame(line))
            shown += lines
        self._held.append(chunk[cut:])
        self._held_size += len(chunk) - cut
        if self.is_mid_line or self._held_size > self._limit:
            self.is_mid_line = True
            shown += self.flush()
        return shown

    def flush(self) -> bytes:
        """Return the start of a line that is held back."""
        held, self._held, self._held_size = b"".join(self._held), [], 0
        return held

    def _take_frame(self, line: bytes) -> bool:
        start = line[:_MAX_START_BYTES].translate(None, b" \t\r\n")
        frame = _parse_frame(line) if start.startswith(_FRAME_START) and len(line) <= self._limit else None
        if frame is not None:
            self._frames.append(frame)
        return frame is not None


def _parse_frame(line: bytes) -> MirrorFrame | None:
    """Parse the frame in a line; None for an unknown form, which is then passed on."""
    try:
        data: Any = decode_line(line)
    except LineDecodeError:
        return None
    path, entries = data.get("filePath"), data.get("entries")
    if not isinstance(path, str) or not isinstance(entries, list):
        return None
    found = cast("list[object]", entries)
    if not all(isinstance(entry, dict) for entry in found):
        return None
    return MirrorFrame(path, cast("list[Entry]", found), len(line))


def parse_transcript_path(path: str) -> TranscriptKey | None:
    """Return the key of a transcript file of the CLI; None for other files.

    Args:
        path: a path in the CLI's form: `…/projects/<project>/<session>.jsonl`, with more folders for sub-agents.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    subpath = (found["subpath"] or "").replace("\\", "/")
    return TranscriptKey(found["project"], found["session"], subpath)


log = logging.getLogger("pilothouse.stores")

RENEWALS_PER_TTL = 3
"""Number of lease renewals per ttl."""
RELEASE_SECONDS = 5.0


class SessionWriter:
    """Appends to sessions of a store; with leases and compare-and-append, if the store has them.

    `async with` releases the leases at the end.

    Attributes:
        store: the same store.
        has_leases: whether the store has leases.
        owner: name of the holder, shown to others.
    """

    def __init__(self, store: SessionStore, ttl: float) -> None:
        self.store = store
        self.has_leases = isinstance(store, StoreBackend)
        self.owner = f"{platform.node() or 'a host'}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._backend = cast("StoreBackend", store)
        self._ttl = ttl
        self._leases: dict[TranscriptKey, Lease] = {}
        self._unanswered: set[TranscriptKey] = set()  # sessions whose lease the store may have given, unnoticed
        self._counts: dict[TranscriptKey, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.release()

    def set_count(self, transcript: TranscriptKey, count: int) -> None:
        """Set the number of stored entries of a transcript."""
        self._counts[transcript] = count

    async def acquire(self, transcript: TranscriptKey) -> Lease | None:
        """Return the lease of a transcript's session, acquired if needed; None if the store has none.

        Raises:
            SessionLeasedError: another owner holds it.
            StoreError: the store failed.
        """
        main = transcript.main
        if self.has_leases and main not in self._leases:
            self._unanswered.add(main)
            try:
                self._leases[main] = await self._backend.acquire(main.session_key, self.owner, self._ttl)
            except (SessionLeasedError, UsageError):
                self._unanswered.discard(main)
                raise
            self._unanswered.discard(main)
            log.info("session %s is leased to %s", transcript.session, self.owner)
        return self._leases.get(main)

    async def append(self, transcript: TranscriptKey, entries: list[Entry]) -> None:
        """Append entries. Raises what the store raises."""
        if not self.has_leases:
            await self.store.append(transcript.session_key, entries)
            return
        lease = await self.acquire(transcript)
        if transcript not in self._counts:
            self._counts[transcript] = await self._backend.count(transcript.session_key)
        self._counts[transcript] = await self._backend.append(
            transcript.session_key, entries, after=self._counts[transcript], lease=lease
        )

    async def renew_leases(self) -> None:
        """Renew the leases until cancelled. If the store does not respond, the next round tries again.

        Raises:
            LeaseLostError: another owner has taken over a session.
        """
        while self.has_leases:
            await anyio.sleep(self._ttl / RENEWALS_PER_TTL)
            for transcript, lease in list(self._leases.items()):
                try:
                    with anyio.fail_after(self._ttl / RENEWALS_PER_TTL):
                        self._leases[transcript] = await self._backend.renew(lease)
                except LeaseLostError:
                    del self._leases[transcript]
                    raise
                except BaseException as error:  # the store may work again at the next round
                    if not is_failure(error):
                        raise
                    log.warning("the lease of session %s could not be renewed: %r", transcript.session, error)

    async def release(self) -> None:
        """Release all leases, as far as the store responds within `RELEASE_SECONDS`. Call it shielded."""
        leases, self._leases = self._leases, {}
        unanswered, self._unanswered = self._unanswered, set()
        with anyio.move_on_after(RELEASE_SECONDS):
            for transcript in [*leases, *unanswered]:
                try:
                    lease = leases.get(transcript)
                    # The same owner gets its lease again, and so the token to release it.
                    lease = lease or await self._backend.acquire(transcript.session_key, self.owner, self._ttl)
                    await self._backend.release(lease)
                except SessionLeasedError:
                    pass  # another owner has it
                except BaseException as error:
                    log.warning("the lease of session %s could not be released: %r", transcript.session, error)
                    if not is_failure(error):
                        raise


BATCH_ENTRIES = 500
BATCH_BYTES = 1 << 20
LINGER_SECONDS = 1.0
"""Seconds that entries wait for more entries. If the host is killed, no more than this is lost."""
RETRY_PAUSES = (0.2, 0.8)
"""Seconds between the attempts to write a batch."""
ATTEMPT_SECONDS = 20.0
RETRY_SECONDS = 5.0
"""Seconds until the next round after all attempts have failed."""
MAX_BACKLOG_BYTES = 64 << 20
"""Maximum bytes that wait: a slow store then blocks the CLI, and a failing one loses what waits."""

FATAL_ERRORS = (LeaseLostError, SessionLeasedError, StoreConflictError)
"""Errors that mean that another owner has the session now."""

OnLost = Callable[[TranscriptKey, str], object]

_live_writers: WeakSet[MirrorWriter] = WeakSet()


class MirrorWriter:
    """Writes entries passed to `enqueue` to the store.

    Attributes:
        store, loop: the destination, and the event loop of this object.
        fatal_error: the error that stopped all writing, if any.
        last_error: the error of the last round of attempts, until one succeeds.
    """

    def __init__(self, sessions: SessionWriter, on_lost: OnLost, *, eager: bool = False) -> None:
        self.store = sessions.store
        self.loop: object = anyio.lowlevel.current_token().native_token
        self._on_lost = on_lost
        self._is_eager = eager
        self._sessions = sessions
        self._waiting: dict[TranscriptKey, list[Entry]] = {}
        self._waiting_entries = self._waiting_bytes = 0
        # Retried unchanged until its outcome is known: transcript, entries, bytes.
        self._batch: tuple[TranscriptKey, list[Entry], int] | None = None
        self._lock = anyio.Lock()
        self._changed = LoopCondition()
        self._is_due = False
        self.fatal_error: Exception | None = None
        self.last_error: str | None = None

    def enqueue(self, transcript: TranscriptKey, entries: list[Entry], size: int) -> None:
        """Add entries to write; `size` is their size in bytes."""
        if not entries or self.fatal_error is not None:
            return
        self._waiting.setdefault(transcript, []).extend(entries)
        self._waiting_entries += len(entries)
        self._waiting_bytes += size
        self._changed.notify_all()
        if self._is_eager or self._waiting_entries > BATCH_ENTRIES or self._waiting_bytes > BATCH_BYTES:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write waiting entries soon: a turn has ended."""
        if self._waiting:
            self._is_due = True
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait that the CLI must wait, too."""
        return self._waiting_bytes > MAX_BACKLOG_BYTES

    @property
    def backlog(self) -> int:
        """Number of entries that wait to be written."""
        return self._waiting_entries + (0 if self._batch is None else len(self._batch[1]))

    async def run(self) -> None:
        """Write entries until cancelled.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: another owner has the session now.
        """
        _live_writers.add(self)
        while True:
            await self._changed.wait_until(lambda: self.backlog > 0)
            with anyio.move_on_after(RETRY_SECONDS if self.last_error else LINGER_SECONDS):
                await self._changed.wait_until(lambda: self._is_due)
            await self.flush()

    async def flush(self) -> None:
        """Write all waiting entries now, as far as the store allows.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: another owner has the session now.
        """
        async with self._lock:
            self._is_due = False
            while self.fatal_error is None and (batch := self._take_batch()) is not None:
                if not await self._write_batch(*batch):
                    break
                self._batch = None
            if self.last_error and self.is_full:
                self._discard_waiting()
        if self.fatal_error is not None:
            raise self.fatal_error

    def _take_batch(self) -> tuple[TranscriptKey, list[Entry], int] | None:
        if self._batch is None and self._waiting:
            transcript = next(iter(self._waiting))
            entries = self._waiting[transcript]
            batch, left = entries[:BATCH_ENTRIES], entries[BATCH_ENTRIES:]
            # An estimate is enough to limit the backlog.
            size = self._waiting_bytes * len(batch) // self._waiting_entries
            if left:
                self._waiting[transcript] = left
            else:
                del self._waiting[transcript]
            self._waiting_entries -= len(batch)
            self._waiting_bytes -= size
            self._batch = (transcript, batch, size)
        return self._batch

    async def _write_batch(self, transcript: TranscriptKey, entries: list[Entry], size: int) -> bool:
        """Write a batch; return whether it is finished: stored, or lost for good."""
        for pause in (*RETRY_PAUSES, None):
            try:
                # A write is never cancelled: afterwards it would be unknown whether it reached the store.
                with anyio.fail_after(ATTEMPT_SECONDS, shield=True):
                    await self._sessions.append(transcript, entries)
            except FATAL_ERRORS as error:
                self._stop_writing(error)
                return True
            except UsageError as error:
                self._report_lost(transcript, len(entries), str(error))
                return True
            except TimeoutError:
                reason = f"the store did not answer within {ATTEMPT_SECONDS:g} s"
                if not self._sessions.has_leases:  # the write may have succeeded, and a retry would store it twice
                    self._report_lost(transcript, len(entries), reason)
                    return True
                self.last_error = reason
            except BaseException as error:  # stores are user code
                if not is_failure(error):
                    raise
                self.last_error = f"{type(error).__name__}: {error}"
            else:
                self.last_error = None
                return True
            if pause is not None:
                await anyio.sleep(pause)
        log.warning(
            "%d entries of session %s are not stored yet: %s", len(entries), transcript.session, self.last_error
        )
        self._on_lost(transcript, f"not stored yet, and tried again later: {self.last_error}")
        return False

    def _stop_writing(self, error: Exception) -> None:
        log.error("session store: %s", error)
        self.fatal_error = error
        self._clear_waiting()
        self._batch = None

    def _clear_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_entries = self._waiting_bytes = 0

    def _report_lost(self, transcript: TranscriptKey, count: int, reason: str) -> None:
        log.error("%d entries of session %s are lost to the store: %s", count, transcript.session, reason)
        self._on_lost(transcript, f"lost to the store: {reason}")

    def _discard_waiting(self) -> None:
        for transcript, entries in self._waiting.items():
            self._report_lost(transcript, len(entries), f"too much waits to be written ({self.last_error})")
        self._clear_waiting()

    async def close(self, timeout: float) -> None:
        """Write the rest within `timeout` seconds; report what was not written as lost. Call it shielded."""
        _live_writers.discard(self)
        try:
            with anyio.move_on_after(timeout), suppress(*FATAL_ERRORS):
                await self.flush()
        finally:  # also when asyncio's `Task.cancel` broke through the shield
            self._report_rest(timeout)

    def _report_rest(self, timeout: float) -> None:
        if self._batch is not None:
            transcript, entries, size = self._batch
            self._batch = None
            self._waiting[transcript] = entries + self._waiting.get(transcript, [])
            self._waiting_bytes += size
        self.last_error = (
            self.last_error or f"the session was closed, and the store had not answered within {timeout:g} s"
        )
        self._discard_waiting()


async def flush_mirrors(store: SessionStore, timeout: float) -> None:
    """Write what sessions of this event loop have buffered for a store, so that a fork sees all of it."""
    loop = anyio.lowlevel.current_token().native_token
    for mirror in list(_live_writers):
        if mirror.store is store and mirror.loop is loop:
            with anyio.move_on_after(timeout), suppress(*FATAL_ERRORS):
                await mirror.flush()
