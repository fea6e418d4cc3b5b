"""Notifications of asks: what is sent, what is not, and what a failure does."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.permissions import Ask, PermissionRequest
from pilothouse_doors.notify import command, ntfy, webhook

pytestmark = pytest.mark.anyio


def make_ask() -> Ask:
    tool_input = {"command": "curl -H 'token: hunter2'"}
    return Ask("ask_7", PermissionRequest(tool_name="Bash", tool_input=tool_input, title="Run curl hunter2?"))


@contextmanager
def serve(status: int = 200, location: str = "") -> Generator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """An HTTP server that keeps what is posted."""
    posted: list[tuple[dict[str, str], Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            posted.append((dict(self.headers), json.loads(body)))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("make", [webhook, lambda url, details: ntfy("phone", server=url, token="tk", details=details)])
async def test_a_notification_holds_the_input_only_on_request(make: Callable[..., Any], details: bool) -> None:
    with serve() as (url, posted):
        await make(url, details=details)(make_ask())
    [(headers, body)] = posted
    assert ("hunter2" in json.dumps(body)) is details
    assert make is webhook or (body["topic"], headers["Authorization"]) == ("phone", "Bearer tk")
    assert details or "Bash" in json.dumps(body)


async def test_a_failure_names_the_host_alone() -> None:
    with serve(500) as (url, _), pytest.raises(PilothouseError, match="answered with 500") as caught:
        await webhook(url + "/services/SECRET")(make_ask())
    assert "SECRET" not in str(caught.value)
    with pytest.raises(PilothouseError, match="cannot be reached"):
        await webhook(url + "/services/SECRET")(make_ask())


@pytest.mark.parametrize("status", [302, 307])  # urllib itself follows the first
async def test_a_redirect_is_not_followed(status: int) -> None:
    with serve() as (other, stolen), serve(status, other) as (url, posted):
        with pytest.raises(PilothouseError, match=str(status)):
            await webhook(url, headers={"Authorization": "Bearer tk"})(make_ask())
        assert (len(posted), stolen) == (1, [])


async def test_a_command_gets_text_and_json_but_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("SHOWN", "yes")
    code = "import json, os, sys; json.dump([sys.argv[2], sys.stdin.read(), dict(os.environ)], open(sys.argv[1], 'w'))"
    await command(sys.executable, "-c", code, str(tmp_path / "out"))(make_ask())
    text, body, env = json.loads((tmp_path / "out").read_text())
    assert text == "a permission waits: Bash"
    assert json.loads(body)["id"] == "ask_7"
    assert "hunter2" not in body
    assert ("ANTHROPIC_API_KEY" in env, env["SHOWN"]) == (False, "yes")


async def test_a_command_that_hangs_is_killed() -> None:
    hang = "import time; time.sleep(1000)"
    with anyio.fail_after(20), pytest.raises(TimeoutError):
        await command(sys.executable, "-c", hang, timeout=0.2)(make_ask())


@pytest.mark.parametrize(
    "make", [lambda: webhook("file:///etc/passwd"), lambda: ntfy(""), lambda: ntfy("a/b"), command]
)
async def test_wrong_settings(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        make()


async def test_a_server_that_does_not_answer_holds_nothing_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = anyio.to_thread.current_default_thread_limiter().borrowed_tokens
        with anyio.move_on_after(0.2) as scope, anyio.fail_after(5):
            await webhook(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=2)(make_ask())
        assert scope.cancelled_caught
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == before
