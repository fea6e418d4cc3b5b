"""pilothouse, measured through its public interface. Imports happen inside each measure, so that `load` counts them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Coroutine
from importlib import import_module
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
from benchmarks.subjects.kept_sessions import WANTED, list_all, read_all


def _run(work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    import asyncio

    import pilothouse

    assert pilothouse.query
    # anyio loads its event loop when it is first used; `load` and `first` count that, and nothing else does. The import
    # of the incumbent has it in it.
    import_module("anyio._backends._asyncio")
    return asyncio.run(work())


def load() -> dict[str, Any]:
    watch = Stopwatch()
    import pilothouse

    statement = watch.read()["wall"]
    assert pilothouse.query
    import_module("anyio._backends._asyncio")  # every query needs it
    return {**watch.read(), "statement": statement, "memory": memory()}


def load_drop_in() -> dict[str, Any]:
    watch = Stopwatch()
    sdk = import_module("pilothouse_compat.claude_agent_sdk")
    statement = watch.read()["wall"]
    assert sdk.query
    import_module("pilothouse_compat.claude_agent_sdk._internal.query")  # a query needs it, and the event loop
    import_module("anyio._backends._asyncio")
    return {**watch.read(), "statement": statement}


def stream() -> dict[str, Any]:
    return _run(_stream)


async def _stream() -> dict[str, Any]:
    import pilothouse

    count = 0
    partial = parameter("PARTIAL") == "1"
    watch = Stopwatch()
    async for _ in pilothouse.query(PROMPT, cli=fake_cli(), partial_messages=partial):
        count += 1
    numbers = watch.read()
    expect(count, int(parameter("COUNT")) + 2, "messages")
    return {**numbers, "memory": memory("VmHWM")}


def blocking() -> dict[str, Any]:
    """The same work as `stream`, without an event loop of one's own."""
    from pilothouse import sync

    # As in `_run`: what is measured is the work, not the imports.
    assert sync.query
    import_module("anyio._backends._asyncio")
    count = 0
    watch = Stopwatch()
    for _ in sync.query(PROMPT, cli=fake_cli()):
        count += 1
    numbers = watch.read()
    expect(count, int(parameter("COUNT")) + 2, "messages")
    return {**numbers, "memory": memory("VmHWM")}


def kept() -> dict[str, Any]:
    return _run(_kept)


async def _kept() -> dict[str, Any]:
    import pilothouse

    before = settled_memory()
    watch = Stopwatch()
    result = await pilothouse.query(PROMPT, cli=fake_cli())
    numbers = watch.read()
    expect(len(result.messages), int(parameter("COUNT")) + 2, "messages")
    return {**numbers, "memory": (settled_memory() - before) / len(result.messages) * MILLION}


def idle() -> dict[str, Any]:
    return _run(_idle)


async def _idle() -> dict[str, Any]:
    from contextlib import AsyncExitStack

    import pilothouse

    count = int(parameter("SESSIONS"))
    async with AsyncExitStack() as stack:

        async def talk() -> None:
            session = await stack.enter_async_context(pilothouse.session(cli=fake_cli()))
            result = await session.query(PROMPT)
            assert result.is_success, result.error

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
    import pilothouse

    warm: list[float] = []
    for index in range(int(parameter("QUERIES")) + 1):
        watch = cold if index == 0 else Stopwatch()
        async with pilothouse.query(PROMPT, cli=fake_cli()) as query:
            async for message in query:
                if message.type == "assistant":
                    warm.append(watch.read()["wall"])
                    break
    return {"cold": warm.pop(0), "wall": statistics.median(warm)}


def many() -> dict[str, Any]:
    return _run(_many)


async def _many() -> dict[str, Any]:
    import asyncio

    import pilothouse

    async def one() -> None:
        result = await pilothouse.query(PROMPT, cli=fake_cli())
        assert result.is_success

    watch = Stopwatch()
    await asyncio.gather(*(one() for _ in range(int(parameter("QUERIES")))))
    return watch.read()


def control() -> dict[str, Any]:
    return _run(_control)


async def _control() -> dict[str, Any]:
    import pilothouse

    asked = RoundTrips()
    async with pilothouse.session(cli=fake_cli()) as session:
        for _ in range(int(parameter("CALLS"))):
            asked.note()
            await session.control("set_permission_mode", mode="default")
    return asked.numbers()


def controls() -> dict[str, Any]:
    """Control requests, several at a time: for `benchmarks.guard`."""
    return _run(_controls)


