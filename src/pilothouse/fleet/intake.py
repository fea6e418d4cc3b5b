"""How runs come to be wanted: the items of a caller that are put into the journal, and what is left in it.

Owns the way from an item to a run that stands in the journal, and who waits for it. Starts nothing, and knows no
attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Any, TypeVar

import anyio

from pilothouse.fleet.asking import Asking
from pilothouse.fleet.feeding import Feed, Items, batches
from pilothouse.fleet.journals.base import Journal
from pilothouse.fleet.readers import Readers
from pilothouse.fleet.run import Run
from pilothouse.fleet.run_limits import RunLimits

T = TypeVar("T")

ENQUEUED_AT_ONCE = 500
"""Items of a list that are put in together when nobody waits for them."""
WORK_SECONDS = 1.0
"""Between two looks of a worker for what others have put into the journal."""


class Intake:
    """The way in.

    Args:
        journal: where the runs are put.
        readers: who is told of those that have ended already.
        now: the time, in Unix seconds.
        wake: called when something was put in.
        limits: told of what is put in here.
    """

    def __init__(
        self,
        journal: Journal,
        readers: Readers,
        now: Callable[[], float],
        wake: Callable[[], object],
        limits: RunLimits,
    ) -> None:
        self._journal = journal
        self._readers = readers
        self._now = now
        self._wake = wake
        self._limits = limits
        self._number = 0

    def maker(self, key: Any, prompt: Any, options: Any, output_type: Any, priority: Any) -> Callable[[Any], Run]:
        """What makes a run of an item; arguments as for `Fleet.map`.

        Raises:
            UsageError: something that cannot be.
        """
        asking = Asking(key, prompt, options, output_type, priority, kept=self._journal.remembers)

        def make(item: Any) -> Run:
            self._number += 1
            return asking.run(item, self._number, self._now())

        return make

    async def fill(self, feed: Feed, items: Items[T], make: Callable[[T], Run], output_type: Any) -> None:
        """Put items in as quickly as `feed` is read."""
        async with aclosing(batches(items, feed.room)) as taken:
            async for batch in taken:
                await self.add([make(item) for item in batch], feed, output_type)
        feed.fed()

    async def enqueue(self, items: Items[T], make: Callable[[T], Run]) -> int:
        """Put all items in; how many there were."""
        count = 0

        async def room() -> int:
            return ENQUEUED_AT_ONCE

        async with aclosing(batches(items, room)) as taken:
            async for batch in taken:
                await self.add([make(item) for item in batch], None, None)
                count += len(batch)
        return count

    async def add(self, runs: list[Run], feed: Feed | None, output_type: Any) -> list[Run]:
        """Put runs in that `feed` waits for; each as it stands now."""
        for run in runs:
            self._readers.expect(run.key, feed, output_type)
        self._limits.give(runs)
        try:
            there = await self._journal.add(runs)
        except BaseException:
            for run in runs:
                self._readers.drop(run.key, feed)
            raise
        for run in there:
            if run.is_ended:
                self._readers.tell(run)
        self._wake()
        return there

    async def everything(self, feed: Feed, *, failed: bool) -> None:
        """Want everything that is left, or what has failed; `feed` is told of every end."""
        feed.hears = "all"
        self._limits.trusts_journal = True
        await self._journal.revive(failed=failed)
        feed.is_revived = True
        self._wake()

    async def work(self, feed: Feed, *, until_empty: bool) -> None:
        """Want whatever stands in the journal, now and later, until `feed` is read no more."""
        while not feed.is_over:
            await self._journal.revive(failed=False)  # what others have put in, and do not wait for any more
            feed.is_revived = until_empty
            self._wake()
            with anyio.move_on_after(WORK_SECONDS):
                await feed.closing()

    async def done(self) -> Collection[str]:
        """Which feeds have it all, by what they hear: nothing runs anywhere, and nothing waits that counts for them."""
        due = await self._journal.next_due()  # before and after: meanwhile one may have been given out, or put back
        status = await self._journal.status()
        if not status.left:
            return ("own", "all")
        is_idle = due is None and not status.running and not status.interrupted
        return ("all",) if is_idle and await self._journal.next_due() is None else ()
