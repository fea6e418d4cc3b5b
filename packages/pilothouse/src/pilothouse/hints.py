"""Hints for common mistakes: names of other libraries, and misspelt arguments. Pure data and text.

Loaded only to make an error.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from opcode import opmap
from pathlib import Path
from types import FrameType
from typing import Any

from pilothouse.lazy_exports import parse_exports
from pilothouse.similar_names import find_similar_name

ROOT_NAMES: dict[str, str] = {
    # claude_agent_sdk, and its first name
    "AgentOptions": "pilothouse.Options",
    "ClaudeAgentOptions": "pilothouse.Options",
    "ClaudeCodeOptions": "pilothouse.Options",
    "ClaudeSDKClient": "pilothouse.session(), in `async with`",
    "ClaudeSDKError": "pilothouse.PilothouseError",
    "CLIConnectionError": "pilothouse.ProcessError",
    "CLIJSONDecodeError": "pilothouse.LineDecodeError",
    "HookContext": "the event that a hook is called with",
    "McpSdkServerConfig": "pilothouse.sdk_server()",
    "PermissionResultAllow": "pilothouse.Allow",
    "PermissionResultDeny": "pilothouse.Deny",
    "SdkMcpTool": "pilothouse.Tool",
    "ToolPermissionContext": "pilothouse.PermissionRequest",
    "create_sdk_mcp_server": "pilothouse.sdk_server()",
    # common guesses
    "Client": "pilothouse.Agent",
    "Conversation": "pilothouse.session()",
    "ask": "pilothouse.query()",
    "run": "pilothouse.query(); `pilothouse.sync` blocks",
    "run_sync": "pilothouse.sync.query(…).result()",
    "query_sync": "pilothouse.sync.query(…).result()",
    "trust": "pilothouse.configure(file=…), which reads a configuration file that you name",
    "stream": "pilothouse.query(…).text_stream()",
    "ToolUse": "pilothouse_testing.ToolUse, or pilothouse.ToolUseBlock in messages",
}
"""Names of other libraries and guesses, and what to use here."""

PUBLIC_MODULES = (
    "pilothouse.client",
    "pilothouse.events",
    "pilothouse.messages",
    "pilothouse.options",
    "pilothouse.hooks",
    "pilothouse.permissions",
    "pilothouse.tools",
    "pilothouse.errors",
    "pilothouse.transports",
    "pilothouse.protocol",
    "pilothouse.instrumentation",
    "pilothouse.provision",
    "pilothouse_access",
    "pilothouse_remote",
    "pilothouse_transcripts",
    "pilothouse_transcripts.stores",
    "pilothouse_fleet",
    "pilothouse_models",
    "pilothouse_models.local",
    "pilothouse_native",
    "pilothouse_host",
    "pilothouse_otel",
    "pilothouse_policy",
    "pilothouse_pool",
    "pilothouse_testing",
)
"""Where the public names are that the root does not have; packages of their own count only where they are installed."""

MOVED: dict[str, tuple[str, str]] = {
    "Fleet": ("pilothouse_fleet", "fleet"),
    "LanguageModel": ("pilothouse_models", "models"),
    "LocalModel": ("pilothouse_models.local", "local"),
    "NativeTransport": ("pilothouse_native", "native"),
    "OpenTelemetry": ("pilothouse_otel", "otel"),
    "Pool": ("pilothouse_pool", "pool"),
    "ReplayTransport": ("pilothouse_testing", "testing"),
    "ScriptedModel": ("pilothouse_testing", "testing"),
    "SessionStore": ("pilothouse_transcripts.stores", "transcripts"),
    "WebSocketTransport": ("pilothouse_remote", "remote"),
    "effective_policy": ("pilothouse_policy", "policy"),
    "get_session_messages": ("pilothouse_transcripts", "transcripts"),
    "in_container": ("pilothouse_remote", "remote"),
    "in_pod": ("pilothouse_remote", "remote"),
    "list_sessions": ("pilothouse_transcripts", "transcripts"),
    "match_denied_models": ("pilothouse_policy", "policy"),
    "ntfy": ("pilothouse_doors.notify", "doors"),
    "on_host": ("pilothouse_remote", "remote"),
    "over_ssh": ("pilothouse_remote", "remote"),
    "webhook": ("pilothouse_doors.notify", "doors"),
}
"""Names that people look for here: the package that has each, and the extra that installs it."""

MOVED_MODULES: dict[str, tuple[str, str]] = {
    "access": ("pilothouse_access", "access"),
    "compat": ("pilothouse_compat", "compat"),
    "fleet": ("pilothouse_fleet", "fleet"),
    "language_model": ("pilothouse_models", "models"),
    "local": ("pilothouse_models.local", "local"),
    "native": ("pilothouse_native", "native"),
    "remote": ("pilothouse_remote", "remote"),
    "server": ("pilothouse_host", "host"),
    "stores": ("pilothouse_transcripts.stores", "transcripts"),
    "testing": ("pilothouse_testing", "testing"),
    "transcripts": ("pilothouse_transcripts", "transcripts"),
}
"""Modules of version 0.1 that are packages of their own: the same."""

MOVED_METHODS: dict[tuple[str, str], tuple[str, str]] = {
    ("Agent", "effective_policy"): ("pilothouse_policy.effective_policy(agent)", "policy"),
    ("Options", "effective_policy"): ("pilothouse_policy.effective_policy(options)", "policy"),
}
"""Methods of version 0.1 that are functions of other packages: the call, and the extra that installs it."""

RESULT_NAMES = frozenset(
    {
        "text",
        "full_text",
        "output",
        "structured",
        "is_success",
        "error",
        "outcome",
        "cost_usd",
        "session_cost_usd",
        "turns",
        "duration_ms",
        "messages",
        "assistant_messages",
        "tool_uses",
        "usage",
        "model_usage",
        "cache_read_tokens",
        "cache_creation_tokens",
        "thinking",
        "permission_denials",
        "raise_for_error",
        "callback_errors",
        "output_attempts",
    }
)
"""Attributes of a `QueryResult` that a `Query` does not have."""

QUERY_WORDS = frozenset(
    {"ask", "call", "chat", "complete", "execute", "generate", "invoke", "prompt", "run", "run_sync", "send", "stream"}
)
"""Names of other libraries for the method that sends a prompt."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    "Agent": {
        **dict.fromkeys(QUERY_WORDS, "query(…)"),
        **dict.fromkeys(("aclose", "close"), "not needed; what `prewarm` started ends with its Pool"),
    },
    "Session": {
        **dict.fromkeys(QUERY_WORDS, "query(…)"),
        "connect": "start(), or `async with`",
        "disconnect": "close(), or `async with`",
        "receive_messages": "messages()",
        "receive_response": "a loop over query(…)",
        "session_id": "id",
    },
    "Query": {
        **dict.fromkeys(("stream", "stream_text"), "text_stream(), events(), or a loop over the query"),
        **dict.fromkeys(("receive_messages", "receive_response", "stream_events"), "a loop over the query"),
        "cancel": "interrupt()",
        "close": "aclose()",
    },
    "QueryResult": {"result_text": "text", "content": "text", "total_cost_usd": "cost_usd", "num_turns": "turns"},
    "Fleet": {**dict.fromkeys(QUERY_WORDS, "map(…) or submit(…)"), "results": "map(…), in a loop"},
}
"""Attributes of other libraries, and what to use here, by class."""

