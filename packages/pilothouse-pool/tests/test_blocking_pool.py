"""Children that are started ahead, in plain code."""

from __future__ import annotations

import threading

import pytest
from process_checks import eventually, is_dead

from pilothouse import sync as ph
from pilothouse_pool import Pool
from pilothouse_testing import FakeCLI


@pytest.mark.requirement("R34")
def test_queries_and_sessions_take_children_of_a_pool(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    with Pool() as pool:
        agent = ph.Agent(cli=fake.path, transport=pool)
        agent.prewarm(2)
        pids = [call.pid for call in fake.calls]
        assert len(pids) == 2
        assert agent.query("one").result().text == "Hello"
        with agent.session() as session:
            assert session.query("two").result().text == "Hello"
        assert any(is_dead(pid) for pid in pids)
    eventually(lambda: all(is_dead(call.pid) for call in fake.calls))


def test_a_pool_is_a_plain_context_manager_too(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    with Pool(max_live=2) as pool:
        agent = ph.Agent(cli=fake.path, transport=pool)
        agent.prewarm()
        texts: list[str] = []
        threads = [threading.Thread(target=lambda: texts.append(agent.query("go").result().text)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["Hello"] * 6
    eventually(lambda: all(is_dead(call.pid) for call in fake.calls))
    assert agent.query("go").result().text == "Hello", "a closed pool starts children when they are needed"
