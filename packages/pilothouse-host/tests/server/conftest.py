"""Hosts that are served, for the tests of the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_host import MakeHost, Served, settings

from pilothouse_access import guard
from pilothouse_host import Host

ACCESS = ("token", "tokens", "origins", "names", "routes")


@pytest.fixture(autouse=True)
def _quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token is answered a little late; `test_a_wrong_token_is_answered_late` looks at how late."""
    monkeypatch.setattr(guard, "WRONG_TOKEN_SECONDS", 0.01)


@pytest.fixture
def serve_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeHost]:
    """Makes hosts that are served; takes fields of the settings, `environ`, `make_transport`, and those of `app`."""
    made: list[Served] = []

    def make(**given: Any) -> Served:
        access = {name: given.pop(name) for name in ACCESS if name in given}
        own = {name: given.pop(name) for name in ("make_transport",) if name in given}
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **given.pop("environ", {})}
        chosen = settings(tmp_path, **{"drain_seconds": 0.2, **given})
        made.append(Served(lambda: Host(chosen, environ=environ, **own), **access))
        return made[-1].start()

    yield make
    for name in ("child.INTERRUPT_SECONDS", "interrupt.INTERRUPT_SECONDS", "child.CLOSE_SECONDS"):
        monkeypatch.setattr(f"pilothouse.engine.{name}", 0.2)  # children that still ask do not answer
    for served in made:
        served.stop()
