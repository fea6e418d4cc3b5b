"""The scripted model as an HTTP server: no CLI, plain requests."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pilothouse_testing import (
    BrokenSse,
    Gate,
    Hang,
    HttpError,
    Pause,
    RawBlock,
    Reply,
    ScriptedModel,
    Steps,
    StreamError,
    Text,
    Thinking,
    Times,
    ToolUse,
    api_server,
)


def connect(model: ScriptedModel) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(model.url.removeprefix("http://"), timeout=10)


def ask(model: ScriptedModel, content: Any = "hi", /, **body: Any) -> tuple[int, dict[str, str], bytes]:
    messages = body.pop("messages", [{"role": "user", "content": content}])
    headers = {"x-api-key": "sk-secret", "content-type": "application/json", **body.pop("headers", {})}
    connection = connect(model)
    try:
        connection.request(
            "POST", "/v1/messages?beta=true", json.dumps({"model": "m", "messages": messages, **body}), headers
        )
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def ask_json(model: ScriptedModel, content: Any = "hi", /, **body: Any) -> dict[str, Any]:
    return json.loads(ask(model, content, **body)[2])


def ask_text(model: ScriptedModel, content: Any = "hi", /, **body: Any) -> str:
    return ask_json(model, content, **body)["content"][0]["text"]


def events(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in data.decode().split("\n\n"):
        if block:
            name, value = block.split("\n")
            event = json.loads(value.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            found.append(event)
    return found


def tool_result(tool_use_id: str, text: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": tool_use_id, "name": "Bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": tool_use_id, "content": text}]},
    ]


def test_a_stream_has_the_events_of_the_messages_api():
    reply = Reply(
        [
            Thinking("Let me see.", signature="sig", chunks=2),
            Text("Hello", chunks=["Hel", "lo"]),
            ToolUse("Bash", {"a": 1}),
        ],
        usage={"input_tokens": 77},
        headers={"anthropic-ratelimit-unified-status": "allowed"},
    )
    with ScriptedModel(reply) as model:
        status, headers, data = ask(model, stream=True)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["anthropic-ratelimit-unified-status"] == "allowed"
    got = events(data)
    assert [e["type"] for e in got] == [
        "message_start",
        "ping",
        *("content_block_start", *["content_block_delta"] * 3, "content_block_stop"),
        *("content_block_start", *["content_block_delta"] * 2, "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    assert [e["index"] for e in got if e["type"] == "content_block_stop"] == [0, 1, 2]
    deltas = [e["delta"] for e in got if e["type"] == "content_block_delta"]
    assert [d["type"] for d in deltas] == ["thinking_delta"] * 2 + ["signature_delta"] + ["text_delta"] * 2 + [
        "input_json_delta"
    ]
    assert "".join(d.get("thinking", "") for d in deltas) == "Let me see."
    assert deltas[2]["signature"] == "sig"
    assert [d["text"] for d in deltas[3:5]] == ["Hel", "lo"]
    assert json.loads(deltas[5]["partial_json"]) == {"a": 1}
    start, end = got[0]["message"], got[-2]
    assert (start["model"], start["role"], start["content"], start["stop_reason"]) == ("m", "assistant", [], None)
    assert start["usage"]["input_tokens"] == end["usage"]["input_tokens"] == 77
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_without_streaming_the_same_reply_is_one_object():
    reply = [
        Thinking("Hm.", "s"),
        "Hello",
        ToolUse("Read", {"file": "ä"}, id="toolu_x"),
        RawBlock({"type": "odd", "n": 1}),
    ]
    with ScriptedModel(reply) as model:
        message = ask_json(model)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "toolu_x", "name": "Read", "input": {"file": "ä"}},
        {"type": "odd", "n": 1},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens"] > 1


def test_long_texts_become_a_bounded_number_of_deltas():
    text = "long " * 200_000
    with ScriptedModel(text) as model:
        got = events(ask(model, stream=True)[2])
    pieces = [e["delta"]["text"] for e in got if e["type"] == "content_block_delta"]
    assert "".join(pieces) == text
    assert len(pieces) == 64


def test_parallel_calls_get_ids_of_their_own():
    with ScriptedModel([ToolUse("A"), ToolUse("B")], ToolUse("C")) as model:
        ids = [b["id"] for _ in range(2) for b in ask_json(model)["content"]]
    assert len(set(ids)) == 3
    assert all(name.startswith("toolu_") for name in ids)


def test_rules_come_before_the_queue_and_the_default_after_it():
    with ScriptedModel("queued", default="default") as model:
        model.on("capital of France", reply="Paris.")
        model.on(re.compile(r"\d+ \+ \d+"), reply=lambda request: f"sum of {request.last_user_text}")
        model.on(lambda request: request.model == "special", reply="for special")
        assert ask_text(model, "The capital of France?") == "Paris."
        assert ask_text(model, "1 + 2") == "sum of 1 + 2"
        assert ask_text(model, "x", model="special") == "for special"
        assert ask_text(model, "x") == "queued"
        assert ask_text(model, "x") == "default"
        by = model.answered_by
        assert by[:2] == ("on('capital of France')", r"on(/\d+ \+ \d+/)")
        assert by[3:] == ("queue", "default")
        model.assert_done()


def test_a_rule_may_be_limited():
    with ScriptedModel(default="later") as model:
        rule = model.on(reply="first", times=1)
        assert [ask_text(model), ask_text(model)] == ["first", "later"]
        assert rule.used == 1


def test_steps_follow_the_results_of_their_own_tools():
    with ScriptedModel(default="default") as model:
        model.on("echo", reply="a rule that would also match the result")
        model.on("go", reply=Steps(ToolUse("Bash"), lambda request: f"got {request.tool_text}"))
        call = ask_json(model, "go")["content"][0]["id"]
        assert ask_text(model, messages=tool_result(call, "echo 1")) == "got echo 1"
        assert (
            ask_text(model, messages=tool_result("toolu_other", "echo 2")) == "a rule that would also match the result"
        )
        assert ask_text(model, "go") == "default"


def test_each_conversation_goes_through_the_steps_from_the_first():
    with ScriptedModel() as model:
        model.on("hi", reply=Steps("one", "two"))
        answers = [ask_text(model, headers={"x-claude-code-session-id": session}) for session in ("a", "b", "a", "b")]
        assert answers == ["one", "one", "two", "two"]
        model.assert_done()


def test_times_fails_and_then_succeeds():
    with ScriptedModel() as model:
        model.on("hi", reply=Steps(Times(2, HttpError(529)), "Hello"))
        assert [ask(model)[0] for _ in range(3)] == [529, 529, 200]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error"), (500, "api_error"),
        (529, "overloaded_error"),
    ],
)  # fmt: skip
def test_http_errors_have_the_form_of_the_api(status: int, kind: str):
    with ScriptedModel(HttpError(status, headers={"retry-after": "7"}), HttpError(status, "odd", "text")) as model:
        got, headers, data = ask(model, stream=True)
        assert (got, headers["retry-after"]) == (status, "7")
        assert json.loads(data)["error"]["type"] == kind
        assert json.loads(ask(model)[2])["error"] == {"type": "odd", "message": "text"}


def test_a_stream_error_comes_after_some_deltas():
    with ScriptedModel(default=StreamError(Text("abcdef", chunks=6), after=2)) as model:
        got = events(ask(model, stream=True)[2])
        assert [e["type"] for e in got[-3:]] == ["content_block_delta", "content_block_delta", "error"]
        assert got[-1]["error"] == {"type": "overloaded_error", "message": "Overloaded"}
        assert sum(e["type"] == "content_block_delta" for e in got) == 2
        assert ask_text(model) == "abcdef"


def test_broken_streams():
    with ScriptedModel() as model:
        for kind in ("bad_json", "no_stop", "no_message_stop", "empty", "html"):
            model.reply(BrokenSse(kind, Text("abcd", chunks=4)))
        bad = ask(model, stream=True)[2]
        with pytest.raises(ValueError, match="Expecting"):
            events(bad)
        half = events(ask(model, stream=True)[2])
        assert [e["type"] for e in half[-2:]] == ["content_block_delta"] * 2
        unfinished = events(ask(model, stream=True)[2])
        assert unfinished[-1]["type"] == "content_block_stop"
        assert ask(model, stream=True)[2] == b""
        status, headers, page = ask(model, stream=True)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.startswith(b"<!doctype html>")


def test_a_cut_stream_is_seen_as_cut():
    with ScriptedModel(default=BrokenSse("cut", Text("abcd", chunks=4))) as model:
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(model, stream=True)
        assert b'"text": "a"' in caught.value.partial
        assert b'"text": "d"' not in caught.value.partial
        assert ask_text(model) == "abcd"


def test_no_response_closes_before_the_status():
    with ScriptedModel(BrokenSse("no_response")) as model, pytest.raises(http.client.RemoteDisconnected):
        ask(model)


def test_an_unknown_way_to_break_is_refused():
    with pytest.raises(ValueError, match="bad_json, no_stop"):
        BrokenSse("nonsense")  # pyright: ignore[reportArgumentType]


def test_an_invalid_reply_is_refused():
    with ScriptedModel(default=[["nested"]]) as model:  # pyright: ignore[reportArgumentType]
        status, _, data = ask(model)
        assert status == 400
        assert b"Steps" in data
        assert len(model.errors) == 1


def test_a_script_that_ran_out_fails_loudly():
    with ScriptedModel("only one") as model:
        assert ask_text(model) == "only one"
        status, _, data = ask(model, "what now?")
        assert status == 400
        error = json.loads(data)["error"]
        assert error["type"] == "invalid_request_error"
        assert "no reply left" in error["message"]
        assert "what now?" in error["message"]
        with pytest.raises(AssertionError, match="no reply left"):
            model.assert_done()


def test_what_was_not_used_is_named():
    with ScriptedModel("left over") as model:
        model.on("never asked")
        model.on("hi", reply=Steps("one", "two"))
        ask(model)
        assert model.unused == ("on('never asked')", "on('hi') after step 1 of 2", "queued: left over")
        with pytest.raises(AssertionError, match="never asked"):
            model.assert_done()


def test_a_failing_function_in_the_script_reaches_the_test():
    def broken(request: object) -> str:
        raise LookupError("my own mistake")

    with ScriptedModel(broken) as model:
        assert ask(model)[0] == 400
        assert "LookupError: my own mistake" in model.errors[0]


@pytest.mark.parametrize("status", [400, 404])
def test_a_refused_request_of_the_cli_stays_refused_and_uses_nothing_up(status: int):
    session = {"x-claude-code-session-id": "s"}
    with ScriptedModel(HttpError(status), "fine") as model:
        assert [ask(model, headers=session)[0] for _ in range(3)] == [status] * 3
        assert ask_text(model, "something else", headers=session) == "fine"


def test_requests_are_recorded_without_keys():
    reminder = {"type": "text", "text": "<system-reminder>Do not mention this.</system-reminder>"}
    with ScriptedModel(default="ok") as model:
        ask(
            model,
            [reminder, {"type": "text", "text": "Hello"}],
            system=[{"type": "text", "text": "Be brief."}],
            tools=[{"name": "Bash"}, {"name": "Read"}],
            stream=True,
            headers={"authorization": "Bearer secret"},
        )
        ask(model, messages=[*tool_result("toolu_1", "done"), {"role": "system", "content": "It is late."}])
        first, second = model.requests
    assert (first.path, first.method, first.number, first.stream) == ("/v1/messages", "POST", 1, True)
    assert first.last_user_text == "Hello"
    assert first.system_text == "Be brief."
    assert first.tools == ("Bash", "Read")
    assert not first.is_side
    assert first.headers["x-api-key"] == first.headers["authorization"] == "[redacted]"
    assert "secret" not in repr(first)
    assert second.last_tool_result is not None
    assert (second.last_tool_result.tool_use_id, second.last_tool_result.text) == ("toolu_1", "done")
    assert second.last_user_text == "go"
    assert second.newest_text == "done"
    assert second.system_text == "It is late."


def test_side_requests_use_nothing_up():
    title = [{"type": "text", "text": "You are naming a coding session so that …"}]
    with ScriptedModel("main") as model:
        assert json.loads(ask_text(model, system=title)) == {"title": "Scripted session"}
        assert ask_text(model, "quota", max_tokens=1) == "ok"
        connection = connect(model)
        connection.request("POST", "/v1/messages/count_tokens", "{}")
        assert json.loads(connection.getresponse().read()) == {"input_tokens": 10}
        connection.request("HEAD", "/")
        assert connection.getresponse().read() == b""
        connection.request("GET", "/v1/unknown?x=1")
        response = connection.getresponse()
        assert response.status == 404
        assert json.loads(response.read())["error"]["type"] == "not_found_error"
        connection.close()
        assert [r.side for r in model.side_requests] == ["title", "quota", "count_tokens", "probe", "other"]
        assert model.requests == ()
        model.on(side="title", reply='{"title": "Mine"}')
        assert "Mine" in ask_text(model, system=title)
        assert ask_text(model) == "main"


def test_a_gate_stops_the_stream_until_the_test_opens_it():
    gate = Gate()
    with ScriptedModel(["before", Pause(gate), "after"]) as model:
        connection = connect(model)
        connection.request("POST", "/v1/messages", json.dumps({"stream": True, "messages": []}))
        response = connection.getresponse()
        gate.wait_reached()
        seen = b""
        while b"content_block_stop" not in seen:
            seen += response.read1()
        assert b"after" not in seen
        gate.open()
        assert b"after" in response.read()
        connection.close()


def test_delays_are_kept():
    with ScriptedModel(
        Reply(Text("ab", chunks=2), delay=0.1, chunk_delay=0.1), Text("ab", chunks=2, delay=0.1)
    ) as model:
        began = time.monotonic()
        ask(model, stream=True)
        middle = time.monotonic()
        ask(model, stream=True)
        assert middle - began >= 0.29
        assert time.monotonic() - middle >= 0.19


@pytest.mark.parametrize("answer", [Hang(), Hang("some"), ["a", Pause(60.0)], ["a", Pause(Gate())]])
def test_stop_does_not_wait_for_streams_that_hang(answer: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api_server, "STOP_SECONDS", 60.0)
    threads = set(threading.enumerate())
    model = ScriptedModel(answer).start()
    connection = connect(model)
    connection.request("POST", "/v1/messages", json.dumps({"stream": True, "messages": []}))
    model.wait_for_requests(1)
    began = time.monotonic()
    model.stop()
    assert time.monotonic() - began < 20
    assert set(threading.enumerate()) <= threads  # one of an earlier test may have ended
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        connection.getresponse().read()
    connection.close()
    model.stop()


def test_start_and_stop_are_quick_and_the_home_goes():
    with ScriptedModel():
        pass  # imports are paid once
    began = time.process_time()
    model = ScriptedModel().start()
    assert time.process_time() - began < 0.3
    home = model.home
    assert home.is_dir()
    with pytest.raises(RuntimeError, match="runs already"):
        model.start()
    model.stop()
    assert time.process_time() - began < 1.0
    assert not home.exists()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = model.url


def test_waiting_for_requests_ends():
    with ScriptedModel() as model, pytest.raises(TimeoutError, match="0 of 1"):
        model.wait_for_requests(1, timeout=0.01)


@pytest.mark.anyio
async def test_as_an_async_context_manager():
    async with ScriptedModel("Hello") as model:
        assert await anyio.to_thread.run_sync(ask_text, model) == "Hello"
        home = model.home
    assert not home.exists()


@pytest.mark.anyio
async def test_cancelled_it_still_stops():
    model = ScriptedModel()
    with anyio.CancelScope() as scope:
        async with model:
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(RuntimeError):
        _ = model.url


@pytest.mark.requirement("R38")
def test_the_environment_is_hermetic(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-real")
    monkeypatch.setenv("MY_SETTING", "1")
    with ScriptedModel() as model:
        env = model.env(max_retries=0, EXTRA="yes")
        assert env["ANTHROPIC_BASE_URL"] == model.url
        assert env["HOME"] == str(model.home)
        assert env["CLAUDE_CONFIG_DIR"].startswith(env["HOME"])
        assert env["CLAUDE_CODE_MAX_RETRIES"] == "0"
        assert env["EXTRA"] == "yes"
        assert "sk-real" not in env.values()
        assert "MY_SETTING" not in env
        assert env["DISABLE_TELEMETRY"] == env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
