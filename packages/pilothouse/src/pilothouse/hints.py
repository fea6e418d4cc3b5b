"""Hints for common mistakes: names of other libraries, misspelt names and arguments. Pure data and text.

`find_similar_name` is behind every "did you mean" of this package, also in the `TypeError`s of its structs.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import StructMeta

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
    "HookInput": "the event that a hook is called with",
    "McpHttpServerConfig": "pilothouse.HttpServer",
    "McpSSEServerConfig": "pilothouse.SseServer",
    "McpStdioServerConfig": "pilothouse.StdioServer",
    "PermissionResult": "pilothouse.Allow or pilothouse.Deny",
    "SdkMcpTool": "pilothouse.Tool",
    "ToolPermissionContext": "pilothouse.PermissionRequest",
    "create_sdk_mcp_server": "pilothouse.sdk_server()",
    # common guesses
    **dict.fromkeys(("AsyncAgent", "Claude", "Client", "Pilothouse"), "pilothouse.Agent"),
    **dict.fromkeys(("MCPServer", "McpServer"), "pilothouse.StdioServer, HttpServer or SseServer"),
    **dict.fromkeys(("Response", "Result"), "pilothouse.QueryResult, which `await pilothouse.query(…)` returns"),
    **dict.fromkeys(("SubAgent", "Subagent"), "pilothouse.AgentDefinition"),
    **dict.fromkeys(("mcp_server", "tool_server"), "pilothouse.sdk_server()"),
    **dict.fromkeys(
        ("Batch", "Runner", "gather", "map"), "`from pilothouse_fleet import Fleet`, and its methods map and gather"
    ),
    **dict.fromkeys(("FakeModel", "MockModel"), "`from pilothouse_testing import ScriptedModel`"),
    "ChatPilothouse": "`from pilothouse_models.langchain import ChatPilothouse`, with: pip install "
    "'pilothouse[langchain]'",
    "PilothouseModel": "`from pilothouse_models.pydantic_ai import PilothouseModel`, with: pip install "
    "'pilothouse[pydantic-ai]'",
    "DockerTransport": "`from pilothouse_remote import in_container`",
    "Host": "`pilothouse serve`, or `from pilothouse_host import serve`",
    "MockTransport": "`from pilothouse_testing import FakeCLI`",
    "Retry": "`from pilothouse.options import RetryPolicy`, for the option retry",
    "SSHTransport": "`from pilothouse_remote import over_ssh`",
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

CORE_MODULES = (
    "pilothouse.client",
    "pilothouse.events",
    "pilothouse.messages",
    "pilothouse.options",
    "pilothouse.protocol",
    "pilothouse.hooks",
    "pilothouse.permissions",
    "pilothouse.tools",
    "pilothouse.errors",
    "pilothouse.transports",
    "pilothouse.instrumentation",
    "pilothouse.plugins",
    "pilothouse.provision",
)
"""Where the public names of this package are that the root does not have."""

EXTRAS = {
    "pilothouse_access": "access",
    "pilothouse_remote": "remote",
    "pilothouse_transcripts": "transcripts",
    "pilothouse_transcripts.stores": "transcripts",
    "pilothouse_fleet": "fleet",
    "pilothouse_models": "models",
    "pilothouse_models.local": "local",
    "pilothouse_native": "native",
    "pilothouse_host": "host",
    "pilothouse_otel": "otel",
    "pilothouse_cli.notebook": "cli",
    "pilothouse_policy": "policy",
    "pilothouse_usage": "usage",
    "pilothouse_lab": "lab",
    "pilothouse_pool": "pool",
    "pilothouse_testing": "testing",
    "pilothouse_doors": "doors",
    "pilothouse_compat": "compat",
}
"""The other packages: the modules that have their public names, and the extra that installs each."""

MOVED = {
    "Artifacts": "pilothouse_fleet",
    "CacheDoctor": "pilothouse_usage",
    "Case": "pilothouse_lab",
    "Cassette": "pilothouse_testing",
    "CopiedDirectory": "pilothouse_fleet",
    "FakeCLI": "pilothouse_testing",
    "Fleet": "pilothouse_fleet",
    "GitWorktree": "pilothouse_fleet",
    "HostClient": "pilothouse_remote",
    "HostSettings": "pilothouse_host",
    "LanguageModel": "pilothouse_models",
    "LocalModel": "pilothouse_models.local",
    "NativeTransport": "pilothouse_native",
    "OpenTelemetry": "pilothouse_otel",
    "Player": "pilothouse_testing",
    "Policy": "pilothouse_policy",
    "Pool": "pilothouse_pool",
    "Rate": "pilothouse_fleet",
    "Recorder": "pilothouse_testing",
    "ReplayTransport": "pilothouse_testing",
    "Run": "pilothouse_fleet",
    "ScriptedModel": "pilothouse_testing",
    "SessionInfo": "pilothouse_transcripts",
    "SqliteJournal": "pilothouse_fleet",
    "StoredSessions": "pilothouse_transcripts.stores",
    "SessionStore": "pilothouse_transcripts.stores",
    "TaskBudget": "pilothouse_usage",
    "WebSocketTransport": "pilothouse_remote",
    "breakdown": "pilothouse_usage",
    "compare": "pilothouse_lab",
    "delete_session": "pilothouse_transcripts",
    "effective_policy": "pilothouse_policy",
    "export_session": "pilothouse_transcripts",
    "fork_session": "pilothouse_transcripts",
    "get_session_messages": "pilothouse_transcripts",
    "in_container": "pilothouse_remote",
    "in_pod": "pilothouse_remote",
    "judge": "pilothouse_lab",
    "list_sessions": "pilothouse_transcripts",
    "match_denied_models": "pilothouse_policy",
    "ntfy": "pilothouse_doors.notify",
    "on_host": "pilothouse_remote",
    "over_ssh": "pilothouse_remote",
    "rename_session": "pilothouse_transcripts",
    "search_sessions": "pilothouse_transcripts",
    "serve": "pilothouse_host",
    "suggest_policy": "pilothouse_policy",
    "usage_report": "pilothouse_transcripts",
    "webhook": "pilothouse_doors.notify",
}
"""Names that people look for here, and the module that has each."""

SYNC_MOVED = {
    "Artifacts": "pilothouse_fleet",
    "Cassette": "pilothouse_testing",
    "CopiedDirectory": "pilothouse_fleet",
    "FakeCLI": "pilothouse_testing",
    "Fleet": "pilothouse_fleet.sync",
    "LanguageModel": "pilothouse_models.sync",
    "StoredSessions": "pilothouse_transcripts.sync",
    "import_session_to_store": "pilothouse_transcripts.sync",
}
"""The same for `pilothouse.sync`, where they differ."""

MOVED_MODULES = {
    "access": "pilothouse_access",
    "compat": "pilothouse_compat",
    "fleet": "pilothouse_fleet",
    "host": "pilothouse_host",
    "lab": "pilothouse_lab",
    "language_model": "pilothouse_models",
    "local": "pilothouse_models.local",
    "native": "pilothouse_native",
    "remote": "pilothouse_remote",
    "server": "pilothouse_host",
    "stores": "pilothouse_transcripts.stores",
    "testing": "pilothouse_testing",
    "transcripts": "pilothouse_transcripts",
}
"""Modules of version 0.1 that are packages of their own."""

MOVED_METHODS = {
    ("Agent", "effective_policy"): "pilothouse_policy.effective_policy(agent)",
    ("Options", "effective_policy"): "pilothouse_policy.effective_policy(options)",
}
"""Methods of version 0.1 that are functions of other packages: the call."""

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
    "QueryResult": {
        "result_text": "text",
        "content": "text",
        "cost": "cost_usd",
        "total_cost_usd": "cost_usd",
        "num_turns": "turns",
    },
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


def make_name_error(module: str, name: str, known: Collection[str]) -> AttributeError | ImportError:
    """Make the error for a name that a module of pilothouse does not have. Called by its `__getattr__`."""
    text = f"module {module!r} has no attribute {name!r}"
    # `from … import` first asks here whether the name has to be imported; later it would replace the text of an
    # AttributeError.
    is_import = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if name.startswith("_") or (is_import and find_spec(f"{module}.{name}") is not None):
        return AttributeError(text)
    place = _find_place(module, name)
    if place:
        text = f"{text}: here it is {place}"
        return ImportError(text, name=module) if is_import else AttributeError(text)
    homes = {
        each: home
        for home in CORE_MODULES
        for each in dir(import_module(home))  # also what is loaded on first use
        if not (each.startswith("_") or inspect.ismodule(vars(sys.modules[home]).get(each)))
    }
    near = find_similar_name(name, [*known, *homes], 0.75)
    if near is None:
        is_package = find_spec(f"{module}.{name}") is not None
        return AttributeError(f"{text}: write `import {module}.{name}` first" if is_package else text)
    home = "" if near in known else f" of {homes[near]}"
    return AttributeError(f"{text}; did you mean {near!r}{home}?")


def _find_place(module: str, name: str) -> str:
    if name in ROOT_NAMES:
        return ROOT_NAMES[name]
    moved = MOVED | SYNC_MOVED if module == "pilothouse.sync" else MOVED
    if name in moved:
        return f"`from {moved[name]} import {name}`, {_explain_install(moved[name])}"
    if name in MOVED_MODULES:
        return f"`{MOVED_MODULES[name]}`, {_explain_install(MOVED_MODULES[name])}"
    for home in CORE_MODULES:
        value = getattr(import_module(home), name, None)
        if str(getattr(value, "__module__", home if value is not None else "")).startswith("pilothouse"):
            return f"`from {home} import {name}`"
    return ""


def _explain_install(path: str) -> str:
    """Say how to install a module, or what it has: the longest module of `EXTRAS` that `path` begins with decides."""
    home = max((each for each in EXTRAS if path.startswith(each)), key=len)
    return f"with: pip install 'pilothouse[{EXTRAS[home]}]'"


def make_attribute_error(owner: object, name: str) -> AttributeError:
    """Make the error for an attribute that an object of pilothouse does not have."""
    cls = type(owner)
    text = f"{cls.__name__!r} object has no attribute {name!r}"
    if cls.__name__ == "Query" and _is_of_result(name):
        if cls.__module__.startswith("pilothouse.sync"):
            return AttributeError(f"{text}: it belongs to the result, query.result().{name}")
        return AttributeError(
            f"{text}: it belongs to the result, so await the query first, as in (await query).{name}; "
            f"without an event loop, use pilothouse.sync and query.result().{name}"
        )
    if (cls.__name__, name) in MOVED_METHODS:
        call = MOVED_METHODS[cls.__name__, name]
        return AttributeError(f"{text}: here it is {call}, {_explain_install(call)}")
    use = ATTRIBUTES.get(cls.__name__, {}).get(name)
    if use is not None:
        return AttributeError(f"{text}: here it is {use}")
    return AttributeError(text, name=name, obj=owner)  # Python suggests a similar name


def _is_of_result(name: str) -> bool:
    """Whether a `QueryResult` has this public attribute."""
    return not name.startswith("_") and hasattr(import_module("pilothouse.client").QueryResult([]), name)


def explain_arguments(error: TypeError, function: Callable[..., Any]) -> None:
    """Add the likely name to an error about arguments that do not fit."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if found is None:
        return
    name, names = found[1], list(inspect.signature(function).parameters)
    near = ARGUMENTS[name] if ARGUMENTS.get(name) in names else find_similar_name(name, names)
    if near:
        error.args = (f"{str(error).partition('. Did you mean')[0]}; did you mean {near!r}?",)


