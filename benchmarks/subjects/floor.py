"""The least that any client in Python has to do for the same work: the floor that nobody gets below for long.

It reads and decodes, and does nothing else: no types, no checks, no control protocol, no care for a child that hangs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
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
from benchmarks.subjects.kept_sessions import WANTED

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
    import msgspec

    decode = msgspec.json.decode
    count = 0
    watch = Stopwatch()
    async for lines in _lines():
        for line in lines:
            decode(line)
            count += 1
    numbers = watch.read()
    expect(count, int(parameter("COUNT")) + 3, "lines")
    return {**numbers, "memory": memory("VmHWM")}


async def _lines() -> AsyncIterator[list[bytes]]:
    """What the CLI says, as many lines at a time as come together."""
    import anyio

    process = await anyio.open_process([fake_cli(), *ARGV], stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(OPENING)
    await process.stdin.aclose()
    lines_of = _splitter()
    while True:
        try:
            chunk = await process.stdout.receive(READ_BYTES)
        except anyio.EndOfStream:
            break
        yield lines_of(chunk)
    await process.wait()


def _splitter() -> Callable[[bytes], list[bytes]]:
    """Turns a chunk into the lines that it completes."""
    held: list[bytes] = []

    def lines_of(chunk: bytes) -> list[bytes]:
        lines = chunk.split(b"\n")
        tail = lines.pop()
        if held and lines:
            lines[0] = b"".join((*held, lines[0]))
            held.clear()
        if tail:
            held.append(tail)
        return lines

    return lines_of


def blocking() -> dict[str, Any]:
    import msgspec

    decode, lines_of = msgspec.json.decode, _splitter()
    count = 0
    watch = Stopwatch()
    with subprocess.Popen([fake_cli(), *ARGV], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(OPENING)
        process.stdin.close()
        reader = process.stdout.fileno()
        while chunk := os.read(reader, READ_BYTES):
            for line in lines_of(chunk):
                decode(line)
                count += 1
    numbers = watch.read()
    expect(count, int(parameter("COUNT")) + 3, "lines")
    return {**numbers, "memory": memory("VmHWM")}


def kept() -> dict[str, Any]:
    return _run(_kept)


async def _kept() -> dict[str, Any]:
    import msgspec

    decode = msgspec.json.decode
    before = settled_memory()
    watch = Stopwatch()
    messages: list[Any] = []
    async for lines in _lines():
        messages += map(decode, lines)
    numbers = watch.read()
    expect(len(messages), int(parameter("COUNT")) + 3, "lines")
    return {**numbers, "memory": (settled_memory() - before) / len(messages) * MILLION}


def idle() -> dict[str, Any]:
    return _run(_idle)


async def _idle() -> dict[str, Any]:
    """Children with pipes, and nothing around them."""
    import asyncio

    children: list[asyncio.subprocess.Process] = []

    async def talk() -> None:
        process = await asyncio.create_subprocess_exec(
            fake_cli(), *ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        children.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(OPENING)
        line = b"-"
        while line and b'"result"' not in line:
            line = await process.stdout.readline()
        assert line, "the child ended before its result"

    count = int(parameter("SESSIONS"))
    await talk()
    before = settled_memory()
    watch = Stopwatch()
    for _ in range(count):
        await talk()
    each = (settled_memory() - before) / count
    for process in children:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
    return {**watch.read(), "memory": each}


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
        while msgspec.json.decode(await process.stdout.readline())["type"] != "assistant":
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
    asked = RoundTrips()
    with subprocess.Popen([fake_cli(), *ARGV], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        writer, reader = process.stdin.fileno(), process.stdout.fileno()
        for _ in range(int(parameter("CALLS"))):
            asked.note()
            os.write(writer, INITIALIZE)
            os.read(reader, SMALL_READ)
    return asked.numbers()


ANSWER = (
    b'{"type":"control_response","response":{"subtype":"success","request_id":"8d5884d1-3f4d-4ea0-ad93-0c0d10000001",'
    b'"response":%s}}\n'
)
TEXT_RESULT = (
    b'{"mcp_response":{"jsonrpc":"2.0","id":10000001,"result":{"content":[{"type":"text","text":"The sum is 5."}]}}}'
)


PERMISSION = b'{"behavior":"allow","updatedInput":{"command":"touch notes.txt"}}'
HANDSHAKES = 3  # questions that come before the calls of a tool


def hook() -> dict[str, Any]:
    return _answer(b"{}")


def permission() -> dict[str, Any]:
    return _answer(PERMISSION)


def tool() -> dict[str, Any]:
    return _answer(TEXT_RESULT, before=HANDSHAKES)


def _answer(payload: bytes, *, before: int = 0) -> dict[str, Any]:
    """As `control`, the other way round; `before` is how many questions come before the one that is measured."""
    asked = RoundTrips(before)
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
            asked.note()
            os.write(writer, answer)
            seen = os.read(reader, SMALL_READ)
        process.stdin.close()
    return asked.numbers()


def async_controls() -> dict[str, Any]:
    """As `control`, but several at a time, on an event loop and with JSON: what `benchmarks.guard` compares with."""
    return _run(_async_controls)


async def _async_controls() -> dict[str, Any]:
    import anyio
    import msgspec

    asked, lines_of, ahead = RoundTrips(), _splitter(), int(parameter("AHEAD"))
    request = msgspec.json.decode(INITIALIZE)
    async with await anyio.open_process([fake_cli(), *ARGV], stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(int(parameter("CALLS")) // ahead):
            for _ in range(ahead):
                asked.note()
                await process.stdin.send(msgspec.json.encode(request) + b"\n")
            left = ahead
            while left:
                for line in lines_of(await process.stdout.receive(READ_BYTES)):
                    left -= msgspec.json.decode(line)["type"] == "control_response"
        await process.stdin.aclose()
    return asked.numbers()


def async_hook() -> dict[str, Any]:
    return _run(lambda: _async_answer(b"{}"))


def async_tool() -> dict[str, Any]:
    return _run(lambda: _async_answer(TEXT_RESULT, before=HANDSHAKES))


async def _async_answer(payload: bytes, *, before: int = 0) -> dict[str, Any]:
    import anyio
    import msgspec

    asked, lines_of, is_done = RoundTrips(before), _splitter(), False
    response = {"subtype": "success", "request_id": "", "response": msgspec.json.decode(payload)}
    async with await anyio.open_process([fake_cli(), *ARGV], stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(OPENING)
        while not is_done:
            for line in lines_of(await process.stdout.receive(READ_BYTES)):
                said = msgspec.json.decode(line)
                is_done = said["type"] == "result"
                if said["type"] == "control_request":
                    asked.note()
                    response["request_id"] = said["request_id"]
                    answer = msgspec.json.encode({"type": "control_response", "response": response})
                    await process.stdin.send(answer + b"\n")
        await process.stdin.aclose()
    return asked.numbers()


def search() -> dict[str, Any]:
    """`ripgrep`: the lines that have the words, undecoded."""
    watch = Stopwatch()
    command = [parameter("RG"), "--fixed-strings", "--ignore-case", "--line-number", WANTED, parameter("SCENARIO")]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    numbers = watch.read()
    expect(found.count(b"\n"), int(parameter("HITS")), "hits")
    return numbers


def host() -> dict[str, Any]:
    from benchmarks.subjects.clients import watch

    return watch("floor")


def fleet() -> dict[str, Any]:
    """A pool of workers that await a query each: what a program without a fleet writes."""
    from pathlib import Path

    from benchmarks.fleet import child

    return child("queries", int(parameter("RUNS")), fake_cli(), Path.home())


def real() -> dict[str, Any]:
    watch = Stopwatch()
    flags = ["--system-prompt", "", "--tools", ""]
    done = subprocess.run([parameter("REAL"), *ARGV, *flags], input=OPENING, capture_output=True, check=True)
    numbers = watch.read()
    assert b'"type":"result"' in done.stdout
    return numbers


def pool() -> dict[str, Any]:
    """The bare process, started for the prompt."""
    import json

    watch = Stopwatch()
    times: list[float] = []
    flags = ["--system-prompt", "", "--tools", ""]
    with subprocess.Popen([parameter("REAL"), *ARGV, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(OPENING)
        process.stdin.close()
        for line in process.stdout:
            said = json.loads(line)
            if said["type"] in ("assistant", "result"):
                times.append(watch.read()["wall"])
                assert not said.get("is_error"), said
    return {"wall": times[0], "answer": times[-1], "cold": times[0]}


if __name__ == "__main__":
    main(load, stream, blocking, kept, idle, first, many, control, hook, permission, tool,
         async_controls, async_hook, async_tool, search, host, fleet, real, pool)  # fmt: skip
