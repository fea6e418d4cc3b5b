"""The least that any client in Python has to do for the same work: the floor that nobody gets below for long.

It reads and decodes, and does nothing else: no types, no checks, no control protocol, no care for a child that hangs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

from benchmarks.subjects.clock import PROMPT, Stopwatch, expect, fake_cli, main, memory, parameter, round_trip
from benchmarks.subjects.texts import pieces

READ_BYTES = 256 * 1024
SMALL_READ = 64 * 1024  # for a line: malloc maps fresh pages for more than twice that, which costs 6 µs each time
ARGV = ["--output-format", "stream-json", "--verbose", "--input-format", "stream-json"]
INITIALIZE = b'{"type":"control_request","request_id":"r","request":{"subtype":"initialize"}}\n'
USER = b'{"type":"user","session_id":"","message":{"role":"user","content":"%s"},"parent_tool_use_id":null}\n'
OPENING = INITIALIZE + USER % PROMPT.encode()


def _run(work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    import asyncio

    import anyio
    import msgspec

    # As in `ours`: anyio loads its event loop when it is first used, and that is counted by `load`.
    assert import_module("anyio._backends._asyncio"), (anyio, msgspec)
    return asyncio.run(work())


def load() -> dict[str, Any]:
    watch = Stopwatch()
    import asyncio

    import anyio
    import msgspec

    assert import_module("anyio._backends._asyncio"), (asyncio, anyio, msgspec)
    return {**watch.read(), "memory": memory()}


def stream() -> dict[str, Any]:
    return _run(_stream)


async def _stream() -> dict[str, Any]:
    import anyio
    import msgspec

    decode = msgspec.json.decode
    count = 0
    held: list[bytes] = []
    watch = Stopwatch()
    process = await anyio.open_process([fake_cli(), *ARGV], stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(OPENING)
    await process.stdin.aclose()
    while True:
        try:
            chunk = await process.stdout.receive(READ_BYTES)
        except anyio.EndOfStream:
            break
        lines = chunk.split(b"\n")
        tail = lines.pop()
        if held and lines:
            lines[0] = b"".join((*held, lines[0]))
            held.clear()
        if tail:
            held.append(tail)
        for line in lines:
            decode(line)
            count += 1
    await process.wait()
    numbers = watch.read()
    expect(count, int(parameter("COUNT")) + 3, "lines")
    return {**numbers, "memory": memory("VmHWM")}


def first() -> dict[str, Any]:
    cold = Stopwatch()
    import asyncio

    return asyncio.run(_first(cold))


async def _first(cold: Stopwatch) -> dict[str, Any]:
    import asyncio

    import msgspec

    warm: list[float] = []
    for index in range(int(parameter("QUERIES")) + 1):
        watch = cold if index == 0 else Stopwatch()
        process = await asyncio.create_subprocess_exec(
            fake_cli(), *ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(OPENING)
        while msgspec.json.decode(await process.stdout.readline())["type"] != "system":
            pass
        warm.append(watch.read()["wall"])
        process.stdin.close()
        await process.communicate()
    return {"cold": warm.pop(0), "wall": statistics.median(warm)}


def many() -> dict[str, Any]:
    return _run(_many)


async def _many() -> dict[str, Any]:
    import asyncio

    async def one() -> None:
        process = await asyncio.create_subprocess_exec(
            fake_cli(), *ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        output, _ = await process.communicate(OPENING)
        assert output.endswith(b"}\n")

    watch = Stopwatch()
    await asyncio.gather(*(one() for _ in range(int(parameter("QUERIES")))))
    return watch.read()


def control() -> dict[str, Any]:
    """A bare ping-pong over two pipes, blocking: no event loop, no JSON."""
    calls: list[float] = []
    with subprocess.Popen([fake_cli(), *ARGV], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        writer, reader = process.stdin.fileno(), process.stdout.fileno()
        for _ in range(int(parameter("CALLS"))):
            begun = time.perf_counter()
            os.write(writer, INITIALIZE)
            os.read(reader, SMALL_READ)
            calls.append(time.perf_counter() - begun)
    return {"wall": statistics.median(calls)}


ANSWER = (
    b'{"type":"control_response","response":{"subtype":"success","request_id":"8d5884d1-3f4d-4ea0-ad93-0c0d10000001",'
    b'"response":%s}}\n'
)
TEXT_RESULT = (
    b'{"mcp_response":{"jsonrpc":"2.0","id":10000001,"result":{"content":[{"type":"text","text":"The sum is 5."}]}}}'
)


def hook() -> dict[str, Any]:
    return _answer(b"{}")


def permission() -> dict[str, Any]:
    return _answer(b'{"behavior":"allow","updatedInput":{"command":"touch notes.txt"}}')


def tool() -> dict[str, Any]:
    return _answer(TEXT_RESULT, before=3)


def _answer(payload: bytes, *, before: int = 0) -> dict[str, Any]:
    """As `control`, the other way round; `before` is how many questions come before the one that is measured."""
    asked: list[float] = []
    answer = ANSWER % payload
    with subprocess.Popen([fake_cli(), *ARGV], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        writer, reader = process.stdin.fileno(), process.stdout.fileno()
        os.write(writer, OPENING)
        seen = b""
        while b'"control_request"' not in seen:
            seen = os.read(reader, SMALL_READ)
        while b'"result"' not in seen:
            asked.append(time.perf_counter())
            os.write(writer, answer)
            seen = os.read(reader, SMALL_READ)
        process.stdin.close()
    return round_trip(asked[before:])


def parse() -> dict[str, Any]:
    """Where the tags begin, and nothing else."""
    given, repeats = pieces(), int(parameter("REPEATS"))
    found = 0
    watch = Stopwatch()
    for _ in range(repeats):
        for piece in given:
            at = piece.find("<")
            while at >= 0:
                found += 1
                at = piece.find("<", at + 1)
    wall = watch.read()["wall"] / repeats
    expect(found, sum(piece.count("<") for piece in given) * repeats, "tags")
    return {"wall": wall, "memory": memory("VmHWM")}


def real() -> dict[str, Any]:
    watch = Stopwatch()
    flags = ["--system-prompt", "", "--tools", ""]
    done = subprocess.run([parameter("REAL"), *ARGV, *flags], input=OPENING, capture_output=True, check=True)
    numbers = watch.read()
    assert b'"type":"result"' in done.stdout
    return numbers


if __name__ == "__main__":
    main({work.__name__: work for work in (load, stream, first, many, control, hook, permission, tool, parse, real)})
