"""`claude-agent-sdk`, measured through its public interface, doing the same work as `ours`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.subjects.clock import PROMPT, Stopwatch, expect, fake_cli, main, memory, parameter, round_trip

LINE_LIMIT = 128 * 1024 * 1024  # its default of 1 MiB would end the run on the long lines


def _run(work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    import asyncio

    import claude_agent_sdk

    assert claude_agent_sdk.query
    return asyncio.run(work())


def load() -> dict[str, Any]:
    watch = Stopwatch()
    import claude_agent_sdk

    assert claude_agent_sdk.query
    return {**watch.read(), "memory": memory()}


def stream() -> dict[str, Any]:
    return _run(_stream)


async def _stream() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, query

    count = 0
    partial = parameter("PARTIAL") == "1"
    options = ClaudeAgentOptions(cli_path=fake_cli(), include_partial_messages=partial, max_buffer_size=LINE_LIMIT)
    watch = Stopwatch()
    async for _ in query(prompt=PROMPT, options=options):
        count += 1
    numbers = watch.read()
    expect(count, int(parameter("COUNT")) + 2, "messages")
    return {**numbers, "memory": memory("VmHWM")}


def first() -> dict[str, Any]:
    cold = Stopwatch()
    return _run(lambda: _first(cold))


async def _first(cold: Stopwatch) -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, SystemMessage, query

    warm: list[float] = []
    options = ClaudeAgentOptions(cli_path=fake_cli())
    for index in range(int(parameter("QUERIES")) + 1):
        watch = cold if index == 0 else Stopwatch()
        seen = False
        # Read to the end: leaving the loop early would leave its child behind.
        async for message in query(prompt=PROMPT, options=options):
            if not seen:
                seen = True
                warm.append(watch.read()["wall"])
                assert isinstance(message, SystemMessage)
    return {"cold": warm.pop(0), "wall": statistics.median(warm)}


def many() -> dict[str, Any]:
    return _run(_many)


async def _many() -> dict[str, Any]:
    import asyncio

    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

    options = ClaudeAgentOptions(cli_path=fake_cli())

    async def one() -> None:
        last: Any = None
        async for message in query(prompt=PROMPT, options=options):
            last = message
        assert isinstance(last, ResultMessage)

    watch = Stopwatch()
    await asyncio.gather(*(one() for _ in range(int(parameter("QUERIES")))))
    return watch.read()


def control() -> dict[str, Any]:
    return _run(_control)


async def _control() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

    calls: list[float] = []
    async with ClaudeSDKClient(ClaudeAgentOptions(cli_path=fake_cli())) as client:
        for _ in range(int(parameter("CALLS"))):
            begun = time.perf_counter()
            await client.set_permission_mode("default")
            calls.append(time.perf_counter() - begun)
    return {"wall": statistics.median(calls)}


def hook() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

    asked: list[float] = []

    async def check(data: Any, tool_use_id: Any, context: Any) -> Any:
        asked.append(time.perf_counter())
        assert data["tool_name"] == "Bash"
        return {}

    return _answer(asked, ClaudeAgentOptions(cli_path=fake_cli(), hooks={"PreToolUse": [HookMatcher("Bash", [check])]}))


def permission() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, PermissionResultAllow

    asked: list[float] = []

    async def decide(tool_name: str, tool_input: Any, context: Any) -> Any:
        asked.append(time.perf_counter())
        assert tool_name == "Bash"
        return PermissionResultAllow()

    return _answer(asked, ClaudeAgentOptions(cli_path=fake_cli(), can_use_tool=decide))


def tool() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server
    from claude_agent_sdk import tool as sdk_tool

    asked: list[float] = []

    async def add(given: dict[str, Any]) -> dict[str, Any]:
        asked.append(time.perf_counter())
        return {"content": [{"type": "text", "text": f"The sum is {given['a'] + given['b']}."}]}

    made = sdk_tool("add", "Add two numbers.", {"a": int, "b": int})(add)
    servers = {"tools": create_sdk_mcp_server("tools", tools=[made])}
    return _answer(asked, ClaudeAgentOptions(cli_path=fake_cli(), mcp_servers=servers))


def _answer(asked: list[float], options: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        from claude_agent_sdk import ResultMessage, query

        last: Any = None
        async for message in query(prompt=PROMPT, options=options):
            last = message
        assert isinstance(last, ResultMessage)
        return round_trip(asked)

    return _run(ask)


def real() -> dict[str, Any]:
    return _run(_real)


async def _real() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

    last: Any = None
    options = ClaudeAgentOptions(cli_path=parameter("REAL"), system_prompt="", tools=[])
    watch = Stopwatch()
    async for message in query(prompt=PROMPT, options=options):
        last = message
    numbers = watch.read()
    assert isinstance(last, ResultMessage)
    assert not last.is_error, last.result
    return numbers


if __name__ == "__main__":
    main({work.__name__: work for work in (load, stream, first, many, control, hook, permission, tool, real)})
