"""`RayRunner`: executes attempts in actors of a Ray cluster.

Owns the connection to Ray, the actors, and the transfer of attempts and answers. Ray places the actors, starts them
again when they or their nodes die, and cancels what they do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import inf
from typing import Any, Self, TypeVar
from uuid import uuid4

import anyio
from anyio import get_cancelled_exc_class

from pilothouse import __version__
from pilothouse.client import Agent, OutputSchema, QueryResult, default_agent
from pilothouse.errors import (
    PilothouseError,
    RemoteError,
    SessionClosedError,
    StructuredOutputError,
    UsageError,
    WorkerLostError,
)
from pilothouse.support import LoopCondition, make_loop_caller
from pilothouse_fleet.limits import validate_count
from pilothouse_fleet.runner import AgentRunner, Attempt, Runner, make_runner_context

T = TypeVar("T")
PickleFunction = Callable[[Any], bytes]

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
            cluster = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", cluster):
                raise UsageError(f"this process is connected to Ray at {cluster}, not {address}")
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

# In an actor.

SENT = ("key", "prompt", "settings", "session_id", "is_resumed", "max_budget_usd", "keeps_messages")
SENT_BACK = ("artifacts", "is_asked", "requests", "session_id")
"""The fields of an attempt that travel to the actor, and back."""
EXIT_SECONDS = 5.0
"""Seconds for an actor's process to exit once its main thread has ended."""


class AttemptHost:
    """The class of the actors: executes attempts with a pickled runner. `dumps` pickles answers.

    Its process exits soon after its main thread. Without that it may stay for ever when the program of the actor is
    killed: the main thread then waits for a thread of Ray's that no longer exists (seen with Ray 2.60 on Python 3.11).
    """

    def __init__(self, runner: bytes, dumps: PickleFunction = pickle.dumps) -> None:
        self._pickled_runner = runner
        self._dumps = dumps
        self._runner: Runner | None = None
        self._load_lock = asyncio.Lock()
        self._attempts: dict[str, Attempt] = {}
        threading.Thread(target=_exit_after_main_thread, name="pilothouse actor", daemon=True).start()

    async def ready(self) -> str:
        """Return the version of pilothouse in this process."""
        return __version__

    async def run(self, name: str, pickled_attempt: bytes) -> bytes:
        """Execute an attempt under a unique name; return the bytes for `unpickle_answer`."""
        scope = anyio.CancelScope()  # a cancelled asyncio task would not respect shields

        async def run_attempt() -> bytes:
            with scope:
                return await self._run_attempt(name, pickled_attempt)
            return b""  # nobody reads it any more

        task = asyncio.create_task(run_attempt())
        try:
            return await asyncio.shield(task)
        finally:
            scope.cancel()
            await asyncio.wait([task])
            self._attempts.pop(name, None)

    async def interrupt(self, name: str) -> None:
        """Interrupt an attempt gracefully, if it still runs."""
        attempt = self._attempts.get(name)
        if attempt is not None and attempt.interrupt is not None:
            with suppress(PilothouseError):  # the attempt ends anyway and reports its error
                await attempt.interrupt()

    async def _run_attempt(self, name: str, pickled_attempt: bytes) -> bytes:
        """Return the answer or the error, and what the runner has set in the attempt, as bytes."""
        answer: QueryResult | None = None
        failure: Exception | None = None
        attempt: Attempt | None = None
        try:
            runner = await self._load_runner()
            attempt = self._attempts[name] = Attempt(**_load(pickled_attempt))
            answer = await runner.run(attempt)
            answer.callback_errors = [self._make_picklable(each) for each in answer.callback_errors]
        except Exception as error:  # noqa: BLE001 - raised in the calling process
            failure = self._make_picklable(error)
        facts = {} if attempt is None else {name: getattr(attempt, name) for name in SENT_BACK}
        try:
            return self._dumps((answer, failure, facts))
        except Exception as error:  # noqa: BLE001 - an output may be anything
            text = f"the answer cannot be sent from where it was made: {type(error).__name__}: {error}"
            return self._dumps((None, PilothouseError(text), facts))

    def _make_picklable(self, error: Exception) -> Exception:
        try:
            pickle.loads(self._dumps(error))  # noqa: S301 - our own; some errors pickle and do not unpickle
        except Exception:  # noqa: BLE001 - pickling may raise anything
            return PilothouseError(f"{type(error).__name__}: {error}")
        return error

    async def _load_runner(self) -> Runner:
        async with self._load_lock:
            if self._runner is None:
                runner: Runner = _load(self._pickled_runner)
                await make_runner_context(runner).__aenter__()  # exited when the process ends
                self._runner = runner
        return self._runner


def _exit_after_main_thread() -> None:
    threading.main_thread().join()
    time.sleep(EXIT_SECONDS)
    os._exit(0)


def _load(pickled: bytes) -> Any:
    try:
        return pickle.loads(pickled)  # noqa: S301 - from the process we work for
    except Exception as error:
        text = f"what the attempt needs cannot be loaded where it is to run: {type(error).__name__}: {error}"
        raise UsageError(text) from error