async def _controls() -> dict[str, Any]:
    import asyncio

    import pilothouse

    asked, ahead = RoundTrips(), int(parameter("AHEAD"))
    async with pilothouse.session(cli=fake_cli()) as session:

        async def ask() -> None:
            asked.note()
            await session.control("set_permission_mode", mode="default")

        for _ in range(int(parameter("CALLS")) // ahead):
            await asyncio.gather(*(ask() for _ in range(ahead)))
    return asked.numbers()


def hook() -> dict[str, Any]:
    from pilothouse import HookMatcher

    asked = RoundTrips()

    async def check(event: Any) -> Any:
        asked.note()
        assert event.tool_name == "Bash"
        return {}

    return _answer(asked, hooks={"PreToolUse": [HookMatcher("Bash", [check])]})


def permission() -> dict[str, Any]:
    from pilothouse import Allow

    asked = RoundTrips()

    async def decide(request: Any) -> Any:
        asked.note()
        assert request.tool_name == "Bash"
        return Allow()

    return _answer(asked, can_use_tool=decide)


def tool() -> dict[str, Any]:
    asked = RoundTrips()
    return _answer(asked, custom_tools=_tools(asked))


def _tools(asked: RoundTrips) -> list[Any]:
    """As many tools as are asked for; the last of them is called."""
    import pilothouse

    def made(number: int) -> Any:
        @pilothouse.tool(name=f"add_{number}")
        async def add(a: int, b: int) -> str:
            """Add two numbers."""
            return f"The sum is {a + b}."

        return add

    @pilothouse.tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        asked.note()
        return f"The sum is {a + b}."

    return [*map(made, range(int(parameter("TOOLS")) - 1)), add]


def declare() -> dict[str, Any]:
    """From no tools to the first call of one: schemas, the handshake, the list that the CLI asks for."""
    return _run(_declare)


async def _declare() -> dict[str, Any]:
    import pilothouse

    watch = Stopwatch()
    asked = RoundTrips()
    result = await pilothouse.query(PROMPT, cli=fake_cli(), custom_tools=_tools(asked))
    assert result.is_success, result.error
    return watch.read()


def _answer(asked: RoundTrips, **settings: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        import pilothouse

        result = await pilothouse.query(PROMPT, cli=fake_cli(), **settings)
        assert result.is_success, result.error
        return asked.numbers()

    return _run(ask)


def sessions() -> dict[str, Any]:
    from pilothouse_transcripts import list_sessions

    return list_all(list_sessions)


def transcript() -> dict[str, Any]:
    from pilothouse_transcripts import get_session_messages

    return read_all(get_session_messages)


def search() -> dict[str, Any]:
    from pilothouse_transcripts import search_sessions

    watch = Stopwatch()
    found = list(search_sessions(WANTED, config_dir=parameter("SCENARIO")))
    numbers = watch.read()
    expect(len(found), int(parameter("HITS")), "hits")
    return {**numbers, "memory": memory("VmHWM")}


def host() -> dict[str, Any]:
    from benchmarks.subjects.clients import watch

    return watch("ours")


def fleet() -> dict[str, Any]:
    from pathlib import Path

    from benchmarks.fleet import child

    return child(parameter("WAY"), int(parameter("RUNS")), fake_cli(), Path.home())


def real() -> dict[str, Any]:
    return _run(_real)


async def _real() -> dict[str, Any]:
    import pilothouse

    watch = Stopwatch()
    result = await pilothouse.query(PROMPT, cli=parameter("REAL"), system_prompt="", tools=[])
    numbers = watch.read()
    assert result.is_success, result.error
    return numbers


def pool() -> dict[str, Any]:
    return _run(_pool)


async def _pool() -> dict[str, Any]:
    """The first query starts its child; the second one finds one that waits."""
    import pilothouse
    from pilothouse_pool import Pool

    agent = pilothouse.Agent(cli=parameter("REAL"), system_prompt="", tools=[])
    cold, _ = await _times(agent)
    async with Pool() as pool:
        agent = agent.with_options(transport=pool)
        await agent.prewarm()
        warm, answer = await _times(agent)
    return {"wall": warm, "answer": answer, "cold": cold}


async def _times(agent: Any) -> tuple[float, float]:
    """Of one query: the seconds to its first assistant message, and to its result."""
    watch = Stopwatch()
    times: list[float] = []
    async with agent.query(PROMPT) as query:
        async for message in query:
            if message.type in ("assistant", "result"):
                times.append(watch.read()["wall"])
            assert not getattr(message, "is_error", False), message
    return times[0], times[-1]


if __name__ == "__main__":
    main(load, load_drop_in, stream, blocking, kept, idle, first, many, control, controls, hook, permission, tool,
         declare, sessions, transcript, search, host, fleet, real,
         pool)  # fmt: skip
