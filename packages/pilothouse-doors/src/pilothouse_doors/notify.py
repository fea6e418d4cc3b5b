"""Functions for `Asks(notify=[…])`: tell a person elsewhere that something waits.

Each returns an async function that takes an `Ask`. By default it sends what waits and for which tool, not what is in
the request: that may contain secrets. It never holds up the session, and is ended when the approval is settled.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
from anyio import to_thread

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.options.secrets import is_secret_name
from pilothouse.permissions import Ask

DEFAULT_TIMEOUT = 10.0

Notify = Callable[[Ask], Awaitable[None]]


def webhook(
    url: str, *, headers: Mapping[str, str] | None = None, details: bool = False, timeout: float = DEFAULT_TIMEOUT
) -> Notify:
    """Return a function that posts each approval to a URL as JSON: the object of `Ask.describe`.

    Args:
        url: an address with http or https.
        headers: further headers, such as `Authorization`.
        details: also send what is asked. Default False.
        timeout: seconds for the request. Default 10.

    Raises:
        UsageError: the address is not valid.
    """
    _check_url(url)

    async def notify_webhook(approval: Ask) -> None:
        body = json.dumps(approval.describe(details=details)).encode()
        await _post(url, body, {"Content-Type": "application/json", **(headers or {})}, timeout)

    return notify_webhook


def ntfy(
    topic: str,
    *,
    server: str = "https://ntfy.sh",
    token: str | None = None,
    click: str | None = None,
    details: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
) -> Notify:
    """Return a function that publishes each approval on a topic of ntfy, which shows it on a phone.

    Args:
        topic: the topic. Whoever knows it can read it, unless the server protects it.
        server: address of the server. Default "https://ntfy.sh".
        token: access token of the server.
        click: address to open when the notification is tapped.
        details: show the title of the approval, which may contain parts of the input. Default False: kind and tool.
        timeout: seconds for the request. Default 10.

    Raises:
        UsageError: the address or the topic is not valid.
    """
    _check_url(server)
    if not topic or "/" in topic:
        raise UsageError(f"ntfy: expected the name of a topic, got {topic!r:.80}")

    async def notify_ntfy(approval: Ask) -> None:
        body = {"topic": topic, "title": "Claude Code waits", "message": _make_text(approval, details=details)}
        body |= {"click": click} if click else {}
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        await _post(server, json.dumps(body).encode(), headers, timeout)

    return notify_ntfy


def command(*argv: str, details: bool = False, timeout: float = DEFAULT_TIMEOUT) -> Notify:
    """Return a function that runs a command for each approval, without a shell.

    The command gets a line of text as its last argument, and the object of `Ask.describe` as JSON on its standard
    input. It gets no environment variables with names that are typical of keys.

    Args:
        *argv: the command and its arguments, such as "notify-send", "Claude Code".
        details: also give it what is asked. Default False.
        timeout: seconds until it is killed. Default 10.

    Raises:
        UsageError: there is no command.
    """
    if not argv:
        raise UsageError("command: expected a command and its arguments")

    async def notify_command(approval: Ask) -> None:
        env = {name: value for name, value in os.environ.items() if not is_secret_name(name)}
        data = json.dumps(approval.describe(details=details)).encode()
        with anyio.fail_after(timeout):
            await anyio.run_process([*argv, _make_text(approval, details=details)], input=data, env=env)

    return notify_command


def _make_text(approval: Ask, *, details: bool) -> str:
    if details:
        return approval.title
    about = approval.describe()
    return f"a {approval.kind} waits: {about.get('tool') or about.get('server')}"


def _check_url(url: Any) -> None:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise UsageError(f"notify: expected an address with http or https, got {type(url).__name__}")


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None  # the headers may contain a token, which belongs to the first address alone


async def _post(url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> None:
    request = urllib.request.Request(url, body, dict(headers), method="POST")  # noqa: S310 - http or https
    # A thread of its own: a slow server holds up neither the end of the approval nor other work of the program.
    own = anyio.CapacityLimiter(1)
    await to_thread.run_sync(partial(_send, request, timeout), abandon_on_cancel=True, limiter=own)


def _send(request: urllib.request.Request, timeout: float) -> None:
    try:
        with urllib.request.build_opener(_RefusedRedirects).open(request, timeout=timeout):
            return
    except urllib.error.HTTPError as error:
        error.close()
        text = f"{request.host} answered with {error.code}"  # the path of a webhook is often its key
    except (OSError, http.client.HTTPException, ValueError) as error:
        text = f"{request.host} cannot be reached: {type(error).__name__}"
    raise PilothouseError(f"the notification was not sent: {text}")
