"""What happens at a host at the same time: prompts, the end of a child, changes of settings, decisions, removals."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from served_host import LIMIT, Served, settings
from session_cli import Cli, Say, bash_request, hang, start_task

from pilothouse.permissions import Ask
from pilothouse_access import RefusedRequestError
from pilothouse_access.owners import OPERATOR
from pilothouse_host import Host, journal, rest
from pilothouse_host.server_sessions import RestSession
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@asynccontextmanager
async def opened(directory: Path, cli: Cli, **given: Any) -> AsyncGenerator[Host]:
    chosen = settings(directory, cli="/usr/bin/true", **{"drain_seconds": 0.2, **given})
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    with anyio.fail_after(LIMIT):
        async with Host(chosen, environ=environ, make_transport=cli.transport) as host:
            yield host


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0.005)


async def finish(session: RestSession) -> None:
    await until(lambda: not session.waiting_count)


async def lines_of(host: Host, session: RestSession) -> list[dict[str, Any]]:
    """The whole output as the journal has it, which is what readers saw, in whole lines."""
    stored = await host.journal.read(session.id, 0, 10**8)
    assert stored == await session.output.read(0, 10**8)
    assert len(stored) == session.output.end
    return [json.loads(line) for line in stored.split(b"\n")[:-1]]


async def test_no_prompt_starts_a_child_of_a_session_that_is_being_removed(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        async with anyio.create_task_group() as group:
            group.start_soon(host.close, session)
            await anyio.sleep(0)  # it waits for the end of the child
            assert session.has_child
            with pytest.raises(RefusedRequestError, match="was removed"):
                await host.send_prompt(session, "late")
        assert (len(cli.children), cli.running, host.sessions) == (1, set(), [])


async def test_a_session_that_is_removed_twice_at_a_time_is_closed_once(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(host.close, session)
        assert (cli.running, host.sessions) == (set(), [])
        events = [kind for _, kind, _ in await host.journal.read_events(0, OPERATOR)]
        assert (events.count("closed"), events[-1]) == (1, "closed")


async def test_the_end_of_a_session_is_the_last_that_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompts may end after it."""
    cli = Cli()
    cli.acts["hang"] = hang
    is_closed = anyio.Event()

    async def record_late(*failure: object) -> None:
        await is_closed.wait()

    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        monkeypatch.setattr(session, "_record_failure", record_late)
        for text in ("hang", "next"):
            await host.send_prompt(session, text)
        await until(lambda: bool(cli.uuids))
        await host.close(session)
        is_closed.set()
        await finish(session)
        events = [kind for _, kind, _ in await host.journal.read_events(0, OPERATOR)]
        assert (events.count("closed"), events[-1]) == (1, "closed")


async def test_a_session_that_gets_a_prompt_while_it_is_swept_leaves_no_child(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli, keep_seconds=0.0) as host:
        session = await host.start_rest_session({})
        await session.stop("idle")
        async with anyio.create_task_group() as group:
            group.start_soon(host.sweep)
            await anyio.sleep(0)
            await host.send_prompt(session, "late")
            assert session.has_child
        assert (session.has_child, cli.running, host.sessions) == (False, set(), [])
        events = [kind for _, kind, _ in await host.journal.read_events(0, OPERATOR)]
        assert events.count("closed") == 1


@pytest.mark.parametrize("ending", ["stop", "close"])
async def test_a_child_that_does_not_change_its_settings_is_ended_at_once(tmp_path: Path, ending: str) -> None:
    cli = Cli()
    cli.silent.add("set_model")
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        async with anyio.create_task_group() as group:
            group.start_soon(session.change_settings, "opus", None)
            await until(lambda: bool(cli.controls))
            with anyio.fail_after(LIMIT / 2):
                await (session.stop("idle") if ending == "stop" else host.close(session))
        if ending == "stop":
            await host.send_prompt(session, "next")
            await finish(session)
            assert "--model=opus" in cli.children[-1].invocation.argv


