"""`pilothouse serve`: a host on an address, until it is stopped.

Owns the output about it. The host itself is in `pilothouse_host`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pilothouse_host as server
from pilothouse.client import Agent, default_agent
from pilothouse.errors import UsageError
from pilothouse.support import run_blocking
from pilothouse_access.owners import Owner
from pilothouse_access.permission_modes import MODES_BY_PERMISSIVENESS
from pilothouse_cli.flags import ServeRequest
from pilothouse_cli.screen import Screen
from pilothouse_host import ClientLimits, Host
from pilothouse_pool import Pool

SECONDS_PER_DAY = 86400.0


async def serve(request: ServeRequest, screen: Screen, *, on_ready: Callable[[str, str], object] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit code.

    Once requests are served, `on_ready` is called with the address and the token; without it both are printed.
    """
    settings = server.HostSettings(
        journal=server.find_default_journal() if request.journal is None else Path(request.journal),
        roots=request.roots,
        cli=request.cli,
        max_sessions=request.max_sessions,
        idle_seconds=request.idle,
        ask_seconds=request.ask_timeout,
        drain_seconds=request.drain,
        keep_seconds=request.keep_days * SECONDS_PER_DAY,
        env=request.env,
        clients=await run_blocking(_make_limits, request),
        fleets=request.fleets,
    )
    tokens = await run_blocking(_make_tokens, request.clients)
    token, made = await run_blocking(server.find_token, request.token_file, os.environ)
    server.raise_descriptor_limit()
    host = Host(settings)
    pool = Pool(booted=True, max_live=request.max_requests + 1)
    access: dict[str, Any] = {"tokens": tokens, "origins": request.origins, "names": request.names}
    application = server.make_app(host, token=token, **access, routes=_make_endpoints(request, host, pool))
    listening = server.listen(request.host, request.port, public=request.public)
    address = listening.getsockname()

    url = f"http://[{address[0]}]:{address[1]}" if ":" in address[0] else f"http://{address[0]}:{address[1]}"

    def tell() -> None:
        if on_ready is not None:
            on_ready(url, token)
            return
        if request.openai or request.anthropic:
            screen.note("  endpoints: use the token as API key; your Anthropic login or key pays for all answers")
        _print_address(screen, url)
        if made:
            # Printed once, to this terminal alone, and never logged.
            print(f"  token (shown once): {token}", file=sys.stderr, flush=True)

    try:
        async with pool, host:
            await server.serve(host, application, listening, tell)
    finally:
        listening.close()
    screen.note("stopped: all sessions are closed, and their messages are in the journal", "quiet")
    return 0


def _make_endpoints(request: ServeRequest, host: Host, pool: Pool) -> list[Any]:
    """Make the routes of the endpoints that are wanted; the guard of the host checks their tokens."""
    if not (request.openai or request.anthropic):
        if request.maps:
            raise UsageError("--map: it needs --openai or --anthropic")
        return []
    from pilothouse_models import endpoints  # here, so that other hosts start fast

    names = default_agent().options.agents or {}
    directory, rules = host.policy.roots[0], host.policy.for_owner(Owner("endpoints")).start_rules
    limits: dict[str, Any] = {
        "permission_mode": rules.default_mode,
        "managed_settings": rules.managed_settings,
        "setting_sources": rules.setting_sources,
    }
    models = endpoints.EndpointModels(
        agents={name: Agent(agent=name, cwd=directory, cli=request.cli, **limits) for name in names},
        aliases=dict(_split_map(each) for each in request.maps),
        max_requests=request.max_requests,
        cli=request.cli,
        transport=pool,
    )
    routes: list[Any] = []
    if request.openai:
        routes += endpoints.openai_routes(models, token=None)
    if request.anthropic:
        routes += endpoints.anthropic_routes(models, token=None)
    return routes


def _split_map(given: str) -> tuple[str, str]:
    name, equals, model = given.partition("=")
    if not name or not equals or not model:
        raise UsageError(f"--map: expected NAME=MODEL, got {given!r}")
    return name, model


def _make_limits(request: ServeRequest) -> ClientLimits:
    if request.max_permission_mode not in MODES_BY_PERMISSIVENESS:
        raise UsageError(
            f"--max-permission-mode: expected one of {', '.join(MODES_BY_PERMISSIVENESS)}, "
            f"got {request.max_permission_mode!r}"
        )
    managed: Any = None
    if request.managed_settings is not None:
        try:
            managed = json.loads(Path(request.managed_settings).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--managed-settings: {request.managed_settings} cannot be read: {error}") from None
        if not isinstance(managed, dict):
            raise UsageError(f"--managed-settings: expected a JSON object in {request.managed_settings}")
    if request.verbatim_prompts and request.client_commands:
        raise UsageError("give --verbatim-prompts or --client-commands, not both")
    sources = request.setting_sources
    return ClientLimits(
        permission_mode=request.max_permission_mode,
        programs=not request.no_client_programs,
        mcp_servers=not request.no_client_mcp,
        settings=not request.no_client_settings,
        managed_settings=cast("dict[str, Any] | None", managed),
        verbatim_prompts=True if request.verbatim_prompts else False if request.client_commands else None,
        setting_sources=None if sources is None else tuple(filter(None, sources.split(","))),
        flags=request.allow_flags,
    )


def _make_tokens(clients: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for client in clients:
        name, equals, file = client.partition("=")
        if not name or not equals or name in found:
            raise UsageError(f"--client: expected NAME=FILE, each name once, got {client!r}")
        found[name] = server.read_token(Path(file))
    return found


def _print_address(screen: Screen, url: str) -> None:
    screen.note(f"pilothouse host at {url}", "title")
    screen.note(f"  in a browser: {url}/#token=…")
    screen.note(f"  in a program: WebSocketTransport('{url.replace('http', 'ws', 1)}', token=…)")
    screen.note(f"  over REST:    curl -H 'Authorization: Bearer …' {url}/v1/sessions")
