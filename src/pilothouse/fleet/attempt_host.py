"""`AttemptHost`: executes attempts in another process for a remote runner.

Calls take and return plain bytes and may be repeated. Knows no Ray.
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
from pilothouse.fleet.runner import Attempt, Runner, make_runner_context
from pilothouse.messages import Message

E = TypeVar("E", bound=BaseException)
PickleFunction = Callable[[Any], bytes]

MAX_BUFFERED_MESSAGES = 500
MAX_BUFFERED_BYTES = 1 << 20
"""So much of an attempt may wait to be taken; then it has to wait too."""
MAX_CAUSES = 8
"""So many errors behind an error travel with it."""


@dataclass(slots=True, eq=False)
class _HostedAttempt:
    """An attempt under way."""

    messages: deque[Message] = field(default_factory=deque[Message])
    size: int = 0
    taken_count: int = 0
    begun_event: asyncio.Event = field(default_factory=asyncio.Event)
    changed_event: asyncio.Event = field(default_factory=asyncio.Event)
    space_event: asyncio.Event = field(default_factory=asyncio.Event)
    end: bytes | None = None
    is_ended: bool = False
    attempt: Attempt | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= MAX_BUFFERED_MESSAGES or self.size >= MAX_BUFFERED_BYTES

    async def add_message(self, message: Message) -> None:
        self.messages.append(message)
        self.size += len(message.raw_line)
        self.changed_event.set()
        while self.is_full:
            self.space_event.clear()
            await self.space_event.wait()

    def discard_taken(self, taken: int) -> None:
        """The first `taken` messages of all have arrived."""
        while self.taken_count < taken and self.messages:
            self.size -= len(self.messages.popleft().raw_line)
            self.taken_count += 1
        self.space_event.set()


class AttemptHost:
    """Does attempts with a runner that came as bytes.

    Args:
        runner: a pickled `Runner`; it is read when it is first needed.
        dumps: how answers are pickled.
    """

    def __init__(self, runner: bytes, dumps: PickleFunction = pickle.dumps) -> None:
        self._pickled_runner = runner
        self._dumps = dumps
        self._runner: Runner | None = None
        self._load_lock = asyncio.Lock()
        self._attempts: dict[str, _HostedAttempt] = {}

    async def ready(self) -> str:
        """The version of pilothouse here."""
        return __version__

    async def begin(self, name: str, pickled_attempt: bytes) -> None:
        """Begin an attempt, under a name that nobody else gives; what keeps it from being begun is its end."""
        if name not in self._attempts:
            work = self._attempts[name] = _HostedAttempt()
            work.task = asyncio.get_running_loop().create_task(self._run_attempt(work, pickled_attempt))
        await self._attempts[name].begun_event.wait()

    async def _run_attempt(self, hosted: _HostedAttempt, pickled_attempt: bytes) -> None:
        try:
            runner, hosted.attempt = await self._load(hosted, pickled_attempt)
            hosted.begun_event.set()  # whoever waits for it comes after the first step of the runner
            hosted.end = self._pickle_answer(await runner.run(hosted.attempt), hosted.attempt.artifacts)
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            artifacts = () if hosted.attempt is None else hosted.attempt.artifacts
            hosted.end = pickle_error(error, self._dumps, artifacts)
        finally:
            hosted.is_ended = True  # also if it was cancelled, and there is no end
            hosted.begun_event.set()
            hosted.changed_event.set()

    async def _load(self, hosted: _HostedAttempt, pickled_attempt: bytes) -> tuple[Runner, Attempt]:
        try:
            async with self._load_lock:
                if self._runner is None:
                    runner: Runner = pickle.loads(self._pickled_runner)  # noqa: S301 - of whom we work for
                    await make_runner_context(runner).__aenter__()  # it is left with the process
                    self._runner = runner
            return self._runner, Attempt(**pickle.loads(pickled_attempt), on_message=hosted.add_message)  # noqa: S301 - as above
        except PilothouseError:
            raise
        except Exception as error:
            text = f"what the attempt needs cannot be loaded where it is to run: {type(error).__name__}: {error}"
            raise UsageError(text) from error

    def _pickle_answer(self, answer: QueryResult, artifacts: tuple[str, ...]) -> bytes:
        try:
            return self._dumps((answer, (), artifacts))
        except Exception as error:  # noqa: BLE001 - what callbacks raise may be anything
            answer.callback_errors = [_make_picklable(each, self._dumps) for each in answer.callback_errors]
            with suppress(Exception):
                return self._dumps((answer, (), artifacts))
            text = f"the answer cannot be sent from where it was made: {type(error).__name__}: {error}"
            return pickle_error(PilothouseError(text), self._dumps, artifacts)

    async def more(self, name: str, taken: int) -> tuple[bytes, bytes | None]:
        """What an attempt has said since, at least one message unless it has ended; waits for that.

        Args:
            name: of the attempt.
            taken: how many of its messages have arrived so far.

        Returns:
            The messages, pickled; and once it has ended, what `unpickle_answer` takes.
        """
        work = self._attempts[name]
        work.discard_taken(taken)
        while not work.messages and not work.is_ended:
            work.changed_event.clear()
            await work.changed_event.wait()
        return self._dumps(list(work.messages)), work.end

    async def interrupt(self, name: str) -> None:
        """Stop an attempt in order, if it still runs."""
        work = self._attempts.get(name)
        if work is not None and not work.is_ended and work.attempt is not None and work.attempt.interrupt is not None:
            with suppress(PilothouseError):  # it ends all the same, and says how
                await work.attempt.interrupt()

    async def end(self, name: str) -> None:
        """Forget an attempt; one that still runs is cancelled. Returns when it has left nothing behind."""
        work = self._attempts.get(name)
        if work is None or work.task is None:
            return
        work.task.cancel()
        await asyncio.wait([work.task])
        self._attempts.pop(name, None)


def pickle_error(error: BaseException, dumps: PickleFunction, artifacts: tuple[str, ...] = ()) -> bytes:
    """The end of an attempt that failed: the error and those behind it; of one that does not pickle, its text."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < MAX_CAUSES and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return dumps((None, tuple(_make_picklable(each, dumps) for each in chain), artifacts))


def _make_picklable(error: E, dumps: PickleFunction) -> E | PilothouseError:
    try:
        pickle.loads(dumps(error))  # noqa: S301 - our own; some pickle and cannot be read again
    except Exception:  # noqa: BLE001 - whatever it is
        return PilothouseError(f"{type(error).__name__}: {error}")
    return error


def unpickle_answer(end: bytes, attempt: Attempt) -> QueryResult:
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
