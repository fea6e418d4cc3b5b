"""`pilothouse serve`: a host on an address, until it is stopped.

Owns the output about it. The host itself is in `pilothouse.server`, which is an extra and imported here on use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pilothouse.cli.flags import ServeRequest
from pilothouse.cli.screen import Screen
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.transports.concurrency import run_blocking

if TYPE_CHECKING:
    from pilothouse.server import ClientLimits

FAILED = 1
SECONDS_PER_DAY = 86400.0


async def serve(request: ServeRequest, screen: Screen) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit code.

    Args:
        request: the request.
        screen: the output for the user.

    Raises:
        UsageError: the address or the journal is in use, the token is not valid, or the extra is not installed.
    """
    from pilothouse import server

    settings = server.HostSettings(
        journal=server.find_default_journal() if request.journal is None else Path(request.journal),
        roots=request.roots,
        cli=request.cli,
        max_sessions=request.max_sessions,
        idle_seconds=request.idle,
        drain_seconds=request.drain,
        keep_seconds=request.keep_days * SECONDS_PER_DAY,
        env=request.env or server.DEFAULT_ENV,
        clients=await run_blocking(_make_limits, request),
    )
    tokens = await run_blocking(_make_tokens, request.clients)
    token, made = await run_blocking(server.find_token, request.token_file, os.environ)
    server.raise_descriptor_limit()
    host = server.Host(settings)
    application = server.make_app(host, token=token, tokens=tokens, origins=request.origins, names=request.names)
    listening = server.listen(request.host, request.port, public=request.public)
    address = listening.getsockname()

    def tell() -> None:
        _print_address(screen, f"[{address[0]}]" if ":" in address[0] else address[0], address[1])
        if made:
            # Printed once, to this terminal alone, and never logged.
            print(f"  token (shown once): {token}", file=sys.stderr, flush=True)

    try:
        async with host:
            await server.serve(host, application, listening, tell)
    except UsageError:
        raise
    except PilothouseError as error:
        screen.note(f"pilothouse: {error}", "error")
        return FAILED
    finally:
        listening.close()
    screen.note("ended: every session is closed, and its messages are in the journal", "quiet")
    return 0


def _make_limits(request: ServeRequest) -> ClientLimits:
    from pilothouse import server

    managed: Any = None
    if request.managed_settings is not None:
        try:
            managed = json.loads(Path(request.managed_settings).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--managed-settings: {request.managed_settings} cannot be read: {error}") from None
        if not isinstance(managed, dict):
            raise UsageError(f"--managed-settings: expected a JSON object in {request.managed_settings}")
    return server.ClientLimits(
        permission_mode=request.max_permission_mode,
        programs=not request.no_client_programs,
        mcp_servers=not request.no_client_mcp,
        settings=not request.no_client_settings,
        managed_settings=cast("dict[str, Any] | None", managed),
        verbatim_prompts=request.verbatim_prompts,
        flags=request.allow_flags,
    )


def _make_tokens(clients: Sequence[str]) -> dict[str, str]:
    from pilothouse import server

    found: dict[str, str] = {}
    for client in clients:
        name, equals, file = client.partition("=")
        if not name or not equals or name in found:
            raise UsageError(f"--client: expected NAME=FILE, each name once, got {client!r}")
        found[name] = server.read_token(Path(file))
    return found


def _print_address(screen: Screen, address: str, port: int) -> None:
    screen.note(f"pilothouse host at http://{address}:{port}", "title")
    screen.note(f"  in a program: WebSocketTransport('ws://{address}:{port}', token=…)")
    screen.note(f"  over REST:    curl -H 'Authorization: Bearer …' http://{address}:{port}/v1/sessions")
