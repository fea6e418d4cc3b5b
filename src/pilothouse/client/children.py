"""The children of a session, one after the other: how each is started, and when the next one takes over.

Owns the child that the session has now, and what goes from one to the next: after a crash, and around a query with
settings that a child has from its start. Who may talk to it, and when, the session knows; which conversation it goes on
with, `lineage`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client.bookkeeping import Books
from pilothouse.client.house import House, house_after, house_of, started_with
from pilothouse.client.lineage import NO_SNAPSHOT, Lineage
from pilothouse.client.live import LiveSettings
from pilothouse.client.outcome import refusal
from pilothouse.client.plan import limits_of, transport_of
from pilothouse.driver import Host, caller_into_loop, running_loop, spawn
from pilothouse.driver.conversation import Conversation
from pilothouse.driver.listeners import Listeners
from pilothouse.driver.pool import Pool
from pilothouse.errors import OptionsError, SessionClosedError, SessionExistsError, SessionNotFoundError, UsageError
from pilothouse.options import Invocation, Options, render
from pilothouse.transports import Transport
from pilothouse.transports.errands import run_briefly

if TYPE_CHECKING:
    from pilothouse.client.bridging import Bridge
    from pilothouse.transports.private_home import PrivateHome

log = logging.getLogger("pilothouse")


class ChildSettings(Struct, frozen=True):
    """What a query's own child is started with beside the settings of the session.

    Args:
        options: the settings; none: a child of the session.
        bridge: what runs the `custom_tools` of the query; None where the CLI asks for each call.
    """

    options: Options = Options()
    bridge: Bridge | None = None

    def serves(self, wanted: ChildSettings) -> bool:
        """Whether a child that was started with these may answer a query that wants the others."""
        if self is wanted:
            return True
        # A child counts its dollars from its start, and a bridge remembers its calls.
        is_for_one = self.bridge is not None or "max_budget_usd" in self.options
        return self.options == wanted.options and not is_for_one and wanted.bridge is None


_SESSION_CHILD = ChildSettings()


class Children:
    """One child at a time, made when it is needed.

    Args:
        options: those of the session.
        session: what callbacks get as `.session`; not kept alive by this.

    Attributes:
        options: those of the session, as they are now.
        lineage: which conversation the next one goes on with.
        books: hears all that any of them says.
        bridge: what runs `custom_tools`; None where the CLI asks for each call.
        conversation: the one that runs, or ran last.
        live: what that one has in effect of the settings that may change.
        house: what it may ask.
        home: the HOME that they share, if the session is isolated.
        closed: whether `begin_close` was called; there is no next one then.
        wanted: what the query whose turn it is needs in its child.

    Raises:
        OptionsError: settings that cannot work in a session.
    """

    def __init__(self, options: Options, session: Any) -> None:
        if options.prompt_via != "stdin":
            raise OptionsError("a session needs prompt_via='stdin'", option="prompt_via")
        self.options = options
        self.lineage = Lineage(options)
        self.books = Books(options)
        house = house_of(options)  # a mistake is told before anything is started
        self.bridge = None if house is None else house.bridge
        self.home = _home_of(options)
        self.conversation: Conversation | None = None
        self.live: LiveSettings | None = None
        self.house: House | None = None
        self.wanted = _SESSION_CHILD
        self._started_with = _SESSION_CHILD
        self._session = weakref.proxy(session)
        self._starting = anyio.Lock(fast_acquire=True)
        self._call: Callable[[Callable[[], object]], None] | None = None
        self._loop: object = None
        self.closed = False
        render(self._next_options(), {})

    def settings_for(self, options: Options) -> ChildSettings:
        """What a query with these settings needs in its child.

        Args:
            options: those of the query that a child has from its start.

        Raises:
            OptionsError: they cannot work in a child of this session.
            UsageError: a hook, callback or tool that cannot work.
        """
        if not tuple(options):
            return _SESSION_CHILD
        name = next(iter(options))
        if isinstance(self.options.transport, Transport):
            raise OptionsError(
                f"option {name!r} needs another child, and the session has one transport; make the session with a "
                "function that makes transports, as transport=lambda: …",
                option=name,
            )
        settings = self.options.merge(options)
        house = house_of(settings)
        render(settings, {})
        return ChildSettings(options, None if house is None else house.bridge)

    @contextmanager
    def wanting(self, settings: ChildSettings | None) -> Generator[None]:
        """The block in which a query talks that needs a child with these; None: one of the session."""
        self.wanted = settings or _SESSION_CHILD
        try:
            yield
        finally:
            self.wanted = _SESSION_CHILD

    @property
    def is_starting(self) -> bool:
        """Whether a child is being started, or one is being ended so that another takes over."""
        return self._starting.locked()

    @property
    def id(self) -> str | None:
        """Id of the conversation, as far as it is known; a child that was started ahead brings its own."""
        conversation = self.conversation
        if conversation is not None:
            return conversation.session_id or self.lineage.id
        may_change = isinstance(self.options.transport, Pool) and self.lineage.may_be_renamed
        return None if may_change else self.lineage.id

    def check_open(self) -> None:
        """Raise `SessionClosedError` once `close` was called."""
        if self.closed:
            raise SessionClosedError("the session is closed; make a new one, with resume= to go on")

    def _check_loop(self) -> None:
        loop = running_loop()
        if self._loop not in (None, loop):
            raise UsageError("a session stays on the event loop that it was started on; make another with resume=")
        self._loop = loop

    def there(self) -> Conversation | None:
        """The conversation, if nothing has to be waited for until it can be talked to."""
        self._check_loop()
        conversation = self.conversation
        if conversation is None or self.closed or self._starting.locked() or not conversation.is_there:
            return None
        return conversation if self._started_with.serves(self.wanted) else None

    async def alive(self, *, in_turn: bool) -> Conversation:
        """The conversation, with a child that runs, and was started with what is wanted.

        Args:
            in_turn: whether a query talks to it now, which then notices by itself that it has gone.

        Raises:
            PilothouseError: it cannot be started.
            OptionsError: it cannot be replaced by another, as the query needs.
            SessionClosedError: `close` was called.
        """
        if (there := self.there()) is not None:
            return there
        async with self._starting:
            before = self.conversation
            if before is not None and not in_turn:
                await before.look()  # nothing was said to it yet, so that nothing is said twice
            if before is not None and before.over:
                await before.finished()
            self.check_open()
            if before is None or before.over:
                return await self._next(before)
            if self._started_with.serves(self.wanted):
                return before
            return await self._replace(before)

    async def _replace(self, before: Conversation) -> Conversation:
        """End a child that works as it should, and go on with one that has what is wanted."""
        if getattr(before.transport, "is_attached", False):
            name = next(iter(self.wanted.options))
            raise OptionsError(
                f"option {name!r} needs another child, and this session goes on with one that another client has "
                "started; ask in a session of your own, with resume= or fork",
                option=name,
            )
        if before.has_background_tasks:
            log.warning("background tasks of the session %s end with their child: a query needs another", self.id)
        mode = before.permission_mode
        await before.close()
        self.check_open()
        self.books.replaced()
        conversation = await self._launch_somehow(before)
        if mode is not None and mode != conversation.permission_mode and "permission_mode" not in self.wanted.options:
            # The CLI had changed it by itself, as after an approved plan.
            await conversation.request("set_permission_mode", {"mode": mode})
            conversation.permission_mode = mode
        return conversation

    async def _next(self, before: Conversation | None) -> Conversation:
        crashed = before if before is not None and before.has_started else None
        if crashed is not None and self.options.restart == "never":
            raise crashed.failure or SessionClosedError("the child has ended, and restart='never'")
        conversation = await self._launch_somehow(before)
        if crashed is not None:
            self.books.restarted(conversation.session_id, crashed.failure)
        return conversation

    async def _launch_somehow(self, before: Conversation | None) -> Conversation:
        """Begin again where there is nothing to resume: the child before had died before it saved anything of use."""
        ways_out = (SessionNotFoundError, self.lineage.fall_back), (SessionExistsError, self.lineage.evade)
        for kind, mend in ways_out:
            try:
                return await self._launch(before)
            except kind:
                if not mend():
                    raise
        return await self._launch(before)

    async def _launch(self, before: Conversation | None) -> Conversation:
        self._started_with = wanted = self.wanted
        options = self._next_options(wanted)
        invocation, host = self._start_of(options, wanted)
        if before is not None:
            invocation = replace(invocation, may_keep_its_id=False)
        transport, limits = transport_of(options), limits_of(options)
        conversation = self.conversation = Conversation(
            transport, invocation, limits, listeners=self.books, refused=refusal, host=host
        )
        if self.house is not None:
            self.house.report = conversation.report
        conversation.session_id = self.lineage.id
        conversation.says_lifecycle = before is not None and before.says_lifecycle  # it is the same CLI
        self._call = caller_into_loop()
        spawn(conversation.run, "pilothouse session")
        try:
            await conversation.start()
        except BaseException:
            conversation.stop()
            with anyio.CancelScope(shield=True):
                await conversation.finished()
            raise
        given: str | None = getattr(transport, "session_id", None)  # by a pool, whose child was there before
        if given is not None:
            self.lineage.rename(given)
            conversation.session_id = given
            if getattr(transport, "is_attached", False):
                self.lineage.begin()
                self.lineage.save(given)
        self.live = LiveSettings(options, conversation)
        return conversation

    def start_of(self) -> tuple[Invocation, Host | None]:
        """How the next child is started, and what this process offers to it."""
        return self._start_of(self._next_options(), _SESSION_CHILD)

    def _start_of(self, options: Options, wanted: ChildSettings) -> tuple[Invocation, Host | None]:
        self.house = house_of(options, self._session, self.bridge_for(wanted))
        invocation, host = self.books.launched(*started_with(options, self.house))
        # In the home the next child finds what this one has kept.
        return replace(invocation, home=self.home, may_keep_its_id=self.lineage.may_be_renamed), host

    def bridge_for(self, settings: ChildSettings) -> Bridge | None:
        """What runs the `custom_tools` of a query with these settings."""
        return settings.bridge if tuple(settings.options) else self.bridge

    def _next_options(self, wanted: ChildSettings = _SESSION_CHILD) -> Options:
        options = self.books.within_budget(self.lineage.child(self.options))
        if tuple(wanted.options):
            options = _merged(options, wanted.options)
        if options.isolation is not None and options.as_dict().get("persist_session") is None:
            options = options.with_(persist_session=True)  # in the home of the session, which goes with it
        if options.as_dict().get("partial_messages") is None:
            options = options.with_(partial_messages=True)  # for `text_stream`; queries that do not want them get none
        return options

    async def update(self, changes: Options, quiet: AbstractAsyncContextManager[Any]) -> None:
        """Have other handlers, in the child that runs as well.

        Args:
            changes: the handlers, and nothing else.
            quiet: entered where the child has to be told, which is between two turns.

        Raises:
            OptionsError: handlers that a child cannot get while it runs.
            ControlError, ControlTimeout: the CLI does not take them; the next child does.
        """
        if self.bridge is not None and "custom_tools" in changes:
            raise OptionsError(
                "option 'custom_tools' is fixed in a session, but for tool_bridge='mcp'", option="custom_tools"
            )
        if not self._started_with.serves(self.wanted) and self.conversation is not None and not self.conversation.over:
            await self.alive(in_turn=False)  # the one of a query that is over
        async with self._starting:
            conversation, options = self.conversation, self.options.merge(changes)
            if conversation is None or conversation.over:
                house_of(options)
                self.options = options
                return
        own, bridge = self._started_with.options, self.bridge_for(self._started_with)
        before, house = self.house, house_after(self.house, options.merge(own), changes, self._session, bridge)
        self.options, self.house, house.report = options, house, conversation.report
        invocation, host = self.books.launched(*started_with(self._next_options(self._started_with), house))
        assert host is not None
        if house.is_told_as(before):
            await conversation.rehouse(host, None)
        else:
            async with quiet:
                await conversation.rehouse(host, invocation.initialize)

    def begin_close(self) -> None:
        """From now on there is no new child.

        Raises:
            UsageError: this is not the event loop that the children live on.
        """
        self.closed = True
        if self._loop is not None:
            self._check_loop()

    async def close(self) -> None:
        """End the one that runs, and what they shared. Call it shielded."""
        try:
            if self.conversation is not None:
                await self.conversation.close()
        finally:
            home, self.home = self.home, None
            if home is not None:
                await run_briefly(home.leave)
            self.books.end()

    def drop(self) -> None:
        """Nobody holds the session any more; told by a finalizer: from any thread, at any moment."""
        conversation = self.conversation
        if conversation is not None and self._call is not None and not conversation.over:
            self._call(partial(_end, conversation, self.books))


def _merged(options: Options, own: Options) -> Options:
    """The settings of the child of a query: those of the session, within what is left of its budget, and its own."""
    merged = options.merge(own)
    if own.max_budget_usd is not None and options.max_budget_usd is not None:
        merged = merged.with_(max_budget_usd=min(own.max_budget_usd, options.max_budget_usd))
    return merged.with_(extra_args={**NO_SNAPSHOT, **(merged.extra_args or {})})


def _home_of(options: Options) -> PrivateHome | None:
    if options.isolation is None:
        return None
    from pilothouse.transports.private_home import PrivateHome  # few sessions have one

    return PrivateHome()


def _end(conversation: Conversation, listeners: Listeners) -> None:
    conversation.stop()
    listeners.end()
