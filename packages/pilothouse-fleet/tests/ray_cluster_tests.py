"""Attempts on a real Ray cluster. `test_ray_runner.py` runs this file in its own process, as Ray leaves threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
import runner_suite
from anyio import to_thread
from ray_clusters import ENVIRONMENT, MARK, Cluster, started
from runner_suite import RunnerSuite, make_attempt, make_waiting_cli, wait_all_exited, wait_asked

import pilothouse_fleet.sync
from pilothouse.client import Agent
from pilothouse.errors import RemoteError, SessionClosedError, UsageError
from pilothouse_fleet import Attempt, Fleet, RayRunner, Runner, SqliteJournal
from pilothouse_fleet.ray_runner import RAY_CONNECTION
from pilothouse_fleet.run import RunState
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio

ray: Any = import_module("ray")  # which type checkers do without
ray.cloudpickle.register_pickle_by_value(runner_suite)  # the actors do not have it
LIMIT = 120.0
SMALL = {"num_cpus": 0}


ON_TRIO = {
    "test_an_answer_comes", "test_an_interrupt_stops_it_in_order", "test_cancelling_at_any_moment_leaves_no_child",
    "test_many_at_once_are_not_mixed_up", "test_the_runs_of_an_actor_that_dies_go_on",
}  # fmt: skip
"""Each test needs an actor of its own, which takes its time: so each runs once, those that wait the hardest here."""


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return "trio" if request.node.originalname in ON_TRIO else "asyncio"


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    os.environ.update(ENVIRONMENT)
    with started() as cluster:
        RAY_CONNECTION.submit(partial(RAY_CONNECTION.connect, ray, cluster.address)).result()  # once for all tests
        try:
            yield cluster
        finally:
            RAY_CONNECTION.submit(partial(RAY_CONNECTION.disconnect, ray)).result()
    until = time.monotonic() + LIMIT
    while (left := cluster.processes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


class TestRayRunner(RunnerSuite):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Cluster) -> None:
        self.address = cluster.address

    def make_runner(self, agent: Agent) -> Runner:
        return RayRunner(agent, address=self.address, concurrency_per_actor=16, actor_options=SMALL)


# --- what dies -------------------------------------------------------------------------------------------------------


def patient(child: Any) -> None:
    """Says who it is, and answers when it is resumed; else it waits until its input ends."""
    [(flag, session)] = [word.split("=") for word in child.argv if word.startswith(("--session-id=", "--resume="))]
    child.expect("user")
    child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332", "session_id": session})
    if flag != "--resume":
        child.expect("user")
    child.emit({"type": "result", "subtype": "success", "is_error": False, "result": session, "session_id": session})


def actors_of(runner: RayRunner) -> list[Any]:
    return runner._actors


def kill_process(actor: Any) -> None:
    call = actor.__ray_call__.options(max_task_retries=-1)  # it may be about to start again
    os.kill(ray.get(call.remote(lambda self: __import__("os").getpid())), signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_process, partial(ray.kill, no_restart=False)])
async def test_the_runs_of_an_actor_that_dies_go_on(cluster: Cluster, kill: Callable[[Any], None]) -> None:
    with FakeCLI.from_function(patient) as fake, anyio.fail_after(LIMIT):
        runner = RayRunner(Agent(cli=fake.path), concurrency_per_actor=4, actor_options=SMALL)
        async with Fleet(runner=runner, concurrency=4) as fleet:
            for n in range(4):
                await fleet.submit(f"prompt {n}", key=n)
            await wait_asked(fake, 4)
            sessions = {run.key: run.session_id for run in fleet.running}
            [actor] = actors_of(runner)
            await to_thread.run_sync(kill, actor)
            runs = [await fleet.wait(str(n)) for n in range(4)]
            await wait_all_exited(fake.calls[:4])
        assert len(fake.calls) == 8
    assert {run.key: run.text for run in runs} == sessions
    assert {(run.state, run.attempts, run.failures) for run in runs} == {("succeeded", 2, 0)}


async def test_actors_are_killed_again_and_again_and_every_run_has_one_result(cluster: Cluster, tmp_path: Path) -> None:
    count, kills = 60, 0
    journal = tmp_path / "runs.db"
    reported: Counter[str] = Counter()
    with FakeCLI().text("Hello") as fake, anyio.fail_after(LIMIT):
        runner = RayRunner(Agent(cli=fake.path), actors=2, concurrency_per_actor=3, actor_options=SMALL)
        async with Fleet(runner=runner, concurrency=6, journal=journal) as fleet:
            async for run in fleet.map([f"prompt {n}" for n in range(count)], key=lambda prompt: prompt.split()[-1]):
                assert run.state == "succeeded"
                reported[run.key] += 1
                if reported.total() in (10, 25, 40):
                    await to_thread.run_sync(kill_process, actors_of(runner)[0])
                    kills += 1
            status = await fleet.status()
        assert (kills, reported.total(), len(reported)) == (3, count, count)
        assert (status.succeeded, status.failed, status.left) == (count, 0, 0)
        before = len(fake.calls)
        async with Fleet(Agent(cli=fake.path), journal=journal) as fleet:  # nothing is left to do
            assert len(await fleet.gather(range(count), key=str, prompt=lambda n: f"prompt {n}")) == count
        assert len(fake.calls) == before


PROGRAM = """
import sys, anyio
from pilothouse.client import Agent
from pilothouse_fleet import Fleet, RayRunner

