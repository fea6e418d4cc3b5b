"""What `generated.py` builds on: the parts of blocking objects that differ from the asynchronous ones.

Waiting and callbacks happen in the caller's thread, a plain iterable of prompts is read in a worker thread,
everything else runs on the portal's event loop. `pilothouse.client` does everything else.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread

from pilothouse import client
from pilothouse.callbacks import check_signature
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import MessageIterator as AsyncReading
from pilothouse.client.queries import OnMessage, Steering, keep_callback_error
from pilothouse.client.result import OutputT, QueryResult
from pilothouse.engine.router import MessageSubscription as AsyncListener
from pilothouse.errors import SessionClosedError, UsageError
from pilothouse.messages import Message
from pilothouse.options import Options
from pilothouse.sync.portal import LoopCaller, Portal, get_portal, send_to_caller
from pilothouse.tracebacks import hide_arguments, user_class

if TYPE_CHECKING:
    from pilothouse.options import OptionsBuilder, Settings

AgentT = TypeVar("AgentT", bound="AgentWrapper")
InnerT = TypeVar("InnerT")
T = TypeVar("T")

_DONE = object()


def iterate_in_thread(prompt: Prompt) -> Prompt:
    """Convert a plain iterable prompt to an asynchronous one; return other prompts unchanged."""
    given: Any = prompt
    if isinstance(given, Sequence | Mapping | AsyncIterable) or not isinstance(given, Iterable):
        return prompt
    return _iterate(cast("Iterable[Any]", given))


async def _iterate(prompts: Iterable[Any]) -> AsyncIterator[Any]:
    # Its own limiter: iterators that wait for people must not use up the shared threads.
    limiter = anyio.CapacityLimiter(1)
    iterator: Iterator[Any] | None = None
    while True:
        iterator, item = await to_thread.run_sync(
            _next_item, iterator, prompts, abandon_on_cancel=True, limiter=limiter
        )
        if item is _DONE:
            return
        yield item


def _next_item(iterator: Iterator[Any] | None, prompts: Iterable[Any]) -> tuple[Iterator[Any], Any]:
    # The thread may wait for a line of standard input when Python exits. Python then closes that stream, cannot get its
    # lock, and aborts; but not while a frame holds the stream, as this one does.
    held = sys.stdin, sys.__stdin__
    iterator = iter(prompts) if iterator is None else iterator
    item = next(iterator, _DONE)
    del held
    return iterator, item


def hand_to_caller(on_message: Any) -> Any:
    """Return an `on_message` for the asynchronous query: it hands messages to the thread that waits.

    Raises:
        UsageError: it cannot be called with a message.
    """
    if not callable(on_message):
        return on_message
    check_signature(on_message, "on_message", "message")
    return send_to_caller


async def call_on_loop(do: Callable[[], T]) -> T:
    """Call a plain function where the objects of the event loop may be touched."""
    return do()


class GroupWrapper(Generic[InnerT]):
    """Requests about one subject. Each raises `ControlError` if rejected, `ControlTimeout` without a response."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: InnerT, call: LoopCaller) -> None:
        self._inner = inner
        self._call = call


class AgentWrapper:
    """The part of an agent that is not generated."""

    __slots__ = ("_inner",)

    @hide_arguments
    def __init__(self, options: Options | OptionsBuilder | None = None, **settings: Unpack[Settings]) -> None:
        self._inner = client.Agent(options, **settings)

    @classmethod
    def wrap(cls, agent: client.Agent) -> Self:
        """Wrap an asynchronous agent with its settings and backend. Raises UsageError if it is none."""
        if not isinstance(agent, client.Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"agent: expected an Agent of pilothouse, got {type(cast('object', agent)).__name__}")
        made = cls.__new__(cls)
        made._inner = agent  # noqa: SLF001 - of this class
        return made

    @property
    def async_agent(self) -> client.Agent:
        """The wrapped agent of `pilothouse`."""
        return self._inner

    def __repr__(self) -> str:
        return f"pilothouse.sync.{self._inner!r}"

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return get_portal().call(work)


_default: Any = None


def wrap_default(cls: type[AgentT]) -> AgentT:
    """Return the default agent of `pilothouse` in its wrapper; the same object while it is the same agent."""
    global _default
    agent = client.default_agent()
    if _default is None or _default.async_agent is not agent:
        _default = cls.wrap(agent)
    return _default


def replace_default(agent: AgentT, cls: type[AgentT]) -> AgentT:
    """Replace the default agent here and in `pilothouse`; return the previous one."""
    global _default
    if not isinstance(agent, cls):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"expected an Agent of pilothouse.sync, got {type(agent).__name__}")
    before = wrap_default(cls)
    client.set_default_agent(agent.async_agent)
    _default = agent
    return before


