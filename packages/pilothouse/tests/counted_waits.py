"""Acts at each wait of a coroutine, so that a test can cancel at any of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Counted:
    """Awaits a coroutine, and calls `act` with the number of each of its waits."""

    def __init__(self, coroutine: Awaitable[object], act: Callable[[int], object]) -> None:
        self._coroutine = coroutine
        self._act = act
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        inner: Any = self._coroutine.__await__()
        resume: Callable[[], Any] = lambda: inner.send(None)  # noqa: E731
        while True:
            try:
                wanted = resume()
            except StopIteration:
                return
            self.waits += 1
            self._act(self.waits)
            try:
                got = yield wanted
                resume = lambda got=got: inner.send(got)  # noqa: E731
            except BaseException as error:
                resume = lambda error=error: inner.throw(error)  # noqa: E731
