"""`pilothouse console`: a host with its pages for the browser, or the link to the one that runs already.

Owns the link, and the file that keeps it beside the journal, so that a second call finds the host of the first. The
host itself is that of `pilothouse serve`.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote

from pilothouse.cli import serve
from pilothouse.cli.flags import DEFAULT_PORT, ConsoleRequest
from pilothouse.cli.screen import Screen
from pilothouse.errors import UsageError
from pilothouse.transports.concurrency import run_blocking

JOIN_SECONDS = 5.0
"""Seconds to wait for the answer of a host that may run."""


async def console(request: ConsoleRequest, screen: Screen) -> int:
    """Print the link to a host that runs, or start one and serve it until Ctrl-C; return the exit code."""
    from pilothouse import server

    if request.join is not None:
        token, _ = await run_blocking(server.find_token, request.token_file, os.environ)
        if not await run_blocking(_is_host, request.join, token):
            raise UsageError(
                f"--join: no host answers at {request.join}, or it has another token; give its token in "
                "PILOTHOUSE_HOST_TOKEN or --token-file"
            )
        _show_link(request.join, token, request)
        return 0
    journal = server.find_default_journal() if request.journal is None else Path(request.journal)
    file = journal.with_name(f"{journal.name}.link")
    if (running := await run_blocking(_find_running, file)) is not None:
        _show_link(*running, request)
        return 0
    if request.port == DEFAULT_PORT and not _is_free(request.host, request.public):
        request = replace(request, port=0)

    def on_ready(url: str, token: str) -> None:
        _write_link(file, url, token)
        _show_link(url, token, request)
        screen.note("the console runs until Ctrl-C", "quiet")

    try:
        return await serve.serve(request, screen, on_ready=on_ready)
    finally:
        await run_blocking(_remove_link, file)


def find_link(url: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return address and token of a host. Blocking.

    Args:
        url: its address, with the token in PILOTHOUSE_HOST_TOKEN; "": the console of this user that runs here.
        environ: the environment variables.

    Raises:
        UsageError: no console runs, or there is no token.
    """
    if url:
        if not (token := environ.get("PILOTHOUSE_HOST_TOKEN")):
            raise UsageError("--remote: the token of the host is expected in PILOTHOUSE_HOST_TOKEN")
        return url, token
    from pilothouse import server

    journal = server.find_default_journal()
    if (found := _find_running(journal.with_name(f"{journal.name}.link"))) is None:
        raise UsageError("--remote: no console runs here; start `pilothouse console`, or give the address of a host")
    return found


def make_link(url: str, token: str) -> str:
    """Return the link of the console. A browser does not send what follows `#`."""
    return f"{url.rstrip('/')}/#token={quote(token, safe='')}"


def _show_link(url: str, token: str, request: ConsoleRequest) -> None:
    link = make_link(url, token)
    print(link)
    sys.stdout.flush()
    if request.open:
        webbrowser.open(link)


def _is_free(address: str, public: bool) -> bool:
    from pilothouse import server

    try:
        server.listen(address, DEFAULT_PORT, public=public).close()
    except UsageError:
        return False
    return True


def _find_running(file: Path) -> tuple[str, str] | None:
    """Return address and token of the host whose link the file has, if that host runs. Blocking."""
    try:
        kept = json.loads(file.read_text("utf-8"))
        url, token, process = str(kept["url"]), str(kept["token"]), int(kept["process"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    # Whoever has the port of a host that was killed does not get its token.
    return (url, token) if _may_run(process) and _is_host(url, token) else None


def _may_run(process: int) -> bool:
    if os.name == "nt":  # os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except OSError:  # it has ended, or is a process of another user
        return False
    return True


def _is_host(url: str, token: str) -> bool:
    """Return whether a host answers, and knows the token. Blocking."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--join: expected an address such as http://127.0.0.1:{DEFAULT_PORT}, got {url!r}")
    headers = {"Authorization": f"Bearer {token}"}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        asked = urllib.request.Request(f"{url.rstrip('/')}/v1/sessions", headers=headers)  # noqa: S310 - see above
        with direct.open(asked, timeout=JOIN_SECONDS) as response:
            return "sessions" in json.load(response)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, ValueError, TypeError, HTTPException):
        return False


def _write_link(file: Path, url: str, token: str) -> None:
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.touch(0o600)
    fresh.write_text(json.dumps({"url": url, "token": token, "process": os.getpid()}), "utf-8")
    fresh.replace(file)


def _remove_link(file: Path) -> None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        if json.loads(file.read_text("utf-8"))["process"] == os.getpid():
            file.unlink()