async def test_what_the_host_reports_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    cli, half, rest = Cli(), anyio.Event(), anyio.Event()

    async def act(cli: Cli, say: Say, text: str) -> str:
        line = json.dumps(frames.assistant("in two parts")).encode() + b"\n"
        await say(line[:40])  # type: ignore[arg-type] - the peer takes bytes
        half.set()
        await rest.wait()
        await say(line[40:])  # type: ignore[arg-type]
        return "answer"

    cli.acts["act"] = act
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        await host.send_prompt(session, "act")
        await half.wait()
        await until(lambda: not session.output._tail.endswith(b"\n"))
        await session.record_own_line(b'{"subtype": "query_failed"}\n')
        rest.set()
        await finish(session)
        found = await lines_of(host, session)
        assert [line.get("subtype") for line in found].count("query_failed") == 1


async def test_a_child_that_dies_within_a_line_is_followed_by_the_report(tmp_path: Path) -> None:
    cli = Cli()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(b'{"type": "assist')  # type: ignore[arg-type]
        await until(lambda: session.output._tail.endswith(b"assist"))
        cli.children[-1].end(signal="SIGKILL")
        await anyio.sleep_forever()
        raise AssertionError

    cli.acts["act"] = act
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        await host.send_prompt(session, "act")
        await finish(session)
        await until(lambda: b"query_failed" in session.output._tail)
        lines = (await session.output.read(0, 10**8)).split(b"\n")
        assert (lines[-3], json.loads(lines[-2])["subtype"], lines[-1]) == (b'{"type": "assist', "query_failed", b"")


async def test_bytes_that_are_stored_at_the_same_time_follow_each_other(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli) as host:
        session = await host.start_rest_session({})
        async with anyio.create_task_group() as group:
            for number in range(20):
                line = json.dumps({"number": number}).encode() + b"\n"
                group.start_soon(session.record_own_line if number % 2 else session.record_output, line)
        found = [line["number"] for line in await lines_of(host, session) if "number" in line]
        assert sorted(found) == list(range(20))


async def ask_between_prompts(cli: Cli, host: Host) -> tuple[RestSession, dict[str, Any]]:
    """A background task asks after the result."""
    cli.acts["start"] = start_task
    session = await host.start_rest_session({})
    await host.send_prompt(session, "start")
    await until(lambda: bool(cli.saved))
    await cli.children[0].write(bash_request("r1"))
    await until(lambda: len(session.approvals) > 0)
    [ask] = session.approvals.describe()
    return session, ask


async def test_an_ask_keeps_its_child_from_being_idle(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli, idle_seconds=0.1, abandoned_seconds=60.0) as host:
        session, ask = await ask_between_prompts(cli, host)
        session.last_used -= 1
        await host.end_idle()
        assert (session.state, cli.running) == ("running", {0})
        await session.approvals.settle(ask["id"], Ask.allow, lambda _: anyio.sleep(0))
        await until(lambda: not session.is_busy)


@pytest.mark.parametrize("has_result", [True, False])
async def test_an_ask_of_a_child_that_the_host_has_ended_waits(tmp_path: Path, *, has_result: bool) -> None:
    cli = Cli()
    async with opened(tmp_path, cli) as host:
        session, ask = await ask_between_prompts(cli, host)
        if not has_result:
            session.record.conversation = ""
        await session.stop("idle")
        assert session.approvals.describe() == [{**ask, "restored": True}]
        await session.approvals.settle(ask["id"], Ask.allow, lambda prompt: host.send_prompt(session, prompt))
        await finish(session)
        assert cli.sessions[-1] == (f"--resume={ask['conversation']}",)
        assert "It is allowed now" in cli.prompts[-1][0]
        assert session.approvals.describe() == []


async def test_an_ask_of_a_removed_session_is_withdrawn(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli) as host:
        session, _ = await ask_between_prompts(cli, host)
        await host.close(session)
        events = [(kind, json.loads(data)) for _, kind, data in await host.journal.read_events(0, OPERATOR)]
        told = [(kind, data["by"] if kind == "settled" else "") for kind, data in events if kind != "session"]
        assert told == [("asked", ""), ("settled", "withdrawn"), ("closed", "")]
        assert (await host.journal.read_approvals(), session.approvals.describe()) == ([], [])


