"""`claude-agent-sdk`, measured through its public interface, doing the same work as `ours`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.subjects.clock import (
    MILLION,
    PROMPT,
    RoundTrips,
    Stopwatch,
    expect,
    fake_cli,
    main,
    memory,
    parameter,
    settled_memory,
)
from benchmarks.subjects.kept_sessions import list_all, read_all

LINE_LIMIT = 128 * 1024 * 1024  # its default of 1 MiB would end the run on the long lines


def _run(work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    import asyncio

    import claude_agent_sdk

    assert claude_agent_sdk.query
    return asyncio.run(work())


def load() -> dict[str, Any]:
    watch = Stopwatch()
    import claude_agent_sdk

    statement = watch.read()["wall"]
    assert claude_agent_sdk.query
    return {**watch.read(), "statement": statement, "memory": memory()}


def load_drop_in() -> dict[str, Any]:
    return load()


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


def blocking() -> dict[str, Any]:
    """It has no blocking form: plain code wraps it in `asyncio.run`, which is `stream`."""
    return stream()


def kept() -> dict[str, Any]:
    return _run(_kept)


async def _kept() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, query

    before = settled_memory()
    watch = Stopwatch()
    messages = [message async for message in query(prompt=PROMPT, options=ClaudeAgentOptions(cli_path=fake_cli()))]
    numbers = watch.read()
    expect(len(messages), int(parameter("COUNT")) + 2, "messages")
    return {**numbers, "memory": (settled_memory() - before) / len(messages) * MILLION}


def idle() -> dict[str, Any]:
    return _run(_idle)


async def _idle() -> dict[str, Any]:
    from contextlib import AsyncExitStack

    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

    count = int(parameter("SESSIONS"))
    async with AsyncExitStack() as stack:

        async def talk() -> None:
            client = await stack.enter_async_context(ClaudeSDKClient(ClaudeAgentOptions(cli_path=fake_cli())))
            await client.query(PROMPT)
            answers = [message async for message in client.receive_response()]
            assert isinstance(answers[-1], ResultMessage)

        await talk()
        before = settled_memory()
        watch = Stopwatch()
        for _ in range(count):
            await talk()
        each = (settled_memory() - before) / count
    return {**watch.read(), "memory": each}


def first() -> dict[str, Any]:
    cold = Stopwatch()
    return _run(lambda: _first(cold))


async def _first(cold: Stopwatch) -> dict[str, Any]:
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, query

    warm: list[float] = []
    options = ClaudeAgentOptions(cli_path=fake_cli())
    for index in range(int(parameter("QUERIES")) + 1):
        watch = cold if index == 0 else Stopwatch()
        seen = False
        # Read to the end: leaving the loop early would leave its child behind.
        async for message in query(prompt=PROMPT, options=options):
            if not seen and isinstance(message, AssistantMessage):
                seen = True
                warm.append(watch.read()["wall"])
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

    asked = RoundTrips()
    async with ClaudeSDKClient(ClaudeAgentOptions(cli_path=fake_cli())) as client:
        for _ in range(int(parameter("CALLS"))):
            asked.note()
            await client.set_permission_mode("default")
    return asked.numbers()


def hook() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

    asked = RoundTrips()

    async def check(data: Any, tool_use_id: Any, context: Any) -> Any:
        asked.note()
        assert data["tool_name"] == "Bash"
        return {}

    return _answer(asked, ClaudeAgentOptions(cli_path=fake_cli(), hooks={"PreToolUse": [HookMatcher("Bash", [check])]}))


def permission() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, PermissionResultAllow

    asked = RoundTrips()

    async def decide(tool_name: str, tool_input: Any, context: Any) -> Any:
        asked.note()
        assert tool_name == "Bash"
        return PermissionResultAllow()

    return _answer(asked, ClaudeAgentOptions(cli_path=fake_cli(), can_use_tool=decide))


def tool() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions

    asked = RoundTrips()
    return _answer(asked, ClaudeAgentOptions(cli_path=fake_cli(), mcp_servers=_tools(asked)))


def _tools(asked: RoundTrips) -> dict[str, Any]:
    """As many tools as are asked for; the last of them is called."""
    from claude_agent_sdk import create_sdk_mcp_server
    from claude_agent_sdk import tool as sdk_tool

    def made(name: str, *, is_called: bool = False) -> Any:
        async def add(given: dict[str, Any]) -> dict[str, Any]:
            if is_called:
                asked.note()
            return {"content": [{"type": "text", "text": f"The sum is {given['a'] + given['b']}."}]}

        return sdk_tool(name, "Add two numbers.", {"a": int, "b": int})(add)

    others = [made(f"add_{number}") for number in range(int(parameter("TOOLS")) - 1)]
    return {"tools": create_sdk_mcp_server("tools", tools=[*others, made("add", is_called=True)])}


def declare() -> dict[str, Any]:
    return _run(_declare)


async def _declare() -> dict[str, Any]:
    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

    watch = Stopwatch()
    last: Any = None
    options = ClaudeAgentOptions(cli_path=fake_cli(), mcp_servers=_tools(RoundTrips()))
    async for message in query(prompt=PROMPT, options=options):
        last = message
    assert isinstance(last, ResultMessage)
    return watch.read()


def _answer(asked: RoundTrips, options: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        from claude_agent_sdk import ResultMessage, query

        last: Any = None
        async for message in query(prompt=PROMPT, options=options):
            last = message
        assert isinstance(last, ResultMessage)
        return asked.numbers()

    return _run(ask)


def sessions() -> dict[str, Any]:
    from claude_agent_sdk import list_sessions

    return list_all(list_sessions)


def transcript() -> dict[str, Any]:
    from claude_agent_sdk import get_session_messages

    return read_all(get_session_messages)


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


def pool() -> dict[str, Any]:
    return _run(_pool)


async def _pool() -> dict[str, Any]:
    """It has no pool: every query starts its child."""
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, query

    options = ClaudeAgentOptions(cli_path=parameter("REAL"), system_prompt="", tools=[])
    watch = Stopwatch()
    times: list[float] = []
    async for message in query(prompt=PROMPT, options=options):
        if isinstance(message, AssistantMessage | ResultMessage):
            times.append(watch.read()["wall"])
        assert not getattr(message, "is_error", False), message
    return {"wall": times[0], "answer": times[-1], "cold": times[0]}


if __name__ == "__main__":
    main(
        load,
        load_drop_in,
        stream,
        blocking,
        kept,
        idle,
        first,
        many,
        control,
        hook,
        permission,
        tool,
        declare,
        sessions,
        transcript,
        real,
        pool,
    )
