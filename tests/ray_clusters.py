"""A real Ray cluster for tests, of this machine alone, whose processes are no children of the tests.

`started()` runs this file as a program, see `outside`. Knows nothing of pilothouse.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from detached_programs import SendCommand, detach, run_detached, send_reply

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

    def __init__(self, address: str, mark: str, send_command: SendCommand | None = None) -> None:
        self._tell = send_command
        self.environment = {**ENVIRONMENT, MARK: mark}
        self.address = address

    def ask(self, command: str) -> dict[str, Any]:
        """Have the program do something: "node" adds a node, "kill" takes the last one away, without a warning."""
        assert self._tell is not None
        return self._tell(command)

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
    mark = uuid4().hex
    environment = {**ENVIRONMENT, MARK: mark}
    with run_detached(__file__, start=START_LIMIT, stop=STOP_LIMIT, environment=environment) as (reply, send_command):
        yield Cluster(reply["address"], mark, send_command)


# --- the program -----------------------------------------------------------------------------------------------------


def _serve(directory: Path) -> None:
    os.environ["RAY_TMPDIR"] = str(directory)  # else it notes what runs in a place that all of the machine share
    (directory / "ray").mkdir()
    nodes = import_module("ray.cluster_utils").Cluster()
    small: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    nodes.add_node(num_cpus=4, _system_config=SOON_DEAD, **small)
    send_reply({"address": nodes.address})
    others: list[Any] = []
    try:
        for line in sys.stdin:
            if line.strip() == "node":
                others.append(nodes.add_node(num_cpus=2, resources={"other": 2}, **small))
                send_reply({"nodes": len(others)})
            elif line.strip() == "kill":
                nodes.remove_node(others.pop(), allow_graceful=False)
                send_reply({"nodes": len(others)})
    finally:
        nodes.shutdown()


def main() -> None:
    detach()
    with tempfile.TemporaryDirectory(prefix="ph-", ignore_cleanup_errors=True) as name:
        _serve(Path(name))


if __name__ == "__main__":
    main()
