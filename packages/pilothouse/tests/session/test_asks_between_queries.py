"""What the CLI asks while no prompt of a query is answered: the next query shows it, and may have to wait for it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from session_cli import TASK_ENDED, Cli, bash_request, start_task, talking

import pilothouse as ph
from pilothouse.messages.core import ASKED, SETTLED
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time, pytest.mark.parametrize("until", ["idle", "result"])]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_query_shows_what_waits_since_the_query_before(cli: Cli, until: Any, *, is_late: bool) -> None:
    cli.acts["start"] = start_task
    shown: list[str] = []
    heard: list[Any] = []
    async with talking(cli, asks=ph.Asks()) as session:
        messages = session.messages()
        await session.query("start", until="result")
        [peer] = cli.children
        await peer.write(bash_request("r1"))
        [ask] = [await session.asks.wait()]
        query = session.query("next", until=until)
        if is_late:
            await query.start()
        with anyio.fail_after(60):
            async for event in query.events():
                shown.append(type(event).__name__)
                if isinstance(event, ph.PermissionAsked):
                    assert event.id == ask.id
                    ask.allow()
                    await peer.write(TASK_ENDED)
        assert "PermissionAsked" not in [type(event).__name__ async for event in session.query("last").events()]
    heard += [message async for message in messages if isinstance(message, ph.SystemMessage)]
    assert (shown.count("PermissionAsked"), shown.count("PermissionSettled")) == (1, 1)
    assert [message.subtype for message in heard if message.subtype in (ASKED, SETTLED)] == [ASKED, SETTLED]


async def test_a_query_shows_what_has_to_be_decided_before_its_prompt_is_taken(cli: Cli, until: Any) -> None:
    """The CLI was woken and asks in a turn of its own, while the prompt waits in its queue."""
    cli.acts["start"] = start_task
    waiting: list[dict[str, Any]] = []
    shown: list[str] = []

    async def ask() -> None:
        await anyio.sleep(1)
        await peer.write(bash_request("r1"))

    async with talking(cli, asks=ph.Asks()) as session, anyio.create_task_group() as group:
        await session.query("start", until="result")
        [peer] = cli.children
        cli.hold = waiting.append
        await peer.write(TASK_ENDED)
        await peer.write(frames.init())
        group.start_soon(ask)
        with anyio.fail_after(60):
            async for event in session.query("next", until=until).events():
                shown.append(type(event).__name__)
                if isinstance(event, ph.PermissionAsked):
                    session.asks[event.id].allow()
                    await peer.write(frames.result("WOKEN", origin={"kind": "task-notification"}))
                    cli.take(0, waiting[0])
    assert shown.index("PermissionAsked") < shown.index("PermissionSettled") < shown.index("TextDelta")
    assert shown.count("Finished") == 1
