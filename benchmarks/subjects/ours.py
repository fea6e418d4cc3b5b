"""pilothouse, measured through its public interface. Imports happen inside each measure, so that `load` counts them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

from benchmarks.subjects.clock import PROMPT, Stopwatch, expect, fake_cli, main, memory, parameter, round_trip
from benchmarks.subjects.texts import CALLS_IN, pieces, write_file

CALL_LIMIT = 128 * 1024 * 1024  # its default of 16 MiB would refuse the long call


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

    assert pilothouse.query
    import_module("anyio._backends._asyncio")  # every query needs it
    return {**watch.read(), "memory": memory()}


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
                warm.append(watch.read()["wall"])
                assert message.type == "system"
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

    calls: list[float] = []
    async with pilothouse.session(cli=fake_cli()) as session:
        for _ in range(int(parameter("CALLS"))):
            begun = time.perf_counter()
            await session.control("set_permission_mode", mode="default")
            calls.append(time.perf_counter() - begun)
    return {"wall": statistics.median(calls)}


def hook() -> dict[str, Any]:
    from pilothouse import HookMatcher

    asked: list[float] = []

    async def check(event: Any) -> Any:
        asked.append(time.perf_counter())
        assert event.tool_name == "Bash"
        return {}

    return _answer(asked, hooks={"PreToolUse": [HookMatcher("Bash", [check])]})


def permission() -> dict[str, Any]:
    from pilothouse import Allow

    asked: list[float] = []

    async def decide(request: Any) -> Any:
        asked.append(time.perf_counter())
        assert request.tool_name == "Bash"
        return Allow()

    return _answer(asked, can_use_tool=decide)


def tool() -> dict[str, Any]:
    import pilothouse

    asked: list[float] = []

    @pilothouse.tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        asked.append(time.perf_counter())
        return f"The sum is {a + b}."

    return _answer(asked, custom_tools=[add])


def _answer(asked: list[float], **settings: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        import pilothouse

        result = await pilothouse.query(PROMPT, cli=fake_cli(), **settings)
        assert result.is_success, result.error
        return round_trip(asked)

    return _run(ask)


def parse() -> dict[str, Any]:
    from pilothouse.tools.xml import StreamParser, TextDelta, ToolCall

    given, tools, repeats = pieces(), [write_file()], int(parameter("REPEATS"))
    calls = text = 0
    watch = Stopwatch()
    for _ in range(repeats):
        parser = StreamParser(tools=tools, max_call_chars=CALL_LIMIT)
        for piece in given:
            for event in parser.feed(piece):
                if isinstance(event, TextDelta):
                    text += len(event.text)
                elif isinstance(event, ToolCall):
                    calls += 1
        for event in parser.close():
            text += len(event.text) if isinstance(event, TextDelta) else 0
    wall = watch.read()["wall"] / repeats
    kind = parameter("KIND")
    expect(calls, CALLS_IN[kind](given) * repeats, "calls")
    if kind == "text":
        expect(text, sum(map(len, given)) * repeats, "characters")
    return {"wall": wall, "memory": memory("VmHWM")}


def real() -> dict[str, Any]:
    return _run(_real)


async def _real() -> dict[str, Any]:
    import pilothouse

    watch = Stopwatch()
    result = await pilothouse.query(PROMPT, cli=parameter("REAL"), system_prompt="", tools=[])
    numbers = watch.read()
    assert result.is_success, result.error
    return numbers


if __name__ == "__main__":
    main({work.__name__: work for work in (load, stream, first, many, control, hook, permission, tool, parse, real)})
