"""The runner for Ray: its tests run in a process of their own, as Ray leaves threads and connections in one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from places import ROOT

from pilothouse.errors import RemoteError, UsageError
from pilothouse_fleet import RayRunner
from pilothouse_fleet.ray_runner import RayConnection

LIMIT = 600.0
"""Seconds for all of them; a quiet machine takes a tenth."""
[_RAY] = tomllib.loads((ROOT / "packages" / "pilothouse-fleet" / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]["ray"]
HAS_WHEELS = (_MARKER := Requirement(_RAY).marker) is None or _MARKER.evaluate()
REQUIRED = HAS_WHEELS and os.environ.get("PILOTHOUSE_REQUIRE_RAY") == "1"
"""Whether Ray must be there, as in `make test-matrix`."""


@pytest.mark.matrix
@pytest.mark.skipif(
    not REQUIRED and find_spec("ray") is None, reason="without Ray: pip install -r packages.txt 'pilothouse[ray]'"
)
def test_attempts_on_a_cluster_of_this_machine() -> None:
    inside = Path(__file__).with_name("ray_cluster_tests.py").relative_to(ROOT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(inside)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'pilothouse\[ray\]'"):
        RayRunner()


ACTOR = """
import pickle, threading
from pilothouse_fleet import ray_runner

ray_runner.EXIT_SECONDS = 0.1
host = ray_runner.AttemptHost(b"", pickle.dumps)
threading.Thread(target=threading.Event().wait).start()  # Python waits for it when the main thread has ended
print("ended", flush=True)
"""


def test_the_process_of_an_actor_exits_although_a_thread_of_it_never_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ACTOR], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


class PlayedRay:
    """What is asked of Ray to connect."""

    def __init__(self, *, is_connected: bool = False) -> None:
        self.is_connected = is_connected
        self.asked: list[Any] = []

    def is_initialized(self) -> bool:
        return self.is_connected

    def init(self, address: str | None, **settings: Any) -> None:
        assert not self.is_connected
        self.is_connected = True
        self.asked.append((address, settings, os.environ["RAY_USAGE_STATS_ENABLED"]))

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="here:1")

    def shutdown(self) -> None:
        self.is_connected = False
        self.asked.append("shutdown")


@pytest.mark.parametrize(("given", "counts"), [(None, "0"), ("1", "1")])
def test_the_first_connection_serves_all(monkeypatch: pytest.MonkeyPatch, given: str | None, counts: str) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", given or "")
    if given is None:
        monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray, cluster = PlayedRay(), RayConnection()
    for address in (None, "here:1"):
        cluster.submit(partial(cluster.connect, ray, address)).result()
    cluster.submit(partial(cluster.disconnect, ray)).result()
    assert ray.is_connected
    cluster.submit(partial(cluster.disconnect, ray)).result()
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    assert ray.asked == [(None, quiet, counts), "shutdown"]


def test_a_connection_of_others_stays() -> None:
    ray, cluster = PlayedRay(is_connected=True), RayConnection()
    cluster.submit(partial(cluster.connect, ray, None)).result()
    with pytest.raises(UsageError, match="connected to Ray at here:1, not there:1"):
        cluster.submit(partial(cluster.connect, ray, "there:1")).result()
    for _ in range(2):
        cluster.submit(partial(cluster.disconnect, ray)).result()
    assert (ray.is_connected, ray.asked) == (True, [])


def test_a_dead_address_is_reported_before_ray_tries() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ray, cluster = PlayedRay(), RayConnection()
        with pytest.raises(RemoteError, match=f"no server answers at {address}") as caught:
            cluster.submit(partial(cluster.connect, ray, address)).result()
        cluster.submit(partial(cluster.disconnect, ray)).result()
    assert ray.asked == []
    assert caught.value.code == "unreachable"
