"""One load in a process of its own, because the most memory a process ever had cannot be set back.

    python load_program.py WORKLOAD BACKEND SIZE

Prints one JSON object: `before` and `peak` in bytes, `seconds`, and what the workload counts. Judges nothing.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import anyio
from load_measurements import MIB, memory, no_leaks_after

import pilothouse as ph
from pilothouse_testing import FakeCLI

AT_ONCE = 50


def flooding(child: Any) -> None:
    """Writes as many MiB as it is told, in messages of 400 bytes, 10 kB and 1 MB."""
    import json

    def line(size: int) -> dict[str, Any]:
        return {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "x" * size}]}}

    while True:
        mebibytes = child.expect("user")["message"]["content"]
        child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332", "session_id": "s"})
        left = int(mebibytes) * 1024 * 1024 if mebibytes.isdigit() else 0
        count = 0
        while left > 0:
            for number, size in ((2_600, 300), (400, 10_000), (4, 1_000_000)):
                child.repeat(number, line(size))
                count += number
                left -= number * len(json.dumps(line(size)))
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": str(count)})


async def flood(size: int) -> dict[str, Any]:
    """`size` MiB of messages to a consumer that stops for a moment now and then."""
    with FakeCLI.from_function(flooding) as fake:
        async with no_leaks_after(fake):
            count, before = 0, memory("VmRSS")
            async with ph.query(str(size), cli=fake.path) as query:
                async for message in query:
                    if isinstance(message, ph.AssistantMessage):
                        count += 1
                        if count % 2_000 == 0:
                            await anyio.sleep(0.05)
                result = await query.result()
            return {"before": before, "count": count, "sent": int(result.text)}


def complaining(child: Any) -> None:
    """Writes as many MiB as it is told to standard error, then answers."""
    while True:
        mebibytes = child.expect("user")["message"]["content"]
        for number in range(int(mebibytes) * 1024 if mebibytes.isdigit() else 0):
            child.stderr(f"{number:08d} " + "x" * 1_014 + "\n")
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": "done"})


async def stderr(size: int) -> dict[str, Any]:
    """`size` MiB of standard error, with somebody who listens to each line."""
    lines: list[int] = [0]

    def listen(line: str) -> None:
        assert int(line[:8]) == lines[0]
        lines[0] += 1

    with FakeCLI.from_function(complaining) as fake:
        async with no_leaks_after(fake):
            before = memory("VmRSS")
            assert (await ph.query(str(size), cli=fake.path)).text == "done"  # nobody listens
            assert (await ph.query(str(size), cli=fake.path, stderr=listen)).text == "done"
            return {"before": before, "count": lines[0], "sent": size * 1024}


def long_winded(child: Any) -> None:
    """Writes a line of as many bytes as it is told, and one that is short."""
    import json

    while True:
        size = child.expect("user")["message"]["content"]
        if size.isdigit():
            empty = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": ""}]}}
            head, tail = json.dumps(empty).encode()[:-5], b'"}]}}'
            child.write(head + b"x" * (int(size) - len(head) - len(tail)) + tail + b"\n")
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": "done"})


async def lines(size: int) -> dict[str, Any]:
    """Lines of `size` MiB: three that just fit, and one that is a byte too long."""
    logging.getLogger("pilothouse.engine").addHandler(logging.NullHandler())  # that one is warned about
    limit = size * MIB
    with FakeCLI.from_function(long_winded) as fake:
        async with no_leaks_after(fake):
            before, count = memory("VmRSS"), 0
            for length in (limit, limit, limit, limit + 1):
                async for message in ph.query(str(length), cli=fake.path, max_line_bytes=limit):
                    if isinstance(message, ph.AssistantMessage):
                        count += 1
                        assert len(message.text) > limit - 200
                    elif isinstance(message, ph.ResultMessage):
                        assert message.result == "done"
            return {"before": before, "count": count, "sent": 3}


def curious(child: Any) -> None:
    """Asks as many questions as it is told, one after the other; counts the answers that allow it."""
    while True:
        number = child.expect("user")["message"]["content"]
        allowed = 0
        for at in range(int(number) if number.isdigit() else 0):
            answer = child.ask("can_use_tool", tool_name="Bash", input={"command": f"echo {at}"}, tool_use_id=f"t{at}")
            allowed += answer["response"]["updatedInput"] == {"command": f"echo {at}!"}
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": str(allowed)})


async def controls(size: int) -> dict[str, Any]:
    """`size` control requests in one session: half of them ours, half of them the child's, at the same time."""
    ours, theirs = size // 2, size - size // 2
    answered, halfway, allowed, second_half = [0], [0], 0, 0

    def allow(request: ph.PermissionRequest) -> ph.Allow:
        return ph.Allow(updated_input={"command": request.tool_input["command"] + "!"})

    async def may(request: ph.PermissionRequest) -> ph.Allow:
        return allow(request)

    async def ask(session: ph.Session, number: int) -> None:
        for _ in range(number):
            assert (await session.control("get_settings"))["fine"] is True
            answered[0] += 1
            if answered[0] == ours // 2:
                halfway[0] = memory("VmRSS")

    with FakeCLI.from_function(curious) as fake:
        fake.on_control("get_settings", {"fine": True})
        async with no_leaks_after(fake):
            before = memory("VmRSS")
            async with ph.Agent(cli=fake.path, can_use_tool=may).session() as session:
                async with anyio.create_task_group() as group:
                    for _ in range(AT_ONCE):
                        group.start_soon(ask, session, ours // AT_ONCE)
                    allowed = int((await session.query(str(theirs))).text)
                second_half = memory("VmRSS") - halfway[0]
            return {"before": before, "count": answered[0] + allowed, "sent": size, "second_half": second_half}


WORKLOADS = {"controls": controls, "flood": flood, "lines": lines, "stderr": stderr}


async def measure(workload: str, size: int) -> None:
    began = time.monotonic()
    reported = await WORKLOADS[workload](size)
    print(json.dumps({**reported, "peak": memory("VmHWM"), "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    anyio.run(measure, sys.argv[1], int(sys.argv[3]), backend=sys.argv[2])
