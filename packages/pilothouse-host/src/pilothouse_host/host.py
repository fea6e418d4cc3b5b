"""`Host` owns the sessions of this machine and the tasks in which they run; `HostSettings` are its settings.

Owns limits, the end of idle sessions, and the orderly shutdown. Knows no HTTP.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import uuid
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.abc
from msgspec import Struct

from pilothouse.client import LateWords, Query, Session, SteerOutcome, SteerTime
from pilothouse.client.settings_check import SentSettings, check_taken
from pilothouse.errors import MessageParseError, OptionsError, PilothouseError, SessionNotFoundError, UsageError
from pilothouse.options import TABLE, Invocation, Options, render
from pilothouse.options.options import read_config_table
from pilothouse.support import encode_json, find_key, get_claude_directory, invocation_secrets, mask, run_blocking
from pilothouse.transports import CliTransport, Transport, TransportWrapper
from pilothouse_access.guard import RefusedRequestError
from pilothouse_access.on_behalf import ConfinedTransport
from pilothouse_access.owners import OPERATOR, Owner, Shares
from pilothouse_host.inbox import InboxTransport
from pilothouse_host.journal import JournaledSession, JournalError, OutputJournal
from pilothouse_host.logins import LoginAccount, SessionLogin
from pilothouse_host.policy import (
    CLIENT_OPTIONS,
    UNINHERITED_VARIABLES,
    ClientLimits,
    HostPolicy,
    InputFilter,
    forbid,
    is_variable_name,
)
from pilothouse_host.server_sessions import GivenWords, Prompt, RestSession, ServerSession, WebSocketSession
from pilothouse_remote.messages import LaunchMessage
from pilothouse_transcripts import get_session_info
from pilothouse_transcripts.paths import find_home


class HostSettings(Struct, frozen=True, kw_only=True):
    """Settings of a `Host`.

    Args:
        journal: the file that stores the output of sessions.
        roots: directories below which sessions may work; the first is the default working directory.
        cli: which CLI runs, as the option of the same name.
        env: names of variables that clients may set besides those that pilothouse itself sends. A client that sets one
            brings its own key: the host cannot know where such a variable leads.
        fleets: paths of journals of fleets that clients may read.
        clients: what clients may do; by default everything that the CLI offers.
        max_sessions: sessions with a child at a time, of all owners together; see `Shares`.
        max_prompts: queued prompts per session.
        max_body: bytes of the body of a request.
        messages_per_second: per WebSocket; the host reads a client above this rate more slowly.
        heartbeat: seconds of silence after which a client is pinged; after three times as much it counts as gone.
        idle_seconds: after so long without an attached client and without activity, a session's child is ended.
        ask_seconds: after so long, an approval that nobody has settled is denied.
        abandoned_seconds: the same for a session in the middle of a turn, such as a tool that runs for hours.
        drain_seconds: for running turns when the host shuts down.
        unacknowledged: bytes of output that may wait for an absent client before its child must wait.
        keep_bytes: bytes of a session that are kept although its client has them.
        keep_seconds: how long an ended session is kept.
        keep_total: bytes of sessions in the journal; above it, the owner with the most loses ended sessions, the oldest
            first.

    Raises:
        UsageError: a root is not a directory, `env` has no name of a variable, or a number is not positive.
    """

    journal: Path
    roots: tuple[str, ...] = ()
    cli: str = "auto"
    env: tuple[str, ...] = ()
    clients: ClientLimits = ClientLimits()
    fleets: tuple[str, ...] = ()
    max_sessions: int = 32
    max_prompts: int = 16
    max_body: int = 8 * 1024 * 1024
    messages_per_second: int = 5000
    heartbeat: float = 15.0
    idle_seconds: float = 3600.0
    ask_seconds: float = 3600.0
    abandoned_seconds: float = 86400.0
    drain_seconds: float = 30.0
    unacknowledged: int = 256 * 1024 * 1024
    keep_bytes: int = 16 * 1024 * 1024
    keep_seconds: float = 7 * 86400.0
    keep_total: int = 4 * 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        counts = ("max_sessions", "max_prompts", "max_body", "messages_per_second")
        for name in (*counts, "heartbeat", "idle_seconds", "ask_seconds"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name}: expected a number greater than 0, got {getattr(self, name)}")
        for name in self.env:
            if not is_variable_name(name) or name in UNINHERITED_VARIABLES:
                raise UsageError(f"env: expected the name of a variable, without patterns, got {name!r}")
        for root in self.roots:
            if not Path(root).is_dir():
                raise UsageError(f"root: {root} is not a directory")

    def resolve_roots(self) -> tuple[str, ...]:
        """Return the roots as absolute paths without links; the working directory if there are none."""
        return tuple(os.path.realpath(root) for root in self.roots or (os.getcwd(),))  # noqa: PTH109 - realpath follows


def find_default_journal() -> Path:
    """Return the default path of the journal: in the state directory of this user.

    Raises:
        UsageError: there is no home directory.
    """
    base = os.environ.get("XDG_STATE_HOME") or find_home() / ".local" / "state"
    return Path(base) / "pilothouse" / "host.sqlite"


_log = logging.getLogger("pilothouse.server")

IDLE_CHECK_SECONDS = 5.0
"""Seconds between two checks for idle sessions."""
SWEEP_SECONDS = 60.0
"""Seconds between two checks for journal entries that are too old or too large."""
CLIENT_NOTICE_SECONDS = 2.0
"""Seconds for clients to receive the ending of their sessions."""
STOPPED = "the host was stopped"
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Bytes of prompts without a result, of all sessions together."""
MAX_KEPT_OPTIONS_BYTES = 1024 * 1024
"""Bytes of the options of a session that are stored; larger ones are not, so the session ends with the host."""
MAX_TITLE_CHARS = 120
"""Characters of a prompt that are its title, and of the first one that of the session."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PUBLIC_FLAGS = ("--effort=", "--max-turns=", "--model=", "--permission-mode=", "--resume=", "--session-id=")


class Host:
    """Runs sessions for clients. `async with Host(settings)` opens it; it belongs to one asyncio event loop.

    Args:
        settings: see `HostSettings`.
        environ: base environment of the children; None: the environment of this process, of which children elsewhere
            get nothing.
        make_transport: makes the transport to a child; the default starts the CLI on this machine.

    Raises:
        SettingsError: on entry: the CLI does not take the `managed_settings` of the operator.
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
        base = {"CLAUDE_CODE_STARTUP_FAILURE_RESULTS": "1", **(os.environ if environ is None else environ)}
        self.policy = HostPolicy(
            settings.cli, settings.resolve_roots(), settings.env, base, settings.clients, tuple(environ or ())
        )
        self.journal = OutputJournal(
            settings.journal,
            keep_bytes=settings.keep_bytes,
            keep_seconds=settings.keep_seconds,
            keep_total=settings.keep_total,
        )
        self.is_draining = False
        self._make_transport = make_transport
        self._sessions: dict[str, ServerSession] = {}
        self._by_client: dict[tuple[Owner, str], WebSocketSession] = {}
        self._client_locks: weakref.WeakValueDictionary[tuple[Owner, str], anyio.Lock] = weakref.WeakValueDictionary()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._starting = Counter[Owner]()
        self._waiting_bytes = Counter[Owner]()
        self.owners = frozenset({OPERATOR})

    # Start and shutdown.

    async def __aenter__(self) -> Self:
        if self.policy.limits.managed_settings:
            await self._check_managed_settings(self.policy.limits.managed_settings)
        for record in await self.journal.open():
            self._sessions[record.id] = self._recover_session(record)
        for session, approval, description in await self.journal.read_approvals():
            if isinstance(found := self._sessions.get(session), RestSession):
                found.approvals.restore([(approval, description)])
            else:  # the child that asked has ended with the host, and nobody resumes it here
                self.journal.remove_approval_later(approval)
        for session, prompt, title in await self.journal.read_prompts():
            if isinstance(found := self._sessions.get(session), RestSession):
                await found.report_lost_prompt(prompt, title)
            self.journal.remove_prompt_later(prompt)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._run_maintenance)
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
            try:
                await tasks.__aexit__(kind, error, traceback)
            except BaseExceptionGroup as group:
                if group.exceptions != (error,):
                    raise  # otherwise the block raises its own error, without a group around it
            with anyio.CancelScope(shield=True):
                await self.journal.close()

    async def _check_managed_settings(self, managed: Mapping[str, Any]) -> None:
        """Start a child once and ask what it has taken: clients are not to trust, and could not tell."""
        options = self.make_options({"persist_session": False, "setting_sources": [], "tools": []})

        def make() -> Transport:
            return _AdmittedTransport(self._make_transport(), partial(self._admit_invocation, OPERATOR, options))

        sent = SentSettings("managed_settings", managed, outcome="The host does not start; correct them")
        async with Session(options.with_(transport=make)) as session:
            check_taken(sent, (await session.settings.get()).raw)

    def _recover_session(self, record: JournaledSession) -> ServerSession:
        if record.kind == "wire":
            return WebSocketSession(
                self.journal,
                record,
                unacknowledged=self.settings.unacknowledged,
                ask_seconds=self.settings.ask_seconds,
            )
        given = record.start.get("options")
        try:
            return self._make_rest_session(record, None if given is None else self.make_options(given, record.owner))
        except OptionsError as error:  # the roots have changed, or this is another version
            _log.warning("session %s cannot continue: %s", record.id, error)
            return self._make_rest_session(record, None)

    async def drain(self, seconds: float | None = None) -> None:
        """Stop accepting sessions, give running turns some time, then end every child.

        Args:
            seconds: for the turns; None: `drain_seconds` of the settings.
        """
        self.is_draining = True
        limit = self.settings.drain_seconds if seconds is None else seconds
        with anyio.move_on_after(limit):
            while any(session.is_busy for session in self._sessions.values()):  # noqa: ASYNC110 - of many sessions
                await anyio.sleep(0.05)
        async with anyio.create_task_group() as ending:
            for session in list(self._sessions.values()):
                if session.has_child:
                    ending.start_soon(session.stop, STOPPED)
        for session in self._sessions.values():
            session.output.finish()
        self.journal.finish_events()
        wire = [session for session in self._sessions.values() if isinstance(session, WebSocketSession)]
        with anyio.move_on_after(CLIENT_NOTICE_SECONDS):
            while any(each.client_scope and not each.link.is_last_sent for each in wire):  # noqa: ASYNC110 - of many
                await anyio.sleep(0.02)

    async def _run_maintenance(self) -> None:
        last_sweep = anyio.current_time()
        while True:
            await anyio.sleep(min(IDLE_CHECK_SECONDS, self.settings.idle_seconds / 2))
            try:
                await self.end_idle()
                if anyio.current_time() >= last_sweep + SWEEP_SECONDS:
                    last_sweep = anyio.current_time()
                    await self.sweep()
            except PilothouseError as error:
                _log.error("the maintenance of sessions failed: %s", error)

    async def end_idle(self) -> None:
        """End the children of sessions that are idle for too long."""
        for session in list(self._sessions.values()):
            limit = self.settings.abandoned_seconds if session.is_busy else self.settings.idle_seconds
            if session.has_child and session.idle_seconds >= limit:
                _log.info("session %s is idle: the host ends its child", session.id)
                await session.stop(f"no client was attached and nothing happened for {limit:g} s")

    async def sweep(self) -> None:
        """Forget sessions that ended long ago, and the oldest ended ones while too much is kept."""
        used = {session.id for session in self._sessions.values() if session.attached_count or session.has_child}
        for gone in await self.journal.sweep(used):
            if (session := self._sessions.get(gone)) is not None:
                self._drop(session)
                if session.has_child:  # it has got a prompt meanwhile
                    await session.stop("removed")
                self.journal.add_event(session.record, "closed", {"session": session.id})

    # Sessions.

    def add_owners(self, owners: frozenset[Owner]) -> None:
        """Give these owners a share of what the host limits."""
        self.owners |= owners
        if len(self.owners) > self.settings.max_sessions > 1:
            _log.warning(
                "max_sessions is %d, for %d tokens: clients can take all but one of the children from each other",
                self.settings.max_sessions,
                len(self.owners),
            )

    @property
    def sessions(self) -> list[ServerSession]:
        """All known sessions, the oldest first."""
        return list(self._sessions.values())

    def get(self, session: str, owner: Owner = OPERATOR) -> ServerSession:
        """Return the session with this id.

        Args:
            session: its id.
            owner: who asks for it; there are no sessions of others, except for the operator.

        Raises:
            RefusedRequestError: there is none ("unknown_session").
        """
        found = self._sessions.get(session)
        if found is None or not owner.may_use(found.record.owner):
            raise RefusedRequestError("unknown_session", f"there is no session {session[:80]!a} on this host")
        return found

    def _check_capacity(self, owner: Owner) -> None:
        if self.is_draining:
            raise RefusedRequestError("draining", "this host is shutting down and starts no sessions")
        used = self._starting + Counter(each.record.owner for each in self._sessions.values() if each.has_child)
        if not Shares(self.settings.max_sessions, self.owners).has_room(owner, used):
            raise RefusedRequestError(
                "limit",
                f"this host runs {self.settings.max_sessions} children at most, {used.total()} now, {used[owner]} of "
                "them for this token: close a session, or wait until an idle one ends",
            )

    @asynccontextmanager
    async def _reserve_child(self, owner: Owner) -> AsyncGenerator[None]:
        """Count a child that is being started, if its owner may have one more.

        Raises:
            RefusedRequestError: the host is shutting down, or the owner has no share left.
        """
        self._check_capacity(owner)
        self._starting[owner] += 1
        try:
            yield
        finally:
            self._starting[owner] -= 1

    async def _start_session(self, session: ServerSession, start: Callable[[], Awaitable[None]]) -> None:
        """Journal a new session, and start its child. If that fails, nothing is left behind."""
        await self.journal.create(session.record)
        try:
            await start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                if isinstance(session, RestSession):
                    await session.stop(STOPPED)
                await self.journal.forget(session.id)
            raise
        self._sessions[session.id] = session
        session.tell_state()
        _log.info("session %s started", session.id)

    async def start_websocket_session(
        self, client: str, launch: LaunchMessage, owner: Owner = OPERATOR
    ) -> WebSocketSession:
        """Start a child for a client; if the client repeats the request, return the session of the first one.

        Args:
            client: the id that the client gave itself.
            launch: the requested arguments, files and environment.
            owner: owner of the session.

        Raises:
            RefusedRequestError: the host refuses the request.
            PilothouseError: the child could not be started.
        """
        assert self._tasks is not None
        key = (owner, client)
        async with self._client_locks.setdefault(key, anyio.Lock()):
            if (known := self._by_client.get(key)) is not None:
                return known
            async with self._reserve_child(owner):
                await self._check_conversation(owner, launch.argv)
                policy = self.policy.for_owner(owner)
                invocation = await run_blocking(policy.admit, launch)
                # Only what cannot hold keys is kept.
                arguments = [argument for argument in launch.argv if argument.startswith(_PUBLIC_FLAGS)]
                kept = {"arguments": arguments, "cwd": invocation.cwd, "env": sorted(launch.env)}
                session = WebSocketSession(
                    self.journal,
                    _make_record("wire", client, kept, owner),
                    unacknowledged=self.settings.unacknowledged,
                    ask_seconds=self.settings.ask_seconds,
                    input_filter=InputFilter(policy),
                )
                transport: Transport = ConfinedTransport(self._make_transport(), policy.start_rules)
                if launch.inbox:
                    transport = InboxTransport(transport, session.approvals.asks)
                await self._start_session(session, lambda: session.start(transport, invocation))
            self._by_client[key] = session
            self._tasks.start_soon(session.run)
            return session

    async def start_rest_session(self, given: Mapping[str, Any], owner: Owner = OPERATOR) -> RestSession:
        """Start a session that the host itself drives.

        Args:
            given: options, as in a configuration file.
            owner: owner of the session.

        Raises:
            OptionsError: an option is invalid, or only the host decides it.
            RefusedRequestError: the host refuses the request.
            PilothouseError: the child could not be started.
        """
        async with self._reserve_child(owner):
            options = self.make_options(given, owner)
            rendered = render(options, {})
            await self._check_conversation(owner, rendered.argv)
            await run_blocking(self._admit_invocation, owner, options, rendered)
            # If in doubt, only the names are kept: all of `env` and `headers` counts as secret.
            is_secret = mask(dict(given)) != dict(given) or bool(invocation_secrets(rendered))
            is_kept = not is_secret and len(encode_json(dict(given))) <= MAX_KEPT_OPTIONS_BYTES
            kept = {"cwd": rendered.cwd, **({"options": dict(given)} if is_kept else {"names": sorted(given)})}
            session = self._make_rest_session(_make_record("hosted", "", kept, owner), options)
            await self._start_session(session, session.start)
            return session

    def make_options(self, given: Mapping[str, Any], owner: Owner = OPERATOR) -> Options:
        """Make the options of a session that this host drives.

        Args:
            given: options, as in a configuration file.
            owner: owner of the session.

        Raises:
            OptionsError: an option is invalid, or only the host decides it.
        """
        policy = self.policy.for_owner(owner)
        for name in given:
            if name in TABLE and name not in CLIENT_OPTIONS:
                raise OptionsError(f"option {name!r} belongs to the host", option=name)
        options = read_config_table(given, self.policy.roots[0], lambda name: f"options.{name}")
        root = self.policy.roots[0]
        # A session of this process would turn partial messages on; clients that want them say so. Verbatim prompts
        # read no file: otherwise `@/path` would, wherever that file is. Prompts are in the output for whoever looks on.
        below = Options.layer(
            cli=self.policy.cli, cwd=root, partial_messages=False, verbatim_prompts=True, replay_user_messages=True
        )
        if policy.is_verbatim and not options.verbatim_prompts and "verbatim_prompts" in given:
            raise OptionsError(
                "option 'verbatim_prompts': this host sends every prompt as it is", option="verbatim_prompts"
            )
        if (sources := policy.start_rules.setting_sources) is not None:
            below = below.with_(setting_sources=cast("Any", list(sources)))  # named, so that `skills` names no others
        return Options.stack(below, options)

    def _make_rest_session(self, record: JournaledSession, options: Options | None) -> RestSession:
        def admit(invocation: Invocation) -> Invocation:
            assert options is not None
            return self._admit_invocation(record.owner, options, invocation)

        rules = self.policy.for_owner(record.owner).start_rules
        return RestSession(
            self.journal,
            record,
            options,
            admit=admit,
            make_transport=lambda: ConfinedTransport(self._make_transport(), rules),
            ask_seconds=self.settings.ask_seconds,
        )

    def _admit_invocation(self, owner: Owner, options: Options, invocation: Invocation) -> Invocation:
        launch = LaunchMessage(
            invocation.argv, invocation.files, invocation.trailing_args, dict(options.to_env()), invocation.cwd
        )
        return self.policy.for_owner(owner).admit(launch, invocation.initialize)

    async def _check_conversation(self, owner: Owner, argv: Sequence[str]) -> None:
        """Refuse to continue a conversation that does not belong to the owner. The operator may continue any.

        Raises:
            RefusedRequestError: the conversation is not named by its id, or is not the owner's.
        """
        for argument in () if owner.is_operator else argv:
            name, _, value = argument.partition("=")
            if name not in ("--continue", "--resume", "--session-id"):
                continue
            conversation = value.lower()
            if not _UUID.fullmatch(conversation):
                raise forbid(
                    f"{name}: this token must name the conversation by its id: {name.replace('continue', 'resume')}=ID"
                )
            if name == "--resume" and await self.journal.read_conversation_owner(conversation) != owner:
                raise forbid(f"{name}: no session of this token has made the conversation {conversation}")
            # The conversation becomes the owner's, so there must be none with this id in any directory.
            if name == "--session-id" and (
                await run_blocking(self._is_on_disk, conversation)
                or await self.journal.claim_conversation(conversation, owner) != owner
            ):
                raise forbid(f"{name}: there is a conversation {conversation} already")

    def _is_on_disk(self, conversation: str) -> bool:
        try:
            return get_session_info(conversation, config_dir=self.config_directory) is not None
        except (ValueError, SessionNotFoundError):
            return False

    @property
    def config_directory(self) -> Path:
        """Where the CLI of this host keeps its conversations."""
        return get_claude_directory(self.policy.base)

    def has_key(self) -> bool:
        """Return whether Claude Code finds a key or a login here; true if only its start can tell. Blocking."""
        is_here = self._make_transport is CliTransport and sys.platform != "darwin"  # which has a keychain
        return not is_here or find_key(self.policy.base) is not None

    async def send_prompt(self, session: RestSession, prompt: Prompt) -> Query:
        """Start running a prompt in a session that the host drives; does not wait for the result.

        Raises:
            RefusedRequestError: too many prompts are queued, or the host is shutting down.
            UsageError: the prompt cannot be sent.
            SessionClosedError: the session cannot continue.
        """
        title, owner = make_title(prompt), session.record.owner
        size = _count_bytes(prompt)

        def accept() -> None:
            self._check_room(session, size)
            if not session.has_child:
                self._check_capacity(owner)
            if not session.record.start.get("title"):
                session.record.start = {**session.record.start, "title": title}
                self.journal.update_later(session.id, start=session.record.start)

        query = await session.send_prompt(prompt, title, accept)
        assert self._tasks is not None
        self._waiting_bytes[owner] += size
        self._tasks.start_soon(self._run_query, session, query, size)
        with suppress(JournalError):  # the output will say that the journal cannot be written
            await self.journal.add_prompt(session.id, query.id, title)
        return query

    def _check_room(self, session: RestSession, size: int) -> None:
        """Refuse a prompt, or words for a turn, beyond what may wait.

        Raises:
            RefusedRequestError: too many wait in the session, or too many bytes of the owner; or the host ends.
        """
        owner, count = session.record.owner, session.waiting_count + session.given_count
        if count >= self.settings.max_prompts:
            raise RefusedRequestError("limit", f"{count} prompts of this session are already waiting")
        if self.is_draining:
            raise RefusedRequestError("draining", "this host is shutting down and answers no more prompts")
        if not Shares(MAX_WAITING_BYTES, self.owners).has_room(owner, self._waiting_bytes, size):
            raise RefusedRequestError("limit", "too many bytes of prompts of this token are already waiting")

    async def steer(
        self, session: RestSession, content: Prompt, when: SteerTime = "next", if_late: LateWords = "ask"
    ) -> tuple[str | None, SteerOutcome | None]:
        """Give words to the turn that runs in a session that the host drives; does not wait for what becomes of them.

        Args:
            session: the session.
            content: text, or content blocks.
            when: as for `Query.steer`.
            if_late: as for `Session.steer`.

        Returns:
            The id of the words, and what became of them; None: the output will say it. Without a turn, the words are a
            prompt with this id ("query"), or nobody has them, and there is no id ("returned").

        Raises:
            RefusedRequestError, UsageError, SessionClosedError: as for `send_prompt`.
        """
        owner, size, title = session.record.owner, _count_bytes(content), make_title(content)
        self._check_room(session, size)
        self._waiting_bytes[owner] += size
        words: GivenWords | None = None
        try:
            words = await session.steer(content, title, when, if_late)
        finally:
            if words is None:
                self._waiting_bytes[owner] -= size
        if words is None and if_late == "return":
            return None, "returned"
        if words is None or words.steering is None:
            query = await self.send_prompt(session, content)
            await session.report_words(query.id, "query", title)
            return query.id, "query"
        assert self._tasks is not None
        self._tasks.start_soon(self._report_outcome, session, words, size)
        with suppress(JournalError):  # as for a prompt
            await self.journal.add_prompt(session.id, words.steering.id, title)
        return words.steering.id, None

    async def begin_login(
        self, session: RestSession, server: str | None = None, account: LoginAccount = "claude"
    ) -> SessionLogin:
        """Begin a login in a session that the host drives; does not wait for its end. Only for the operator.

        Claude Code keeps the login in the configuration directory of this host, for all sessions.

        Args:
            session: the session; its child is started if need be.
            server: name of an MCP server; None: at Claude.
            account: at Claude, as for `Session.login`.

        Raises:
            RefusedRequestError: the host is shutting down, or runs too many children.
            LoginError: as `Session.login` and `session.mcp.authenticate`.
            SessionClosedError: the session cannot continue.
        """
        child = await self._open_child(session)
        assert self._tasks is not None
        return await session.logins.begin(child, server, account, self._tasks)

    async def clear_login(self, session: RestSession, server: str) -> None:
        """Forget the login at an MCP server.

        Raises:
            RefusedRequestError, SessionClosedError: as for `begin_login`.
            LoginError: as `session.mcp.clear_auth`.
        """
        child = await self._open_child(session)
        await child.mcp.clear_auth(server)

    async def _open_child(self, session: RestSession) -> Session:
        def check() -> None:
            if self.is_draining or not session.has_child:
                self._check_capacity(session.record.owner)

        return await session.open_child(check)

    async def _report_outcome(self, session: RestSession, words: GivenWords, size: int) -> None:
        try:
            await session.report_outcome(words)
        finally:
            self._waiting_bytes[session.record.owner] -= size

    async def _run_query(self, session: RestSession, query: Query, size: int) -> None:
        try:
            await session.run_query(query)
        finally:
            self._waiting_bytes[session.record.owner] -= size

    async def close(self, session: ServerSession) -> None:
        """End a session's child and forget the session. Idempotent."""
        is_first = not session.is_removed
        self._drop(session)
        with anyio.CancelScope(shield=True):  # a client may go away before the child has ended
            await session.stop("closed")
            if is_first:
                self.journal.add_event(session.record, "closed", {"session": session.id})
            session.output.finish()
            await self.journal.forget(session.id)

    def _drop(self, session: ServerSession) -> None:
        session.is_removed = True
        self._sessions.pop(session.id, None)
        self._by_client = {key: known for key, known in self._by_client.items() if known is not session}