@user_class
class QueryWrapper(Generic[OutputT]):
    """The part of a query that is not generated.

    Args:
        query: the asynchronous query that does the work, with `send_to_caller` as its `on_message`.
        on_message: called for every message by `result()`.
        portal: the portal to use, for a query of a session.
    """

    def __init__(
        self, query: client.Query[OutputT], on_message: OnMessage | None = None, portal: Portal | None = None
    ) -> None:
        self._inner = query
        query.unsent_hint = "call `.result()`, read it with `for` or `with`, or close it"
        self._on_message = on_message
        self._portal = portal
        self._callback_errors: list[Exception] = []

    def __del__(self) -> None:
        portal: Portal | None = vars(self).get("_portal")  # missing if the constructor raised
        if portal is not None and portal.is_forked:
            self._inner.unsent_hint = ""  # a query of another process, which may still run it

    def __repr__(self) -> str:
        return repr(self._inner)

    def __iter__(self) -> MessageIterator[Message]:
        return MessageIterator(aiter(self._inner), self._call)

    def __enter__(self) -> Self:
        try:
            self._call(self._inner.__aenter__)
        except BaseException:
            self._close(self._inner.aclose)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close(self._inner.aclose)

    def _close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._portal is not None and self._portal.is_unavailable:
            return  # after a fork the process belongs to the parent
        self._call(work, finish=True)

    def _call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        serve: Callable[[Message], object] | None = None,
        finish: bool = False,
    ) -> T:
        self._inner.unsent_hint = ""
        if self._portal is None:
            self._portal = get_portal()
        return self._portal.call(work, serve=serve, finish=finish)

    def _read_result(self, work: Callable[[], Coroutine[Any, Any, QueryResult[OutputT]]]) -> QueryResult[OutputT]:
        result = self._call(work, serve=None if self._on_message is None else self._call_on_message)
        errors, self._callback_errors = self._callback_errors, []
        result.callback_errors.extend(errors)
        return result

    def _call_on_message(self, message: Message) -> None:
        assert self._on_message is not None
        try:
            answer = self._on_message(message)
            if inspect.isawaitable(answer):
                self._call(partial(_await, answer))
        except Exception as error:  # noqa: BLE001 - a mistake in it does not end the stream
            keep_callback_error(error, self._callback_errors)


async def _await(answer: Awaitable[object]) -> None:
    await answer


class SteeringWrapper:
    """The part of a steering that is not generated."""

    __slots__ = ("_call", "_found_query", "_inner")

    def __init__(self, inner: Steering, call: LoopCaller, query: Any) -> None:
        self._inner = inner
        self._call = call
        self._found_query = query

    def __repr__(self) -> str:
        return repr(self._inner)


@user_class
class MessageIterator(Generic[T]):
    """One loop over a query: its messages, or values made from them. Dropping the iterator leaves the loop.

    Items are transferred in batches, because a call into another thread costs as much as 100 messages. Threads may
    share one iterator of messages.
    """

    __slots__ = ("_call", "_items", "_source")

    def __init__(self, source: AsyncReading[T], call: LoopCaller) -> None:
        self._source = source  # dropped with this object, which ends the query if the loop was left early
        self._items: deque[T] = deque()
        self._call = call  # holds the query too

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        items, source = self._items, self._source
        while not items:
            try:
                message: Any = source.unread.popleft()
            except IndexError:
                message = None
            if message is None:
                if not self._call(self._fill):
                    raise StopIteration
            elif source.read is None:
                return message
            else:
                items.extend(source.read(message))
        return items.popleft()

    async def _fill(self) -> bool:
        try:
            if await self._source.fill():
                return True
            await self._source.finish()
            return False
        except asyncio.CancelledError:  # the thread was interrupted and will not call again
            await self._source.aclose()
            raise

    def close(self) -> None:
        """Leave the loop and wait until the process is gone, unless a `with` block owns the query."""
        self._call(self._source.aclose, finish=True)


@user_class
class SessionWrapper:
    """The part of a session that is not generated.

    Args:
        make: makes the asynchronous session; called on the loop, where its locks belong.
    """

    def __init__(self, make: Callable[[], client.Session]) -> None:
        self._portal = get_portal()
        self._made: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._inner = self._call(partial(call_on_loop, make))

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        try:
            self._call(self._inner.start)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the process may be running, and `__exit__` will not be called
            self._close(self._inner.close)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close(self._inner.close)

    def _close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._portal.is_unavailable:  # after a fork the process belongs to the parent
            self._call(work, finish=True)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        return self._portal.call(work, finish=finish)

    def _keep(self, query: T) -> T:
        self._made[cast("Any", query).id] = query
        return query

    def _find_or_keep(self, query: client.Query[Any] | None, make: Callable[..., T]) -> T | None:
        if query is None:
            return None
        return self._made.get(query.id) or self._keep(make(query, None, self._portal))

    def _find_kept(self, queries: list[client.Query[Any]]) -> list[Any]:
        made = dict(self._made)
        return [made[query.id] for query in queries if query.id in made]


class MessageSubscription:
    """Messages as they come, since the subscription was made; iterate over it. Made by `Session.messages()`.

    The iteration ends with the session or with Python. Threads may share it. Messages are transferred in batches, and
    none is lost when Ctrl-C ends a wait: the next loop continues there. Dropping the object closes it.
    """

    def __init__(self, listener: AsyncListener, portal: Portal) -> None:
        self._portal = portal
        self._listeners = [listener]  # removed on the loop only: items being added there must not vanish meanwhile
        self._unread: deque[Message] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while True:
            try:
                return self._unread.popleft()
            except IndexError:
                if not self._wait():
                    raise StopIteration from None

    def _wait(self) -> bool:
        try:
            return self._portal.call(self._fill, ends_with_program=True)
        except SessionClosedError:  # Python shuts down, which ends the session: not an error for this thread
            return False

    async def _fill(self) -> bool:
        while self._listeners and not self._unread:
            batch, _ = await self._listeners[0].buffer.get()
            if not batch:
                return False
            if self._listeners:
                self._unread.extend(batch)
        return bool(self._listeners)

    def close(self) -> None:
        """End the subscription."""
        if not self._portal.is_unavailable:
            self._portal.call(partial(call_on_loop, partial(_close_listeners, self._listeners)), finish=True)
        self._unread.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if (held := getattr(self, "_listeners", None)) is not None:  # unset if `__init__` failed
            self._portal.post(partial(_close_listeners, held))


def _close_listeners(held: list[AsyncListener]) -> None:
    for listener in held:
        listener.buffer.end()
    held.clear()
