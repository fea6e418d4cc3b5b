"""`RayRunner`: attempts are made in actors of a Ray cluster, and heard here.

Owns what travels of an agent and of an attempt, and how the messages and the end of an attempt come back. What an actor
does is in `attempt_host.py`; how there are actors at all, in `actors.py`.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

import anyio

from pilothouse.client import Agent, QueryResult, default_agent
from pilothouse.client.output import ExpectedOutput
from pilothouse.errors import StructuredOutputError, UsageError, WorkerLostError
from pilothouse.fleet.checking import checked_count
from pilothouse.fleet.on_ray.actors import Actors, Worker
from pilothouse.fleet.on_ray.attempt_host import unpacked
from pilothouse.fleet.on_ray.cluster import brief, imported_ray
from pilothouse.fleet.runner import AgentRunner, Attempt, Runner

log = logging.getLogger("pilothouse.fleet")

ACTOR_OPTIONS: Mapping[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
"""What an actor asks of the cluster, unless told otherwise."""
OWN_ACTOR_OPTIONS = ("lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name", "num_returns")
"""What the runner sets itself, or could not work with."""

END_SECONDS = 20.0
"""What an actor has to end an attempt, its child included; then the actor is killed."""
BEGIN_TRIES = 5
"""At so many actors an attempt is tried that are gone before they have begun it."""


class RayRunner:
    """Makes attempts in actors of a Ray cluster; needs `pilothouse[ray]`.

    ::

        runner = RayRunner(Agent(model="sonnet"), actors=16, concurrency_per_actor=4)
        async with Fleet(runner=runner, concurrency=64, journal="runs.db") as fleet:
            ...

    A fleet enters and leaves it; without a fleet it is an `async with` block itself. An actor that dies is replaced,
    and what it was doing raises `WorkerLostError`, which a fleet takes as an interruption. pilothouse, in the same
    version, and the CLI have to be there on the nodes.

    Args:
        agent: whose settings hold for all runs, or a `Runner` that is to work in the actors; None: the default agent.
            It is pickled here and now, functions included, and the keys in it travel inside Ray.
        address: of the cluster, as `host:port`; None: what `RAY_ADDRESS` says or what runs on this machine, else a
            cluster of this machine alone is started; "local": the latter in any case. A process that is connected to
            Ray stays so; one that was not is disconnected at the end.
        actors: how many to have.
        concurrency_per_actor: how many attempts each has at the same time; others wait here.
        actor_options: what Ray is asked for each actor, such as num_cpus, resources or runtime_env.
        start_timeout: how long to wait for an actor while there is none, in seconds.

    Raises:
        UsageError: Ray is not installed, or something cannot be pickled, which is named.
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
        self._ray = imported_ray()
        agent = default_agent() if agent is None else agent
        self.agent = agent if isinstance(agent, Agent) else None
        self._actors = Actors(
            self._ray,
            _checked_address(address),
            checked_count("actors", actors),
            checked_count("concurrency_per_actor", concurrency_per_actor),
            {**ACTOR_OPTIONS, **_checked_options(actor_options)},
            _packed_runner(self._ray, agent),
            start_timeout,
        )

    async def __aenter__(self) -> Self:
        await self._actors.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._actors.leave()

    async def run(self, attempt: Attempt) -> QueryResult:
        """See `Runner`.

        Raises:
            UsageError: an option of the attempt cannot be pickled, or not be read where it is to run.
            WorkerLostError: the actor that had it is gone.
            RemoteError: the cluster has no room for an actor, or none starts.
        """
        expected = None if attempt.output_type is None else ExpectedOutput.of_type(attempt.output_type)
        order = _packed_order(self._ray, attempt, expected)
        for _ in range(BEGIN_TRIES):
            worker = await self._actors.seat()
            try:
                if await self._is_there(worker):
                    return _typed(await self._made_at(worker, attempt, order), expected)
            finally:
                self._actors.stand_up(worker)
        raise WorkerLostError(f"{BEGIN_TRIES} actors were gone before they could begin; see the logs of Ray")

    async def _is_there(self, worker: Worker) -> bool:
        """Whether an actor still answers: one that died while it had nothing to do has begun nothing."""
        try:
            await self._actors.call(worker, "ready")
        except WorkerLostError:
            return False
        return True

    async def _made_at(self, worker: Worker, attempt: Attempt, order: bytes) -> QueryResult:
        name = uuid4().hex
        try:
            await self._actors.call(worker, "begin", name, order)
            attempt.interrupt = partial(self._interrupt, worker, name)
            taken, end = 0, None
            while end is None:
                said, end = await self._actors.call(worker, "more", name, taken)
                for message in pickle.loads(said):  # noqa: S301 - of our own actor
                    await attempt.heard(message)
                    taken += 1
            return unpacked(end, attempt)
        finally:
            await self._end(worker, name)

    async def _interrupt(self, worker: Worker, name: str) -> None:
        with suppress(WorkerLostError):  # `run` says so
            await self._actors.call(worker, "interrupt", name)

    async def _end(self, worker: Worker, name: str) -> None:
        if worker.is_gone:
            return
        with anyio.move_on_after(END_SECONDS, shield=True) as limit, suppress(WorkerLostError):
            await self._actors.call(worker, "end", name)
        if limit.cancelled_caught:
            log.warning("an actor has not ended an attempt within %.0f s; it is killed", END_SECONDS)
            await self._actors.lose(worker)


# What travels.


def _packed_runner(ray: Any, given: Any) -> bytes:
    if not isinstance(given, Agent) and not hasattr(given, "run"):
        raise UsageError(f"expected an Agent or a Runner, got {type(given).__name__}")
    runner = AgentRunner(given) if isinstance(given, Agent) else given
    try:
        return ray.cloudpickle.dumps(runner)
    except Exception as error:
        if isinstance(given, Agent):
            _name_culprit(ray, given.options.as_dict())
        raise UsageError(f"this {type(given).__name__} cannot be sent to a cluster: {brief(error)}") from error


def _packed_order(ray: Any, attempt: Attempt, expected: ExpectedOutput | None) -> bytes:
    """An attempt without what stays here: of its type only the schema goes, as the class may be known only here."""
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
        _name_culprit(ray, attempt.settings)
        raise UsageError(f"the prompt of run {attempt.key!r} cannot be sent: {brief(error)}") from error


def _name_culprit(ray: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        try:
            ray.cloudpickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"option {name!r} cannot be sent to a cluster: {brief(error)}; what is made from a type or holds a "
                "connection, a lock or a file can be made in a module that is there on the nodes"
            ) from error


def _typed(answer: QueryResult, expected: ExpectedOutput | None) -> QueryResult:
    """The answer, with its output as the type that was asked for here."""
    if expected is not None and answer.is_success:
        try:
            answer.output, answer.structured = expected.read(answer.result)
        except StructuredOutputError as error:
            answer.error = error
    return answer


def _checked_address(address: Any) -> str | None:
    if address is not None and not isinstance(address, str):
        raise UsageError(f"address: expected host:port, got {type(address).__name__}")
    if address is not None and "://" in address:
        raise UsageError(f"address: expected host:port of the cluster itself, not of a Ray client: {address}")
    return address


def _checked_options(given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"actor_options: expected a mapping, got {type(given).__name__}")
    options = dict(cast("Mapping[str, Any]", given or {}))
    if taken := [name for name in OWN_ACTOR_OPTIONS if name in options]:
        raise UsageError(f"actor_options: {taken[0]!r} is set by the runner itself")
    return options
