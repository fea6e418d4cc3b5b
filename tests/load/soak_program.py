"""Mixed work for as long as it is told, in a process of its own: what it has open and its memory, after each round.

    python soak_program.py BACKEND SECONDS ROUND_SECONDS

Prints one JSON object: `samples`, two at least, the first of which was taken after the first round, and how often each
kind of work was `done`. A round ends when all that was begun in it has ended, so what is still open then was left
behind. Judges nothing but the answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import math
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from load_measurements import SETTLE_SECONDS, memory, usage

import pilothouse as ph
from pilothouse import sync
from pilothouse.hooks import Hooks
from pilothouse.transports import CliTransport
from pilothouse_testing import FakeCLI

random.seed(330)
logging.getLogger("pilothouse").addHandler(logging.NullHandler())  # new children for killed ones are warned about
TRIM: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
MARK = uuid.uuid4().hex  # in the environment of all that this run starts


def play(child: Any) -> None:
    """Runs in the child, which sees nothing of this file."""
    import sys

    sys.path.insert(0, child.env["SOAK_CODE"])
    from soak_child import serve

    serve(child)


@ph.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def check(event: Any) -> None:
    await anyio.sleep(0)


async def permit(request: ph.PermissionRequest) -> bool:
    return request.tool_name == "Bash"


async def short(agent: ph.Agent) -> None:
    assert (await agent.query("hello")).text == "re: hello"


async def blocking(agent: ph.Agent) -> None:
    counterpart = sync.Agent.wrap(agent)
    assert (await to_thread.run_sync(lambda: counterpart.query("from a thread").result().text)) == "re: from a thread"


async def conversation(agent: ph.Agent) -> None:
    async with agent.session() as session:
        for turn in range(3):
            assert (await session.query(f"turn {turn}")).text == f"re: turn {turn}"
        await session.set_model("opus")


async def interrupted(agent: ph.Agent) -> None:
    async with agent.session() as session:
        async with session.query("wait") as query:
            async for message in query:
                if isinstance(message, ph.AssistantMessage):
                    await query.interrupt()
        assert (await query.result()).outcome == "interrupted"
        assert (await session.query("and now")).text == "re: and now"


async def asked(agent: ph.Agent) -> None:
    hooks: Hooks = {"PreToolUse": [ph.HookMatcher("Bash", [check])]}
    agent = agent.with_options(hooks=hooks, can_use_tool=permit, custom_tools=[add])
    async with agent.session() as session:
        for _ in range(3):
            assert (await session.query("ask")).text == "success success success"


async def killed(agent: ph.Agent) -> None:
    async with agent.session() as session:
        try:
            await session.query("die")
        except ph.CLIExitedError:
            assert (await session.query("again")).text == "re: again"
        else:
            raise AssertionError("it died, and nobody heard of it")


async def waiting(agent: ph.Agent) -> None:
    over = threading.Event()

    def permit_late(request: ph.PermissionRequest) -> bool:
        return over.wait()

    query = agent.query("ask", hooks={"PreToolUse": [ph.HookMatcher("Bash", [check])]}, can_use_tool=permit_late)
    with anyio.move_on_after(random.random() * 0.2):
        await query
    await query.aclose()
    over.set()


async def failed(agent: ph.Agent) -> None:
    assert (await agent.query("fail")).outcome != "success"


async def left(agent: ph.Agent) -> None:
    async for message in agent.query("flood"):
        if isinstance(message, ph.AssistantMessage):
            break


async def unread(agent: ph.Agent) -> None:
    async with agent.query("flood") as query:
        await anext(aiter(query))
        await anyio.sleep(0.05)


async def cancelled(agent: ph.Agent) -> None:
    with anyio.move_on_after(random.random() * 0.08):
        async with agent.session() as session:
            await session.query("hello")
            await session.query("wait")


async def dropped(agent: ph.Agent) -> None:
    query = agent.query("wait")
    await query.start()
    del query


async def stubborn(agent: ph.Agent) -> None:
    async for message in agent.query("stubborn", transport=lambda: CliTransport(term_grace=0.1)):
        if isinstance(message, ph.AssistantMessage):
            break


WORK: tuple[Callable[[ph.Agent], Awaitable[None]], ...] = (
    short, blocking, conversation, interrupted, asked, killed, failed, left, unread, cancelled, dropped, stubborn,
    waiting,
)  # fmt: skip


async def work_for(seconds: float, done: Counter[str], idle_tasks: float) -> None:
    """One round: each kind of work over and over, all of them side by side."""
    until = time.monotonic() + seconds
    with FakeCLI.from_function(play, manual=("initialize",)) as fake:
        agent = ph.Agent(cli=fake.path, env={"SOAK_CODE": str(Path(__file__).parent), "SOAK_MARK": MARK})

        async def repeat(work: Callable[[ph.Agent], Awaitable[None]]) -> None:
            while time.monotonic() < until:
                await work(agent)
                done[work.__name__] += 1

        async with anyio.create_task_group() as group:
            for work in WORK:
                group.start_soon(repeat, work)
        await settle(idle_tasks)


async def settle(idle_tasks: float) -> None:
    """Wait until what was dropped has ended too; not for ever, because what is left then is for the test to find."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and (usage().children or orphans() or usage().tasks > idle_tasks):
        gc.collect()
        await anyio.sleep(0.05)


def orphans() -> int:
    """How many processes that this run started, or that its children started, are still there."""
    found = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                found += f"SOAK_MARK={MARK}".encode() in (process / "environ").read_bytes().split(b"\0")
    return found


def sample(began: float) -> dict[str, float]:
    gc.collect()
    now = round(time.monotonic() - began)
    # Of what is free, glibc gives back little by itself: what a process needs is what it has after that.
    held = {"objects": len(gc.get_objects()), "rss": memory("VmRSS")}
    TRIM(0)
    held["needed"] = memory("VmRSS")
    return {"seconds": now, **usage()._asdict(), "orphans": orphans(), **held}


async def soak(seconds: float, round_seconds: float) -> None:
    began = time.monotonic()
    done: Counter[str] = Counter()
    samples: list[dict[str, float]] = []
    while len(samples) < 2 or time.monotonic() - began < seconds:
        await work_for(round_seconds, done, samples[0]["tasks"] if samples else math.inf)
        samples.append(sample(began))
    print(json.dumps({"samples": samples, "done": done}))


if __name__ == "__main__":
    anyio.run(soak, float(sys.argv[2]), float(sys.argv[3]), backend=sys.argv[1])
