"""A transport around another one, whose peer goes on with a session of a store and whose transcripts go there.

Owns the order of things in the life of one child: the lease, the session from the store, the start, the mirror beside
the stream, and at the end what is left to write. How each is done, the other files of this room know.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from pilothouse.errors import CLIStartError, OptionsError, PilothouseError, SessionNotFoundError, UsageError
from pilothouse.options import Invocation, Options
from pilothouse.options.invocation import ChildEnvironment
from pilothouse.stores.base import Place, SessionStore, StoreBackend, implements
from pilothouse.stores.frames import Frames, place_in
from pilothouse.stores.importing import import_file
from pilothouse.stores.mirror import Mirror, settle
from pilothouse.stores.private_config import PrivateConfig, write_session
from pilothouse.stores.recalling import Reader, Recalled
from pilothouse.stores.tenure import Tenure
from pilothouse.transcripts.listing import list_sessions
from pilothouse.transcripts.places import MAX_KEY, find_file, is_session_id, project_key
from pilothouse.transports import Health, Transport
from pilothouse.transports.errands import run_briefly
from pilothouse.transports.private_home import VARIABLES, PrivateHome
from pilothouse.transports.wrapper import TransportWrapper

log = logging.getLogger("pilothouse.stores")

DRAIN_SECONDS = 0.5
"""To read what a child that is ended in the middle of a turn has said of its transcripts."""
QUIET_SECONDS = 0.15
"""Of silence, after which there is no more of that: the CLI (2.1.330) tells what it writes every 0.1 s."""
CLOSE_SECONDS = 20.0
"""For a store to take what is left at the end."""
RESULT = b'"type":"result"'
FOLDER_NAME = "CLAUDE_CODE_PROJECT_DIR_NAME"
"""Gives the folder of a project another name, where CLAUDE_CONFIG_DIR is set as well."""


class MirroredTransport(TransportWrapper):
    """One child over another transport, with `session_store`. (E85)

    Args:
        inner: not started yet.
        options: the settings of the child.

    Raises:
        OptionsError: the store cannot do what is asked.
    """

    def __init__(self, inner: Transport, options: Options) -> None:
        store: SessionStore = options.session_store
        if options.continue_conversation and not implements(store, "list_sessions"):
            raise OptionsError(
                f"continue_conversation: {type(store).__name__} has no list_sessions(), so nobody knows which session "
                "is the latest; pass resume=",
                option="session_store",
            )
        if not options.persist_session:
            raise OptionsError(
                "options 'session_store' and 'persist_session' exclude each other: a CLI that writes no transcript has "
                "none to store",
                option="session_store",
            )
        super().__init__(inner)
        self._options = options
        self._store = store
        self._tenure = Tenure(store, options.session_lease) if isinstance(store, StoreBackend) else None
        self._reader = Reader(store, options.load_timeout)
        eager = options.session_store_flush == "eager"
        self._mirror = Mirror(store, self._note, eager=eager, tenure=self._tenure)
        self._frames = Frames(options.max_line_bytes)
        self._notes: deque[bytes] = deque()  # lines of our own, for the reader
        self._reading: anyio.CancelScope | None = None
        self._private: PrivateConfig | PrivateHome | None = None
        self._project = ""
        self._folder: str | None = None
        self._was_started = False
        self._was_told = False
        self._ended = False
        self._closed = False

    # The start.

    async def start(self, invocation: Invocation) -> None:
        """Take the lease, put the session where the child finds it, start the child.

        Raises:
            SessionLeasedError: somebody else is at work in the session.
            SessionNotFoundError: neither the store nor this machine has it.
            StoreError: the store failed.
            PilothouseError: the child could not be started.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        if self._was_started:
            raise UsageError("a transport serves one connection: make a new one instead of starting it again")
        self._was_started = True
        try:
            await self.inner.start(await self._prepared(invocation))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._let_go()
            raise

    async def _prepared(self, invocation: Invocation) -> Invocation:
        asked, cwd = self._options, invocation.cwd or os.getcwd()  # noqa: PTH109 - a string is wanted
        self._project = await run_briefly(project_key, cwd)
        self._folder = invocation.env.get(FOLDER_NAME)
        if asked.resume is not None or asked.continue_conversation:
            return await self._resumed(invocation, cwd)
        if asked.session_id is not None and not invocation.may_keep_its_id:
            await self._lease(Place(self._project, asked.session_id))
        return invocation

    async def _lease(self, place: Place) -> None:
        if self._tenure is not None:
            await self._reader.answer(self._tenure.of(place), "acquire()")

    async def _resumed(self, invocation: Invocation, cwd: str) -> Invocation:
        if _is_elsewhere(self.inner):
            return invocation
        place = await self._wanted(invocation, cwd)
        if place is None:
            return invocation
        if not self._options.fork_session:
            await self._lease(place)
        await settle(self._store, self._options.load_timeout)
        session = await self._reader.session(place)
        if session is None:
            await self._bring_from_disk(invocation, place, cwd)
        else:
            if not self._options.fork_session:
                self._know(session)
            invocation = await self._placed(invocation, session, cwd)
        resume = f"--resume={place.session}"
        return replace(invocation, argv=tuple(resume if arg == "--continue" else arg for arg in invocation.argv))

    async def _wanted(self, invocation: Invocation, cwd: str) -> Place | None:
        asked = self._options.resume
        if asked is None:
            latest = await self._reader.latest(self._project)
            if latest is not None:
                return latest
            config = _config_of(invocation)
            found = await run_briefly(lambda: list_sessions(cwd, 1, include_worktrees=False, config_dir=config))
            return Place(self._project, found[0].session_id) if found else None
        if not is_session_id(asked):
            words = f"option 'resume': a session store knows sessions by id, not {asked!r:.80}"
            raise OptionsError(words, option="resume")
        return Place(self._project, asked)

    def _know(self, session: Recalled) -> None:
        if isinstance(self._store, StoreBackend):
            self._mirror.know(session.place, len(session.entries))
            for subpath, entries in session.subpaths.items():
                self._mirror.know(session.place._replace(subpath=subpath), len(entries))

    async def _bring_from_disk(self, invocation: Invocation, place: Place, cwd: str) -> None:
        """The store has nothing of the session: the child finds it on disk, and the store gets what stands there."""
        path = await run_briefly(find_file, place.session, cwd, _config_of(invocation))
        if path is None:
            raise SessionNotFoundError(
                f"there is no session {place.session} of {cwd} in the session store, and none on this machine"
            )
        if not self._options.fork_session:  # a fork writes all of it again, into its own transcript
            log.info("session %s is on disk and not in the store: it is brought there", place.session)
            await import_file(path, place, self._store, self._tenure)

    async def _placed(self, invocation: Invocation, session: Recalled, cwd: str) -> Invocation:
        try:
            owner = None if invocation.user is None else await run_briefly(_owner, invocation.user)
            if invocation.isolated:
                home = invocation.home
                if home is None:
                    home = self._private = PrivateHome()
                config = Path(await run_briefly(home.make, owner), VARIABLES["CLAUDE_CONFIG_DIR"])
                await run_briefly(write_session, config, session, owner)
                return replace(invocation, home=home)
            self._private = private = PrivateConfig()
            directory = await run_briefly(private.make, invocation.env, session, cwd, owner)
        except OSError as error:
            words = f"could not write the session from the store to a private directory: {error.strerror or error}"
            raise CLIStartError(f"{words}; look at TMPDIR and the space that is left there") from error
        env = {**invocation.env, "CLAUDE_CONFIG_DIR": directory}
        env.pop(FOLDER_NAME, None)
        return replace(invocation, env=ChildEnvironment(env))

    # The stream.

    async def serve(self) -> None:
        """Write to the store and keep the leases, beside what the inner transport has to do.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: the session is somebody else's now.
        """
        failures: list[Exception] = []

        async def guarded(work: Any) -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised below, as it is and not inside a group
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guarded, self.inner.serve)
            tasks.start_soon(guarded, self._mirror.serve)
            if self._tenure is not None:
                tasks.start_soon(guarded, self._tenure.serve)
        if failures:
            self._was_told = True
            raise failures[0]

    async def receive(self) -> bytes:
        """The next bytes from the peer, without what it says of its transcripts."""
        while not self._closed:
            if self._notes and not self._frames.is_mid_line:
                return self._notes.popleft()
            if self._ended:
                return b""
            chunk: bytes | None = None
            with anyio.CancelScope() as self._reading:
                chunk = await self.inner.receive()
            self._reading = None
            if chunk is None:  # there is a note
                await anyio.lowlevel.checkpoint()
                continue
            if not chunk:
                self._ended = True
                rest = self._frames.rest()
                await self._mirror.flush()  # what could not be written is told before the end
                if rest:
                    return rest
                continue
            shown = self._taken(chunk)
            if self._mirror.is_full:
                await self._mirror.flush()
            if shown:
                return shown
        raise anyio.ClosedResourceError

    def _taken(self, chunk: bytes) -> bytes:
        shown = self._frames.feed(chunk)
        for frame in self._frames.take():
            place = place_in(frame.path)
            if place is None:
                log.warning(
                    "the CLI has written to a transcript of an unknown kind, which is not stored: %s", frame.path
                )
            else:
                self._mirror.take(self._stored(place), frame.entries, frame.size)
        if RESULT in shown:
            self._mirror.hasten()
        return shown

    def _stored(self, place: Place) -> Place:
        """Where it stands in the store: there, a directory has one name on all machines."""
        long = len(self._project) > MAX_KEY and place.project[:MAX_KEY] == self._project[:MAX_KEY]
        return place._replace(project=self._project) if long or place.project == self._folder else place

    def _note(self, place: Place, error: str) -> None:
        facts = {"type": "system", "subtype": "mirror_error", "error": error, "key": place.key}
        line = json.dumps({**facts, "session_id": place.session, "uuid": str(uuid.uuid4())})
        self._notes.append(line.encode("ascii") + b"\n")
        if self._reading is not None:
            self._reading.cancel()

    async def detach(self) -> str:
        """Leave a peer that can go on without us; it goes on without the store, too."""
        found_as = await self.inner.detach()
        await self.close()
        return found_as

    def health(self) -> Health:
        """That of the inner transport; degraded while the store does not take what it is given."""
        health = self.inner.health()
        if health.state == "healthy" and self._mirror.trouble:
            return Health("degraded", f"the session store fails: {self._mirror.trouble}")
        return health

    # The end.

    async def close(self) -> None:
        """End the peer, write what is left, give the lease back, remove what the peer was given.

        Raises:
            LeaseLostError, SessionLeasedError, StoreConflictError: the last of it was not written, because the session
                is somebody else's now.
        """
        was_closed, self._closed = self._closed, True
        with anyio.CancelScope(shield=True):
            try:
                if not was_closed and not self._ended:
                    await self._drain()
                await self.inner.close()
            finally:  # also when `Task.cancel` of asyncio came through the shield
                if not was_closed:
                    await self._let_go()
        if not was_closed and self._mirror.shut_out is not None and not self._was_told:
            raise self._mirror.shut_out

    async def _drain(self) -> None:
        is_over = False
        with anyio.move_on_after(DRAIN_SECONDS), suppress(anyio.ClosedResourceError, PilothouseError):
            while not is_over:
                is_over = True
                with anyio.move_on_after(QUIET_SECONDS):
                    chunk = await self.inner.receive()
                    is_over = not chunk
                    self._taken(chunk)

    async def _let_go(self) -> None:
        private, self._private = self._private, None
        try:
            await self._mirror.end(CLOSE_SECONDS)
        finally:
            try:
                if self._tenure is not None:
                    await self._tenure.release()
            finally:
                if private is not None:
                    await run_briefly(private.remove)


def _is_elsewhere(transport: Transport) -> bool:
    """Whether the peer lives on another machine, with a disk of its own: there it finds its sessions itself."""
    module = sys.modules.get("pilothouse.transports.websocket")  # not loaded: it cannot be one
    return module is not None and isinstance(transport, module.WebSocketTransport)


def _config_of(invocation: Invocation) -> str:
    """The configuration directory of a child that has no private one."""
    given = invocation.env.get("CLAUDE_CONFIG_DIR")
    return given if given is not None else str(Path(invocation.env.get("HOME") or Path.home(), ".claude"))


def _owner(user: str | int) -> tuple[int, int] | None:
    from pilothouse.transports.accounts import account_of  # few children run as another user

    account = account_of(user)
    return None if account is None else (account.uid, account.gid)
