"""Cassettes for tests: one for each, beside the test file; recorded, replayed or verified as the command line says.

The part of the pytest plugin that knows recordings. Loaded when a test asks for a cassette.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from pilothouse.client import configure
from pilothouse.client.agent import restore_defaults
from pilothouse.errors import CassetteError
from pilothouse.transports import Cassette, CliTransport, Player, Recorder, Transport
from pilothouse.transports.cassettes.comparing import difference

Mode = Literal["record", "replay", "verify"]
DIRECTORY = "cassettes"
# Both runs of an async test say the same: they share a cassette.
_BACKENDS = frozenset({"asyncio", "asyncio+uvloop", "trio"})


class CassetteUse:
    """The cassette of one test; its `transport` is the default of every query of the test.

    Attributes:
        path: the file.
        mode: "replay", "record" or "verify".
        inner: what is recorded: a callable that makes transports; by default the local CLI. Set it before the first
            query.
    """

    def __init__(self, path: Path, mode: Mode, **settings: Any) -> None:
        self.path = path
        self.mode: Mode = mode
        self.inner: Callable[[], Transport] = CliTransport
        self._ignore = settings.get("ignore", ())
        self._player = Player(path, **settings) if mode == "replay" else None
        self._new_path = path.with_name(f".{path.name}.{os.getpid()}.new")
        self._recorder = None if mode == "replay" else Recorder(self._new_path, lambda: self.inner())

    def transport(self) -> Transport:
        """Makes the transport of one connection; for `transport=cassette.transport`."""
        made = self._player or self._recorder
        assert made is not None
        return made()

    def finish(self) -> None:
        """The test has passed: see whether it did what is recorded, or keep what it did.

        Raises:
            CassetteError: it did not, or there is nothing to compare or to keep.
        """
        if self._player is not None:
            self._player.check_complete()
            return
        assert self._recorder is not None
        if self._recorder.failure is not None:
            raise self._recorder.failure
        if not self._new_path.exists():
            raise CassetteError("the test started no transport: there is nothing to record", path=str(self.path))
        if self.mode == "verify":
            self._compare()
        else:
            self._new_path.replace(self.path)

    def _compare(self) -> None:
        found = difference(Cassette.load(self.path), Cassette.load(self._new_path), ignore=self._ignore)
        if found:
            words = "the real thing does not do any more what was recorded; if that is right, record again"
            raise CassetteError(f"{self.path}: {words}:\n{found}", path=str(self.path))

    def discard(self) -> None:
        """Remove what was written and not kept."""
        with suppress(OSError):
            self._new_path.unlink()


def finish_cassette(cassette: CassetteUse) -> None:
    """Finish the cassette of a test that has passed; it fails if that fails."""
    words = ""
    try:
        cassette.finish()
    except CassetteError as error:
        words = str(error)
    if words:  # outside: else both would be shown
        pytest.fail(words, pytrace=False)


@contextmanager
def open_cassette(request: pytest.FixtureRequest, mode: Mode) -> Generator[CassetteUse]:
    """The cassette of the test that asks, as the transport of all its queries."""
    marker = request.node.get_closest_marker("cassette")
    given = marker.args[0] if marker is not None and marker.args else None
    path = get_default_path(request.node) if given is None else request.node.path.parent / given
    if mode != "record" and not path.exists():
        pytest.fail(f"there is no cassette {path}: run this test once with --cassette=record", pytrace=False)
    settings: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    cassette = CassetteUse(path, mode, **settings)
    try:
        with restore_defaults():
            configure(transport=cassette.transport)
            yield cassette
    finally:
        cassette.discard()


def get_default_path(item: pytest.Item) -> Path:
    """Where the cassette of a test lies: `cassettes/<module>/<test>.jsonl` beside the test file."""
    name = getattr(item, "originalname", None) or item.name
    callspec = getattr(item, "callspec", None)
    classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    words = [] if callspec is None else [word for word in callspec.id.split("-") if word not in _BACKENDS]
    full = ".".join([*classes, name]) + (f"[{'-'.join(words)}]" if words else "")
    return item.path.parent / DIRECTORY / item.path.stem / (re.sub(r"[^\w.\[\]=+-]", "_", full) + ".jsonl")
