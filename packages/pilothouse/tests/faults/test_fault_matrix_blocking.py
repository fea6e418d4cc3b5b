"""The blocking twin: the same outcomes of the same faults."""

from __future__ import annotations

import gc
import sys
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
