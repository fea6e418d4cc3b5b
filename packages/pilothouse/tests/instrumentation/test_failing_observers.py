"""A watcher that fails, in whatever place and way, changes nothing for anybody else."""

from __future__ import annotations

import logging

import anyio
import pytest
from failing_instrumentation import FAULTS, PLACES, Breaking, Lived, live
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_instrumentation import Notebook

from pilothouse import instrumentation
from pilothouse.errors import OptionsError
from pilothouse.instrumentation import Observers, call_safely, collect_observers
from pilothouse.options import Options

USUAL = Lived(("re: one", "by myself", "re: two", "re: three", "re: three"), 1, ("CLIExitedError",), True)

USUAL_FAULTS = ("an error", "a cancellation")
ASKED = ("query_started", "session_environ", "environ", "run_context")  # for something; elsewhere all raise alike


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumentation, "_reported", set())


@pytest.mark.anyio
async def test_an_observer_that_does_not_fail_gets_everything() -> None:
    watcher = Breaking({})
    assert await live(watcher) == USUAL
    assert watcher.notified == set(PLACES) - {"entering", "leaving"}


@pytest.mark.sample(5)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("place", PLACES)
async def test_it_fails_in_one_place(place: str, caplog: pytest.LogCaptureFixture) -> None:
    for fault in [fault for fault in FAULTS if fault in USUAL_FAULTS or place in ASKED]:
        book = Notebook()
        assert await live(Breaking({place: fault}), book) == USUAL, fault
        assert [notes.log[-1] for notes in book.queries] == ["end"] * 5, fault  # with the turn of its own
        assert all(notes.log.count("end") == 1 for notes in book.queries)
    logged = [record for record in caplog.records if record.name == "pilothouse.instrumentation"]
    assert logged
    assert all(record.levelno == logging.ERROR for record in logged)
    assert len(logged) <= 3  # once for each class of what has failed


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(sorted(FAULTS)), min_size=2), st.booleans())
def test_it_fails_in_several(faults: dict[str, str], trio: bool) -> None:
    assert anyio.run(live, Breaking(faults), backend="trio" if trio else "asyncio") == USUAL


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_observer_may_end_the_program(error: type[BaseException]) -> None:
    def stop() -> None:
        raise error

    with pytest.raises(error):
        call_safely(object(), stop)


def test_an_invalid_observer_does_no_harm() -> None:
    class Given:
        def query_started(self, start: object) -> object:
            return 7

        def session_environ(self) -> dict[str, str | None]:
            return {}

    observers = Observers.start([Given()], instrumentation.QueryStart(prompt="x"))  # pyright: ignore[reportArgumentType]
    assert observers is not None
    assert observers.environ() == {}
    with observers.run_context():
        observers.restarted(None)


def test_only_ends_of_calls_come_after_the_end() -> None:
    book = Notebook()
    start = instrumentation.QueryStart(prompt="x")
    observers = Observers.start([book], start)
    assert observers is not None
    call = instrumentation.CallStart(kind="hook", name="Stop")
    late = instrumentation.CallStart(kind="hook", name="late")
    assert observers.call_started(call)
    observers.ended(instrumentation.QueryEnd(result=None, error=None, interrupted=False))
    assert not observers.call_started(late)
    observers.call_ended(call, instrumentation.CallEnd(outcome="cancelled"))
    observers.restarted(None)
    observers.retry_scheduled(instrumentation.ScheduledRetry(action="hold", reason="rate_limit", delay=1.0))
    observers.ended(instrumentation.QueryEnd(result=None, error=None, interrupted=True))
    assert book.only.log == ["hook Stop", "end", "hook cancelled"]


class Asynchronous:
    async def on_end(self) -> None: ...


def test_an_async_method_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """It would never run. The coroutine is closed, or Python would warn."""
    one = Asynchronous()
    assert call_safely(one, one.on_end) is None
    assert "called, not awaited: write `def` in place of `async def`" in caplog.text


def test_a_class_in_the_place_of_an_observer_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert collect_observers([object()], lambda _: Notebook) == []
    assert "the class Notebook is no observer: return an instance" in caplog.text


def test_a_class_in_the_place_of_an_instrumentation_is_refused() -> None:
    with pytest.raises(OptionsError, match="expected an Instrumentation, or a list of them, got <class"):
        Options(instrumentation=Notebook)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
