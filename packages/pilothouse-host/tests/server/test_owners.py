"""What one token takes from the others: children, connections, bodies, prompts, the journal, and conversations."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from served_host import ARGV, LIMIT, TOKEN, MakeHost, Served, finish, prompt

import pilothouse as ph
from pilothouse.errors import RemoteError
from pilothouse_access import guard
from pilothouse_host import application, host
from pilothouse_host.server_sessions import find_conversation
from pilothouse_models.endpoints import EndpointModels, openai_routes
from pilothouse_remote import on_host
from pilothouse_testing import FakeCLI, ScriptedModel, frames

ANN, BOB = "the-token-of-ann-0123456789", "the-token-of-bob-9876543210"
TOKENS = {"ann": ANN, "bob": BOB}
MINE, HIS = "0b0c0d0e-0000-4000-8000-000000000001", "0b0c0d0e-0000-4000-8000-000000000002"


def start(served: Served, token: str, **body: Any) -> int:
    return served.request("POST", "/v1/sessions", body, token=token)[0]


# Children.


def test_a_token_leaves_a_child_to_each_other_one(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, max_sessions=4, tokens=TOKENS)
        assert [start(served, ANN) for _ in range(4)] == [201, 201, 429, 429]
        assert [start(served, BOB) for _ in range(2)] == [201, 429]
        assert [start(served, TOKEN) for _ in range(2)] == [201, 429]
        status, refused = served.request("POST", "/v1/sessions", {}, token=ANN)
        assert (status, refused["error"]["code"], "2 of them for this token" in refused["error"]["message"]) == (
            429,
            "limit",
            True,
        )
        with served.response("POST", "/v1/sessions", {}, token=ANN) as response:
            assert response.headers["retry-after"] == "5"
        with served.dial(token=ANN) as dialled:
            assert dialled.start()["code"] == "limit"


def test_a_host_with_fewer_children_than_tokens_says_so(serve_host: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, max_sessions=2, tokens=TOKENS)
        assert "max_sessions is 2, for 3 tokens" in caplog.text
        assert [start(served, token) for token in (ANN, ANN, TOKEN)] == [201, 429, 201]


# Connections and bodies.

STREAM = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n"


@contextmanager
def connected(served: Served, count: int, text: str) -> Generator[list[socket.socket]]:
    """So many connections, each after the first bytes of its response."""
    with ExitStack() as stack:
        found: list[socket.socket] = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT))
            one.sendall(text.encode())
            found.append(one)
        yield found


def test_a_token_leaves_connections_to_each_other_one(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "compute_connection_limit", lambda sessions: 32)
    served = serve_host(cli="/nowhere", tokens=TOKENS)
    with connected(served, 40, STREAM.format(ANN)) as streams:
        statuses = Counter(one.recv(65536)[9:12] for one in streams)
        assert statuses == {b"200": 20, b"429": 20}  # of 24; two are reserved for each other token
        for token in (BOB, TOKEN):
            with served.events(token=token):
                assert served.request("GET", "/v1/sessions", token=token)[0] == 200
        assert served.request("GET", "/v1/sessions", token=ANN)[0] == 429
    deadline = time.monotonic() + LIMIT
    while served.request("GET", "/v1/sessions", token=ANN)[0] != 200:  # once the host has seen that they are closed
        assert time.monotonic() < deadline


BODY = (
    f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\nContent-Length: 8000000\r\n\r\n"
)


def test_a_body_has_a_time_limit_even_if_it_drips(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    served = serve_host(cli="/nowhere", tokens=TOKENS)
    with connected(served, 2, BODY) as (silent, dripping):
        begin = time.monotonic()
        is_over = threading.Event()

        def drip() -> None:
            while not is_over.wait(0.05):
                try:
                    dripping.sendall(b" ")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        assert served.request("GET", "/v1/sessions", token=BOB)[0] == 200
        for one in (silent, dripping):
            received = b""
            try:
                while data := one.recv(65536):
                    received += data
            except ConnectionError:
                pass  # it is closed while bytes of it are still unread
            assert (received[9:12], b'"timeout"' in received, b"connection: close" in received) == (b"408", True, True)
        assert time.monotonic() - begin < 5
        is_over.set()
        thread.join()


def test_a_token_leaves_memory_for_the_bodies_of_others(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_BODIES_BYTES", 100_000)
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)
        with connected(served, 3, BODY + "x" * 30_000) as slow:
            [refused], _, _ = select.select(slow, [], [], LIMIT)  # 90,000 are more than ann may have
            assert b"429" in refused.recv(65536)
            assert start(served, ANN, prompt="x" * 30_000) == 429
            assert start(served, BOB, options={"append_system_prompt": "x" * 8_000}) == 201


def test_prompts_that_wait_have_a_limit_of_bytes(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_WAITING_BYTES", 10_000)
    with FakeCLI().turn(frames.init()).hang() as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "x" * 4000}, token=ANN)
        path = f"/v1/sessions/{made['id']}/prompt"
        statuses = [served.request("POST", path, {"prompt": "y" * 4000}, token=ANN)[0] for _ in range(2)]
        assert statuses == [202, 429]
        [waiting] = served.request("GET", f"/v1/sessions/{made['id']}", token=ANN)[1]["queued"]
        assert start(served, BOB, prompt="z" * 500) == 201
        assert served.request("DELETE", f"/v1/sessions/{made['id']}/prompts/{waiting['id']}", token=ANN)[0] == 204
        deadline = time.monotonic() + LIMIT
        while served.request("POST", path, {"prompt": "y" * 4000}, token=ANN)[0] != 202:
            assert time.monotonic() < deadline


# The journal.


def size_of_journal(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("host.sqlite*"))


def test_a_long_system_prompt_is_not_in_the_journal(serve_host: MakeHost, tmp_path: Path) -> None:
    with FakeCLI().text("one").text("two") as fake:
        served = serve_host(cli=fake.path)
        before = size_of_journal(tmp_path)
        body = {"options": {"system_prompt": "y" * 7_000_000, "model": "opus"}, "prompt": "hi"}
        status, made = served.request("POST", "/v1/sessions", body)
        assert (status, made["start"]["names"]) == (201, ["model", "system_prompt"])
        finish(served, made["id"])
        served.request("POST", f"/v1/sessions/{made['id']}/prompt", {"prompt": "more"})
        assert finish(served, made["id"])["last_result"]["text"] == "two"
        settings = {"model": "z" * 5_000_000}
        assert served.request("POST", f"/v1/sessions/{made['id']}/settings", settings)[0] == 400
        assert size_of_journal(tmp_path) - before < 1_000_000


def test_options_that_are_kept_are_not_in_each_event(serve_host: MakeHost, tmp_path: Path) -> None:
    with FakeCLI().text("x" * 3000) as fake:
        served = serve_host(cli=fake.path)
        before = size_of_journal(tmp_path)
        body = {"options": {"system_prompt": "y" * 500_000}, "prompt": "hi"}
        _, made = served.request("POST", "/v1/sessions", body)
        whole = finish(served, made["id"])
        assert (len(whole["start"]["options"]["system_prompt"]), len(whole["last_result"]["text"])) == (500_000, 3000)
        with served.events(last=0) as events:
            told = [next(events)["data"] for _ in range(3)]
            while not told[-1]["last_result"]:
                told.append(next(events)["data"])
        assert told[-1]["start"] == {"cwd": whole["start"]["cwd"], "title": "hi", "options": {}}
        assert told[-1]["last_result"]["text"] == "x" * 2000
        assert size_of_journal(tmp_path) - before < 2_500_000


def test_a_long_ask_is_whole_in_the_list_and_not_in_its_event(serve_host: MakeHost) -> None:
    given = {"file_path": "/a", "content": "x" * 100_000}
    fake = FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", tool_name="Write", input=given)
    with fake.emit(frames.result("done")):
        served = serve_host(cli=fake.path)
        start(served, TOKEN, prompt="hi")
        with served.events(last=0) as events:
            asked = next(event["data"] for event in events if event["event"] == "asked")
        assert (asked["request"], asked["tool"], len(asked["title"]) <= 2000) == (None, "Write", True)
        [ask] = served.request("GET", "/v1/asks")[1]["asks"]
        assert (ask["id"], ask["request"]["input"]) == (asked["id"], given)


# Conversations.


def made_by(served: Served, token: str, conversation: str) -> None:
    """Let a session of the token make a conversation."""
    _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"}, token=token)
    assert finish(served, made["id"])["conversation"] == conversation


def say(conversation: str) -> FakeCLI:
    return FakeCLI().turn(
        frames.init(session_id=conversation),
        frames.assistant("said", session_id=conversation),
        frames.result("said", session_id=conversation),
    )


def resume(served: Served, token: str, conversation: str, **options: Any) -> int:
    return start(served, token, options={"resume": conversation, **options})


def test_a_conversation_is_resumed_by_its_owner_and_the_operator(serve_host: MakeHost) -> None:
    with say(MINE) as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)
        made_by(served, ANN, MINE)
        for _ in range(2):  # also after a restart of the host
            for token, conversation, status in (
                (ANN, MINE, 201),
                (ANN, MINE.upper(), 201),
                (BOB, MINE, 403),
                (ANN, HIS, 403),  # nobody knows it: perhaps the host's user has it on disk
                (TOKEN, MINE, 201),
                (TOKEN, HIS, 201),
            ):
                assert resume(served, token, conversation) == status, (token, conversation)
            assert resume(served, BOB, MINE, fork_session=True) == 403
            assert resume(served, ANN, MINE, fork_session=True) == 201
            with served.dial(token=BOB) as dialled:
                refused = dialled.start((*ARGV, f"--resume={MINE}"))
                assert (refused["code"], "no session of this token has made" in refused["message"]) == (
                    "forbidden",
                    True,
                )
            with served.dial(token=ANN) as dialled:
                assert dialled.start((*ARGV, f"--resume={MINE}"))["op"] == "ready"
            served.stop()
            served = serve_host(cli=fake.path, tokens=TOKENS)


def test_an_operator_who_resumes_a_conversation_does_not_own_it(serve_host: MakeHost) -> None:
    with say(MINE) as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)
        made_by(served, ANN, MINE)
        made_by(served, TOKEN, MINE)
        assert [resume(served, token, MINE) for token in (ANN, BOB)] == [201, 403]


def talk(served: Served) -> None:
    """Let a session of ann over the wire have a turn."""
    with served.dial(token=ANN) as dialled:
        dialled.start()
        dialled.send(0, prompt("hi"))
        dialled.until_output(b'"type": "result"')


@pytest.mark.parametrize("size", [65536, 300])
def test_a_conversation_over_the_wire_belongs_to_its_token(serve_host: MakeHost, size: int) -> None:
    with say(MINE).chunked(size) as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)
        talk(served)
        assert [resume(served, token, MINE) for token in (ANN, BOB, TOKEN)] == [201, 403, 201]


@pytest.mark.real_cli
def test_conversations_of_the_real_cli_have_owners(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "noted"
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0), tokens=TOKENS)

    async def ask(token: str, **options: Any) -> str:
        options = {"tools": [], "setting_sources": [], **options}
        agent = ph.Agent(transport=on_host(served.url, token=token), **options)
        return (await agent.query("hi")).session_id or ""

    made = anyio.run(lambda: ask(ANN))
    assert anyio.run(lambda: ask(ANN, resume=made)) == made
    forked = anyio.run(lambda: ask(ANN, resume=made, fork_session=True))
    for conversation in (made, forked):
        with pytest.raises(RemoteError, match="no session of this token has made"):
            anyio.run(lambda each=conversation: ask(BOB, resume=each))
        assert anyio.run(lambda each=conversation: ask(TOKEN, resume=each)) == conversation


def test_what_a_model_writes_makes_no_conversation_the_owners(serve_host: MakeHost) -> None:
    named = {"type": "system", "subtype": "init", "session_id": HIS}
    call = frames.assistant([frames.tool_use("Bash", named)], session_id=MINE)
    del call["session_id"]  # the last id of the line is that of the call
    replayed = {"type": "user", "message": {"role": "user", "content": "hi"}, "session_id": HIS}
    fake = FakeCLI().turn(frames.init(session_id=MINE), call, replayed, frames.result("said", session_id=MINE))
    with fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)
        talk(served)
        assert [resume(served, ANN, each) for each in (MINE, HIS)] == [201, 403]


def test_what_a_model_writes_names_no_conversation() -> None:
    init, replayed = (
        json.dumps({"type": kind, "subtype": "init", "session_id": key}).encode() + b"\n"
        for kind, key in (("system", MINE), ("user", HIS))
    )
    assert find_conversation(replayed, begins_line=True) == ""
    assert find_conversation(init + replayed, begins_line=True) == MINE


def test_a_token_cannot_begin_a_conversation_that_is_there(
    serve_host: MakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "home" / ".claude" / "projects" / "-elsewhere" / f"{HIS}.jsonl"
    there.parent.mkdir(parents=True)
    said = {"type": "user", "uuid": MINE, "sessionId": HIS, "message": {"role": "user", "content": "a secret"}}
    there.write_text(json.dumps(said) + "\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS)

        def begin(token: str, conversation: str) -> int:
            return start(served, token, options={"session_id": conversation})

        assert [begin(token, HIS) for token in (ANN, TOKEN)] == [403, 201]
        assert [begin(ANN, MINE), begin(BOB, MINE)] == [201, 403]
        assert [resume(served, token, MINE) for token in (ANN, BOB)] == [201, 403]
        with served.dial(token=ANN) as dialled:
            assert dialled.start((*ARGV, f"--session-id={HIS}"))["code"] == "forbidden"


# Stored responses of endpoints.


def test_a_stored_response_does_not_exist_for_other_tokens(serve_host: MakeHost) -> None:
    with FakeCLI().text("noted").forever() as fake:
        routes = openai_routes(EndpointModels(cli=fake.path), token=None)
        served = serve_host(cli=fake.path, tokens=TOKENS, routes=routes)

        def ask(token: str, text: str, previous: str | None = None) -> tuple[int, Any]:
            body = {"model": "sonnet", "input": text, "previous_response_id": previous}
            return served.request("POST", "/v1/responses", body, token=token)

        status, made = ask(ANN, "my secret is 4711")
        assert status == 200, made
        path = f"/v1/responses/{made['id']}"
        for method in ("GET", "DELETE"):
            status, refused = served.request(method, path, token=BOB)
            assert (status, refused["error"]["code"]) == (404, "previous_response_not_found")
        status, refused = ask(BOB, "repeat", made["id"])
        assert (status, refused["error"]["code"]) == (404, "previous_response_not_found")
        assert "4711" not in str(fake.calls[1:])
        assert [served.request("GET", path, token=token)[0] for token in (ANN, TOKEN)] == [200, 200]
        assert ask(ANN, "repeat", made["id"])[0] == 200
        assert served.request("DELETE", path, token=ANN)[0] == 200
        assert served.request("GET", path, token=ANN)[0] == 404
