"""Who waits for which run, and what its output must be. Owns the feeds of all readers of a fleet; starts nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from pilothouse.fleet.asking import typed
from pilothouse.fleet.feeding import Feed
from pilothouse.fleet.run import Run

Park = Callable[[Collection[str] | None, Collection[str]], Awaitable[None]]


class Readers:
    """The readers of one fleet.

    Args:
        look_ahead: how many runs may be ready for one of them, or on their way to it.
        wake: called when there may be room again.
    """

    def __init__(self, look_ahead: int, wake: Callable[[], object]) -> None:
        self._look_ahead = look_ahead
        self._wake = wake
        self._feeds: list[Feed] = []
        self._waiting: dict[str, list[Feed]] = {}
        self._output_types: dict[str, Any] = {}
        self._has_left_work = False
        self.kept: dict[str, Run | None] = {}
        """Runs whose ends are kept until somebody asks, as no journal does: None before the end."""

    def feed(self) -> Feed:
        """A feed for one more reader; it counts from `join` on."""
        return Feed(self._look_ahead, self._taken)

    def join(self, feed: Feed) -> None:
        """Somebody reads it now."""
        self._feeds.append(feed)
        if feed.hears == "own":
            self._has_left_work = False

    def expect(self, key: str, feed: Feed | None, output_type: Any) -> None:
        """A run will end that `feed` waits for, and whose output is to be of that type."""
        if output_type is not None:
            self._output_types[key] = output_type
        if feed is not None and key not in feed.waiting:
            feed.waiting.add(key)
            self._waiting.setdefault(key, []).append(feed)

    def drop(self, key: str, feed: Feed | None) -> None:
        """It does not wait for that run any more."""
        if feed is None or feed not in (waiting := self._waiting.get(key, [])):
            return
        feed.drop(key)
        waiting.remove(feed)
        if not waiting:
            del self._waiting[key]
            self._output_types.pop(key, None)

    def output_type(self, key: str) -> Any:
        """What the output of a run must be; None: nobody has said."""
        return self._output_types.get(key)

    def tell(self, run: Run, *, is_own: bool = False) -> None:
        """A run has ended; whether it was done here."""
        run = typed(run, self._output_types.pop(run.key, None))
        waiting = self._waiting.pop(run.key, [])
        for feed in waiting:
            feed.put(run)
        for feed in self._feeds:
            if feed.hears == "all" or (is_own and feed.hears == "own"):
                feed.put(run)
        if run.key in self.kept and not waiting:
            self.kept[run.key] = run

    def fail(self, make: Callable[[], Exception]) -> None:
        """No more will end."""
        for feed in self._feeds:
            if not feed.is_over:
                feed.fail(make())

    def close(self) -> None:
        """Nobody reads any more."""
        for feed in self._feeds:
            feed.close()

    async def forget(self, park: Park) -> None:
        """Forget those who read no more, and have parked what only they wanted."""
        for feed in [feed for feed in self._feeds if feed.is_closed and not feed.is_parked]:
            feed.is_parked = True
            feed.close()  # if it was only dropped
            left = list(feed.waiting)
            for key in left:
                self.drop(key, feed)
            if feed.hears == "own":  # what it did not begin is for other workers
                self._has_left_work = True
                continue
            wanted = {*self._waiting, *(key for key, run in self.kept.items() if run is None)}
            await park(None if feed.hears == "all" else left, wanted)
        self._feeds = [feed for feed in self._feeds if not feed.is_over]

    @property
    def of_all(self) -> list[Feed]:
        """Those who wait until nothing is left, and whose runs are wanted by now."""
        return [feed for feed in self._feeds if feed.is_revived]

    @property
    def listen(self) -> bool:
        """Whether somebody waits for what other processes end."""
        return any(feed.waiting or feed.hears == "all" for feed in self._feeds)

    @property
    def want_more(self) -> bool:
        """Whether more may be started: those who are told of whatever ends keep up with it, or somebody waits."""
        if self._has_left_work and not any(feed.waiting or feed.hears != "asked" for feed in self._feeds):
            return False
        return all(len(feed.ready) < self._look_ahead for feed in self._feeds if feed.hears != "asked")

    def _taken(self) -> None:
        if any(feed.hears != "asked" or feed.is_closed for feed in self._feeds):
            self._wake()
