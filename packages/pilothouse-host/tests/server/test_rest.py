"""The host over HTTP: sessions that it drives itself, their events, and who may ask."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served_host import LIMIT, TOKEN, MakeHost, Served, prompt, settings

from pilothouse import Query, QueryResult, UsageError
from pilothouse.errors import StoreError
from pilothouse.transports import CliTransport
from pilothouse.transports.base import TransportWrapper
from pilothouse_host import Host, rest
from pilothouse_testing import FakeCLI, frames


def until(served: Served, session: str, **wanted: Any) -> dict[str, Any]:
    """The session, once it is as wanted."""
    deadline = time.monotonic() + LIMIT
    while True:
        _, answer = served.request("GET", f"/v1/sessions/{session}")
        if all(answer[name] == value for name, value in wanted.items()):
            return answer
        assert time.monotonic() < deadline, f"it never was {wanted}: {answer}"
        time.sleep(0.02)


def past(events: Iterator[dict[str, Any]], **wanted: str) -> dict[str, Any]:
    """The next event whose message has these fields."""
    return next(event for event in events if all(event["data"].get(name) == wanted[name] for name in wanted))


def test_a_long_turn_is_not_kept_in_memory(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[QueryResult[Any]] = []
    read = Query[Any].result

    async def result(query: Query[Any]) -> QueryResult[Any]:
        found.append(await read(query))
        return found[0]

    monkeypatch.setattr(Query, "result", result)
    monkeypatch.setattr("pilothouse.client.queries.STREAM_KEEP_BYTES", 1000)
    text = "x" * 1001
    with FakeCLI().text(text) as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        assert until(served, made["id"], waiting=0)["last_result"]["text"] == text
    with pytest.raises(UsageError, match="more messages than a stream keeps"):
        _ = found[0].messages


@pytest.mark.requirement("E84")
def test_a_session_over_rest(serve_host: MakeHost) -> None:
    with FakeCLI().text("Hello").text("Again") as fake:
        served = serve_host(cli=fake.path)
        status, made = served.request("POST", "/v1/sessions", {"options": {"model": "opus"}, "prompt": "hi"})
        assert status == 201, made
        name = made["id"]
        assert made["kind"] == "hosted"
        with served.events(name) as events:
            types = [next(events)["data"]["type"] for _ in range(5)][2:]
            assert types[0] == "system"
            while types[-1] != "result":
                types.append(next(events)["data"]["type"])
        answer = until(served, name, waiting=0)
        assert answer["last_result"]["text"] == "Hello"
        assert answer["last_result"]["is_success"]
        status, asked = served.request("POST", f"/v1/sessions/{name}/prompt", {"prompt": "more"})
        assert status == 202
        with served.events(name, asked["events_from"]) as events:
            past(events, type="result")
        assert until(served, name, waiting=0)["last_result"]["text"] == "Again"
        assert served.request("POST", f"/v1/sessions/{name}/interrupt") == (204, None)
        assert served.request("DELETE", f"/v1/sessions/{name}") == (204, None)
        assert served.request("GET", f"/v1/sessions/{name}")[0] == 404
        assert "--model=opus" in fake.calls[0].argv
        assert fake.calls[0].prompts == ["hi", "more"]


def test_pieces_of_messages_are_sent_on_request(serve_host: MakeHost) -> None:
    with FakeCLI().text("Hello") as fake:
        served = serve_host(cli=fake.path)
        for wanted in (False, True):
            options = {"partial_messages": True} if wanted else {}
            _, made = served.request("POST", "/v1/sessions", {"prompt": "hi", "options": options})
            with served.events(made["id"]) as events:
                types = [next(events)["data"]["type"]]
                while types[-1] != "result":
                    types.append(next(events)["data"]["type"])
            assert ("stream_event" in types) == wanted


def test_events_resume_at_any_of_them(serve_host: MakeHost) -> None:
    with FakeCLI().text("one").text("two") as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "ho"})
        until(served, made["id"], waiting=0)
        whole: list[dict[str, Any]] = []
        with served.events(made["id"]) as events:
            while sum(event["data"].get("type") == "result" for event in whole) < 2:
                whole.append(next(events))
        assert [event["id"] for event in whole] == sorted({event["id"] for event in whole})
        assert not any(event["data"]["type"].startswith("control_") for event in whole)
        for at, event in enumerate(whole[:-1]):
            with served.events(made["id"], event["id"]) as events:
                assert [next(events) for _ in whole[at + 1 :]] == whole[at + 1 :]


@pytest.mark.parametrize("seed", range(20))
def test_viewers_of_the_same_output_share_its_events_whatever_they_read(seed: int) -> None:
    chance = random.Random(seed)
    rows = [b'{"type":"assistant","number":%d}\n' % number for number in range(10, 40)]
    size = len(rows[0])
    events = [b"id: %d\ndata: %s\n\n" % (size * (at + 1), row[:-1]) for at, row in enumerate(rows)]
    output = b"".join(rows)
    session: Any = SimpleNamespace(attached_count=2, shared_events=None)
    viewers = [rest.NumberedLines(0), rest.NumberedLines(0), rest.NumberedLines(7)]  # the last in the middle of a line
    seen = [b"", b"", b""]
    while any(viewer.place < len(output) for viewer in viewers):
        index = chance.randrange(3)
        piece = output[viewers[index].place :][: chance.choice((size, size, 2 * size, size + 7, 7, size - 7))]
        seen[index] += viewers[index].encode(session, piece)
    assert seen == [b"".join(events), b"".join(events), b"".join(events[1:])]


def test_the_second_viewer_of_some_output_gets_what_the_first_one_made_of_it() -> None:
    session: Any = SimpleNamespace(attached_count=2, shared_events=None)
    first, second = rest.NumberedLines(0), rest.NumberedLines(0)
    output = b'{"type":"assistant"}\n{"type":'
    assert first.encode(session, output) is second.encode(session, output)
    assert first.encode(session, b'"user"}\n') == second.encode(session, b'"user"}\n') != b""
    assert first.place == second.place


def test_a_viewer_that_begins_in_the_middle_of_a_line_shares_nothing_with_those_that_have_all_of_it() -> None:
    session: Any = SimpleNamespace(attached_count=2, shared_events=None)
    late, early = rest.NumberedLines(7), rest.NumberedLines(0)
    output = b'{"type":"assistant"}\n'
    assert early.encode(session, output[:7]) == late.encode(session, output[7:]) == b""
    assert early.encode(session, output[7:]) == b"id: 21\ndata: " + output + b"\n"


def test_events_of_a_session_over_the_wire_and_its_end(serve_host: MakeHost) -> None:
    with FakeCLI().text("Hello") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.start()
            client.send(0, prompt("hi"))
            client.until_output(b'"type": "result"')
            status, refused = served.request("POST", f"/v1/sessions/{client.session}/prompt", {"prompt": "x"})
            assert (status, refused["error"]["code"]) == (409, "busy")
            assert served.request("POST", f"/v1/sessions/{client.session}/interrupt") == (204, None)
            with served.events(client.session) as events:
                assert [next(events)["data"]["type"] for _ in range(3)] == ["system", "assistant", "result"]
                assert served.request("DELETE", f"/v1/sessions/{client.session}") == (204, None)
                last = next(events)
                assert (last["event"], last["data"]) == ("end", {"detail": "closed"})
            assert client.until("ended")["detail"] == "closed"
        assert fake.calls[0].control("interrupt")


@pytest.mark.parametrize(
    ("script", "sent", "status"),
    [
        ("exec 0<&-; echo hi; sleep 30", "", 204),  # it will end, and then there is nothing to interrupt
        ("echo hi; sleep 30", "x" * 100_000, 409),  # more than a pipe holds, so the child is in the middle of it
    ],
)
def test_an_interrupt_of_a_child_that_does_not_read_is_answered(
    serve_host: MakeHost, script: str, sent: str, status: int
) -> None:
    with FakeCLI.shell(script) as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.start()
            client.until_output(b"hi")
            if sent:
                client.send(0, prompt(sent))
                deadline = time.monotonic() + LIMIT
                while not served.session.is_busy:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            assert served.request("POST", f"/v1/sessions/{client.session}/interrupt")[0] == status
            served.request("DELETE", f"/v1/sessions/{client.session}")


def test_an_event_reader_sees_that_a_session_waits(serve_host: MakeHost) -> None:
    script = FakeCLI().expect("user").emit(frames.init()).ask("hook_callback", callback_id="h", input={})
    with script.ask("can_use_tool", tool_name="Bash", input={"command": "ls"}).emit(frames.result("done")) as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.start()
            client.send(0, prompt("hi"))
            client.until_output(b"hook_callback")
            first = json.loads(next(line for line in client.output.splitlines() if b"hook_callback" in line))
            sent = prompt("hi")
            body = {"subtype": "success", "request_id": first["request_id"], "response": {}}
            client.send(len(sent), json.dumps({"type": "control_response", "response": body}).encode() + b"\n")
            with served.events(client.session) as events:
                assert next(events)["data"]["type"] == "system"
                asked = next(events)
                assert asked["event"] == "asked"
                request = asked["data"]["request"]
                assert (request["subtype"], request["tool_name"]) == ("can_use_tool", "Bash")
            with served.events(client.session, asked["id"]) as events:
                served.request("DELETE", f"/v1/sessions/{client.session}")
                assert next(events)["event"] == "end"


def test_a_line_that_is_too_long_for_an_event(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_host.rest.MAX_LINE_BYTES", 1000)
    long = frames.assistant("x" * 2000)
    with FakeCLI().turn(frames.init(), long, frames.result("done")) as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        with served.events(made["id"]) as events:
            kinds = [next(events)["event"] for _ in range(5)]
        assert "oversize" in kinds


def test_a_failed_prompt_is_reported_and_the_session_continues(serve_host: MakeHost) -> None:
    with FakeCLI().expect("user").emit(frames.init()).emit('{"type": "assi').exit(9) as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        with served.events(made["id"]) as events:
            event = past(events, subtype="query_failed")
        assert event["data"]["error_type"] == "CLIExitedError"
        answer = until(served, made["id"], waiting=0)
        assert "code 9" in answer["error"]
        # The line that the child had begun is no message, and the next one is one again.
        served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "again"})
        until(served, made["id"], waiting=0)
        assert [call.prompts for call in fake.calls] == [["hi"], ["again"]]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "body"),
        (b"[]", 400, "body"),
        ({"surprise": 1}, 400, "surprise"),
        ({"options": {"modell": "x"}}, 400, "did you mean 'model'"),
        ({"options": {"model": 3}}, 400, "model"),
        ({"options": {"api_key": "sk-ant-secret"}}, 400, "keys belong in the environment"),
        ({"options": {"cli": "/bin/sh"}}, 400, "belongs to the host"),
        ({"options": {"user": "root"}}, 400, "belongs to the host"),
        ({"options": {"keep_detached": True}}, 400, "belongs to the host"),
        ({"options": {"cwd": "/"}}, 403, "is not below"),
        ({"options": {"add_dirs": ["/etc"]}}, 403, "is not below"),
        ({"options": {"env": {"PATH": "/tmp"}}}, 403, "does not take 'PATH'"),
        ({"options": {"extra_args": {"worktree": None}}}, 403, "--worktree"),
        ({"options": {}, "prompt": 3}, 400, "prompt"),
        ({}, 502, "/nowhere/claude"),
        (b"{" + b" " * 9_000_000, 413, "longer than"),
    ],
)
def test_starts_that_are_refused(serve_host: MakeHost, body: Any, status: int, words: str) -> None:
    served = serve_host(cli="/nowhere/claude")
    try:
        got, answer = served.request("POST", "/v1/sessions", body)
    except ConnectionError:  # it was told while the rest was still being sent
        assert status == 413
        return
    assert (got, words in answer["error"]["message"]) == (status, True), answer
    assert "sk-ant" not in json.dumps(answer)
    assert served.host.sessions == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/sessions/none", 404),
        ("DELETE", "/v1/sessions/none", 404),
        ("POST", "/v1/sessions/none/prompt", 404),
        ("GET", "/v1/sessions/none/events", 404),
        ("PUT", "/v1/sessions", 405),
        ("GET", "/v2", 404),
        ("GET", "/healthz", 204),
    ],
)
def test_paths(serve_host: MakeHost, method: str, path: str, status: int) -> None:
    served = serve_host(cli="/nowhere")
    got, answer = served.request(method, path)
    assert (got, answer is None or set(answer["error"]) == {"code", "message"}) == (status, True)
    with served.response(method, path) as response:
        assert ("allow" in response.headers) == (status == 405)


def test_a_path_of_an_endpoint_that_is_not_there_says_what_it_needs(serve_host: MakeHost) -> None:
    served = serve_host(cli="/nowhere")
    for path in ("/v1/chat/completions", "/chat/completions", "/v1/messages", "/v1/v1/messages"):
        status, answer = served.request("POST", path, {})
        assert (
            status,
            f"there is no POST {path} here; clients of OpenAI need --openai" in answer["error"]["message"],
        ) == (404, True)
    assert served.request("GET", "/v2")[1]["error"]["message"] == "there is no GET /v2 here"


def test_places_of_events_that_are_not_there(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {})
        for last in ("x", "-1", "99999999"):
            status, answer = served.request("GET", f"/v1/sessions/{made['id']}/events", Last_Event_ID=last)
            assert (status, answer["error"]["code"]) == (400, "bad_request")


@pytest.mark.requirement("E84")
def test_requests_need_a_token_and_an_allowed_origin(serve_host: MakeHost) -> None:
    served = serve_host(cli="/nowhere", origins=["https://console.example"], names=["Pilot.example"])
    for headers, status in (
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "pilot.example:99"}, 200),
        ({"Host": "[::1]:8750"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:80.evil.example"}, 403),
        ({"Host": "[::1].evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "https://console.example"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ):
        assert served.request("GET", "/v1/sessions", **headers)[0] == status, headers
    for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "\xe9" * 20):
        status, answer = served.request("GET", "/v1/sessions", token=token)
        assert (status, answer["error"]["code"]) == (401, "unauthorized")
    assert served.request("GET", "/v1/sessions", token=None, Authorization=f"Basic {TOKEN}")[0] == 401
    assert served.request("GET", f"/v1/sessions?token={TOKEN}", token=None)[0] == 401
    assert served.request("GET", "/healthz", token=None) == (204, None)
    with served.response(
        "OPTIONS", "/v1/sessions", token=None, Origin="https://console.example", Access_Control_Request_Method="POST"
    ) as answer:
        assert answer.headers["access-control-allow-origin"] == "https://console.example"


def test_an_idle_session_loses_its_child_and_goes_on(serve_host: MakeHost) -> None:
    with FakeCLI().text("one") as fake:
        served = serve_host(cli=fake.path, idle_seconds=0.3)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        with served.events(made["id"]) as events:
            place = past(events, type="result")["id"]
            assert until(served, made["id"], waiting=0)["state"] == "idle"
        answer = until(served, made["id"], state="dormant")
        assert "no client was attached" in answer["ending"]["detail"]
        assert served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "ho"})[0] == 202
        with served.events(made["id"], place) as events:
            past(events, type="result")
        assert [call.prompts for call in fake.calls] == [["hi"], ["ho"]]
        assert f"--resume={answer['conversation']}" in fake.calls[1].argv


def test_a_child_that_fails_to_end_keeps_no_slot(serve_host: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TransportWrapper):
        async def close(self) -> None:
            await super().close()
            raise StoreError("the disk is full")

    with FakeCLI().text("one") as fake:
        served = serve_host(
            cli=fake.path, max_sessions=1, idle_seconds=0.3, make_transport=lambda: Failing(CliTransport())
        )
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        assert until(served, made["id"], state="dormant")["ending"]["detail"].startswith("no client was attached")
        assert f"session {made['id']}: the disk is full" in caplog.text
        assert "the maintenance of sessions failed" not in caplog.text
        status, other = served.request("POST", "/v1/sessions", {})
        assert status == 201
        assert served.request("DELETE", f"/v1/sessions/{other['id']}") == (204, None)
        assert served.request("POST", "/v1/sessions", {})[0] == 201


def test_an_upload_that_breaks_off_writes_no_traceback(serve_host: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    served = serve_host(cli="/nowhere")
    head = (
        f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 99\r\n\r\n"
    )
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", served.port)) as upload:
            upload.sendall(head.encode() + b"{")
            time.sleep(0.1)
    for _ in range(5):
        assert served.request("GET", "/v1/sessions")[0] == 200
    served.stop()
    assert "Traceback" not in caplog.text
    assert "ClientDisconnect" not in caplog.text


def test_too_many_prompts_wait(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCLI().text("one") as fake:
        served = serve_host(cli=fake.path, max_prompts=2)
        _, made = served.request("POST", "/v1/sessions", {})
        for waiting, status in ((2, 429), (1, 202)):
            monkeypatch.setattr("pilothouse_host.server_sessions.RestSession.waiting_count", waiting)
            assert served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "x"})[0] == status
        monkeypatch.undo()
        until(served, made["id"], waiting=0)


def test_a_prompt_that_waits_is_withdrawn(serve_host: MakeHost) -> None:
    with FakeCLI().expect("user").emit(frames.init()).wait_eof() as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {})
        path = f"/v1/sessions/{made['id']}"
        first, second, third = (
            served.request("POST", f"{path}/prompt", {"prompt": prompt})[1]["prompt"]
            for prompt in ("first", "second\nline", [{"type": "text", "text": "third"}])
        )
        queued = [{"id": second, "title": "second"}, {"id": third, "title": "third"}]
        assert until(served, made["id"], waiting=3)["queued"] == queued
        assert served.request("DELETE", f"{path}/prompts/{second}") == (204, None)
        assert until(served, made["id"], waiting=2)["queued"] == queued[1:]
        status, refused = served.request("DELETE", f"{path}/prompts/{second}")
        assert (status, refused["error"]["code"]) == (404, "unknown_prompt")
        with served.events(made["id"]) as events:
            past(events, subtype="init")
        status, refused = served.request("DELETE", f"{path}/prompts/{first}")
        assert (status, refused["error"]["code"]) == (409, "busy")
        served.request("DELETE", path)
        assert [call.prompts for call in fake.calls] == [["first"]]


def test_keys_are_not_kept(serve_host: MakeHost, tmp_path: Path) -> None:
    secret = "sk-ant-of-a-client-0123456789"
    with FakeCLI().text("one") as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"options": {"env": {"ANTHROPIC_API_KEY": secret}}})
        assert made["start"]["names"] == ["env"]
        served.stop()
        for file in tmp_path.glob("host.sqlite*"):
            assert secret.encode() not in file.read_bytes()
            assert file.stat().st_mode & 0o077 == 0
        again = serve_host(cli=fake.path)
        status, answer = again.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "x"})
        assert (status, "keys" in answer["error"]["message"]) == (409, True)


CANARY = "planted.0123456789abcdef"
HOLDING: list[dict[str, Any]] = [
    {"env": {"ANTHROPIC_BETAS": CANARY}},
    {"env": {"CLAUDE_CODE_DB_PASS": CANARY}},
    {"mcp_servers": {"a": {"command": "true", "args": ["--token", CANARY]}}},
    {"mcp_servers": {"a": {"command": "true", "args": [f"--api-key={CANARY}"]}}},
    {"mcp_servers": {"a": {"type": "http", "url": f"http://127.0.0.1:9/?key={CANARY}"}}},
    {"mcp_servers": {"a": {"type": "http", "url": f"http://me:{CANARY}@127.0.0.1:9/"}}},
    {"mcp_servers": {"a": {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"X": CANARY}}}},
    {"settings": {"apiKeyHelper": f"echo {CANARY}"}},
    {"managed_settings": {"env": {"CLAUDE_CODE_A": CANARY}}},
    {"append_system_prompt": "Use ghp_planted0123456789abcdef."},
]


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("options", HOLDING)
def test_the_journal_and_the_list_of_sessions_hold_no_key(
    serve_host: MakeHost, tmp_path: Path, options: dict[str, Any]
) -> None:
    with FakeCLI().text("one") as fake:
        served = serve_host(cli=fake.path, env=("ANTHROPIC_BETAS", "CLAUDE_CODE_A", "CLAUDE_CODE_DB_PASS"))
        status, made = served.request("POST", "/v1/sessions", {"options": {**options, "model": "haiku"}})
        assert status in (200, 201), made
        listed = served.request("GET", "/v1/sessions")[1]
        assert sorted([*options, "model"]) == made["start"]["names"]
        assert "planted" not in str([made, listed])
        served.stop()
        for file in tmp_path.glob("host.sqlite*"):
            assert b"planted" not in file.read_bytes()


def test_inside_of_another_application(tmp_path: Path) -> None:
    """Mounted below a path, where the paths of the host keep their meaning."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    served = Served(lambda: Host(settings(tmp_path, cli="/nowhere")))
    served.wrap = lambda application: Starlette(routes=[Mount("/agents", application)])
    served.start()
    try:
        assert served.request("GET", "/agents/v1/sessions")[1]["sessions"] == []
        assert served.request("GET", "/agents/v1/sessions", token=None)[0] == 401
        assert served.request("GET", "/agents/healthz", token=None) == (204, None)
        with served.dial(path="/agents/v1/wire") as client:
            assert client.start()["code"] == "start_failed"
    finally:
        served.stop()


def test_sessions_that_ended_long_ago_are_forgotten(serve_host: MakeHost) -> None:
    with FakeCLI.shell("echo over") as fake:
        served = serve_host(cli=fake.path, keep_seconds=0.0)
        with served.dial() as client:
            client.start()
            client.until("ended")
            served.call(served.host.sweep)
            assert [session.id for session in served.host.sessions] == [client.session]  # somebody is attached
        deadline = time.monotonic() + LIMIT
        while any(session.attached_count for session in served.host.sessions):  # the host forgets them by itself, too
            assert time.monotonic() < deadline
            time.sleep(0.01)
        served.call(served.host.sweep)
        assert served.host.sessions == []
