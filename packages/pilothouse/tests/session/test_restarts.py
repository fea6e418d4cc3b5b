"""A conversation outlives its child: crashes, resume, forks, `clear`, and what cannot be gone on with."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint
from session_cli import Cli, die, hang, talking

import pilothouse as ph
from pilothouse.client.sessions import Session
from pilothouse.errors import SessionExistsError
from pilothouse.options import AdaptiveThinking, DisabledThinking, EnabledThinking
from pilothouse.transports import MemoryPeer, MemoryTransport

pytestmark = pytest.mark.anyio


def session_of(cli: Cli, **settings: Any) -> Session:
    return ph.Agent(transport=cli.transport).session(**settings)


@pytest.mark.requirement("E68", "E69", "E27", "E26")
async def test_after_a_crash_the_next_query_goes_on(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    cli.acts["crash"] = die
    async with talking(cli) as session:
        listener = session.messages()
        first, pid = session.id, cli.children[0]
        await session.query("one")
        with pytest.raises(ph.CLIExitedError) as caught:
            await session.query("crash")
        assert caught.value.signal == "SIGKILL"
        assert session.health().state == "unhealthy"
        assert "SIGKILL" in session.health().reason
        with caplog.at_level(logging.WARNING, "pilothouse"):
            result = await session.query("two")
        assert (result.full_text, session.id, session.restarts) == ("re: two", first, 1)
        assert cli.children[1] is not pid
        assert cli.sessions == [(f"--session-id={first}",), (f"--resume={first}",)]
        assert "SIGKILL" in caplog.text
    (event,) = [m async for m in listener if m.raw.get("subtype") == "session_restarted"]
    assert isinstance(event, ph.SystemMessage)
    assert event.raw["restarts"] == 1
    assert "SIGKILL" in event.raw["reason"]


async def test_the_next_child_shows_as_much_of_the_thinking(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with session_of(cli) as session:
        await session.set_max_thinking_tokens(2000, "omitted")
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        await session.query("one")
    before, *_, after = (child.invocation.argv for child in cli.children)
    assert "--thinking-display=omitted" not in before
    assert {"--max-thinking-tokens=2000", "--thinking-display=omitted"} <= {*after}


@pytest.mark.parametrize(
    ("thinking", "tokens", "display", "flags"),
    [
        (AdaptiveThinking(display="summarized"), 2000, "omitted", ["2000", "omitted"]),
        (AdaptiveThinking(display="summarized"), 2000, None, ["2000", "summarized"]),
        (EnabledThinking(budget_tokens=1000), 2000, "omitted", ["2000", "omitted"]),
        (EnabledThinking(budget_tokens=1000), None, None, []),
        (DisabledThinking(), 2000, "omitted", ["2000", "omitted"]),
        (DisabledThinking(), 2000, None, ["2000"]),
    ],
)
async def test_the_next_child_of_a_session_with_thinking_does_so_as_set(
    cli: Cli,
    thinking: AdaptiveThinking | EnabledThinking | DisabledThinking,
    tokens: int | None,
    display: Literal["omitted"] | None,
    flags: list[str],
) -> None:
    cli.acts["crash"] = die
    async with session_of(cli, thinking=thinking) as session:
        await session.set_max_thinking_tokens(tokens, display)
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        await session.query("one")
    last = [flag for flag in cli.children[-1].invocation.argv if "thinking" in flag]
    assert [flag.partition("=")[2] for flag in last] == flags


async def test_a_query_with_thinking_of_its_own_shows_it_as_it_says(cli: Cli) -> None:
    async with session_of(cli) as session:
        await session.query("one")
        await session.set_max_thinking_tokens(2000, "omitted")
        await session.query("two", thinking={"type": "adaptive", "display": "summarized"})
    shown = [flag for flag in cli.children[-1].invocation.argv if flag.startswith("--thinking-display")]
    assert shown == ["--thinking-display=summarized"]


async def test_a_restart_is_reported_although_a_child_did_not_start_before_it(cli: Cli) -> None:
    cli.acts["crash"] = die
    is_down = False

    def make() -> MemoryTransport:
        return MemoryTransport(start_error=ph.CLIStartError("not now")) if is_down else cli.transport()

    async with ph.Agent(transport=make).session() as session:
        messages = session.messages()
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        is_down = True
        with pytest.raises(ph.CLIStartError):
            await session.query("one")
        is_down = False
        assert (await session.query("two")).full_text == "re: two"
        assert session.restarts == 1
    (event,) = [m async for m in messages if m.raw.get("subtype") == "session_restarted"]
    assert "SIGKILL" in event.raw["reason"]


def late_news(cli: Cli) -> MemoryTransport:
    """One whose reader is not told that the peer has gone."""
    transport = cli.transport()
    receive = transport.receive

    async def without_the_end() -> bytes:
        data = await receive()
        if not data:
            await anyio.sleep_forever()
        return data

    transport.receive = without_the_end
    return transport


@pytest.mark.virtual_time
@pytest.mark.requirement("E69")
@pytest.mark.parametrize("restart", ["resume", "never"])
async def test_an_unnoticed_death_costs_no_query(cli: Cli, restart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.engine.child.EXIT_NOTICE_SECONDS", 0.02)
    async with ph.Agent(transport=lambda: late_news(cli)).session(restart=restart) as session:
        await session.query("one")
        cli.children[0].end(signal="SIGKILL")
        assert session.state == "idle"
        with anyio.fail_after(8):
            if restart == "never":
                with pytest.raises(ph.CLIExitedError, match="while it was idle: the peer ended"):
                    await session.query("two")
            else:
                assert (await session.query("two")).full_text == "re: two"
                assert (session.restarts, cli.prompts) == (1, [["one"], ["two"]])


@pytest.mark.requirement("E69")
async def test_a_death_before_the_prompt_was_sent_costs_no_query(cli: Cli) -> None:
    def dies_once(request: dict[str, Any]) -> dict[str, Any]:
        if len(cli.children) == 1:
            cli.children[0].end(signal="SIGKILL")
        return {}

    cli.answers["set_model"] = dies_once
    async with talking(cli) as session:
        await session.query("one")
        assert (await session.query("two", model="haiku")).full_text == "re: two"
        assert (session.restarts, cli.prompts) == (1, [["one"], ["two"]])


async def test_a_prompt_that_was_sent_is_not_sent_again(cli: Cli) -> None:
    def dies_with_it(frame: dict[str, Any]) -> None:
        cli.children[-1].end(signal="SIGKILL")  # nobody knows whether it was begun

    async with talking(cli) as session:
        await session.query("one")
        cli.hold = dies_with_it
        with pytest.raises(ph.CLIExitedError, match="SIGKILL before the answer was complete"):
            await session.query("two")
        cli.hold = None
        assert (await session.query("three")).full_text == "re: three"
        assert cli.prompts == [["one"], ["three"]]


@pytest.mark.requirement("E68")
async def test_what_waits_for_an_answer_fails_with_the_child(cli: Cli) -> None:
    cli.silent.add("get_usage")
    errors: list[ph.CLIExitedError] = []

    async def ask() -> None:
        with pytest.raises(ph.CLIExitedError) as caught:
            await session.info.usage()
        errors.append(caught.value)

    async with talking(cli) as session:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(20):
                cli.children[0].end(exit_code=3, stderr="out of tea")
                while len(errors) < 20:
                    await anyio.wait_all_tasks_blocked()
        assert all(error.exit_code == 3 and "out of tea" in str(error) for error in errors)
        assert (await session.query("next")).text == "re: next"


async def test_restart_never(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with talking(cli, restart="never") as session:
        errors: list[ph.CLIExitedError] = []
        for prompt in ("crash", "next", "again"):
            with pytest.raises(ph.CLIExitedError, match="SIGKILL") as caught:
                await session.query(prompt)
            errors.append(caught.value)
        assert errors == [errors[0]] * 3
        with pytest.raises(ph.CLIExitedError):
            await session.set_model("haiku")
    assert len(cli.children) == 1


async def test_a_child_that_made_place_for_one_that_failed_is_no_crash(cli: Cli) -> None:
    is_down = False

    def make() -> MemoryTransport:
        if is_down:
            raise OSError("not now")
        return cli.transport()

    async with ph.Agent(transport=make).session(restart="never") as session:
        await session.query("one")
        is_down = True
        with pytest.raises(OSError, match="not now"):
            await session.query("two", max_turns=2)
        is_down = False
        assert (await session.query("three")).text == "re: three"
        assert session.restarts == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_cancelled_while_it_replaces_the_child_is_no_crash(cli: Cli) -> None:
    async with talking(cli, restart="never") as session:
        await session.query("one", max_turns=2)
        call = asyncio.ensure_future(session.control("get_settings"))
        while session.state != "starting":
            await checkpoint()
        call.cancel()  # goes through the shield of anyio
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await session.query("two")).text == "re: two"
        assert session.restarts == 0


async def test_a_first_query_that_left_nothing_is_begun_again(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with talking(cli) as session:
        for number in range(2):
            with pytest.raises(ph.CLIExitedError):
                await session.query("crash")
            assert session.restarts == number
        assert (await session.query("next")).session_id == session.id
    # Each time it asks for what may have been saved, and begins again with the same id when there is nothing.
    own, resume = (f"--session-id={session.id}",), (f"--resume={session.id}",)
    assert cli.sessions == [own, resume, own, resume, own]


async def die_on_the_way(cli: Cli, say: Any, prompt: str) -> str:
    """As the real one does when it is killed in its first turn: the id is taken, and nothing can be resumed."""
    cli.taken.add(cli.sessions[-1][0].partition("=")[2])
    return await die(cli, say, prompt)


async def test_a_first_query_that_left_its_id_behind_is_begun_again_under_another(cli: Cli) -> None:
    cli.acts["crash"] = die_on_the_way
    async with talking(cli) as session:
        first = session.id
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        answer = await session.query("next")
        assert (answer.text, answer.session_id, session.restarts) == ("re: next", session.id, 1)
        assert session.id != first
        await session.query("more")
        cli.children[-1].end(signal="SIGKILL")
        assert (await session.query("after")).session_id == answer.session_id
    own, resume, other = f"--session-id={first}", f"--resume={first}", session.id
    assert cli.sessions == [(own,), (resume,), (own,), (f"--session-id={other}",), (f"--resume={other}",)]


async def test_a_start_that_failed_on_the_way_is_gone_on_with(cli: Cli) -> None:
    """The conversation cannot be resumed, the next start fails, and then the id is taken."""
    cli.acts["crash"] = die_on_the_way
    failing_start = 3

    def make() -> MemoryTransport:
        nonlocal failing_start
        failing_start -= 1
        return cli.transport() if failing_start else MemoryTransport(start_error=ph.CLIStartError("not now"))

    async with ph.Agent(transport=make).session() as session:
        first = session.id
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        with pytest.raises(ph.CLIStartError):
            await session.query("one")
        answer = await session.query("two")
        assert (answer.text, answer.session_id, session.restarts) == ("re: two", session.id, 1)
        assert session.id != first
    own, resume, other = f"--session-id={first}", f"--resume={first}", f"--session-id={session.id}"
    assert cli.sessions == [(own,), (resume,), (own,), (other,)]


async def test_an_id_is_exchanged_once_for_each_start() -> None:
    ids: list[str] = []

    async def refuse(peer: MemoryPeer) -> None:
        ids.extend(argument for argument in peer.invocation.argv if argument.startswith("--session-id="))
        peer.end(exit_code=1, stderr=f"Error: Session ID {ids[-1].partition('=')[2]} is already in use.")

    def make() -> MemoryTransport:
        return MemoryTransport(refuse) if len(ids) < 5 else MemoryTransport(start_error=ph.CLIStartError("enough"))

    session = ph.Agent(transport=make).session()
    with pytest.raises(SessionExistsError):
        await session.query("one")
    assert len(set(ids)) == len(ids) == 2


async def test_an_id_that_was_asked_for_is_never_exchanged(cli: Cli) -> None:
    mine = "5e551017-0000-4000-8000-000000000009"
    cli.acts["crash"] = die_on_the_way
    async with talking(cli, session_id=mine) as session:
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        for _ in range(2):
            with pytest.raises(SessionExistsError, match=f"there is a conversation with session_id '{mine}'"):
                await session.query("next")
        assert session.id == mine


async def test_messages_are_never_lost_silently(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        cli.saved.clear()  # as with persist_session=False
        cli.children[0].end(signal="SIGKILL")
        await anyio.wait_all_tasks_blocked()
        for _ in range(2):
            with pytest.raises(ph.SessionNotFoundError):
                await session.query("two")


@pytest.mark.requirement("L60", "E28")
async def test_resume_continue_and_a_missing_id(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        first = session.id
    async with talking(cli, resume=first) as session:
        assert session.id == first
        cli.children[-1].end(signal="SIGKILL")
        await anyio.wait_all_tasks_blocked()
        assert (await session.query("two")).session_id == first
    async with talking(cli, continue_latest=True) as session:
        assert session.id is None
        await session.query("three")
        assert session.id == first
    assert cli.saved == {first: ["one", "two", "three"]}
    session = session_of(cli, resume="00000000-0000-4000-8000-000000000000")
    with pytest.raises(ph.SessionNotFoundError):
        await session.start()
    assert session.state == "broken"
    await session.close()


async def test_resume_at_a_message_holds_for_the_first_child_only(cli: Cli) -> None:
    cli.saved["old"] = ["one", "two"]
    cli.acts["crash"] = die
    async with talking(cli, resume="old", resume_session_at="m1") as session:
        await session.query("three")
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        await session.query("four")
    truncated = ["--resume-session-at=m1" in child.invocation.argv for child in cli.children]
    assert truncated == [True, False]
    assert cli.saved["old"] == ["one", "two", "three", "four"]


@pytest.mark.requirement("E30", "L60", "E12")
async def test_a_fork_goes_its_own_way_and_so_does_a_fork_of_it(cli: Cli) -> None:
    async with talking(cli) as session:
        with pytest.raises(ph.UsageError, match="nothing to fork yet"):
            session.fork()
        await session.query("one")
        async with session.fork() as branch, branch.fork(model="haiku") as twig:  # neither has said anything
            assert len({session.id, branch.id, twig.id}) == 3
            await twig.query("twig")
            await branch.query("branch")
            async with branch.fork() as leaf:
                await leaf.query("leaf")
        await session.query("two")
        assert cli.saved == {
            session.id: ["one", "two"],
            branch.id: ["one", "branch"],
            twig.id: ["one", "twig"],
            leaf.id: ["one", "branch", "leaf"],
        }
    assert "--model=haiku" in cli.children[2].invocation.argv


async def test_a_fork_while_a_query_runs_and_after_a_crash_of_the_fork(cli: Cli) -> None:
    cli.acts |= {"slow": hang, "crash": die}
    async with talking(cli) as session:
        await session.query("one")
        query = session.query("slow")
        branch = session.fork()
        async with anyio.create_task_group() as group:
            group.start_soon(query.result)
            await anyio.wait_all_tasks_blocked()
            async with branch:
                with pytest.raises(ph.CLIExitedError):
                    await branch.query("crash")
                await branch.query("branch")
            await query.interrupt()
        assert cli.saved[branch.id or ""] == ["one", "branch"]
        assert (await session.query("two")).text == "re: two"


async def test_what_is_not_on_disk_cannot_be_forked(cli: Cli) -> None:
    async with talking(cli, persist_session=False) as session:
        await session.query("one")
        with pytest.raises(ph.UsageError, match="persist_session"):
            session.fork()


@pytest.mark.requirement("E29")
async def test_clear_begins_afresh_in_the_same_child(cli: Cli) -> None:
    async with talking(cli, verbatim_prompts=True, json_schema={"type": "object"}, output_repairs=0) as session:
        await session.query("one")
        old = session.id
        async with anyio.create_task_group() as group:
            group.start_soon(session.query("two").result)
            await anyio.wait_all_tasks_blocked()
            assert await session.clear() == session.id
        new = session.id
        assert new != old
        with pytest.raises(ph.UsageError, match="nothing to fork yet"):
            session.fork()
        assert (await session.query("three")).session_id == new
        async with session.fork() as branch:
            assert branch.id not in {old, new}
    assert len(cli.prompts[0]) == 4
    assert cli.saved[old or ""] == ["one", "two"]
    assert cli.saved[new or ""] == ["three"]


async def test_after_clear_a_new_child_does_not_bring_back_what_was_cleared(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with talking(cli) as session:
        await session.query("one")
        new = await session.clear()
        cli.children[0].end(signal="SIGKILL")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ph.CLIExitedError):
            await session.query("crash")
        await session.query("two")
        assert session.id == new
        assert cli.saved.pop(new or "") == ["two"]
        new = await session.clear()
        cli.saved.pop(new or "")  # a CLI that does not write it at once
        cli.children[-1].end(signal="SIGKILL")
        await anyio.wait_all_tasks_blocked()
        result = await session.query("three")
        assert result.session_id == session.id
    assert cli.saved[session.id or ""] == ["three"]


async def test_clear_waits_for_those_that_came_before(cli: Cli) -> None:
    answers: list[str] = []

    async def ask(prompt: str) -> None:
        answers.append((await session.query(prompt)).session_id or "")

    async with talking(cli) as session:
        before = session.id
        async with anyio.create_task_group() as group:
            for work in (lambda: ask("one"), lambda: ask("two"), session.clear, lambda: ask("three")):
                group.start_soon(work)
                await anyio.wait_all_tasks_blocked()
        assert answers == [before, before, session.id]
    assert cli.prompts == [["one", "two", "/clear", "three"]]


def test_mistakes_are_reported_before_anything_is_started(cli: Cli) -> None:
    for settings in ({"prompt_via": "argv"}, {"fork_session": True}, {"hooks": {"Nonsense": []}}):
        with pytest.raises(ph.UsageError):
            session_of(cli, **settings)
    assert cli.children == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("turns", range(5, 20))
async def test_a_session_that_is_closed_while_a_child_is_refused_leaves_no_child(turns: int) -> None:
    """The child before died before it saved anything, so the next one cannot resume, and a third one begins anew."""
    cli = Cli()
    cli.acts["first"] = die
    session = ph.Agent(transport=cli.transport).session()
    with pytest.raises(ph.CLIExitedError):
        await session.query("first")

    async def ask() -> None:
        with suppress(ph.SessionClosedError):
            await session.query("next")

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        for _ in range(turns):
            await checkpoint()
        await session.close()
    assert not cli.running
