"""A state machine asks, answers, leaves, interrupts, wakes and kills: no answer is mixed up, lost or given twice."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse_testing import frames

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "answer", "answer", "leave", "interrupt", "wake", "task", "control", "kill"]),
        st.integers(0, 5),
    ),
    max_size=14,
)


class SessionModel:
    """The child answers a prompt when it is told to; every prompt has a number of its own, and so has its answer."""

    group: anyio.abc.TaskGroup

    def __init__(self, *, says_lifecycle: bool) -> None:
        self.cli = Cli(says_lifecycle=says_lifecycle)
        self.session = ph.Agent(transport=self.cli.transport).session()
        self.queries: list[ph.Query] = []
        self.ends: dict[int, Any] = {}
        self.gates: list[anyio.Event] = []
        self.woken = 0
        self.controls = 0

    async def act(self, cli: Cli, say: Say, text: str) -> str:
        for part in ("a", "b"):
            await say(frames.assistant(f"{text}{part};"))
        gate = anyio.Event()
        self.gates.append(gate)
        await gate.wait()
        return f"{text}z;"

    async def ask(self, _: int) -> None:
        number = len(self.queries)
        self.cli.acts[f"q{number}"] = self.act
        query = self.session.query(f"q{number}")
        self.queries.append(query)

        async def collect() -> None:
            try:
                self.ends[number] = await query
            except ph.PilothouseError as error:
                self.ends[number] = error

        self.group.start_soon(collect)

    async def answer(self, _: int) -> None:
        for gate in self.gates:
            gate.set()

    async def leave(self, which: int) -> None:
        if self.queries:
            await self.queries[which % len(self.queries)].aclose()

    async def interrupt(self, which: int) -> None:
        if self.queries and which:
            await self.queries[which % len(self.queries)].interrupt()
        else:
            await self.session.interrupt()

    async def wake(self, _: int) -> None:
        if self.session.state == "idle" and self.cli.says_lifecycle:
            self.woken += 1
            await self.cli.wake(self.cli.children[-1], answer=f"woken{self.woken};")

    async def task(self, which: int) -> None:
        """Something that the first query left behind speaks, or begins."""
        if self.session.state in {"idle", "running"} and self.cli.says_lifecycle:
            peer = self.cli.children[-1]
            begun = {"type": "system", "subtype": "task_started", "task_id": f"t{which}", "tool_use_id": f"c{which}"}
            await peer.write(begun)
            await peer.write(frames.assistant("sub;", parent_tool_use_id=f"c{which}"))

    async def control(self, _: int) -> None:
        self.controls += 1
        answer = await self.session.control("echo", number=self.controls)
        assert answer == {"number": self.controls}

    async def kill(self, _: int) -> None:
        if self.session.state in {"idle", "running"}:
            self.cli.children[-1].end(signal="SIGKILL")

    def check(self) -> None:
        for number, end in self.ends.items():
            own = [f"q{number}a;", f"q{number}b;", f"q{number}z;"]
            if isinstance(end, ph.PilothouseError):
                assert isinstance(end, ph.SessionClosedError | ph.CLIExitedError)
                continue
            text = end.full_text
            if end.outcome == "success":
                assert text == "".join(own)
            else:
                assert end.outcome == "interrupted"
                assert "".join(own).startswith(text)


async def play(steps: list[tuple[str, int]], *, says_lifecycle: bool) -> None:
    model = SessionModel(says_lifecycle=says_lifecycle)
    listener = model.session.messages()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as model.group:
            model.cli.answers["echo"] = lambda body: {"number": body["number"]}
            async with model.session as session:
                for name, which in steps:
                    await getattr(model, name)(which)
                    await anyio.wait_all_tasks_blocked()
                    model.check()
                while session.waiting or session.state == "running":
                    await model.answer(0)
                    await anyio.wait_all_tasks_blocked()
                last = await session.query("last")
                assert last.full_text == "re: last"
                assert (session.state, session.waiting) == ("idle", 0)
                link = session._child.channel  # pyright: ignore[reportOptionalMemberAccess]
                assert not link._pending
            await anyio.wait_all_tasks_blocked()
        model.check()
        assert set(model.ends) == set(range(len(model.queries)))
        assert not model.cli.running
        received = [m.text async for m in listener if isinstance(m, ph.AssistantMessage)]
        for number, end in model.ends.items():
            if isinstance(end, ph.QueryResult) and end.outcome == "success":
                for part in "abz":
                    assert received.count(f"q{number}{part};") == 1
        for number in range(1, model.woken + 1):
            assert received.count(f"woken{number};") <= 1  # a child that is killed may take it along


@pytest.mark.requirement("E19", "E20", "G30", "G49", "E52")
@pytest.mark.parametrize("says_lifecycle", [True, False])
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_whatever_happens_every_query_gets_its_own(steps: Any, says_lifecycle: bool) -> None:
    anyio.run(lambda: play(steps, says_lifecycle=says_lifecycle), backend="trio")


@settings(max_examples=8, deadline=None)  # asyncio is slow to say that all tasks wait
@given(steps=STEPS)
def test_on_asyncio_too(steps: Any) -> None:
    anyio.run(lambda: play(steps, says_lifecycle=True))
