"""The blocking twin: the same outcomes of the same faults, and Ctrl-C at random moments of what asks back.

`sync/test_programs.py` and `sync/test_session_programs.py` press Ctrl-C at random moments of
plain queries and sessions, and at chosen places.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_matrix import FAULTS, Cell, Outcome, Subject, expected
from fault_runner import LARGE, Run, fake_of
from process_checks import eventually, is_dead

import pilothouse as ph
from pilothouse import sync

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PLACES: dict[Subject, tuple[str, ...]] = {
    "query": ("handshake", "streaming", "tool", "tool, thread", "deferred", "deferred, thread", "answered"),
    "session": ("handshake", "streaming", "permission", "permission, thread", "hook, thread", "deferred"),
}
THREADS = 8
DEADLINE = 180.0


class BlockingRun(Run):
    def play_blocking(self) -> None:
        self.home.mkdir()
        with fake_of() as self.fake:
            if self.cell.subject == "query":
                self.outcome = Outcome(
                    self._run_to_outcome(lambda: sync.query(LARGE, **self.settings()).result().outcome)
                )
            else:
                session = sync.Agent(**self.settings()).session()
                try:
                    first = self._run_to_outcome(lambda: session.query(LARGE).result().outcome)
                    following = self._run_to_outcome(lambda: session.query("next", idle_timeout=None).result().outcome)
                finally:
                    session.close()
                self.outcome = Outcome(first, following, new_child=len(self.fake.calls) > 1)
            self.let_go()
            self.pids = [pid for call in self.fake.calls for pid in (call.pid, *call.grandchildren) if pid]

    def _run_to_outcome(self, work: Callable[[], str]) -> str:
        try:
            return work()
        except ph.PilothouseError as error:
            return type(error).__name__


@pytest.mark.sample(1)
@pytest.mark.needs_models
@pytest.mark.parametrize("subject", PLACES)
@pytest.mark.requirement("G41", "G46", "E68", "E69")
def test_the_same_faults_have_the_same_outcomes(subject: Subject, tmp_path: Path, short_waits: None) -> None:
    cells = [Cell(subject, state, fault) for state in PLACES[subject] for fault in FAULTS]
    played = [BlockingRun(cell, tmp_path / f"{cell.state} {cell.fault}") for cell in cells]
    # One of the faults is nested so deeply that the decoder gives up. Were garbage collected at that depth, Python
    # would have no room for the finalizers of what earlier tests have left.
    gc.collect()
    gc.disable()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(run.play_blocking) for run in played]:
                done.result(DEADLINE)
    finally:
        gc.enable()
    assert [(run.cell, run.outcome) for run in played if run.outcome != expected(run.cell)] == []
    eventually(lambda: all(is_dead(pid) for run in played for pid in run.pids), "children left")


PROGRAM = """
import asyncio, gc, os, random, signal, sys, time
sys.path.insert(0, os.environ["FAULTS"])
from fault_runner import fake_of
from pilothouse import sync as ph
from pilothouse.transports import CliTransport

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, signal.default_int_handler)
# Python drops a Ctrl-C that comes in the callback of a weak reference, and says so.
sys.unraisablehook = lambda failure: failure.object.__module__ == "weakref" or sys.__unraisablehook__(failure)
gc.disable()  # as above: finalizers would have no room where the decoder gives up
rng = random.Random(11)
home = os.environ["HOME"]

@ph.tool
def slow() -> str:
    "Takes its time."
    open(home + "/mark.runs", "w").close()
    time.sleep(0.01)
    return "done"

def asked(event):
    open(home + "/mark.runs", "w").close()

PLACES = ("tool", "hook", "deferred", "streaming")
children = set()

def once(number, fake):
    state = PLACES[number % len(PLACES)]
    own = {
        "tool": {"custom_tools": [slow]},
        "deferred": {"custom_tools": [slow], "tool_bridge": "deferred"},
        "hook": {"hooks": {"PreToolUse": [ph.HookMatcher("Bash", [asked])]}},
    }.get(state, {})
    env = {"FAULT": "garbage", "FAULT_STATE": state, "FAULT_MARK": home + "/mark", "FAULT_CODE": os.environ["FAULTS"]}
    for name in ("/mark", "/mark.runs"):
        if os.path.exists(home + name):
            os.remove(home + name)
    settings = dict(cli=fake.path, env=env, transport=lambda: CliTransport(close_grace=0.02), **own)
    if number % 2:
        with ph.Agent(**settings).session() as session:
            session.query("one").result()
    else:
        ph.query("one", **settings).result()

with fake_of() as fake:
    once(0, fake)
    interrupted, took = 0, []
    began = time.monotonic()
    once(1, fake)
    usual = time.monotonic() - began
    for number in range(36):
        began = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 2 * usual))
            once(number, fake)
            signal.setitimer(signal.ITIMER_REAL, 0)
            usual = min(usual, time.monotonic() - began)  # the first one may have been slow
        except KeyboardInterrupt:
            interrupted += 1
        took.append(time.monotonic() - began)
        gc.collect()
        if number % 9 == 8:
            once(3, fake)  # the next query works
    once(0, fake)
    # The median, because all goes on to its end where a Ctrl-C was dropped.
    assert sorted(took)[18] < 5, took
    gc.collect()
    pids = [call.pid for call in fake.calls if call.pid]
print(interrupted > 8, *pids)
"""


@pytest.mark.needs_models
@pytest.mark.requirement("G45", "G47")
def test_ctrl_c_at_any_moment_of_what_asks_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(PROGRAM)],
        env={**os.environ, "FAULTS": str(Path(__file__).parent), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        start_new_session=True,
    )
    # Python drops a Ctrl-C that comes in a destructor, and prints it.
    told = re.sub(
        r"^Exception ignored in: <function \S+__del__ .*?^KeyboardInterrupt: *$",
        "",
        done.stderr,
        flags=re.MULTILINE | re.DOTALL,
    )
    expected = ("Executing <", "skipped a line", "in Claude Code that does not report its version")
    lines = [line for line in told.splitlines() if line and not line.startswith(expected)]
    assert (done.returncode, lines) == (0, []), done.stderr
    enough, *pids = done.stdout.split()
    assert enough == "True"
    assert len(pids) > 4
    eventually(lambda: all(is_dead(int(pid)) for pid in pids), "children left")
