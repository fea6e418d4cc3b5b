"""Typed values of options that have fields: prompts, thinking, agents, plugins, MCP servers, the sandbox, retries.

Attributes are snake_case; the class options rename them to the CLI's camelCase. `struct_validation` reads and checks
these structs from their annotations.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct, field, structs

from pilothouse.messages.core import PermissionMode
from pilothouse.options.secrets import mask
from pilothouse.options.targets import (
    APPEND,
    EXCLUDE_DYNAMIC,
    PLUGIN_DIR,
    PLUGIN_DIR_NO_MCP,
    PREVIEW_FORMAT,
    PROMPT,
    PROMPT_BLOCKS,
    PROMPT_FILE,
    SNAPSHOT,
    THINKING,
    THINKING_DISPLAY,
    THINKING_TOKENS,
    Pieces,
)

Effort = Literal["low", "medium", "high", "xhigh", "max"]
ThinkingDisplay = Literal["summarized", "omitted", "highlights"]


class OptionStruct(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all that are for the CLI: keyword-only and frozen.

    `repr` shows only set fields, with possible keys masked.
    """

    is_option_struct: ClassVar[bool] = True

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name), field.default) for field in structs.fields(self))
        masked = mask({name: value for name, value, default in given if value != default})
        shown = (f"{name}={value!r}" for name, value in masked.items())
        return f"{type(self).__name__}({', '.join(shown)})"


class SystemPromptPreset(OptionStruct, frozen=True, kw_only=True, tag="preset"):
    """The system prompt of Claude Code, with changes.

    Args:
        append: text added to its end.
        exclude_dynamic_sections: move what differs between machines (directory, git state, memory) into the first
            user message, so that more requests hit the same cache.
        snapshot: whether the prompt is recorded on the first request and used again when the session is resumed.
        preset: name of the preset; there is only one.
    """

    append: str | None = None
    exclude_dynamic_sections: bool | None = None
    snapshot: bool | None = None
    preset: Literal["claude_code"] = "claude_code"

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        if self.append is not None:
            yield APPEND, self.append
        if self.exclude_dynamic_sections:
            yield EXCLUDE_DYNAMIC, True
        yield from _snapshot(self.snapshot)


class CustomSystemPrompt(OptionStruct, frozen=True, kw_only=True, tag="custom"):
    """A system prompt of your own.

    Args:
        prompt: the text, or its paragraphs as a list.
        snapshot: as for `SystemPromptPreset`.
    """

    prompt: str | list[str]
    snapshot: bool | None = None

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        yield (PROMPT if isinstance(self.prompt, str) else PROMPT_BLOCKS), self.prompt
        yield from _snapshot(self.snapshot)


class SystemPromptFile(OptionStruct, frozen=True, kw_only=True, tag="file"):
    """A system prompt of your own, read from a file by the CLI.

    Args:
        path: the file; relative to the directory of the child.
    """

    path: str

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        yield PROMPT_FILE, self.path


def _snapshot(snapshot: bool | None) -> Pieces:
    if snapshot is not None:
        yield SNAPSHOT, "on" if snapshot else "off"


class AdaptiveThinking(OptionStruct, frozen=True, kw_only=True, tag="adaptive"):
    """The model decides how much it thinks.

    Args:
        display: how much of the thinking is reported; by default the model decides.
    """

    display: ThinkingDisplay | None = None

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        yield THINKING, "adaptive"
        yield from _display(self.display)


class EnabledThinking(OptionStruct, frozen=True, kw_only=True, tag="enabled"):
    """Thinking with a budget, for models that have one.

    Args:
        budget_tokens: maximum tokens of thinking in one response; without it the CLI decides.
        display: as for `AdaptiveThinking`.
    """

    budget_tokens: int | None = None
    display: ThinkingDisplay | None = None

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        if self.budget_tokens is None:
            yield THINKING, "enabled"
        else:
            yield THINKING_TOKENS, self.budget_tokens
        yield from _display(self.display)


class DisabledThinking(OptionStruct, frozen=True, kw_only=True, tag="disabled"):
    """No thinking, on models that can do without."""

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        yield THINKING, "disabled"


def _display(display: str | None) -> Pieces:
    if display is not None:
        yield THINKING_DISPLAY, display


