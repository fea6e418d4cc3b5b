"""The control requests of a session by subject: `.mcp .tasks .settings .info`. Each method is one request.

Owns names, bodies and the types of the answers. How a request travels, the driver knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pilothouse.client.mcp_waiting import connected
from pilothouse.client.replies import (
    AccountInfo,
    AgentInfo,
    CommandInfo,
    ContextUsage,
    EffectiveSettings,
    FileContents,
    HookListing,
    McpChange,
    McpResource,
    McpResult,
    McpServerInfo,
    ModelInfo,
    PermissionRules,
    PluginReload,
    RewindResult,
    TaskOutput,
    UsageReport,
    typed,
    typed_list,
)

if TYPE_CHECKING:
    from pilothouse.messages import InitMessage
    from pilothouse.options import IsolationReport, Options


class Control(Protocol):
    """Sends a control request and gives its answer."""

    def __call__(self, subtype: str, /, **body: Any) -> Awaitable[Mapping[str, Any]]:
        """See `Session.control`."""
        ...


class _Group:
    """Requests about one subject. Each raises `ControlError` when the CLI refuses, `ControlTimeout` without answer."""

    __slots__ = ("_control",)

    def __init__(self, control: Control) -> None:
        self._control = control


class Mcp(_Group):
    """The MCP servers of a session."""

    __slots__ = ()

    async def status(self) -> list[McpServerInfo]:
        """Every server, with its state and its tools."""
        return typed_list(McpServerInfo, (await self._control("mcp_status")).get("mcpServers"))

    async def wait(self, servers: str | Iterable[str], timeout: float = 30.0) -> list[McpServerInfo]:
        """Wait until these servers are connected, before a prompt that needs their tools.

        Args:
            servers: their names.
            timeout: seconds to wait for all of them.

        Returns:
            The servers, in the order of the names.

        Raises:
            ControlError: one of them has failed, is disabled or needs a login; its `error` is in the message, and
                `.code` is its status.
            ControlTimeout: one of them is not connected in time.
        """
        return await connected(self.status, [servers] if isinstance(servers, str) else list(servers), timeout)

    async def set_permission_mode(self, server: str, mode: Literal["default", "auto"] | None) -> str | None:
        """Change the permission mode for the tools of a server; None: that of the session. Returns a warning."""
        return (await self._control("set_mcp_permission_mode_override", serverName=server, mode=mode)).get("warning")

    async def reconnect(self, server: str) -> None:
        """Connect a server again."""
        await self._control("mcp_reconnect", serverName=server)

    async def toggle(self, server: str, on: bool) -> None:
        """Switch a server on or off."""
        await self._control("mcp_toggle", serverName=server, enabled=on)

    async def set_servers(self, servers: Mapping[str, Any]) -> McpChange:
        """Have these servers, by name, in place of those that were set before; wire form of their configuration."""
        return typed(McpChange, await self._control("mcp_set_servers", servers=dict(servers)))

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> McpResult:
        """Call a tool yourself; `tool` is its full name, such as "mcp__weather__now"."""
        return typed(McpResult, await self._control("mcp_call", tool=tool, arguments=dict(arguments or {})))

    async def read_resource(self, server: str, uri: str) -> McpResource:
        """Read a resource of a server. The CLI (2.1.330) gives only those whose address begins with `ui://`."""
        return typed(McpResource, await self._control("mcp_read_resource", serverName=server, uri=uri))


class Tasks(_Group):
    """What runs in the background of a session."""

    __slots__ = ("_wait_idle",)

    def __init__(self, control: Control, wait_idle: Callable[[], Awaitable[None]]) -> None:
        super().__init__(control)
        self._wait_idle = wait_idle

    async def stop(self, task_id: str) -> None:
        """Stop a background task."""
        await self._control("stop_task", task_id=task_id)

    async def background(self, tool_use_id: str | None = None) -> None:
        """Send what runs in the foreground to the background: one tool call, or all."""
        await self._control("background_tasks", **({} if tool_use_id is None else {"tool_use_id": tool_use_id}))

    async def output(self, task_id: str) -> TaskOutput:
        """What a background task has written so far."""
        return typed(TaskOutput, await self._control("get_task_output", task_id=task_id))

    async def cancel_queued(self, message_uuid: str) -> bool:
        """Take a prompt that waits inside the CLI out of its queue; False if it was not there."""
        return bool((await self._control("cancel_async_message", message_uuid=message_uuid)).get("cancelled"))

    async def wait_idle(self) -> None:
        """Wait until no query, no background task, and no turn that one woke runs any more."""
        await self._wait_idle()


class SessionSettings(_Group):
    """The settings of the CLI in a session."""

    __slots__ = ()

    async def get(self) -> EffectiveSettings:
        """The settings, all together and by source."""
        return typed(EffectiveSettings, await self._control("get_settings"))

    async def apply(self, settings: Mapping[str, Any]) -> None:
        """Merge settings into those of the command line, for this session."""
        await self._control("apply_flag_settings", settings=dict(settings))

    async def add_repository(self, directory: str) -> None:
        """Make a directory below the working directory a root of the project too: its CLAUDE.md, plugins, skills."""
        body = {"reload_claude_md": True, "reload_plugins": True, "reload_skills": True}
        await self._control("register_repo_root", directory=directory, **body)

    async def update(self, settings: Mapping[str, Any], source: Literal["localSettings", "userSettings"]) -> None:
        """Write settings into a settings file."""
        await self._control("update_settings", source=source, settings=dict(settings))

    async def reload_plugins(self) -> PluginReload:
        """Read plugins again."""
        return typed(PluginReload, await self._control("reload_plugins"))

    async def reload_skills(self) -> list[CommandInfo]:
        """Read skills again; returns what there is now."""
        return typed_list(CommandInfo, (await self._control("reload_skills")).get("skills"))

    async def output_styles(self) -> list[str]:
        """Read output styles again; returns what there is now."""
        return list((await self._control("reload_output_styles")).get("available_output_styles") or ())

    async def permission_rules(self) -> PermissionRules:
        """The permission rules that hold."""
        return typed(PermissionRules, (await self._control("list_permission_rules")).get("state"))

    async def hooks(self) -> HookListing:
        """The hooks that are registered, in settings files as well."""
        return typed(HookListing, await self._control("get_hooks_listing"))


class Info(_Group):
    """What a session can say of itself."""

    __slots__ = ("_isolation", "_server_info")

    def __init__(
        self,
        control: Control,
        server_info: Callable[[], Mapping[str, Any]],
        isolation: Callable[[], IsolationReport | None],
    ) -> None:
        super().__init__(control)
        self._server_info = server_info
        self._isolation = isolation

    async def models(self) -> list[ModelInfo]:
        """The models that can be chosen."""
        return typed_list(ModelInfo, (await self._control("list_models")).get("models"))

    def commands(self) -> list[CommandInfo]:
        """The slash commands, as of the handshake."""
        return typed_list(CommandInfo, self._server_info().get("commands"))

    def agents(self) -> list[AgentInfo]:
        """The sub-agents, as of the handshake."""
        return typed_list(AgentInfo, self._server_info().get("agents"))

    def account(self) -> AccountInfo:
        """Who pays, as of the handshake."""
        return typed(AccountInfo, self._server_info().get("account"))

    def isolation_report(self) -> IsolationReport | None:
        """What the child said at the beginning of its last turn that it had loaded, and what of it nobody asked for.

        None before its first turn, also after a new child has taken over. MCP servers that were set later, with
        `session.mcp.set_servers`, are none that the settings ask for. (CLI 2.1.330)
        """
        return self._isolation()

    async def usage(self) -> UsageReport:
        """What the session has used, in numbers, and the limits of the account."""
        return typed(UsageReport, await self._control("get_usage", skip_behaviors=True))

    async def cost(self) -> str:
        """What the session has cost, as the CLI tells it to people."""
        return str((await self._control("get_session_cost")).get("text") or "")

    async def context_usage(self, *, full: bool = False) -> ContextUsage:
        """How full the context window is; `full` counts every message."""
        return typed(ContextUsage, await self._control("get_context_usage", detail="full" if full else "summary"))

    async def version(self) -> str:
        """The version of the CLI."""
        return str((await self._control("get_binary_version")).get("version") or "")

    async def file_suggestions(self, query: str) -> list[str]:
        """Paths that fit what was typed so far."""
        found = (await self._control("file_suggestions", query=query)).get("suggestions") or ()
        return [str(item.get("path", item)) if isinstance(item, dict) else str(item) for item in found]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]

    async def mark_read(self, path: str, mtime: float) -> None:
        """Let the CLI take a file as read, so that it may be edited; `mtime` in milliseconds since 1970."""
        await self._control("seed_read_state", path=path, mtime=mtime)

    async def read_file(self, path: str, *, max_bytes: int | None = None) -> FileContents:
        """A file of the working directory, as the CLI sees it."""
        body = {} if max_bytes is None else {"max_bytes": max_bytes}
        return typed(FileContents, await self._control("read_file", path=path, **body))


class Controls(ABC):
    """What a session offers beside queries. The groups are made when they are used: what it keeps must not keep it."""

    @abstractmethod
    async def control(self, subtype: str, /, **body: Any) -> Mapping[str, Any]:
        """Send a control request and return its answer."""

    @abstractmethod
    async def _wait_idle(self) -> None:
        """Wait until nothing runs."""

    @property
    @abstractmethod
    def server_info(self) -> Mapping[str, Any]:
        """What the CLI said of itself in the handshake."""

    @property
    @abstractmethod
    def options(self) -> Options:
        """The settings that it runs with."""

    @property
    @abstractmethod
    def _loaded(self) -> InitMessage | None:
        """What the child said at the beginning of its last turn; None before its first."""

    @property
    def mcp(self) -> Mcp:
        """The MCP servers."""
        return Mcp(self.control)

    @property
    def tasks(self) -> Tasks:
        """What runs in the background, and what waits."""
        return Tasks(self.control, self._wait_idle)

    @property
    def settings(self) -> SessionSettings:
        """The settings of the CLI."""
        return SessionSettings(self.control)

    @property
    def info(self) -> Info:
        """What the session can say of itself."""
        return Info(self.control, lambda: self.server_info, self._isolation_report)

    def _isolation_report(self) -> IsolationReport | None:
        from pilothouse.options.isolation import isolation_report  # few ask for it

        return None if self._loaded is None else isolation_report([self._loaded], self.options)

    async def rewind_files(self, user_message_uuid: str, *, dry_run: bool = False) -> RewindResult:
        """Set the files back to what they were when a user message came. (R19)

        Args:
            user_message_uuid: uuid of that message; the result of its query has it, as `user_message_uuid`.
            dry_run: only say what would change.

        Raises:
            ControlError: nothing is known of that message. Without `enable_file_checkpointing` the answer says so.
        """
        body = {"dry_run": True} if dry_run else {}
        return typed(RewindResult, await self.control("rewind_files", user_message_id=user_message_uuid, **body))

    async def rename(self, title: str) -> None:
        """Give the session a title."""
        await self.control("rename_session", title=title)
