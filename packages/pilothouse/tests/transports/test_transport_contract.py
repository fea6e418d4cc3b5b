"""The contract suite over every transport that starts a peer on this machine."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest

from pilothouse.options import Invocation
from pilothouse.transports.base import Transport
from pilothouse.transports.child_process import ExitWatcher
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.memory import MemoryTransport
from pilothouse_testing.conformance import MEMORY_PEERS, PEER_PROGRAMS, Behaviour, TransportSuite


def invocation(code: str, **changes: object) -> Invocation:
    return Invocation(cli=sys.executable, argv=("-S", "-E", "-c", code), env={"PATH": os.environ["PATH"]}, **changes)  # type: ignore[arg-type]


class TestCliTransport(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return CliTransport(close_grace=0.05), invocation(PEER_PROGRAMS[behaviour])


class TestWithoutPidfd(TransportSuite):
    @pytest.fixture(autouse=True)
    def _no_pidfd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pilothouse.transports.child_process.ExitWatcher", partial(ExitWatcher, use_pidfd=False))

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return CliTransport(close_grace=0.05), invocation(PEER_PROGRAMS[behaviour])


class TestMemoryTransport(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return MemoryTransport(MEMORY_PEERS[behaviour]), Invocation(cli="auto", argv=(), env={})


class TestMemoryTransportInSmallChunks(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        chunk = 1000 if behaviour in ("flood", "echo") else 1
        return MemoryTransport(MEMORY_PEERS[behaviour], chunk=chunk), Invocation(cli="auto", argv=(), env={})
