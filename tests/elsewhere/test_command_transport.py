"""The contract suite over a command: a plain shell, and one that joins its words as ssh does."""

from __future__ import annotations

import sys

import pytest
from far_side import PLAIN, KeyTransport, peer

from pilothouse.options import Invocation
from pilothouse.transports import Transport
from pilothouse_remote import CommandTransport
from pilothouse_testing.conformance import Behaviour, TransportSuite

JOINING = ("sh", "-c", 'exec sh -c "$*"', "prefix")


class TestPlainCommand(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return KeyTransport(CommandTransport(PLAIN, cli=sys.executable)), peer(behaviour)


@pytest.mark.matrix
class TestJoiningCommand(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return KeyTransport(CommandTransport(JOINING, cli=sys.executable, joins_words=True)), peer(behaviour)

    async def test_ending_does_not_wait_for_a_peer_that_goes_on(self) -> None:
        pytest.skip("the shell that joins the words holds the output, so only the end of the child ends the stream")
