"""An agent behind the routes of front ends, on uvicorn, and what it sends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
import uvicorn
from process_checks import find_processes
from starlette.applications import Starlette
from starlette.routing import Route

import pilothouse as ph
from pilothouse_testing import ScriptedModel


class ServedCli:
    """Makes agents on the real CLI; knows their processes."""

    def __init__(self, cli: str, model: ScriptedModel) -> None:
        self.model = model
        self.cwd = model.home / "project"
        self.cwd.mkdir()
        self.cli = cli

    def agent(self, **settings: Any) -> ph.Agent:
        env = self.model.env(max_retries=0)
        values: dict[str, Any] = {"cli": self.cli, "cwd": self.cwd, "env": env, "inherit_env": False, **settings}
        return ph.Agent(**values)

    def processes(self) -> list[int]:
        """Pids of everything that runs with the home of this test."""
        return find_processes(f"HOME={self.model.home}")

    def wait_gone(self) -> None:
        """Wait, bounded, until nothing is left of the CLI."""
        end = time.monotonic() + 20
        while self.processes():
            assert time.monotonic() < end, self.processes()
            time.sleep(0.02)


@contextmanager
def served(*routes: Route) -> Generator[str]:
    """Serve the routes from a thread; yields the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        Starlette(routes=list(routes)), log_config=None, lifespan="off", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


async def post(url: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """Send a request and return the data of all events."""
    found: list[dict[str, Any]] = []
    with anyio.fail_after(90):
        async with (
            httpx2.AsyncClient(timeout=90) as client,
            client.stream("POST", url, json=body, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    found.append(json.loads(line[6:]))
    return found
