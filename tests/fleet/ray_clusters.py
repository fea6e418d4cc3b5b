"""A real Ray cluster for tests, of this machine alone, whose processes are no children of the tests.

`started()` runs this file as a program in a session of its own: it starts the cluster, says in a line of JSON where it
is, and takes it away when its standard input ends. So whatever becomes of the tests, SIGKILL included, nothing of Ray
stays behind. Knows nothing of pilothouse.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

START_LIMIT = 180.0
"""Seconds to wait: five of CPU time when the machine is quiet."""
STOP_LIMIT = 60.0
STORE_BYTES = 80 * 1024 * 1024
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
"""Also of those who connect: no token in their home, nothing sent to anybody."""


SOON_DEAD = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
"""A node that does not answer is taken for lost after five seconds."""
MARK = "SUITE_RAY_CLUSTER"


class Cluster:
    """A cluster that runs.

    Attributes:
        address: where it is.
        environment: what everything has in its own that is started there.
    """

    def __init__(self, program: subprocess.Popen[bytes] | None, address: str, mark: str) -> None:
        self._program = program
        self.environment = {**ENVIRONMENT, MARK: mark}
        self.address = address

    def ask(self, command: str) -> dict[str, Any]:
        """Have the program do something: "node" adds a node, "kill" takes the last one away, without a warning."""
        assert self._program is not None
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(command.encode() + b"\n")
        self._program.stdin.flush()
        return json.loads(self._program.stdout.readline())

    def processes(self) -> list[str]:
        """What runs of it: everything that was started there, the children of actors included."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        found: list[str] = []
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if mark in (directory / "environ").read_bytes().split(b"\0"):
                    found.append((directory / "cmdline").read_text().replace("\0", " "))
        return [line for line in found if line]  # those without have ended, and nobody has asked how


@contextmanager
def started() -> Generator[Cluster]:
    """A running cluster."""
    command = [sys.executable, __file__]
    mark = uuid4().hex
    environment = {**os.environ, **ENVIRONMENT, MARK: mark}
    first = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment
    )
    assert first.stdin is not None
    assert first.stdout is not None
    first.wait()  # the program itself is a child of nobody here
    try:
        with _limited(START_LIMIT, first.pid):
            line = first.stdout.readline()
        assert line, "no Ray cluster: see standard error above"
        yield Cluster(first, json.loads(line)["address"], mark)
    finally:
        first.stdin.close()
        with _limited(STOP_LIMIT, first.pid):
            first.stdout.read()  # its end
        first.stdout.close()


@contextmanager
def _limited(seconds: float, group: int) -> Generator[None]:
    """Kill the group unless the block ends in time."""
    alarm = threading.Timer(seconds, os.killpg, (group, signal.SIGKILL))
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


# --- the program -----------------------------------------------------------------------------------------------------


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _serve(directory: Path) -> None:
    os.environ["RAY_TMPDIR"] = str(directory)  # else it notes what runs in a place that all of the machine share
    (directory / "ray").mkdir()
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes()
    small: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    nodes.add_node(num_cpus=4, _system_config=SOON_DEAD, **small)
    _say({"address": nodes.address})
    others: list[Any] = []
    try:
        for line in sys.stdin:
            if line.strip() == "node":
                others.append(nodes.add_node(num_cpus=2, resources={"other": 2}, **small))
                _say({"nodes": len(others)})
            elif line.strip() == "kill":
                nodes.remove_node(others.pop(), allow_graceful=False)
                _say({"nodes": len(others)})
    finally:
        nodes.shutdown()


def main() -> None:
    if os.fork():
        os._exit(0)
    for by in (signal.SIGINT, signal.SIGHUP):
        signal.signal(by, signal.SIG_IGN)  # it ends when its input does, and not before everything is taken away
    with tempfile.TemporaryDirectory(prefix="ph-", ignore_cleanup_errors=True) as name:
        _serve(Path(name))


if __name__ == "__main__":
    main()
