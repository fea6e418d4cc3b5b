"""Waiting until MCP servers are connected: before the first prompt (`wait_for_mcp`), and by hand (`session.mcp.wait`).

Owns when the wait is over, and in which words it fails. How a control request travels, the driver knows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import anyio
from msgspec.structs import replace

from pilothouse.client.replies import McpServerInfo, typed_list
from pilothouse.driver import Ask, Host
from pilothouse.errors import ControlError, ControlTimeout
from pilothouse.options import Options

log = logging.getLogger("pilothouse")

POLL_SECONDS = 0.1  # between two looks at servers that connect; the CLI does not tell
DEFAULT_SECONDS = 60.0  # more than the 30 that the CLI (2.1.330) gives a server, whose reason is better than ours
ABSENT_SECONDS = 2.0  # until a server that is not even listed is missed; 2.1.330 lists all right after the handshake
HOPELESS = frozenset({"failed", "needs-auth", "disabled"})

Status: TypeAlias = Callable[[], Awaitable[list[McpServerInfo]]]


async def connected(status: Status, names: Collection[str], seconds: float) -> list[McpServerInfo]:
    """Wait until these servers are connected; gives them in the order of the names.

    Raises:
        ControlError: one of them will not be by itself.
        ControlTimeout: one of them is not within `seconds`.
    """
    known: dict[str, McpServerInfo] = {}
    with anyio.move_on_after(seconds):
        while True:
            known = _by_name(await status())
            if not _waiting(names, known):
                return [known[name] for name in names]
            await anyio.sleep(POLL_SECONDS)
    raise _too_late(_waiting(names, known), known, seconds)


def with_wait(host: Host | None, options: Options) -> Host:
    """`host`, or one that offers nothing, which waits before the first prompt for as long as `options` say."""
    limit, servers = options.wait_for_mcp, options.mcp_servers
    given = tuple(servers) if isinstance(servers, dict) else None
    ready = partial(_all_settled, given, DEFAULT_SECONDS if limit is True else float(limit))
    return Host({}, _nothing, _nothing, ready=ready) if host is None else replace(host, ready=ready)


def _nothing(_: object) -> None:
    pass


async def _all_settled(given: tuple[str, ...] | None, seconds: float, ask: Ask) -> None:
    """Wait until the servers of `mcp_servers` are connected, and those from elsewhere are, or have failed."""
    known: dict[str, McpServerInfo] = {}
    required: Collection[str] = given or ()
    begun = anyio.current_time()
    with anyio.move_on_after(seconds):
        while True:
            known = _by_name(typed_list(McpServerInfo, (await ask("mcp_status", {})).get("mcpServers")))
            if given is None:  # in a file, which the CLI has read
                required = [name for name, server in known.items() if server.scope == "dynamic"]
            waiting = _waiting(required, known)
            if not _pending(known):
                if not waiting:
                    _warn_of_lost(known)
                    return
                if anyio.current_time() - begun >= ABSENT_SECONDS:
                    raise _absent(waiting, known)
            await anyio.sleep(POLL_SECONDS)
    if waiting := _waiting(required, known):
        raise _too_late(waiting, known, seconds)
    if not known:
        raise ControlTimeout(f"no answer to 'mcp_status' within {seconds:g} s", subtype="mcp_status")
    log.warning(
        "MCP servers from elsewhere are not connected within %g s: %s", seconds, ", ".join(sorted(_pending(known)))
    )


def _pending(known: Mapping[str, McpServerInfo]) -> list[str]:
    return [name for name, server in known.items() if server.status == "pending"]


def _warn_of_lost(known: Mapping[str, McpServerInfo]) -> None:
    # Those that want a login, or are switched off, are so on purpose.
    if failed := [server for server in known.values() if server.status == "failed"]:
        log.warning("%s", _lost(failed))


def _by_name(servers: Iterable[McpServerInfo]) -> dict[str, McpServerInfo]:
    return {server.name: server for server in servers}


def _waiting(names: Iterable[str], known: Mapping[str, McpServerInfo]) -> list[str]:
    """Those of `names` that may still connect.

    Raises:
        ControlError: some never will by themselves.
    """
    names = list(names)
    lost = [known[name] for name in names if name in known and known[name].status in HOPELESS]
    if lost:
        raise ControlError(_lost(lost), subtype="mcp_status", code=lost[0].status)
    return [name for name in names if name not in known or known[name].status != "connected"]


def _lost(servers: Iterable[McpServerInfo]) -> str:
    listed = (f"{server.name!r} is not connected: {server.error or server.status}" for server in servers)
    return f"MCP server {'; '.join(listed)}"


def _absent(names: Iterable[str], known: Mapping[str, McpServerInfo]) -> ControlError:
    return ControlError(
        f"the CLI does not have the MCP server {', '.join(map(repr, names))}: a policy or `safe_mode` keeps it out; "
        f"{_there(known)}",
        subtype="mcp_status",
    )


def _too_late(waiting: Iterable[str], known: Mapping[str, McpServerInfo], seconds: float) -> ControlTimeout:
    text = f"not connected within {seconds:g} s: {', '.join(map(repr, waiting))}; {_there(known)}"
    return ControlTimeout(text, subtype="mcp_status")


def _there(known: Mapping[str, McpServerInfo]) -> str:
    return f"MCP servers of the session: {', '.join(sorted(known)) or 'none'}"
