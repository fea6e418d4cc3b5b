"""Programs with blocking sessions: Ctrl-C stops what runs and nothing else, the end of the interpreter, forks."""

from __future__ import annotations

import sys
import textwrap
import time

import pytest
from process_checks import eventually
from sync_fixtures import ENDS, FORK, Program, ended, running

from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# What waits when Ctrl-C comes; each is over by then, and the session answers the next question with the same child.
PLACES = {
    "result": """session.query("slow", on_message=soon).result()""",
    "callback": """
        def show(message):
            ready(message)
            if message.type == "assistant":
                rest()
        session.query("slow", on_message=show).result()
    """,
    "loop": """
        for message in session.query("slow"):
            soon(message)
    """,
    "body of the loop": """
        for message in session.query("slow"):
            ready(message)
            if message.type == "assistant":
                rest()
    """,
    "waiting for its turn": """
        first = session.query("slow").start()
        threading.Timer(0.2, ready).start()
        try:
            session.query("never asked").result()
        finally:
            first.interrupt()
    """,
    "listening": """
        listener = session.messages()
        soon()
        next(listener)
    """,
    "another wait": """
        query = session.query("slow").start()
        try:
            soon()
            session.tasks.wait_idle()
        finally:
            query.interrupt()
    """,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.requirement("G45", "G47")
def test_ctrl_c_stops_the_turn_and_the_session_goes_on(talker: FakeCLI, place: str) -> None:
    program = Program(
        "with ph.session(cli=fake) as session:\n"
        "    session.query('one').result()\n"
        "    try:\n" + textwrap.indent(textwrap.dedent(PLACES[place]).strip(), "        ") + "\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "    if 'listener' in globals():\n"
        "        session.query('heard').result()\n"
        "        print(next(listener).type)\n"
        "    print(session.query('two').result().text, session.restarts)\n",
        talker,
    )
    program.press_ctrl_c()
    received = "command_lifecycle\n" if place == "listening" else ""
    assert program.end() == (0, f"{received}re: two 0\n", "")
    assert len(talker.calls) == 1
    assert "never asked" not in talker.calls[0].prompts
    assert ended(talker)


@pytest.mark.requirement("G45", "G47", "G24")
def test_ctrl_c_that_leaves_the_block_ends_the_child(talker: FakeCLI) -> None:
    program = Program(
        """
        try:
            with ph.session(cli=fake) as session:
                session.query("slow", on_message=soon).result()
        finally:
            print("left", session.state, flush=True)
        """,
        talker,
    )
    program.wait_for("ready")
    program.interrupt()
    program.wait_for("left closed")
    assert ended(talker)
    program.end_with_ctrl_c()


@pytest.mark.parametrize("way", ["with session: pass", "session.start()", "session.query('one').result()"])
def test_ctrl_c_in_the_start_leaves_no_child(fake: FakeCLI, way: str) -> None:
    fake.on_control("initialize", silent=True)
    program = Program(
        f"""
        session = ph.session(cli=fake)
        soon()
        try:
            {way}
        except KeyboardInterrupt:
            print("interrupted", session.state, flush=True)
            time.sleep(60)
        """,
        fake,
    )
    program.wait_for("ready")
    eventually(lambda: fake.calls)
    program.interrupt()
    program.wait_for("interrupted closed" if "with" in way else "interrupted broken")
    assert ended(fake)
    program.kill()
    program.process.communicate()


def test_a_call_that_was_interrupted_keeps_no_session_alive(fake: FakeCLI) -> None:
    fake.on_control("set_model", silent=True)
    program = Program(
        """
        session = ph.session(cli=fake)
        soon()
        try:
            session.set_model("opus")  # starts the child too, which lives with the context of this call
        except KeyboardInterrupt:
            print(session.state, flush=True)
        del session
        time.sleep(60)
        """,
        fake,
    )
    program.wait_for("ready")
    eventually(lambda: fake.calls and fake.calls[0].control("set_model"))
    program.interrupt()
    program.wait_for("idle")
    eventually(lambda: not running(fake))
    assert program.process.poll() is None
    program.kill()
    program.process.communicate()


def test_a_second_ctrl_c_does_not_wait_for_the_end(fake: FakeCLI) -> None:
    fake.expect("user").hang()
    program = Program(
        """
        session = ph.session(cli=fake).start()
        session.query("slow").start()
        soon()
        session.close()
        """,
        fake,
    )
    program.wait_for("ready")
    program.interrupt()
    time.sleep(0.2)  # two signals at once are one
    program.interrupt()
    began = time.monotonic()
    program.end_with_ctrl_c()
    assert time.monotonic() - began < 5
    assert ended(fake)


@pytest.mark.requirement("G45", "G47")
def test_ctrl_c_at_any_moment(talker: FakeCLI) -> None:
    program = Program(
        """
        import random
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        rng = random.Random(5)

        def once(number):
            if number % 6 == 0:
                session.query("big 50").result()
            elif number % 6 == 1:
                for message in session.query("big 50"):
                    pass
            elif number % 6 == 2:
                with session.query("big 50", on_message=lambda m: None) as query:
                    query.result()
            elif number % 6 == 3:
                session.set_model("opus")
            elif number % 6 == 4:
                with session.messages() as listener:
                    session.query("one").result()
                    next(listener)
            else:
                with ph.session(cli=fake, transport=quick) as other:
                    other.query("other").result()

        interrupted, took = 0, []
        session = ph.session(cli=fake)
        for number in range(48):
            began = time.monotonic()
            try:
                # Again after a while: Python drops a Ctrl-C that comes in the callback of a weak reference.
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0003, 0.02), 3.0)
                while True:
                    once(number)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupted += 1
            took.append(time.monotonic() - began)
            if number % 8 == 0:
                assert session.query("sane").result().text == "re: sane"
        assert interrupted == 48
        assert sorted(took)[24] < 3, took
        # On a busy machine the second Ctrl-C of a slow call may end its child.
        state = session.restarts if max(took) < 2.5 else 0, session.waiting, session.state
        loop = session._portal._loop
        del session
        gc.collect()
        deadline = time.monotonic() + 5
        while len(asyncio.all_tasks(loop)) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        print(*state, len(asyncio.all_tasks(loop)))
        """,
        talker,
    )
    code, out, err = program.end()
    assert (code, out) == (0, "0 0 idle 1\n"), err
    assert ended(talker)


# the end of the interpreter

OPEN = {
    "idle": """session.query("one").result()""",
    "in a turn": """
        query = session.query("slow").start()
        listener = session.messages()
        listening = threading.Thread(target=lambda: list(listener), daemon=True)
        listening.start()
    """,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("left", OPEN)
@pytest.mark.parametrize("end", [end for end in ENDS if end != "sys.exit"])
def test_an_open_session_ends_with_the_program(talker: FakeCLI, left: str, end: str) -> None:
    text = "session = ph.session(cli=fake, can_use_tool=lambda request: True)\n" + textwrap.dedent(OPEN[left]).strip()
    Program(f"{text}\n{ENDS[end][0]}\n", talker).end_as(end)
    eventually(lambda: not running(talker))


def test_closing_at_exit_works_or_does_nothing(talker: FakeCLI) -> None:
    program = Program(
        """
        import atexit
        class Late:
            def __del__(self):
                session.close()
                listener.close()
        atexit.register(lambda: (session.close(), listener.close()))  # after the end of all sessions
        session = ph.session(cli=fake)
        atexit.register(lambda: (print(session.query("one").result().text), session.close()))  # before it
        listener = session.messages()
        sys.late = Late()
        """,
        talker,
    )
    assert program.end() == (0, "re: one\n", "")
    assert ended(talker)


# forks


def test_a_session_stays_in_its_process(talker: FakeCLI) -> None:
    program = Program(
        FORK
        + """
session = ph.session(cli=fake)
session.query("one").result()
made, reading, listener = session.query("made"), iter(session.query("two")), session.messages()
assert next(reading).type == "system"
uses = (
    session.start, session.__enter__, session.interrupt, session.fork, session.messages, session.health, session.clear,
    session.mcp.status, lambda: session.query("three"), made.result, made.interrupt, lambda: next(listener),
)

def work():
    for use in uses:
        try:
            use()
        except ph.UsageError as error:
            assert "before a fork" in str(error), error
        else:
            raise AssertionError(use)
    assert session.id and session.state
    session.close()  # nothing of ours
    session.__exit__(None, None, None)
    listener.close()
    with ph.session(cli=fake) as own:
        assert own.query("own").result().text == "re: own"

fork(work)

def drop():
    global session, made, reading, listener, uses
    del session, made, reading, listener, uses
    gc.collect()

fork(drop)
print([m.type for m in reading], next(listener).type, session.query("three").result().text, session.restarts)
session.close()
""",
        talker,
    )
    assert program.end() == (0, "['assistant', 'result'] command_lifecycle re: three 0\n", "")
    assert [call.prompts for call in talker.calls] == [["one", "two", "three"], ["own"]]
    eventually(lambda: not running(talker))
