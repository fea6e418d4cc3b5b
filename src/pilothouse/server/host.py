"""`Host`: the sessions on this machine that remote clients use, and the tasks that run them.

Owns the set of sessions, limits, idle reaping, and the orderly shutdown. Knows no HTTP: `rest`, `events` and `wire`
call it. A session outlives its clients. Its child ends with this process; its journal stays.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc

from pilothouse.client import Query
from pilothouse.client.prompt import Prompt
from pilothouse.errors import OptionsError, PilothouseError
from pilothouse.options import Invocation, Options, render
from pilothouse.options.secrets import invocation_secrets, mask
from pilothouse.options.sources import read_config_table
from pilothouse.server.hosted import HostedSession
from pilothouse.server.input_check import InputCheck
from pilothouse.server.journal import OutputJournal, SessionRecord
from pilothouse.server.policy import HostPolicy, Refusal, Wish
from pilothouse.server.prompted_session import PromptedSession
from pilothouse.server.settings import HostSettings
from pilothouse.server.wire_session import WireSession
from pilothouse.transports import CliTransport, Transport
from pilothouse.transports.errands import run_briefly

_log = logging.getLogger("pilothouse.server")

LOOK_SECONDS = 5.0
"""Seconds between two checks for idle sessions."""
SWEEP_SECONDS = 60.0
"""Seconds between two checks for journal entries that are too old or too large."""
TELL_SECONDS = 2.0
"""Seconds for clients to receive the ending of their sessions."""
STOPPED = "the host was stopped"
# Options that only the host decides, or that its own sessions cannot have.
_NOT_OVER_REST = ("cli", "config_dir", "inherit_env", "isolation", "prompt_via", "user")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHOWN_FLAGS = ("--effort=", "--max-turns=", "--model=", "--permission-mode=", "--resume=", "--session-id=")


class Host:
    """Runs sessions for clients. `async with Host(settings)` opens it; it belongs to one asyncio event loop.

    Args:
        settings: see `HostSettings`.
        environ: base environment of the children; None: the environment of this process.
        make_transport: makes the transport to a child; the default starts the CLI on this machine.

    Raises:
        UsageError: on entry: the journal is in use, or the file is not a journal.
        JournalError: on entry: the journal cannot be created.
    """

    def __init__(
        self,
        settings: HostSettings,
        *,
        environ: Mapping[str, str] | None = None,
        make_transport: Callable[[], Transport] = CliTransport,
    ) -> None:
        self.settings = settings
        base = dict(os.environ if environ is None else environ)
        self.policy = HostPolicy(settings.cli, settings.real_roots(), settings.env, base, settings.clients)
        self.journal = OutputJournal(
            settings.journal,
            keep_bytes=settings.keep_bytes,
            keep_seconds=settings.keep_seconds,
            keep_total=settings.keep_total,
        )
        self.draining = False
        self._make_transport = make_transport
        self._sessions: dict[str, HostedSession] = {}
        self._by_client: dict[tuple[str, str], tuple[anyio.Event, WireSession | None]] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._starting = 0

    # Start and shutdown.

    async def __aenter__(self) -> Self:
        for record in await self.journal.open():
            self._sessions[record.id] = self._recovered(record)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._look_after)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = self._tasks
        assert tasks is not None
        try:
            with anyio.CancelScope(shield=True):
                await self.drain(0.0)
        finally:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(kind, error, traceback)
            with anyio.CancelScope(shield=True):
                await self.journal.close()

    def _recovered(self, record: SessionRecord) -> HostedSession:
        if record.kind == "wire":
            return WireSession(self.journal, record, unacknowledged=self.settings.unacknowledged)
        given = record.start.get("options")
        try:
            return self._prompted(record, None if given is None else self._options_of(given))
        except OptionsError as error:  # the roots have changed, or this is another version
            _log.warning("session %s cannot go on: %s", record.id, error)
            return self._prompted(record, None)

    async def drain(self, seconds: float | None = None) -> None:
        """Stop accepting sessions, give running turns some time, then end every child.

        Args:
            seconds: for the turns; None: `drain_seconds` of the settings.
        """
        self.draining = True
        limit = self.settings.drain_seconds if seconds is None else seconds
        with anyio.move_on_after(limit):
            while any(session.busy for session in self._sessions.values()):  # noqa: ASYNC110 - of many sessions
                await anyio.sleep(0.05)
        async with anyio.create_task_group() as ending:
            for session in list(self._sessions.values()):
                if session.has_child:
                    ending.start_soon(session.stop, STOPPED)
        for session in self._sessions.values():
            session.output.finish()
        with anyio.move_on_after(TELL_SECONDS):
            while any(s.attached and not s.ending_told for s in self._sessions.values() if isinstance(s, WireSession)):  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def _look_after(self) -> None:
        swept = anyio.current_time()
        while True:
            await anyio.sleep(min(LOOK_SECONDS, self.settings.idle_seconds / 2))
            try:
                await self.end_idle()
                if anyio.current_time() >= swept + SWEEP_SECONDS:
                    swept = anyio.current_time()
                    await self.sweep()
            except PilothouseError as error:
                _log.error("idle sessions could not be seen to: %s", error)

    async def end_idle(self) -> None:
        """End the children of sessions that are idle for too long."""
        for session in list(self._sessions.values()):
            limit = self.settings.abandoned_seconds if session.busy else self.settings.idle_seconds
            if session.has_child and session.idle_seconds >= limit:
                _log.info("session %s is idle: its child is ended", session.id)
                await session.stop(f"nobody was attached, and nothing happened, for {limit:g} s")

    async def sweep(self) -> None:
        """Forget sessions that ended long ago, and the oldest ended ones while too much is kept."""
        used = {session.id for session in self._sessions.values() if session.attached or session.has_child}
        for gone in await self.journal.sweep(used):
            if (session := self._sessions.get(gone)) is not None:
                self._drop(session)

    # Sessions.

    @property
    def sessions(self) -> list[HostedSession]:
        """All known sessions, the oldest first."""
        return list(self._sessions.values())

    def get(self, session: str, owner: str = "") -> HostedSession:
        """Return the session with this id.

        Args:
            session: its id.
            owner: owner of the client's token; "" sees all sessions, others see their own.

        Raises:
            Refusal: there is none ("unknown_session").
        """
        found = self._sessions.get(session)
        if found is None or owner not in ("", found.record.owner):
            raise Refusal("unknown_session", f"there is no session {session[:80]!a} on this host")
        return found

    def _admit_one(self) -> None:
        if self.draining:
            raise Refusal("draining", "this host is about to end, and starts no sessions")
        if sum(s.has_child for s in self._sessions.values()) + self._starting >= self.settings.max_sessions:
            raise Refusal("limit", f"this host runs {self.settings.max_sessions} sessions, and no more at a time")

    async def start_wire(self, client: str, wish: Wish, owner: str = "") -> WireSession:
        """Start a child for a client; if the client repeats the request, return the session of the first one.

        Args:
            client: the id that the client gave itself.
            wish: the requested arguments, files and environment.
            owner: owner of the session.

        Raises:
            Refusal: the host refuses the request.
            PilothouseError: the child could not be started.
        """
        key = (owner, client)
        while (known := self._by_client.get(key)) is not None:
            starting, session = known
            await starting.wait()
            if session is not None:
                return session
        starting = anyio.Event()
        self._by_client[key] = (starting, None)
        try:
            session = await self._start_wire(client, wish, owner)
            self._by_client[key] = (starting, session)
            return session
        except BaseException:
            del self._by_client[key]
            raise
        finally:
            starting.set()

    async def _start_wire(self, client: str, wish: Wish, owner: str) -> WireSession:
        self._admit_one()
        self._starting += 1
        try:
            _check_conversation(owner, wish.argv)
            invocation = await run_briefly(self.policy.admit, wish)
            record = _record("wire", client, _shown(wish, invocation), owner)
            check = InputCheck(self.policy)
            session = WireSession(self.journal, record, unacknowledged=self.settings.unacknowledged, check=check)
            await self.journal.create(record)
            try:
                await session.start(self._make_transport(), invocation)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self.journal.forget(record.id)
                raise
        finally:
            self._starting -= 1
        assert self._tasks is not None
        self._sessions[session.id] = session
        self._tasks.start_soon(session.run)
        _log.info("session %s started for a client", session.id)
        return session

    async def start_prompted(self, given: Mapping[str, Any], owner: str = "") -> PromptedSession:
        """Start a session that the host itself drives.

        Args:
            given: options, as in a configuration file.
            owner: owner of the session.

        Raises:
            OptionsError: an option is invalid, or only the host decides it.
            Refusal: the host refuses the request.
            PilothouseError: the child could not be started.
        """
        self._admit_one()
        self._starting += 1
        try:
            options = self._options_of(given)
            rendered = render(options, {})
            _check_conversation(owner, rendered.argv)
            await run_briefly(self._admitted, options, rendered)
            # If in doubt, only the names are kept: all of `env` and `headers` counts as secret.
            secret = mask(dict(given)) != dict(given) or bool(invocation_secrets(rendered))
            kept: dict[str, Any] = {"cwd": rendered.cwd, "names": sorted(given)} if secret else {"options": dict(given)}
            record = _record("hosted", "", kept, owner)
            session = self._prompted(record, options)
            await self.journal.create(record)
            try:
                await session.start()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await session.stop(STOPPED)
                    await self.journal.forget(record.id)
                raise
        finally:
            self._starting -= 1
        self._sessions[session.id] = session
        _log.info("session %s started", session.id)
        return session

    def _options_of(self, given: Mapping[str, Any]) -> Options:
        for name in _NOT_OVER_REST:
            if name in given:
                raise OptionsError(f"option {name!r} is the host's own", option=name)
        options = read_config_table(given, self.policy.roots[0], lambda name: f"options.{name}")
        root = self.policy.roots[0]
        # A session of this process would turn partial messages on; clients that want them say so. Verbatim prompts
        # read no file: otherwise `@/path` would, wherever that file is.
        below = Options.layer(cli=self.policy.cli, cwd=root, partial_messages=False, verbatim_prompts=True)
        if self.policy.limits.verbatim_prompts and not options.verbatim_prompts and "verbatim_prompts" in given:
            raise OptionsError(
                "option 'verbatim_prompts': this host sends every prompt as it is", option="verbatim_prompts"
            )
        return Options.stack(below, options)

    def _prompted(self, record: SessionRecord, options: Options | None) -> PromptedSession:
        def admit(invocation: Invocation) -> Invocation:
            assert options is not None
            return self._admitted(options, invocation)

        return PromptedSession(self.journal, record, options, admit=admit, make_transport=self._make_transport)

    def _admitted(self, options: Options, invocation: Invocation) -> Invocation:
        given = (invocation.argv, invocation.trailing_args, invocation.files, options.to_env(), invocation.cwd)
        return self.policy.admit(Wish(*given, initialize=invocation.initialize))

    async def ask(self, session: PromptedSession, prompt: Prompt) -> Query:
        """Start running a prompt in a session that the host drives; does not wait for the result.

        Raises:
            Refusal: too many prompts are queued, or the host is shutting down.
            UsageError: the prompt cannot be sent.
            SessionClosedError: the session cannot continue.
        """
        if session.waiting >= self.settings.max_prompts:
            raise Refusal("limit", f"{session.waiting} prompts of this session wait already")
        if self.draining:
            raise Refusal("draining", "this host is about to end, and answers no more prompts")
        if not session.has_child:
            self._admit_one()
        query = await session.ask(prompt)
        assert self._tasks is not None
        self._tasks.start_soon(session.answer, query)
        return query

    async def close(self, session: HostedSession) -> None:
        """End a session's child and forget the session. Idempotent."""
        self._drop(session)
        await session.stop("closed")
        session.output.finish()
        await self.journal.forget(session.id)

    def _drop(self, session: HostedSession) -> None:
        self._sessions.pop(session.id, None)
        self._by_client.pop((session.record.owner, session.record.client), None)


def _check_conversation(owner: str, argv: Sequence[str]) -> None:
    """Refuse to resume a conversation that the owner does not name by its id, since it may be another owner's.

    Raises:
        Refusal: the conversation is not named by its id.
    """
    for argument in argv if owner else ():
        name, _, value = argument.partition("=")
        if name == "--continue" or (name == "--resume" and not _UUID.fullmatch(value)):
            raise Refusal("forbidden", f"{name}: with this token, say which conversation by its id: --resume=ID")


def _record(kind: Any, client: str, start: Mapping[str, Any], owner: str) -> SessionRecord:
    now = time.time()
    start = {**start, "owner": owner} if owner else start
    return SessionRecord(uuid.uuid4().hex, kind, "live", client, now, now, start)


def _shown(wish: Wish, invocation: Invocation) -> dict[str, Any]:
    """Return the parts of a client's request that cannot hold keys."""
    arguments = [argument for argument in wish.argv if argument.startswith(_SHOWN_FLAGS)]
    return {"arguments": arguments, "cwd": invocation.cwd, "env": sorted(wish.env)}
