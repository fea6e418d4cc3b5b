"""Waits for retries and limits through the blocking twin, ended early: by another thread, and by Ctrl-C."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sync_fixtures import Program, ended, in_threads

from pilothouse import sync as ph
from pilothouse.messages import SystemMessage
from pilothouse.options import RetryPolicy
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WAITS: dict[str, tuple[str, dict[str, Any]]] = {
    "a retry": ("overloaded 9", {"retry": RetryPolicy(attempts=3, first_delay=60.0, jitter=0.0)}),
    "a limit": ("limit 900", {"on_usage_limit": "wait"}),
}


def refuse(child: Any) -> None:
    """A CLI whose API fails; runs in the child, so it sees nothing of this file.

    "overloaded <n>" fails n times, and "limit <s>" until s seconds have gone; every other prompt is answered with
    "re: <prompt>".
    """
    import time

    failures: dict[str, int] = {}
    limits: dict[str, float] = {}

    def say(text: str, **more: Any) -> None:
        child.emit({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}, **more})

    def fail(text: str, status: int) -> None:
        facts = {"is_error": True, "api_error_status": status, "terminal_reason": "api_error"}
        child.emit({"type": "result", "subtype": "success", "result": text, "num_turns": 1, **facts})

    while True:
        text = child.expect("user")["message"]["content"]
        verb, _, rest = text.partition(" ")
        child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332"})
        if verb == "overloaded" and failures.setdefault(text, 0) < int(rest):
            failures[text] += 1
            fail("API Error: Overloaded", 529)
        elif verb == "limit" and time.time() < limits.setdefault(text, time.time() + float(rest)):
            info = {"status": "rejected", "resetsAt": limits[text], "rateLimitType": "five_hour"}
            child.emit({"type": "rate_limit_event", "rate_limit_info": info})
            fail("You've hit your limit", 429)
        else:
            say(f"re: {text}")
            child.emit({"type": "result", "subtype": "success", "is_error": False, "result": f"re: {text}"})


@pytest.fixture
def refusing() -> Iterator[FakeCLI]:
    with FakeCLI.from_function(refuse) as fake:
        yield fake


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("what", WAITS)
def test_another_thread_ends_the_wait_at_once(refusing: FakeCLI, what: str, in_session: bool) -> None:
    prompt, settings = WAITS[what]
    agent = ph.Agent(cli=refusing.path)
    with agent.session() as session:
        query = (session if in_session else agent).query(prompt, **settings)
        began = threading.Event()
        outcomes: list[str] = []

        def ask() -> None:
            with query:
                next(
                    m for m in query if isinstance(m, SystemMessage) and m.subtype in ("retry_scheduled", "limit_wait")
                )
                began.set()
                outcomes.append(query.result().outcome)

        def stop() -> None:
            assert began.wait(15)
            query.interrupt()

        in_threads(ask, stop)
        assert outcomes == ["interrupted"]
        assert agent.query("next").result().text == session.query("next").result().text == "re: next"
    assert ended(refusing)


# Ctrl-C, in programs of their own.

WAITING = """
from pilothouse.options import RetryPolicy

def waits(message):
    if message.type == "system" and message.subtype in ("retry_scheduled", "limit_wait"):
        threading.Timer(0.2, ready).start()  # by then the main thread waits again
"""
HOW = {
    "a retry": "'overloaded 9', retry=RetryPolicy(first_delay=60)",
    "a limit": "'limit 900', on_usage_limit='wait'",
}


@pytest.mark.requirement("G45", "G47", "E70")
@pytest.mark.parametrize("how", HOW)
def test_ctrl_c_while_a_query_waits_ends_it_and_its_child(refusing: FakeCLI, how: str) -> None:
    program = Program(
        f"""{WAITING}
try:
    ph.query({HOW[how]}, cli=fake, on_message=waits).result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
""",
        refusing,
    )
    program.press_ctrl_c()
    program.end_with_ctrl_c()
    assert ended(refusing)


@pytest.mark.requirement("G45", "G47", "E70")
@pytest.mark.parametrize("how", HOW)
def test_ctrl_c_while_one_of_a_session_waits_leaves_the_session(refusing: FakeCLI, how: str) -> None:
    program = Program(
        f"""{WAITING}
with ph.session(cli=fake) as session:
    try:
        session.query({HOW[how]}, on_message=waits).result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(session.query("next").result().text, session.restarts)
""",
        refusing,
    )
    program.press_ctrl_c()
    assert program.end() == (0, "re: next 0\n", "")
    assert ended(refusing)


@pytest.mark.requirement("G45", "E70")
def test_ctrl_c_while_it_is_held_back_behind_another_leaves_nothing(refusing: FakeCLI) -> None:
    """The gate of the agent is closed: the second query has no child yet."""
    program = Program(
        f"""{WAITING}
agent = ph.Agent(cli=fake, on_usage_limit="wait")
with agent.query("limit 900") as first:
    next(m for m in first if m.type == "system" and m.subtype == "limit_wait")
    try:
        agent.query("never sent", on_message=waits).result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("left", flush=True)
""",
        refusing,
    )
    program.press_ctrl_c()
    program.wait_for("left")
    assert program.end()[0] == 0
    assert [prompt for call in refusing.calls for prompt in call.prompts] == ["limit 900"]
    assert ended(refusing)
