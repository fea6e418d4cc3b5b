"""Children that are started ahead: who gets them, who does not, how many there are, and when they go."""

from __future__ import annotations

import gc
import math
import sys
from functools import partial
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest
from process_checks import until as wait_until
from session_cli import Cli, die, hang

import pilothouse as ph
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_pool import Pool, warm_child
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

until = partial(wait_until, pause=0)  # some of it is there for one turn of the loop only


@pytest.fixture(autouse=True, params=["initialized", "booted", "any_directory"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kind of children."""
    monkeypatch.setattr(KIND, "settings", {} if request.param == "initialized" else {request.param: True})
    return request.param


class KIND:
    settings: ClassVar[dict[str, bool]] = {}


def pool_of(cli: Cli, **settings: Any) -> Pool:
    return Pool(transport=cli.transport, **KIND.settings, **settings)


async def test_a_child_serves_one_query_and_ends_with_it(cli: Cli) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        for text in ("one", "two", "three"):
            await agent.query(text)
        await until(lambda: pool.idle == 1)
        assert sorted(filter(None, cli.prompts)) == [["one"], ["three"], ["two"]]
        await until(lambda: len(cli.running) == 1)


async def test_a_child_that_ends_because_nobody_needed_it_is_given_to_nobody(cli: Cli) -> None:
    ending, goes_on = anyio.Event(), anyio.Event()

    class SlowToEnd(MemoryTransport):
        async def serve(self) -> None:
            try:
                await super().serve()
            finally:
                ending.set()
                with anyio.CancelScope(shield=True):
                    await goes_on.wait()

    async def go_on_later() -> None:
        await anyio.sleep(5)
        goes_on.set()

    def make() -> MemoryTransport:
        return SlowToEnd(cli._play) if not cli.children else cli.transport()

    async with Pool(transport=make, idle_ttl=0.05, **KIND.settings) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        await ending.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(go_on_later)
            assert (await agent.query("one")).text == "re: one"
            goes_on.set()
            group.cancel_scope.cancel()


async def test_a_session_gets_one_with_its_own_id(cli: Cli) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(1, sessions=True)
        session = agent.session()
        assert session.id is None
        async with session:
            name = session.id
            assert name is not None
            assert cli.sessions[0] == (f"--session-id={name}",)
            await session.query("one")
            assert session.id == name
            await session.query("two")
            assert cli.prompts[0] == ["one", "two"]
            forked = session.fork()
        async with forked:
            assert (await forked.query("three")).text == "re: three"
            assert forked.id != name


async def test_a_session_on_such_a_child_survives_its_death(cli: Cli) -> None:
    cli.acts["die"] = die
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(1, sessions=True)
        async with agent.session() as session:
            await session.query("one")
            number = cli.prompts.index(["one"])
            cli.children[number].end(signal="SIGKILL")
            assert (await session.query("two")).text == "re: two"
            assert cli.saved[session.id or ""] == ["one", "two"]
            assert session.restarts == 1


@pytest.mark.parametrize(
    "differs",
    [
        {"model": "opus"},
        {"env": {"X": "1"}},
        {"cwd": "/"},
        {"append_system_prompt": "Be brief"},
        {"partial_messages": True},
        {"json_schema": {"type": "object"}, "output_repairs": 0},
        {"user": "nobody"},
        {"isolation": "strict"},
        {"hooks": {"PreToolUse": [lambda event: None]}},  # pyright: ignore[reportUnknownLambdaType]
        {"resume": "7b4b0f4e-5f5c-4b39-9a1a-6a1a3d1f0c11"},
        {"session_id": "0c5ab1be-9a52-4f0c-8f0e-6d9b1a5b2c22"},
        {"extra_args": {"worktree": "x"}},
    ],
    ids=lambda settings: next(iter(settings)),
)
async def test_what_the_cli_would_see_makes_a_difference(cli: Cli, differs: dict[str, Any], kind: str) -> None:
    cli.saved["7b4b0f4e-5f5c-4b39-9a1a-6a1a3d1f0c11"] = ["before"]
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        await agent.query("one", **differs)
        may_differ = {"booted": {"append_system_prompt", "json_schema", "hooks"}, "any_directory": {"cwd"}}
        fits = next(iter(differs)) in may_differ.get(kind, ())
        assert cli.prompts[0] == (["one"] if fits else [])


@pytest.mark.parametrize(
    "differs",
    [{"timeout": 60.0}, {"max_budget_tokens": 100_000}, {"control_timeout": 5.0}, {"stderr": print}],
    ids=lambda settings: next(iter(settings)),
)
async def test_what_it_would_not_see_makes_none(cli: Cli, differs: dict[str, Any]) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        await agent.query("one", **differs)
        assert cli.prompts[0] == ["one"]


async def test_an_exit_in_the_callback_for_standard_error_ends_nothing(
    cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        cli.children[0].stderr("warm\n")
        assert (await agent.query("one", stderr=sys.exit)).text == "re: one"
        assert cli.prompts[0] == ["one"]
    assert "the callback for standard error raised" in caplog.text


async def test_functions_may_differ_where_their_kinds_are_the_same(cli: Cli) -> None:
    asked: list[str] = []

    async def use_a_tool(cli: Cli, say: Any, text: str) -> str:
        await say(frames.control_request("can_use_tool", request_id=f"q-{text}", tool_name="Bash", input={}))
        return "done"

    cli.acts |= {"one": use_a_tool, "two": use_a_tool}
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(2, can_use_tool=lambda request: True)
        for name in ("one", "two"):

            def decide(request: ph.PermissionRequest, name: str = name) -> bool:
                asked.append(name)
                return True

            await agent.query(name, can_use_tool=decide)
    assert asked == ["one", "two"]
    assert sorted(cli.prompts[:2]) == [["one"], ["two"]]


async def test_a_kind_that_comes_again_is_kept_ready(cli: Cli) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.query("one")
        assert pool.idle == 0, "not every query is like one before"
        await agent.query("two")
        await until(lambda: len(cli.prompts) == 3)
        assert (await agent.query("three")).text == "re: three"
        assert cli.prompts[:3] == [["one"], ["two"], ["three"]]


async def test_changed_agents_share_the_pool(cli: Cli) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        await agent.with_options(timeout=60.0).query("one")
        assert cli.prompts[0] == ["one"]
    assert not cli.running
    assert (await agent.query("two")).text == "re: two"
    assert not cli.running


async def test_one_that_died_meanwhile_is_put_aside(cli: Cli) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        cli.children[0].end(signal="SIGKILL")
        assert (await agent.query("one")).text == "re: one"
        assert cli.prompts[:2] == [[], ["one"]]


async def test_one_that_is_still_being_started_is_better_than_none(cli: Cli) -> None:
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        async with anyio.create_task_group() as group:
            group.start_soon(agent.prewarm)
            await until(lambda: pool.idle == 1)
            assert (await agent.query("one")).text == "re: one"
        assert cli.prompts[0] == ["one"]


# Before the handshake the CLI asks nothing.
@pytest.mark.parametrize("kind", ["initialized", "any_directory"], indirect=True)
async def test_a_prewarmed_child_with_an_early_request_is_unusable(cli: Cli) -> None:
    async def ask(peer: MemoryPeer) -> None:
        question = frames.control_request("hook_callback", callback_id="hook_0", input={})
        await peer.write(question)

    cli.info = {}
    begin = cli._begin  # pyright: ignore[reportPrivateUsage]

    async def begin_asking(number: int, peer: MemoryPeer) -> bool:
        if number == 0:
            await ask(peer)
        return await begin(number, peer)

    cli._begin = begin_asking  # type: ignore[method-assign]
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        with pytest.raises(ph.CLIExitedError, match="asked 'hook_callback' before a query claimed it"):
            await agent.prewarm()
        for _ in range(4):
            assert (await agent.query("one")).text == "re: one"
        assert len(cli.children) == 5, "no other one is started ahead for such queries"


WARM_UP = {"subtype": "get_context_usage", "detail": "summary"}


@pytest.mark.parametrize("version", ["2.1.330", "2.1.329", None])
async def test_the_cli_prepares_what_its_first_answer_needs(cli: Cli, kind: str, version: str | None) -> None:
    cli.info["claude_code_version"] = version
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        assert cli.controls == ([WARM_UP] if (kind, version) == ("initialized", "2.1.330") else [])
        assert (await agent.query("one")).text == "re: one"
        assert cli.prompts[0] == ["one"]


@pytest.mark.parametrize("kind", ["initialized"], indirect=True)
async def test_a_refused_preparation_does_no_harm(cli: Cli) -> None:
    cli.answers["get_context_usage"] = "no"
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        async with agent.query("one") as query:
            assert (await query).text == "re: one"
        assert cli.prompts[0] == ["one"]


@pytest.mark.parametrize("kind", ["initialized"], indirect=True)
async def test_a_query_does_not_wait_for_the_preparation(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_child, "WARM_UP_SECONDS", math.inf)
    cli.silent.add("get_context_usage")
    async with pool_of(cli, min_idle=0) as pool:
        agent = ph.Agent(transport=pool)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(agent.prewarm)
                await until(lambda: cli.controls == [WARM_UP])
                assert (await agent.query("one")).text == "re: one"
        assert cli.prompts[0] == ["one"]


@pytest.mark.parametrize("kind", ["initialized"], indirect=True)
async def test_the_preparation_has_a_limit(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_child, "WARM_UP_SECONDS", 0.01)
    cli.silent.add("get_context_usage")
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        with anyio.fail_after(60):
            await agent.prewarm()
        assert pool.idle == 1


async def test_a_failed_prewarm_is_reported(cli: Cli) -> None:
    cli.answers["initialize"] = "x"
    async with Pool() as pool:
        agent = ph.Agent(transport=pool, cli="/nowhere/claude")
        with pytest.raises(ph.CLINotFoundError):
            await agent.prewarm()
        with pytest.raises(ph.CLINotFoundError):
            await agent.query("one")
        assert (pool.idle, pool.in_use) == (0, 0)


async def test_an_unclaimed_child_is_ended(cli: Cli) -> None:
    async with pool_of(cli, idle_ttl=0.05) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(2)
        await until(lambda: not cli.running and pool.idle == 0)
        assert (await agent.query("one")).text == "re: one"
        assert len(cli.children) == 3, "its kind is not kept ready any more"


async def test_no_more_than_max_live_at_once(cli: Cli) -> None:
    most = 0
    together = anyio.Semaphore(0)

    async def count(cli: Cli, say: Any, text: str) -> str:
        nonlocal most
        most = max(most, len(cli.running))
        await anyio.lowlevel.checkpoint()
        together.release()
        return "ok"

    cli.acts["go"] = count
    async with pool_of(cli, max_live=3) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(2)

        async def ask() -> None:
            assert (await agent.query("go")).text == "ok"

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(ask)
        assert most <= 3
        assert pool.in_use == 0


async def test_the_queue_is_in_order_and_can_be_left(cli: Cli) -> None:
    cli.acts["hang"] = hang
    answered: list[str] = []
    async with pool_of(cli, max_live=1) as pool:
        agent = ph.Agent(transport=pool)

        async def ask(text: str) -> None:
            await agent.query(text)
            answered.append(text)

        async with anyio.create_task_group() as group:
            first = agent.query("hang")
            await first.start()
            for text in ("one", "two", "three"):
                group.start_soon(ask, text)
                await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0):
                await agent.query("never")
            await first.aclose()
        assert answered == ["one", "two", "three"]
        assert (pool.idle, pool.in_use) == (0, 0)


async def test_another_kind_replaces_it(cli: Cli) -> None:
    async with pool_of(cli, max_live=2) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(2)
        with anyio.fail_after(10):
            assert (await agent.query("one", model="opus")).text == "re: one"
        assert len(cli.running) <= 2


async def test_a_cancelled_start_leaves_nothing(cli: Cli) -> None:
    cli.silent.add("initialize")
    async with pool_of(cli, max_live=1) as pool:
        agent = ph.Agent(transport=pool)
        async with anyio.create_task_group() as group:
            group.start_soon(agent.prewarm)
            await until(lambda: len(cli.running) == 1)
            with anyio.CancelScope() as asking:

                async def cancel() -> None:
                    await until(lambda: pool.in_use == 1)
                    await anyio.wait_all_tasks_blocked()  # it waits for the handshake of the child
                    cli.silent.clear()  # the next child answers
                    asking.cancel()

                group.start_soon(cancel)
                await agent.query("one")
            await until(lambda: 0 not in cli.running and pool.in_use == 0)
        assert (await agent.query("two")).text == "re: two"


async def test_closing_it_leaves_those_in_use(cli: Cli) -> None:
    pool = pool_of(cli)
    agent = ph.Agent(transport=pool)
    await agent.prewarm(1, sessions=True)
    async with agent.session() as session:
        await pool.aclose()
        await pool.aclose()
        assert (await session.query("one")).text == "re: one"
        assert pool.in_use == 1
        assert (await agent.query("two")).text == "re: two"
    assert (pool.idle, pool.in_use) == (0, 0)
    with pytest.raises(ph.UsageError, match="closed"):
        await agent.prewarm()


async def test_dropping_it_ends_the_children(cli: Cli) -> None:
    agent = ph.Agent(transport=pool_of(cli))
    await agent.prewarm(2)
    del agent
    gc.collect()
    await until(lambda: not cli.running)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_idle": -1}, "min_idle: expected a whole number, 0 or more, got -1"),
        ({"max_live": 0}, "max_live: expected a whole number, at least 1"),
        ({"min_idle": 3, "max_live": 2}, r"and min_idle \(3\), got 2"),
        ({"idle_ttl": 0}, "idle_ttl: expected more than 0 seconds"),
    ],
)
def test_numbers_that_cannot_work(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ph.OptionsError, match=words):
        Pool(**settings)


async def test_settings_that_cannot_be_prewarmed_are_reported(cli: Cli) -> None:
    async with pool_of(cli, max_live=2) as pool:
        agent = ph.Agent(transport=pool)
        with pytest.raises(ph.OptionsError, match="cannot be prewarmed"):
            await agent.prewarm(resume="7b4b0f4e-5f5c-4b39-9a1a-6a1a3d1f0c11")
        with pytest.raises(ph.OptionsError, match="max_live is 2"):
            await agent.prewarm(3)
        with pytest.raises(ph.OptionsError, match=r"transport=Pool\(transport=…\)"):
            await ph.Agent(transport=cli.transport).prewarm()
        with pytest.raises(ph.OptionsError, match=r"pip install 'pilothouse\[pool\]'"):
            await ph.Agent().prewarm()
    assert not cli.children


def test_a_pool_follows_its_queries_to_the_next_loop() -> None:
    for backend in ("asyncio", "trio", "asyncio"):
        cli = Cli()
        pool = pool_of(cli)

        async def main(pool: Pool = pool, cli: Cli = cli) -> None:
            agent = ph.Agent(transport=pool)
            await agent.prewarm()
            assert (await agent.query("one")).text == "re: one"
            assert cli.prompts[0] == ["one"]
            await agent.prewarm()  # a task group of anyio warns about a task that never began when its loop ended

        for _ in range(2):
            cli.prompts.clear()
            cli.children.clear()
            anyio.run(main, backend=backend)
            assert not cli.running


@pytest.mark.parametrize("kind", ["any_directory"], indirect=True)
async def test_a_child_for_any_directory_is_told_the_directories_of_its_query(cli: Cli) -> None:
    cli.answers["claim_session"] = {"status": "ok", "initialize": {"commands": [{"name": "of-the-project"}]}}
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm(sessions=True)
        async with agent.session(cwd="/usr", add_dirs=["/etc"]) as session:
            await session.query("one")
            assert session.server_info is not None
            assert session.server_info["commands"] == [{"name": "of-the-project"}]
    [claim] = [body for body in cli.controls if body["subtype"] == "claim_session"]
    assert (claim["cwd"], claim["additional_directories"]) == ("/usr", ["/etc"])
    assert cli.prompts[0] == ["one"]
    assert not any(argument.startswith("--add-dir") for argument in cli.children[0].invocation.argv)


@pytest.mark.parametrize("kind", ["any_directory"], indirect=True)
async def test_a_query_whose_directory_is_refused_starts_a_child_of_its_own(
    cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    cli.answers["claim_session"] = "project_settings_not_claimable: it sets a model"
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool)
        await agent.prewarm()
        with caplog.at_level("INFO", "pilothouse.pool"):
            assert (await agent.query("one", cwd="/usr")).text == "re: one"
        assert cli.prompts[0] == []
        await until(lambda: 0 not in cli.running)
    assert "project_settings_not_claimable" in caplog.text


@pytest.mark.parametrize("kind", ["any_directory"], indirect=True)
async def test_what_a_child_asks_while_it_gets_its_directory_is_answered(cli: Cli) -> None:
    respond = cli._control  # pyright: ignore[reportPrivateUsage]

    async def ask_first(number: int, peer: MemoryPeer, frame: dict[str, Any]) -> None:
        if frame["request"]["subtype"] == "claim_session":
            await peer.write(frames.control_request("can_use_tool", request_id="early", tool_name="Bash", input={}))
        await respond(number, peer, frame)

    cli._control = ask_first  # type: ignore[method-assign]
    asked: list[str] = []
    async with pool_of(cli) as pool:
        agent = ph.Agent(transport=pool, can_use_tool=lambda request: asked.append(request.tool_name) or True)
        await agent.prewarm()
        assert (await agent.query("one")).text == "re: one"
        assert cli.prompts[0] == ["one"]
    assert asked == ["Bash"]


async def test_a_pool_is_booted_or_for_any_directory() -> None:
    with pytest.raises(ph.OptionsError, match="either booted or for any directory"):
        Pool(booted=True, any_directory=True)