class Plugin(OptionStruct, frozen=True, kw_only=True, tag="local"):
    """A plugin in a directory, or in a `.zip` file.

    Args:
        path: the directory or file.
        skip_mcp_discovery: ignore the MCP servers of the plugin.
    """

    path: str
    skip_mcp_discovery: bool | None = None

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        yield (PLUGIN_DIR_NO_MCP if self.skip_mcp_discovery else PLUGIN_DIR), self.path


class QuestionConfig(OptionStruct, frozen=True, kw_only=True):
    """How the AskUserQuestion tool behaves.

    Args:
        preview_format: the format of its previews of the options.
    """

    preview_format: Literal["markdown", "html"] | None = None


class ToolConfig(OptionStruct, frozen=True, kw_only=True):
    """Settings of individual built-in tools.

    Args:
        ask_user_question: of the AskUserQuestion tool.
    """

    ask_user_question: QuestionConfig | None = None

    def pieces(self) -> Pieces:
        """Return the parts and their targets."""
        if self.ask_user_question is not None and self.ask_user_question.preview_format is not None:
            yield PREVIEW_FORMAT, self.ask_user_question.preview_format


class ToolPolicy(OptionStruct, frozen=True, kw_only=True):
    """What is asked before a tool of a server runs.

    Args:
        name: name of the tool.
        permission_policy: whether its calls run, ask first or are denied.
        org_max_permission: the most that the organisation allows.
    """

    # These two are in snake_case on the wire, too.
    name: str
    permission_policy: Literal["always_allow", "always_ask", "always_deny"] | None = field(
        default=None, name="permission_policy"
    )
    org_max_permission: Literal["allow", "ask", "blocked"] | None = field(default=None, name="org_max_permission")


class StdioServer(OptionStruct, frozen=True, kw_only=True, tag="stdio"):
    """An MCP server that the CLI starts.

    Args:
        command: the program.
        args: its arguments.
        env: its environment variables; never shown.
        timeout: maximum milliseconds of one call.
        always_load: offer its tools from the start, rather than when the model looks for them.
    """

    command: str
    args: list[str] | None = None
    env: dict[str, str] | None = None
    timeout: int | None = None
    always_load: bool | None = None


class HttpServer(OptionStruct, frozen=True, kw_only=True, tag="http"):
    """An MCP server at an address, over streamable HTTP.

    Args:
        url: its address.
        headers: sent with every request; never shown.
        tools: permission policies of its tools.
        timeout: maximum milliseconds of one call.
        always_load: as for `StdioServer`.
    """

    url: str
    headers: dict[str, str] | None = None
    tools: list[ToolPolicy] | None = None
    timeout: int | None = None
    always_load: bool | None = None


class SseServer(HttpServer, frozen=True, kw_only=True, tag="sse"):
    """An MCP server at an address, over server-sent events; the fields are those of `HttpServer`."""


class AgentDefinition(OptionStruct, frozen=True, kw_only=True):
    """A sub-agent that the model can give work to.

    Args:
        description: when to use the agent; the model reads this.
        prompt: its system prompt.
        tools: its tools; all by default.
        disallowed_tools: tools that it must not use.
        model: alias or full id; by default that of the session.
        effort: its effort, as a word or a number.
        max_turns: maximum turns of one task.
        permission_mode: what happens when one of its tools needs permission.
        mcp_servers: names of servers of the session, or servers of its own by name.
        skills: its skills.
        initial_prompt: sent first, before the work, if it is the main agent.
        memory: which memory it has.
        background: whether it always runs in the background.
        omit_claude_md: leave the CLAUDE.md files out of its prompt.
        auto_compact_window: tokens of context after which it compacts.
    """

    description: str
    prompt: str
    tools: list[str] | None = None
    disallowed_tools: list[str] | None = None
    model: str | None = None
    effort: Effort | int | None = None
    max_turns: int | None = None
    permission_mode: PermissionMode | None = None
    mcp_servers: list[str | dict[str, StdioServer | HttpServer | SseServer]] | None = None
    skills: list[str] | None = None
    initial_prompt: str | None = None
    memory: Literal["user", "project", "local"] | None = None
    background: bool | None = None
    omit_claude_md: bool | None = None
    auto_compact_window: int | None = None


