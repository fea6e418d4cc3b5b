"""The blocking session: its life, many threads, callbacks, listening, garbage."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
from process_checks import child_pids, eventually
from sync_fixtures import ended, in_threads, running

from pilothouse import sync as ph
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def running_turn(session: ph.Session) -> ph.Query:
    """A query that is being answered until it is interrupted."""
    with session.messages() as received:
        query = session.query("slow").start()
        assert any(message.type == "assistant" for message in received)
    return query


# life


@pytest.mark.requirement("E18", "G12", "E22")
def test_one_child_for_many_questions(talker: FakeCLI) -> None:
    session = ph.session(cli=talker.path)
    assert (session.state, session.pid, session.server_info, session.waiting) == ("new", None, {}, 0)
    assert talker.calls == []
    with session as entered:
        assert entered is session
        assert (session.state, session.health().state) == ("idle", "healthy")
        assert session.query("one").result().text == "re: one"
        assert [m.type for m in session.query("two")] == ["system", "assistant", "result"]
        assert "".join(session.query("three").text_stream()) == "re: three"
        assert session.pid == talker.calls[0].pid
        assert session.id is not None
        assert session.id in repr(session)
    assert (session.state, session.health().reason, session.restarts) == ("closed", "closed", 0)
    assert [call.prompts for call in talker.calls] == [["one", "two", "three"]]
    assert talker.calls[0].exit_code == 0
    session.close()
    for late in (session.start, lambda: session.query("four"), session.mcp.status):
        with pytest.raises(ph.SessionClosedError, match="make a new one"):
            late()
    assert list(session.messages()) == []


@pytest.mark.requirement("E52")
def test_a_query_that_is_left_is_stopped_and_the_session_goes_on(talker: FakeCLI) -> None:
    with ph.session(cli=talker.path) as session:
        for message in session.query("slow"):
            if message.type == "assistant":
                break
        with session.query("slow one") as query:
            assert next(iter(query)).type == "system"
        with pytest.raises(ph.QueryTimeout):
            session.query("slow two", timeout=0.2).result()
        assert session.query("last").result().text == "re: last"
        assert session.restarts == 0
    assert len(talker.calls) == 1


def test_on_message_and_prompts_run_where_they_do_for_queries(talker: FakeCLI) -> None:
    seen: list[tuple[str, str]] = []

    def prompts() -> Iterator[str]:
        seen.append(("prompt", threading.current_thread().name))
        yield "one"

    here = threading.current_thread().name
    with ph.session(cli=talker.path) as session:
        query = session.query(prompts(), on_message=lambda m: seen.append((m.type, threading.current_thread().name)))
        assert query.result().text == "re: one"
    worker = ("prompt", "AnyIO worker thread")
    assert seen == [worker, ("system", here), ("assistant", here), ("result", here)]


@pytest.mark.requirement("E30")
def test_a_fork_is_a_blocking_session(talker: FakeCLI) -> None:
    with ph.session(cli=talker.path) as session:
        session.query("one").result()
        with session.fork(model="haiku") as copy:
            assert isinstance(copy, ph.Session)
            assert copy.query("two").result().text == "re: two"
            assert copy.options.model == "haiku"
    argv = talker.calls[1].argv
    assert {f"--resume={session.id}", "--fork-session", "--model=haiku"} <= set(argv)
    assert copy.state == "idle" or not running(talker)


def test_an_agent_and_the_default_agent_make_sessions(talker: FakeCLI) -> None:
    with ph.Agent(cli=talker.path, model="opus").session(ph.Options(effort="low"), resume="abc") as session:
        assert (session.options.model, session.options.effort) == ("opus", "low")
    with ph.Agent(cli=talker.path).session(continue_latest=True, fork=True):
        pass
    assert "--resume=abc" in talker.calls[0].argv
    assert {"--continue", "--fork-session"} <= set(talker.calls[1].argv)


# many threads


@pytest.mark.requirement("E18", "E19")
def test_threads_are_served_in_the_order_in_which_they_ask(talker: FakeCLI) -> None:
    answers: list[str] = []
    with ph.session(cli=talker.path) as session:
        first = running_turn(session)
        threads: list[threading.Thread] = []
        for number in range(5):
            query = session.query(f"number {number}")
            threads.append(threading.Thread(target=lambda query=query: answers.append(query.result().text)))
            threads[-1].start()
            eventually(lambda: session.waiting == len(threads))
        first.interrupt()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [f"re: number {number}" for number in range(5)]
    assert talker.calls[0].prompts == ["slow", *(f"number {number}" for number in range(5))]


@pytest.mark.requirement("E18")
def test_many_threads_get_their_own_answers(talker: FakeCLI) -> None:
    answers: dict[str, str] = {}
    with ph.session(cli=talker.path) as session:

        def ask(number: int) -> None:
            for n in range(5):
                prompt = f"prompt {number} {n}"
                query = session.query(prompt)
                answers[prompt] = "".join(query.text_stream()) if n % 2 else query.result().text

        in_threads(*(lambda number=number: ask(number) for number in range(6)))
    assert answers == {f"prompt {i} {n}": f"re: prompt {i} {n}" for i in range(6) for n in range(5)}
    assert len(talker.calls) == 1


def test_threads_that_start_it_together_get_one_child(talker: FakeCLI) -> None:
    session = ph.session(cli=talker.path)
    in_threads(*[session.start] * 4, lambda: session.query("one").result())
    in_threads(*[session.close] * 4)
    assert len(talker.calls) == 1
    assert ended(talker)


@pytest.mark.requirement("E34", "R17")
def test_another_thread_interrupts(talker: FakeCLI) -> None:
    with ph.session(cli=talker.path) as session:
        assert session.interrupt().cancelled == []
        query = running_turn(session)
        results: list[ph.QueryResult] = []
        in_threads(lambda: results.append(query.result()), session.interrupt)
        assert results[0].outcome == "interrupted"
        assert session.query("next").result().text == "re: next"


@pytest.mark.requirement("E35", "G22")
def test_another_thread_closes(talker: FakeCLI) -> None:
    session = ph.session(cli=talker.path)
    turn = running_turn(session)

    def wait() -> None:
        with pytest.raises(ph.SessionClosedError):
            session.query("waits").result()

    def close() -> None:
        eventually(lambda: session.waiting == 1)
        session.close()
        assert ended(talker)

    in_threads(wait, close)
    assert talker.calls[0].prompts == ["slow"]
    with pytest.raises(ph.SessionClosedError):
        turn.result()


@pytest.mark.requirement("E18")
def test_questions_are_answered_at_once_while_the_caller_sleeps(talker: FakeCLI) -> None:
    with ph.session(cli=talker.path, can_use_tool=lambda request: True) as session:
        query = session.query("ask").start()
        # Nobody reads, and nobody waits in a call: the child has its answer all the same.
        eventually(lambda: any(frame["type"] == "control_response" for frame in talker.calls[0].frames))
        words = query.result().text.split()
        assert words[:2] == ["re:", "allow"]
        assert float(words[2]) < 2  # a few milliseconds, on a machine with nothing else to do


# callbacks


def test_a_plain_callback_may_use_the_session(talker: FakeCLI) -> None:
    states: list[str] = []

    def allow(request: ph.PermissionRequest) -> bool:
        session.set_model("haiku")
        states.append(session.state)
        assert ph.query("beside", cli=talker.path).result().text == "re: beside"
        return True

    with ph.session(cli=talker.path, can_use_tool=allow) as session:
        assert session.query("ask").result().text.startswith("re: allow")
    assert states == ["running"]
    assert talker.calls[0].control("set_model") == [{"subtype": "set_model", "model": "haiku"}]


def test_an_async_callback_has_the_session_of_the_loop(talker: FakeCLI) -> None:
    errors: list[ph.UsageError] = []

    async def allow(request: ph.PermissionRequest) -> bool:
        for wait in (session.close, session.mcp.status, more.result, session.messages):
            with pytest.raises(ph.UsageError) as caught:
                wait()
            errors.append(caught.value)
        await request.session.set_model("haiku")
        return True

    with ph.session(cli=talker.path, can_use_tool=allow) as session:
        more = session.query("more")
        assert session.query("ask").result().text.startswith("re: allow")
        assert session.options.model == "haiku"
        more.close()
    assert all("would deadlock" in str(error) for error in errors)
    assert len(errors) == 4


def test_a_callback_may_end_what_it_works_for(talker: FakeCLI) -> None:
    def allow(request: ph.PermissionRequest) -> bool:
        session.close()
        return True

    session = ph.session(cli=talker.path, can_use_tool=allow)
    with pytest.raises(ph.SessionClosedError):
        session.query("ask").result()
    assert session.state == "closed"
    eventually(lambda: not running(talker))


# listening


@pytest.mark.requirement("G16")
def test_messages_are_those_of_all_queries_and_end_with_the_session(talker: FakeCLI) -> None:
    session = ph.session(cli=talker.path)
    listener = session.messages()
    received: list[str] = []

    def ask() -> None:
        with session:
            session.query("one").result()
            session.query("two").result()

    in_threads(ask, lambda: received.extend(m.type for m in listener))
    reported = "command_lifecycle"
    assert received == [reported, reported, "system", "assistant", "result", reported] * 2


def test_listening_hops_in_batches(talker: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    from pilothouse.sync.portal import Portal

    with ph.session(cli=talker.path) as session:
        listener = session.messages()
        session.query("big 500").result()
        hops: list[object] = []
        call = Portal.call
        monkeypatch.setattr(Portal, "call", lambda self, work, **how: hops.append(work) or call(self, work, **how))
        assert [next(listener).type for _ in range(506)].count("assistant") == 501
        assert len(hops) < 150


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_listener_that_is_not_read_holds_up_nothing(talker: FakeCLI, end: str) -> None:
    with ph.session(cli=talker.path) as session:
        held = [session.messages()]
        query = session.query("big 3000")  # 30 MB: more than stays in memory
        assert len(list(query)) == 3003
        assert session.health().state == "degraded"
        if end == "close":
            held[0].close()
            assert list(held[0]) == []
        else:
            held.clear()
        assert session.health().state == "healthy"
        assert session.query("next").result().text == "re: next"


def test_another_thread_ends_the_listening(talker: FakeCLI) -> None:
    with ph.session(cli=talker.path) as session:
        listener = session.messages()
        received: list[str] = []

        def close() -> None:
            session.query("one").result()
            eventually(lambda: len(received) == 6)
            listener.close()

        in_threads(lambda: received.extend(m.type for m in listener), close)
        assert received[2:5] == ["system", "assistant", "result"]
        assert list(listener) == []
        assert session.query("two").result().text == "re: two"


# the end without a close


def test_a_session_that_is_dropped_ends_its_child(talker: FakeCLI) -> None:
    gc.disable()  # reference counts alone do it
    try:
        for use in (ph.Session.start, lambda s: s.query("one").result(), lambda s: s.set_model("opus")):
            session = ph.session(cli=talker.path)
            listener = session.messages()
            use(session)
            assert running(talker)
            del session
            eventually(lambda: not running(talker))
            list(listener)  # ends too
        assert len(talker.calls) == 3
        eventually(lambda: not child_pids())
    finally:
        gc.enable()


def test_a_query_keeps_its_session(talker: FakeCLI) -> None:
    query = ph.session(cli=talker.path).query("one")
    gc.collect()
    assert query.result().text == "re: one"
    assert running(talker)
    del query
    eventually(lambda: not running(talker))


@pytest.mark.requirement("E16", "E17")
def test_queries_have_ids_and_states(talker: FakeCLI) -> None:
    with ph.session(cli=talker.path) as session:
        query = session.query("one")
        assert (query.state, session.queries) == ("new", [])
        waiting = session.query("two")
        with session.query("slow") as slow:
            assert (slow.state, session.queries) == ("active", [slow])
        assert slow.state == "closed"
        assert query.result().text == "re: one"
        assert (query.state, waiting.state, query.id == waiting.id) == ("completed", "new", False)
        waiting.close()
