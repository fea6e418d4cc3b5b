"""What a host is told when it is made. Plain data with its defaults; checked here, used elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.server.policy import DEFAULT_ENV, ClientLimits


class HostSettings(Struct, frozen=True, kw_only=True):
    """Settings of a `Host`. (E84)

    Args:
        journal: the file that keeps what sessions say.
        roots: directories below which sessions may work; the first is where they work unasked.
        cli: which CLI runs, as the option of the same name.
        env: patterns of names of variables that clients may set.
        clients: what clients may have; by default all that the CLI offers.
        max_sessions: sessions with a child at a time.
        max_prompts: prompts of one session that may wait.
        max_body: bytes of the body of a request.
        messages_per_second: of one WebSocket; a client that says more is read more slowly.
        heartbeat: seconds of silence after which a client is asked; three times as much, and it counts as gone.
        idle_seconds: a session that nobody is attached to, and in which nothing happens, loses its child after this.
        abandoned_seconds: the same for one that is in the middle of a turn, such as a tool that runs for hours.
        drain_seconds: for turns that run when the host is told to end.
        unacknowledged: bytes of output that may wait for a client that is away, before its child has to.
        keep_bytes: bytes of a session that are kept although its client has them.
        keep_seconds: how long a session that has ended is kept.
        keep_total: bytes of output in the journal; the oldest ended sessions go when there is more.

    Raises:
        UsageError: a root is no directory, or a number is not positive.
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
        """The roots as absolute paths without links; the working directory if there are none."""
        return tuple(os.path.realpath(root) for root in self.roots or (os.getcwd(),))  # noqa: PTH109 - realpath follows


def default_journal() -> Path:
    """Where the journal lies unless it is said: in the state directory of this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "pilothouse" / "host.sqlite"