async def test_a_yes_that_could_not_be_sent_allows_nothing(tmp_path: Path) -> None:
    cli = Cli()
    async with opened(tmp_path, cli) as host:
        session, ask = await ask_between_prompts(cli, host)
        await session.stop("idle")

        async def refuse(_: str) -> None:
            raise RefusedRequestError("limit", "too many prompts")

        with pytest.raises(RefusedRequestError):
            await session.approvals.settle(ask["id"], Ask.allow, refuse)
        await session.approvals.settle(ask["id"], Ask.deny, lambda prompt: host.send_prompt(session, prompt))
        await finish(session)
        await cli.children[-1].write(bash_request("r2"))
        await until(lambda: len(session.approvals) > 0)  # somebody has to decide


async def test_a_session_whose_first_prompt_is_refused_is_not_left_behind(
    serve_host: Callable[..., Served], tmp_path: Path
) -> None:
    cli = Cli()
    served = serve_host(cli="/usr/bin/true", make_transport=cli.transport)
    status, refusal = await anyio.to_thread.run_sync(served.request, "POST", "/v1/sessions", {"prompt": ""})
    assert (status, refusal["error"]["message"]) == (400, "the prompt is empty, or only white space")
    assert (cli.running, served.host.sessions) == (set(), [])


async def test_prompts_at_the_same_time_keep_the_limits(tmp_path: Path) -> None:
    cli, found = Cli(), list[str]()

    async def send(host: Host, session: RestSession, text: str) -> None:
        try:
            await host.send_prompt(session, text)
        except RefusedRequestError as refusal:
            found.append(str(refusal))

    async with opened(tmp_path, cli, max_sessions=1, max_prompts=2) as host:
        sessions: list[RestSession] = []
        for _ in range(3):
            sessions.append(await host.start_rest_session({}))
            await sessions[-1].stop("idle")
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(send, host, session, "hi")
        assert (len(found), sum(session.has_child for session in sessions)) == (2, 1)
        assert found[0].startswith("this host runs 1 children at most")
        [session] = [session for session in sessions if session.has_child]
        await finish(session)
        cli.acts["hang"] = hang
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(send, host, session, "hang")
        assert (session.waiting_count, len(found)) == (2, 5)


@pytest.mark.parametrize("turns", range(4))
async def test_a_prompt_at_the_end_of_the_idle_time_is_answered(tmp_path: Path, turns: int) -> None:
    async def send() -> None:
        for _ in range(turns):
            await anyio.sleep(0)
        await host.send_prompt(session, "hi")

    async with opened(tmp_path, Cli(), idle_seconds=5.0) as host:
        session = await host.start_rest_session({})
        session.last_used -= 10
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            group.start_soon(host.end_idle)
        await finish(session)
        assert (session.last_error, session.last_result and session.last_result["text"]) == (None, "re: hi")


async def test_a_viewer_that_was_too_slow_learns_that_it_has_missed_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT_EVENTS", 10)
    monkeypatch.setattr(rest, "KEPT_EVENTS", 10)
    async with opened(tmp_path, Cli()) as host:
        session = await host.start_rest_session({})
        await until(lambda: host.journal.last_event > 0)
        slow, quick = rest.stream_host_events(host, OPERATOR, 0), rest.stream_host_events(host, OPERATOR, 0)
        assert [(await anext(slow))[:6], (await anext(quick))[:6]] == [b"id: 1\n"] * 2
        for number in range(2, 13):
            await until(lambda: host.journal.last_event >= number)  # noqa: B023
            assert (await anext(quick)).startswith(b"id: %d\nevent: session" % number)
            session.tell_state()
        seen = [event async for event in slow]
        assert (seen[-1][:19], len(seen)) == (b"id: 2\nevent: error\n", 2)  # what it had read before
        await quick.aclose()
