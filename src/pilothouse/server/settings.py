"""Settings of a host. Plain data with defaults; validated here, used elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.server.policy import DEFAULT_ENV, ClientLimits


class HostSettings(Struct, frozen=True, kw_only=True):
    """Settings of a `Host`.

    Args:
        journal: the file that stores the output of sessions.
        roots: directories below which sessions may work; the first is the default working directory.
        cli: which CLI runs, as the option of the same name.
        env: patterns of names of variables that clients may set.
        clients: what clients may do; by default everything that the CLI offers.
        max_sessions: sessions with a child at a time.
        max_prompts: queued prompts per session.
        max_body: bytes of the body of a request.
        messages_per_second: per WebSocket; the host reads a client above this rate more slowly.
        heartbeat: seconds of silence after which a client is pinged; after three times as much it counts as gone.
        idle_seconds: after so long without an attached client and without activity, a session's child is ended.
        abandoned_seconds: the same for a session in the middle of a turn, such as a tool that runs for hours.
        drain_seconds: for running turns when the host shuts down.
        unacknowledged: bytes of output that may wait for an absent client before its child must wait.
        keep_bytes: bytes of a session that are kept although its client has them.
        keep_seconds: how long an ended session is kept.
        keep_total: bytes of output in the journal; above it, the oldest ended sessions are removed.

    Raises:
        UsageError: a root is not a directory, or a number is not positive.
    """

    journal: Path
    roots: tuple[str, ...] = ()
    cli: str = "auto"
    env: tuple[str, ...] = DEFAULT_ENV
    clients: ClientLimits = ClientLimits()
    max_sessions: int = 32
    max_prompts: int = 16
    max_body: int = 8 * 1024 * 1024
    messages_per_second: int = 5000
    heartbeat: float = 15.0
    idle_seconds: float = 3600.0
    abandoned_seconds: float = 86400.0
    drain_seconds: float = 30.0
    unacknowledged: int = 256 * 1024 * 1024
    keep_bytes: int = 16 * 1024 * 1024
    keep_seconds: float = 7 * 86400.0
    keep_total: int = 4 * 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_prompts", "max_body", "messages_per_second", "heartbeat", "idle_seconds"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name}: expected a number greater than 0, got {getattr(self, name)}")
        for root in self.roots:
            if not Path(root).is_dir():
                raise UsageError(f"root: {root} is no directory")

    def real_roots(self) -> tuple[str, ...]:
        """Return the roots as absolute paths without links; the working directory if there are none."""
        return tuple(os.path.realpath(root) for root in self.roots or (os.getcwd(),))  # noqa: PTH109 - realpath follows


def default_journal() -> Path:
    """Return the default path of the journal: in the state directory of this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "pilothouse" / "host.sqlite"
