"""Programs with blocking queries: Ctrl-C, and the end of the interpreter in every way. The child ends with them."""

from __future__ import annotations

import sys
import textwrap
import time

import pytest
from process_checks import eventually
from sync_fixtures import DEADLINE, ENDS, Program, ended, running

from pilothouse.sync.portal import WAIT_SLICE
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PLACES = {
    "result": """ph.query("go", cli=fake, on_message=soon).result()""",
    "loop": """
        for message in ph.query("go", cli=fake):
            soon(message)
    """,
    "text": """
        for text in ph.query("go", cli=fake).text_stream():
            soon()
    """,
    "body of the loop": """
        for message in ph.query("go", cli=fake):
            ready(message)
            if message.type == "assistant":
                rest()
    """,
    "callback": """
        def show(message):
            ready(message)
            if message.type == "assistant":
                rest()
        ph.query("go", cli=fake, on_message=show).result()
    """,
    "async callback": """
        async def show(message):
            ready(message)
            if message.type == "assistant":
                await asyncio.sleep(60)
        ph.query("go", cli=fake, on_message=show).result()
    """,
    "block": """
        with ph.query("go", cli=fake) as query:
            for message in query:
                soon(message)
    """,
    "interrupt": """
        with ph.query("go", cli=fake) as query:
            for message in query:
                if message.type == "assistant":
                    soon()
                    query.interrupt()
    """,
    "running loop": """
        async def cell():
            ph.query("go", cli=fake, on_message=soon).result()
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(cell())
        finally:
            loop.close()
    """,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.requirement("G45", "G47")
def test_ctrl_c_is_a_keyboard_interrupt_and_the_child_is_gone(hanging: FakeCLI, place: str) -> None:
    hanging.on_control("interrupt", silent=True)
    text = "try:\n" + textwrap.indent(textwrap.dedent(PLACES[place]).strip(), "    ")
    text += "\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n    raise\n"
    program = Program(text, hanging)
    program.press_ctrl_c()
    if place not in {"body of the loop", "running loop"}:
        assert ended(hanging)
    program.end_with_ctrl_c()
    assert ended(hanging)


@pytest.mark.requirement("G45")
def test_ctrl_c_that_another_thread_is_given_is_noticed(hanging: FakeCLI) -> None:
    # As one is that comes in the instant before the wait: it interrupts nothing.
    program = Program(
        """
        def elsewhere():
            time.sleep(0.3)  # by then the main thread waits again
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

        def show(message):
            if message.type == "assistant":
                threading.Thread(target=elsewhere).start()

        try:
            ph.query("go", cli=fake, on_message=show).result()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        hanging,
    )
    began = time.monotonic()
    assert program.end() == (0, "interrupted\n", "")
    assert time.monotonic() - began < DEADLINE / 2
    assert ended(hanging)


def test_inside_asyncio_run_it_takes_two(hanging: FakeCLI) -> None:
    # The first one cancels the task: what Python does there with every blocking call.
    program = Program(
        """
        async def main():
            soon()
            ph.query("go", cli=fake).result()
        asyncio.run(main())
        """,
        hanging,
    )
    program.wait_for("ready")
    eventually(lambda: hanging.calls and hanging.calls[0].grandchildren)
    program.interrupt()
    time.sleep(0.1)  # two signals at once are one
    program.interrupt()
    code, _, err = program.end()
    assert code in (1, -2, 130)
    assert "KeyboardInterrupt" in err
    assert ended(hanging)


def test_a_second_ctrl_c_leaves_no_child_either(fake: FakeCLI) -> None:
    fake.ignore_sigterm().expect("user").emit(frames.init(), frames.assistant("x")).hang()
    program = Program("""ph.query("go", cli=fake, on_message=ready).result()""", fake)
    program.wait_for("ready")
    program.interrupt()
    eventually(lambda: fake.calls[0].signals)  # the first one is ending the child, which does not want to
    program.interrupt()
    began = time.monotonic()
    program.end_with_ctrl_c()
    assert time.monotonic() - began < 5
    assert ended(fake)


@pytest.mark.requirement("G45", "G47")
def test_ctrl_c_at_any_moment(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).repeat(300, frames.assistant("x")).emit(frames.result("done")).forever()
    program = Program(
        """
        import random
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        rng = random.Random(5)

        def once(number):
            query = ph.query("go", cli=fake, transport=quick, on_message=lambda m: None)
            if number % 4 == 0:
                query.result()
            elif number % 4 == 1:
                for message in query:
                    pass
            elif number % 4 == 2:
                with query:
                    query.result()
            else:
                "".join(query.text_stream())

        # The shortest of five: after one pause of the machine, most of the Ctrl-C would come after the end of a query.
        usual = []
        for _ in range(5):
            began = time.monotonic()
            ph.query("go", cli=fake).result()
            usual.append(time.monotonic() - began)
        interrupted, took = 0, []
        for number in range(40):
            began = time.monotonic()
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 1.5 * min(usual)))
                once(number)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            took.append(time.monotonic() - began)
        # The median: Python drops a Ctrl-C that comes in the callback of a weak reference, and then the query goes on.
        assert sorted(took)[20] < 3, took
        assert ph.query("go", cli=fake).result().text == "done"
        assert interrupted > 10, interrupted
        gc.collect()
        tasks = sys.modules["pilothouse.sync.portal"].get_portal()._loop
        deadline = time.monotonic() + 5
        while len(asyncio.all_tasks(tasks)) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        print(len(asyncio.all_tasks(tasks)), [t.name for t in threading.enumerate() if "pilothouse" in t.name])
        """,
        fake,
    )
    code, out, err = program.end()
    assert (code, out) == (0, "1 ['pilothouse-sync']\n"), err
    assert ended(fake)


# the end of the interpreter


OPEN = {
    "started": """query = ph.query("go", cli=fake).start()""",
    "read": """
        reading = iter(ph.query("go", cli=fake))
        while next(reading).type != "assistant":
            pass
    """,
    "block": """
        query = ph.query("go", cli=fake).__enter__()
        reading = iter(query)
        next(reading)
    """,
    "daemon thread": """
        def work():
            try:
                ph.query("go", cli=fake, on_message=lambda m: ready.set()).result()
            except ph.PilothouseError:
                pass
        ready = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        assert ready.wait(10)
    """,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("left", OPEN)
@pytest.mark.parametrize("end", ENDS)
def test_an_open_query_ends_with_the_program(hanging: FakeCLI, left: str, end: str) -> None:
    Program(textwrap.dedent(OPEN[left]).strip() + f"\n{ENDS[end][0]}\n", hanging).end_as(end)
    eventually(lambda: not running(hanging))


def test_a_child_that_ignores_sigterm_does_not_hold_up_the_exit(fake: FakeCLI) -> None:
    fake.ignore_sigterm().expect("user").emit(frames.init(), frames.assistant("x")).hang()
    program = Program("""query = iter(ph.query("go", cli=fake)); next(query); print("ready", flush=True)""", fake)
    program.wait_for("ready")
    began = time.monotonic()
    assert program.end() == (0, "", "")
    assert time.monotonic() - began < 5
    assert ended(fake)


def test_a_finished_program_is_silent(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    program = Program(
        """
        print(ph.query("go", cli=fake).result().text)
        for _ in ph.query("go", cli=fake):
            break
        with ph.query("go", cli=fake) as query:
            query.interrupt()
        print("".join(ph.query("go", cli=fake).text_stream()))
        """,
        fake,
    )
    assert program.end() == (0, "Hello\nHello\n", "")
    eventually(lambda: not running(fake))


def test_a_thread_may_outlive_the_main_thread(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    program = Program(
        """
        ph.query("go", cli=fake).result()  # Python 3.12 starts no thread any more when the main one has ended
        def work():
            threading.main_thread().join()
            print(ph.query("go", cli=fake).result().text)
        threading.Thread(target=work).start()
        """,
        fake,
    )
    assert program.end() == (0, "Hello\n", "")


def test_a_thread_that_reads_messages_does_not_keep_the_program(fake: FakeCLI) -> None:
    """It reads on while another thread works, and then its loop ends."""
    fake.text("Hello").forever()
    program = Program(
        f"""
        session = ph.session(cli=fake)
        session.query("go").result()
        def read(messages):
            results = [message for message in messages if isinstance(message, ph.ResultMessage)]
            print("read", len(results))
        def work():
            threading.main_thread().join()
            time.sleep({2.5 * WAIT_SLICE})
            session.query("more").result()
        threading.Thread(target=read, args=(session.messages(),)).start()
        threading.Thread(target=work).start()
        """,
        fake,
    )
    assert program.end() == (0, "read 1\n", "")
    eventually(lambda: not running(fake))


def test_at_exit_a_query_works_or_says_why_not(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    program = Program(
        """
        import atexit
        def last():
            for use in (lambda: ph.query("go", cli=fake).result(), kept.result):
                try:
                    use()
                except ph.SessionClosedError as error:
                    print("shutting down" in str(error))
        atexit.register(last)
        kept = ph.query("go", cli=fake)
        kept.start()
        atexit.register(lambda: print(ph.query("go", cli=fake).result().text))
        """,
        fake,
    )
    code, out, err = program.end()
    assert (code, out, err) == (0, "Hello\nTrue\nTrue\n", "")


@pytest.mark.parametrize("reader", ["input()", "sys.stdin.readline()", "next(iter(sys.stdin))"])
def test_a_prompt_that_waits_for_input_does_not_hold_up_the_exit(fake: FakeCLI, reader: str) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("x")).hang()
    program = Program(
        f"""
        def prompts():
            yield "one"
            print("waiting", flush=True)
            yield {reader}
        query = ph.query(prompts(), cli=fake, timeout=2)
        try:
            query.result()
        except ph.QueryTimeout:
            print("timeout", flush=True)
        """,
        fake,
        keep_stdin=True,
    )
    program.wait_for("waiting")
    program.process.wait(10)  # its input is still open
    assert program.end() == (0, "timeout\n", "")
    assert ended(fake)
