"""Cassettes for tests: one per test, beside the test file; `--pilothouse-cassette` records, replays or verifies them.

The part of the pytest plugin that handles recordings. Loaded when a test requests a cassette.
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
from pilothouse.transports import CliTransport, Transport
from pilothouse_testing.cassettes import Cassette, Player, Recorder
from pilothouse_testing.cassettes.playback import diff_cassettes

Mode = Literal["record", "replay", "verify"]
DIRECTORY = "cassettes"
# The runs of an async test on different backends share a cassette.
_BACKENDS = frozenset({"asyncio", "asyncio+uvloop", "trio"})


class CassetteUse:
    """The cassette of one test; its `transport` is the default transport of all queries in the test.

    Attributes:
        path: the file.
        mode: "replay", "record" or "verify".
        inner: makes the transports that are recorded; by default the local CLI. Set it before the first query.
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
        """Make the transport of one connection; for `transport=cassette.transport`."""
        made = self._player or self._recorder
        assert made is not None
        return made()

    def finish(self) -> None:
        """Finish after a passed test: check against the recording, or keep the new one.

        Raises:
            CassetteError: the test differs from the recording, or there is nothing to compare or to keep.
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
        found = diff_cassettes(Cassette.load(self.path), Cassette.load(self._new_path), ignore=self._ignore)
        if found:
            words = "the real transport no longer does what was recorded; if that is right, record again"
            raise CassetteError(f"{self.path}: {words}:\n{found}", path=str(self.path))

    def discard(self) -> None:
        """Remove a new recording that was not kept."""
        with suppress(OSError):
            self._new_path.unlink()


def finish_cassette(cassette: CassetteUse) -> None:
    """Finish the cassette of a passed test, and fail the test on an error."""
    words = ""
    try:
        cassette.finish()
    except CassetteError as error:
        words = str(error)
    if words:  # outside of `except`: else pytest would show both errors
        pytest.fail(words, pytrace=False)


@contextmanager
def open_cassette(request: pytest.FixtureRequest, mode: Mode) -> Generator[CassetteUse]:
    """Open the cassette of the requesting test, as the transport of all its queries."""
    marker = request.node.get_closest_marker("cassette")
    given = marker.args[0] if marker is not None and marker.args else None
    path = get_default_path(request.node) if given is None else request.node.path.parent / given
    if mode != "record" and not path.exists():
        pytest.fail(
            f"there is no recording {path}: run this test once with --pilothouse-cassette=record", pytrace=False
        )
    settings: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    cassette = CassetteUse(path, mode, **settings)
    try:
        with restore_defaults():
            configure(transport=cassette.transport)
            yield cassette
    finally:
        cassette.discard()


def get_default_path(item: pytest.Item) -> Path:
    """Return the path of the cassette of a test: `cassettes/<module>/<test>.jsonl` beside the test file."""
    name = getattr(item, "originalname", None) or item.name
    callspec = getattr(item, "callspec", None)
    classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    words = [] if callspec is None else [word for word in callspec.id.split("-") if word not in _BACKENDS]
    full = ".".join([*classes, name]) + (f"[{'-'.join(words)}]" if words else "")
    return item.path.parent / DIRECTORY / item.path.stem / (re.sub(r"[^\w.\[\]=+-]", "_", full) + ".jsonl")
