"""A transport wrapper that resumes a session from a store and writes its transcripts back."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from pilothouse.errors import CLIStartError, OptionsError, PilothouseError, SessionNotFoundError
from pilothouse.options import Invocation, Options
from pilothouse.support import run_blocking
from pilothouse.transports import Health, Transport, TransportWrapper
from pilothouse.transports.private_files import PrivateHome
from pilothouse_transcripts.paths import MAX_KEY_CHARS, find_file, find_home, is_session_id, project_key
from pilothouse_transcripts.session_info import list_sessions
from pilothouse_transcripts.stores.base import SessionStore, TranscriptKey, implements
from pilothouse_transcripts.stores.mirror import (
    MirrorFrameSplitter,
    MirrorWriter,
    SessionWriter,
    flush_mirrors,
    parse_transcript_path,
)
from pilothouse_transcripts.stores.restore import RestoredSession, SessionConfigDirectory, StoreReader, write_session
from pilothouse_transcripts.stores.stored_sessions import import_file

log = logging.getLogger("pilothouse.stores")

DRAIN_SECONDS = 0.5
"""Seconds to read the last mirror frames of a process that is closed in the middle of a turn."""
SILENCE_SECONDS = 0.15
"""Seconds of silence after which no more frames follow: the CLI sends what it writes every 0.1 s."""
CLOSE_SECONDS = 20.0
"""Seconds for the store to accept the rest at the end."""
RESULT_MARK = b'"type":"result"'
PROJECT_DIRECTORY_VARIABLE = "CLAUDE_CODE_PROJECT_DIR_NAME"
"""The variable that renames the folder of a project, if CLAUDE_CONFIG_DIR is set as well."""


class MirroredTransport(TransportWrapper):
    """One process over another transport, with `session_store`."""

    def __init__(self, inner: Transport, options: Options) -> None:
        store: SessionStore = options.session_store
        if options.continue_conversation and not implements(store, "list_sessions"):
            raise OptionsError(
                f"continue_conversation: {type(store).__name__} has no list_sessions(), so the latest session is "
                "unknown; pass resume=",
                option="session_store",
            )
        if not options.persist_session:
            raise OptionsError(
                "options 'session_store' and 'persist_session' cannot be combined: a CLI that writes no transcript has "
                "none to store",
                option="session_store",
            )
        super().__init__(inner)
        self._options = options
        self._store = store
        self._sessions = SessionWriter(store, options.session_lease)
        self._reader = StoreReader(store, options.load_timeout)
        eager = options.session_store_flush == "eager"
        self._writer = MirrorWriter(self._sessions, self._queue_error_line, eager=eager)
        self._splitter = MirrorFrameSplitter(options.max_line_bytes)
        self._error_lines: deque[bytes] = deque()  # lines added for the reader
        self._receive_scope: anyio.CancelScope | None = None
        self._config_directory: SessionConfigDirectory | PrivateHome | None = None
        self._project = ""
        self._project_directory_name: str | None = None
        self._has_raised_error = False
        self._ended = False
        self._closed = False

    # Starting.

    async def start(self, invocation: Invocation) -> None:
        """Acquire the lease, write the session where the process finds it, and start the process.

        Raises:
            SessionLeasedError: another owner has the session.
            SessionNotFoundError: neither the store nor this machine has the session.
            StoreError: the store failed.
            PilothouseError: the process could not be started.
        """
        self._mark_started(is_closed=self._closed)
        try:
            await self.inner.start(await self._prepare(invocation))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clean_up()
            raise

    async def _prepare(self, invocation: Invocation) -> Invocation:
        asked, cwd = self._options, invocation.cwd or os.getcwd()  # noqa: PTH109 - needs a string
        cwd = self.inner.find_directory(invocation.cwd) or cwd
        self._project = await run_blocking(project_key, cwd)
        self._project_directory_name = invocation.env.get(PROJECT_DIRECTORY_VARIABLE)
        if asked.resume is not None or asked.continue_conversation:
            return await self._prepare_resume(invocation, cwd)
        if asked.session_id is not None and not invocation.has_generated_session_id:
            await self._acquire_lease(TranscriptKey(self._project, asked.session_id))
        return invocation

    async def _acquire_lease(self, transcript: TranscriptKey) -> None:
        await self._reader.call(self._sessions.acquire(transcript), "acquire()")

    async def _prepare_resume(self, invocation: Invocation, cwd: str) -> Invocation:
        if self.inner.facts.session_files == "there":
            return invocation
        transcript = await self._find_session(invocation, cwd)
        if transcript is None:
            return invocation
        if not self._options.fork_session:
            await self._acquire_lease(transcript)
        await flush_mirrors(self._store, self._options.load_timeout)
        session = await self._reader.read_session(transcript)
        is_sent = self.inner.facts.session_files == "sent"
        if session is not None and is_sent:
            self._set_counts(session)
            self.inner.place_transcripts(await run_blocking(_read_transcripts, session))
        elif is_sent:
            log.info("session %s is not in the store: it may be on the other side", transcript.session)
        elif session is None:
            await self._import_from_disk(invocation, transcript, cwd)
        else:
            if not self._options.fork_session:
                self._set_counts(session)
            invocation = await self._write_session(invocation, session, cwd)
        resume = f"--resume={transcript.session}"
        return replace(invocation, argv=tuple(resume if arg == "--continue" else arg for arg in invocation.argv))

    async def _find_session(self, invocation: Invocation, cwd: str) -> TranscriptKey | None:
        asked = self._options.resume
        if asked is None:
            latest = await self._reader.find_latest(self._project)
            if latest is not None:
                return latest
            config = _find_config_directory(invocation)
            found = await run_blocking(lambda: list_sessions(cwd, 1, include_worktrees=False, config_dir=config))
            return TranscriptKey(self._project, found[0].session_id) if found else None
        if not is_session_id(asked):
            words = f"option 'resume': a session store knows sessions by id, not {asked!r:.80}"
            raise OptionsError(words, option="resume")
        return TranscriptKey(self._project, asked)

    def _set_counts(self, session: RestoredSession) -> None:
        self._sessions.set_count(session.transcript, len(session.entries))
        for subpath, entries in session.subpaths.items():
            self._sessions.set_count(session.transcript._replace(subpath=subpath), len(entries))

    async def _import_from_disk(self, invocation: Invocation, transcript: TranscriptKey, cwd: str) -> None:
        """Import a session that the store does not have from disk, where the process finds it too."""
        path = await run_blocking(find_file, transcript.session, cwd, _find_config_directory(invocation))
        if path is None:
            raise SessionNotFoundError(
                f"there is no session {transcript.session} of {cwd} in the session store, and none on this machine"
            )
        if not self._options.fork_session:  # a fork writes all of it again, into its own transcript
            log.info("session %s is on disk and not in the store: it is brought there", transcript.session)
            await import_file(path, transcript, self._sessions)

    async def _write_session(self, invocation: Invocation, session: RestoredSession, cwd: str) -> Invocation:
        try:
            owner = None if invocation.user is None else await run_blocking(_find_owner, invocation.user)
            if invocation.is_isolated:
                home = invocation.home
                if home is None:
                    home = self._config_directory = PrivateHome()
                config = Path(await run_blocking(home.ensure, owner), ".claude")
                await run_blocking(write_session, config, session, owner)
                return replace(invocation, home=home)
            self._config_directory = private = SessionConfigDirectory()
            directory = await run_blocking(private.make, invocation.env, session, cwd, owner)
        except OSError as error:
            words = f"could not write the session from the store to a private directory: {error.strerror or error}"
            raise CLIStartError(f"{words}; look at TMPDIR and the space that is left there") from error
        env = {**invocation.env, "CLAUDE_CONFIG_DIR": directory}
        env.pop(PROJECT_DIRECTORY_VARIABLE, None)
        return replace(invocation, env=env)

    # Streaming.

    async def serve(self) -> None:
        """Write to the store and renew the leases, while serving the inner transport.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: another owner has the session now.
        """
        failures: list[Exception] = []

        async def run_guarded(work: Any) -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised below, outside the group
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_guarded, self.inner.serve)
            tasks.start_soon(run_guarded, self._writer.run)
            tasks.start_soon(run_guarded, self._sessions.renew_leases)
        if failures:
            self._has_raised_error = True
            raise failures[0]

    async def receive(self) -> bytes:
        """Return the next bytes from the process, without its mirror frames."""
        while not self._closed:
            if self._error_lines and not self._splitter.is_mid_line:
                return self._error_lines.popleft()
            if self._ended:
                return b""
            chunk: bytes | None = None
            with anyio.CancelScope() as self._receive_scope:
                chunk = await self.inner.receive()
            self._receive_scope = None
            if chunk is None:  # an error line was queued
                await anyio.lowlevel.checkpoint()
                continue
            if not chunk:
                self._ended = True
                rest = self._splitter.flush()
                await self._writer.flush()  # reports what could not be written before the end
                if rest:
                    return rest
                continue
            shown = self._filter_chunk(chunk)
            if self._writer.is_full:
                await self._writer.flush()
            if shown:
                return shown
        raise anyio.ClosedResourceError

    def _filter_chunk(self, chunk: bytes) -> bytes:
        shown = self._splitter.feed(chunk)
        for frame in self._splitter.take_frames():
            transcript = parse_transcript_path(frame.path)
            if transcript is None:
                log.warning(
                    "the CLI has written to a transcript of an unknown kind, which is not stored: %s", frame.path
                )
            else:
                self._writer.enqueue(self._to_store_key(transcript), frame.entries, frame.size)
        if RESULT_MARK in shown:
            self._writer.flush_soon()
        return shown

    def _to_store_key(self, transcript: TranscriptKey) -> TranscriptKey:
        """Return the key in the store, where a directory has the same name on all machines."""
        long = (
            len(self._project) > MAX_KEY_CHARS and transcript.project[:MAX_KEY_CHARS] == self._project[:MAX_KEY_CHARS]
        )
        return (
            transcript._replace(project=self._project)
            if long or transcript.project == self._project_directory_name
            else transcript
        )

    def _queue_error_line(self, transcript: TranscriptKey, error: str) -> None:
        facts = {"type": "system", "subtype": "mirror_error", "error": error, "key": transcript.session_key}
        line = json.dumps({**facts, "session_id": transcript.session, "uuid": str(uuid.uuid4())})
        self._error_lines.append(line.encode("ascii") + b"\n")
        if self._receive_scope is not None:
            self._receive_scope.cancel()

    async def detach(self) -> str:
        """Detach from a process that can continue without this connection; it also continues without the store."""
        found_as = await self.inner.detach()
        await self.close()
        return found_as

    def health(self) -> Health:
        """Return the health of the inner transport; degraded while the store fails."""
        health = self.inner.health()
        if health.state == "healthy" and self._writer.last_error:
            return Health("degraded", f"the session store fails: {self._writer.last_error}")
        return health

    # Closing.

    async def close(self) -> None:
        """Close the process, write the rest, release the lease, and remove the session's files.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: the last entries were not written, because another
                owner has the session now.
        """
        was_closed, self._closed = self._closed, True
        with anyio.CancelScope(shield=True):
            try:
                if not was_closed and not self._ended:
                    await self._drain()
                await self.inner.close()
            finally:  # also when asyncio's `Task.cancel` broke through the shield
                if not was_closed:
                    await self._clean_up()
        if not was_closed and self._writer.fatal_error is not None and not self._has_raised_error:
            raise self._writer.fatal_error

    async def _drain(self) -> None:
        is_over = False
        with anyio.move_on_after(DRAIN_SECONDS), suppress(anyio.ClosedResourceError, PilothouseError):
            while not is_over:
                is_over = True
                with anyio.move_on_after(SILENCE_SECONDS):
                    chunk = await self.inner.receive()
                    is_over = not chunk
                    self._filter_chunk(chunk)

    async def _clean_up(self) -> None:
        private, self._config_directory = self._config_directory, None
        try:
            await self._writer.close(CLOSE_SECONDS)
        finally:
            try:
                await self._sessions.release()
            finally:
                if private is not None:
                    await run_blocking(private.remove)


def _read_transcripts(session: RestoredSession) -> dict[str, bytes]:
    """Return the files of a session, by their paths below the folder `projects`."""
    with tempfile.TemporaryDirectory(prefix="pilothouse-session-") as directory:
        write_session(Path(directory), session)
        projects = Path(directory, "projects")
        return {str(path.relative_to(projects)): path.read_bytes() for path in projects.rglob("*") if path.is_file()}


def _find_config_directory(invocation: Invocation) -> str:
    """Return the configuration directory of a process without a private one."""
    given = invocation.env.get("CLAUDE_CONFIG_DIR")
    return given if given is not None else str(find_home(invocation.env) / ".claude")


def _find_owner(user: str | int) -> tuple[int, int] | None:
    from pilothouse.transports.private_files import find_account  # few processes run as another user

    account = find_account(user)
    return None if account is None else (account.uid, account.gid)
