"""Which processes of a fake CLI still run."""

from __future__ import annotations

from process_checks import is_dead, until

from pilothouse_testing import FakeCLI


def running(fake: FakeCLI) -> list[int]:
    return [pid for call in fake.calls for pid in (call.pid, *call.grandchildren) if pid and not is_dead(pid)]


async def ended(fake: FakeCLI) -> None:
    await until(lambda: fake.calls and not running(fake))
