"""How many things an owner may have, and whose turn it is."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_access.owners import OPERATOR, Access, Owner, ShareLimiter, Shares

ANN, BOB, CAROL = (Owner(name) for name in ("ann", "bob", "carol"))
ALL = frozenset({OPERATOR, ANN, BOB, CAROL})


def take_all(shares: Shares, owner: Owner, used: Counter[Owner] | None = None) -> int:
    """How many an owner gets that takes what it can."""
    used = Counter() if used is None else used
    before = used[owner]
    while shares.has_room(owner, used):
        used[owner] += 1
    return used[owner] - before


def test_only_the_operator_may_use_what_belongs_to_others() -> None:
    assert OPERATOR.may_use(ANN)
    assert ANN.may_use(ANN)
    assert not ANN.may_use(BOB)
    assert not ANN.may_use(OPERATOR)
    assert not Owner("").may_use(OPERATOR)  # a token without a name is not the operator's


@pytest.mark.parametrize("owner", [OPERATOR, ANN])
@pytest.mark.parametrize("total", [1, 4, 2048])
def test_the_only_owner_may_have_everything(owner: Owner, total: int) -> None:
    assert take_all(Shares(total, frozenset({owner})), owner) == total


@pytest.mark.parametrize(("total", "most"), [(4, 1), (8, 5), (32, 26), (1536, 1248)])
def test_an_owner_leaves_the_reserve_of_the_others(total: int, most: int) -> None:
    assert take_all(Shares(total, ALL), ANN) == most


@pytest.mark.parametrize(("total", "ann", "operator"), [(1, 1, 0), (2, 1, 1), (3, 2, 1)])
def test_of_fewer_things_than_owners_the_operator_gets_one(total: int, ann: int, operator: int) -> None:
    used = Counter[Owner]()
    assert take_all(Shares(total, ALL), ANN, used) == ann
    assert take_all(Shares(total, ALL), BOB, used) == 0
    assert take_all(Shares(total, ALL), OPERATOR, used) == operator


@given(st.integers(4, 40), st.lists(st.tuples(st.sampled_from(sorted(ALL, key=repr)), st.booleans()), max_size=200))
def test_whatever_the_others_do_each_owner_gets_its_part(total: int, steps: list[tuple[Owner, bool]]) -> None:
    shares, used = Shares(total, ALL), Counter[Owner]()
    for owner, is_taking in steps:
        if is_taking and shares.has_room(owner, used):
            used[owner] += 1
        elif not is_taking and used[owner]:
            used[owner] -= 1
        assert used.total() <= total
    for owner in ALL:
        if not used[owner]:
            assert shares.has_room(owner, used)


def test_owners_who_are_not_known_leave_a_quarter_to_all_others() -> None:
    shares, used = Shares(8, None), Counter[Owner]()
    assert [take_all(shares, owner, used) for owner in (ANN, BOB)] == [6, 2]
    assert take_all(shares, OPERATOR) == 8
    assert [take_all(Shares(total, None), ANN) for total in (1, 2, 3)] == [1, 1, 2]


def test_an_amount_counts_as_so_many() -> None:
    shares = Shares(100, frozenset({OPERATOR, ANN}))
    assert shares.has_room(ANN, {OPERATOR: 50}, 50)
    assert not shares.has_room(ANN, {OPERATOR: 50}, 51)
    assert not shares.has_room(ANN, {}, 89)  # 12 are the operator's


class Work:
    """Tasks that run until they are told to end; says who has begun, in order."""

    def __init__(self, limiter: ShareLimiter) -> None:
        self.begun: list[str] = []
        self._limiter = limiter
        self._ends: dict[str, anyio.Event] = {}

    async def run(self, name: str, owner: Owner, owners: frozenset[Owner] | None = ALL) -> None:
        self._ends[name] = anyio.Event()
        async with self._limiter.hold(Access(owner, owners)):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await anyio.wait_all_tasks_blocked()


@pytest.mark.anyio
async def test_slow_tasks_of_one_owner_do_not_keep_another_waiting() -> None:
    work = Work(ShareLimiter(2))
    async with anyio.create_task_group() as tasks:
        for name, owner in (("a1", ANN), ("a2", ANN), ("a3", ANN), ("b1", BOB), ("b2", BOB)):
            tasks.start_soon(work.run, name, owner, frozenset({ANN, BOB}))
            await anyio.wait_all_tasks_blocked()
        assert work.begun == ["a1", "b1"]
        await work.end("b1")
        assert work.begun == ["a1", "b1", "b2"]
        await work.end("a1")
        await work.end("a2")
        assert work.begun == ["a1", "b1", "b2", "a2", "a3"]
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_task_that_is_cancelled_gives_back_its_place() -> None:
    limiter = ShareLimiter(1)
    work = Work(limiter)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as running:
            tasks.start_soon(work.run, "1", ANN)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.01):
                await work.run("never", ANN)
            running.cancel()
        tasks.start_soon(work.run, "2", ANN)
        await anyio.wait_all_tasks_blocked()
        await work.end("1")
        assert work.begun == ["1", "2"]
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:  # nothing of the above is counted any more
        tasks.start_soon(work.run, "3", BOB)
        await anyio.wait_all_tasks_blocked()
        assert work.begun[-1] == "3"
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_task_cancelled_at_its_admission_gives_back_its_place() -> None:
    limiter, scope = ShareLimiter(1), anyio.CancelScope()

    async def wait() -> None:
        with scope:
            async with limiter.hold(Access()):
                await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        async with limiter.hold(Access()):
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
        scope.cancel()  # it is admitted, and has not run since
    with anyio.fail_after(20):
        async with limiter.hold(Access()):
            pass