DEFAULT_SIMILARITY = 0.6


def find_similar_name(name: str, known: Collection[str], similarity: float = DEFAULT_SIMILARITY) -> str | None:
    """Return the known name that needs the fewest edits to become `name`; None if none is similar.

    Args:
        name: what was given.
        known: the names that exist.
        similarity: how similar a known name must be, from 0 to 1, as `difflib` measures it. Default 0.6.
    """
    similar = difflib.get_close_matches(name, known, n=max(len(known), 1), cutoff=similarity)
    return min(similar, key=lambda each: count_edits(name, each), default=None)  # of equals, the more similar one


def count_edits(first: str, second: str) -> int:
    """Count the characters to insert, delete or replace, and the neighbours to swap, between two names."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, start=1):
        before, above, row = row, before, [i]
        for j, right in enumerate(second, start=1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == second[j - 2] and first[i - 2] == right:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
    return row[-1]


def suggest_name(value: Any, names: Iterable[str]) -> str:
    """Return the end of an error, which suggests one of the names; empty if none is similar."""
    if not isinstance(value, str):
        return ""
    plain = {name.lower().replace("_", "").replace("-", ""): name for name in names}
    given = value.lower().replace("_", "").replace("-", "").replace(" ", "")
    near = find_similar_name(given, plain, 0.75)
    return f"; did you mean {plain[near]!r}?" if near is not None else ""


class ExplainedStructMeta(StructMeta):
    """Names the class, and a similar field or all of them, in the error for arguments that do not fit."""

    if not TYPE_CHECKING:  # type checkers would take every argument, and the result for Any

        def __call__(cls, *args: Any, **values: Any) -> Any:  # noqa: D102, N805
            try:
                return super().__call__(*args, **values)
            except TypeError as error:
                names = cls.__struct_fields__
                unknown = next((name for name in values if name not in names), "")
                keywords = "" if cls.__match_args__ else ", all keywords,"
                advice = suggest_name(unknown, names) or f"; its fields{keywords} are {', '.join(names)}"
                text = f"{cls.__name__}: {str(error)[:1].lower()}{str(error)[1:]}{advice}"
                args, values = (), {}  # a crash report shows the variables of this frame, which may hold keys
                raise TypeError(text) from None
