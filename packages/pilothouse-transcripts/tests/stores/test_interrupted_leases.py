"""Leases whose calls are cancelled, or get no answer: no other host waits for the end of a lease that nobody uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from faulty_stores import PLACE, Moody, hang, make_entries

from pilothouse.errors import SessionLeasedError, StoreError
from pilothouse_transcripts.stores import MemoryStore
from pilothouse_transcripts.stores.backend import BlockingBackend, Change, ChangeRequest
from pilothouse_transcripts.stores.base import Lease, SessionKey
from pilothouse_transcripts.stores.mirror import RELEASE_SECONDS, RENEWALS_PER_TTL, SessionWriter

pytestmark = pytest.mark.anyio
virtual = pytest.mark.virtual_time


class Silent(Moody):
    """Gives the first lease, and no answer about it.

    Attributes:
        answered: what happens before the first answer.
    """

    def __init__(self, answered: Callable[[], Any] = hang) -> None:
        super().__init__()
        self.answered: Callable[[], Any] | None = answered

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        lease = await super().acquire(key, owner, ttl)
        answered, self.answered = self.answered, None
        if answered is not None:
            await answered()
        return lease


@virtual
async def test_a_lease_whose_acquisition_is_cancelled_is_released() -> None:
    store = Silent()
    with anyio.move_on_after(1):
        async with SessionWriter(store, 60) as sessions:
            await sessions.append(PLACE, make_entries(1))
    assert store.answered is None
    await store.acquire(PLACE.session_key, "another", 60)


async def test_a_lease_whose_answer_is_lost_is_released() -> None:
    async def fail() -> None:
        raise StoreError("the connection was lost")

    store = Silent(fail)
    async with SessionWriter(store, 60) as sessions:
        with pytest.raises(StoreError, match="was lost"):
            await sessions.acquire(PLACE)
    await store.acquire(PLACE.session_key, "another", 60)


async def test_a_lease_of_another_owner_is_not_released(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.acquire(PLACE.session_key, "another", 60)
    async with SessionWriter(store, 60) as sessions:
        with pytest.raises(SessionLeasedError):
            await sessions.acquire(PLACE)
    with pytest.raises(SessionLeasedError, match="in use by another"):
        await store.acquire(PLACE.session_key, "third", 60)
    assert "could not be released" not in caplog.text


class Threaded(MemoryStore):
    """Works in threads, which wait before each change until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()

    _run = BlockingBackend._run

    def _change(self, request: ChangeRequest) -> Change | None:
        self.begun.set()
        self.go_on.wait(10)
        try:
            return super()._change(request)
        finally:
            self.ended.set()


async def test_a_cancelled_call_takes_no_lease_later() -> None:
    store = Threaded()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.acquire, PLACE.session_key, "me", 60)
        assert await anyio.to_thread.run_sync(store.begun.wait, 10)
        tasks.cancel_scope.cancel()
    store.go_on.set()
    assert await anyio.to_thread.run_sync(store.ended.wait, 10)
    await store.acquire(PLACE.session_key, "another", 60)


@virtual
async def test_a_store_that_is_silent_about_leases_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Moody):
        async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
            await anyio.sleep_forever()
            raise AssertionError

        async def release(self, lease: Lease) -> None:
            await anyio.sleep_forever()

    sessions = SessionWriter(Mute(), 60)
    await sessions.acquire(PLACE)
    with anyio.move_on_after(60 / RENEWALS_PER_TTL * 2 + 1):
        await sessions.renew_leases()
    assert "could not be renewed: TimeoutError" in caplog.text
    began = anyio.current_time()
    await sessions.release()
    assert anyio.current_time() - began < RELEASE_SECONDS + 1
    assert "could not be released" in caplog.text
