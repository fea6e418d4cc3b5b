"""`AttemptHost`: does attempts for a runner in another process, which asks it by calls with plain bytes in and out.

Owns what such a process keeps of an attempt: its task, what it has said and nobody has taken yet, and its end. Every
call may come twice, and does no harm then. Knows asyncio, which is what hosts of actors run, but not what carries the
calls, nor who calls.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from pilothouse._version import __version__
from pilothouse.client import QueryResult
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.fleet.runner import Attempt, Runner, block_of
from pilothouse.messages import Message

E = TypeVar("E", bound=BaseException)
Dumps = Callable[[Any], bytes]

KEPT_MESSAGES = 500
KEPT_BYTES = 1 << 20
"""So much of an attempt may wait to be taken; then it has to wait too."""
CAUSES = 8
"""So many errors behind an error travel with it."""


@dataclass(slots=True, eq=False)
class _Work:
    """An attempt under way."""

    said: deque[Message] = field(default_factory=deque[Message])
    size: int = 0
    taken: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    end: bytes | None = None
    is_over: bool = False
    attempt: Attempt | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self.said) >= KEPT_MESSAGES or self.size >= KEPT_BYTES

    async def hear(self, message: Message) -> None:
        self.said.append(message)
        self.size += len(message.raw_line)
        self.news.set()
        while self.is_full:
            self.room.clear()
            await self.room.wait()

    def forget(self, taken: int) -> None:
        """The first `taken` messages of all have arrived."""
        while self.taken < taken and self.said:
            self.size -= len(self.said.popleft().raw_line)
            self.taken += 1
        self.room.set()


class AttemptHost:
    """Does attempts with a runner that came as bytes.

    Args:
        runner: a pickled `Runner`; it is read when it is first needed.
        dumps: how answers are pickled.
    """

    def __init__(self, runner: bytes, dumps: Dumps = pickle.dumps) -> None:
        self._packed = runner
        self._dumps = dumps
        self._runner: Runner | None = None
        self._reading = asyncio.Lock()
        self._works: dict[str, _Work] = {}

    async def ready(self) -> str:
        """The version of pilothouse here."""
        return __version__

    async def begin(self, name: str, order: bytes) -> None:
        """Begin an attempt, under a name that nobody else gives; what keeps it from being begun is its end."""
        if name not in self._works:
            work = self._works[name] = _Work()
            work.task = asyncio.get_running_loop().create_task(self._see_through(work, order))
        await self._works[name].begun.wait()

    async def _see_through(self, work: _Work, order: bytes) -> None:
        try:
            runner, work.attempt = await self._read(work, order)
            work.begun.set()  # whoever waits for it comes after the first step of the runner
            work.end = self._packed_answer(await runner.run(work.attempt), work.attempt.artifacts)
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            artifacts = () if work.attempt is None else work.attempt.artifacts
            work.end = packed_error(error, self._dumps, artifacts)
        finally:
            work.is_over = True  # also if it was cancelled, and there is no end
            work.begun.set()
            work.news.set()

    async def _read(self, work: _Work, order: bytes) -> tuple[Runner, Attempt]:
        try:
            async with self._reading:
                if self._runner is None:
                    runner: Runner = pickle.loads(self._packed)  # noqa: S301 - of whom we work for
                    await block_of(runner).__aenter__()  # it is left with the process
                    self._runner = runner
            return self._runner, Attempt(**pickle.loads(order), heard=work.hear)  # noqa: S301 - as above
        except PilothouseError:
            raise
        except Exception as error:
            text = f"what the attempt needs cannot be loaded where it is to run: {type(error).__name__}: {error}"
            raise UsageError(text) from error

    def _packed_answer(self, answer: QueryResult, artifacts: tuple[str, ...]) -> bytes:
        try:
            return self._dumps((answer, (), artifacts))
        except Exception as error:  # noqa: BLE001 - what callbacks raise may be anything
            answer.callback_errors = [_picklable(each, self._dumps) for each in answer.callback_errors]
            with suppress(Exception):
                return self._dumps((answer, (), artifacts))
            text = f"the answer cannot be sent from where it was made: {type(error).__name__}: {error}"
            return packed_error(PilothouseError(text), self._dumps, artifacts)

    async def more(self, name: str, taken: int) -> tuple[bytes, bytes | None]:
        """What an attempt has said since, at least one message unless it has ended; waits for that.

        Args:
            name: of the attempt.
            taken: how many of its messages have arrived so far.

        Returns:
            The messages, pickled; and once it has ended, what `unpacked` takes.
        """
        work = self._works[name]
        work.forget(taken)
        while not work.said and not work.is_over:
            work.news.clear()
            await work.news.wait()
        return self._dumps(list(work.said)), work.end

    async def interrupt(self, name: str) -> None:
        """Stop an attempt in order, if it still runs."""
        work = self._works.get(name)
        if work is not None and not work.is_over and work.attempt is not None and work.attempt.interrupt is not None:
            with suppress(PilothouseError):  # it ends all the same, and says how
                await work.attempt.interrupt()

    async def end(self, name: str) -> None:
        """Forget an attempt; one that still runs is cancelled. Returns when it has left nothing behind."""
        work = self._works.get(name)
        if work is None or work.task is None:
            return
        work.task.cancel()
        await asyncio.wait([work.task])
        self._works.pop(name, None)


def packed_error(error: BaseException, dumps: Dumps, artifacts: tuple[str, ...] = ()) -> bytes:
    """The end of an attempt that failed: the error and those behind it; of one that does not pickle, its text."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < CAUSES and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return dumps((None, tuple(_picklable(each, dumps) for each in chain), artifacts))


def _picklable(error: E, dumps: Dumps) -> E | PilothouseError:
    try:
        pickle.loads(dumps(error))  # noqa: S301 - our own; some pickle and cannot be read again
    except Exception:  # noqa: BLE001 - whatever it is
        return PilothouseError(f"{type(error).__name__}: {error}")
    return error


def unpacked(end: bytes, attempt: Attempt) -> QueryResult:
    """The answer of an attempt, as `AttemptHost.more` gave it.

    Raises:
        Exception: what it failed with, with its causes.
    """
    answer, errors, attempt.artifacts = pickle.loads(end)  # noqa: S301 - of whom works for us
    if not errors:
        return answer
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    raise errors[0]
