"""The children of a session, one after the other: how each is started, and when the next one takes over.

Owns the child that the session has now, and what goes from one to the next. Who may talk to it, and when, the session
knows; which conversation it goes on with, `lineage`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from msgspec.structs import replace

from pilothouse.client.bookkeeping import Books
from pilothouse.client.house import House, house_after, house_of, started_with
from pilothouse.client.lineage import Lineage
from pilothouse.client.live import LiveSettings
from pilothouse.client.outcome import refusal
from pilothouse.client.plan import limits_of, transport_of
from pilothouse.driver import Host, caller_into_loop, running_loop, spawn
from pilothouse.driver.conversation import Conversation
from pilothouse.driver.listeners import Listeners
from pilothouse.driver.pool import Pool
from pilothouse.errors import OptionsError, SessionClosedError, SessionExistsError, SessionNotFoundError, UsageError
from pilothouse.options import Invocation, Options, render
from pilothouse.transports.errands import run_briefly

if TYPE_CHECKING:
    from pilothouse.transports.private_home import PrivateHome


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
        self._session = weakref.proxy(session)
        self._starting = anyio.Lock(fast_acquire=True)
        self._call: Callable[[Callable[[], object]], None] | None = None
        self._loop: object = None
        self.closed = False
        render(self._next_options(), {})

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
        return conversation

    async def alive(self, *, in_turn: bool) -> Conversation:
        """The conversation, with a child that runs.

        Args:
            in_turn: whether a query talks to it now, which then notices by itself that it has gone.

        Raises:
            PilothouseError: it cannot be started.
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
            if before is not None and not before.over:
                return before
            return await self._next(before)

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
        options = self._next_options()
        invocation, host = self._start_of(options)
        transport, limits = transport_of(options), limits_of(options)
        conversation = self.conversation = Conversation(
            transport, invocation, limits, listeners=self.books, refused=refusal, host=host
        )
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
        return self._start_of(self._next_options())

    def _start_of(self, options: Options) -> tuple[Invocation, Host | None]:
        self.house = house_of(options, self._session, self.bridge)
        invocation, host = self.books.launched(*started_with(options, self.house))
        # In the home the next child finds what this one has kept.
        return replace(invocation, home=self.home, may_keep_its_id=self.lineage.may_be_renamed), host

    def _next_options(self) -> Options:
        options = self.books.within_budget(self.lineage.child(self.options))
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
        async with self._starting:
            conversation, options = self.conversation, self.options.merge(changes)
            if conversation is None or conversation.over:
                house_of(options)
                self.options = options
                return
        before, house = self.house, house_after(self.house, options, changes, self._session, self.bridge)
        self.options, self.house = options, house
        invocation, host = self.books.launched(*started_with(self._next_options(), house))
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


def _home_of(options: Options) -> PrivateHome | None:
    if options.isolation is None:
        return None
    from pilothouse.transports.private_home import PrivateHome  # few sessions have one

    return PrivateHome()


def _end(conversation: Conversation, listeners: Listeners) -> None:
    conversation.stop()
    listeners.end()
