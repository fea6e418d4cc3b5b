"""What the CLI answers to control requests, as structs. Pure.

Read loosely: a field that is missing or of another type than 2.1.330 sends is its default, and `raw` has everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field

R = TypeVar("R", bound="Reply")


class Reply(Struct, frozen=True, kw_only=True):
    """An answer. `raw` is all of it, as it came."""

    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], name="(raw)")


class CamelReply(Reply, frozen=True, kw_only=True, rename="camel"):
    """An answer whose keys are written in camel case on the wire."""


class McpServerInfo(CamelReply, frozen=True, kw_only=True):
    """An MCP server: `status` is "connected", "failed", "needs-auth", "pending" or "disabled"."""

    name: str = ""
    status: str = ""
    error: str | None = None
    scope: str | None = None
    server_info: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    tools: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class McpChange(CamelReply, frozen=True, kw_only=True):
    """What a change of the MCP servers did; `errors` by server."""

    added: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    errors: Mapping[str, str] = field(default_factory=dict[str, str])


class McpResult(CamelReply, frozen=True, kw_only=True):
    """What an MCP tool returned."""

    content: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    structured_content: Any = None


class McpResource(CamelReply, frozen=True, kw_only=True):
    """The contents of an MCP resource: `uri`, `mimeType`, and `text` or `blob` of each."""

    contents: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class TaskOutput(Reply, frozen=True, kw_only=True):
    """What a background task has written so far."""

    output: str = ""
    total_bytes: int = 0
    truncated: bool = False


class RewindResult(CamelReply, frozen=True, kw_only=True):
    """What setting files back changed, or would change."""

    can_rewind: bool = False
    error: str | None = None
    files_changed: list[str] = field(default_factory=list[str])
    insertions: int = 0
    deletions: int = 0
    skipped_links: int = 0


class InterruptReceipt(Reply, frozen=True, kw_only=True):
    """What an interrupt left: uuids of prompts that still wait inside the CLI, and of those it took out."""

    still_queued: list[str] = field(default_factory=list[str])
    cancelled: list[str] = field(default_factory=list[str])


class EffectiveSettings(Reply, frozen=True, kw_only=True):
    """The settings of the CLI: all together, by source, and what holds now (`model`, `effort` …)."""

    effective: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sources: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    applied: Mapping[str, Any] = field(default_factory=dict[str, Any])


class PermissionRules(CamelReply, frozen=True, kw_only=True):
    """The permission rules that hold: `behavior`, `source` and `rule` of each."""

    rules: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    workspace_directories: list[Any] = field(default_factory=list[Any])
    original_cwd: str = ""
    managed_only: bool = False


class HookListing(CamelReply, frozen=True, kw_only=True):
    """The hooks that are registered, and the events there are."""

    events: list[Any] = field(default_factory=list[Any])
    hooks: list[Any] = field(default_factory=list[Any])
    event_catalog: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class PluginReload(Reply, frozen=True, kw_only=True):
    """What is there after plugins were read again."""

    commands: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    agents: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    plugins: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    error_count: int = 0


class ModelInfo(CamelReply, frozen=True, kw_only=True):
    """A model that can be chosen; `value` is what `model=` takes."""

    value: str = ""
    resolved_model: str | None = None
    display_name: str = ""
    description: str = ""
    supports_effort: bool = False
    supported_effort_levels: list[str] = field(default_factory=list[str])
    supports_adaptive_thinking: bool = False


class CommandInfo(CamelReply, frozen=True, kw_only=True):
    """A slash command."""

    name: str = ""
    description: str = ""
    argument_hint: str = ""
    aliases: list[str] = field(default_factory=list[str])
    builtin: bool = False


class AgentInfo(CamelReply, frozen=True, kw_only=True):
    """A sub-agent."""

    name: str = ""
    description: str = ""
    model: str | None = None


class AccountInfo(CamelReply, frozen=True, kw_only=True):
    """Who pays: the login or the kind of key, never the key."""

    email: str | None = None
    organization: str | None = None
    subscription_type: str | None = None
    token_source: str | None = None
    api_key_source: str | None = None
    api_provider: str | None = None


class UsageReport(Reply, frozen=True, kw_only=True):
    """What the session has used, and the limits of the account where there are any."""

    session: Mapping[str, Any] = field(default_factory=dict[str, Any])
    subscription_type: str | None = None
    rate_limits_available: bool = False
    rate_limits: Mapping[str, Any] | None = None


class ContextUsage(CamelReply, frozen=True, kw_only=True):
    """How full the context window is: tokens, in all and by category."""

    model: str = ""
    total_tokens: int = 0
    max_tokens: int = 0
    raw_max_tokens: int = 0
    percentage: float = 0
    categories: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


class FileContents(CamelReply, frozen=True, kw_only=True):
    """A file as the CLI sees it."""

    contents: str = ""
    abs_path: str = ""
    truncated: bool = False
    encoding: str | None = None


def typed(kind: type[R], payload: object) -> R:
    """`payload` as `kind`; never fails."""
    body: Mapping[str, Any] = cast("Mapping[str, Any]", payload) if isinstance(payload, Mapping) else {}
    values: dict[str, Any] = {}
    for info in msgspec.structs.fields(kind):
        if info.encode_name in body:
            try:
                values[info.name] = msgspec.convert(body[info.encode_name], info.type, strict=False)
            except (msgspec.ValidationError, TypeError):
                continue
    return kind(raw=body, **values)


def typed_list(kind: type[R], payloads: object) -> list[R]:
    """Each of `payloads` as `kind`."""
    return [typed(kind, payload) for payload in cast("list[object]", payloads)] if isinstance(payloads, list) else []
