"""The control requests of a session, by subject: `.mcp`, `.tasks`, `.settings`, `.info`.

Each method sends one request and returns a typed result. Waiting until MCP servers are connected is here too
(`wait_for_mcp`, `session.mcp.wait`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import anyio
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from pilothouse.client.logins import CONNECT_SECONDS, McpLogin, begin_mcp_login, clear_mcp_login
from pilothouse.client.settings_check import (
    CHECKED_KEYS,
    SentSettings,
    SettingsFileError,
    check_taken,
    describe_lost,
    list_lost,
    read_errors,
    warn_unknown_keys,
)
from pilothouse.engine import HandlerSet, RequestControl
from pilothouse.engine.diagnostics import name_missing_program
from pilothouse.errors import ControlError, ControlTimeout, McpToolError, UsageError
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options import Options
from pilothouse.options.secrets import mask

if TYPE_CHECKING:
    from pilothouse.options import CliSettings, IsolationReport, Options


ControlSender: TypeAlias = Callable[..., Awaitable[Mapping[str, Any]]]
"""Sends a control request and returns its response, as `Session.control` does."""


McpCaller: TypeAlias = Callable[[Mapping[str, Any], float], Awaitable[Mapping[str, Any]]]
"""Sends the body of an `mcp_call`, and waits for so many seconds if they are more than `control_timeout`."""

MCP_CALL = "mcp_call"
CHECKS_PERMISSIONS = "mcp_call_check_permissions_v1"


class _ControlGroup:
    """Requests about one subject. Each raises `ControlError` on refusal, `ControlTimeout` without a response."""

    __slots__ = ("_control",)

    def __init__(self, control: ControlSender) -> None:
        self._control = control


class McpControls(_ControlGroup):
    """The MCP servers of a session."""

    __slots__ = ("_call_tool",)

    def __init__(self, control: ControlSender, call_tool: McpCaller) -> None:
        super().__init__(control)
        self._call_tool = call_tool

    async def status(self) -> list[McpServerStatus]:
        """Return every server, with its state and its tools. Only `raw` has the keys of its configuration."""
        return _read_servers(await self._control("mcp_status"))

    async def wait(self, servers: str | Iterable[str], timeout: float = 30.0) -> list[McpServerStatus]:
        """Wait until these servers are connected, before a prompt that needs their tools.

        Args:
            servers: their names.
            timeout: seconds to wait for all of them. Default 30.

        Returns:
            The servers, in the order of the names.

        Raises:
            ControlError: a server has failed, is disabled or needs a login; its `error` is in the message, and
                `.code` is its status.
            ControlTimeout: a server is not connected in time.
        """
        return await wait_connected(self.status, [servers] if isinstance(servers, str) else list(servers), timeout)

    async def set_permission_mode(self, server: str, mode: Literal["default", "auto"] | None) -> str | None:
        """Change the permission mode for the tools of a server; None: that of the session. May return a warning."""
        return (await self._control("set_mcp_permission_mode_override", serverName=server, mode=mode)).get("warning")

    async def reconnect(self, server: str) -> None:
        """Connect a server again."""
        await self._control("mcp_reconnect", serverName=server)

    async def authenticate(self, server: str, *, redirect_uri: str | None = None) -> McpLogin:
        """Begin a login at a server whose `status` is "needs-auth": show the user its `url`, then `wait` or `complete`.

        Claude Code keeps the login in its configuration directory, for other sessions too.

        Args:
            server: its name. While it is still connecting, this waits for it.
            redirect_uri: where the browser is sent on to with the code: a page of your program, which calls `complete`
                with the whole address. Default: a port of the machine of Claude Code, where Claude Code listens.

        Raises:
            LoginError: `.code` is "unknown_server"; "no_login": the server is connected, or is a program; "refused":
                it offers no login, a policy forbids it; or a code of Claude Code, such as "mcp_redirect_uri_unusable".
        """
        return await begin_mcp_login(server, self._control, self._find, self.wait, redirect_uri)

    async def clear_auth(self, server: str) -> None:
        """Forget the login at a server, and revoke it there if the server can; its status is "needs-auth" then.

        Raises:
            LoginError: `.code` is "unknown_server"; "no_login": the server is a program; or "refused".
        """
        await clear_mcp_login(server, self._control, self._find)

    async def _find(self, server: str) -> McpServerStatus | None:
        return _by_name(await self.status()).get(server)

    async def toggle(self, server: str, on: bool) -> None:
        """Switch a server on or off."""
        await self._control("mcp_toggle", serverName=server, enabled=on)

    async def set_servers(self, servers: Mapping[str, Any]) -> McpServersChange:
        """Replace the servers that were set before with these, by name; in the wire form of their configuration."""
        return to_result(McpServersChange, await self._control("mcp_set_servers", servers=to_dict("servers", servers)))

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        check_permissions: bool = False,
        soft_error_result: bool = False,
        result_not_for_model: bool = False,
        input_files: Mapping[str, str] | None = None,
        output_files: Mapping[str, str | tuple[str, str]] | None = None,
        expires_at: datetime | None = None,
    ) -> McpCallResult:
        """Call a tool directly, without the model.

        Tools of this process are not among those that can be called: call the function.

        Args:
            tool: its full name, such as "mcp__weather__now".
            arguments: its input. Default {}.
            timeout: seconds for the tool, from 1 to 600; with `check_permissions` also for hooks and for the answer of
                `can_use_tool`. Default: as long as `control_timeout`.
            check_permissions: decide about the call as about one of the model: with permission rules, the permission
                mode, hooks and `can_use_tool`. Default False: the call is yours, and nothing is asked.
            soft_error_result: return a failure of the tool as a result with `is_error`. Default False: raise it.
            result_not_for_model: return the content blocks as the server sent them: no picture is scaled, nothing is
                cut, and blocks beside structured content stay. Default False: as a model would get them.
            input_files: files of a cloud session that the tool reads: the path of each by a name, which `arguments`
                have as the value "{{in:NAME}}".
            output_files: files of a cloud session that the tool writes, as "{{out:NAME}}": the path by the name, or the
                path and the etag that the file must still have. Needs `expires_at`.
            expires_at: the call does not begin after this.

        Raises:
            McpToolError: the tool has failed; `.result` is what it returned. Of a CLI before 2.1.332 it is a plain
                `ControlError`, also with `soft_error_result`.
            ControlError: the call was not permitted ("The tool did not run: …"), there is no such tool or server, or a
                file could not be read or written; `.code` says which. With `check_permissions` also: the CLI is too
                old to check.
            ControlTimeout: the tool took longer than `timeout`.
            UsageError: `timeout` is not from 1 to 600.
        """
        if timeout is not None and not 1 <= timeout <= 600:  # the CLI would take the nearest one in silence
            raise UsageError(f"timeout: expected 1 to 600 seconds, got {timeout:g}")
        members: dict[str, Any] = {
            "timeout_ms": None if timeout is None else round(timeout * 1000),
            "check_permissions": check_permissions,
            "result_not_for_model": result_not_for_model,
            "input_files": [{"name": name, "lane_path": path} for name, path in (input_files or {}).items()],
            "output_files": [_make_output_file(name, to) for name, to in (output_files or {}).items()],
            "expires_at": None if expires_at is None else expires_at.astimezone(UTC).isoformat(),
        }
        body = {"tool": tool, "arguments": to_dict("arguments", arguments or {}), "soft_error_result": True}
        body |= {name: value for name, value in members.items() if value}
        seconds = 0.0 if timeout is None else CONNECT_SECONDS + timeout
        return _read_call(await self._call_tool(body, seconds), is_soft=soft_error_result)

    async def read_resource(self, server: str, uri: str) -> McpResourceContents:
        """Read a resource of a server. The CLI returns only those whose address begins with `ui://`."""
        return to_result(McpResourceContents, await self._control("mcp_read_resource", serverName=server, uri=uri))


class TaskControls(_ControlGroup):
    """The background work of a session."""

    __slots__ = ("_wait_idle",)

    def __init__(self, control: ControlSender, wait_idle: Callable[[], Awaitable[None]]) -> None:
        super().__init__(control)
        self._wait_idle = wait_idle

    async def stop(self, task_id: str) -> None:
        """Stop a background task."""
        await self._control("stop_task", task_id=task_id)

    async def background(self, tool_use_id: str | None = None) -> None:
        """Move foreground work to the background: one tool call, or all."""
        await self._control("background_tasks", **({} if tool_use_id is None else {"tool_use_id": tool_use_id}))

    async def output(self, task_id: str) -> TaskOutput:
        """Return the output of a background task so far."""
        return to_result(TaskOutput, await self._control("get_task_output", task_id=task_id))

    async def cancel_queued(self, message_uuid: str) -> bool:
        """Remove a prompt from the queue of the CLI; False if it was not there."""
        return bool((await self._control("cancel_async_message", message_uuid=message_uuid)).get("cancelled"))

    async def wait_idle(self) -> None:
        """Wait until no query, no background task, and no turn that one of them started is running."""
        await self._wait_idle()


class SettingsControls(_ControlGroup):
    """The settings of the CLI in a session."""

    __slots__ = ()

    async def get(self) -> EffectiveSettings:
        """Return the settings, merged and by source, and the errors in settings files."""
        answer = await self._control("get_settings")
        return replace(to_result(EffectiveSettings, answer), errors=read_errors(answer))

    async def apply(self, settings: CliSettings | Mapping[str, Any]) -> None:
        """Merge settings into those of the command line, for this session.

        A key replaces what an earlier call said of it: a second call with `permissions` drops the rules of the first
        one. Rules that the session was started with stay.

        Raises:
            ControlError: the CLI cannot read them, and has applied nothing.
            SettingsError: the CLI has dropped a rule, a hook or a part of the sandbox, and applied the rest.
        """
        given = to_dict("settings", settings)
        warn_unknown_keys("settings", given)
        await self._control("apply_flag_settings", settings=given)
        if not CHECKED_KEYS.isdisjoint(given):
            sent = SentSettings("settings", given, outcome="The rest is in effect; correct this, and apply it again")
            answer = await self._control("get_settings")
            if isinstance(answer.get("sources"), list):  # stand-ins for the CLI have none
                check_taken(sent, answer)

    async def add_repository(self, directory: str) -> None:
        """Make a directory below the working directory a project root too, with its CLAUDE.md, plugins and skills."""
        body = {"reload_claude_md": True, "reload_plugins": True, "reload_skills": True}
        await self._control("register_repo_root", directory=directory, **body)

    async def update(self, settings: Mapping[str, Any], source: Literal["localSettings", "userSettings"]) -> None:
        """Write settings into a settings file. The CLI takes a few harmless keys only.

        Raises:
            ControlError: it does not take one of the keys, and has written nothing.
        """
        await self._control("update_settings", source=source, settings=to_dict("settings", settings))

    async def reload_plugins(self) -> PluginReloadResult:
        """Read plugins again."""
        return to_result(PluginReloadResult, await self._control("reload_plugins"))

    async def reload_skills(self) -> list[CommandInfo]:
        """Read skills again; returns the skills there are now."""
        return to_results(CommandInfo, (await self._control("reload_skills")).get("skills"))

    async def output_styles(self) -> list[str]:
        """Read output styles again; returns those there are now."""
        return list((await self._control("reload_output_styles")).get("available_output_styles") or ())

    async def permission_rules(self) -> PermissionRules:
        """Return the permission rules that apply."""
        return to_result(PermissionRules, (await self._control("list_permission_rules")).get("state"))

    async def hooks(self) -> RegisteredHooks:
        """Return the registered hooks, including those of settings files."""
        return to_result(RegisteredHooks, await self._control("get_hooks_listing"))


class InfoControls(_ControlGroup):
    """Information about a session."""

    __slots__ = ("_isolation", "_server_info")

    def __init__(
        self,
        control: ControlSender,
        server_info: Callable[[], Mapping[str, Any]],
        isolation: Callable[[], IsolationReport | None],
    ) -> None:
        super().__init__(control)
        self._server_info = server_info
        self._isolation = isolation

    async def models(self) -> list[ModelInfo]:
        """Return the models that can be chosen."""
        return to_results(ModelInfo, (await self._control("list_models")).get("models"))

    def commands(self) -> list[CommandInfo]:
        """Return the slash commands, as of the handshake."""
        return to_results(CommandInfo, self._server_info().get("commands"))

    def agents(self) -> list[AgentInfo]:
        """Return the sub-agents, as of the handshake."""
        return to_results(AgentInfo, self._server_info().get("agents"))

    def account(self) -> AccountInfo:
        """Return the account that pays, as of the handshake."""
        return to_result(AccountInfo, self._server_info().get("account"))

    def isolation_report(self) -> IsolationReport | None:
        """Report what the child had loaded at the beginning of its last turn, and what of it was not requested.

        None before the first turn, also after a new child has taken over. MCP servers that were set later, with
        `session.mcp.set_servers`, do not count as requested by the settings.
        """
        return self._isolation()

    async def usage(self) -> SessionUsage:
        """Return what the session has used, in numbers, and the limits of the account."""
        return to_result(SessionUsage, await self._control("get_usage", skip_behaviors=True))

    async def cost(self) -> str:
        """Return what the session has cost, as the CLI shows it to people."""
        return str((await self._control("get_session_cost")).get("text") or "")

    async def context_usage(self, *, full: bool = False) -> ContextUsage:
        """Return how full the context window is; `full` counts every message."""
        return to_result(ContextUsage, await self._control("get_context_usage", detail="full" if full else "summary"))

    async def version(self) -> str:
        """Return the version of the CLI."""
        return str((await self._control("get_binary_version")).get("version") or "")

    async def file_suggestions(self, query: str) -> list[str]:
        """Return paths that match `query`, as typed so far."""
        found = (await self._control("file_suggestions", query=query)).get("suggestions") or ()
        return [str(item.get("path", item)) if isinstance(item, dict) else str(item) for item in found]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]

    async def mark_read(self, path: str, mtime: float) -> None:
        """Mark a file as read by the CLI, so that it may be edited; `mtime` in milliseconds since 1970."""
        await self._control("seed_read_state", path=path, mtime=mtime)

    async def read_file(
        self, path: str, *, max_bytes: int | None = None, encoding: Literal["utf-8", "base64"] = "utf-8"
    ) -> FileContents:
        """Return a file of the working directory, as the CLI sees it; "base64" for one that is not text."""
        body = {"max_bytes": max_bytes, "encoding": None if encoding == "utf-8" else encoding}
        given = {name: value for name, value in body.items() if value is not None}
        return to_result(FileContents, await self._control("read_file", path=path, **given))

    async def plan(self) -> SessionPlan:
        """Return the plan that the session has written in plan mode, if there is one."""
        return to_result(SessionPlan, await self._control("get_plan"))

    async def workspace_diff(self) -> WorkspaceDiff:
        """Return how the working tree differs from its last commit. Files that git does not track are not in it."""
        body = await self._control("get_workspace_diff")
        diff: Mapping[str, Any] = body.get("diff") or {}
        return to_result(WorkspaceDiff, {**diff, **body})

    async def side_question(self, question: str, *, history: Iterable[tuple[str, str]] = ()) -> SideAnswer:
        """Ask about the conversation, beside it: also during a query, without tools, and without a trace in it.

        Args:
            question: the question.
            history: earlier side questions with their answers.

        Raises:
            ControlTimeout: there is no answer within `control_timeout` seconds.
        """
        earlier = [{"question": asked, "response": answer} for asked, answer in history]
        return to_result(SideAnswer, await self._control("side_question", question=question, history=earlier))

    async def generate_title(self, description: str, *, save: bool = False) -> str | None:
        """Let a small model write a title for the session; None if it gave none.

        Args:
            description: what the session is about, such as its first prompt.
            save: also write it to the transcript, where lists of sessions show it. Default False.
        """
        return (await self._control("generate_session_title", description=description, persist=save)).get("title")


ResultT = TypeVar("ResultT", bound="ControlResult")


class ControlResult(Struct, frozen=True, kw_only=True):
    """A response. `raw` is all of it, as it came. `repr` shows the other fields, with possible keys masked."""

    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], name="(raw)")

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(mask({name: getattr(self, name) for name in self.__struct_fields__ if name != "raw"}).items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class CamelControlResult(ControlResult, frozen=True, kw_only=True, rename="camel"):
    """A response whose keys are in camel case on the wire."""


class McpServerStatus(CamelControlResult, frozen=True, kw_only=True):
    """An MCP server: `status` is "connected", "failed", "needs-auth", "pending" or "disabled".

    `source` says where it was defined: "sdk", "plugin", "user", "project", "local", "dynamic", "managed" …
    """

    name: str = ""
    status: str = ""
    error: str | None = None
    scope: str | None = None
    source: str | None = None
    server_info: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    tools: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class McpServersChange(CamelControlResult, frozen=True, kw_only=True):
    """The effect of a change of the MCP servers; `errors` by server."""

    added: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    errors: Mapping[str, str] = field(default_factory=dict[str, str])


class McpCallResult(CamelControlResult, frozen=True, kw_only=True):
    """What an MCP tool returned.

    Args:
        content: the content blocks. If the tool also gave structured content, the CLI sends that as JSON text
            in place of the tool's blocks: one text block here.
        structured_content: the structured content; None if there is none.
        is_error: whether the tool has failed; only with `soft_error_result`.
        staging: of a call with files: `outputs` and `inputs_used`.
    """

    content: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    structured_content: Any = None
    is_error: bool = False
    staging: Mapping[str, Any] | None = None


class McpResourceContents(CamelControlResult, frozen=True, kw_only=True):
    """The contents of an MCP resource: `uri`, `mimeType`, and `text` or `blob` of each."""

    contents: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class TaskOutput(ControlResult, frozen=True, kw_only=True):
    """The output of a background task so far."""

    output: str = ""
    total_bytes: int = 0
    truncated: bool = False


class RewindResult(CamelControlResult, frozen=True, kw_only=True):
    """What restoring files changed, or would change."""

    can_rewind: bool = False
    error: str | None = None
    files_changed: list[str] = field(default_factory=list[str])
    insertions: int = 0
    deletions: int = 0
    skipped_links: int = 0


class InterruptResult(ControlResult, frozen=True, kw_only=True):
    """The effect of an interrupt: uuids of prompts still in the queue of the CLI, and of those it removed."""

    still_queued: list[str] = field(default_factory=list[str])
    cancelled: list[str] = field(default_factory=list[str])


class EffectiveSettings(ControlResult, frozen=True, kw_only=True):
    """The settings of the CLI: merged, by source, and as applied now (`model`, `effort` …).

    Attributes:
        errors: what is wrong in files that the CLI has therefore skipped: the user's, the project's, or one that was
            sent. Their settings are neither in `effective` nor in `sources`.
    """

    effective: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sources: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    applied: Mapping[str, Any] = field(default_factory=dict[str, Any])
    errors: list[SettingsFileError] = field(default_factory=list[SettingsFileError])

    def find_lost_restrictions(self, source: str, content: Any) -> list[tuple[str, str]]:
        """Find the rules and hooks that the CLI has dropped from settings, which it does without an error.

        Args:
            source: where they stand, as in `sources`: "userSettings", "projectSettings", "flagSettings" …
            content: the settings, as they stand there.

        Returns:
            The place of each, such as "permissions.deny[0]", and why it is lost, as far as that can be told.
        """
        lost = list_lost(content, self.raw, source)
        return [(each.place, describe_lost(each, source)) for each in lost if each.is_restriction]

    def filter_escalating_mode(self) -> Mapping[str, Any]:
        """Return `effective` without a `permissions.defaultMode` that the CLI does not take from this source.

        The merged settings name the mode of the last source, also where a file of the repository raises it. The CLI
        does not obey such a file: neither the project's with "acceptEdits", "auto" or "bypassPermissions", nor the
        local one with "auto" or "bypassPermissions".
        """
        modes = [(str(source.get("source", "")), _default_mode(source.get("settings"))) for source in self.sources]
        name, mode = next((pair for pair in reversed(modes) if pair[1] is not None), ("", None))
        if mode not in _REFUSED_MODES.get(name.removesuffix("Settings"), ()):
            return self.effective
        permissions = {key: value for key, value in self.effective["permissions"].items() if key != "defaultMode"}
        return {**self.effective, "permissions": permissions}


# Sources in the lower case of the official SDK; the CLI calls them `projectSettings` and so on.
_REFUSED_MODES = {"project": ("acceptEdits", "auto", "bypassPermissions"), "local": ("auto", "bypassPermissions")}


def _default_mode(settings: object) -> object:
    return as_mapping(as_mapping(settings).get("permissions")).get("defaultMode")


class PermissionRules(CamelControlResult, frozen=True, kw_only=True):
    """The permission rules that apply: `behavior`, `source` and `rule` of each.

    `errors` are those of settings files; `withheld` says that the CLI does not show its rules.
    """

    rules: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    workspace_directories: list[Any] = field(default_factory=list[Any])
    original_cwd: str = ""
    managed_only: bool = False
    errors: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    withheld: bool = False


class RegisteredHooks(CamelControlResult, frozen=True, kw_only=True):
    """The registered hooks, the events there are, and which hooks a `policy` or the `safe_mode` leaves out."""

    events: list[Any] = field(default_factory=list[Any])
    hooks: list[Any] = field(default_factory=list[Any])
    event_catalog: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    safe_mode: Mapping[str, Any] | None = None
    errors: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class PluginReloadResult(ControlResult, frozen=True, kw_only=True):
    """The plugins, commands, agents and MCP servers after a reload."""

    commands: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    agents: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    plugins: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    mcp_servers: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]], name="mcpServers")
    error_count: int = 0


class ModelInfo(CamelControlResult, frozen=True, kw_only=True):
    """A model that can be chosen; `value` is what `model=` takes."""

    value: str = ""
    resolved_model: str | None = None
    display_name: str = ""
    description: str = ""
    supports_effort: bool = False
    supported_effort_levels: list[str] = field(default_factory=list[str])
    supports_adaptive_thinking: bool = False
    supports_fast_mode: bool = False
    supports_auto_mode: bool = False


class CommandInfo(CamelControlResult, frozen=True, kw_only=True):
    """A slash command."""

    name: str = ""
    description: str = ""
    argument_hint: str = ""
    aliases: list[str] = field(default_factory=list[str])
    builtin: bool = False


class AgentInfo(CamelControlResult, frozen=True, kw_only=True):
    """A sub-agent."""

    name: str = ""
    description: str = ""
    model: str | None = None


class AccountInfo(CamelControlResult, frozen=True, kw_only=True):
    """The account that pays: the login or the kind of key, never the key."""

    email: str | None = None
    organization: str | None = None
    subscription_type: str | None = None
    token_source: str | None = None
    api_key_source: str | None = None
    api_provider: str | None = None


class SessionUsage(ControlResult, frozen=True, kw_only=True):
    """What the session has used, and the limits of the account where there are any."""

    session: Mapping[str, Any] = field(default_factory=dict[str, Any])
    subscription_type: str | None = None
    rate_limits_available: bool = False
    rate_limits: Mapping[str, Any] | None = None


ContextShares: TypeAlias = list[Mapping[str, Any]]


class ContextUsage(CamelControlResult, frozen=True, kw_only=True):
    """How full the context window is: tokens, in all, by category, and by what is in it.

    Attributes:
        model: whose window it is.
        total_tokens, max_tokens, percentage: used, and in all.
        raw_max_tokens: those of the model, before anything is reserved.
        categories: the parts, as `/context` shows them: `name`, `tokens`, and `kind`, which is "used", "free",
            "buffer", or "deferred" for what is not in the window.
        grid_rows: its picture of the window, square by square.
        memory_files, agents, mcp_tools, mcp_instructions, system_tools, deferred_builtin_tools,
            system_prompt_sections: one by one, with their `tokens`; an empty list if there is none.
        slash_commands, skills: how many there are, how many the model sees, and their tokens; `skills` has a
            `skillFrontmatter` with each of them.
        message_breakdown: tokens of messages and attachments, and of the calls and results of each tool.
        auto_compact_threshold, is_auto_compact_enabled, autocompact_source: when the conversation is compacted, and who
            says so.
        api_usage: what the API counted in its last response.
    """

    model: str = ""
    total_tokens: int = 0
    max_tokens: int = 0
    raw_max_tokens: int = 0
    percentage: float = 0
    categories: ContextShares = field(default_factory=list[Mapping[str, Any]])
    grid_rows: list[list[Mapping[str, Any]]] = field(default_factory=list[list[Mapping[str, Any]]])
    memory_files: ContextShares = field(default_factory=list[Mapping[str, Any]])
    agents: ContextShares = field(default_factory=list[Mapping[str, Any]])
    mcp_tools: ContextShares = field(default_factory=list[Mapping[str, Any]])
    mcp_instructions: ContextShares = field(default_factory=list[Mapping[str, Any]])
    system_tools: ContextShares = field(default_factory=list[Mapping[str, Any]])
    deferred_builtin_tools: ContextShares = field(default_factory=list[Mapping[str, Any]])
    system_prompt_sections: ContextShares = field(default_factory=list[Mapping[str, Any]])
    slash_commands: Mapping[str, Any] | None = None
    skills: Mapping[str, Any] | None = None
    message_breakdown: Mapping[str, Any] | None = None
    auto_compact_threshold: int | None = None
    is_auto_compact_enabled: bool = False
    autocompact_source: str | None = None
    api_usage: Mapping[str, Any] | None = None


class FileContents(CamelControlResult, frozen=True, kw_only=True):
    """A file as the CLI sees it; `lossy`: it is not text in UTF-8, and parts are replaced."""

    contents: str = ""
    abs_path: str = ""
    truncated: bool = False
    encoding: str | None = None
    lossy: bool = False


class SessionPlan(ControlResult, frozen=True, kw_only=True):
    """The plan of a session: whether there is one, its text in Markdown, and its file, if the CLI says where it is."""

    exists: bool = False
    content: str = ""
    path: str | None = None


class WorkspaceDiff(CamelControlResult, frozen=True, kw_only=True):
    """How a working tree differs from its last commit. `raw["diff"]` has what was too large or left out.

    Attributes:
        stats: `filesCount`, `linesAdded` and `linesRemoved`.
        per_file_stats: of each file `path`, `added`, `removed`, `isBinary`, `status` and more.
        hunks: of each file `path` and `hunks`, with `oldStart`, `newStart` and `lines` of each.
        no_diff_reason: why there is no diff, such as "no-repository"; None if there is one.
    """

    stats: Mapping[str, Any] = field(default_factory=dict[str, Any])
    per_file_stats: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    hunks: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    no_diff_reason: str | None = None


class SideAnswer(ControlResult, frozen=True, kw_only=True):
    """The answer to a side question; None if there was none. `synthetic`: the CLI wrote it, not the model."""

    response: str | None = None
    synthetic: bool = False


def check_can_call(body: Mapping[str, Any], server_info: Mapping[str, Any]) -> None:
    """Raise `ControlError` if a call is to be checked, and this CLI would run the tool without a check."""
    if body.get("check_permissions") and CHECKS_PERMISSIONS not in (server_info.get("capabilities") or ()):
        text = "The tool did not run: this CLI does not check the permission of a direct call; update it"
        raise ControlError(text, subtype=MCP_CALL, code="unsupported_request")


def _make_output_file(name: str, to: str | tuple[str, str]) -> dict[str, str]:
    path, *etag = (to,) if isinstance(to, str) else to
    return {"name": name, "lane_path": path, **({"if_match": etag[0]} if etag else {})}


def _read_call(body: Mapping[str, Any], *, is_soft: bool) -> McpCallResult:
    result = to_result(McpCallResult, body)
    text = result.raw.get("content")
    if isinstance(text, str):
        result = replace(result, content=[{"type": "text", "text": text}])
    if result.is_error:
        if is_soft:
            return result
        texts = [str(block["text"]) for block in result.content if block.get("type") == "text" and "text" in block]
        reason = "\n".join(texts) or "the tool has failed"
        raise McpToolError(mask(reason), subtype=MCP_CALL, code="tool_error", result=result)
    staging = result.staging or {}
    if staging.get("ok") is False:  # the CLI answers so to a call with a timeout or files
        reason, code = mask(str(staging.get("detail") or "the call has failed")), staging.get("error_code")
        if code == "timeout":
            raise ControlTimeout(reason, subtype=MCP_CALL)
        raise ControlError(reason, subtype=MCP_CALL, code=code)
    return result


def to_dict(name: str, value: object) -> dict[str, Any]:
    """Return a mapping as a dictionary. Raises `UsageError` if it is none."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: expected a mapping, got {type(value).__name__}")
    return dict(cast("Mapping[str, Any]", value))


