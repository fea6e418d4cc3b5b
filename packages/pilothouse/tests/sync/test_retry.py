"""Retries and waits for limits through the blocking twin: sent again, gone on with, waited for, and ended early."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sync_fixtures import Program, ended, in_threads

from pilothouse import sync as ph
from pilothouse.events import RetryScheduled
from pilothouse.messages import SystemMessage
from pilothouse.options import RetryPolicy
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SOON = RetryPolicy(attempts=3, first_delay=0.01, jitter=0.0)
LONG = RetryPolicy(attempts=3, first_delay=60.0, jitter=0.0)


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


class Asking:
    """Asks an agent of its own, whose limits hold back nobody else; or a session of it."""

    def __init__(self, fake: FakeCLI, asked: ph.Agent | ph.Session) -> None:
        self.fake = fake
        self._asked = asked

    def query(self, prompt: str, **settings: Any) -> ph.Query:
        return self._asked.query(prompt, **settings)

    @property
    def prompts(self) -> list[str]:
        return [prompt for call in self.fake.calls for prompt in call.prompts]


@pytest.fixture(params=["alone", "session"])
def it(request: pytest.FixtureRequest, refusing: FakeCLI) -> Iterator[Asking]:
    agent = ph.Agent(cli=refusing.path)
    if request.param == "alone":
        yield Asking(refusing, agent)
    else:
        with agent.session() as session:
            yield Asking(refusing, session)
    assert ended(refusing)


@pytest.mark.requirement("E18", "E70")
def test_a_prompt_is_sent_again(it: Asking) -> None:
    query = it.query("overloaded 2", retry=SOON)
    events = [event for event in query.events() if isinstance(event, RetryScheduled)]
    result = query.result()
    assert (result.text, result.error) == ("re: overloaded 2", None)
    assert [(event.attempt, event.reason) for event in events] == [(1, "overloaded"), (2, "overloaded")]
    assert it.prompts == ["overloaded 2"] * 3
    assert it.query("next").result().text == "re: next"


WAITS: dict[str, tuple[str, dict[str, Any]]] = {
    "a retry": ("overloaded 9", {"retry": LONG}),
    "a limit": ("limit 900", {"on_usage_limit": "wait"}),
}


def waiting(query: ph.Query) -> None:
    """Read until it waits."""
    for message in query:
        if isinstance(message, SystemMessage) and message.subtype in ("retry_scheduled", "limit_wait"):
            return
    raise AssertionError("it never waited")


@pytest.mark.parametrize("what", WAITS)
def test_another_thread_ends_the_wait_at_once(it: Asking, what: str) -> None:
    prompt, settings = WAITS[what]
    query = it.query(prompt, **settings)
    began = threading.Event()
    outcomes: list[str] = []

    def ask() -> None:
        with query:
            waiting(query)
            began.set()
            outcomes.append(query.result().outcome)

    def stop() -> None:
        assert began.wait(15)
        query.interrupt()

    in_threads(ask, stop)
    assert outcomes == ["interrupted"]
    assert it.query("next").result().text == "re: next"


def test_a_session_that_is_closed_waits_no_longer(refusing: FakeCLI) -> None:
    session = ph.session(cli=refusing.path, retry=LONG).start()
    waits = threading.Event()

    def note(message: Any) -> None:
        if message.type == "system" and message.subtype == "retry_scheduled":
            waits.set()

    def ask() -> None:
        query = session.query("overloaded 9", on_message=note)
        with pytest.raises(ph.SessionClosedError):
            query.result()

    def close() -> None:
        assert waits.wait(15)
        session.close()

    in_threads(ask, close)
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


def interrupted(program: Program) -> float:
    """Ctrl-C once it waits; how many seconds it took."""
    program.wait_for("ready")
    began = time.monotonic()
    program.interrupt()
    program.wait_for("interrupted")
    return time.monotonic() - began


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
    assert interrupted(program) < 5
    code, _, err = program.end()
    assert code in (1, -2, 130)
    assert err.rstrip().endswith("KeyboardInterrupt"), err
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
    assert interrupted(program) < 5
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
    assert interrupted(program) < 5
    program.wait_for("left")
    assert program.end()[0] == 0
    assert [prompt for call in refusing.calls for prompt in call.prompts] == ["limit 900"]
    assert ended(refusing)
