"""What an isolated child inherits from the environment, and what it has loaded. Pure.

Owns the list of variables, and the `IsolationReport`. The transport makes the home; the flags are in `renderer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from pilothouse.options.options import Options


INHERITED_VARIABLES: dict[str, str] = {
    "PATH": "where programs are",
    "LANG": "language",
    "LANGUAGE": "language",
    "LC_*": "language",
    "TZ": "time zone",
    "TMPDIR": "where temporary files go",
    "TEMP": "the same, on Windows",
    "TMP": "the same, on Windows",
    "SHELL": "the shell that runs commands",
    "USER": "name of the user",
    "LOGNAME": "name of the user",
    "HTTP_PROXY": "proxy",
    "HTTPS_PROXY": "proxy",
    "ALL_PROXY": "proxy",
    "NO_PROXY": "addresses without a proxy",
    "SSL_CERT_FILE": "certificates to trust",
    "SSL_CERT_DIR": "certificates to trust",
    "NODE_EXTRA_CA_CERTS": "certificates to trust",
    "REQUESTS_CA_BUNDLE": "certificates to trust, for what tools run",
    "CURL_CA_BUNDLE": "certificates to trust, for what tools run",
    "IS_SANDBOX": "that this is a sandbox, without which root has no 'bypassPermissions'",
    "COMSPEC": "Windows",
    "PATHEXT": "Windows",
    "SYSTEMDRIVE": "Windows",
    "SYSTEMROOT": "Windows",
    "WINDIR": "Windows",
}
"""The variables that an isolated child inherits, and their purpose; proxy variables in lower case too."""

_INHERITED_PATTERN = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in INHERITED_VARIABLES))
_ANY_CASE = frozenset(name for name, use in INHERITED_VARIABLES.items() if "proxy" in use or use == "Windows")

BUILT_IN_AGENTS = frozenset(
    {"claude", "claude-code-guide", "Explore", "general-purpose", "output-style-setup", "Plan", "statusline-setup"}
)
"""Agents that every CLI has."""


def inherit_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that an isolated child inherits."""
    return {k: v for k, v in environ.items() if _INHERITED_PATTERN.fullmatch(k) or k.upper() in _ANY_CASE}


class IsolationReport(Struct, frozen=True):
    """What a child loaded at the start of a turn, and which of it the options did not ask for.

    Args:
        tools: the tools of the model.
        mcp_servers: names of MCP servers.
        plugins: names of plugins that are not part of the CLI.
        agents: names of agents that are not part of the CLI.
        memory_paths: directories of memory, by kind.
        key_source: where the key came from, such as "ANTHROPIC_API_KEY".
        unexpected: what the options did not ask for, in words; empty if isolation held.
    """

    tools: tuple[str, ...]
    mcp_servers: tuple[str, ...]
    plugins: tuple[str, ...]
    agents: tuple[str, ...]
    memory_paths: Mapping[str, Any]
    key_source: str | None
    unexpected: tuple[str, ...]

    def __str__(self) -> str:
        rows = {
            "tools": ", ".join(self.tools),
            "mcp servers": ", ".join(self.mcp_servers),
            "plugins": ", ".join(self.plugins),
            "agents": ", ".join(self.agents),
            "memory": ", ".join(map(str, self.memory_paths.values())),
            "key from": self.key_source or "",
            "unexpected": "; ".join(self.unexpected),
        }
        return "\n".join(f"{title + ':':<13}{text or '-'}" for title, text in rows.items())


def isolation_report(messages: Iterable[Any], options: Options) -> IsolationReport | None:
    """Read from the messages of a result what the child had loaded; None if no turn began.

    The report holds only what the child reports: settings files and their hooks are not in it; `isolation="strict"`
    prevents those. The CLI's own agents and plugins are left out.

    Args:
        messages: those of a result, such as `result.messages`.
        options: the options of the query, such as `query.options`.
    """
    init = next((m for m in messages if getattr(m, "subtype", "") == "init"), None)
    if init is None:
        return None
    servers = tuple(server.name for server in init.mcp_servers)
    plugins = tuple(plugin.name for plugin in init.plugins if plugin.path != "builtin")
    agents = tuple(name for name in init.agents if name not in BUILT_IN_AGENTS)
    memory: Mapping[str, Any] = init.memory_paths or {}
    home = options.isolation is not None
    found = {
        "MCP server": _find_unexpected(servers, options.mcp_servers, "tools" if options.custom_tools else ""),
        "plugin": plugins if not options.plugins else (),
        "agent": _find_unexpected(agents, options.agents) if not options.plugins else (),
        "API key from": (str(init.api_key_source),) if home and init.api_key_source in _LOGINS else (),
    }
    unexpected = tuple(f"{kind} {name}" for kind, names in found.items() for name in names)
    return IsolationReport(tuple(init.tools), servers, plugins, agents, memory, init.api_key_source, unexpected)


def _find_unexpected(names: Iterable[str], given: Any, *more: str) -> tuple[str, ...]:
    if isinstance(given, str):  # a path; the file is not read here
        return ()
    expected = {*(given or ()), *more}
    return tuple(name for name in names if name not in expected)


_LOGINS = frozenset({"/login managed key", "apiKeyHelper", "oauth", "user", "project", "org"})
"""Sources of keys that options cannot have given to an isolated child."""
