"""The contract that the stores of this package keep beyond that of any store, as tests: see `store_suite`.

Compare-and-append, leases, and that many writers at once lose nothing. Knows the base class, not its implementations.
"""

# ruff: noqa: D102 - the name of a test says what it does

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import anyio
import pytest

from pilothouse.errors import LeaseLostError, SessionLeasedError, StoreConflictError, StoreError, UsageError
from pilothouse.stores.base import Lease, SessionKey, StoreBackend
from pilothouse.testing.store_suite import KEY, OTHER, SUB, StoreSuite, entries


class StoreBackendSuite(StoreSuite):
    """Subclass it in a test module.

    Attributes:
        short_ttl: seconds for a lease that is to run out; more than the smallest step of the store's clock.
    """

    short_ttl = 0.3

    @abstractmethod
    def make_store(self) -> StoreBackend:
        """A store. The first one of a test is empty; the others of the same test are more clients of the same store."""

    # --- compare-and-append -----------------------------------------------------------------------------------------

    async def test_an_append_tells_the_count(self) -> None:
        async with self.opened() as store:
            assert await store.count(KEY) == 0
            assert await store.append(KEY, [], after=7) == 0
            assert await store.append(KEY, entries(0, 3), after=0) == 3
            assert await store.append(KEY, entries(2, 5)) == 5
            assert await store.append(KEY, []) == await store.count(KEY) == 5
            assert await store.count(SUB) == 0
            assert await store.append(SUB, entries(0, 1), after=0) == 1

    @pytest.mark.parametrize("after", [0, 1, 4])
    async def test_another_count_is_a_conflict(self, after: int) -> None:
        async with self.opened() as store:
            await store.append(KEY, entries(0, 3))
            with pytest.raises(StoreConflictError) as caught:
                await store.append(KEY, entries(7, 9), after=after)
            assert (caught.value.expected, caught.value.found) == (after, 3)
            assert caught.value.session_id == KEY["session_id"]
            assert await store.load(KEY) == entries(0, 3)

    async def test_a_repeated_write_is_no_conflict_and_no_double(self) -> None:
        batch = [*entries(3, 5), {"type": "tag", "tag": "without a uuid"}]
        async with self.opened() as store:
            await store.append(KEY, entries(0, 3), after=0)
            assert await store.append(KEY, batch, after=3) == 6
            assert await store.append(KEY, batch, after=3) == 6
            assert await store.append(KEY, [{"type": "tag"}], after=6) == 7
            with pytest.raises(StoreConflictError):  # somebody has written behind it
                await store.append(KEY, batch, after=3)
            assert await store.count(KEY) == 7

    async def test_a_uuid_twice_in_one_batch_is_stored_once(self) -> None:
        async with self.opened() as store:
            assert await store.append(KEY, [*entries(0, 2), *entries(0, 3, again=True)]) == 3
            assert await store.load(KEY) == [*entries(0, 2), *entries(2, 3, again=True)]

    async def test_what_json_cannot_say_is_refused_and_nothing_is_written(self) -> None:
        wrong: list[Any] = [{"type": "x", "set": {1, 2}}, ["no dict"], "text"]
        async with self.opened() as store:
            for entry in wrong:
                with pytest.raises(UsageError):
                    await store.append(KEY, [*entries(0, 1), entry], after=0)
            if await store.count(KEY):
                pytest.fail("a part of a batch was written")

    async def test_keys_that_leave_their_folder_are_refused(self) -> None:
        wrong: list[Any] = [
            {**KEY, "session_id": "../x"}, {**KEY, "session_id": ".."}, {**KEY, "project_key": "a/b"},
            {**KEY, "project_key": ""}, {**KEY, "session_id": "a\0"}, {**KEY, "session_id": "\ud800"},
            {**KEY, "subpath": "../x"}, {**KEY, "subpath": "a//b"}, {**KEY, "subpath": "/etc"},
            {**KEY, "session_id": 7}, {"project_key": "p"},
        ]  # fmt: skip
        async with self.opened() as store:
            for key in wrong:
                for call in (lambda k=key: store.load(k), lambda k=key: store.append(k, entries(0, 1))):
                    with pytest.raises(UsageError):
                        await call()

    async def test_many_writers_at_once_lose_nothing(self) -> None:
        writers, each = 4, 5
        async with self.opened() as store, self.opened() as second:

            async def write(writer: int) -> None:
                client = second if writer % 2 else store
                for n in range(each):
                    await client.append(KEY, [{"type": "x", "uuid": f"{writer}-{n}", "n": n, "writer": writer}])

            await _at_once([lambda w=w: write(w) for w in range(writers)])
            found = await store.load(KEY)
            assert await second.count(KEY) == len(found) == writers * each
        for writer in range(writers):  # each in its own order
            assert [entry["n"] for entry in found if entry["writer"] == writer] == list(range(each))

    async def test_of_two_who_compare_one_wins(self) -> None:
        lost: list[int] = []
        async with self.opened() as store, self.opened() as second:
            await store.append(KEY, entries(0, 1))

            async def write(number: int, client: StoreBackend) -> None:
                try:
                    await client.append(KEY, [{"type": "x", "n": number}], after=1)
                except StoreConflictError:
                    lost.append(number)

            await _at_once([lambda n=n: write(n, second if n % 2 else store) for n in range(10, 16)])
            assert len(lost) == 5
            assert await store.count(KEY) == await second.count(KEY) == 2

    # --- leases -----------------------------------------------------------------------------------------------------

    async def test_a_lease_keeps_others_out(self) -> None:
        async with self.opened() as store, self.opened() as second:
            lease = await store.acquire(KEY, "first:1", 600)
            for refused in (
                lambda: second.acquire(KEY, "second:2", 600),
                lambda: second.append(KEY, entries(5, 6)),
                lambda: second.append(SUB, entries(5, 6)),
                lambda: second.delete(KEY),
            ):
                with pytest.raises(SessionLeasedError, match="first:1") as caught:
                    await refused()
                assert caught.value.holder == "first:1"
                assert 0 < caught.value.seconds_left <= 600
            assert await store.append(KEY, entries(0, 2), lease=lease) == 2
            assert await store.append(SUB, entries(0, 1), lease=lease, after=0) == 1
            assert await second.append(OTHER, entries(0, 1)) == 1
            assert await second.load(KEY) == entries(0, 2)

    async def test_a_lease_alone_is_no_session(self) -> None:
        async with self.having("list_sessions") as store:
            lease = await store.acquire(KEY, "owner", 600)
            assert await store.list_sessions(KEY["project_key"]) == []
            assert await store.list_session_summaries(KEY["project_key"]) == []
            assert await store.load(KEY) is None
            await store.append(KEY, entries(0, 1), lease=lease)
            assert len(await store.list_sessions(KEY["project_key"])) == 1
            assert len(await store.list_session_summaries(KEY["project_key"])) == 1

    async def test_a_released_lease_is_free_and_worth_nothing(self) -> None:
        async with self.opened() as store, self.opened() as second:
            lease = await store.acquire(KEY, "first", 600)
            await store.release(lease)
            await store.release(lease)
            with pytest.raises(LeaseLostError):
                await store.append(KEY, entries(0, 1), lease=lease)
            with pytest.raises(LeaseLostError):
                await store.renew(lease)
            assert await second.append(KEY, entries(0, 1)) == 1
            newer = await second.acquire(KEY, "second", 600)
            assert newer.token > lease.token
            await store.release(lease)  # not the newest: nothing happens
            assert await second.append(KEY, entries(1, 2), lease=newer) == 2

    async def test_tokens_grow_over_release_and_deletion(self) -> None:
        tokens: list[int] = []
        async with self.opened() as store:
            for _ in range(3):
                lease = await store.acquire(KEY, "owner", 600)
                await store.append(KEY, [{"type": "x"}], lease=lease)
                await store.release(lease)
                await store.delete(KEY)
                tokens.append(lease.token)
            again = await store.acquire(KEY, "owner", 600)
            tokens += [again.token, (await store.acquire(KEY, "owner", 600)).token]
            with pytest.raises(LeaseLostError):  # the same owner, started again, has fenced out its first life
                await store.append(KEY, entries(0, 1), lease=again)
        assert tokens == sorted(set(tokens))

    async def test_a_lease_runs_out_and_its_holder_is_fenced_out(self) -> None:
        async with self.opened() as store, self.opened() as second:
            old = await store.acquire(KEY, "first", self.short_ttl)
            assert await store.append(KEY, entries(0, 1), lease=old) == 1
            new = await self._acquire_when_free(second, "second")
            assert new.token > old.token
            for late in (
                lambda: store.append(KEY, entries(1, 2), lease=old),
                lambda: store.append(KEY, entries(1, 2), lease=old, after=1),
                lambda: store.renew(old),
            ):
                with pytest.raises(LeaseLostError, match="second") as caught:
                    await late()
                assert caught.value.holder == "second"
            await store.release(old)
            assert await second.append(KEY, entries(1, 2), lease=new, after=1) == 2
            assert await store.load(KEY) == entries(0, 2)

    async def test_an_expired_lease_is_good_while_nobody_took_another(self) -> None:
        async with self.opened() as store:
            lease = await store.acquire(KEY, "slow", self.short_ttl)
            await self._wait_until_free(store)
            assert await store.append(KEY, entries(1, 2), lease=lease) == 2
            assert (await store.renew(lease, 600)).ttl == 600
            with pytest.raises(SessionLeasedError):
                await store.append(KEY, entries(2, 3))

    async def test_a_renewed_lease_holds(self) -> None:
        async with self.opened() as store, self.opened() as second:
            lease = await store.acquire(KEY, "first", self.short_ttl)
            lease = await store.renew(lease, 600)
            probe = await store.acquire(OTHER, "probe", self.short_ttl)
            assert lease.token == (await store.renew(lease)).token
            await self._acquire_when_free(second, "another", OTHER)  # as long as the first would have held
            assert probe.token > 0
            with pytest.raises(SessionLeasedError):
                await second.acquire(KEY, "second", 600)

    async def test_of_many_who_take_a_lease_one_gets_it(self) -> None:
        taken: list[Lease] = []
        async with self.opened() as store, self.opened() as second:

            async def take(number: int, client: StoreBackend) -> None:
                with suppress(SessionLeasedError):
                    taken.append(await client.acquire(KEY, f"owner-{number}", 600))

            await _at_once([lambda n=n: take(n, second if n % 2 else store) for n in range(6)])
            assert len(taken) == 1
            assert await store.append(KEY, entries(0, 1), lease=taken[0]) == 1

    async def _acquire_when_free(self, store: StoreBackend, owner: str, key: SessionKey = KEY) -> Lease:
        while True:
            try:
                return await store.acquire(key, owner, 600)
            except SessionLeasedError as error:
                await anyio.sleep(min(0.05, max(error.seconds_left, 0.001)))

    async def _wait_until_free(self, store: StoreBackend) -> None:
        # A write without a lease is what can tell that it ran out without taking another.
        while True:
            try:
                await store.append(KEY, entries(0, 1))
            except SessionLeasedError as error:
                await anyio.sleep(min(0.05, max(error.seconds_left, 0.001)))
            else:
                return

    # --- closing ----------------------------------------------------------------------------------------------------

    async def test_what_is_stored_outlives_its_client(self) -> None:
        async with self.opened() as keeper:
            async with self.opened() as store:
                await store.append(KEY, entries(0, 2), after=0)
            if keeper is store:
                pytest.skip("this store lives in one object")
            async with self.opened() as second:
                assert await second.load(KEY) == entries(0, 2)
                assert await second.append(KEY, entries(2, 3), after=2) == 3

    async def test_a_closed_store_says_so(self) -> None:
        async with self.opened() as store:
            await store.append(KEY, entries(0, 1))
            await store.aclose()
            await store.aclose()
            for call in (lambda: store.append(KEY, entries(1, 2)), lambda: store.load(KEY), lambda: store.count(KEY)):
                with pytest.raises(StoreError, match="closed"):
                    await call()


async def _at_once(calls: list[Callable[[], Any]]) -> None:
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(cast("Any", call))
