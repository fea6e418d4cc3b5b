"""The blocking `Session` and its groups `.mcp`, `.tasks`, `.settings` and `.info`.

A conversation with one process on the portal's event loop, used from blocking code. `pilothouse.client` does
everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload
from weakref import WeakValueDictionary

from pilothouse.client import controls
from pilothouse.client.controls import AccountInfo, AgentInfo, CommandInfo
from pilothouse.client.costs import SessionCost
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import OnMessage
from pilothouse.client.result import OutputT
from pilothouse.client.sessions import Session as AsyncSession
from pilothouse.client.sessions import SessionState
from pilothouse.driver.subscriptions import MessageSubscription as AsyncListener
from pilothouse.errors import SessionClosedError
from pilothouse.messages import Message
from pilothouse.options import Options
from pilothouse.options.signatures import copy_method_signature
from pilothouse.sync.portal import LoopCaller, Portal, get_portal, make_blocking
from pilothouse.sync.queries import Query, hand_to_caller, iterate_in_thread
from pilothouse.tracebacks import user_class
from pilothouse.transports import Health

if TYPE_CHECKING:
    from pilothouse.options import IsolationReport, OptionsBuilder, Settings
    from pilothouse.permissions import AskView


T = TypeVar("T")
G = TypeVar("G")


class _ControlGroup(Generic[G]):
    """Requests about one subject. Each raises `ControlError` if rejected, `ControlTimeout` without a response."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: G, call: LoopCaller) -> None:
        self._inner = inner
        self._call = call


class McpControls(_ControlGroup[controls.McpControls]):
    """The MCP servers of a session."""

    __slots__ = ()

    status = make_blocking(controls.McpControls.status)
    wait = make_blocking(controls.McpControls.wait)
    set_permission_mode = make_blocking(controls.McpControls.set_permission_mode)
    reconnect = make_blocking(controls.McpControls.reconnect)
    toggle = make_blocking(controls.McpControls.toggle)
    set_servers = make_blocking(controls.McpControls.set_servers)
    call = make_blocking(controls.McpControls.call)
    read_resource = make_blocking(controls.McpControls.read_resource)


class TaskControls(_ControlGroup[controls.TaskControls]):
    """Background tasks of a session."""

    __slots__ = ()

    stop = make_blocking(controls.TaskControls.stop)
    background = make_blocking(controls.TaskControls.background)
    output = make_blocking(controls.TaskControls.output)
    cancel_queued = make_blocking(controls.TaskControls.cancel_queued)
    wait_idle = make_blocking(controls.TaskControls.wait_idle)


class SettingsControls(_ControlGroup[controls.SettingsControls]):
    """The settings of the CLI in a session."""

    __slots__ = ()

    get = make_blocking(controls.SettingsControls.get)
    apply = make_blocking(controls.SettingsControls.apply)
    add_repository = make_blocking(controls.SettingsControls.add_repository)
    update = make_blocking(controls.SettingsControls.update)
    reload_plugins = make_blocking(controls.SettingsControls.reload_plugins)
    reload_skills = make_blocking(controls.SettingsControls.reload_skills)
    output_styles = make_blocking(controls.SettingsControls.output_styles)
    permission_rules = make_blocking(controls.SettingsControls.permission_rules)
    hooks = make_blocking(controls.SettingsControls.hooks)


class InfoControls(_ControlGroup[controls.InfoControls]):
    """Information on a session."""

    __slots__ = ()

    models = make_blocking(controls.InfoControls.models)
    usage = make_blocking(controls.InfoControls.usage)
    cost = make_blocking(controls.InfoControls.cost)
    context_usage = make_blocking(controls.InfoControls.context_usage)
    version = make_blocking(controls.InfoControls.version)
    file_suggestions = make_blocking(controls.InfoControls.file_suggestions)
    mark_read = make_blocking(controls.InfoControls.mark_read)
    read_file = make_blocking(controls.InfoControls.read_file)

    def commands(self) -> list[CommandInfo]:
        """The slash commands reported in the handshake."""
        return self._inner.commands()

    def agents(self) -> list[AgentInfo]:
        """The sub-agents reported in the handshake."""
        return self._inner.agents()

    def isolation_report(self) -> IsolationReport | None:
        """What the process loaded, as reported at the start of its last turn, and which of it was not requested.

        None before its first turn, also after a restart.
        """
        return self._inner.isolation_report()

    def account(self) -> AccountInfo:
        """The account reported in the handshake."""
        return self._inner.account()


