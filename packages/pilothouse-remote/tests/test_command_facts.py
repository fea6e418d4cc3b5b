"""What a transport of a command declares."""

from __future__ import annotations

from pilothouse.transports import TransportFacts
from pilothouse.transports.base import find_facts
from pilothouse_remote import CommandTransport, over_ssh


def test_facts_of_a_command() -> None:
    assert CommandTransport(["ssh"]).facts == TransportFacts(session_files="sent")
    assert find_facts(over_ssh("box")) == TransportFacts()
