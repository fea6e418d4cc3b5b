"""Children that are started ahead, in plain code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilothouse import sync as ph
from pilothouse.testing import FakeCLI


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text("utf-8").rpartition(")")[2].split()[0] == "Z"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.requirement("R34")
def test_the_agent_makes_a_pool(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    with ph.Agent(cli=fake.path) as agent:
        agent.prewarm(2)
        pids = [call.pid for call in fake.calls]
        assert len(pids) == 2
        assert agent.query("one").result().text == "Hello"
        with agent.session() as session:
            assert session.query("two").result().text == "Hello"
        assert any(is_gone(pid) for pid in pids)
    eventually(lambda: all(is_gone(call.pid) for call in fake.calls))


def test_a_pool_is_a_plain_context_manager_too(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    with ph.Pool(max_live=2) as pool:
        agent = ph.Agent(cli=fake.path, transport=pool)
        agent.prewarm()
        texts: list[str] = []
        threads = [threading.Thread(target=lambda: texts.append(agent.query("go").result().text)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["Hello"] * 6
    eventually(lambda: all(is_gone(call.pid) for call in fake.calls))
    assert agent.query("go").result().text == "Hello", "a closed pool starts children when they are needed"
