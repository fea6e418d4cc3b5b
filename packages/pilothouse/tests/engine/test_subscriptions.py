"""Subscriptions to the messages of a session, beside its queries."""

from __future__ import annotations

import anyio
import pytest

from pilothouse.engine.buffer import MEMORY_BYTES
from pilothouse.engine.router import MessageSubscription, Subscriptions
from pilothouse.messages import AssistantMessage, KeepAliveMessage, from_dict
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("E79", "G16")
async def test_a_subscription_that_is_not_read_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    subscriptions = Subscriptions()
    subscription = subscriptions.add()
    for _ in range(3):
        subscriptions.put([KeepAliveMessage()], MEMORY_BYTES)
        await subscriptions.store_excess()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "messages() of the session are not read: 8 MiB" in record.message
    assert subscriptions.is_behind
    for _ in range(3):
        assert (await anext(subscription)).type == "keep_alive"
    assert not subscriptions.is_behind


@pytest.mark.parametrize("way", ["closes", "is dropped"])
async def test_a_subscription_that_goes_keeps_nothing(way: str) -> None:
    subscriptions = Subscriptions()
    subscription: MessageSubscription | None = subscriptions.add()
    subscriptions.put([KeepAliveMessage()], MEMORY_BYTES)
    assert subscription is not None
    if way == "closes":
        await subscription.aclose()
    else:
        subscription = None
    subscriptions.put([KeepAliveMessage()], MEMORY_BYTES)
    await subscriptions.store_excess()
    assert not subscriptions.is_behind


async def test_a_listener_gets_later_messages_and_ends_with_the_session() -> None:
    listeners = Subscriptions()
    listeners.put([KeepAliveMessage()], 1)
    async with listeners.add() as listener:
        listeners.put([KeepAliveMessage()], 1)
        listeners.end()
        assert len([message async for message in listener]) == 1
    assert [message async for message in listeners.add()] == []


async def test_tasks_that_read_together_lose_no_message() -> None:
    subscriptions, got = Subscriptions(), list[str]()
    subscription = subscriptions.add()

    async def read() -> None:
        async for message in subscription:
            assert isinstance(message, AssistantMessage)
            await anyio.sleep(0.002)
            got.append(message.text)

    async with anyio.create_task_group() as readers:
        readers.start_soon(read)
        readers.start_soon(read)
        for first in range(0, 15, 3):
            await anyio.sleep(0.001)
            for number in range(first, first + 3):
                subscriptions.put([from_dict(frames.assistant(str(number)))], 10)
        subscriptions.end()
    assert sorted(got, key=int) == [str(number) for number in range(15)]
