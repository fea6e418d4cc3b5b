"""Runs one cell of the fault matrix: a query or a session over a real child that does one wrong thing in one state.

Owns how the state is reached from this side, and what is looked at afterwards. What must come out stands in
`fault_matrix.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from fault_matrix import FAULTS, IN_A_THREAD, Cell, Outcome
from faulty_child_program import BIG, LIMIT

import pilothouse as ph
from pilothouse.client.sessions import Session
from pilothouse.transports import CliTransport
from pilothouse_testing import FakeCLI

IDLE_TIMEOUT = 2.5  # a child needs less to start, also on a machine with much else to do
CONTROL_TIMEOUT = 2.5
DEADLINE = 30.0  # seconds that a whole cell may take
CONTROLLED = frozenset({"start", "handshake", "interrupt", "setting"})  # states in which an answer is awaited
LARGE = "x" * BIG


def play(child: Any) -> None:
    """Runs in the child, which sees nothing of this file."""
    import sys

    sys.path.insert(0, child.env["FAULT_CODE"])
    from faulty_child_program import play as play_faults

    play_faults(child)


def fake_of() -> FakeCLI:
    return FakeCLI.from_function(play, manual=("initialize", "interrupt", "set_model"))


class Run:
    """One cell, played.

    Attributes:
        outcome: what the caller got.
        seconds: from the fault until it got that.
        began: whether a function of this process was asked.
        cancelled: whether that function was cancelled.
        returned: whether that function had returned when all was closed.
        pids: of all children, and of what they have started.
        children: how many of them were started.
    """

    def __init__(self, cell: Cell, home: Path) -> None:
        self.cell = cell
        self.kind = FAULTS[cell.fault].kind
        self.home = home
        self.mark = home / "mark"
        self.outcome: Outcome | None = None
        self.seconds = 0.0
        self.began = False
        self.cancelled = False
        self.returned = False
        self.restarts = 0
        self.pids: list[int] = []
        self.children = 0
        self.fake: FakeCLI
        self._over = threading.Event()

    async def play(self) -> None:
        self.home.mkdir()
        with fake_of() as fake:
            self.fake = fake
            with anyio.fail_after(DEADLINE):
                if self.cell.subject == "query":
                    first = await self._outcome(self._query)
                    self.outcome = Outcome(first)
                else:
                    await self._session()
            self.let_go()
            self.pids = [pid for call in fake.calls for pid in (call.pid, *call.grandchildren) if pid]
            self.children = len(fake.calls)

    def let_go(self) -> None:
        """All is closed: what has waited in a thread for ever may end now."""
        self._over.set()

    # what this process offers

    async def _answer(self, value: Any) -> Any:
        self.began = True
        self.mark.with_suffix(".runs").touch()
        try:
            if self.kind == "deadly":
                await anyio.sleep_forever()
            while not self.mark.exists():
                await anyio.sleep(0.002)
        except BaseException:
            self.cancelled = True
            raise
        return value

    def _answer_in_a_thread(self, value: Any) -> Any:
        self.began = True
        self.mark.with_suffix(".runs").touch()
        while not self.mark.exists():
            time.sleep(0.002)
        if self.kind == "deadly":
            assert self._over.wait(DEADLINE)
        self.returned = not self._over.is_set()
        return value

    def _functions(self) -> tuple[Callable[..., Any], ...]:
        """A tool, a hook, and what permits."""
        hooked, permitted = {"system_message": LARGE}, ph.Allow(updated_input={"command": LARGE})
        if self.cell.state in IN_A_THREAD:

            def slow() -> str:
                """Takes its time."""
                return self._answer_in_a_thread(LARGE)

            return slow, lambda event: self._answer_in_a_thread(hooked), lambda _: self._answer_in_a_thread(permitted)

        async def slow_too() -> str:
            """Takes its time."""
            return await self._answer(LARGE)

        async def hook(event: Any) -> Any:
            return await self._answer(hooked)

        async def permit(request: Any) -> Any:
            return await self._answer(permitted)

        return slow_too, hook, permit

    def settings(self) -> dict[str, Any]:
        state = IN_A_THREAD.get(self.cell.state, self.cell.state)
        function, hook, permit = self._functions()
        slow = ph.tool(name="slow")(function)
        mute = self.kind == "mute"
        own: dict[str, dict[str, Any]] = {
            "tool": {"custom_tools": [slow]},
            "deferred": {"custom_tools": [slow], "tool_bridge": "deferred"},
            "hook": {"hooks": {"PreToolUse": [ph.HookMatcher("Bash", [hook])]}},
            "permission": {"can_use_tool": permit},
        }
        env = {
            "FAULT": self.cell.fault,
            "FAULT_STATE": state,
            "FAULT_MARK": str(self.mark),
            "FAULT_CODE": str(Path(__file__).parent),
        }
        return {
            "cli": self.fake.path,
            "env": env,
            "transport": lambda: CliTransport(close_grace=0.1),
            "max_line_bytes": LIMIT,
            "idle_timeout": IDLE_TIMEOUT if mute and state not in CONTROLLED else None,
            "control_timeout": CONTROL_TIMEOUT if mute and state in CONTROLLED else 60.0,
            **own.get(state, {}),
        }

    # what the caller does

    async def _outcome(self, work: Callable[[], Awaitable[str]]) -> str:
        try:
            return await work()
        except ph.PilothouseError as error:
            return type(error).__name__
        finally:
            if self.mark.exists():
                self.seconds = time.monotonic() - float(self.mark.read_text())

    async def _query(self) -> str:
        query = ph.query(LARGE, **self.settings())
        return await self._read(query)

    async def _read(self, query: ph.Query) -> str:
        if self.cell.state != "interrupt":
            return (await query).outcome
        async with query:
            async for message in query:
                if isinstance(message, ph.AssistantMessage):
                    break
            await query.interrupt()
            return (await query.result()).outcome

    async def _session(self) -> None:
        session = ph.Agent(**self.settings()).session()
        try:
            if self.cell.state in ("idle", "setting", "closing"):
                assert (await session.query("before")).text == "fine"
            if self.cell.state == "idle":
                await self._until_done(session)
            first = await self._outcome(lambda: self._victim(session))
            following = await self._outcome(lambda: self._next(session))
            self.restarts = session.restarts
            self.outcome = Outcome(first, following, new_child=len(self.fake.calls) > 1)
        finally:
            await session.close()

    async def _until_done(self, session: Session) -> None:
        while not self.mark.exists():
            await anyio.sleep(0.002)
        if self.kind == "deadly":
            while session.state == "idle":
                await anyio.sleep(0.002)

    async def _victim(self, session: Session) -> str:
        if self.cell.state == "closing":
            await session.close()
            return "closed"
        if self.cell.state == "setting":
            await session.set_model(LARGE)
            return "answered"
        return await self._read(session.query(LARGE))

    async def _next(self, session: Session) -> str:
        # Its child starts first, and on a busy machine in more than the silence that the victim is allowed.
        return (await session.query("next", idle_timeout=None)).outcome
