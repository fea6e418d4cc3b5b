"""The ways to use a blocking query: collect, iterate, both, a block; its errors, its end."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from typing import Any

import pytest
from process_checks import eventually, is_dead
from sync_fixtures import ended, running

from pilothouse import sync as ph
from pilothouse.events import Started
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# collect


@pytest.mark.requirement("L55", "E18")
def test_result_blocks_until_the_child_is_gone(fake: FakeCLI) -> None:
    fake.text("Hello")
    query = ph.query("go", cli=fake.path)
    assert fake.calls == []  # nothing runs until it is used
    result = query.result()
    assert (result.text, result.outcome, len(result.messages)) == ("Hello", "success", 3)
    assert fake.calls[0].exit_code == 0
    assert not running(fake)
    assert query.result() is result
    assert query.session_id == result.session_id


@pytest.mark.requirement("L57")
def test_on_message_gets_every_message_once_in_order_while_the_child_runs(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).expect("control_request", "interrupt").reply({})
    fake.emit(frames.assistant("later"), frames.result("done"))
    seen: list[str] = []

    def show(message: ph.Message) -> None:
        seen.append(message.type)
        if message.type == "system":
            assert running(fake)
            query.interrupt()  # a callback may use the query; the rest comes only after this

    query = ph.query("go", cli=fake.path, on_message=show)
    assert len(query.result().messages) == 3
    assert seen == ["system", "assistant", "result"]


@pytest.mark.requirement("L57", "L61")
def test_what_on_message_raises_is_kept_and_the_stream_goes_on(fake: FakeCLI, caplog: pytest.LogCaptureFixture) -> None:
    fake.text("Hello")

    def show(message: ph.Message) -> None:
        raise LookupError(message.type)

    with caplog.at_level(logging.ERROR):
        result = ph.query("go", cli=fake.path, on_message=show).result()
    assert result.text == "Hello"
    assert [str(e) for e in result.callback_errors] == ["system", "assistant", "result"]
    assert len([r for r in caplog.records if "on_message" in r.message]) == 1


def test_exit_in_a_callback_ends_the_query(hanging: FakeCLI) -> None:
    def show(message: ph.Message) -> None:
        if message.type == "assistant":
            sys.exit(3)

    with pytest.raises(SystemExit):
        ph.query("go", cli=hanging.path, on_message=show).result()
    assert ended(hanging)


@pytest.mark.parametrize("kind", ["function", "object", "lambda"])
def test_an_async_callback_runs_on_the_loop(fake: FakeCLI, kind: str) -> None:
    fake.text("Hello")
    seen: list[tuple[str, str]] = []

    async def show(message: ph.Message) -> None:
        import asyncio

        await asyncio.sleep(0)
        seen.append((message.type, threading.current_thread().name))

    class Shower:
        async def __call__(self, message: ph.Message) -> None:
            await show(message)

    callback: Any = {"function": show, "object": Shower(), "lambda": lambda message: show(message)}[kind]
    assert not ph.query("go", cli=fake.path, on_message=callback).result().callback_errors
    assert seen == [(kind, "pilothouse-sync") for kind in ("system", "assistant", "result")]


# iterate


@pytest.mark.requirement("L56")
def test_messages_come_while_the_child_runs(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).expect("control_request", "interrupt").reply({}).emit(frames.result("x"))
    query = ph.query("go", cli=fake.path)
    seen: list[str] = []
    for message in query:
        seen.append(message.type)
        if message.type == "system":
            assert not is_dead(fake.calls[0].pid)
            query.interrupt()
    assert seen == ["system", "result"]
    assert not running(fake)
    assert query.result().text == "x"


def test_text_and_events(fake: FakeCLI) -> None:
    fake.text("Hello you").forever()
    query = ph.query("go", cli=fake.path)
    assert "".join(query.text_stream()) == "Hello you"
    assert "--include-partial-messages" in fake.calls[0].argv
    events = list(ph.query("go", cli=fake.path).events())
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], ph.Finished)


@pytest.mark.requirement("E52", "G24")
def test_break_ends_the_child(hanging: FakeCLI) -> None:
    for message in ph.query("go", cli=hanging.path):
        if message.type == "assistant":
            break
    gc.disable()  # reference counts alone do it
    try:
        eventually(lambda: not running(hanging))
    finally:
        gc.enable()


@pytest.mark.requirement("E52", "G24", "G25")
def test_an_error_in_the_body_ends_the_child(hanging: FakeCLI) -> None:
    def read() -> None:
        for _ in ph.query("go", cli=hanging.path):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        read()
    eventually(lambda: hanging.calls and not running(hanging))


def test_closing_a_reading_waits_for_the_end(hanging: FakeCLI) -> None:
    reading = iter(ph.query("go", cli=hanging.path))
    assert next(reading).type == "system"
    assert running(hanging)
    reading.close()
    assert ended(hanging)
    with pytest.raises(ph.SessionClosedError):
        list(reading)


def test_a_million_messages_do_not_hop_one_by_one(fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    from pilothouse.sync.portal import Portal

    fake.expect("user").emit(frames.init()).repeat(20_000, frames.assistant("x")).emit(frames.result("done"))
    hops: list[object] = []
    call = Portal.call
    monkeypatch.setattr(Portal, "call", lambda self, work, **how: hops.append(work) or call(self, work, **how))
    assert sum(1 for _ in ph.query("go", cli=fake.path)) == 20_002
    assert len(hops) < 1000


# a block


@pytest.mark.requirement("G23", "G26")
def test_a_block_owns_the_child(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("one"), frames.assistant("two")).hang()
    with ph.query("go", cli=fake.path) as query:
        for _ in query:
            break
        assert running(fake)
        left = [next(iter(query)).type for _ in range(2)]
        assert left == ["assistant", "assistant"]  # a loop goes on where another was left
        assert running(fake)
    assert ended(fake)


def test_the_rest_of_a_block_reaches_the_callback(fake: FakeCLI) -> None:
    fake.text("Hello")
    seen: list[str] = []
    with ph.query("go", cli=fake.path, on_message=lambda m: seen.append(m.type)) as query:
        for _ in query:
            break
        assert len(query.result().messages) == 3
    assert seen == ["assistant", "result"]


def test_close_is_idempotent_and_wakes_no_reader_twice(hanging: FakeCLI) -> None:
    query = ph.query("go", cli=hanging.path).start()
    eventually(lambda: running(hanging))
    query.close()
    query.close()
    assert ended(hanging)
    unused = ph.query("go", cli=hanging.path)
    unused.close()
    with pytest.raises(ph.SessionClosedError):
        unused.result()
    assert len(hanging.calls) == 1


# errors and ends


def test_an_error_keeps_nothing_alive(fake: FakeCLI) -> None:
    import weakref

    fake.expect("user").exit(7)
    query = ph.query("go", cli=fake.path)
    with pytest.raises(ph.CLIExitedError):
        query.result()
    gone = weakref.ref(query)
    del query
    eventually(lambda: gc.collect() >= 0 and gone() is None)


def test_a_dropped_query_ends(hanging: FakeCLI) -> None:
    query = ph.query("go", cli=hanging.path).start()
    eventually(lambda: running(hanging))
    del query
    eventually(lambda: not running(hanging))


def test_readings_that_were_never_read_leave_nothing(fake: FakeCLI) -> None:
    fake.text("Hello")
    query = ph.query("go", cli=fake.path).start()
    for unused in (query.__iter__, query.events, query.text_stream):
        unused()
    gc.collect()
    assert query.result().text == "Hello"


def test_the_wait_costs_no_processor(hanging: FakeCLI) -> None:
    with ph.query("go", cli=hanging.path) as query:
        for message in query:
            if message.type == "assistant":
                break
        before = time.process_time()
        threading.Event().wait(0.3)
        assert time.process_time() - before < 0.1