@user_class
class Session:
    """A conversation with one process, for blocking code. Made by `session()` and `Agent.session()`.

    ::

        with agent.session() as session:            # the process runs, or the error is raised here
            session.query("My name is Alice").result()
            answer = session.query("What is my name?").result()

    Any thread may use and close it. Queries are answered one after the other, in the order in which they were started.
    A query that is left early, or whose wait is ended by Ctrl-C, is stopped, and the session continues.

    Hooks, permission callbacks and tools run on the event loop of `pilothouse.sync`, plain ones in worker threads,
    independent of the program's threads; plain ones may use this object. The `session` passed to them is that of
    `pilothouse`, for async ones.

    A session belongs to the process that made it: it cannot be used after a fork. Dropping it ends its child process.

    Args:
        make: makes the asynchronous session; called on the loop, where its locks belong.
    """

    def __init__(self, make: Callable[[], AsyncSession]) -> None:
        self._portal = get_portal()
        self._queries: WeakValueDictionary[str, Query[Any]] = WeakValueDictionary()
        self._inner = self._call(partial(_call_on_loop, make))

    def __repr__(self) -> str:
        return repr(self._inner)

    # Properties.

    @property
    def id(self) -> str | None:
        """Id of the conversation; known from the start, except with `continue_latest`. `clear` changes it."""
        return self._inner.id

    @property
    def options(self) -> Options:
        """The settings of the session."""
        return self._inner.options

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._inner.state

    def health(self) -> Health:
        """Whether the session can be used, and if not, why."""
        return self._call(partial(_call_on_loop, self._inner.health))

    @property
    def pid(self) -> int | None:
        """Process id; None if there is no process, or no local one."""
        return self._inner.pid

    @property
    def server_info(self) -> Mapping[str, Any]:
        """The CLI's handshake data: commands, agents, models, account, version."""
        return self._inner.server_info

    @property
    def restarts(self) -> int:
        """Number of restarts of the process."""
        return self._inner.restarts

    @property
    def waiting(self) -> int:
        """Number of queries that wait for their turn."""
        return self._inner.waiting

    @property
    def queries(self) -> list[Query[Any]]:
        """The unfinished queries in the order of their turns: the current one, and those that wait."""
        made = dict(self._queries)
        return [made[query.id] for query in self._inner.queries if query.id in made]

    @property
    def costs(self) -> SessionCost:
        """Cost so far, by turn and model; without the cost of what was resumed."""
        return self._inner.costs

    @property
    def asks(self) -> AskView:
        """The requests of this session that wait for somebody. `stream()` blocks until the next one comes.

        Raises:
            UsageError: the session was made without the option `asks`.
        """
        return self._inner.asks

    # Starting and closing.

    def start(self) -> Self:
        """Start the process now and wait for the handshake. Queries start it automatically.

        Raises:
            ProcessError: the process could not be started.
            SessionNotFoundError: there is no conversation with the id to resume.
            ControlError, ControlTimeout: a server that `wait_for_mcp` waits for is not connected, or not in time.
            SessionClosedError: the session was closed.
            UsageError: called on the event loop of `pilothouse.sync`, or after a fork.
        """
        self._call(self._inner.start)
        return self

    def __enter__(self) -> Self:
        try:
            return self.start()
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the process may be running, and `__exit__` will not be called
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session and wait until the process is gone. Idempotent, bounded, from any thread.

        The current query is stopped and fails with `SessionClosedError`, as do those that wait.
        """
        if not self._portal.is_unavailable:  # after a fork the process belongs to the parent
            self._call(self._inner.close, finish=True)

    # Queries.

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: type[OutputT],
        **overrides: Unpack[Settings],
    ) -> Query[OutputT]: ...

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]: ...

    @copy_method_signature(AsyncSession.query)
    def query(self, prompt: Prompt, *args: Any, on_message: OnMessage | None = None, **named: Any) -> Query[Any]:  # noqa: D417
        """Make a query in this conversation. It waits for its turn when it is read.

        Args:
            prompt: as for `Agent.query`.
            options: settings for this query alone. `model`, `permission_mode` and `max_thinking_tokens` are set
                before it and reset after it; settings of pilothouse, such as `timeout`, apply to it. For others, such
                as `system_prompt` or `max_turns`, another process resumes the conversation, and the next query again
                has one with the settings of the session.
            on_message: as for `Agent.query`.
            output_type: as for `Agent.query`; uses another process, unless the session has its schema as
                `json_schema`.
            **overrides: single settings that override `options`.

        Raises:
            OptionsError: a setting that is not valid, or that a single query of a session cannot have, such as
                `session_id`, `cli` or `session_store`.
            SessionClosedError: the session was closed.
            UsageError: the prompt is not valid; or called after a fork.
        """
        self._portal.check_process()
        handed = hand_to_caller(on_message)
        inner = self._inner.query(iterate_in_thread(prompt), *args, on_message=handed, **named)
        query = self._queries[inner.id] = Query(inner, on_message, self._portal)
        return query

    # Everything else.

    def messages(self) -> MessageSubscription:
        """Subscribe to all messages of the process, across queries, including turns that it starts by itself.

        Iterate over the result, for example in its own thread; `close` ends the subscription, and so does the end of
        the session. Once 8 MiB are unread, the rest waits in a temporary file. After a restart because
        of a crash, there is a `SystemMessage` of the subtype "session_restarted", with the `reason` in its `raw`.
        """
        return MessageSubscription(self._call(partial(_call_on_loop, self._inner.messages)), self._portal)

    control = make_blocking(AsyncSession.control)
    interrupt = make_blocking(AsyncSession.interrupt)
    set_model = make_blocking(AsyncSession.set_model)
    set_permission_mode = make_blocking(AsyncSession.set_permission_mode)
    set_max_thinking_tokens = make_blocking(AsyncSession.set_max_thinking_tokens)
    clear = make_blocking(AsyncSession.clear)
    update = make_blocking(AsyncSession.update)
    detach = make_blocking(AsyncSession.detach)
    rewind_files = make_blocking(AsyncSession.rewind_files)
    rename = make_blocking(AsyncSession.rename)

    @copy_method_signature(AsyncSession.fork)
    def fork(self, **overrides: Any) -> Session:
        """Make a new session that begins with a copy of this conversation, which is not changed.

        The copy contains what the CLI has written to disk when the fork starts, an answer under way is not in it.

        Args:
            **overrides: settings of the new session that differ.

        Raises:
            UsageError: the conversation is empty, or `persist_session` is off.
        """
        self._portal.check_process()
        return Session(partial(self._inner.fork, **overrides))

    @property
    def mcp(self) -> McpControls:
        """The MCP servers."""
        return McpControls(self._inner.mcp, self._call)

    @property
    def tasks(self) -> TaskControls:
        """Background tasks and queued work."""
        return TaskControls(self._inner.tasks, self._call)

    @property
    def settings(self) -> SettingsControls:
        """The settings of the CLI."""
        return SettingsControls(self._inner.settings, self._call)

    @property
    def info(self) -> InfoControls:
        """Information on the session."""
        return InfoControls(self._inner.info, self._call)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], *, finish: bool = False) -> T:
        return self._portal.call(work, finish=finish)


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
            self._portal.call(partial(_call_on_loop, partial(_close_listeners, self._listeners)), finish=True)
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


async def _call_on_loop(do: Callable[[], T]) -> T:
    return do()