async def main():
    cli, address = sys.argv[1:]
    runner = RayRunner(Agent(cli=cli), address=address, actor_options={"num_cpus": 0})
    async with Fleet(runner=runner) as fleet:
        async for run in fleet.map(["a", "b", "c"]):
            print(run.text, flush=True)

anyio.run(main)
import ray
assert not ray.is_initialized()
"""


def test_a_program_that_is_killed_leaves_nothing(cluster: Cluster) -> None:
    with make_waiting_cli() as fake:
        command = [sys.executable, "-c", PROGRAM, fake.path, cluster.address]
        with subprocess.Popen(command) as program:
            _wait_until(lambda: len(fake.calls) == 3)
            program.kill()
        anyio.run(wait_all_exited, fake.calls)
        _wait_until(lambda: not any("AttemptHost" in line for line in cluster.processes()))


def test_a_cluster_of_its_own_comes_and_goes() -> None:
    mark = Cluster("", uuid4().hex)
    # Short: the path of a socket has 100 characters at most.
    with (
        FakeCLI().text("Hello") as fake,
        tempfile.TemporaryDirectory(prefix="ph-", ignore_cleanup_errors=True) as place,
    ):
        environment = {**os.environ, **mark.environment, "RAY_TMPDIR": place}
        environment.pop("RAY_ADDRESS", None)
        command = [sys.executable, "-W", "error", "-c", PROGRAM, fake.path, "local"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout) == (0, "Hello\n" * 3), done.stderr
    _wait_until(lambda: not mark.processes())


def _wait_until(there: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT
    while not there():
        assert time.monotonic() < until
        time.sleep(0.02)


# --- what cannot be --------------------------------------------------------------------------------------------------


def only_here(request: Any) -> bool:
    return True


async def test_what_is_not_there_on_the_cluster_is_named(cluster: Cluster) -> None:
    only_here.__module__ = "a_module_of_here"
    sys.modules["a_module_of_here"] = type(sys)("a_module_of_here")
    sys.modules["a_module_of_here"].only_here = only_here  # type: ignore[attr-defined]
    async with RayRunner(Agent(can_use_tool=only_here), actor_options=SMALL) as runner:
        with pytest.raises(UsageError, match=r"cannot be loaded where it is to run.*a_module_of_here"):
            await runner.run(make_attempt())


async def test_no_room_in_the_cluster(cluster: Cluster) -> None:
    runner = RayRunner(Agent(), actor_options={"num_cpus": 1000}, start_timeout=0.5)
    with pytest.raises(RemoteError, match="lacks the resources of actor_options") as caught:
        await runner.__aenter__()
    assert caught.value.code == "unreachable"
    with pytest.raises(SessionClosedError, match="in its block"):
        await runner.run(make_attempt())


async def test_one_process_is_in_one_cluster(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"connected to Ray at .*, not 192\.0\.2\.9:1"):
        await RayRunner(Agent(), address="192.0.2.9:1").__aenter__()


async def test_two_fleets_may_use_one_runner(cluster: Cluster) -> None:
    with FakeCLI().text("Hello") as fake, anyio.fail_after(LIMIT):
        async with RayRunner(Agent(cli=fake.path), actor_options=SMALL) as runner:
            for _ in range(2):
                async with Fleet(runner=runner) as first, Fleet(runner=runner) as second:
                    both = [*await first.gather(["a"]), *await second.gather(["b"])]
                assert [run.text for run in both] == ["Hello", "Hello"]
            assert (await runner.run(make_attempt())).text == "Hello"


def test_from_plain_code(cluster: Cluster) -> None:
    with FakeCLI().text("Hello") as fake:
        runner = RayRunner(Agent(cli=fake.path), actor_options=SMALL)
        with pilothouse_fleet.sync.Fleet(runner=runner) as fleet:
            assert [run.text for run in fleet.map(["a", "b"])] == ["Hello", "Hello"]


async def test_no_key_in_what_is_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-of-the-suite-1234567890"
    with FakeCLI().expect("user").stderr("it broke\n").exit(3) as fake, anyio.fail_after(LIMIT):
        async with RayRunner(Agent(cli=fake.path, api_key=key, retry=0), actor_options=SMALL) as runner:
            with pytest.raises(Exception, match="it broke") as caught:
                await runner.run(make_attempt())
            await to_thread.run_sync(kill_process, actors_of(runner)[0])
            with pytest.raises(Exception, match="it broke"):  # at another actor
                await runner.run(make_attempt())
        assert {call.env["ANTHROPIC_API_KEY"] for call in fake.calls} == {key}
    assert key not in caplog.text + repr(runner) + repr(caught.value) + str(caught.value.__dict__)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"can_use_tool": partial(print, threading.Lock())}, "can_use_tool"),
        ({"env": {"A": "b"}, "stderr": threading.Lock().__enter__}, "stderr"),
    ],
)
def test_what_cannot_be_pickled_is_named(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"option '{name}' cannot be sent to a cluster"):
        RayRunner(Agent(**settings))


async def test_what_cannot_be_pickled_of_a_run_is_named(cluster: Cluster) -> None:
    asked = Attempt("a", "prompt", {"stderr": threading.Lock().__enter__})
    async with RayRunner(Agent(), actor_options=SMALL) as runner:
        with pytest.raises(UsageError, match="option 'stderr' cannot be sent"):
            await runner.run(asked)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agent": "me"}, "expected an Agent or a Runner, got str"),
        ({"address": "ray://host:10001"}, "not of a Ray client"),
        ({"actors": 0}, "actors is a whole number of at least 1"),
        ({"concurrency_per_actor": True}, "concurrency_per_actor is a whole number"),
        ({"actor_options": {"max_restarts": 3}}, "'max_restarts' is set by the runner itself"),
        ({"actor_options": {"cpus": 3}}, "actor_options: .*cpus"),
    ],
)
def test_settings_that_cannot_work_are_reported_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RayRunner(**settings)


# --- the last of all: Ray takes every job at the address of a lost node for finished, and here all have one --


async def test_the_runs_of_a_node_that_is_lost_go_on_elsewhere(cluster: Cluster) -> None:
    with FakeCLI.from_function(patient) as fake, anyio.fail_after(LIMIT):
        await to_thread.run_sync(cluster.ask, "node")
        runner = RayRunner(Agent(cli=fake.path), actor_options={"num_cpus": 0, "resources": {"other": 1}})
        async with Fleet(runner=runner) as fleet:
            await fleet.submit("prompt", key="a")
            await wait_asked(fake)
            await to_thread.run_sync(cluster.ask, "kill")
            await to_thread.run_sync(cluster.ask, "node")  # until then there is no place for another actor
            run = await fleet.wait("a")
        await to_thread.run_sync(cluster.ask, "kill")
    assert (run.state, run.attempts) == ("succeeded", 2)
    assert run.failures in (0, 1)  # 1: on a busy machine the child ends first, and its actor can still say so


# --- three nodes, of which everything dies ---------------------------------------------------------------------------


DURABLE_PROGRAM = """
import sys, anyio
from pilothouse.client import Agent
from pilothouse_fleet import Fleet, RayRunner

