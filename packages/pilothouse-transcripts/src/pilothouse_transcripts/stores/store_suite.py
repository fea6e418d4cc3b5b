"""The contract of every session store, as tests.

`StoreSuite` is for any store: `append`, `load`, and the optional calls; `StoreBackendSuite` adds what the stores of
this package guarantee. Subclass one, define how to make a store, and run pytest. The tests are marked
`anyio`: they need its pytest plugin, and run on each backend of your `anyio_backend` fixture.
Knows the protocol, not its implementations.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import pytest

from pilothouse.errors import LeaseLostError, SessionLeasedError, StoreConflictError, StoreError, UsageError
from pilothouse_transcripts.stores.base import (
    Entry,
    Lease,
    OptionalCall,
    SessionKey,
    SessionStore,
    StoreBackend,
    implements,
)

# ruff: noqa: D102 - the name of a test says what it does


KEY: SessionKey = {"project_key": "-work-project", "session_id": "11111111-1111-4111-8111-111111111111"}
OTHER: SessionKey = {"project_key": "-work-project", "session_id": "22222222-2222-4222-8222-222222222222"}
SUB: SessionKey = {**KEY, "subpath": "subagents/agent-1"}

LIMIT = 60.0
"""Seconds for one test."""

HARD_ENTRIES: tuple[tuple[str, Entry], ...] = (
    ("plain", {"type": "user", "uuid": "u-1", "message": {"role": "user", "content": "Grüße, 漢字 🚢"}}),
    ("nul", {"type": "user", "text": "before\x00after", "\x00": "\x00"}),
    ("lone surrogates", {"type": "user", "text": "\ud83d", "\udc00": ["\udfff"]}),
    ("big integers", {"type": "x", "n": [2**53 + 1, -(2**63), 2**64, 10**80]}),
    ("floats", {"type": "x", "n": [0.1, -0.0, 1e22, 5e-324, 1.7976931348623157e308, 1.0]}),
    ("infinities", {"type": "x", "n": [math.inf, -math.inf]}),
    ("nesting", {"type": "x", "a": {"b": [[], {}, [None, True, False, ""], {"": {"": [1]}}]}}),
    ("order of names", {"type": "x", "z": 1, "a": 2, "m": {"y": 1, "b": 2}}),
    ("odd uuids", {"type": "x", "uuid": "\x00\ud800/" + "long" * 2000}),
    ("uuid that is not one", {"type": "x", "uuid": None}),
    ("line ends", {"type": "x", "text": "a\nb\rc\u2028d\u2029e\x85f\\n\\u0000"}),
    ("what looks like code", {"type": "x", "text": "'; DROP TABLE entries; -- {schema} %s ? $1 \\x41"}),
    ("no fields", {}),
)


def entries(first: int, last: int, **fields: Any) -> list[Entry]:
    """Make entries with the numbers `first` to `last - 1`, each with a uuid."""
    return [{"type": "user", "uuid": f"u-{n}", "n": n, **fields} for n in range(first, last)]


def numbers(found: list[Entry] | None) -> list[int]:
    """Return the numbers of such entries."""
    return [entry["n"] for entry in found or []]


@pytest.mark.anyio
class StoreSuite(ABC):
    """Subclass it in a test module."""

    @abstractmethod
    def make_store(self) -> SessionStore:
        """Make a store. The first one of a test is empty; later ones are more clients of the same store."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Any]:
        """Open a store, and close it at the end if it can be closed."""
        with anyio.fail_after(LIMIT):
            store = self.make_store()
            try:
                yield store
            finally:
                if (close := getattr(store, "aclose", None)) is not None:
                    await close()

    @asynccontextmanager
    async def having(self, call: OptionalCall) -> AsyncGenerator[Any]:
        """Open a store with one of the optional calls; the test is skipped for a store without."""
        async with self.opened() as store:
            if not implements(store, call):
                pytest.skip(f"this store has no {call}")
            yield store

    # --- entries ----------------------------------------------------------------------------------------------------

    async def test_what_was_appended_is_loaded_in_order(self) -> None:
        async with self.opened() as store:
            await store.append(KEY, entries(0, 3))
            await store.append(KEY, entries(3, 4))
            await store.append(KEY, entries(4, 40))
            assert await store.load(KEY) == entries(0, 40)

    async def test_an_unknown_key_is_none(self) -> None:
        async with self.opened() as store:
            assert await store.load(KEY) is None
            await store.append(KEY, entries(0, 1))
            assert await store.load(OTHER) is None
            assert await store.load(SUB) is None

    async def test_an_empty_append_does_nothing(self) -> None:
        async with self.opened() as store:
            await store.append(KEY, [])
            assert await store.load(KEY) is None
            await store.append(KEY, entries(0, 1))
            await store.append(KEY, [])
            assert await store.load(KEY) == entries(0, 1)

    async def test_entries_come_back_deep_equal(self) -> None:
        async with self.opened() as store:
            for name, entry in HARD_ENTRIES:
                key: SessionKey = {**KEY, "session_id": name}
                await store.append(key, [entry, {"type": "end"}])
                found = await store.load(key)
                assert found == [entry, {"type": "end"}], name
                # Equal is not enough: 1 == 1.0 == True.
                assert json.dumps(found[0], sort_keys=True) == json.dumps(entry, sort_keys=True), name

    async def test_a_value_that_is_no_number_comes_back(self) -> None:
        async with self.opened() as store:
            await store.append(KEY, [{"type": "x", "n": math.nan}])
            ((_, value),) = [item for item in (await store.load(KEY))[0].items() if item[0] == "n"]
        assert math.isnan(value)

    async def test_an_entry_of_five_megabytes(self) -> None:
        large = {"type": "user", "uuid": "large", "text": "0123456789abcde\n" * (5 * 1024 * 64)}
        async with self.opened() as store:
            await store.append(KEY, [*entries(0, 2), large])
            await store.append(KEY, entries(2, 3))
            assert await store.load(KEY) == [*entries(0, 2), large, *entries(2, 3)]

    async def test_many_entries_at_once(self) -> None:
        many = entries(0, 3000)
        async with self.opened() as store:
            await store.append(KEY, many)
            assert numbers(await store.load(KEY)) == list(range(3000))

    async def test_a_uuid_is_stored_once(self) -> None:
        async with self.opened() as store:
            await store.append(KEY, entries(0, 3))
            await store.append(KEY, entries(1, 5))
            await store.append(KEY, entries(0, 5))
            assert await store.load(KEY) == entries(0, 5)

    async def test_entries_without_a_uuid_are_all_kept(self) -> None:
        title = {"type": "custom-title", "customTitle": "again"}
        async with self.opened() as store:
            await store.append(KEY, [title, title])
            await store.append(KEY, [title])
            assert await store.load(KEY) == [title] * 3

    async def test_keys_do_not_mix(self) -> None:
        # Keys that would be equal if their parts were joined, or lost letter case or odd characters.
        keys: list[SessionKey] = [
            KEY, OTHER, SUB, {**OTHER, "subpath": "subagents/agent-1"},
            {"project_key": "a", "session_id": "b-c"}, {"project_key": "a-b", "session_id": "c"},
            {"project_key": "a:b", "session_id": "c"}, {"project_key": "a", "session_id": "b:c"},
            {"project_key": "A", "session_id": "b-c"}, {"project_key": "a", "session_id": "B-C"},
            {"project_key": "a", "session_id": "b-c", "subpath": "d/e"},
            {"project_key": "a", "session_id": "b-c", "subpath": "d-e"},
            {"project_key": "ä%2f*?", "session_id": "~7e=#", "subpath": "x" * 300 + "/" + "y" * 300},
            {"project_key": "漢" * 300, "session_id": "s" * 1000},
        ]  # fmt: skip
        async with self.opened() as store:
            for number, key in enumerate(keys):
                await store.append(key, [{"type": "x", "uuid": "same", "n": number}])
            assert [numbers(await store.load(key)) for key in keys] == [[number] for number in range(len(keys))]

    # --- optional calls ---------------------------------------------------------------------------------------------

    async def test_sessions_of_a_project_are_listed(self) -> None:
        before = time.time() * 1000 - 86_400_000  # the store may have a different clock
        odd = {"project_key": KEY["project_key"], "session_id": "Odd ~7e=%2F " + "s" * 300}
        async with self.having("list_sessions") as store:
            for key in (KEY, OTHER, odd, SUB, {**KEY, "project_key": "another"}):
                await store.append(key, entries(0, 1))
            rows = await store.list_sessions(KEY["project_key"])
            assert await store.list_sessions("never-used") == []
        wanted = sorted([KEY["session_id"], OTHER["session_id"], odd["session_id"]])
        assert sorted(row["session_id"] for row in rows) == wanted
        assert all(isinstance(row["mtime"], int) and row["mtime"] > before for row in rows)

    async def test_a_subpath_alone_makes_no_session(self) -> None:
        async with self.having("list_sessions") as store:
            await store.append(SUB, entries(0, 1))
            assert await store.list_sessions(KEY["project_key"]) == []

    async def test_summaries_are_kept_up_to_date(self) -> None:
        async with self.having("list_session_summaries") as store:
            await store.append(KEY, [{"type": "custom-title", "customTitle": "first", "isSidechain": False}])
            await store.append(KEY, [{"type": "custom-title", "customTitle": "Zweite \x00 \ud800"}])
            await store.append(SUB, [{"type": "custom-title", "customTitle": "of the subagent"}])
            (row,) = await store.list_session_summaries(KEY["project_key"])
            listed: list[Any] = []
            if implements(store, "list_sessions"):
                listed = await store.list_sessions(KEY["project_key"])
            assert await store.list_session_summaries("never-used") == []
        assert row["session_id"] == KEY["session_id"]
        assert row["data"]["custom_title"] == "Zweite \x00 \ud800"
        assert [other["mtime"] for other in listed] == [row["mtime"]] * len(listed)

    async def test_subkeys_are_those_of_the_session(self) -> None:
        async with self.having("list_subkeys") as store:
            assert await store.list_subkeys(KEY) == []
            await store.append(KEY, entries(0, 1))
            assert await store.list_subkeys(KEY) == []
            for subpath in ("subagents/agent-2", "subagents/Agent-1 ä", "b"):
                await store.append({**KEY, "subpath": subpath}, entries(0, 1))
            await store.append({**OTHER, "subpath": "subagents/agent-9"}, entries(0, 1))
            found = await store.list_subkeys(KEY)
        assert sorted(found) == ["b", "subagents/Agent-1 ä", "subagents/agent-2"]

    async def test_deleting_a_session_takes_its_subpaths(self) -> None:
        async with self.having("delete") as store:
            await store.delete(KEY)  # nothing there: no error
            for key in (KEY, SUB, OTHER, {**KEY, "project_key": "another"}):
                await store.append(key, entries(0, 2))
            await store.delete(KEY)
            assert await store.load(KEY) is None
            assert await store.load(SUB) is None
            assert numbers(await store.load(OTHER)) == [0, 1]
            assert numbers(await store.load({**KEY, "project_key": "another"})) == [0, 1]
            if implements(store, "list_sessions"):
                rows = await store.list_sessions(KEY["project_key"])
                assert [row["session_id"] for row in rows] == [OTHER["session_id"]]
            if implements(store, "list_subkeys"):
                assert await store.list_subkeys(KEY) == []
            await store.append(KEY, entries(1, 3))  # uuids of a deleted session are forgotten too
            assert await store.load(KEY) == entries(1, 3)

    async def test_deleting_a_subpath_takes_nothing_else(self) -> None:
        second: SessionKey = {**KEY, "subpath": "subagents/agent-2"}
        async with self.having("delete") as store:
            for key in (KEY, SUB, second):
                await store.append(key, entries(0, 2))
            await store.delete(SUB)
            assert await store.load(SUB) is None
            assert numbers(await store.load(KEY)) == numbers(await store.load(second)) == [0, 1]
            if implements(store, "list_sessions"):
                assert len(await store.list_sessions(KEY["project_key"])) == 1


