"""The blocking twins of `.mcp .tasks .settings .info`: every request waits for its answer on the portal's loop.

Owns `blocking`, which makes a method that waits out of an asynchronous one, with its parameters and its words. What the
requests mean is decided in `pilothouse.client`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from pilothouse.client import controls
from pilothouse.client.replies import AccountInfo, AgentInfo, CommandInfo
from pilothouse.sync.portal import CallOnLoop

if TYPE_CHECKING:
    from pilothouse.options import IsolationReport

P = ParamSpec("P")
T = TypeVar("T")
G = TypeVar("G")


class Twin(Protocol):
    """What `blocking` needs of its object: what it is the twin of, and how to wait."""

    _inner: Any
    _call: CallOnLoop


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method of a twin that does what `method` does, and waits for it."""

    @wraps(method)
    def call(self: Twin, /, *args: P.args, **named: P.kwargs) -> T:
        return self._call(partial(method, self._inner, *args, **named))  # pyright: ignore[reportPrivateUsage] - a method

    return call


class _Group(Generic[G]):
    """Requests about one subject. Each raises `ControlError` when the CLI refuses, `ControlTimeout` without answer."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: G, call: CallOnLoop) -> None:
        self._inner = inner
        self._call = call


class Mcp(_Group[controls.Mcp]):
    """The MCP servers of a session."""

    __slots__ = ()

    status = blocking(controls.Mcp.status)
    wait = blocking(controls.Mcp.wait)
    set_permission_mode = blocking(controls.Mcp.set_permission_mode)
    reconnect = blocking(controls.Mcp.reconnect)
    toggle = blocking(controls.Mcp.toggle)
    set_servers = blocking(controls.Mcp.set_servers)
    call = blocking(controls.Mcp.call)
    read_resource = blocking(controls.Mcp.read_resource)


class Tasks(_Group[controls.Tasks]):
    """What runs in the background of a session."""

    __slots__ = ()

    stop = blocking(controls.Tasks.stop)
    background = blocking(controls.Tasks.background)
    output = blocking(controls.Tasks.output)
    cancel_queued = blocking(controls.Tasks.cancel_queued)
    wait_idle = blocking(controls.Tasks.wait_idle)


class SessionSettings(_Group[controls.SessionSettings]):
    """The settings of the CLI in a session."""

    __slots__ = ()

    get = blocking(controls.SessionSettings.get)
    apply = blocking(controls.SessionSettings.apply)
    add_repository = blocking(controls.SessionSettings.add_repository)
    update = blocking(controls.SessionSettings.update)
    reload_plugins = blocking(controls.SessionSettings.reload_plugins)
    reload_skills = blocking(controls.SessionSettings.reload_skills)
    output_styles = blocking(controls.SessionSettings.output_styles)
    permission_rules = blocking(controls.SessionSettings.permission_rules)
    hooks = blocking(controls.SessionSettings.hooks)


class Info(_Group[controls.Info]):
    """What a session can say of itself."""

    __slots__ = ()

    models = blocking(controls.Info.models)
    usage = blocking(controls.Info.usage)
    cost = blocking(controls.Info.cost)
    context_usage = blocking(controls.Info.context_usage)
    version = blocking(controls.Info.version)
    file_suggestions = blocking(controls.Info.file_suggestions)
    mark_read = blocking(controls.Info.mark_read)
    read_file = blocking(controls.Info.read_file)

    def commands(self) -> list[CommandInfo]:
        """The slash commands, as of the handshake."""
        return self._inner.commands()

    def agents(self) -> list[AgentInfo]:
        """The sub-agents, as of the handshake."""
        return self._inner.agents()

    def isolation_report(self) -> IsolationReport | None:
        """What the child said at the beginning of its last turn that it had loaded, and what of it nobody asked for.

        None before its first turn, also after a new child has taken over.
        """
        return self._inner.isolation_report()

    def account(self) -> AccountInfo:
        """Who pays, as of the handshake."""
        return self._inner.account()