def unpickle_answer(end: bytes, attempt: Attempt) -> QueryResult:
    """Unpickle the answer of an attempt, or raise its error, as `AttemptHost.run` returned it."""
    answer, failure, facts = pickle.loads(end)  # noqa: S301 - from our own actor
    for name, value in facts.items():
        setattr(attempt, name, value)
    if failure is not None:
        raise failure
    return answer


# In the program.

ACTOR_OPTIONS: Mapping[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": -1}
"""Default Ray options of an actor."""
RESERVED_ACTOR_OPTIONS = ("lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name", "num_returns")
"""Options that the runner sets itself or that would break it."""
END_SECONDS = 20.0
"""Seconds for an actor to end an attempt and its process; then the actor is killed."""


class RayRunner:
    """Executes attempts in actors of a Ray cluster; needs `pilothouse[ray]`.

    ::

        runner = RayRunner(Agent(model="sonnet"), actors=16, concurrency_per_actor=4)
        async with Fleet(runner=runner, concurrency=64, journal="runs.db") as fleet:
            ...

    A fleet enters and leaves the runner; without a fleet, use it with `async with`. Ray restarts an actor that dies;
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
        options = {**ACTOR_OPTIONS, **(actor_options or {})}
        if taken := [name for name in RESERVED_ACTOR_OPTIONS if name in (actor_options or {})]:
            raise UsageError(f"actor_options: {taken[0]!r} is set by the runner itself")
        self._payload = _pickle_runner(self._ray, agent)
        self._start_timeout = start_timeout
        try:
            limit = 3 * self._attempts_per_actor + 8  # attempts, their interrupts, and `ready`
            self._actor_class = self._ray.remote(AttemptHost).options(**options, max_concurrency=limit)
        except (TypeError, ValueError) as error:
            raise UsageError(f"actor_options: {shorten_error(error)}") from error
        self._actors: list[Any] = []
        self._free: list[int] = []  # places of each actor that answers
        self._busy_count = 0
        self._start_errors: dict[int, BaseException] = {}  # of actors that will never start
        self._users = 0
        self._enter_lock = anyio.Lock()
        self._changed = LoopCondition()

    # Entering and leaving.

    async def __aenter__(self) -> Self:
        """Return when there is an actor.

        Raises:
            RemoteError: there is no cluster, or no actor starts.
            UsageError: another cluster is in use, or it has another version of pilothouse.
        """
        self._users += 1
        if self._users == 1:  # possibly in another event loop than before
            self._enter_lock, self._changed = anyio.Lock(), LoopCondition()
        try:
            async with self._enter_lock:
                if not self._actors:
                    await self._start_actors()
        except BaseException:
            self._users -= 1
            raise
        return self

    async def _start_actors(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await await_future(RAY_CONNECTION.submit(RAY_CONNECTION.connect, self._ray, self._address))
                make = partial(self._actor_class.remote, self._payload, self._ray.cloudpickle.dumps)
                self._actors = await await_future(RAY_CONNECTION.submit(lambda: [make() for _ in range(self._count)]))
            self._free, self._start_errors = [0] * self._count, {}
            for number in range(self._count):
                self._wait_for_actor(number, self._attempts_per_actor)
            number = await self._take_place()
            self._busy_count -= 1
            self._add_places(number, 1)
        except BaseException:
            await self._stop_actors()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            await self._stop_actors()

    async def _stop_actors(self) -> None:
        actors, self._actors = self._actors, []

        def stop() -> None:
            for actor in actors:
                self._ray.kill(actor)
            RAY_CONNECTION.disconnect(self._ray)

        with anyio.CancelScope(shield=True):
            await await_future(RAY_CONNECTION.submit(stop))

    # Attempts.

    async def run(self, attempt: Attempt) -> QueryResult:
        """Execute an attempt; see `Runner`.

        Raises:
            UsageError: an option of the attempt cannot be pickled, or cannot be unpickled in the actor.
            WorkerLostError: the actor is gone.
            RemoteError: the cluster has no capacity for an actor, or none starts.
        """
        attempt.is_asked = False
        expected = None if attempt.output_type is None else OutputSchema.from_type(attempt.output_type)
        order = _pickle_attempt(self._ray, attempt, expected)
        answer: QueryResult | None = None
        while answer is None:
            number = await self._take_place()
            is_there = False
            try:
                is_there = await self._is_alive(number)
                if is_there:
                    answer = await self._run_in_actor(number, attempt, order)
            except WorkerLostError:
                is_there = False
                raise
            finally:
                self._busy_count -= 1
                if is_there:
                    self._add_places(number, 1)
                else:
                    self._wait_for_actor(number, 1)
        if expected is not None and answer.is_success:
            try:
                answer.output, answer.structured = expected.read(answer.result)
            except StructuredOutputError as error:
                answer.error = error
        return answer

    async def _run_in_actor(self, number: int, attempt: Attempt, pickled_attempt: bytes) -> QueryResult:
        name = uuid4().hex
        attempt.is_asked = True
        end = self._actors[number].run.remote(name, pickled_attempt)
        attempt.interrupt = partial(self._interrupt, number, name)
        try:
            return unpickle_answer(await self._get(end), attempt)
        except get_cancelled_exc_class():
            with anyio.move_on_after(END_SECONDS, shield=True) as limit, suppress(self._ray.exceptions.RayError):
                self._ray.cancel(end)
                await await_future(end.future())  # its child has ended then
            if limit.cancelled_caught:
                log.warning("an actor has not ended an attempt within %.0f s; it is killed", END_SECONDS)
                self._ray.kill(self._actors[number], no_restart=False)
            raise

    async def _is_alive(self, number: int) -> bool:
        """Whether an actor answers; an idle actor that died has begun nothing, so another one can be tried."""
        with suppress(WorkerLostError):
            await self._call(number, "ready")
            return True
        return False

    async def _interrupt(self, number: int, name: str) -> None:
        with suppress(WorkerLostError):  # `run` raises it
            await self._call(number, "interrupt", name)

    async def _call(self, number: int, method: str, *args: Any) -> None:
        await self._get(getattr(self._actors[number], method).remote(*args))

    async def _get(self, promise: Any) -> Any:
        """Wait for what an actor returns."""
        try:
            return await await_future(promise.future())
        except self._ray.exceptions.RayTaskError:
            raise  # a bug of pilothouse
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError(f"the actor that had this attempt is gone: {shorten_error(error)}") from None

    # Places: each actor has `concurrency_per_actor`.

    async def _take_place(self) -> int:
        """Take a place of the actor that has most of them; return the number of the actor.

        Raises:
            RemoteError: there has been no actor for `start_timeout`, or none will ever start.
            SessionClosedError: the runner was not entered.
        """
        while True:
            if not self._actors:
                raise SessionClosedError("a RayRunner works in its block, or in that of its fleet: async with …")
            number = max(range(self._count), key=self._free.__getitem__)
            if self._free[number]:
                self._free[number] -= 1
                self._busy_count += 1
                return number
            is_lost = len(self._start_errors) == self._count
            with anyio.move_on_after(inf if self._busy_count else self._start_timeout) as limit:
                if not is_lost:
                    await self._changed.wait()
            if is_lost or limit.cancelled_caught:
                why = "the cluster lacks the resources of actor_options (`ray status`)"
                why = next(map(shorten_error, self._start_errors.values()), why)
                raise RemoteError(f"no actor could be started: {why}", code="unreachable")

    def _add_places(self, number: int, count: int) -> None:
        self._free[number] += count
        self._changed.notify_all()

    def _wait_for_actor(self, number: int, count: int) -> None:
        """Make places of an actor free once it answers: Ray is about to start it, or to start it again."""
        if not (actors := self._actors):
            return
        call = make_loop_caller()
        answer: Future[str] = actors[number].ready.options(max_task_retries=-1).remote().future()
        answer.add_done_callback(lambda _: call(lambda: self._on_answer(actors, number, count, answer)))

    def _on_answer(self, actors: list[Any], number: int, count: int, answer: Future[str]) -> None:
        if actors is not self._actors:  # the runner was left
            return
        error = answer.exception()
        if error is None and (version := answer.result()) != __version__:
            text = f"pilothouse is {__version__} here and {version} on the cluster; install the same on both"
            error = UsageError(text)
        if error is not None:
            log.warning("an actor has not started: %s", shorten_error(error))
            self._start_errors[number] = error
            count = 0
        self._add_places(number, count)


# Serialization.


def _pickle_runner(ray: Any, agent: Any) -> bytes:
    if not isinstance(agent, Agent) and not hasattr(agent, "run"):
        raise UsageError(f"expected an Agent or a Runner, got {type(agent).__name__}")
    if isinstance(agent, Agent):
        return _pickle(ray, AgentRunner(agent), agent.options.as_dict(), "this Agent")
    return _pickle(ray, agent, {}, f"this {type(agent).__name__}")


def _pickle_attempt(ray: Any, attempt: Attempt, expected: OutputSchema | None) -> bytes:
    """Pickle an attempt. Of its output type only the schema is sent: the class may exist only here."""
    order = {name: getattr(attempt, name) for name in SENT}
    order["output_type"] = None if expected is None else dict(expected.schema)
    return _pickle(ray, order, attempt.settings, f"the prompt of run {attempt.key!r}")


def _pickle(ray: Any, value: Any, settings: Mapping[str, Any], name: str) -> bytes:
    """Pickle `value`; the error names the option of `settings` that cannot be pickled, or else `name`."""
    try:
        return ray.cloudpickle.dumps(value)
    except Exception as error:
        for option, given in settings.items():
            _pickle(ray, given, {}, f"option {option!r}")
        raise UsageError(
            f"{name} cannot be sent to a cluster: {shorten_error(error)}; a class made at runtime, or an object that "
            "has a connection, a lock or a file, can be made in a module that the nodes have"
        ) from error


def _validate_address(address: Any) -> str | None:
    if address is not None and (not isinstance(address, str) or "://" in address):
        raise UsageError(f"address: expected host:port of the cluster itself, not of a Ray client: {address}")
    return address
