"""Those who listen beside a query: they hold the reader up only while they are there and do not read."""

from __future__ import annotations

import anyio
import pytest

from pilothouse.driver.subscriptions import UNREAD_SECONDS, MessageSubscription, Subscriptions
from pilothouse.driver.tasks import HIGH_WATER_BYTES
from pilothouse.messages import KeepAliveMessage

pytestmark = pytest.mark.anyio


async def wait_for_room(listeners: Subscriptions) -> None:
    while listeners.is_full:
        await listeners.wait_for_space()


@pytest.mark.requirement("E79", "G16")
@pytest.mark.parametrize("way", ["reads", "closes", "is dropped"])
async def test_a_full_listener_holds_the_reader_up_until_it_reads_or_goes(way: str) -> None:
    listeners = Subscriptions()
    listener: MessageSubscription | None = listeners.add()
    listeners.put([KeepAliveMessage()], HIGH_WATER_BYTES)
    assert listeners.is_full
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_room, listeners)
            await anyio.wait_all_tasks_blocked()
            assert listener is not None
            if way == "reads":
                assert (await anext(listener)).type == "keep_alive"
            elif way == "closes":
                await listener.aclose()
            else:
                listener = None
    assert not listeners.is_full


@pytest.mark.virtual_time
async def test_a_listener_that_does_not_read_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Subscriptions()
    listener = listeners.add()
    listeners.put([KeepAliveMessage()], HIGH_WATER_BYTES)
    async with anyio.create_task_group() as group:
        group.start_soon(wait_for_room, listeners)
        await anyio.sleep(UNREAD_SECONDS - 1)
        assert caplog.text == ""
        await anyio.sleep(60)
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "messages() are not read: 8 MiB" in record.message
        assert listeners.is_full
        await listener.aclose()  # the reader still waits, and goes on


async def test_a_listener_gets_later_messages_and_ends_with_the_session() -> None:
    listeners = Subscriptions()
    listeners.put([KeepAliveMessage()], 1)
    async with listeners.add() as listener:
        listeners.put([KeepAliveMessage()], 1)
        listeners.end()
        assert len([message async for message in listener]) == 1
    assert [message async for message in listeners.add()] == []
