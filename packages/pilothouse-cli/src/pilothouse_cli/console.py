"""`pilothouse console`: a host with its pages for the browser, or the link to the one that runs already.

Owns the link, and the file that keeps it beside the journal, so that a second call finds the host of the first, with
the flags of that call. The host itself is that of `pilothouse serve`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
import httpx2
import msgspec

import pilothouse_host as server
from pilothouse.errors import UsageError
from pilothouse.options import Options
from pilothouse.support import run_blocking
from pilothouse_cli import serve
from pilothouse_cli.failures import explain_missing_key, find_key, report_failure
from pilothouse_cli.flags import DEFAULT_PORT, ConsoleRequest, ServeRequest
from pilothouse_cli.host_client import client_settings, explain_silence, read_body
from pilothouse_cli.screen import Screen

JOIN_SECONDS = 5.0
"""Seconds to wait for the answer of a host that may run."""
OPEN_SECONDS = 10.0
"""Seconds for a browser to read the page that leads to a host which this process does not run."""
_OPENING_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>pilothouse</title>
<a href="{link}">pilothouse</a>
"""
_PATH_FIELDS = frozenset({"cli", "fleets", "managed_settings", "roots", "token_file"})


class RunningConsole(msgspec.Struct, frozen=True, kw_only=True):
    """What the file beside the journal says of a console.

    Args:
        url, token: how it is reached.
        process: the id of its process.
        started: Unix time of its start; None if the file is that of an older version.
        roots: the directories below which its sessions work, without links.
        flags: the flags that it was started with, as `list_host_flags` returns them.
    """

    url: str
    token: str
    process: int
    started: float | None = None
    roots: list[str] = []
    flags: dict[str, Any] = {}

    def find_differences(self, request: ConsoleRequest) -> list[str]:
        """Return the given flags that this console was not started with."""
        given = list_host_flags(request)
        if given.get("--port") in (0, urlsplit(self.url).port):  # 0 takes any
            del given["--port"]
        return [name for name, value in given.items() if self.flags.get(name) != value]

    def describe_start(self) -> str:
        """Return words for when it was started, to follow "the console"."""
        if self.started is None:
            return "that runs already"
        moment, now = datetime.fromtimestamp(self.started).astimezone(), datetime.now().astimezone()
        return f"that was started at {moment:%H:%M}" if moment.date() == now.date() else f"of {moment:%Y-%m-%d %H:%M}"


async def console(request: ConsoleRequest, screen: Screen) -> int:
    """Print the link to a host that runs, or start one and serve it until Ctrl-C; return the exit code."""
    if request.join is not None:
        if others := [name for name in list_host_flags(request) if name != "--token-file"]:
            raise UsageError(f"--join starts no host, so {_join_names(others)} would have no effect; leave them out")
        token, _ = await run_blocking(server.find_token, request.token_file, os.environ)
        if (fault := await run_blocking(_find_fault, request.join, token)) is not None:
            raise UsageError(f"--join: {fault}")
        await _show_and_open(request.join, token, request)
        return 0
    journal = server.find_default_journal() if request.journal is None else Path(request.journal)
    file = journal.with_name(f"{journal.name}.link")
    if (running := await run_blocking(_find_running, file)) is not None:
        if others := running.find_differences(request):
            raise UsageError(
                f"{running.url} has the console {running.describe_start()}, and {_join_names(others)} would have no "
                "effect on it; leave them out to join it, stop it first, or start another one with --journal FILE"
            )
        await _show_and_open(running.url, running.token, request)
        _tell_joined(running, screen)
        return 0
    if request.port == DEFAULT_PORT and not _is_free(request.host, request.public):
        request = replace(request, port=0)

    with ExitStack() as pages:

        def on_ready(url: str, token: str) -> None:
            _write_link(file, url, token, request)
            link = _show_link(url, token)
            if request.open:
                pages.enter_context(open_in_browser(link))
            # On macOS, a login is in the keychain.
            if sys.platform != "darwin" and find_key(os.environ, Options()) is None:
                report_failure(screen, explain_missing_key("chat --local", request.cli))
            screen.note("the console runs until you press Ctrl-C", "quiet")

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
    journal = server.find_default_journal()
    if (found := _find_running(journal.with_name(f"{journal.name}.link"))) is None:
        raise UsageError("--remote: no console runs here; start `pilothouse console`, or give the address of a host")
    return found.url, found.token


