"""A tool result that was lost in a spoiled line does not keep `idle_timeout` resting for ever."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from failing_api import DEADLINE, Api, asking
from session_cli import Cli, Say, hang

import pilothouse as ph
from pilothouse.engine import activity
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

USE = frames.assistant([frames.tool_use("Bash", id="t1")], message_id="m1")
WHOLE = json.dumps(frames.user_tool_result("done", tool_use_id="t1")).encode()
KEEP_ALIVE = b'{"type":"keep_alive"}\n'
LOST: dict[str, list[Any]] = {
    "a wrong first byte": [b"\x00" + WHOLE[1:] + b"\n"],
    "a line that breaks off": [WHOLE[:150] + b"\n"],
    "the end of a line is gone": [WHOLE[:30] + b"\n"],
    "its type is another one": [WHOLE.replace(b'"user"', b'"uzer"', 1) + b"\n"],
    "in one piece with the call": [json.dumps(USE).encode() + b"\n" + WHOLE[:30] + b"\n" + KEEP_ALIVE],
    "gone, and the model goes on": [frames.assistant("And now", message_id="m2")],
    "gone, and another tool has ended": [
        frames.assistant([frames.tool_use("Bash", id="t2")], message_id="m2"),
        frames.user_tool_result("done", tool_use_id="t2"),
    ],
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("how", LOST)
async def test_silence_counts_again(kind: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "LOST_RESULT_SECONDS", 0.1)

    async def loses(cli: Cli, say: Any, text: str) -> str:
        for frame in ([USE] if how != "in one piece with the call" else []) + LOST[how]:
            await say(frame)
        return await hang(cli, say, text)

    api = Api()
    api.acts["one"] = loses
    async with asking(api, kind) as it:
        with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout, match="idle_timeout"):
            await it.query("one", idle_timeout=0.2)
        assert (await it.query("two")).text == "re: two"


async def test_a_tool_that_only_runs_for_long_is_waited_for(kind: str) -> None:
    async def runs(_: Cli, say: Say, text: str) -> str:
        await say(USE)
        await anyio.sleep(0.5)
        await say(frames.user_tool_result("done", tool_use_id="t1"))
        return "done"

    api = Api()
    api.acts["one"] = runs
    async with asking(api, kind) as it:
        with anyio.fail_after(DEADLINE):
            assert (await it.query("one", idle_timeout=0.2)).text == "done"


async def test_a_line_of_something_else_ends_no_tool(kind: str) -> None:
    async def runs(_: Cli, say: Any, text: str) -> str:
        await say(USE)
        await say(b'{"type":"assistant","message":{"content":[{"type":"te\n')
        await anyio.sleep(0.5)
        await say(frames.user_tool_result("done", tool_use_id="t1"))
        return "done"

    api = Api()
    api.acts["one"] = runs
    async with asking(api, kind) as it:
        with anyio.fail_after(DEADLINE):
            assert (await it.query("one", idle_timeout=0.2)).text == "done"
