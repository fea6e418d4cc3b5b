"""Forks and worker processes: a new portal in the child, the parent's query goes on, nobody hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from process_checks import eventually
from sync_fixtures import FORK, Program, ended, running

from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_forked_child_asks_for_itself_and_the_parent_goes_on(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init())
    fake.expect("control_request", "interrupt").reply({}).emit(frames.assistant("later"), frames.result("done"))
    with FakeCLI().text("Hello").forever() as other:
        program = Program(
            FORK
            + f"""
other = {other.path!r}
ph.query("go", cli=other).result()
query = ph.query("go", cli=fake)
reading = iter(query)
assert next(reading).type == "system"

def work():
    for use in (query.result, query.interrupt, query.start, lambda: next(reading), query.__enter__):
        try:
            use()
        except ph.UsageError as error:
            assert "before a fork" in str(error)
        else:
            raise AssertionError(use)
    query.close()  # nothing of ours
    query.__exit__(None, None, None)
    assert ph.query("go", cli=other).result().text == "Hello"
    assert [m.type for m in ph.query("go", cli=other)] == ["system", "assistant", "result"]
    fork(lambda: ph.query("go", cli=other).result())

fork(work)
query.interrupt()
print([m.type for m in reading], flush=True)
fork(work)
print(query.result().text, flush=True)
""",
            fake,
        )
        assert program.end() == (0, "['assistant', 'result']\ndone\n", "")
        assert ended(fake)
        eventually(lambda: not running(other))


def test_what_a_forked_child_drops_stays_with_the_parent(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init())
    fake.expect("control_request", "interrupt").reply({}).emit(frames.assistant("later"), frames.result("done"))
    program = Program(
        FORK
        + """
query = ph.query("go", cli=fake)
reading = iter(query)
next(reading)
kept = [query, reading]

def work():
    global query, reading
    del query, reading
    kept.clear()
    import pilothouse.sync.portal
    gc.collect()

fork(work)
query.interrupt()
print([m.type for m in reading], flush=True)
""",
        fake,
    )
    assert program.end() == (0, "['assistant', 'result']\n", "")
    assert ended(fake)


def test_a_forked_child_that_ends_like_any_program(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    program = Program(
        FORK
        + """
query = ph.query("go", cli=fake).start()
pid = os.fork()
if pid == 0:
    print(ph.query("go", cli=fake).result().text, flush=True)
    sys.exit(5)  # through the whole end of the interpreter, without a word
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
print(query.result().text)
""",
        fake,
    )
    assert program.end() == (0, "Hello\nHello\n", "")


def test_a_fork_while_other_threads_ask(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    program = Program(
        FORK
        + """
ph.query("go", cli=fake).result()  # what a thread imports in the moment of a fork can never be imported in the child
stop = threading.Event()
def ask():
    while not stop.is_set():
        assert ph.query("go", cli=fake).result().text == "Hello"
threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(5):
    fork(lambda: ph.query("go", cli=fake).result())
stop.set()
for thread in threads:
    thread.join()
print("done")
""",
        fake,
    )
    assert program.end() == (0, "done\n", "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes(fake: FakeCLI, method: str, tmp_path: Path) -> None:
    fake.text("Hello").forever()
    script = tmp_path / "workers.py"
    script.write_text(
        f"""
import multiprocessing, os, warnings
from pilothouse import sync as ph
warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)

def work(number):
    return ph.query(f"go {{number}}", cli=os.environ["FAKE"]).result().text

if __name__ == "__main__":
    print(work(0))
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(work, range(4)))
    print(work(1))
"""
    )
    program = Program(script, fake)
    assert program.end() == (0, "Hello\n['Hello', 'Hello', 'Hello', 'Hello']\nHello\n", "")
    eventually(lambda: not running(fake))
