"""A host that is killed, stopped, or cannot write: what clients find afterwards."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from process_checks import eventually, is_dead
from served_host import LIMIT, TOKEN, Dialled, MakeHost, Program, Served, finish, numbers, prompt, settings

import pilothouse as ph
from pilothouse_host.host import Host
from pilothouse_host.journal import JournaledSession, OutputJournal
from pilothouse_remote import on_host
from pilothouse_testing import FakeCLI, frames

RESULT = b'"type": "result"'


def read_past(client: Dialled, size: int) -> None:
    while len(client.output) < size:
        client.next()
        client.say("ack", received=len(client.output) // 2)


@pytest.mark.requirement("E84")
def test_a_host_that_is_killed_loses_nothing_that_was_seen(tmp_path: Path) -> None:
    with FakeCLI.shell('echo $$ >"$PWD/pid"; i=0; while :; do echo $i; i=$((i+1)); done') as fake:
        program = Program(tmp_path, fake.path)
        with program as served, served.dial() as client:
            client.start()
            read_past(client, 100_000)
            program.kill()
            client.until_closed()
        assert client.output == numbers(len(client.output))
        eventually(lambda: is_dead(int((tmp_path / "work" / "pid").read_text())))
        have = len(client.output) - 777
        with Program(tmp_path, fake.path) as served:
            for received in (have, len(client.output)):
                with served.dial() as again:
                    ready = again.attach(client.session, received, client.client)
                    assert ready["op"] == "ready"
                    ended = again.until("ended")
                    whole = client.output[:received] + again.output
                    assert ended["at"] == len(whole)
                    assert ended["detail"] == "the host was restarted"
                    assert whole == numbers(len(whole))
                    assert len(whole) >= len(client.output)
            with served.dial() as last:
                last.attach(client.session, have, client.client)
                last.say("close")
                assert last.until_closed() == 1000
            assert served.request("GET", f"/v1/sessions/{client.session}")[0] == 404


@pytest.mark.anyio
@pytest.mark.requirement("E84")
async def test_a_prompt_that_a_killed_host_did_not_take_is_sent_again(tmp_path: Path) -> None:
    """The next query of an idle session is asked before the client knows that its host was killed."""
    with FakeCLI().text("one").forever() as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            transport = on_host(served.url, token=TOKEN)
            async with ph.session(transport=transport, timeout=LIMIT) as session:
                assert (await session.query("hi")).text == "one"
                program.kill()
                with Program(tmp_path, fake.path, "--port", str(served.port)):
                    assert (await session.query("ho")).text == "one"
                    assert (await session.query("and on")).text == "one"
                first, second = fake.calls
                assert first.prompts == ["hi"]
                assert second.prompts == ["ho", "and on"]
                assert any(argument.startswith("--resume=") for argument in second.argv)


@pytest.mark.anyio
async def test_a_prompt_that_a_killed_host_handed_on_is_not_sent_again(tmp_path: Path) -> None:
    with FakeCLI().expect("user").emit(frames.init()).hang() as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            async with ph.session(transport=on_host(served.url, token=TOKEN), timeout=LIMIT) as session:
                query = session.query("hi")
                assert (await anext(aiter(query))).type == "system"
                program.kill()
                with Program(tmp_path, fake.path, "--port", str(served.port)):
                    with pytest.raises(ph.CLIExitedError, match="the host was restarted"):
                        await query.result()
                    assert [call.prompts for call in fake.calls] == [["hi"]]


def test_sessions_of_the_host_go_on_after_it_was_killed(tmp_path: Path) -> None:
    with FakeCLI().text("one") as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            _, made = served.request("POST", "/v1/sessions", {"options": {"model": "opus"}, "prompt": "hi"})
            deadline = time.monotonic() + LIMIT
            while not (answer := served.request("GET", f"/v1/sessions/{made['id']}")[1])["last_result"]:
                assert time.monotonic() < deadline
            with served.events(made["id"]) as events:
                before = [next(events)]
                while before[-1]["data"]["type"] != "result":
                    before.append(next(events))
            program.kill()
        with Program(tmp_path, fake.path) as served:
            _, found = served.request("GET", f"/v1/sessions/{made['id']}")
            assert (found["state"], found["conversation"]) == ("dormant", answer["conversation"])
            assert found["ending"]["detail"] == "the host was restarted"
            with served.events(made["id"]) as events:
                assert [next(events) for _ in before] == before
                assert served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "ho"})[0] == 202
                after = next(events)
                while after["data"]["type"] != "result":
                    after = next(events)
                assert after["id"] > before[-1]["id"]
        first, second = fake.calls
        assert "--model=opus" in first.argv
        assert {"--model=opus", f"--resume={answer['conversation']}"} <= set(second.argv)
        assert second.prompts == ["ho"]


def test_prompts_without_an_end_are_told_after_the_host_was_killed(tmp_path: Path) -> None:
    """Who waits for a result would wait for ever. What has ended is not told."""
    with FakeCLI().text("one").turn(frames.init(), b'{"type": "assi').hang() as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
            with served.events(made["id"]) as events:
                while next(events)["data"].get("type") != "result":
                    pass
                for text in ("second\nwith more", "third"):
                    assert served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": text})[0] == 202
                while next(events)["data"].get("type") != "system":
                    pass
            program.kill()
        for count in (2, 3):  # told once
            again = Program(tmp_path, fake.path)
            with again as served, served.events(made["id"]) as events:
                assert served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "on"})[0] == 202
                seen: list[Any] = []
                while sum(data.get("type") == "result" for data in seen) < count:
                    seen.append(next(events)["data"])
                told = [data["error"] for data in seen if data.get("subtype") == "query_failed"]
                assert told == [
                    f"the host was restarted before the end of the prompt {title!r}: send it again"
                    for title in ("second", "third")
                ]
                again.end(signal.SIGTERM)
    with closing(sqlite3.connect(tmp_path / "host.sqlite")) as journal:
        assert journal.execute("SELECT * FROM prompt").fetchall() == []


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_prompt_whose_result_is_stored_is_not_told_as_lost(tmp_path: Path) -> None:
    """The host may be killed between the result and the end of the prompt."""
    chosen = settings(tmp_path)
    journal = OutputJournal(chosen.journal, keep_bytes=10_000, keep_seconds=1000.0, keep_total=10_000)
    await journal.open()
    made = JournaledSession("s", "hosted", "live", "", 1.0, 1.0, {})
    await journal.create(made)
    said = [{"type": "assistant", "user_message_uuid": "two"}, {"type": "result", "user_message_uuid": "one"}]
    output = b"".join(json.dumps(frame).encode() + b"\n" for frame in said)
    await journal.append("s", 0, output)
    for name in ("one", "two"):
        await journal.add_prompt("s", name, f"title of {name}")
    await journal.close()
    async with Host(chosen) as host:
        told = (await host.journal.read("s", len(output), 10_000)).splitlines()
        assert await host.journal.read_prompts() == []
    assert [json.loads(line)["subtype"] for line in told] == ["query_failed"]
    assert b"title of two" in told[0]


def until_draining(served: Served) -> None:
    deadline = time.monotonic() + LIMIT
    while served.request("GET", "/healthz", token=None)[0] != 503:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with FakeCLI.shell("sleep 600") as fake:
        program = Program(tmp_path, fake.path, "--drain", "600")
        with program as served, served.dial() as client:
            client.start()
            client.send(0, prompt("hi"))
            assert client.until("ack")["received"] > 0
            program.process.send_signal(signal.SIGTERM)
            until_draining(served)
            assert program.end(signal.SIGTERM)[0] == 0


@pytest.mark.requirement("E84")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_turns_end(tmp_path: Path, number: int) -> None:
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    with FakeCLI.shell(f"read line; {wait}; echo '{RESULT.decode()}'; sleep 600") as fake:
        program = Program(tmp_path, fake.path)
        with program as served, served.dial() as client, served.dial() as late:
            client.start()
            client.send(0, prompt("hi"))
            client.say("ping", t=1)
            client.until("pong")
            program.process.send_signal(number)
            until_draining(served)
            refused = late.start()
            assert (refused["op"], refused["code"]) == ("refused", "draining")
            (tmp_path / "work" / "go").touch()
            client.until_output(RESULT)
            assert client.until("ended")["detail"] == "the host was stopped"
            code, output = program.end()
        assert code == 0, output
        assert "Traceback" not in output


def test_a_turn_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with FakeCLI.shell("sleep 600") as fake:
        program = Program(tmp_path, fake.path, "--drain", "0.2")
        with program as served, served.dial() as client:
            client.start()
            client.send(0, prompt("hi"))
            assert client.until("ack")["received"] > 0
            program.process.send_signal(signal.SIGTERM)
            assert client.until("ended")["detail"] == "the host was stopped"
            assert program.end()[0] == 0


def fill(served: Served, pages: int | None) -> None:
    """Let the journal grow by so many pages of 4 KiB and no more; None: as it likes."""

    def work(connection: Any) -> None:
        (now,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={1_000_000 if pages is None else now + pages}")

    async def call() -> None:
        await served.host.journal._database.call(work)

    served.call(call)


@pytest.mark.requirement("E84")
def test_a_full_disk_ends_the_session_and_not_the_host(serve_host: MakeHost) -> None:
    with FakeCLI.shell("exec yes 01234567890123456789") as flood:
        served = serve_host(cli=flood.path)
        with served.dial() as client:
            client.start()
            client.next()
            fill(served, 50)
            while (op := client.next())["op"] != "ended":
                client.say("ack", received=len(client.output))
            assert "database or disk is full" in op["detail"]
            assert op["at"] == len(client.output)
        assert served.request("GET", "/healthz") == (204, None)
        fill(served, None)
        with served.dial() as again:
            again.attach(client.session, len(client.output), client.client)
            assert "full" in again.until("ended")["detail"]
        with served.dial() as other:
            assert other.start()["op"] == "ready"


def test_a_full_disk_and_a_session_of_the_host(serve_host: MakeHost) -> None:
    with FakeCLI().text("x" * 50_000).text("short") as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {})

        def answered(prompt: str) -> dict[str, Any]:
            assert served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": prompt})[0] == 202
            return finish(served, made["id"])

        fill(served, 0)
        assert "database or disk is full" in answered("one")["error"]
        status, answer = served.request(
            "POST", "/v1/sessions", {"prompt": "x" * 5000, "options": {"title": "t" * 9000}}
        )
        assert (status, answer["error"]["code"]) == (507, "journal")
        fill(served, None)
        answer = answered("two")
        assert (answer["error"], answer["last_result"]["is_success"]) == (None, True)


def test_one_journal_has_one_host(tmp_path: Path) -> None:
    with FakeCLI() as fake, Program(tmp_path, fake.path):
        code, output = Program(tmp_path, fake.path).end()
        assert code == 2
        assert "is in use by another host" in output
        assert "Traceback" not in output
