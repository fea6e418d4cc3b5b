"""Hosts for the tests of this room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served_host import Served, settings

from pilothouse.server import Host

MakeHost = Callable[..., Served]


@pytest.fixture
def serve_host(tmp_path: Path) -> Iterator[MakeHost]:
    """Makes hosts that are served; takes fields of the settings, `environ`, `make_transport`, and those of `app`."""
    made: list[Served] = []

    def make(**given: Any) -> Served:
        access = {name: given.pop(name) for name in ("token", "tokens", "origins", "names") if name in given}
        own = {name: given.pop(name) for name in ("make_transport",) if name in given}
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **given.pop("environ", {})}
        chosen = settings(tmp_path, **{"drain_seconds": 0.2, **given})
        made.append(Served(lambda: Host(chosen, environ=environ, **own), **access))
        return made[-1].start()

    yield make
    for served in made:
        served.stop()
