"""`AttemptHost`: executes attempts in another process for a remote runner.

Methods take and return plain bytes and can be called repeatedly. Knows nothing of Ray.
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
"""Limits of the messages of one attempt that wait to be fetched; at either limit the attempt waits."""
MAX_CAUSES = 8
"""Maximum length of the chain of errors that is sent: the error and its causes."""


@dataclass(slots=True, eq=False)
class _HostedAttempt:
    """A running attempt."""

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
        """Remove the first `taken` messages of the attempt, which the caller has received."""
        while self.taken_count < taken and self.messages:
            self.size -= len(self.messages.popleft().raw_line)
            self.taken_count += 1
        self.space_event.set()


class AttemptHost:
    """Executes attempts with a pickled runner.

    Args:
        runner: a pickled `Runner`; unpickled on first use.
        dumps: pickles answers.
    """

    def __init__(self, runner: bytes, dumps: PickleFunction = pickle.dumps) -> None:
        self._pickled_runner = runner
        self._dumps = dumps
        self._runner: Runner | None = None
        self._load_lock = asyncio.Lock()
        self._attempts: dict[str, _HostedAttempt] = {}

    async def ready(self) -> str:
        """Return the version of pilothouse in this process."""
        return __version__

    async def begin(self, name: str, pickled_attempt: bytes) -> None:
        """Begin an attempt under a unique name. An error that prevents the start becomes the end of the attempt."""
        if name not in self._attempts:
            work = self._attempts[name] = _HostedAttempt()
            work.task = asyncio.get_running_loop().create_task(self._run_attempt(work, pickled_attempt))
        await self._attempts[name].begun_event.wait()

    async def _run_attempt(self, hosted: _HostedAttempt, pickled_attempt: bytes) -> None:
        try:
            runner, hosted.attempt = await self._load(hosted, pickled_attempt)
            hosted.begun_event.set()  # the caller resumes after the runner's first step
            hosted.end = self._pickle_answer(await runner.run(hosted.attempt), hosted.attempt.artifacts)
        except Exception as error:  # noqa: BLE001 - raised in the calling process
            artifacts = () if hosted.attempt is None else hosted.attempt.artifacts
            hosted.end = pickle_error(error, self._dumps, artifacts)
        finally:
            hosted.is_ended = True  # also after cancellation, when there is no end
            hosted.begun_event.set()
            hosted.changed_event.set()

    async def _load(self, hosted: _HostedAttempt, pickled_attempt: bytes) -> tuple[Runner, Attempt]:
        try:
            async with self._load_lock:
                if self._runner is None:
                    runner: Runner = pickle.loads(self._pickled_runner)  # noqa: S301 - from the process we work for
                    await make_runner_context(runner).__aenter__()  # exited when the process ends
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
        except Exception as error:  # noqa: BLE001 - callbacks may raise anything
            answer.callback_errors = [_make_picklable(each, self._dumps) for each in answer.callback_errors]
            with suppress(Exception):
                return self._dumps((answer, (), artifacts))
            text = f"the answer cannot be sent from where it was made: {type(error).__name__}: {error}"
            return pickle_error(PilothouseError(text), self._dumps, artifacts)

    async def more(self, name: str, taken: int) -> tuple[bytes, bytes | None]:
        """Wait until an attempt has new messages or has ended, and return them.

        Args:
            name: name of the attempt.
            taken: number of its messages that the caller has received so far.

        Returns:
            The new messages, pickled; and, once the attempt has ended, the bytes for `unpickle_answer`.
        """
        work = self._attempts[name]
        work.discard_taken(taken)
        while not work.messages and not work.is_ended:
            work.changed_event.clear()
            await work.changed_event.wait()
        return self._dumps(list(work.messages)), work.end

    async def interrupt(self, name: str) -> None:
        """Interrupt an attempt gracefully, if it still runs."""
        work = self._attempts.get(name)
        if work is not None and not work.is_ended and work.attempt is not None and work.attempt.interrupt is not None:
            with suppress(PilothouseError):  # the attempt ends anyway and reports its error
                await work.attempt.interrupt()

    async def end(self, name: str) -> None:
        """Remove an attempt, and cancel it if it still runs. Returns when its task has finished."""
        work = self._attempts.get(name)
        if work is None or work.task is None:
            return
        work.task.cancel()
        await asyncio.wait([work.task])
        self._attempts.pop(name, None)


def pickle_error(error: BaseException, dumps: PickleFunction, artifacts: tuple[str, ...] = ()) -> bytes:
    """Pickle the error of a failed attempt and its causes; an error that cannot be pickled is sent as text."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < MAX_CAUSES and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return dumps((None, tuple(_make_picklable(each, dumps) for each in chain), artifacts))


def _make_picklable(error: E, dumps: PickleFunction) -> E | PilothouseError:
    try:
        pickle.loads(dumps(error))  # noqa: S301 - our own; some errors pickle and do not unpickle
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return PilothouseError(f"{type(error).__name__}: {error}")
    return error


def unpickle_answer(end: bytes, attempt: Attempt) -> QueryResult:
    """Unpickle the answer of an attempt, as `AttemptHost.more` returned it.

    Raises:
        Exception: the error of the attempt, with its causes.
    """
    answer, errors, attempt.artifacts = pickle.loads(end)  # noqa: S301 - from our own worker
    if not errors:
        return answer
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    raise errors[0]