class SandboxNetwork(OptionStruct, frozen=True, kw_only=True):
    """What sandboxed commands reach over the network.

    Args:
        allowed_domains: domains that they may reach.
        denied_domains: domains that they may not reach.
        strict_allowlist: refuse domains outside `allowed_domains` instead of asking.
        allow_managed_domains_only: ignore domains that are not in managed settings.
        allow_unix_sockets: paths of sockets that they may use.
        allow_all_unix_sockets: allow every socket.
        allow_local_binding: allow listening on local ports.
        allow_mach_lookup: macOS services that they may use.
        http_proxy_port: port of your own proxy.
        socks_proxy_port: port of your own SOCKS proxy.
    """

    allowed_domains: list[str] | None = None
    denied_domains: list[str] | None = None
    strict_allowlist: bool | None = None
    allow_managed_domains_only: bool | None = None
    allow_unix_sockets: list[str] | None = None
    allow_all_unix_sockets: bool | None = None
    allow_local_binding: bool | None = None
    allow_mach_lookup: list[str] | None = None
    http_proxy_port: int | None = None
    socks_proxy_port: int | None = None


class SandboxFilesystem(OptionStruct, frozen=True, kw_only=True):
    """What sandboxed commands see of the disk.

    Args:
        allow_write: paths that they may write.
        deny_write: paths that they may not write.
        allow_read: paths inside `deny_read` that they may read.
        deny_read: paths that they may not read.
        allow_managed_read_paths_only: ignore paths that are not in managed settings.
        disabled: disable this part of the sandbox.
    """

    allow_write: list[str] | None = None
    deny_write: list[str] | None = None
    allow_read: list[str] | None = None
    deny_read: list[str] | None = None
    allow_managed_read_paths_only: bool | None = None
    disabled: bool | None = None


class Sandbox(OptionStruct, frozen=True, kw_only=True):
    """The sandbox in which the commands of the Bash tool run.

    Args:
        enabled: whether there is a sandbox.
        fail_if_unavailable: refuse to start if the system has none.
        auto_allow_bash_if_sandboxed: run sandboxed commands without asking.
        allow_unsandboxed_commands: let the model ask to run a command outside.
        network: network access of the commands.
        filesystem: disk access of the commands.
        credentials: files and variables that are hidden from them; as in the settings of the CLI.
        excluded_commands: commands that run outside.
        ignore_violations: violations to ignore, by command.
        enable_weaker_nested_sandbox: use a weaker sandbox, for containers.
        enable_weaker_network_isolation: use a weaker sandbox, for programs that check certificates themselves.
        allow_nested_user_namespaces: let commands create their own namespaces.
        allow_apple_events: let commands control other applications on macOS.
        ripgrep: another `rg`: its `command` and `args`.
        bwrap_path: another bubblewrap.
        socat_path: another socat.
    """

    enabled: bool | None = None
    fail_if_unavailable: bool | None = None
    auto_allow_bash_if_sandboxed: bool | None = None
    allow_unsandboxed_commands: bool | None = None
    network: SandboxNetwork | None = None
    filesystem: SandboxFilesystem | None = None
    credentials: dict[str, Any] | None = None
    excluded_commands: list[str] | None = None
    ignore_violations: dict[str, list[str]] | None = None
    enable_weaker_nested_sandbox: bool | None = None
    enable_weaker_network_isolation: bool | None = None
    allow_nested_user_namespaces: bool | None = None
    allow_apple_events: bool | None = None
    ripgrep: dict[str, Any] | None = None
    bwrap_path: str | None = None
    socat_path: str | None = None


RetryReason = Literal["rate_limit", "overloaded", "server", "network"]
RETRY_REASONS: tuple[RetryReason, ...] = ("rate_limit", "overloaded", "server", "network")


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """When to retry a query that the API refused, after the CLI has given up.

    Args:
        attempts: maximum number of retries; the first try does not count.
        first_delay: seconds before the first retry.
        max_delay: maximum seconds of one delay. The query does not wait for a rate limit that lasts longer.
        multiplier: growth of the delay from one retry to the next.
        jitter: the random part of a delay, from 0 to 1, so that many queries do not come back at once.
        on: failures to retry: "rate_limit" (429), "overloaded" (529), "server" (other 5xx), "network" (the API is
            unreachable).
    """

    attempts: int = 3
    first_delay: float = 2.0
    max_delay: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.5
    on: tuple[RetryReason, ...] = RETRY_REASONS

    def delay(self, attempt: int, random_number: float) -> float:
        """Return the seconds before retry number `attempt`, counted from 1; `random_number` is between 0 and 1."""
        growth = self.multiplier ** min(attempt - 1, 64)  # larger exponents could overflow
        return min(self.first_delay * growth, self.max_delay) * (1 - self.jitter * random_number)
