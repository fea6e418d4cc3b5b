"""What stands between Claude Code and a model that knows no tools: translated there and back, and nothing else."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_models.local import shim

READ = {
    "name": "Read",
    "description": "Reads a file.\nMore about it.",
    "input_schema": {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["file_path"],
    },
}
BASH = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "a"}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "hello"}]}
PROMPT = {"role": "user", "content": "Read a"}


def asked(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 50, "tools": [READ, BASH], "messages": list(messages) or [PROMPT], **more}


def schema_of(body: dict[str, Any]) -> Any:
    return shim.make_chat_request(body)["response_format"]["json_schema"]["schema"]


def completion(output: str, finish: str = "stop") -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": output}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def allows(schema: Any, answer: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(answer)


def test_the_answer_is_a_call_of_a_tool_or_a_text() -> None:
    schema = schema_of(asked())
    assert allows(schema, {"tool": "Read", "input": {"file_path": "a"}})
    assert allows(schema, {"tool": "Bash", "input": {"command": "ls"}})
    assert allows(schema, {"text": "Hello."})
    for other in ({"tool": "Write", "input": {}}, {"tool": "Read", "input": {}}, {"text": ""}, "Hello."):
        assert not allows(schema, other)


@pytest.mark.parametrize(
    ("choice", "wanted", "call", "text"),
    [("auto", None, True, True), ("any", None, True, False), ("tool", "Read", True, False)],
)
def test_the_choice_of_the_request_is_heeded(choice: str, wanted: str | None, call: bool, text: bool) -> None:
    schema = schema_of(asked(tool_choice={"type": choice, "name": wanted}))
    assert allows(schema, {"tool": "Read", "input": {"file_path": "a"}}) is call
    assert allows(schema, {"text": "Hello."}) is text
    assert allows(schema, {"tool": "Bash", "input": {"command": "ls"}}) is (wanted is None)


def test_after_three_results_it_has_to_answer() -> None:
    call = {"tool": "Read", "input": {"file_path": "a"}}
    turns = [PROMPT, *[CALL, RESULT] * 2]
    assert allows(schema_of(asked(*turns)), call)
    turns += [CALL, RESULT]
    assert not allows(schema_of(asked(*turns)), call)
    assert allows(schema_of(asked(*turns, {"role": "assistant", "content": "Done."}, PROMPT)), call)


def test_what_the_model_sees_is_short_and_in_words() -> None:
    image = {"role": "user", "content": [{"type": "image", "source": {}}]}
    long = {"role": "user", "content": "x" * 100_000}
    reported = shim.make_chat_request(
        asked(long, CALL, RESULT, image, system=[{"type": "text", "text": "Be kind. " * 5000}])
    )
    texts = [message["content"] for message in reported["messages"]]
    assert [message["role"] for message in reported["messages"]] == ["system", "user", "assistant", "user"]
    assert texts[2:] == ['{"tool": "Read", "input": {"file_path": "a"}}', "Result of Read: hello"]
    assert texts[0].endswith("Read: Reads a file.\nBash:")
    assert max(map(len, texts)) < 2000


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": []},
        {"tools": None},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [READ], "tool_choice": {"type": "none"}},
    ],
)
def test_a_request_without_tools_is_none_of_its_business(body: dict[str, Any]) -> None:
    assert not shim.has_callable_tools(body)


def test_a_call_becomes_a_block() -> None:
    answer = shim.make_message(asked(), completion('{"tool": "Read", "input": {"file_path": "a"}}'))
    [block] = answer["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "Read", {"file_path": "a"})
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"] == {"input_tokens": 7, "output_tokens": 3}


@pytest.mark.parametrize(
    ("output", "finish", "text", "reason"),
    [
        ('{"text": "Hello."}', "stop", "Hello.", "end_turn"),
        ('{"text": "Hel', "length", '{"text": "Hel', "max_tokens"),
        ("", "stop", "…", "end_turn"),
    ],
)
def test_plain_output_becomes_a_text(output: str, finish: str, text: str, reason: str) -> None:
    answer = shim.make_message(asked(), completion(output, finish))
    assert answer["content"] == [{"type": "text", "text": text}]
    assert answer["stop_reason"] == reason


@pytest.mark.parametrize("output", ['{"tool": "Read", "input": {"file_path": "ä"}}', '{"text": "Hello."}'])
def test_the_events_give_the_same_answer(output: str) -> None:
    answer = shim.make_message(asked(), completion(output))
    lines = b"".join(shim.encode_stream_events(answer)).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    kinds = ["message_start", "content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in events] == [*kinds, "message_delta", "message_stop"]
    block, delta = events[1]["content_block"], events[2]["delta"]
    whole = (
        {**block, "input": json.loads(delta["partial_json"])} if "input" in block else {**block, "text": delta["text"]}
    )
    assert [whole] == answer["content"]
    assert events[4]["delta"]["stop_reason"] == answer["stop_reason"]


PLAIN = st.sampled_from(["string", "integer", "boolean", "number", "null"]).map(lambda kind: {"type": kind})
SCHEMAS = st.recursive(
    PLAIN
    | st.just({"enum": ["a", 1]})
    | st.just({})
    | st.just({"type": ["null", "string"]})
    | st.just({"$ref": "#/a"}),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "minItems": st.integers(0, 9)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner)},
            optional={"required": st.lists(st.sampled_from("abcd"), unique=True)},
        ),
    ),
    max_leaves=12,
)


@given(SCHEMAS)
def test_any_schema_becomes_a_finite_one(schema: dict[str, Any]) -> None:
    bounded = shim.limit_schema(schema)
    jsonschema.Draft202012Validator.check_schema(bounded)
    _check_finite(bounded)


def _check_finite(schema: dict[str, Any]) -> None:
    assert schema.keys() & {"type", "enum", "const"}
    if schema.get("type") == "string":
        assert schema["maxLength"] <= shim.MAX_STRING_CHARS
    if schema.get("type") == "array":
        assert schema["maxItems"] <= shim.MAX_ITEMS
        _check_finite(schema["items"])
    for part in schema.get("properties", {}).values():
        _check_finite(part)


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    _check_finite(shim.limit_schema({"$ref": "#/$defs/node", "$defs": {"node": node}}))


@pytest.mark.parametrize(
    "body", [{"tools": [READ], "messages": [1, None, {"content": 3}], "system": 4, "max_tokens": "x"}]
)
def test_odd_requests_are_no_crash(body: dict[str, Any]) -> None:
    assert shim.make_chat_request(body)["messages"][0]["role"] == "system"
    assert shim.make_message(body, {"choices": "x", "usage": None})["content"]


# The server.


class _Model(BaseHTTPRequestHandler):
    """Stands for llama.cpp: says what it was asked, and refuses a wrong key."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._say(200, {"path": self.path})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("x-api-key") != "right":
            self._say(401, {"error": "no"})
        elif self.path == "/v1/chat/completions":
            self._say(200, completion('{"text": "Hello."}'))
        else:
            self._say(200, {"path": self.path, "body": body.decode()})

    def _say(self, status: int, value: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())