ARGUMENTS: dict[str, str] = {
    "max_concurrency": "concurrency",
    "max_workers": "concurrency",
    "workers": "concurrency",
    "parallel": "concurrency",
    "budget": "budget_usd",
    "max_budget_usd": "budget_usd",
    "retries": "retry",
    "max_retries": "retry",
}
"""Arguments of other libraries, and what they may be called here."""


_DEFINITION = re.compile(r"^(?:class|def) ([A-Za-z]\w*)|^([A-Z]\w*): TypeAlias\b", re.MULTILINE)


def list_names(module: str) -> list[str]:
    """List the public names of a module from its source: what a package exports, what a single file defines.

    The module is not imported. The list is empty without a source file, as in a frozen program.
    """
    try:
        spec = find_spec(module)
        source = Path((spec and spec.origin) or "").read_text("utf-8")
    except (ImportError, OSError):  # no such package; no such file
        return []
    exported = parse_exports(source.splitlines())
    names = [name for name in exported if name != "make_lazy_exports"]
    return [*names, *(match[1] or match[2] for match in _DEFINITION.finditer(source))]


@cache
def find_homes(module: str) -> dict[str, str]:
    """Find the module of each public name; packages beside the core have blocking twins in a module `sync`."""
    names = {name: home for home in PUBLIC_MODULES for name in list_names(home)}
    if module == "pilothouse.sync":
        products = dict.fromkeys(home.partition(".")[0] for home in PUBLIC_MODULES if home.startswith("pilothouse_"))
        names |= {name: f"{product}.sync" for product in products for name in list_names(f"{product}.sync")}
    return names


