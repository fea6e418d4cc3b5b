"""32 clients at once against each endpoint, on a fake CLI: no error, nothing left, bounded memory; how long it takes.

`-rP` shows the times: those of the endpoint, and those of a bare server with the same answer.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import resource
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from endpoint_server import LIMIT, TOKEN, EndpointServer
from process_checks import child_pids, eventually, open_descriptors
from starlette.responses import JSONResponse
from starlette.routing import Route

from pilothouse_models.endpoints import EndpointModels
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.matrix
CLIENTS = 32
ROUNDS = 3
MAX_GROWTH = 12 * 1024 * 1024
USER = [{"role": "user", "content": "Hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "sonnet", "messages": USER},
    "/v1/responses": {"model": "sonnet", "input": "Hi", "store": False},
    "/v1/messages": {"model": "sonnet", "messages": USER, "max_tokens": 64_000},
}


def send(port: int, path: str, body: dict[str, Any]) -> float:
    """Send a request; the seconds until its whole answer."""
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT * 10)
    try:
        connection.request("POST", path, json.dumps(body), {"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == 200, text
    assert "Hello" in text
    return time.monotonic() - started


def run_clients(port: int, path: str, body: dict[str, Any]) -> list[float]:
    """The times of all requests of a round; every other client wants a stream."""
    begin = threading.Barrier(CLIENTS)

    def work(number: int) -> list[float]:
        begin.wait(LIMIT)
        return [send(port, path, {**body, "stream": number % 2 == 1}) for _ in range(2)]

    with ThreadPoolExecutor(CLIENTS) as threads:
        return [each for times in threads.map(work, range(CLIENTS)) for each in times]


def resident_bytes() -> int:
    gc.collect()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # a Mac: the highest so far


def describe(times: list[float]) -> str:
    ordered = sorted(times)
    return f"p50 {statistics.median(ordered) * 1000:.0f} ms, p95 {ordered[int(len(ordered) * 0.95)] * 1000:.0f} ms"


@pytest.mark.parametrize("path", REQUESTS)
def test_many_clients_at_once(path: str) -> None:
    def bare(request: Any) -> JSONResponse:
        return JSONResponse({"text": "Hello"})

    with FakeCLI().text("Hello").forever() as fake:
        server = EndpointServer(EndpointModels(cli=fake.path, max_requests=8))
        server.application.router.routes.append(Route("/bare", bare, methods=["POST"]))
        with server:
            before = child_pids()
            run_clients(server.port, path, REQUESTS[path])
            descriptors, size = open_descriptors(), resident_bytes()
            times = [each for _ in range(ROUNDS) for each in run_clients(server.port, path, REQUESTS[path])]
            growth = resident_bytes() - size
            eventually(lambda: child_pids() <= before, "children are left")
            eventually(lambda: len(open_descriptors()) <= len(descriptors), "descriptors are left")
            floor = run_clients(server.port, "/bare", {})
    assert len(times) == ROUNDS * CLIENTS * 2
    print(f"{path}: {describe(times)}; bare server: {describe(floor)}; memory {growth / 1e6:+.1f} MB")
    assert growth < MAX_GROWTH
