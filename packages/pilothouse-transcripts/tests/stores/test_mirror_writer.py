"""What a CLI has added to its transcripts, on its way into a store."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from faulty_stores import (
    AGENT,
    FILE,
    ID,
    PLACE,
    Moody,
    Plain,
    fail,
    hang,
    make_entries,
    mirror_frame,
    numbers,
    peer,
    turn,
)

import pilothouse as ph
from pilothouse.errors import LeaseLostError, OptionsError, SessionLeasedError, StoreConflictError
from pilothouse.messages import MirrorErrorMessage, TranscriptMirrorMessage
from pilothouse.options import Invocation, Options, render
from pilothouse.transports import MemoryTransport, Transport
from pilothouse_testing import frames
from pilothouse_testing.conformance import MEMORY_PEERS, Behaviour, TransportSuite
from pilothouse_transcripts import project_key
from pilothouse_transcripts.stores import MemoryStore
from pilothouse_transcripts.stores.base import Lease, TranscriptKey
from pilothouse_transcripts.stores.mirror import (
    BATCH_BYTES,
    BATCH_ENTRIES,
    LINGER_SECONDS,
    MAX_BACKLOG_BYTES,
    MirrorWriter,
    SessionWriter,
)
from pilothouse_transcripts.stores.mirrored_transport import MirroredTransport

pytestmark = pytest.mark.anyio
virtual = pytest.mark.virtual_time


class TestMirroredTransport(TransportSuite):
    """A transport with a mirror around it is a transport like any other."""

    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        options = Options(session_store=MemoryStore())
        inner = MemoryTransport(MEMORY_PEERS[behaviour])
        return MirroredTransport(inner, options), Invocation(cli="auto", argv=(), env={})


# The mirror itself.


class Reported(list[tuple[TranscriptKey, str]]):
    def __call__(self, place: TranscriptKey, error: str) -> None:
        self.append((place, error))


@asynccontextmanager
async def running(store: Any, reported: Reported | None = None, **how: Any) -> AsyncGenerator[MirrorWriter]:
    mirror = MirrorWriter(SessionWriter(store, 60.0), Reported() if reported is None else reported, **how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run)
        await anyio.wait_all_tasks_blocked()
        yield mirror
        tasks.cancel_scope.cancel()


@pytest.fixture(params=[Plain, Moody])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


@virtual
async def test_what_comes_is_written_in_order_and_in_few_calls(store: Any) -> None:
    async with running(store) as mirror:
        for number in range(5):
            mirror.enqueue(PLACE, make_entries(number), 10)
            mirror.enqueue(PLACE._replace(subpath="subagents/agent-1"), make_entries(100 + number), 10)
        mirror.flush_soon()
        await anyio.wait_all_tasks_blocked()
        assert store.calls == [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]]
        assert mirror.backlog == 0


@virtual
async def test_it_is_written_soon_although_no_turn_ends(store: Any) -> None:
    """A host that is killed in the middle of a long turn loses no more than a moment of it."""
    async with running(store) as mirror:
        mirror.enqueue(PLACE, make_entries(1), 10)
        await anyio.wait_all_tasks_blocked()
        assert store.calls == []
        await anyio.sleep(LINGER_SECONDS * 1.1)
        assert store.calls == [[1]]
        mirror.enqueue(PLACE, make_entries(2), 10)
        await anyio.sleep(LINGER_SECONDS * 1.1)
        assert store.calls == [[1], [2]]


@virtual
@pytest.mark.parametrize("large", ["entries", "bytes"])
async def test_much_is_written_at_once(store: Any, large: str) -> None:
    count, size = (BATCH_ENTRIES + 1, 10) if large == "entries" else (1, BATCH_BYTES + 1)
    async with running(store) as mirror:
        mirror.enqueue(PLACE, make_entries(*range(count)), size)
        await anyio.wait_all_tasks_blocked()
        assert [n for call in store.calls for n in call] == list(range(count))
        assert all(len(call) <= BATCH_ENTRIES for call in store.calls)


@virtual
async def test_eager_is_at_once_and_what_comes_meanwhile_goes_together(store: Any) -> None:
    gate = anyio.Event()
    store.faults = [gate.wait]
    async with running(store, eager=True) as mirror:
        for number in range(4):
            mirror.enqueue(PLACE, make_entries(number), 10)
            await anyio.wait_all_tasks_blocked()
        assert store.calls == []
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert store.calls == [[0], [1, 2, 3]]


@virtual
async def test_a_write_that_fails_is_tried_again(store: Any) -> None:
    reported = Reported()
    store.faults = [fail, fail]
    async with running(store, reported) as mirror:
        mirror.enqueue(PLACE, make_entries(1, 2), 10)
        mirror.flush_soon()
        await anyio.sleep(2)
        assert store.calls == [[1, 2]]
        assert (reported, mirror.last_error) == ([], None)


@virtual
@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("x")])
async def test_an_exit_in_a_store_is_a_failure_of_the_store(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    class Leaving(Moody):
        async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
            raise error

        async def release(self, lease: Lease) -> None:
            raise error

    store, reported = Leaving(), Reported()
    store.faults = [fail] * 3
    async with running(store, reported) as mirror, anyio.create_task_group() as tasks:
        tasks.start_soon(mirror._sessions.renew_leases)
        mirror.enqueue(PLACE, make_entries(1), 10)
        await anyio.sleep(30)
        assert [f"{type(error).__name__}: {error}" in words for _, words in reported] == [True]
        assert store.calls == [[1]]
        tasks.cancel_scope.cancel()
    await mirror._sessions.release()
    assert "could not be renewed" in caplog.text
    assert "could not be released" in caplog.text


@virtual
async def test_ctrl_c_in_a_store_passes(store: Any) -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    store.faults = [interrupt]
    mirror = MirrorWriter(SessionWriter(store, 60.0), Reported())
    mirror.enqueue(PLACE, make_entries(1), 10)
    with pytest.raises(KeyboardInterrupt):
        await mirror.flush()


@virtual
async def test_a_long_failure_of_a_store_is_reported_and_nothing_is_lost(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reported = Reported()
    store.faults = [fail] * 7
    async with running(store, reported) as mirror:
        mirror.enqueue(PLACE, make_entries(1), 10)
        mirror.flush_soon()
        await anyio.sleep(2)
        mirror.enqueue(PLACE, make_entries(2), 10)
        assert store.calls == []
        assert [(place, "the network is gone" in words) for place, words in reported] == [(PLACE, True)]
        assert mirror.last_error is not None
        assert mirror.backlog == 2
        await anyio.sleep(30)
        assert store.calls == [[1], [2]]
        assert (mirror.last_error, mirror.backlog) == (None, 0)
    assert "1 entries of session" in caplog.text
    assert "are not stored yet: OSError" in caplog.text


@virtual
@pytest.mark.requirement("E85")
async def test_a_lost_answer_is_no_conflict_and_stores_nothing_twice() -> None:
    store = Moody()
    store.after = [fail, None, hang]  # it has arrived, and nobody hears so
    async with running(store) as mirror:
        for number in range(3):
            mirror.enqueue(PLACE, make_entries(number), 10)
            mirror.flush_soon()
            await anyio.sleep(30)
    assert store.calls == [[0], [0], [1], [1], [2]]
    assert numbers(await store.load(PLACE.session_key)) == [0, 1, 2]


@virtual
async def test_a_write_that_may_have_arrived_is_not_repeated_to_a_store_that_would_keep_it_twice() -> None:
    store, reported = Plain(), Reported()
    store.faults = [hang]
    async with running(store, reported) as mirror:
        mirror.enqueue(PLACE, make_entries(1), 10)
        mirror.flush_soon()
        await anyio.sleep(60)
        mirror.enqueue(PLACE, make_entries(2), 10)
        mirror.flush_soon()
        await anyio.wait_all_tasks_blocked()
    assert store.calls == [[2]]
    assert [words for _, words in reported] == ["lost to the store: the store did not answer within 20 s"]


@virtual
async def test_an_unstorable_entry_is_reported_and_the_rest_continues() -> None:
    store, reported = MemoryStore(), Reported()
    async with running(store, reported) as mirror:
        mirror.enqueue(PLACE, [{"bad": object()}], 10)
        mirror.flush_soon()
        await anyio.wait_all_tasks_blocked()
        mirror.enqueue(PLACE, make_entries(2), 10)
        mirror.flush_soon()
        await anyio.wait_all_tasks_blocked()
    assert numbers(await store.load(PLACE.session_key)) == [2]
    assert [words.startswith("lost to the store: an entry") for _, words in reported] == [True]


@virtual
async def test_a_backlog_is_bounded() -> None:
    store, reported = Plain(), Reported()
    store.faults = [fail] * 3
    async with running(store, reported) as mirror:
        mirror.enqueue(PLACE, make_entries(1), MAX_BACKLOG_BYTES)
        mirror.enqueue(PLACE, make_entries(*range(1000)), MAX_BACKLOG_BYTES)
        assert mirror.is_full
        await anyio.sleep(3)
        assert not mirror.is_full
        assert len(reported) == 2
        assert "too much waits" in reported[1][1]
        await anyio.sleep(10)
    assert len(store.calls) == 1  # the batch whose turn it was


@virtual
@pytest.mark.requirement("E85")
async def test_a_writer_without_the_lease_writes_nothing() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    mirror = MirrorWriter(SessionWriter(store, 60.0), Reported())
    mirror.enqueue(PLACE, make_entries(1), 10)
    await mirror.flush()
    now[0] += 61
    other = await store.acquire(PLACE.session_key, "another host", 60)
    await store.append(PLACE.session_key, make_entries(2), after=1, lease=other)
    mirror.enqueue(PLACE, make_entries(3), 10)
    with pytest.raises(LeaseLostError, match="another host has taken it over"):
        await mirror.flush()
    mirror.enqueue(PLACE, make_entries(4), 10)
    with pytest.raises(LeaseLostError):
        await mirror.flush()
    await mirror.close(1.0)
    assert mirror.backlog == 0
    assert numbers(await store.load(PLACE.session_key)) == [1, 2]


@virtual
async def test_what_others_have_written_meanwhile_is_noticed() -> None:
    store = MemoryStore()
    mirror = MirrorWriter(sessions := SessionWriter(store, 60.0), Reported())
    sessions.set_count(PLACE, 0)
    lease = await sessions.acquire(PLACE)
    await store.append(PLACE.session_key, make_entries(7), lease=lease)
    mirror.enqueue(PLACE, make_entries(1), 10)
    with pytest.raises(StoreConflictError):
        await mirror.flush()
    assert numbers(await store.load(PLACE.session_key)) == [7]


@virtual
async def test_the_end_is_bounded_and_reports_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    store, reported = Moody(), Reported()
    store.faults = [hang, hang, hang, hang]
    mirror = MirrorWriter(SessionWriter(store, 60.0), reported)
    mirror.enqueue(PLACE, make_entries(1, 2), 10)
    began = anyio.current_time()
    with anyio.CancelScope(shield=True):
        await mirror.close(5.0)
    assert anyio.current_time() - began < 30
    assert "2 entries of session" in caplog.text
    assert "are lost to the store" in caplog.text
    assert mirror.backlog == 0


def test_an_end_that_is_broken_off_reports_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    """`Task.cancel` of asyncio passes through every shield."""

    async def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep_forever()

    async def close() -> None:
        store, reported = Moody(), Reported()
        store.faults = [cancel]
        mirror = MirrorWriter(SessionWriter(store, 60.0), reported)
        mirror.enqueue(PLACE, make_entries(1, 2), 10)
        mirror.enqueue(PLACE._replace(subpath="subagents/agent-1"), make_entries(3), 10)
        try:
            await mirror.close(5.0)
        finally:
            assert {place.subpath for place, _ in reported} == {"", "subagents/agent-1"}
            assert mirror.backlog == 0

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(close())
    assert "2 entries of session" in caplog.text


@virtual
async def test_leases_are_renewed_and_given_back() -> None:
    start = anyio.current_time()
    store = MemoryStore(clock=lambda: 1000.0 + anyio.current_time() - start)
    sessions = SessionWriter(store, 9.0)
    async with anyio.create_task_group() as tasks:
        await sessions.acquire(PLACE)
        tasks.start_soon(sessions.renew_leases)
        for _ in range(10):
            await anyio.sleep(5)
            with pytest.raises(SessionLeasedError) as caught:
                await store.acquire(PLACE.session_key, "another", 9.0)
            assert caught.value.holder == sessions.owner
        tasks.cancel_scope.cancel()
    await sessions.release()
    assert (await store.acquire(PLACE.session_key, "another", 9.0)).token == 2


# Through queries and sessions.


@pytest.mark.parametrize(
    "call", ["append", "load", "delete", "list_sessions", "list_session_summaries", "list_subkeys"]
)
def test_a_store_with_a_plain_function_is_refused_when_it_is_given(call: str) -> None:
    store = type("Store", (Plain,), {call: lambda self, *args: None})()
    with pytest.raises(OptionsError, match=r"session_store.*with async `append` and `load`"):
        ph.Options(session_store=store)


def test_a_wrapped_store_is_accepted() -> None:
    store = Plain()

    @functools.wraps(store.append)
    def append(*args: Any) -> Any:
        return Plain.append(store, *args)

    vars(store)["append"] = append
    assert ph.Options(session_store=store).session_store is store
    assert ph.Options(session_store=(mock := AsyncMock())).session_store is mock


def agent(store: Any, transport: Transport | Callable[[], Transport], **more: Any) -> ph.Agent:
    return ph.Agent(session_store=store, transport=transport, **more)


@pytest.mark.requirement("E85")
async def test_a_query_fills_the_store_and_shows_no_frames(store: Any) -> None:
    last = mirror_frame(*make_entries(4))
    transport = peer(
        turn(
            mirror_frame(*make_entries(1, 2)),
            mirror_frame(*make_entries(10), path=AGENT),
            after=(mirror_frame(*make_entries(3)),),
        ),
        then=[last],
    )
    result = await agent(store, transport).query("hi")
    assert result.text == "hi"
    assert not [m for m in result.messages if isinstance(m, TranscriptMirrorMessage | MirrorErrorMessage)]
    assert numbers(await store.load(PLACE.session_key)) == [1, 2, 3, 4]
    assert numbers(await store.load(PLACE._replace(subpath="subagents/agent-1").session_key)) == [10]
    if isinstance(store, MemoryStore):
        assert (await store.acquire(PLACE.session_key, "next", 1.0)).token == 2  # it was given back


async def test_a_session_has_stored_all_of_it_when_it_is_closed(store: Any) -> None:
    transport = peer(
        turn(mirror_frame(*make_entries(1))),
        turn(mirror_frame(*make_entries(2))),
        then=[mirror_frame(*make_entries(3))],
    )
    async with agent(store, transport).session() as session:
        received = session.messages()
        await session.query("a")
        await session.query("b")
    assert numbers(await store.load(PLACE.session_key)) == [1, 2, 3]
    assert not [m async for m in received if isinstance(m, TranscriptMirrorMessage)]


async def test_a_query_that_is_left_stores_its_messages(store: Any) -> None:
    transport = peer(
        [
            frames.init(session_id=ID),
            mirror_frame(*make_entries(1)),
            frames.assistant("hi"),
            mirror_frame(*make_entries(2)),
        ]
    )
    query = agent(store, transport).query("hi")
    async for message in query:
        if isinstance(message, ph.AssistantMessage):
            break
    await query.aclose()
    assert numbers(await store.load(PLACE.session_key))[:1] == [1]  # the peer may not have come to the second


async def test_a_failing_store_breaks_no_query_and_is_reported_in_the_stream(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse_transcripts.stores.mirror.RETRY_PAUSES", (0.0,))
    store = Plain()
    store.faults = [fail] * 100
    result = await agent(store, peer(turn(mirror_frame(*make_entries(1))))).query("hi")
    assert result.is_success
    [error, *_] = [m for m in result.messages if isinstance(m, MirrorErrorMessage)]
    assert "OSError: the network is gone" in error.error
    assert error.key == PLACE.session_key
    assert error.session_id == ID
    assert "1 entries of session" in caplog.text
    assert "are lost to the store" in caplog.text


async def test_an_idle_session_gets_a_failed_write_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_transcripts.stores.mirror.RETRY_PAUSES", ())
    store = Plain()
    gate = anyio.Event()

    async def fail_late() -> None:
        await gate.wait()
        await fail()

    store.faults = [fail_late]
    async with agent(store, peer(turn(mirror_frame(*make_entries(1))))).session() as session:
        received = session.messages()
        await session.query("a")
        gate.set()
        with anyio.fail_after(10):
            async for message in received:
                if isinstance(message, MirrorErrorMessage):
                    break
        assert session.health().state == "degraded"
    assert store.calls == [[1]]  # the last attempt, at its end


@pytest.mark.requirement("E85")
async def test_a_session_that_was_taken_over_stops_with_an_error() -> None:
    now = [1000.0]
    place = TranscriptKey(project_key("."), ID)
    path = FILE.replace("-w", place.project)
    store = MemoryStore(clock=lambda: now[0])
    async with agent(
        store, peer(turn(mirror_frame(*make_entries(1), path=path)), turn(mirror_frame(*make_entries(3), path=path)))
    ).session() as session:
        await session.query("a")
        while not await store.count(place.session_key):
            await anyio.sleep(0.01)
        now[0] += 61
        await store.append(
            place.session_key,
            make_entries(2),
            after=1,
            lease=await store.acquire(place.session_key, "another host", 60.0),
        )
        with suppress(LeaseLostError):  # its answer may be there before the write is
            await session.query("b")
        with anyio.fail_after(10):
            while session.state != "broken":
                await anyio.sleep(0.01)
        with pytest.raises(SessionLeasedError, match="in use by another host"):
            await session.query("c")
    assert numbers(await store.load(place.session_key)) == [1, 2]


async def test_a_cli_that_is_asked_to_mirror_is_asked_by_a_flag() -> None:
    store = MemoryStore()
    assert "--session-mirror" in render(Options(session_store=store), {}).argv
    assert "--session-mirror" not in render(Options(), {}).argv
    isolated = render(Options(session_store=store, isolation="strict"), {}).argv
    assert "--no-session-persistence" not in isolated


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"session_store": 7}, "append"),
        ({"session_store": MemoryStore}, "append"),
        ({"session_store": MemoryStore(), "enable_file_checkpointing": True}, "enable_file_checkpointing"),
        ({"session_store_flush": "sometimes"}, "batched"),
        ({"load_timeout": 0}, "seconds"),
        ({"session_lease": -1}, "seconds"),
    ],
)
async def test_impossible_settings_are_reported_before_anything_starts(settings: Any, words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        Options(**settings)


async def test_a_cli_that_writes_no_transcript_has_none_to_store() -> None:
    with pytest.raises(OptionsError, match="persist_session"):
        await agent(MemoryStore(), peer(turn())).query("hi", persist_session=False)


async def test_the_latest_session_needs_a_store_that_can_list() -> None:
    with pytest.raises(OptionsError, match="list_sessions"):
        await agent(Plain(), peer(turn())).query("hi", continue_conversation=True)


async def test_a_frame_of_an_unknown_file_is_reported(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    store = Plain()
    strange = mirror_frame(*make_entries(1), path=str(tmp_path / "x.jsonl"))
    with caplog.at_level(logging.WARNING, "pilothouse_transcripts.stores"):
        result = await agent(store, peer(turn(strange, mirror_frame(*make_entries(2), path=FILE)))).query("hi")
    assert result.is_success
    assert store.calls == [[2]]
    assert "x.jsonl" in caplog.text
