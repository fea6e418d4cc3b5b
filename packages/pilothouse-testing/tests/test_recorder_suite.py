"""The contract suite over a recording transport, around a child and around a peer in memory, and over its replay."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, MemoryTransport, Transport
from pilothouse_testing import RecordingTransport, ReplayTransport
from pilothouse_testing.conformance import MEMORY_PEERS, PEER_PROGRAMS, Behaviour, TransportSuite


class Recorded(TransportSuite):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.made = 0

    def next_path(self) -> Path:
        self.made += 1
        return self.directory / f"{self.made}.jsonl"


class TestRecordedChild(Recorded):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        argv = ("-S", "-E", "-c", PEER_PROGRAMS[behaviour])
        invocation = Invocation(cli=sys.executable, argv=argv, env={"PATH": os.environ["PATH"]})
        return RecordingTransport(CliTransport(close_grace=0.05), self.next_path()), invocation


class TestRecordedMemory(Recorded):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"  # the child is recorded on both

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        inner = MemoryTransport(MEMORY_PEERS[behaviour], chunk=1000 if behaviour in ("flood", "echo") else 1)
        return RecordingTransport(inner, self.next_path()), Invocation(cli="auto", argv=(), env={})


class TestReplay(Recorded):
    """Each test runs twice: recorded, and then over nothing but the recording."""

    has_backpressure = False  # a recording takes what it is sent
    is_replaying = False

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        path, invocation = self.next_path(), Invocation(cli="auto", argv=(), env={})
        if self.is_replaying:
            # The second one of two that are made in a test may never have been started.
            return ReplayTransport(path), invocation
        return RecordingTransport(MemoryTransport(MEMORY_PEERS[behaviour]), path), invocation


def twice(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def run(self: TestReplay, *args: Any, **kwargs: Any) -> None:
        await test(self, *args, **kwargs)
        self.made, self.is_replaying = 0, True
        await test(self, *args, **kwargs)

    return run


for name, function in list(vars(TransportSuite).items()):
    if name.startswith("test_"):
        setattr(TestReplay, name, twice(function))
# How much of a message was taken, when nobody read, is no matter of a recording.
setattr(TestReplay, "test_cancelled_send_leaves_later_frames_whole", None)  # noqa: B010
