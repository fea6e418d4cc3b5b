"""What is left of a child elsewhere, found by the id of its supervisor, and what its processes show."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from pilothouse.options import Invocation
from pilothouse.transports import TransportWrapper
from pilothouse_testing.conformance import PEER_PROGRAMS, Behaviour

PLAIN = ("sh", "-c", 'exec "$@"', "prefix")
"""A command that passes on its streams, and nothing else."""
GONE_S = 10.0


def processes(text: str) -> dict[int, str]:
    """The processes whose command line or environment holds this text, with both."""
    found: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            held = (place / "cmdline").read_bytes() + b"\0" + (place / "environ").read_bytes()
            if text.encode() in held:
                found[int(place.name)] = held.decode("utf-8", "replace")
    return found


def command_lines() -> str:
    return "\n".join(text for _, text in _list_commands())


def supervisors(role: str, near: str) -> list[int]:
    """The shells of one role ("relay", "watch") whose directory begins with `near`."""
    lines = [(pid, text.split("\0")) for pid, text in _list_commands()]
    return [pid for pid, words in lines if role in words[4:5] and words[5].startswith(near)]


def _list_commands() -> Iterator[tuple[int, str]]:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(place.parent.name), place.read_bytes().decode("utf-8", "replace")


def until_gone(text: str, directory: str = tempfile.gettempdir(), seconds: float = GONE_S) -> None:
    """Wait until no process holds this text, and no directory of a supervisor is left."""
    deadline = time.monotonic() + seconds
    while left := {pid: held[:300] for pid, held in processes(text).items()} or list(
        Path(directory).glob("pilothouse-*")
    ):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)  # between two looks at a condition


class KeyTransport(TransportWrapper):
    """Sends the key of the transport suite, as a setting of the user."""

    async def start(self, invocation: Invocation) -> None:
        await super().start(replace(invocation, explicit_env={"SUITE_API_KEY": invocation.env.get("SUITE_API_KEY")}))


def peer(behaviour: Behaviour) -> Invocation:
    """A Python program of the transport suite."""
    return Invocation(cli="auto", argv=("-S", "-E", "-c", PEER_PROGRAMS[behaviour]), env={})
