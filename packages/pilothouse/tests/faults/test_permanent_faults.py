"""What has failed stays so, and what is not lost goes on: the same error every time, and the policy of restarts."""

from __future__ import annotations

import anyio
import pytest
from memory_cli import Memory

import pilothouse as ph
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


async def dies(peer: MemoryPeer) -> None:
    while (frame := await peer.read_frame()) is not None:
        if frame["type"] == "control_request":
            await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
        else:
            await peer.write(frames.assistant("part"))
            peer.end(signal="SIGKILL")


@pytest.mark.requirement("E68", "G41")
async def test_a_query_that_failed_fails_in_the_same_way_every_time() -> None:
    query = ph.query("go", transport=lambda: MemoryTransport(dies))
    errors: list[BaseException] = []
    for _ in range(2):
        with pytest.raises(ph.CLIExitedError) as caught:
            await query
        errors.append(caught.value)
        with pytest.raises(ph.CLIExitedError) as caught:
            async for _message in query:
                pass
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 1
    await query.interrupt()
    await query.aclose()
    with pytest.raises(ph.CLIExitedError):
        await query.result()


@pytest.mark.requirement("E69")
@pytest.mark.parametrize("restart", ["resume", "never"])
async def test_a_session_restarts_or_stays_failed_as_configured(restart: str) -> None:
    memory = Memory()
    made = [MemoryTransport(dies)]
    session = ph.Agent(transport=lambda: made.pop() if made else memory(), restart=restart).session()  # type: ignore[arg-type]
    errors: list[BaseException] = []
    with pytest.raises(ph.CLIExitedError) as first:
        await session.query("one")
    for _ in range(2):
        if restart == "resume":
            assert (await session.query("two")).text == "fine"
            continue
        with pytest.raises(ph.CLIExitedError) as caught:
            await session.query("two")
        errors.append(caught.value)
    if restart == "never":
        assert errors == [first.value, first.value]
        with pytest.raises(ph.CLIExitedError):
            await session.set_model("opus")
    assert session.restarts == (restart == "resume")
    with anyio.fail_after(5):
        await session.close()
    with pytest.raises(ph.SessionClosedError):
        session.query("three")
    assert not memory.open
