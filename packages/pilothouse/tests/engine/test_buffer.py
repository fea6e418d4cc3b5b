"""`MessageBuffer`: unread messages in order, whatever waits in memory and whatever waits on disk."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pilothouse.engine.buffer import STORE_BYTES, MessageBuffer
from pilothouse.messages import AssistantMessage, KeepAliveMessage, LineSkippedMessage, Message, from_dict
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

MESSAGE = from_dict(frames.assistant("x"))


def numbered(number: int) -> list[Message]:
    return [from_dict(frames.assistant(str(number)))]


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, AssistantMessage)]


async def read_all(buffer: MessageBuffer) -> list[Message]:
    messages: list[Message] = []
    while (batch := await buffer.get())[0]:
        messages += batch[0]
    return messages


@pytest.mark.requirement("E21")
async def test_what_comes_before_the_consumer_is_kept_in_order() -> None:
    buffer = MessageBuffer(100)
    batches = [numbered(n) for n in range(5)]
    for batch in batches:
        buffer.put(batch, 30)
    buffer.end()
    assert await buffer.get() == ([message for batch in batches[:4] for message in batch], 120)  # what is in memory
    assert await buffer.get() == (batches[4], 30)
    assert await buffer.get() == ([], 0)
    assert await buffer.get() == ([], 0)


@pytest.mark.requirement("E79", "G16")
@pytest.mark.parametrize("seed", range(8))
async def test_order_is_kept_whatever_waits_on_disk(seed: int) -> None:
    choose, buffer, put, got = random.Random(seed), MessageBuffer(3 * STORE_BYTES), 0, list[Message]()
    while put < 300:
        for _ in range(choose.randrange(40)):
            buffer.put(numbered(put), STORE_BYTES // choose.choice([1, 2, 5]))
            await buffer.store_excess()
            assert buffer._next_bytes + buffer._newest_bytes < 6 * STORE_BYTES
            put += 1
        wanted = min(len(got) + choose.randrange(40), put)
        while len(got) < wanted:
            got += (await buffer.get())[0]
    buffer.end()
    got += await read_all(buffer)
    assert texts(got) == [str(number) for number in range(put)]
    assert not buffer.is_behind


async def test_every_message_comes_back_from_disk_as_it_was() -> None:
    buffer = MessageBuffer(0)
    batch: list[Message] = [
        *frames_as_messages(),
        LineSkippedMessage(reason="not_json", size=3, text="hey"),
        MESSAGE,
    ]
    buffer.put(batch, STORE_BYTES)
    await buffer.store_excess()
    assert buffer.is_behind
    got, size = await buffer.get()
    assert (got, size) == (batch, STORE_BYTES)
    assert [message.raw_line for message in got] == [message.raw_line for message in batch]


def frames_as_messages() -> list[Message]:
    return [from_dict(frame) for frame in frames.sample_messages()]


async def test_a_cancelled_reader_loses_nothing() -> None:
    buffer = MessageBuffer(0)
    for number in range(20):
        buffer.put(numbered(number), STORE_BYTES)
        await buffer.store_excess()
    buffer.end()
    got: list[Message] = []
    while len(got) < 20:
        with anyio.move_on_after(0.0005):
            got += (await buffer.get())[0]
    assert texts(got) == [str(number) for number in range(20)]


@pytest.mark.parametrize("rounds", range(6))
async def test_a_producer_that_is_cancelled_loses_nothing(rounds: int) -> None:
    """The child may be ended at any moment; what it had sent is still read."""
    buffer = MessageBuffer(0)
    for number in range(3):
        buffer.put(numbered(number), STORE_BYTES)
    scope = anyio.CancelScope()

    async def store() -> None:
        with scope:
            await buffer.store_excess()

    async with anyio.create_task_group() as group:
        group.start_soon(store)
        for _ in range(rounds):
            await anyio.lowlevel.checkpoint()
        scope.cancel()
    buffer.put(numbered(3), 1)
    buffer.end()
    assert texts(await read_all(buffer)) == ["0", "1", "2", "3"]


async def test_without_a_disk_messages_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    buffer = MessageBuffer(0)
    for number in range(5):
        buffer.put(numbered(number), STORE_BYTES)
        await buffer.store_excess()
    buffer.end()
    assert texts(await read_all(buffer)) == [str(number) for number in range(5)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no space left" in caplog.text


async def test_a_message_that_cannot_be_stored_stays_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    class Local(KeepAliveMessage, frozen=True):
        """Of a middleware; pickle does not find it again."""

    buffer = MessageBuffer(0)
    odd: list[Message] = [Local(), MESSAGE]
    for batch in (numbered(0), odd, numbered(1)):
        buffer.put(batch, STORE_BYTES)
        await buffer.store_excess()
    buffer.end()
    assert [type(message).__name__ for message in await read_all(buffer)] == [
        "AssistantMessage", "Local", "AssistantMessage", "AssistantMessage",
    ]  # fmt: skip
    assert "cannot be stored" in caplog.text


async def test_a_message_too_deep_for_pickle_stays_in_memory() -> None:
    deep: dict[str, Any] = {}
    for _ in range(700):
        deep = {"a": deep}
    buffer = MessageBuffer(0)
    message = from_dict(frames.assistant([frames.tool_use("Bash", deep)]))
    for batch in ([message], numbered(1)):
        buffer.put(batch, STORE_BYTES)
        await buffer.store_excess()
    buffer.end()
    assert len(await read_all(buffer)) == 2


async def test_the_error_comes_after_the_messages_and_every_time() -> None:
    inbox = MessageBuffer()
    inbox.put([MESSAGE], 1)
    inbox.end(LookupError("first"))
    inbox.end(LookupError("second"))
    inbox.put([MESSAGE], 1)  # too late
    assert (await inbox.get())[0] == [MESSAGE]
    for _ in range(2):
        with pytest.raises(LookupError, match="first"):
            await inbox.get()


async def test_two_consumers_lose_and_repeat_nothing() -> None:
    inbox = MessageBuffer()
    got: list[Message] = []

    async def consume() -> None:
        while (batch := await inbox.get())[0]:
            got.extend(batch[0])
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        for n in range(1, 21):
            inbox.put(numbered(n), n)
            if n % 3 == 0:
                await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(1):
            inbox.end()
    assert sorted(texts(got), key=int) == [str(n) for n in range(1, 21)]
