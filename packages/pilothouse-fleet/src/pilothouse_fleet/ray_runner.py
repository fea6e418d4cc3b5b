"""`RayRunner`: executes attempts in actors of a Ray cluster.

Owns the connection to Ray, the actors, and the transfer of attempts and messages.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from math import inf
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

import anyio

from pilothouse import __version__
from pilothouse.client import Agent, OutputSchema, QueryResult, default_agent
from pilothouse.errors import RemoteError, SessionClosedError, StructuredOutputError, UsageError, WorkerLostError
from pilothouse.support import make_loop_caller
from pilothouse_fleet.limits import validate_count
from pilothouse_fleet.runner import AgentRunner, Attempt, AttemptHost, Runner, unpickle_answer

T = TypeVar("T")

CONNECT_SECONDS = 10.0
"""Timeout in seconds to reach the address of a cluster; Ray would try for a minute, and then end the program."""
_RAY_LOGGER = "ray._private.worker"  # the logger of Ray's connection warnings


def import_ray() -> Any:
    """Import and return Ray."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise UsageError("RayRunner needs Ray: pip install 'pilothouse[ray]'") from error


class RayConnection:
    """The connection to Ray, open while a runner uses it, and the thread for all blocking calls.

    There is only one thread: processes of a local cluster end with the thread that started them.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "pilothouse-ray")
        self._users = 0
        self._is_owner = False

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in the thread."""
        return self._thread.submit(call, *args)

    def connect(self, ray: Any, address: str | None) -> None:
        """Connect if needed, and add one user. Call it in the thread."""
        self._users += 1  # also if the call fails: `disconnect` follows
        if ray.is_initialized():
            there = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", there):
                raise UsageError(f"this process is connected to Ray at {there}, not {address}")
            return
        _check_reachable(os.environ.get("RAY_ADDRESS") if address in (None, "auto") else address)
        # A cluster started here would send usage statistics to Ray's makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger(_RAY_LOGGER).addFilter(_is_no_sigterm_warning)
        try:
            ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise RemoteError(f"no Ray cluster: {shorten_error(error)}", code="unreachable") from error
        self._is_owner = True

    def disconnect(self, ray: Any) -> None:
        """Remove one user; the last one disconnects. Call it in the thread."""
        self._users -= 1
        if not self._users and self._is_owner:
            self._is_owner = False
            ray.shutdown()


RAY_CONNECTION = RayConnection()


def _check_reachable(address: str | None) -> None:
    """Raise `RemoteError` if no server listens at the address."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise RemoteError(
            f"no server answers at {address}, where Ray should be: {error}", code="unreachable"
        ) from error


def _is_no_sigterm_warning(record: logging.LogRecord) -> bool:
    """Suppress Ray's warning that it does not handle SIGTERM, which is intended here."""
    return "SIGTERM handler is not set" not in record.getMessage()


async def await_future(future: Future[T]) -> T:
    """Wait in any event loop for the result of another thread's future."""
    ready = anyio.Event()
    call = make_loop_caller()
    future.add_done_callback(lambda _: call(ready.set))
    await ready.wait()
    return future.result()


def shorten_error(error: BaseException) -> str:
    """Return the main line of a Ray error, without the pages that follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[-1] if len(lines) > 1 and "died" in lines[0] else lines[0] if lines else type(error).__name__
    return line[:300]


log = logging.getLogger("pilothouse.fleet")

UNAVAILABLE_SECONDS = 60.0
"""Seconds after which an unreachable actor counts as lost; Ray reports lost nodes sooner."""
RETRY_SECONDS = 0.5
"""Seconds between two calls to an unreachable actor."""
START_RETRY_SECONDS = 5.0
"""Seconds until a failed start of an actor is retried."""


@dataclass(slots=True, eq=False)
class ActorSlot:
    """A place for one actor; a slot without an actor counts as gone."""

    actor: Any = None
    ready_future: Future[str] | None = None
    is_gone: bool = True
    is_ready: bool = False
    attempt_count: int = 0
    retry_at: float = 0.0
    start_error: BaseException | None = None


ACTOR_OPTIONS: Mapping[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
"""Default Ray options of an actor."""
RESERVED_ACTOR_OPTIONS = ("lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name", "num_returns")
"""Options that the runner sets itself or that would break it."""

END_SECONDS = 20.0
"""Seconds for an actor to end an attempt and its process; then the actor is killed."""


EXIT_SECONDS = 5.0
"""Seconds for an actor's process to exit once its main thread has ended."""


class ActorAttemptHost(AttemptHost):
    """An `AttemptHost` in an actor. Its process exits soon after its main thread.

    Without that it may stay for ever when the program of the actor is killed: the main thread then waits for a thread
    of Ray's that no longer exists (seen with Ray 2.60 on Python 3.11).
    """

    def __init__(self, runner: bytes, dumps: Callable[[Any], bytes]) -> None:
        super().__init__(runner, dumps)
        threading.Thread(target=_exit_after_main_thread, name="pilothouse actor", daemon=True).start()


