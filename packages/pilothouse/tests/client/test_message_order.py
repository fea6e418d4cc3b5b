"""A loop begins with the init message and has no word about what becomes of prompts, whatever the CLI says first."""

from __future__ import annotations

from typing import Any

import pytest

import pilothouse as ph
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio

HOOK = {"type": "system", "subtype": "hook_started", "hook_event": "SessionStart", "session_id": frames.SESSION_ID}
RESET = {"type": "conversation_reset", "new_conversation_id": "new", "session_id": "old"}


def kinds(messages: list[Any]) -> list[str]:
    return [getattr(message, "subtype", None) or message.type for message in messages]


async def test_what_comes_before_the_turn_is_given_after_its_beginning(fake: FakeCLI) -> None:
    fake.emit(HOOK).expect("user").emit(RESET, frames.init(session_id="new"), HOOK, frames.result("", session_id="new"))
    query = ph.query("/clear", cli=fake.path)
    seen = [message async for message in query]
    assert kinds(seen) == ["init", "hook_started", "conversation_reset", "hook_started", "success"]
    assert query.session_id == "new"


async def test_without_an_init_message_nothing_is_held_back(fake: FakeCLI) -> None:
    fake.expect("user").emit(HOOK, frames.assistant("Hello"), frames.init(), frames.result("Hello"))
    assert kinds((await ph.query("go", cli=fake.path)).messages) == ["hook_started", "assistant", "init", "success"]
    with FakeCLI() as dying:
        dying.expect("user").emit(HOOK).exit(1)
        query = ph.query("go", cli=dying.path)
        seen: list[Any] = []
        with pytest.raises(ph.CLIExitedError):  # noqa: PT012 - raised by the loop
            async for message in query:
                seen.append(message)
        assert kinds(seen) == ["hook_started"]


async def test_only_so_much_is_held_back(fake: FakeCLI) -> None:
    fake.expect("user").repeat(20_000, HOOK).emit(frames.init(), frames.result(""))
    assert kinds((await ph.query("go", cli=fake.path)).messages)[0] == "hook_started"


@pytest.mark.parametrize("transport", ["fake", "mock"])
async def test_a_session_keeps_lifecycle_messages_for_its_listeners(fake: FakeCLI, transport: str) -> None:
    frames_of_turn = [HOOK, frames.init(), frames.assistant("Hello"), frames.result("Hello")]
    how: dict[str, Any] = {"cli": fake.turn(*frames_of_turn).turn(*frames_of_turn).path}
    if transport == "mock":
        how = {"transport": mock_transport(frames_of_turn, frames_of_turn)}
    async with ph.session(**how) as session:
        listener = session.messages()
        for _ in range(2):
            result = await session.query("go")
            assert kinds(result.messages) == ["init", "hook_started", "assistant", "success"]
    reported = [message.raw["state"] async for message in listener if message.type == "command_lifecycle"]
    assert reported == ["queued", "started", "completed"] * 2