class _AdmittedTransport(TransportWrapper):
    """A transport whose invocation the host completes."""

    def __init__(self, inner: Transport, admit: Callable[[Invocation], Invocation]) -> None:
        super().__init__(inner)
        self._admit = admit

    async def start(self, invocation: Invocation) -> None:
        """See `Transport`."""
        await self.inner.start(self._admit(invocation))


def make_title(prompt: Prompt) -> str:
    """Return the first line of a prompt's text, cut to what fits into a list."""
    if isinstance(prompt, str):
        texts = [prompt]
    else:  # what can be read only once is left to the session
        blocks = prompt if isinstance(prompt, Sequence) else ()
        found = [cast("Mapping[str, Any]", block) for block in blocks if isinstance(block, Mapping)]
        texts = [str(block.get("text", "")) for block in found]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return lines[0][:MAX_TITLE_CHARS] if lines else ""


def _count_bytes(prompt: Prompt) -> int:
    """Return about how many bytes a prompt holds while it waits; 0 if only the session can tell."""
    try:
        return len(encode_json(prompt)) if isinstance(prompt, str | Sequence) else 0
    except MessageParseError:
        return 0


def _make_record(kind: Any, client: str, start: Mapping[str, Any], owner: Owner) -> JournaledSession:
    now = time.time()
    start = start if owner.is_operator else {**start, "owner": owner.name}
    return JournaledSession(uuid.uuid4().hex, kind, "live", client, now, now, start)