def to_result(kind: type[ResultT], payload: object) -> ResultT:
    """Convert `payload` to `kind`; fields that do not fit keep their defaults."""
    body = as_mapping(payload)
    values: dict[str, Any] = {}
    for info in msgspec.structs.fields(kind):
        if info.encode_name in body:
            try:
                values[info.name] = msgspec.convert(body[info.encode_name], info.type, strict=False)
            except (msgspec.ValidationError, TypeError, UnicodeEncodeError):  # the last: a lone surrogate
                continue
    return kind(raw=body, **values)


def to_results(kind: type[ResultT], payloads: object) -> list[ResultT]:
    """Convert each of `payloads` to `kind`."""
    return (
        [to_result(kind, payload) for payload in cast("list[object]", payloads)] if isinstance(payloads, list) else []
    )


log = logging.getLogger("pilothouse")

POLL_SECONDS = 0.1  # between two polls of connecting servers; the CLI sends no event
DEFAULT_WAIT_SECONDS = 60.0  # above the 30 s of the CLI, whose error says more
UNLISTED_SECONDS = 2.0  # until an unlisted server counts as missing; the CLI lists all right after the handshake
FINAL_FAILURES = frozenset({"failed", "needs-auth", "disabled"})

GetMcpStatus: TypeAlias = Callable[[], Awaitable[list[McpServerStatus]]]


