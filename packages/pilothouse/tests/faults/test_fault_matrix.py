"""Every fault in every state: a typed error in bounded time, a session that goes on, and nothing left behind.

The tests of other packages prove single cells more closely: `transports/test_child_lifecycle.py` the ends of a
process (a host that is killed, grandchildren, full pipes), `session/test_restarts.py` what a new child
resumes, `client/test_query_endings.py` what the errors say, `session/test_query_continuation_ends.py`
continuations of any kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from fault_matrix import ASKED, EXPECTED, FAULTS, IN_A_THREAD, STATES, Subject, cells, expected
from fault_runner import IDLE_TIMEOUT, Run
from leak_checks import Left

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
AT_ONCE = 8
SLACK = 10.0  # seconds that a machine with much else to do may add


@pytest.mark.sample(6)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("subject", ["query", "session"])
@pytest.mark.requirement("G2", "G7", "G10", "G31", "G32", "G33", "G41", "G46", "E54", "E68", "E69", "L28")
async def test_a_fault_in_every_state(
    subject: Subject, fault: str, left: Left, tmp_path: Path, short_waits: None
) -> None:
    left.begin()
    runs = [Run(cell, tmp_path / cell.state) for cell in cells(subject, fault)]
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def play(run: Run) -> None:
        async with limiter:
            await run.play()

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(play, run)
    wrong = [(run.cell.state, run.outcome) for run in runs if run.outcome != expected(run.cell)]
    assert not wrong
    limit = FAULTS[fault].seconds + (IDLE_TIMEOUT if FAULTS[fault].kind == "mute" else 0) + SLACK
    for run in runs:
        check(run, limit)
    await left.nothing([pid for run in runs for pid in run.pids])


def check(run: Run, limit: float) -> None:
    state, kind = run.cell.state, run.kind
    assert run.mark.exists(), f"{state} was never reached"
    assert run.seconds < limit, f"{state}: after {run.seconds:.1f} s"
    if state in ASKED:
        assert run.began, state
        assert run.cancelled == (kind == "deadly" and state not in IN_A_THREAD), state
        assert run.returned == (kind != "deadly" and state in IN_A_THREAD), state
    if run.cell.subject == "session":
        never_ran = state in ("start", "handshake")
        assert run.restarts == int(expected(run.cell).new_child and not never_ran), state
        assert run.children == 1 + expected(run.cell).new_child, state
        if run.cell.fault == "grandchild" and state != "closing":  # a session that closes may end it before
            assert len(run.pids) == run.children + 1, state


def test_the_matrix_has_no_holes() -> None:
    for kinds in EXPECTED.values():
        states = [set(row) for row in kinds.values()]
        assert all(row == states[0] for row in states)
    states = {state for kinds in EXPECTED.values() for state in kinds["deadly"]}
    assert {"…, thread" if state in IN_A_THREAD else state for state in states} == set(STATES)
