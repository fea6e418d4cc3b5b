"""`Session.update` while a query runs: hooks wait for its end, everything else holds at once, and nothing is lost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from session_cli import Cli, hang, talking

import pilothouse as ph

pytestmark = pytest.mark.anyio


def watch(event: Any) -> None: ...


def matched(cli: Cli) -> list[str]:
    """The events with hooks in each handshake."""
    return [" ".join(each.get("hooks") or {}) for each in cli.handshakes]


async def use(cli: Cli, say: Any, text: str) -> str:
    """Asks whether a tool may run, and waits for the interrupt."""
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": "t"}
    await say({"type": "control_request", "request_id": f"ask {text}", "request": request})
    await anyio.sleep_forever()
    raise AssertionError


async def test_hooks_whose_update_was_cancelled_are_told_when_given_again(cli: Cli) -> None:
    cli.acts["hang"] = hang
    async with talking(cli, can_use_tool=lambda request: True) as session:
        query = await session.query("hang").start()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await session.update(hooks={"PreToolUse": watch})
        await query.interrupt()
        assert matched(cli) == [""]
        await session.update(hooks={"PreToolUse": watch})
        assert matched(cli) == ["", "PreToolUse"]
        await session.update(hooks={"PreToolUse": watch})
        assert matched(cli) == ["", "PreToolUse"]


async def test_hooks_that_the_cli_has_not_confirmed_are_told_again(cli: Cli) -> None:
    async with talking(cli, can_use_tool=lambda request: True, control_timeout=1.0) as session:
        cli.silent.add("initialize")
        with pytest.raises(ph.ControlTimeout):
            await session.update(hooks={"PreToolUse": watch})
        cli.silent.clear()
        await session.update(hooks={"PreToolUse": watch})
        assert matched(cli) == ["", "PreToolUse", "PreToolUse"]


async def test_a_permission_handler_holds_while_other_hooks_wait(cli: Cli) -> None:
    asked: list[str] = []

    def decide(name: str) -> Any:
        return lambda request: asked.append(name) or False

    cli.acts.update(hang=hang, one=use, two=use)
    with anyio.fail_after(20):
        async with talking(cli, can_use_tool=decide("first")) as session, anyio.create_task_group() as group:
            query = await session.query("hang").start()
            group.start_soon(lambda: session.update(hooks={"PreToolUse": watch}))
            while session.options.hooks is None:
                await checkpoint()
            await session.update(can_use_tool=decide("second"))
            await query.interrupt()
            while len(cli.handshakes) == 1:
                await checkpoint()
            second = await session.query("one").start()  # kept: a query that nobody holds is closed
            while not asked:
                await checkpoint()
            await second.interrupt()
            assert asked == ["second"]