class StoreBackendSuite(StoreSuite):
    """Subclass it in a test module.

    Attributes:
        short_ttl: seconds of a lease that has to expire; more than the resolution of the store's clock.
    """

    short_ttl = 0.3

    @abstractmethod
    def make_store(self) -> StoreBackend:
        """Make a store. The first one of a test is empty; later ones are more clients of the same store."""

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
            with pytest.raises(StoreConflictError):  # there is a later write
                await store.append(KEY, batch, after=3)
            assert await store.count(KEY) == 7

    async def test_a_uuid_twice_in_one_batch_is_stored_once(self) -> None:
        async with self.opened() as store:
            assert await store.append(KEY, [*entries(0, 2), *entries(0, 3, again=True)]) == 3
            assert await store.load(KEY) == [*entries(0, 2), *entries(2, 3, again=True)]

    async def test_what_json_cannot_say_is_refused_and_nothing_is_written(self) -> None:
        wrong: list[Any] = [{"type": "x", "set": {1, 2}}, ["not a dict"], "text", {1: 2}, {"x": [{1: 2}]}]
        wrong.append({"x": (1, 2)})  # JSON would make a list of it
        async with self.opened() as store:
            for entry in wrong:
                for after in (0, None):
                    with pytest.raises(UsageError):
                        await store.append(KEY, [*entries(0, 1), entry], after=after)
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

            await _run_together([lambda w=w: write(w) for w in range(writers)])
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

            await _run_together([lambda n=n: write(n, second if n % 2 else store) for n in range(10, 16)])
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
            await store.release(lease)  # not the newest lease: no effect
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
            with pytest.raises(LeaseLostError):  # a newer lease of the same owner fences out the older one
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
            await self._acquire_when_free(second, "another", OTHER)  # as long as the first lease would have lasted
            assert probe.token > 0
            with pytest.raises(SessionLeasedError):
                await second.acquire(KEY, "second", 600)

    async def test_of_many_who_take_a_lease_one_gets_it(self) -> None:
        taken: list[Lease] = []
        async with self.opened() as store, self.opened() as second:

            async def take(number: int, client: StoreBackend) -> None:
                with suppress(SessionLeasedError):
                    taken.append(await client.acquire(KEY, f"owner-{number}", 600))

            await _run_together([lambda n=n: take(n, second if n % 2 else store) for n in range(6)])
            assert len(taken) == 1
            assert await store.append(KEY, entries(0, 1), lease=taken[0]) == 1

    async def _acquire_when_free(self, store: StoreBackend, owner: str, key: SessionKey = KEY) -> Lease:
        while True:
            try:
                return await store.acquire(key, owner, 600)
            except SessionLeasedError as error:
                await anyio.sleep(min(0.05, max(error.seconds_left, 0.001)))

    async def _wait_until_free(self, store: StoreBackend) -> None:
        # A write without a lease shows that the lease has expired, without acquiring another one.
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


async def _run_together(calls: list[Callable[[], Any]]) -> None:
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(cast("Any", call))
