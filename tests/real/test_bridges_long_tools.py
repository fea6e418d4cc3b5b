"""A tool that takes longer than any limit of the CLI, with the session intact; for minutes, so behind `slow`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from bridge_models import Bridge, read_results, session_of

from pilothouse_testing import ScriptedModel, Steps

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, pytest.mark.slow]

SECONDS = 75.0


async def test_a_tool_that_takes_long(claude: Any, model: ScriptedModel, bridge: Bridge) -> None:
    async def patient() -> str:
        """Takes more than a minute."""
        await anyio.sleep(SECONDS)
        return "at last"

    model.reply(Steps(bridge.calls(("patient", {})), bridge.tell))
    model.on("again", "here I am")
    async with session_of(claude, bridge, patient) as session:
        with anyio.fail_after(SECONDS + 30):
            assert read_results(await session.query("go")) == [(False, "at last")]
            assert (await session.query("again")).text == "here I am"
            assert session.restarts == 0
