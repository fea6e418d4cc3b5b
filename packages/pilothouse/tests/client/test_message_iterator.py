"""A loop over a query that is left in a block is gone on with: no message is lost, none comes twice."""

from __future__ import annotations

import pytest

import pilothouse as ph
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio


def story(fake: FakeCLI) -> None:
    texts = [frames.assistant(text, message_id=f"msg_{text}") for text in ("one", "two", "three")]
    fake.expect("user").emit(frames.init(), *texts, frames.result("done"))


@pytest.mark.requirement("E52")
async def test_the_next_loop_goes_on_where_one_was_left(fake: FakeCLI) -> None:
    story(fake)
    seen: list[str] = []
    async with ph.query("go", cli=fake.path) as query:
        while not seen or seen[-1] != "result":
            async for message in query:
                seen.append(message.type)
                break
    assert seen == ["system", "assistant", "assistant", "assistant", "result"]


async def test_another_kind_of_loop_goes_on_too(fake: FakeCLI) -> None:
    story(fake)
    async with ph.query("go", cli=fake.path) as query:
        async for text in query.text_stream():
            assert text == "one"
            break
        texts = [event.text async for event in query.events() if isinstance(event, ph.TextDelta)]
    assert texts == ["two", "three"]


async def test_the_rest_reaches_the_callback(fake: FakeCLI) -> None:
    story(fake)
    seen: list[str] = []
    async with ph.query("go", cli=fake.path, on_message=lambda m: seen.append(m.type)) as query:
        async for _ in query:
            break
        result = await query.result()
    assert len(result.messages) == 5
    assert seen == ["assistant", "assistant", "assistant", "result"]