async def main():
    cli, address, journal, count = sys.argv[1:]
    runner = RayRunner(Agent(cli=cli), address=address, actors=3, concurrency_per_actor=2)
    async with Fleet(runner=runner, concurrency=6, journal=journal) as fleet:
        async for run in fleet.map(range(int(count)), key=str, prompt=lambda n: f"prompt {n}"):
            assert run.is_success

anyio.run(main)
"""


def unhurried(child: Any) -> None:
    child.expect("user")
    child.emit({"type": "system", "subtype": "init", "session_id": "s"})
    child.sleep(0.3)
    child.emit({"type": "result", "subtype": "success", "is_error": False, "result": "Hello", "session_id": "s"})


def kill_an_actor(cluster: Cluster) -> None:
    """Of one that is at work: its process is called after what it does."""
    found = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _starts_as_actor(path)]
    assert found
    os.kill(int(found[0]), signal.SIGKILL)


def _starts_as_actor(path: Path) -> bool:
    try:
        is_actor = path.read_bytes().startswith(b"ray::AttemptHost")
        return is_actor and f"{MARK}=".encode() in path.with_name("environ").read_bytes()
    except OSError:
        return False


def test_three_nodes_of_which_an_actor_a_node_and_the_driver_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    count, journal = 60, tmp_path / "runs.db"

    async def ask(state: RunState) -> set[str]:
        reader = SqliteJournal(journal)
        await reader.open_for_reading()
        try:
            return {run.key for run in await reader.rows(state, 0, count)}
        finally:
            await reader.close()

    def recorded() -> set[str]:
        return anyio.run(ask, "succeeded") if journal.exists() else set()

    def asked() -> Counter[str]:
        return Counter(str(call.prompts[0]).split()[-1] for call in fake.calls if call.prompts)

    for _ in range(2):
        cluster.ask("node")
    deaths: list[Callable[[], object]] = [
        lambda: kill_an_actor(cluster), lambda: program.kill(), lambda: cluster.ask("kill"),
    ]  # fmt: skip
    before: list[tuple[set[str], Counter[str]]] = []
    with FakeCLI.from_function(unhurried) as fake:
        command = [sys.executable, "-c", DURABLE_PROGRAM, fake.path, cluster.address, str(journal), str(count)]
        until = time.monotonic() + 2 * LIMIT
        ends: list[int] = []
        while not ends or ends[-1]:
            assert time.monotonic() < until
            with subprocess.Popen(command) as program:
                while program.poll() is None and time.monotonic() < until:
                    if deaths and len(recorded()) >= 10 * (4 - len(deaths)):
                        before.append((recorded(), asked()))
                        deaths.pop(0)()
                    time.sleep(0.05)
                program.kill()
            ends.append(program.returncode)
        assert not deaths
        assert recorded() == {str(number) for number in range(count)}
        for done, calls in before:  # what was recorded is not asked again
            assert {key: asked()[key] for key in done} == {key: calls[key] for key in done}
        anyio.run(wait_all_exited, fake.calls)
    cluster.ask("kill")
