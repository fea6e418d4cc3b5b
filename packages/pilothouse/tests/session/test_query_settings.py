"""Settings that a child has from its start, for one query: a child of its own answers it, and the next goes back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from session_cli import Cli, die, hang, talking

import pilothouse as ph
from pilothouse.client.session_settings import SESSION_ONLY_OPTIONS
from pilothouse.client.sessions import Session
from pilothouse.transports import MemoryTransport
from pilothouse.transports.base import TransportFacts
from pilothouse_testing import frames

# Queries are made to see how they are checked, and not run.
UNUSED = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")
pytestmark = [pytest.mark.anyio, UNUSED]

VALUES: dict[str, Any] = {
    "session_id": "5e551017-0000-4000-8000-000000000001",
    "resume": "5e551017-0000-4000-8000-000000000001",
    "resume_session_at": "5e551017-0000-4000-8000-000000000001",
    "resume_drops_turn": "5e551017-0000-4000-8000-000000000001",
    "continue_conversation": True,
    "fork_session": True,
    "session_store": SimpleNamespace(append=print, load=print),
    "session_store_flush": "eager",
    "session_lease": 12.0,
    "load_timeout": 12.0,
    "persist_session": False,
    "isolation": "strict",
    "config_dir": "/elsewhere",
    "user": "nobody",
    "cli": "/elsewhere/claude",
    "transport": MemoryTransport,
    "prompt_via": "argv",
    "restart": "never",
    "title": "Another",
}


def prompts_in_force(cli: Cli) -> list[str | None]:
    """The system prompt that each child was started with."""
    found: list[str | None] = []
    for child in cli.children:
        reported = (child.invocation.initialize or {}).get("systemPrompt")
        flags = [a.partition("=")[2] for a in child.invocation.argv if a.startswith("--system-prompt=")]
        found.append(next(iter(reported or flags), None))
    return found


@pytest.mark.requirement("E26", "E27", "E39")
async def test_a_query_with_a_system_prompt_of_its_own(cli: Cli) -> None:
    async with talking(cli, system_prompt="Session default", model="opus") as session:
        everything = session.messages()
        own = session.id
        assert (await session.query("one")).text == "re: one"
        two = await session.query("prompt", system_prompt="Override for this query", model="haiku")
        assert (two.text, two.session_id, session.id) == ("re: prompt", own, own)
        assert (await session.query("three")).text == "re: three"
        assert (await session.query("four")).text == "re: four"
        assert (session.restarts, session.state) == (0, "idle")
    assert prompts_in_force(cli) == ["Session default", "Override for this query", "Session default"]
    assert cli.sessions == [(f"--session-id={own}",), (f"--resume={own}",), (f"--resume={own}",)]
    snapshots = ["--system-prompt-snapshot=off" in child.invocation.argv for child in cli.children]
    assert snapshots == [False, True, False]  # the CLI would go on with the prompt that it began with
    assert cli.prompts == [["one"], ["prompt"], ["three", "four"]]
    assert cli.saved[own or ""] == ["one", "prompt", "three", "four"]
    printed = [m async for m in everything]  # the listener outlives each child
    assert [m.text for m in printed if isinstance(m, ph.AssistantMessage)] == [f"re: {p}" for p in cli.saved[own or ""]]
    assert not [m for m in printed if m.raw.get("subtype") == "session_restarted"]


@pytest.mark.parametrize(
    ("settings", "children"),
    [
        pytest.param({"max_turns": 2}, 3, id="turns"),
        pytest.param({"max_budget_usd": 2.0}, 4, id="budget"),
        pytest.param({"custom_tools": [max], "tool_bridge": "xml"}, 4, id="xml", marks=pytest.mark.needs_models),
    ],
)
async def test_queries_that_need_the_same_share_a_child(cli: Cli, settings: dict[str, Any], children: int) -> None:
    if "custom_tools" in settings:
        settings = {**settings, "custom_tools": [depth]}
    async with talking(cli) as session:
        await session.query("one")
        await session.query("two", **settings)
        await session.query("three", **settings)
        await session.query("four")
    assert len(cli.children) == children  # dollars, and the calls of a bridge, are counted from the start of a child


async def test_a_query_that_keeps_what_it_detaches_gets_a_child_of_its_own(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        await session.query("two", keep_detached=True)
    assert [child.invocation.keep_detached for child in cli.children] == [False, True]


@ph.tool
def depth() -> int:
    """The depth."""
    return 3


async def test_they_wait_for_their_turn_like_others(cli: Cli) -> None:
    order: list[str] = []

    async def ask(session: Session, prompt: str, **settings: Any) -> None:
        await session.query(prompt, **settings)
        order.append(prompt)

    async with talking(cli) as session, anyio.create_task_group() as group:
        for number in range(6):
            settings: dict[str, Any] = {"max_turns": number} if number % 2 else {}
            group.start_soon(partial(ask, session, f"{number}", **settings))
            await anyio.wait_all_tasks_blocked()
    assert order == [f"{n}" for n in range(6)]
    assert cli.prompts == [["0"], ["1"], ["2"], ["3"], ["4"], ["5"]]


@pytest.mark.parametrize("started", [False, True])
async def test_the_first_query_may_be_one(cli: Cli, started: bool) -> None:
    session = ph.Agent(transport=cli.transport).session()
    if started:
        await session.start()
    own = session.id
    assert (await session.query("one", append_system_prompt="Be brief.")).session_id == own
    assert (await session.query("two")).session_id == own
    await session.close()
    assert cli.sessions[started:] == [(f"--session-id={own}",), (f"--resume={own}",)]
    assert cli.saved[own or ""] == ["one", "two"]


@pytest.mark.parametrize("how", ["start", "exit", "options"])
async def test_a_child_that_cannot_be_started_costs_its_query_only(cli: Cli, how: str) -> None:
    async def refuse(peer: Any) -> None:
        peer.end(exit_code=1, stderr="error: option '--max-turns' is out of order")

    failing = (
        MemoryTransport(start_error=ph.CLIStartError("not with these")) if how == "start" else MemoryTransport(refuse)
    )
    transports = [cli.transport(), cli.transport()]
    if how != "options":
        transports.insert(1, failing)
    async with ph.Agent(transport=lambda: transports.pop(0)).session() as session:
        await session.query("one")
        if how == "options":
            with pytest.raises(ph.OptionsError, match="max_turns"):
                session.query("two", max_turns=0)
        else:
            with pytest.raises(ph.CLIStartError if how == "start" else ph.ProcessError, match=r"not with|out of order"):
                await session.query("two", max_turns=2)
        assert (await session.query("three")).text == "re: three"
        assert cli.saved[session.id or ""] == ["one", "three"]
        assert session.restarts == 0


async def test_a_child_that_dies_is_followed_by_one_of_the_session(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with talking(cli) as session:
        await session.query("one")
        with pytest.raises(ph.CLIExitedError, match="SIGKILL"):
            await session.query("crash", max_turns=2)
        assert (await session.query("two")).text == "re: two"
        assert session.restarts == 1
    assert ["--max-turns=2" in child.invocation.argv for child in cli.children] == [False, True, False]


async def test_one_that_is_cancelled_timed_out_or_interrupted_leaves_nothing(cli: Cli) -> None:
    cli.acts["hang"] = hang
    async with talking(cli) as session:
        await session.query("one")
        with anyio.move_on_after(0.1) as scope:
            await session.query("hang", max_turns=2)
        assert scope.cancelled_caught
        with pytest.raises(ph.QueryTimeout):
            await session.query("hang", max_turns=3, timeout=0.1)
        query = session.query("hang", max_turns=4)
        async for message in query:
            if isinstance(message, ph.AssistantMessage):
                await session.interrupt()
        assert (await query.result()).outcome == "interrupted"
        assert (await session.query("two")).text == "re: two"
        assert cli.prompts[-1] == ["two"]


async def test_a_control_request_between_queries_goes_to_a_child_of_the_session(cli: Cli) -> None:
    where: list[int] = []
    cli.answers["get_settings"] = lambda _: where.append(len(cli.children)) or {}

    async def ask(cli: Cli, say: Any, text: str) -> str:
        await session.control("get_settings")
        return "asked"

    cli.acts["ask"] = ask
    async with talking(cli) as session:
        await session.query("ask", max_turns=2)
        assert where == [2]  # while a query is answered, to its child
        await session.set_model("haiku")
        await session.control("get_settings")
        await session.query("last")
    assert where == [2, 3]
    assert "--max-turns=2" not in cli.children[2].invocation.argv
    assert cli.prompts == [[], ["ask"], ["last"]]


async def test_a_mode_that_the_child_has_left_by_itself_goes_along(cli: Cli) -> None:
    async def approves(cli: Cli, say: Any, text: str) -> str:
        await say({"type": "system", "subtype": "status", "status": None, "permissionMode": "acceptEdits"})
        return "the plan is approved"

    cli.acts["plan"] = approves
    cli.info = {"current_permission_mode": "plan"}
    async with talking(cli, permission_mode="plan") as session:
        await session.query("plan")
        await session.query("do it", max_turns=2)
    assert [body["mode"] for body in cli.controls] == ["acceptEdits"]
    assert len(cli.children) == 2


async def test_dollars_of_a_query_are_within_those_of_the_session(cli: Cli) -> None:
    async def spend(cli: Cli, say: Any, text: str) -> str:
        usage = {"opus": {"costUSD": 0.75, "inputTokens": 10, "outputTokens": 5}}
        await say(frames.result("spent", session_id=session.id or "", modelUsage=usage, total_cost_usd=0.75))
        return "spent"

    cli.acts["spend"] = spend
    async with talking(cli, max_budget_usd=1.0) as session:
        await session.query("spend")
        await session.query("two", max_budget_usd=0.1)
        await session.query("three", max_budget_usd=5.0)
    limits = [[a for a in child.invocation.argv if a.startswith("--max-budget-usd")] for child in cli.children]
    found = [float(limit.partition("=")[2]) for [limit] in limits]
    assert found == pytest.approx([1.0, 0.1, 0.25], abs=0.01)


async def test_tokens_of_a_query_are_counted_from_its_beginning(cli: Cli) -> None:
    settings: Any = None

    async def spend(cli: Cli, say: Any, text: str) -> str:
        frame = frames.assistant("so much", message_id=f"msg_{len(cli.uuids)}")
        frame["message"]["usage"] = {"input_tokens": 900, "output_tokens": 100}
        await say(frame)
        await anyio.sleep(0 if settings is None else 60)  # until it is stopped
        return "spent"

    cli.acts["spend"] = spend
    async with talking(cli) as session:
        await session.query("spend")
        settings = {"max_budget_tokens": 500}
        assert (await session.query("two", **settings)).error is None
        assert type((await session.query("spend", **settings)).error) is ph.BudgetError
    assert len(cli.children) == 1


async def test_background_tasks_end_with_their_child(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    async def start(cli: Cli, say: Any, text: str) -> str:
        await say({"type": "system", "subtype": "task_started", "task_id": "t1", "description": "tests"})
        return "started"

    cli.acts["start"] = start
    async with talking(cli) as session:
        await session.query("one", max_turns=2)
        with caplog.at_level(logging.WARNING, "pilothouse"):
            await session.query("start")
            assert not caplog.records
            await session.query("two", max_turns=2)
        (record,) = caplog.records
    assert "background tasks" in record.getMessage()


async def test_closing_while_the_child_is_replaced(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        errors: list[BaseException] = []

        async def ask() -> None:
            try:
                await session.query("two", max_turns=2)
            except ph.SessionClosedError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            while session.state != "starting":
                await anyio.lowlevel.checkpoint()
            await session.close()
        assert len(errors) == 1
        assert session.state == "closed"
    assert not cli.running


async def test_handlers_that_are_changed_meanwhile_answer_in_the_next_child(cli: Cli) -> None:
    asked: list[str] = []

    def handler(name: str) -> Callable[[ph.PermissionRequest], bool]:
        return lambda request: asked.append(name) or True

    async def use(cli: Cli, say: Any, text: str) -> str:
        if text == "change":
            await session.update(can_use_tool=handler("second"))
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": "t"}
        before = len(asked)
        await say({"type": "control_request", "request_id": f"ask-{before}", "request": request})
        while len(asked) == before:
            await anyio.lowlevel.checkpoint()
        return text

    cli.acts.update(use=use, change=use)
    async with talking(cli, can_use_tool=handler("first")) as session:
        await session.query("use")
        await session.query("use", max_turns=2)
        await session.query("use", can_use_tool=handler("of the query"))
        await session.query("change", max_turns=2)
        await session.query("use")
        await session.query("use", max_turns=3)
        await session.update(can_use_tool=handler("third"))
        await session.query("use")
    assert asked == ["first", "first", "of the query", "second", "second", "second", "third"]


@pytest.mark.parametrize("name", sorted(SESSION_ONLY_OPTIONS))
async def test_what_no_query_can_have_for_itself(cli: Cli, name: str) -> None:
    session = ph.Agent(transport=cli.transport).session()
    with pytest.raises(ph.OptionsError, match=r"cannot be set for one query of a session.*: .*; .*session") as caught:
        session.query("one", **{name: VALUES[name]})
    assert caught.value.option == name


async def test_a_session_with_one_transport_has_one_child(cli: Cli) -> None:
    async with ph.Agent(transport=cli.transport()).session() as session:
        with pytest.raises(ph.OptionsError, match="a function that makes transports") as caught:
            session.query("one", max_turns=2)
        assert caught.value.option == "max_turns"
        assert (await session.query("one", model="haiku")).text == "re: one"


@pytest.mark.needs_models
async def test_mistakes_are_reported_before_anything_is_ended(cli: Cli) -> None:
    async with talking(cli, mcp_servers={"a": {"command": "nothing"}}, custom_tools=[depth]) as session:
        with pytest.raises(ph.OptionsError, match="tool_bridge='xml' cannot be combined"):
            session.query("one", tool_bridge="xml")
        with pytest.raises(ph.UsageError, match="can_use_tool"):
            session.query("one", can_use_tool=lambda: True)  # pyright: ignore[reportArgumentType]
        session.query("one", custom_tools=[depth])
        await session.query("one")
    assert len(cli.children) == 1


class Attached(MemoryTransport):
    """Reaches what another client has started."""

    facts = TransportFacts(is_attached=True)


async def test_a_child_of_another_client_is_not_ended(cli: Cli) -> None:
    async with ph.Agent(transport=lambda: Attached(cli._play)).session() as session:
        await session.query("one")
        with pytest.raises(ph.OptionsError, match="another client has started") as caught:
            await session.query("two", max_turns=2)
        assert caught.value.option == "max_turns"
        assert (await session.query("three")).text == "re: three"
    assert cli.prompts == [["one", "three"]]