@contextmanager
def serving(server: ThreadingHTTPServer) -> Generator[ThreadingHTTPServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), _Model)) as model,
        serving(shim.Shim(f"http://127.0.0.1:{model.server_address[1]}")) as server,
    ):
        yield int(server.server_address[1])


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_request_with_tools_is_answered_by_the_shim(port: int) -> None:
    body = json.dumps(asked()).encode()
    status, output = ask(port, "POST", "/v1/messages", body, x_api_key="right")
    assert (status, json.loads(output)["content"]) == (200, [{"type": "text", "text": "Hello."}])
    status, output = ask(
        port, "POST", "/v1/messages?beta=true", json.dumps(asked(stream=True)).encode(), x_api_key="right"
    )
    assert status == 200
    assert output.startswith(b"event: message_start\n")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("body", [b"{}", b"[1]", b"not json", b""])
def test_everything_else_passes_through(port: int, path: str, body: bytes) -> None:
    status, output = ask(port, "POST", path, body, x_api_key="right")
    assert (status, json.loads(output)) == (200, {"path": path, "body": body.decode()})
    assert json.loads(ask(port, "GET", "/health")[1]) == {"path": "/health"}


def test_the_key_is_checked_by_the_model(port: int) -> None:
    status, output = ask(port, "POST", "/v1/messages", json.dumps(asked()).encode(), x_api_key="wrong")
    assert status == 401
    assert json.loads(output)["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("length", ["-1", "x", str(10**12)])
def test_an_odd_length_is_refused(port: int, length: str) -> None:
    assert ask(port, "POST", "/v1/messages", b"", content_length=length)[0] == 413


def test_a_dead_model_is_reported() -> None:
    with serving(shim.Shim("http://127.0.0.1:9")) as server:
        status, output = ask(int(server.server_address[1]), "POST", "/v1/messages", b"{}")
    assert status == 502
    assert "did not answer" in json.loads(output)["error"]["message"]


# Answers in words.


def delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def answer_events(*pieces: str, reason: str = "end_turn") -> list[dict[str, Any]]:
    start = [{"type": "message_start", "message": {}}, {"type": "content_block_start", "index": 0}]
    stop = [{"type": "content_block_stop", "index": 0}, {"type": "message_delta", "delta": {"stop_reason": reason}}]
    return [*start, *map(delta, pieces), *stop, {"type": "message_stop"}]


def read_text(events: Iterator[dict[str, Any]]) -> tuple[str, str, list[str]]:
    """Return the text of an answer, why it ended, and the kinds of its last events."""
    found = list(events)
    text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
    [reason] = [event["delta"]["stop_reason"] for event in found if event["type"] == "message_delta"]
    return text, reason, [event["type"] for event in found[-3:]]


ENDING = ["content_block_stop", "message_delta", "message_stop"]


def test_a_sentence_that_comes_again_ends_the_answer() -> None:
    pieces = ["I am a help", "ful assistant. I can", " help. I am a helpful assistant", ". I can", " help."]
    read: list[dict[str, Any]] = []
    events = (read.append(event) or event for event in answer_events(*pieces, *["And on. "] * 50))
    text, reason, last = read_text(shim.shorten_events(events, is_limited=True))
    assert (text, reason, last) == ("I am a helpful assistant. I can help. ", "end_turn", ENDING)
    assert len(read) < 10, "nothing more is read"


@pytest.mark.parametrize(
    "text", ["A cat. A dog. A cat.", "if x:\n    }\n}\n    }\n", "No end", "Yes. Yes.", "1. Be good.\n2. B"]
)
def test_other_answers_pass_unchanged(text: str) -> None:
    assert read_text(shim.shorten_events(iter(answer_events(*text)), is_limited=True))[0] == text
    message = {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    assert shim.shorten_answer(message, is_limited=True)["content"][0]["text"] == text.rstrip()


def test_lines_of_a_list_may_differ_by_their_number_alone() -> None:
    text = "1. Write good code.\n2. Read good code.\n3. Write good code.\n4. Read good code.\n"
    assert read_text(shim.shorten_events(iter(answer_events(text)), is_limited=True))[0] == text[:39]


@pytest.mark.parametrize(
    ("is_limited", "text", "reason"), [(True, "It goes on…", "end_turn"), (False, "It goes on", "max_tokens")]
)
def test_a_cut_answer_is_complete_if_nobody_asked_for_the_cut(is_limited: bool, text: str, reason: str) -> None:
    events = iter(answer_events("It goes", " on", reason="max_tokens"))
    assert read_text(shim.shorten_events(events, is_limited=is_limited)) == (text, reason, ENDING)
    message = {"content": [{"type": "text", "text": "It goes on"}], "stop_reason": "max_tokens"}
    short = shim.shorten_answer(message, is_limited=is_limited)
    assert (short["content"][0]["text"], short["stop_reason"]) == (text, reason)


@given(st.lists(st.text("ab. \n", max_size=9)))
def test_no_text_is_invented(pieces: list[str]) -> None:
    reader = shim.SentenceReader()
    shown = "".join(reader.feed(piece) for piece in pieces) + reader.close()
    assert "".join(pieces).startswith(shown)
    assert reader.is_repeating or shown == "".join(pieces)
