"""Owners, and how a limited number of things is divided among them.

An owner is whoever holds a token, or whoever an application says makes a request. Everything that a server keeps
belongs to one. Knows no HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio
from msgspec import Struct

RESERVED_FRACTION = 4
"""One thing in so many is reserved, so that no owner can take all."""


class Owner(Struct, frozen=True):
    """Who makes a request, and whose things it makes.

    Args:
        name: name of the token, or what the application calls the user; "" for the operator.
        is_operator: whether this is the operator of the server, who may use what belongs to others.
    """

    name: str
    is_operator: bool = False

    def may_use(self, owner: Owner) -> bool:
        """Return whether this owner may use what belongs to `owner`."""
        return self.is_operator or self == owner


OPERATOR = Owner("", is_operator=True)
"""The operator of the server: the holder of its own token, or everybody where nothing tells owners apart."""


class Access(Struct, frozen=True):
    """What is known of the sender of a request.

    Args:
        owner: who sends it.
        owners: everybody who may send requests; None if that is not known in advance.
    """

    owner: Owner = OPERATOR
    owners: frozenset[Owner] | None = frozenset({OPERATOR})


class Shares(Struct, frozen=True):
    """How many of a number of things an owner may have.

    A quarter of the things is reserved. If the owners are known, each has an equal part of the reserve, at least one
    thing; the rest goes to whoever comes first. If there are fewer things than owners, one is reserved for the
    operator. If the owners are not known, nobody but the operator may have more than three quarters.

    Args:
        total: number of things.
        owners: everybody who may have some; None if that is not known in advance.
    """

    total: int
    owners: frozenset[Owner] | None = frozenset({OPERATOR})

    def has_room(self, owner: Owner, used: Mapping[Owner, int], amount: int = 1) -> bool:
        """Return whether an owner may have more.

        Args:
            owner: who wants them.
            used: how many each owner has.
            amount: how many more.
        """
        return sum(used.values()) + amount + self._count_reserved(owner, used) <= self.total

    def _count_reserved(self, owner: Owner, used: Mapping[Owner, int]) -> int:
        """Return how many of the unused things are reserved for other owners."""
        if self.owners is not None:
            others = self.owners - {owner}
            return sum(max(0, self._get_part(other) - used.get(other, 0)) for other in others)
        if owner.is_operator or self.total == 1:
            return 0
        used_by_others = sum(used.values()) - used.get(owner, 0)
        return max(0, max(1, self.total // RESERVED_FRACTION) - used_by_others)

    def _get_part(self, owner: Owner) -> int:
        count = len(self.owners or ())
        if self.total < count:
            return int(owner.is_operator and self.total > 1)
        return max(1, self.total // (RESERVED_FRACTION * count))


class ShareLimiter:
    """Lets a number of tasks run at a time. Others wait in their order, unless their owner has no share left.

    Args:
        total: number of tasks.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = Counter[Owner]()
        self._waiting: list[tuple[Access, anyio.Event]] = []

    @asynccontextmanager
    async def hold(self, access: Access) -> AsyncGenerator[None]:
        """A block that waits until it may run."""
        admitted = anyio.Event()
        self._waiting.append((access, admitted))
        self._admit()
        try:
            await admitted.wait()
            yield
        finally:
            if admitted.is_set():
                self._used[access.owner] -= 1
                self._admit()
            else:
                self._waiting.remove((access, admitted))

    def _admit(self) -> None:
        for waiting in list(self._waiting):
            access, admitted = waiting
            if sum(self._used.values()) >= self._total:
                return
            if Shares(self._total, access.owners).has_room(access.owner, self._used):
                self._waiting.remove(waiting)
                self._used[access.owner] += 1
                admitted.set()