async def wait_connected(status: GetMcpStatus, names: Collection[str], timeout: float) -> list[McpServerStatus]:
    """Wait until these servers are connected; returns them in the order of the names.

    Raises:
        ControlError: one of them will not connect without help.
        ControlTimeout: one of them is not connected within `timeout` seconds.
    """
    known: dict[str, McpServerStatus] = {}
    with anyio.move_on_after(timeout):
        while True:
            known = _by_name(await status())
            if not _waiting(names, known):
                return [known[name] for name in names]
            await anyio.sleep(POLL_SECONDS)
    raise _wait_timeout(_waiting(names, known), known, timeout)


def with_mcp_wait(handlers: HandlerSet | None, options: Options) -> HandlerSet:
    """Return `handlers`, or an empty set, with a wait for MCP servers before the first prompt, as `options` say."""
    limit, servers = options.wait_for_mcp, options.mcp_servers
    given = tuple(servers) if isinstance(servers, dict) else None
    ready = partial(_wait_all, given, DEFAULT_WAIT_SECONDS if limit is True else float(limit))
    return (handlers or HandlerSet.empty()).prepared_by(ready)


async def _wait_all(given: tuple[str, ...] | None, timeout: float, request: RequestControl) -> None:
    """Wait until the servers of `mcp_servers` are connected, and all others are connected or have failed."""
    known: dict[str, McpServerStatus] = {}
    required: Collection[str] = given or ()
    begun = anyio.current_time()
    with anyio.move_on_after(timeout):
        while True:
            known = _by_name(_read_servers(await request("mcp_status", {})))
            if given is None:  # the servers are in a file, which only the CLI has read
                required = [name for name, server in known.items() if server.scope == "dynamic"]
            waiting = _waiting(required, known)
            if not _pending(known):
                if not waiting:
                    # Servers that need a login, or are disabled, are so on purpose.
                    if failed := [server for server in known.values() if server.status == "failed"]:
                        log.warning("%s", _describe_failed(failed))
                    return
                if anyio.current_time() - begun >= UNLISTED_SECONDS:
                    raise _unlisted_error(waiting, known)
            await anyio.sleep(POLL_SECONDS)
    if waiting := _waiting(required, known):
        raise _wait_timeout(waiting, known, timeout)
    if not known:
        raise ControlTimeout(f"no answer to 'mcp_status' within {timeout:g} s", subtype="mcp_status")
    log.warning(
        "MCP servers outside `mcp_servers` are not connected within %g s: %s",
        timeout,
        ", ".join(sorted(_pending(known))),
    )


