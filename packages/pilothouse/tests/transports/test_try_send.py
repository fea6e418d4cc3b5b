"""What a transport does at once: never past a method of a subclass, and never before what is still being sent."""

from __future__ import annotations

import anyio
import pytest
from process_checks import linux_only
from shell_children import first_line, sh

from pilothouse.transports import CliTransport

pytestmark = pytest.mark.anyio


class Slow(CliTransport):
    """Has an `end_input` of its own."""

    def __init__(self) -> None:
        super().__init__(close_grace=0.0)
        self.calls = 0

    async def end_input(self) -> None:
        self.calls += 1
        await super().end_input()


class Quick(Slow):
    """Has both."""

    def try_end_input(self) -> bool:
        return super(Slow, self).try_end_input()


@linux_only
async def test_an_end_of_input_of_a_subclass_is_not_passed_by() -> None:
    slow = Slow()
    await slow.start(sh("cat"))
    assert slow.try_end_input() is False
    await slow.send(b"still open\n")
    assert await first_line(slow) == "still open"
    assert slow.try_send(b"more\n")  # the other pair is not touched
    await slow.end_input()
    assert slow.calls == 1
    await slow.close()


@linux_only
async def test_the_input_ends_at_once_and_stays_ended() -> None:
    transport = Quick()
    assert transport.try_end_input() is False  # there is no child yet
    await transport.start(sh("cat; exit 3"))
    assert transport.try_end_input() is True
    assert transport.try_send(b"late\n") is False
    with pytest.raises(anyio.ClosedResourceError):
        await transport.send(b"late\n")
    assert await transport.receive() == b""
    assert (await transport.exit_info()).exit_code == 3
    await transport.close()
    assert transport.try_end_input() is False


@linux_only
async def test_the_input_does_not_end_at_once_before_what_is_being_sent() -> None:
    transport = CliTransport(close_grace=0.0)
    await transport.start(sh("read go; cat | wc -c"))
    size = 1024 * 1024  # more than a pipe holds
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(transport.send, b"x" * size)
            while transport.health().state == "healthy":
                await anyio.lowlevel.checkpoint()
            assert transport.try_end_input() is False
            group.cancel_scope.cancel()
    await transport.close()
