"""The child ends with the program, however the program ends, and nothing is said about it."""

from __future__ import annotations

import signal
import sys
import textwrap
import time

import pytest
from fake_cli_processes import running
from process_checks import eventually
from sync_fixtures import Program

from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start(text: str, fake: FakeCLI) -> Program:
    return Program("import pilothouse as ph\n" + textwrap.dedent(text), fake)


CLOSED_LOOP = """
loop = asyncio.new_event_loop()
async def main():
    query = ph.query("go", cli=fake)
    await anext(aiter(query))
    kept.append(query)
    loop.stop()
kept = []
task = loop.create_task(main())
loop.run_forever()
loop.close()
print("closed", flush=True)
"""


def test_a_loop_that_is_closed_under_a_query_ends_the_child_before_the_program_ends(hanging: FakeCLI) -> None:
    program = start(f"{CLOSED_LOOP}\nsignal.pause()", hanging)
    program.wait_for("closed")
    eventually(lambda: not running(hanging))
    program.process.kill()
    program.end()


def test_a_loop_that_is_stopped_and_closed_under_a_query(hanging: FakeCLI) -> None:
    program = start(CLOSED_LOOP, hanging)
    code, out, err = program.end()
    assert (code, out) == (0, "closed\n"), err
    eventually(lambda: not running(hanging))
    # asyncio itself complains about tasks that it was made to forget; nothing else may be said.
    noise = [
        line for line in err.splitlines() if not line.startswith((" ", "task: ", "Task was destroyed", "Traceback"))
    ]
    assert not [line for line in noise if "pilothouse" in line or "Error" in line or "Warning" in line], err


def test_the_program_ends_with_the_first_message_of_a_child_that_was_fast(hanging: FakeCLI) -> None:
    """The shell that ends the child is started beside it. On a busy machine that may take longer than the message."""
    program = start(
        """
        import time
        from pilothouse.transports.watchdog import Watchdog
        start_shell = Watchdog._start_shell
        def start_late(*arguments):
            time.sleep(0.5)
            start_shell(*arguments)
        Watchdog._start_shell = start_late
        async def main():
            async for message in ph.query("go", cli=fake):
                os._exit(3)
        asyncio.run(main())
        """,
        hanging,
    )
    code, _, err = program.end()
    assert (code, err) == (3, "")
    eventually(lambda: hanging.calls and not running(hanging))


@pytest.mark.parametrize("how", ["sys.exit(3)", "os._exit(3)", "raise SystemExit(3)"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_program_ends_in_the_middle(hanging: FakeCLI, how: str, backend: str) -> None:
    program = start(
        f"""
        import anyio
        async def main():
            async for message in ph.query("go", cli=fake):
                if message.type == "assistant":
                    {how}
        anyio.run(main, backend={backend!r})
        """,
        hanging,
    )
    code, _, err = program.end()
    assert (code, err) == (3, "")
    eventually(lambda: hanging.calls and not running(hanging))


@pytest.mark.parametrize("place", ["await", "loop", "callback", "sync callback"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c(hanging: FakeCLI, place: str, backend: str) -> None:
    uses = {
        "await": """await ph.query("go", cli=fake, on_message=lambda m: m.type == "assistant" and told())""",
        "loop": """
        async for message in ph.query("go", cli=fake):
            if message.type == "assistant":
                told()
        """,
        "callback": """
        async def show(message):
            if message.type == "assistant":
                told()
                await anyio.sleep(60)
        await ph.query("go", cli=fake, on_message=show)
        """,
        "sync callback": """
        def show(message):
            if message.type == "assistant":
                told()
                import time
                time.sleep(1)
        await ph.query("go", cli=fake, on_message=show)
        """,
    }
    text = "import anyio\ndef told():\n    print('ready', flush=True)\nasync def main():\n"
    text += textwrap.indent(textwrap.dedent(uses[place]), "    ") + f"\nanyio.run(main, backend={backend!r})\n"
    program = start(text, hanging)
    program.wait_for("ready")
    began = time.monotonic()
    program.process.send_signal(signal.SIGINT)
    code, _, err = program.end()
    assert time.monotonic() - began < 5
    assert code in (1, -signal.SIGINT, 130)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "never sent" not in err
    assert "never retrieved" not in err
    eventually(lambda: not running(hanging))


@pytest.mark.requirement("G10")
def test_the_program_is_killed(hanging: FakeCLI) -> None:
    program = start(
        """
        async def main():
            async for message in ph.query("go", cli=fake):
                if message.type == "assistant":
                    print("ready", flush=True)
        asyncio.run(main())
        """,
        hanging,
    )
    program.wait_for("ready")
    assert len(running(hanging)) == 2
    program.process.kill()
    program.end()
    eventually(lambda: not running(hanging))


def test_a_daemon_thread_and_its_query_end_with_the_program(hanging: FakeCLI) -> None:
    program = start(
        """
        ready = threading.Event()
        async def main():
            async for message in ph.query("go", cli=fake):
                if message.type == "assistant":
                    ready.set()
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        assert ready.wait(10)
        """,
        hanging,
    )
    code, _, err = program.end()
    assert code == 0
    assert err == "" or "CLIExitedError" in err  # the thread may live long enough to see its child end
    eventually(lambda: hanging.calls and not running(hanging))


def test_a_finished_program_is_silent(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    program = start(
        """
        async def main():
            print((await ph.query("go", cli=fake)).text)
            async for _ in ph.query("go", cli=fake):
                break
            async with ph.query("go", cli=fake) as query:
                await query.interrupt()
            await asyncio.gather(*(ph.query("go", cli=fake).result() for _ in range(3)))
            query = ph.query("go", cli=fake)
            try:
                await asyncio.wait_for(query, 0.001)
            except TimeoutError:
                print("timeout")
        asyncio.run(main())
        """,
        fake,
    )
    assert program.end() == (0, "Hello\ntimeout\n", "")
    eventually(lambda: not running(fake))