def _read_servers(response: Mapping[str, Any]) -> list[McpServerStatus]:
    """Read the servers of a response, with the keys masked that the CLI repeats from their configuration."""
    servers = to_results(McpServerStatus, response.get("mcpServers"))
    return [replace(server, config=mask(server.config), error=_read_error(server)) for server in servers]


def _read_error(server: McpServerStatus) -> str | None:
    error: str | None = mask(server.error)
    return None if error is None else name_missing_program(error, (server.config or {}).get("command"))


def _pending(known: Mapping[str, McpServerStatus]) -> list[str]:
    return [name for name, server in known.items() if server.status == "pending"]


def _by_name(servers: Iterable[McpServerStatus]) -> dict[str, McpServerStatus]:
    return {server.name: server for server in servers}


def _waiting(names: Iterable[str], known: Mapping[str, McpServerStatus]) -> list[str]:
    """Those of `names` that may still connect.

    Raises:
        ControlError: some will not connect without help.
    """
    names = list(names)
    lost = [known[name] for name in names if name in known and known[name].status in FINAL_FAILURES]
    if lost:
        raise ControlError(_describe_failed(lost), subtype="mcp_status", code=lost[0].status)
    return [name for name in names if name not in known or known[name].status != "connected"]


def _describe_failed(servers: Iterable[McpServerStatus]) -> str:
    listed = (f"{server.name!r} is not connected: {server.error or server.status}" for server in servers)
    return f"MCP server {'; '.join(listed)}"


def _unlisted_error(names: Iterable[str], known: Mapping[str, McpServerStatus]) -> ControlError:
    return ControlError(
        f"the CLI does not have the MCP server {', '.join(map(repr, names))}: a policy or `safe_mode` excludes it; "
        f"{_describe_servers(known)}",
        subtype="mcp_status",
    )


def _wait_timeout(waiting: Iterable[str], known: Mapping[str, McpServerStatus], seconds: float) -> ControlTimeout:
    text = f"not connected within {seconds:g} s: {', '.join(map(repr, waiting))}; {_describe_servers(known)}"
    return ControlTimeout(text, subtype="mcp_status")


def _describe_servers(known: Mapping[str, McpServerStatus]) -> str:
    return f"MCP servers of the session: {', '.join(sorted(known)) or 'none'}"