def make_name_error(module: str, name: str, known: Iterable[str], caller: FrameType) -> AttributeError | ImportError:
    """Make the error for a name that a module of pilothouse does not have; `caller` is the frame that used it."""
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("__"):
        return AttributeError(text)
    homes = find_homes(module)
    place = ROOT_NAMES.get(name) or (f"`from {homes[name]} import {name}`" if name in homes else "")
    if not place and name in MOVED:
        home, extra = MOVED[name]
        place = f"`from {home} import {name}`, with: pip install 'pilothouse[{extra}]'"
    elif not place and name in MOVED_MODULES:
        home, extra = MOVED_MODULES[name]
        place = f"`{home}`, with: pip install 'pilothouse[{extra}]'"
    if place:
        text = f"{text}: here it is {place}"
        # `from … import` replaces the text of an AttributeError.
        is_import = caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
        return ImportError(text, name=module) if is_import else AttributeError(text)
    names = list(known)
    near = find_similar_name(name, [*names, *homes], 0.75)
    if near is None:
        is_package = not name.startswith("_") and find_spec(f"{module}.{name}") is not None
        return AttributeError(f"{text}: write `import {module}.{name}` first" if is_package else text)
    home = "" if near in names else f" of {homes[near]}"
    return AttributeError(f"{text}; did you mean {near!r}{home}?")


def make_attribute_error(owner: object, name: str) -> AttributeError:
    """Make the error for an attribute that an object of pilothouse does not have."""
    cls = type(owner)
    text = f"{cls.__name__!r} object has no attribute {name!r}"
    if cls.__name__ == "Query" and name in RESULT_NAMES:
        if cls.__module__.startswith("pilothouse.sync"):
            return AttributeError(f"{text}: it belongs to the result, query.result().{name}")
        return AttributeError(
            f"{text}: it belongs to the result, so await the query first, as in (await query).{name}; "
            f"without an event loop, use pilothouse.sync and query.result().{name}"
        )
    if (cls.__name__, name) in MOVED_METHODS:
        call, extra = MOVED_METHODS[cls.__name__, name]
        return AttributeError(f"{text}: here it is {call}, with: pip install 'pilothouse[{extra}]'")
    use = ATTRIBUTES.get(cls.__name__, {}).get(name)
    if use is not None:
        return AttributeError(f"{text}: here it is {use}")
    return AttributeError(text, name=name, obj=owner)  # Python suggests a similar name


def make_argument_error(error: TypeError, function: Callable[..., Any]) -> TypeError:
    """Make the error for arguments that do not fit, with the likely name."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if found is None:
        return error.with_traceback(None)
    name, names = found[1], list(inspect.signature(function).parameters)
    near = ARGUMENTS[name] if ARGUMENTS.get(name) in names else find_similar_name(name, names)
    text = str(error).partition(". Did you mean")[0]
    return TypeError(f"{text}; did you mean {near!r}?" if near else text)