def _exit_after_main_thread() -> None:
    threading.main_thread().join()
    time.sleep(EXIT_SECONDS)
    os._exit(0)


class RayRunner:
    """Executes attempts in actors of a Ray cluster; needs `pilothouse[ray]`.

    ::

        runner = RayRunner(Agent(model="sonnet"), actors=16, concurrency_per_actor=4)
        async with Fleet(runner=runner, concurrency=64, journal="runs.db") as fleet:
            ...

    A fleet enters and leaves the runner; without a fleet, use it with `async with`. An actor that dies is replaced;
    its attempts raise `WorkerLostError`, which a fleet handles as an interruption. The nodes need the same version of
    pilothouse, and the CLI.

    Args:
        agent: its settings apply to all runs; or a `Runner` that works in the actors; None: the default agent. It is
            pickled immediately, functions included; its keys travel inside Ray.
        address: `host:port` of the cluster; None: `RAY_ADDRESS` or a cluster that runs on this machine, else a new
            local cluster; "local": always a new local cluster. An existing connection of the process stays open; a
            new one is closed at the end.
        actors: number of actors.
        concurrency_per_actor: maximum number of concurrent attempts per actor; others wait here.
        actor_options: Ray options of each actor, such as num_cpus, resources or runtime_env.
        start_timeout: seconds to wait for an actor while there is none.

    Raises:
        UsageError: Ray is not installed, or something cannot be pickled; the error names it.
    """

    def __init__(
        self,
        agent: Agent | Runner | None = None,
        *,
        address: str | None = None,
        actors: int = 1,
        concurrency_per_actor: int = 8,
        actor_options: Mapping[str, Any] | None = None,
        start_timeout: float = 300.0,
    ) -> None:
        self._ray = import_ray()
        agent = default_agent() if agent is None else agent
        self.agent = agent if isinstance(agent, Agent) else None
        self._address = _validate_address(address)
        self._count = validate_count("actors", actors)
        self._attempts_per_actor = validate_count("concurrency_per_actor", concurrency_per_actor)
        options = {**ACTOR_OPTIONS, **_validate_options(actor_options)}
        self._payload = _pickle_runner(self._ray, agent)
        self._start_timeout = start_timeout
        limit = 3 * self._attempts_per_actor + 8  # per attempt: one call that waits, and those that stop it
        try:
            self._actor_class = self._ray.remote(ActorAttemptHost).options(
                **options, max_concurrency=limit, max_restarts=0
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"actor_options: {shorten_error(error)}") from error
        self._slots: list[ActorSlot] = []
        self._users = 0
        self._enter_lock = anyio.Lock()
        self._changed = anyio.Event()

    # Entering and leaving.

    async def __aenter__(self) -> Self:
        """Return when there is an actor.

        Raises:
            RemoteError: there is no cluster, or no actor starts.
            UsageError: another cluster is in use, or it has another version of pilothouse.
        """
        self._users += 1
        if self._users == 1:  # possibly in another event loop than before
            self._enter_lock, self._changed = anyio.Lock(), anyio.Event()
        try:
            async with self._enter_lock:
                if not self._slots:
                    await self._start_actors()
        except BaseException:
            self._users -= 1
            raise
        return self

    async def _start_actors(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await await_future(RAY_CONNECTION.submit(RAY_CONNECTION.connect, self._ray, self._address))
            self._slots = [ActorSlot() for _ in range(self._count)]
            self._release(await self._acquire(is_start=True))
        except BaseException:
            await self._stop_actors()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            await self._stop_actors()

    async def _stop_actors(self) -> None:
        slots, self._slots = self._slots, []
        with anyio.CancelScope(shield=True):
            for slot in slots:
                slot.is_gone = True
                await self._kill(slot)
            await await_future(RAY_CONNECTION.submit(RAY_CONNECTION.disconnect, self._ray))

    # Attempts.

    async def run(self, attempt: Attempt) -> QueryResult:
        """Execute an attempt; see `Runner`.

        Raises:
            UsageError: an option of the attempt cannot be pickled, or cannot be unpickled in the actor.
            WorkerLostError: the actor is gone.
            RemoteError: the cluster has no capacity for an actor, or none starts.
        """
        expected = None if attempt.output_type is None else OutputSchema.from_type(attempt.output_type)
        order = _pickle_attempt(self._ray, attempt, expected)
        while True:
            slot = await self._acquire()
            try:
                if await self._is_alive(slot):
                    return _decode_answer(await self._run_in_actor(slot, attempt, order), expected)
            finally:
                self._release(slot)

    async def _is_alive(self, slot: ActorSlot) -> bool:
        """Whether an actor still responds; an idle actor that died has begun nothing, so another one can be tried."""
        with suppress(WorkerLostError):
            await self._call(slot, "ready")
            return True
        return False

    async def _run_in_actor(self, slot: ActorSlot, attempt: Attempt, pickled_attempt: bytes) -> QueryResult:
        name = uuid4().hex
        try:
            await self._call(slot, "begin", name, pickled_attempt)
            attempt.interrupt = partial(self._interrupt, slot, name)
            taken, end = 0, None
            while end is None:
                pickled, end = await self._call(slot, "more", name, taken)
                for message in pickle.loads(pickled):  # noqa: S301 - from our own actor
                    await attempt.on_message(message)
                    taken += 1
            return unpickle_answer(end, attempt)
        finally:
            await self._end(slot, name)

    async def _interrupt(self, slot: ActorSlot, name: str) -> None:
        with suppress(WorkerLostError):  # `run` raises it
            await self._call(slot, "interrupt", name)

    async def _end(self, slot: ActorSlot, name: str) -> None:
        if slot.is_gone:
            return
        with anyio.move_on_after(END_SECONDS, shield=True) as limit, suppress(WorkerLostError):
            await self._call(slot, "end", name)
        if limit.cancelled_caught:
            log.warning("an actor has not ended an attempt within %.0f s; it is killed", END_SECONDS)
            await self._discard(slot)

    # Actors and calls.

    async def _acquire(self, *, is_start: bool = False) -> ActorSlot:
        """Take a free place of an actor until `_release`.

        Raises:
            RemoteError: there has been no actor for `start_timeout`, or at the start none can be started.
            SessionClosedError: the pool was not entered.
        """
        none_since = inf
        while True:
            if not self._slots:
                raise SessionClosedError("a RayRunner works in its block, or in that of its fleet: async with …")
            await self._refresh_slots()
            ready = [slot for slot in self._slots if slot.is_ready]
            free = [slot for slot in ready if slot.attempt_count < self._attempts_per_actor]
            if free:
                slot = min(free, key=lambda one: one.attempt_count)
                slot.attempt_count += 1
                return slot
            now = anyio.current_time()
            none_since = inf if ready else min(none_since, now)
            none_starts = is_start and all(slot.start_error is not None for slot in self._slots)
            if none_starts or now >= none_since + self._start_timeout:
                raise self._make_no_actor_error()
            due = min((slot.retry_at for slot in self._slots if slot.is_gone), default=inf)
            with anyio.move_on_after(max(0.0, min(due, none_since + self._start_timeout) - now)):
                await self._changed.wait()

    def _release(self, slot: ActorSlot) -> None:
        """Free a place of an actor."""
        slot.attempt_count -= 1
        self._changed.set()

    async def _call(self, slot: ActorSlot, method: str, *args: Any) -> Any:
        """Call an actor method and return its result; the call may be repeated.

        Raises:
            WorkerLostError: the actor is gone.
        """
        errors = self._ray.exceptions
        until = inf
        while True:
            if slot.is_gone:
                raise WorkerLostError("the actor that had this attempt is gone")
            try:
                return await await_future(getattr(slot.actor, method).remote(*args).future())
            except errors.RayTaskError:
                raise  # a bug of pilothouse
            except errors.ActorUnavailableError as error:
                until = min(until, anyio.current_time() + UNAVAILABLE_SECONDS)
                if anyio.current_time() >= until:
                    await self._discard(slot)
                    raise WorkerLostError(
                        f"the actor that had this attempt is out of reach: {shorten_error(error)}"
                    ) from None
            except errors.RayError as error:
                await self._discard(slot)
                raise WorkerLostError(f"the actor that had this attempt is gone: {shorten_error(error)}") from None
            await anyio.sleep(RETRY_SECONDS)

    async def _discard(self, slot: ActorSlot) -> None:
        """Kill the actor of a slot, unless it is gone; another one is started in its place."""
        if not slot.is_gone:
            slot.is_gone, slot.is_ready = True, False
            self._changed.set()
            with anyio.CancelScope(shield=True):
                await self._kill(slot)

    async def _kill(self, slot: ActorSlot) -> None:
        if slot.actor is not None:
            with suppress(self._ray.exceptions.RayError):
                await await_future(RAY_CONNECTION.submit(self._ray.kill, slot.actor))

    # Starting actors.

    def _make_no_actor_error(self) -> RemoteError:
        fault = next((slot.start_error for slot in self._slots if slot.start_error is not None), None)
        why = "the cluster lacks the resources of actor_options (`ray status`)"
        why = why if fault is None else shorten_error(fault)
        return RemoteError(f"no actor could be started: {why}", code="unreachable")

    async def _refresh_slots(self) -> None:
        """Check which actors have started, and start one in each empty slot, unless its retry delay still runs."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        for slot in self._slots:
            if slot.ready_future is not None and slot.ready_future.done():
                first_word, slot.ready_future = slot.ready_future, None
                self._on_started(slot, first_word)
        for index, slot in enumerate(self._slots):
            if slot.is_gone and slot.retry_at <= anyio.current_time():
                new = self._slots[index] = replace(slot, actor=None, ready_future=None, is_gone=False, attempt_count=0)
                with anyio.CancelScope(shield=True):  # a created actor that is not recorded would never end
                    await self._start_actor(new)

    async def _start_actor(self, slot: ActorSlot) -> None:
        try:
            slot.actor, ready_future = await await_future(RAY_CONNECTION.submit(self._create_actor))
        except Exception as error:  # noqa: BLE001 - raised if no actor starts
            self._on_failed(slot, error)
            return
        slot.ready_future, call = ready_future, make_loop_caller()
        ready_future.add_done_callback(lambda _: call(lambda: self._changed.set()))  # the event of then

    def _create_actor(self) -> tuple[Any, Future[str]]:
        """Create an actor. Runs in the thread of the connection, because it may take a while."""
        actor = self._actor_class.remote(self._payload, self._ray.cloudpickle.dumps)
        return actor, actor.ready.remote().future()

    def _on_started(self, slot: ActorSlot, ready_future: Future[str]) -> None:
        """Handle the end of an actor's start: success or failure."""
        if (error := ready_future.exception()) is not None:
            self._on_failed(slot, error)
        elif (there := ready_future.result()) != __version__:
            text = f"pilothouse is {__version__} here and {there} on the cluster; install the same on both"
            self._on_failed(slot, UsageError(text))
        else:
            slot.is_ready, slot.start_error = True, None

    def _on_failed(self, slot: ActorSlot, error: BaseException) -> None:
        log.warning("an actor has not started: %s", shorten_error(error))
        slot.is_gone, slot.start_error, slot.retry_at = True, error, anyio.current_time() + START_RETRY_SECONDS


# Serialization.


def _pickle_runner(ray: Any, agent: Any) -> bytes:
    if not isinstance(agent, Agent) and not hasattr(agent, "run"):
        raise UsageError(f"expected an Agent or a Runner, got {type(agent).__name__}")
    runner = AgentRunner(agent) if isinstance(agent, Agent) else agent
    try:
        return ray.cloudpickle.dumps(runner)
    except Exception as error:
        if isinstance(agent, Agent):
            _raise_for_unpicklable(ray, agent.options.as_dict())
        raise UsageError(f"this {type(agent).__name__} cannot be sent to a cluster: {shorten_error(error)}") from error


def _pickle_attempt(ray: Any, attempt: Attempt, expected: OutputSchema | None) -> bytes:
    """Pickle an attempt. Of its output type only the schema is sent: the class may exist only here."""
    order = {
        "key": attempt.key,
        "prompt": attempt.prompt,
        "settings": dict(attempt.settings),
        "output_type": None if expected is None else dict(expected.schema),
        "session_id": attempt.session_id,
        "max_budget_usd": attempt.max_budget_usd,
        "keeps_messages": attempt.keeps_messages,
    }
    try:
        return ray.cloudpickle.dumps(order)
    except Exception as error:
        _raise_for_unpicklable(ray, attempt.settings)
        raise UsageError(f"the prompt of run {attempt.key!r} cannot be sent: {shorten_error(error)}") from error


def _raise_for_unpicklable(ray: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        try:
            ray.cloudpickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"option {name!r} cannot be sent to a cluster: {shorten_error(error)}; a class made at runtime, or an "
                "object that has a connection, a lock or a file, can be made in a module that the nodes have"
            ) from error


def _decode_answer(answer: QueryResult, expected: OutputSchema | None) -> QueryResult:
    """Convert the output of an answer to the type that the caller expects."""
    if expected is not None and answer.is_success:
        try:
            answer.output, answer.structured = expected.read(answer.result)
        except StructuredOutputError as error:
            answer.error = error
    return answer


def _validate_address(address: Any) -> str | None:
    if address is not None and not isinstance(address, str):
        raise UsageError(f"address: expected host:port, got {type(address).__name__}")
    if address is not None and "://" in address:
        raise UsageError(f"address: expected host:port of the cluster itself, not of a Ray client: {address}")
    return address


def _validate_options(actor_options: Any) -> dict[str, Any]:
    if actor_options is not None and not isinstance(actor_options, Mapping):
        raise UsageError(f"actor_options: expected a mapping, got {type(actor_options).__name__}")
    options = dict(cast("Mapping[str, Any]", actor_options or {}))
    if taken := [name for name in RESERVED_ACTOR_OPTIONS if name in options]:
        raise UsageError(f"actor_options: {taken[0]!r} is set by the runner itself")
    return options
