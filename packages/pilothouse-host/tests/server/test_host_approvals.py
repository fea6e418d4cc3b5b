"""Asks of sessions that the host drives: listed and settled over REST, kept across a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from served_host import LIMIT, TOKEN, MakeHost, Program, Served, find, finish

from pilothouse_cli.host_client import client_settings, read_body
from pilothouse_host import ClientLimits
from pilothouse_host.approvals import MAX_APPROVAL_BYTES
from pilothouse_testing import FakeCLI, RecordedRequest, ScriptedModel, Steps, Text, ToolUse, frames

BASH = {"tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "call_1"}
QUESTION = {"question": "Which?", "header": "H", "options": [{"label": "A"}, {"label": "B"}], "multiSelect": False}
EDIT = {
    "tool_name": "Edit",
    "input": {"file_path": "a"},
    "permission_suggestions": [
        {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
        {"type": "addDirectories", "directories": ["/"], "destination": "session"},
    ],
}


def asking(**body: Any) -> FakeCLI:
    """A CLI that asks once in its turn."""
    return FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", **body).emit(frames.result("done"))


def settle(served: Served, ask: dict[str, Any], token: str = TOKEN, **body: Any) -> tuple[int, Any]:
    return served.request("POST", f"/v1/sessions/{ask['session']}/asks/{ask['id']}", body, token=token)


def response(fake: FakeCLI) -> Any:
    """What the CLI got for its request."""
    frames_read = [frame for frame in fake.calls[0].frames if frame.get("type") == "control_response"]
    return frames_read[-1]["response"]["response"]


@pytest.mark.parametrize(
    ("request_body", "body", "answer"),
    [
        (BASH, {"decision": "allow"}, {"behavior": "allow", "updatedInput": {"command": "ls"}}),
        (BASH, {"decision": "allow", "input": {"command": "pwd"}}, {"updatedInput": {"command": "pwd"}}),
        (BASH, {"decision": "deny", "reason": "not now"}, {"behavior": "deny", "message": "not now"}),
        (
            {"tool_name": "AskUserQuestion", "input": {"questions": [QUESTION]}},
            {"decision": "answer", "answers": {"Which?": "B"}},
            {"updatedInput": {"questions": [QUESTION], "answers": {"Which?": "B"}}},
        ),
    ],
)
def test_an_ask_is_settled_over_rest(serve_host: MakeHost, request_body: Any, body: Any, answer: Any) -> None:
    with asking(**request_body) as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        [ask] = find(served)
        assert (ask["session"], ask["tool"], ask["restored"]) == (made["id"], request_body["tool_name"], False)
        assert served.request("GET", f"/v1/sessions/{made['id']}")[1]["asks"] == 1
        assert settle(served, ask, **body)[0] == 200
        status, refusal = settle(served, ask, decision="deny")
        assert (status, refusal["error"]["code"]) == (409, "settled")
        assert "'host'" in refusal["error"]["message"]
        assert finish(served, made["id"])["last_result"]["text"] == "done"
        assert find(served, 0) == []
        given = response(fake)
        assert {name: given.get(name) for name in answer} == answer


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"decision": "maybe"}, 400, "maybe"),
        ({"decision": "answer", "answers": "x"}, 400, "allow\\(\\) or deny"),
        ({"decision": "allow", "minutes": -1}, 400, "minutes"),
        ({"decision": "allow", "always": True}, 400, "proposes no rule"),
        ({"decision": "allow", "more": 1}, 400, "more"),
    ],
)
def test_a_decision_that_does_not_fit_leaves_the_ask(serve_host: MakeHost, body: Any, status: int, words: str) -> None:
    with asking(**BASH) as fake:
        served = serve_host(cli=fake.path)
        served.request("POST", "/v1/sessions", {"prompt": "hi"})
        [ask] = find(served)
        answered, refusal = settle(served, ask, **body)
        assert answered == status
        assert pytest.RaisesExc(ValueError, match=words).matches(ValueError(refusal["error"]["message"]))
        assert find(served) == [ask]
        assert settle(served, {**ask, "id": "ask_none"}, decision="allow")[0] == 404


def test_a_token_sees_and_settles_only_its_own_asks(serve_host: MakeHost) -> None:
    ann, bob = "ann-token-0123456789", "bob-token-9876543210"
    with asking(**BASH) as fake:
        served = serve_host(cli=fake.path, tokens={"ann": ann, "bob": bob})
        served.request("POST", "/v1/sessions", {"prompt": "hi"}, token=ann)
        [ask] = find(served, token=ann)
        assert find(served, 0, token=bob) == []
        assert settle(served, ask, token=bob, decision="allow")[0] == 404
        assert find(served) == [ask]
        assert settle(served, ask, token=ann, decision="allow")[1]["by"] == "ann"


@pytest.mark.parametrize("limits", [ClientLimits(permission_mode="default"), ClientLimits()])
def test_always_goes_no_further_than_the_limits_of_clients(serve_host: MakeHost, limits: ClientLimits) -> None:
    with asking(**EDIT) as fake:
        served = serve_host(cli=fake.path, clients=limits)
        served.request("POST", "/v1/sessions", {"prompt": "hi"})
        [ask] = find(served)
        status, refusal = settle(served, ask, decision="allow", always=True)
        assert status == 403
        assert ("modes up to 'default'" if limits.permission_mode == "default" else "is not below") in refusal["error"][
            "message"
        ]
        assert find(served) == [ask]


def short(event: dict[str, Any]) -> tuple[str, Any]:
    data = event["data"]
    return event["event"], data.get("state") or data.get("decision") or data.get("tool")


def read_to(events: Iterator[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """The next events up to one with this name."""
    for event in events:
        yield event
        if event["event"] == name:
            return


def test_events_of_all_sessions_resume_without_loss(serve_host: MakeHost) -> None:
    ann, bob = "ann-token-0123456789", "bob-token-9876543210"
    with asking(**BASH) as fake:
        served = serve_host(cli=fake.path, tokens={"ann": ann, "bob": bob})
        with served.events(last=0) as live, served.events(last=0, token=bob) as none:
            _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"}, token=ann)
            seen = list(read_to(live, "asked"))
            ask = seen[-1]["data"]
            assert find(served) == [ask]
            assert settle(served, ask, decision="allow")[0] == 200
            finish(served, made["id"])
            assert served.request("DELETE", f"/v1/sessions/{made['id']}", token=ann)[0] == 204
            seen += read_to(live, "closed")
            served.request("POST", "/v1/sessions", {}, token=bob)
            assert next(none)["data"]["owner"] == "bob"
        assert [name for name, _ in map(short, seen) if name != "session"] == ["asked", "settled", "closed"]
        assert ("settled", "allow") in map(short, seen)
        assert [event["id"] for event in seen] == sorted({event["id"] for event in seen})
        assert {event["data"]["owner"] for event in seen if event["event"] == "session"} == {"ann"}
        for at, event in enumerate(seen[:-1]):
            with served.events(last=event["id"]) as again:
                assert [next(again) for _ in seen[at + 1 :]] == seen[at + 1 :]
    for last, status in (("x", 400), (str(seen[-1]["id"] + 100), 400), ("-1", 400)):
        with served.response("GET", "/v1/events", Last_Event_ID=last) as answer:
            assert answer.status == status


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("path", ["", "/", "/v1/wire"])
def test_a_chat_takes_either_scheme_of_an_address(serve_host: MakeHost, scheme: str, path: str) -> None:
    served = serve_host()
    with httpx2.Client(**client_settings(f"{scheme}://127.0.0.1:{served.port}{path}", TOKEN)) as client:
        assert read_body(client.get("/v1/sessions"))["sessions"] == []


def test_a_chat_shows_an_ask_that_is_too_long_for_an_event(serve_host: MakeHost) -> None:
    given = {"file_path": "/a", "content": "first line\n" + "x" * 100_000}
    with asking(tool_name="Write", input=given, tool_use_id="call_1") as fake:
        served = serve_host(cli=fake.path)
        command = [sys.executable, "-m", "pilothouse", "chat", "--remote", f"http://127.0.0.1:{served.port}", "hi"]
        env = {**os.environ, "PILOTHOUSE_HOST_TOKEN": TOKEN}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        with subprocess.Popen(command, env=env, stderr=subprocess.STDOUT, text=True, bufsize=1, **pipes) as chat:
            assert chat.stdin is not None
            assert chat.stdout is not None
            shown = ""
            while "first line" not in shown:
                shown += (line := chat.stdout.readline())
                assert line, shown
            chat.stdin.write("y\n")
            chat.stdin.close()
            chat.stdout.read()
            assert chat.wait(LIMIT) == 0
        assert response(fake)["behavior"] == "allow"
    assert "/a" in shown


def test_a_form_that_is_too_long_for_a_person_is_declined(
    serve_host: MakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {f"field{number}": {"type": "string"} for number in range(20_000)}
    body: dict[str, Any] = {
        "mcp_server_name": "forms",
        "message": "Fill",
        "requested_schema": {"type": "object", "properties": fields},
    }
    fake = FakeCLI().expect("user").emit(frames.init()).ask("elicitation", **body).emit(frames.result("done"))
    with fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        assert finish(served, made["id"])["last_result"]["text"] == "done"
        assert response(fake)["action"] == "decline"
    assert "declined a form of the MCP server 'forms'" in caplog.text


def test_an_ask_that_is_too_long_for_a_person_is_denied(serve_host: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    with asking(**{**BASH, "input": {"command": "x" * MAX_APPROVAL_BYTES}}) as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        finish(served, made["id"])
        assert "too long for a person to read" in response(fake)["message"]
    assert "denied a request of" in caplog.text


def test_an_ask_that_nobody_settles_is_denied(serve_host: MakeHost) -> None:
    with asking(**BASH) as fake:
        served = serve_host(cli=fake.path, ask_seconds=0.1)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
        finish(served, made["id"])
        assert "nobody decided within 0.1 s" in response(fake)["message"]


def test_an_ask_of_a_stopped_host_waits_in_the_journal(tmp_path: Path) -> None:
    with asking(**BASH) as fake:
        program = Program(tmp_path, fake.path, "--drain", "0.1", "--ask-timeout", "500")
        with program as served:
            _, made = served.request("POST", "/v1/sessions", {"prompt": "hi"})
            [before] = find(served)
            assert round(before["expires_at"] - before["asked_at"]) == 500
            assert program.end(signal.SIGTERM)[0] == 0
        with Program(tmp_path, fake.path) as served:
            assert find(served) == [{**before, "restored": True}]
            assert served.request("DELETE", f"/v1/sessions/{made['id']}")[0] == 204
            assert find(served, 0) == []


CALL = ToolUse("Bash", {"command": "touch made", "description": "d"})


def act(request: RecordedRequest) -> Text | ToolUse:
    """A model that calls at first, and again when it is told that it may; other results of the call end its turn."""
    last = str(request.messages[-1])
    if "tool_result" in last:
        return Text("heard" if "restarted" in str(request.messages) else "the child of the killed host")
    return Text("heard: no") if "not allowed" in last else CALL


@pytest.mark.real_cli
@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_an_ask_outlives_a_killed_host(
    tmp_path: Path, real_cli: str, scripted_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    """The real CLI asks, the host is killed, and another host on the same journal gets the decision."""
    for name, value in scripted_model.env().items():
        monkeypatch.setenv(name, value)
    scripted_model.reply(Steps(act, act, act, act, act))
    program = Program(tmp_path, real_cli)
    with program as served:
        _, made = served.request("POST", "/v1/sessions", {"prompt": "hi", "options": {"tools": ["Bash"]}})
        [before] = find(served)
        program.kill()
    with Program(tmp_path, real_cli) as served:
        [ask] = find(served)
        assert ask == {**before, "restored": True}
        assert settle(served, ask, decision=decision, reason="too late")[0] == 200
        found = finish(served, made["id"])
        assert found["last_result"]["text"].startswith("heard"), found
        assert found["last_result"]["denied"] == []
        assert find(served, 0) == []
        told = scripted_model.requests[-1].messages
        assert scripted_model.requests[0].messages[0] == told[0]  # the same conversation
        assert ("It is allowed now" if decision == "allow" else "too late") in str(told)
        assert (tmp_path / "work" / "made").exists() == (decision == "allow")
        assert settle(served, ask, decision="deny")[0] == 409
