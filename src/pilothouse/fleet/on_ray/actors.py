"""The actors of a `RayRunner`: how many there are, which has room, and that one which dies is replaced.

Owns the actors and the calls to them. Knows nothing of attempts but that each takes a seat.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import anyio

from pilothouse._version import __version__
from pilothouse.driver.tasks import caller_into_loop
from pilothouse.errors import RemoteError, SessionClosedError, UsageError, WorkerLostError
from pilothouse.fleet.on_ray.attempt_host import AttemptHost
from pilothouse.fleet.on_ray.cluster import CLUSTER, brief, done

log = logging.getLogger("pilothouse.fleet")

UNAVAILABLE_SECONDS = 60.0
"""An actor that cannot be reached for so long is given up; Ray knows of lost nodes sooner."""
AGAIN_SECONDS = 0.5
"""Between two calls of an actor that cannot be reached, and before the first new try to start one that did not."""
MOST_AGAIN_SECONDS = 30.0
"""Between two tries to start it, at most."""


@dataclass(slots=True, eq=False)
class Worker:
    """A place for an actor; while there is none in it, it counts as gone."""

    actor: Any = None
    first_word: Future[str] | None = None
    is_gone: bool = True
    is_ready: bool = False
    busy: int = 0
    due: float = 0.0
    fault: BaseException | None = None
    faults: int = 0


class Actors:
    """A number of actors with seats for attempts.

    Args:
        ray: the module.
        address: of the cluster.
        count: how many actors.
        seats: how many attempts each has at the same time.
        options: what Ray is asked for each.
        payload: the runner that they get.
        start_timeout: seconds to wait for an actor while there is none.

    Raises:
        UsageError: Ray knows no such options.
    """

    def __init__(
        self,
        ray: Any,
        address: str | None,
        count: int,
        seats: int,
        options: Mapping[str, Any],
        payload: bytes,
        start_timeout: float,
    ) -> None:
        self._ray = ray
        self._address = address
        self._count = count
        self._seats = seats
        self._payload = payload
        self._start_timeout = start_timeout
        limit = 3 * seats + 8  # of an attempt: one call that waits, and those that stop it
        try:
            self._kind = ray.remote(AttemptHost).options(**options, max_concurrency=limit, max_restarts=0)
        except (TypeError, ValueError) as error:
            raise UsageError(f"actor_options: {brief(error)}") from error
        self._workers: list[Worker] = []
        self._users = 0
        self._entering = anyio.Lock()
        self._changed = anyio.Event()

    # Their life.

    async def enter(self) -> None:
        """One more user; returns when there is an actor. `leave` has to follow.

        Raises:
            RemoteError: no cluster, or no actor.
            UsageError: another cluster is in use, or it has another version.
        """
        self._users += 1
        if self._users == 1:  # perhaps in another event loop than before
            self._entering, self._changed = anyio.Lock(), anyio.Event()
        try:
            async with self._entering:
                if not self._workers:
                    await self._begin()
        except BaseException:
            self._users -= 1
            raise

    async def _begin(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await done(CLUSTER.submit(partial(CLUSTER.connect, self._ray, self._address)))
            self._workers = [Worker() for _ in range(self._count)]
            await self._wait_for_one()
        except BaseException:
            await self._end()
            raise

    async def leave(self) -> None:
        """One user less; with the last one all actors go."""
        self._users -= 1
        if not self._users:
            await self._end()

    async def _end(self) -> None:
        workers, self._workers = self._workers, []
        with anyio.CancelScope(shield=True):
            for worker in workers:
                worker.is_gone = True
                await self._kill(worker)
            await done(CLUSTER.submit(partial(CLUSTER.disconnect, self._ray)))

    # What is asked of them.

    async def seat(self) -> Worker:
        """An actor with room for one more; the seat is taken until `stand_up`.

        Raises:
            RemoteError: there has been none for too long.
            SessionClosedError: nobody has entered.
        """
        patience = _Patience(self._start_timeout)
        while True:
            if not self._workers:
                raise SessionClosedError("a RayRunner works in its block, or in that of its fleet: async with …")
            await self._take_stock()
            ready = [worker for worker in self._workers if worker.is_ready]
            free = [worker for worker in ready if worker.busy < self._seats]
            if free:
                worker = min(free, key=lambda one: one.busy)
                worker.busy += 1
                return worker
            await self._wait_for_change(patience.left(self._workers, is_one=bool(ready)))

    def stand_up(self, worker: Worker) -> None:
        """A seat is free again."""
        worker.busy -= 1
        self._changed.set()

    async def call(self, worker: Worker, method: str, *args: Any) -> Any:
        """The answer of an actor, which may be asked twice.

        Raises:
            WorkerLostError: it is gone.
        """
        errors = self._ray.exceptions
        until = inf
        while True:
            if worker.is_gone:
                raise WorkerLostError("the actor that had this attempt is gone")
            try:
                return await done(getattr(worker.actor, method).remote(*args).future())
            except errors.RayTaskError:
                raise  # a fault of ours
            except errors.ActorUnavailableError as error:
                until = min(until, anyio.current_time() + UNAVAILABLE_SECONDS)
                if anyio.current_time() >= until:
                    await self.lose(worker)
                    raise WorkerLostError(f"the actor that had this attempt is out of reach: {brief(error)}") from None
            except errors.RayError as error:
                await self.lose(worker)
                raise WorkerLostError(f"the actor that had this attempt is gone: {brief(error)}") from None
            await anyio.sleep(AGAIN_SECONDS)

    async def lose(self, worker: Worker) -> None:
        """An actor is gone, or is to go: whatever is left of it is killed, and another takes its place."""
        if not worker.is_gone:
            worker.is_gone, worker.is_ready = True, False
            self._changed.set()
            with anyio.CancelScope(shield=True):
                await self._kill(worker)

    async def _kill(self, worker: Worker) -> None:
        if worker.actor is not None:
            with suppress(self._ray.exceptions.RayError):
                await done(CLUSTER.submit(partial(self._ray.kill, worker.actor)))

    # Starting them.

    async def _wait_for_one(self) -> None:
        patience = _Patience(self._start_timeout)
        while True:
            await self._take_stock()
            if any(worker.is_ready for worker in self._workers):
                return
            if all(worker.fault is not None for worker in self._workers):
                raise _no_actor(self._workers)
            await self._wait_for_change(patience.left(self._workers, is_one=False))

    async def _wait_for_change(self, seconds: float) -> None:
        due = min((worker.due for worker in self._workers if worker.is_gone), default=inf)
        with anyio.move_on_after(min(seconds, max(0.0, due - anyio.current_time()))):
            await self._changed.wait()

    async def _take_stock(self) -> None:
        """See which actors have started, and start one in each place that has none, unless that was tried just now."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        for worker in self._workers:
            if worker.first_word is not None and worker.first_word.done():
                first_word, worker.first_word = worker.first_word, None
                self._started(worker, first_word)
        for place, worker in enumerate(self._workers):
            if worker.is_gone and worker.due <= anyio.current_time():
                new = self._workers[place] = replace(worker, actor=None, first_word=None, is_gone=False, busy=0)
                with anyio.CancelScope(shield=True):  # an actor that nobody knows would stay
                    await self._start(new)

    async def _start(self, worker: Worker) -> None:
        try:
            worker.actor, first_word = await done(CLUSTER.submit(self._new_actor))
        except Exception as error:  # noqa: BLE001 - told when there is no actor at all
            self._failed(worker, error)
            return
        worker.first_word = first_word
        call = caller_into_loop()
        first_word.add_done_callback(lambda _: call(self._news))

    def _news(self) -> None:
        self._changed.set()  # that of now, which may be another than when the actor was asked for

    def _new_actor(self) -> tuple[Any, Future[str]]:
        """In the thread of the cluster: it may take a while."""
        actor = self._kind.remote(self._payload, self._ray.cloudpickle.dumps)
        return actor, actor.ready.remote().future()

    def _started(self, worker: Worker, first_word: Future[str]) -> None:
        """An actor has said its first word, or died before."""
        if (error := first_word.exception()) is not None:
            self._failed(worker, error)
        elif (there := first_word.result()) != __version__:
            text = f"pilothouse is {__version__} here and {there} on the cluster; install the same on both"
            self._failed(worker, UsageError(text))
        else:
            worker.is_ready, worker.fault, worker.faults = True, None, 0

    def _failed(self, worker: Worker, error: BaseException) -> None:
        log.warning("an actor has not started: %s", brief(error))
        worker.is_gone, worker.fault, worker.faults = True, error, worker.faults + 1
        worker.due = anyio.current_time() + min(AGAIN_SECONDS * 2**worker.faults, MOST_AGAIN_SECONDS)


class _Patience:
    """How long to wait for an actor while there is none."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def left(self, workers: list[Worker], *, is_one: bool) -> float:
        """Seconds.

        Raises:
            RemoteError: none.
        """
        now = anyio.current_time()
        if is_one:
            self._since = None
            return inf
        self._since = now if self._since is None else self._since
        if (left := self._since + self._seconds - now) <= 0:
            raise _no_actor(workers)
        return left


def _no_actor(workers: list[Worker]) -> RemoteError:
    fault = next((worker.fault for worker in workers if worker.fault is not None), None)
    why = "the cluster has no room for what actor_options ask (`ray status`)" if fault is None else brief(fault)
    return RemoteError(f"no actor could be started: {why}", code="unreachable")
