"""How long the control path takes when nobody reads, or the caller of the blocking twin sleeps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
from session_cli import Cli, Say, talking

import pilothouse as ph
from pilothouse import sync
from pilothouse_testing import FakeCLI, frames

CALLS = 40


@pytest.mark.anyio
@pytest.mark.requirement("R17", "G49", "E34")
@pytest.mark.parametrize("who", ["query", "session"])
async def test_an_interrupt_passes_ten_thousand_unread_messages_within_a_second(cli: Cli, who: str) -> None:
    output = anyio.Event()

    async def flood(cli: Cli, say: Say, text: str) -> str:
        for number in range(10_000):
            await say(frames.assistant("x", message_id=f"m{number}"))
        output.set()
        await anyio.sleep_forever()
        raise AssertionError

    cli.acts["flood"] = flood
    async with talking(cli) as session:
        query = session.query("flood")
        await query.start()
        with anyio.move_on_after(2):
            await output.wait()  # or the child is held up: then the rest is unread in the pipe
        begun = anyio.current_time()
        await (query if who == "query" else session).interrupt()
        assert anyio.current_time() - begun < 1
        assert (await query.result()).outcome == "interrupted"
        assert (await session.query("next")).text == "re: next"


def calls_tools(child: Any) -> None:
    """A CLI that calls a tool of the host, again and again, and says how many seconds each answer took."""
    import json
    import time

    child.expect("user")
    child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332"})
    took: list[float] = []
    for number in range(40):
        call = {"name": "now", "arguments": {}}
        message = {"jsonrpc": "2.0", "id": number + 1, "method": "tools/call", "params": call}
        began = time.monotonic()
        answer = child.ask("mcp_message", server_name="tools", message=message)
        took.append(time.monotonic() - began)
        assert "half past nine" in json.dumps(answer)
    text = json.dumps(took)
    child.emit({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})
    child.emit({"type": "result", "subtype": "success", "is_error": False, "result": text})


@pytest.fixture(params=["query", "session"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., sync.Query]]:
    """Starts a blocking query, of its own or of a session."""
    with ExitStack() as stack:

        def begin(**settings: Any) -> sync.Query:
            if request.param == "query":
                return sync.query("go", **settings).start()
            return stack.enter_context(sync.session(**settings)).query("go").start()

        yield begin


@pytest.mark.requirement("R13", "E18")
def test_a_tool_call_is_answered_within_50_ms_while_the_caller_sleeps(start: Callable[..., sync.Query]) -> None:
    @ph.tool
    def now() -> str:
        """The time."""
        return "half past nine"

    def answered(fake: FakeCLI) -> int:
        return sum(frame["type"] == "control_response" for call in fake.calls for frame in call.frames)

    with FakeCLI.from_function(calls_tools) as fake:
        query = start(cli=fake.path, custom_tools=[now])
        deadline = time.monotonic() + 20
        while answered(fake) < CALLS:  # nobody reads, and nobody waits in a call
            assert time.monotonic() < deadline
            time.sleep(0.05)
        took = sorted(json.loads(query.result().text))
    assert len(took) == CALLS
    assert took[CALLS // 2] < 0.05, took  # the median: single ones may meet a busy machine