def make_link(url: str, token: str) -> str:
    """Return the link of the console. A browser does not send what follows `#`."""
    return f"{url.rstrip('/')}/#token={quote(token, safe='')}"


async def _show_and_open(url: str, token: str, request: ConsoleRequest) -> None:
    """Show the link to a host that another process runs."""
    link = _show_link(url, token)
    if request.open:
        with open_in_browser(link):
            await anyio.sleep(OPEN_SECONDS)


def _show_link(url: str, token: str) -> str:
    link = make_link(url, token)
    print(link, flush=True)
    return link


@contextmanager
def open_in_browser(link: str) -> Generator[None]:
    """Open a link that holds a token, by a page that only this user can read and that exists as long as the block.

    Every user of the machine can read the command line of the browser.
    """
    directory = server.find_default_journal().parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="console-", suffix=".html", dir=directory)  # with mode 0600
    page = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_OPENING_PAGE.format(link=escape(link)))
        webbrowser.open(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)


def _is_free(address: str, public: bool) -> bool:
    try:
        server.listen(address, DEFAULT_PORT, public=public).close()
    except UsageError:
        return False
    return True


def list_host_flags(request: ServeRequest) -> dict[str, Any]:
    """Return the given flags that say how a host runs, by their first spelling: values other than the default.

    Paths are absolute, so that calls in two directories can be compared. `--journal` is left out: it names the host.
    """
    given: dict[str, Any] = {}
    for each in fields(ServeRequest):
        value: Any = getattr(request, each.name)
        if each.name == "journal" or value == each.default:
            continue
        if each.name in _PATH_FIELDS:
            value = _resolve(value) if isinstance(value, str) else tuple(map(_resolve, value))
        name = each.metadata.get("names", (f"--{each.name.replace('_', '-')}",))[0]
        given[name] = [*value] if isinstance(value, tuple) else value  # as JSON gives it back
    return given


def _resolve(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _tell_joined(running: RunningConsole, screen: Screen) -> None:
    """Say which console was joined, and whether it has sessions in this directory."""
    below = f"; its sessions work below {', '.join(running.roots)}" if running.roots else ""
    screen.note(f"joined the console {running.describe_start()}{below}", "quiet")
    here = Path(os.path.realpath("."))
    if running.roots and not any(here.is_relative_to(root) for root in running.roots):
        screen.note(f"for sessions in {here}, start another one: pilothouse console --journal FILE", "warning")


def _find_running(file: Path) -> RunningConsole | None:
    """Return the console whose link the file has, if it runs. Blocking."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=RunningConsole)
    except (OSError, msgspec.DecodeError):
        return None
    # Whoever has the port of a host that was killed does not get its token.
    return found if _may_run(found.process) and _find_fault(found.url, found.token) is None else None


def _may_run(process: int) -> bool:
    if os.name == "nt":  # os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except OSError:  # it has ended, or is a process of another user
        return False
    return True


def _find_fault(url: str, token: str) -> str | None:
    """Return why this address is not that of a host with this token; None if it is. Blocking."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--join: expected an address such as http://127.0.0.1:{DEFAULT_PORT}, got {url!r}")
    try:
        with httpx2.Client(**client_settings(url, token)) as client:
            response = client.get("/v1/sessions", timeout=JOIN_SECONDS)
            if response.status_code == 401:
                return f"the host at {url} has another token; give its token in PILOTHOUSE_HOST_TOKEN or --token-file"
            if "sessions" in read_body(response):
                return None
    except httpx2.TransportError as error:
        return explain_silence(url, error)
    except (UsageError, ValueError, TypeError):
        pass
    return f"what answers at {url} is not a pilothouse host; check the address"


def _write_link(file: Path, url: str, token: str, request: ConsoleRequest) -> None:
    kept = RunningConsole(
        url=url,
        token=token,
        process=os.getpid(),
        started=time.time(),
        roots=[_resolve(root) for root in request.roots or (".",)],
        flags=list_host_flags(request),
    )
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.touch(0o600)
    fresh.write_bytes(msgspec.json.encode(kept))
    fresh.replace(file)


def _remove_link(file: Path) -> None:
    with suppress(OSError, msgspec.DecodeError):
        if msgspec.json.decode(file.read_bytes(), type=RunningConsole).process == os.getpid():
            file.unlink()
