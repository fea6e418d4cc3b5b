"""Finds what a client's settings, MCP servers and agents would let a session do. Pure: decides nothing.

Owns which keys of the CLI's settings run programs, name servers or change the permission mode, and which variables
direct the CLI to another API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct, field

# Variables with an address, a proxy, or a certificate that makes one trusted.
_REDIRECTING = re.compile(r"URL|URI|HOST|PROXY|SOCKET|ENDPOINT|RESOURCE|DOMAIN|CERT|_CA(_|$)|_BASE$|GATEWAY")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_HELPERS = frozenset(
    {"apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh", "otelHeadersHelper", "policyHelper"}
)
_PROGRAMS = frozenset(
    {
        "enabledPlugins",
        "extraKnownMarketplaces",
        "fileSuggestion",
        "hooks",
        "processWrapper",
        "statusLine",
        "subagentStatusLine",
    }
)
_SERVERS = frozenset({"enableAllProjectMcpServers", "enabledMcpjsonServers", "mcpServers"})


class Powers(Struct):
    """The powers that were found.

    Args:
        variables: names of variables that the session gets.
        references: names of variables whose values are put into addresses, headers or arguments.
        brings_key: whether a program of the client's provides the key.
        programs: keys of settings that make the CLI run programs.
        servers: whether there are MCP servers that the CLI starts or calls.
        modes: requested permission modes.
    """

    variables: set[str] = field(default_factory=set[str])
    references: set[str] = field(default_factory=set[str])
    brings_key: bool = False
    programs: set[str] = field(default_factory=set[str])
    servers: bool = False
    modes: set[str] = field(default_factory=set[str])

    @property
    def redirects(self) -> bool:
        """Whether the CLI would use another API, or another source of its key."""
        return self.brings_key or any(map(is_redirecting, self.variables))

    def look_into_variables(self, variables: Any) -> None:
        """Add variables that have a value."""
        self.variables |= {name for name, value in _mapping(variables).items() if value not in (None, "")}

    def look_into_settings(self, settings: Any) -> None:
        """Add the powers of CLI settings, also of managed ones."""
        found = _mapping(settings)
        self.look_into_variables(found.get("env"))
        given = {name for name, value in found.items() if value not in (None, False, {}, [])}
        self.brings_key |= bool(given & _HELPERS)
        self.programs |= given & (_PROGRAMS | _HELPERS)
        self.servers |= bool(given & _SERVERS)
        self._add_mode(_mapping(found.get("permissions")).get("defaultMode"))
        self.references |= set(_references({name: item for name, item in found.items() if name in _PROGRAMS}))

    def look_into_servers(self, servers: Any) -> None:
        """Add the powers of a mapping of MCP servers by name. Those of type "sdk" run in the client."""
        for server in _mapping(servers).values():
            if _mapping(server).get("type") != "sdk":
                self.servers = True
                self.references |= set(_references(server))

    def look_into_agents(self, agents: Any) -> None:
        """Add the powers of a mapping of agents by name."""
        for agent in map(_mapping, _mapping(agents).values()):
            self._add_mode(agent.get("permissionMode"))
            if agent.get("hooks"):
                self.programs.add("hooks")
                self.references |= set(_references(agent["hooks"]))
            given: Any = agent.get("mcpServers")
            for servers in cast("list[Any]", given) if isinstance(given, list) else [given]:
                self.look_into_servers(servers)  # a plain name refers to a server that exists already

    def _add_mode(self, mode: Any) -> None:
        if mode is not None:
            self.modes.add(str(mode))


def is_redirecting(name: str) -> bool:
    """Return whether a variable may direct the CLI to another API, or make another one trusted."""
    return bool(_REDIRECTING.search(name.upper()))


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _references(value: Any) -> Iterator[str]:
    """Yield the variables that are named in text anywhere inside of a value."""
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[Any, Any]", value).items():
            if name == "allowedEnvVars" and isinstance(item, list):
                yield from map(str, cast("list[Any]", item))
            yield from _references(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _references(item)
