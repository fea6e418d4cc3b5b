"""Control frames in every form that is out there, and lines that any peer can read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import UsageError
from pilothouse.messages import TextBlock
from pilothouse.protocol import RequestReceived, encode_line, error_line, request_line, success_line, user_message
from pilothouse.protocol.control_frames import (
    ControlRequest,
    ControlResponse,
    ParsedResponse,
    cancel_line,
    read_request,
    read_response,
)


def line_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def question(**fields: Any) -> RequestReceived | None:
    line = line_of(type="control_request", **fields)
    return read_request(msgspec.structs.replace(msgspec.json.decode(line, type=ControlRequest), raw_line=line))


def answer(**fields: Any) -> ParsedResponse | None:
    line = line_of(type="control_response", **fields)
    return read_response(msgspec.structs.replace(msgspec.json.decode(line, type=ControlResponse), raw_line=line))


# -- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G50")
@pytest.mark.parametrize(
    "fields",
    [
        {"request": {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}},
        {"request": {"subtype": "can_use_tool", "tool": "Bash", "input": {"command": "ls"}}},
        {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}},
        {"subtype": "can_use_tool", "tool": "Bash", "input": {"command": "ls"}},
        {"subtype": "permission", "tool": "Bash", "input": {"command": "ls"}},
        {"subtype": "can_use_tool", "request": {"tool_name": "Bash", "input": {"command": "ls"}}},
    ],
    ids=["real", "nested short", "flat", "flat short", "permission", "mixed"],
)
def test_permission_requests_have_one_form(fields: dict[str, Any]) -> None:
    body = {"tool_name": "Bash", "input": {"command": "ls"}}
    assert question(request_id="q1", **fields) == RequestReceived("q1", "can_use_tool", body)


@pytest.mark.requirement("G50")
@pytest.mark.parametrize(
    "fields",
    [
        {"request": {"subtype": "hook", "event": "PreToolUse", "tool_name": "Bash"}},
        {"subtype": "hook", "event": "PreToolUse", "tool_name": "Bash"},
        {"subtype": "hook", "event": "PreToolUse", "input": {"tool_name": "Bash"}},
    ],
    ids=["nested", "flat", "flat with input"],
)
def test_short_hooks_become_hook_callbacks(fields: dict[str, Any]) -> None:
    found = question(request_id="q1", **fields)
    body = {"callback_id": "", "input": {"hook_event_name": "PreToolUse", "tool_name": "Bash"}}
    assert found is not None
    assert (found.subtype, found.body) == ("hook_callback", body)


@pytest.mark.requirement("G50")
@pytest.mark.parametrize(
    "fields",
    [
        {"subtype": "hook", "event": "PreToolUse", "tool": "Bash", "input": {"command": "ls"}},
        {"subtype": "hook", "event": "PreToolUse", "tool_name": "Bash", "input": {"command": "ls"}},
        {"subtype": "hook", "event": "PreToolUse", "input": {"tool_name": "Bash", "tool_input": {"command": "ls"}}},
        {"subtype": "hook_callback", "event": "PreToolUse", "tool": "Bash", "input": {"command": "ls"}},
        {
            "subtype": "hook", "event": "PreToolUse", "tool": "Bash",
            "input": {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}},
        },
        {"request": {"subtype": "hook", "event": "PreToolUse", "tool": "Bash", "input": {"command": "ls"}}},
    ],
    ids=["tool", "tool_name", "fields", "hook_callback", "whole", "nested"],
)  # fmt: skip
def test_a_short_hook_holds_the_input_of_the_tool(fields: dict[str, Any]) -> None:
    described = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    assert question(request_id="q1", **fields) == RequestReceived(
        "q1", "hook_callback", {"callback_id": "", "input": described}
    )


@pytest.mark.requirement("G50")
def test_the_real_hook_callback_is_left_alone() -> None:
    body = {"callback_id": "hook_0", "input": {"hook_event_name": "Stop"}, "tool_use_id": "t"}
    assert question(request_id="q1", request={"subtype": "hook_callback", **body}) == RequestReceived(
        "q1", "hook_callback", body
    )
    assert question(request_id="q1", subtype="hook", callback_id="h", event="Stop") == RequestReceived(
        "q1", "hook_callback", {"callback_id": "h", "input": {"hook_event_name": "Stop"}}
    )


@pytest.mark.parametrize("wire_id", [None, "", True, 1.5, [], {}])
def test_a_request_without_a_usable_id_cannot_be_answered(wire_id: object) -> None:
    assert question(request_id=wire_id, request={"subtype": "interrupt"}) is None
    assert question(request_id=wire_id, subtype="interrupt") is None


@pytest.mark.parametrize("request_", [None, 7, "x", [], {}, {"subtype": None}, {"subtype": 3}])
def test_a_request_without_a_subtype_still_has_an_id(request_: object) -> None:
    found = question(request_id=12, request=request_)
    assert found is not None
    assert (found.request_id, found.subtype) == ("12", "")


# -- responses -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G50")
@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"response": {"subtype": "success", "request_id": "r", "response": {"mode": "plan"}}}, {"mode": "plan"}),
        ({"response": {"subtype": "success", "request_id": "r"}}, {}),
        ({"response": {"subtype": "success", "request_id": "r", "response": None}}, {}),
        ({"response": {"subtype": "success", "request_id": "r", "response": True}}, {"result": True}),
        ({"request_id": "r", "response": {"subtype": "success", "response": {"a": 1}}}, {"a": 1}),
        ({"request_id": "r", "response": {"mode": "plan"}}, {"mode": "plan"}),
        ({"request_id": "r", "subtype": "set_model", "success": True, "model": "opus"}, {"model": "opus"}),
        ({"request_id": "r", "success": True}, {}),
        ({"request_id": "r", "result": "allow"}, {"behavior": "allow"}),
        ({"request_id": "r", "result": "deny", "message": "no"}, {"behavior": "deny", "message": "no"}),
        ({"request_id": "r", "result": {"continue": True}}, {"continue": True}),
        ({"request_id": "r", "result": 5}, {"result": 5}),
        ({"request_id": "r", "success": True, "error": "ignored"}, {"error": "ignored"}),
    ],
)
def test_answers_have_one_form(fields: dict[str, Any], payload: dict[str, Any]) -> None:
    assert answer(**fields) == ParsedResponse("r", payload)


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"response": {"subtype": "error", "request_id": "r", "error": "no", "error_code": "x"}}, "no", "x"),
        ({"response": {"subtype": "error", "request_id": "r"}}, "the CLI gave no reason", None),
        ({"response": {"request_id": "r", "error": {"message": "no", "code": 7}}}, "no", "7"),
        ({"request_id": "r", "response": {"subtype": "error", "error": "no"}}, "no", None),
        ({"request_id": "r", "success": False, "error": "no"}, "no", None),
        ({"request_id": "r", "success": False}, "the CLI gave no reason", None),
        ({"request_id": "r", "subtype": "set_model", "error": "no"}, "no", None),
    ],
)
def test_refusals_have_one_form(fields: dict[str, Any], error: str, code: str | None) -> None:
    assert answer(**fields) == ParsedResponse("r", {}, error, code)


@pytest.mark.parametrize(
    "fields", [{}, {"response": {}}, {"response": 5}, {"response": {"subtype": "success", "request_id": None}}]
)
def test_an_answer_to_nothing_is_none(fields: dict[str, Any]) -> None:
    assert answer(**fields) is None


def test_what_the_peer_still_asks_comes_with_the_answer() -> None:
    found = answer(
        response={
            "subtype": "success",
            "request_id": "r",
            "response": {"a": 1},
            "pending_permission_requests": [
                {
                    "type": "control_request",
                    "request_id": "p",
                    "request": {"subtype": "can_use_tool", "tool_name": "X"},
                },
                {"request_id": "p2", "request": {"tool_name": "Y"}},
                {"request": {"subtype": "can_use_tool"}},
                "odd",
            ],
            "pending_user_dialog_requests": None,
            "pending_elicitation_requests": [{"request_id": "e", "message": "m"}],
        }
    )
    assert found is not None
    assert [read_request(request) for request in found.open_requests] == [
        RequestReceived("p", "can_use_tool", {"tool_name": "X"}),
        RequestReceived("p2", "can_use_tool", {"tool_name": "Y"}),
        RequestReceived("e", "elicitation", {"message": "m"}),
    ]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["subtype", "request_id", "response", "request", "result", "error", "success", "tool", "event", "input",
                 "pending_permission_requests"]
            ),
            inner | st.sampled_from(["error", "success", "hook", "can_use_tool"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["request_id", "request", "response", "subtype", "result", "error"]), ODD))
def test_no_envelope_raises(fields: dict[str, Any]) -> None:
    asked, reported = question(**fields), answer(**fields)
    assert asked is None or (isinstance(asked.request_id, str) and isinstance(asked.body, dict))
    assert reported is None or (isinstance(reported.request_id, str) and isinstance(reported.payload, dict))


# -- writing -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R31", "G50", "G15")
def test_written_frames_are_one_compact_line_in_the_nested_form() -> None:
    assert request_line("1", "set_model", {"model": "opus"}) == (
        b'{"type":"control_request","request_id":"1","request":{"subtype":"set_model","model":"opus"}}\n'
    )
    assert success_line("1", {"behavior": "allow"}) == (
        b'{"type":"control_response","response":{"subtype":"success","request_id":"1",'
        b'"response":{"behavior":"allow"}}}\n'
    )
    assert error_line(1, "no", "code") == (
        b'{"type":"control_response","response":{"subtype":"error","request_id":1,"error":"no","error_code":"code"}}\n'
    )
    assert cancel_line("1") == b'{"type":"control_cancel_request","request_id":"1"}\n'
    assert user_message("hi", uuid="u") == (
        b'{"type":"user","session_id":"","message":{"role":"user","content":"hi"},"parent_tool_use_id":null,"uuid":"u"}\n'
    )


def test_a_body_cannot_change_the_subtype() -> None:
    assert json.loads(request_line("1", "a", {"subtype": "b", "x": 1}))["request"] == {"subtype": "a", "x": 1}


def test_user_messages_take_blocks_and_further_fields() -> None:
    line = user_message(
        [TextBlock("a"), {"type": "text", "text": "b"}],
        uuid=None,
        session_id="s",
        parent_tool_use_id="t",
        client_composed=True,
        extra={"priority": "now"},
    )
    assert json.loads(line) == {
        "type": "user",
        "session_id": "s",
        "message": {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        "parent_tool_use_id": "t",
        "client_composed": True,
        "priority": "now",
    }
    with pytest.raises(UsageError, match="message, uuid"):
        user_message("x", uuid="u", extra={"uuid": "v", "message": {}})


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=6)
    | st.text(st.sampled_from('\ud83d\ude00\u2028\u2029\u0085\n\r"\\\x00é'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.requirement("R31")
@given(VALUES)
def test_any_value_comes_back_from_one_line(value: Any) -> None:
    line = encode_line(value)
    assert line.endswith(b"\n")
    text = line[:-1].decode("utf-8")
    assert len(text.splitlines()) <= 1
    assert json.loads(text, parse_constant=pytest.fail) == _joined(value)


def _joined(value: Any) -> Any:
    """Two surrogates that form a pair are one character on the wire, whoever wrote them."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("text", ["plain", "half \ud83d pair"])
def test_numbers_that_json_lacks_are_null(text: str) -> None:
    line = encode_line([text, float("nan"), {"a": float("-inf")}, (1.5, 2**70)])
    assert json.loads(line, parse_constant=pytest.fail) == [text, None, {"a": None}, [1.5, 2**70]]


@dataclass
class Point:
    x: int


def test_common_python_values_are_written() -> None:
    frozen: Mapping[str, Any] = MappingProxyType({"p": PurePosixPath("/a/b")})
    known = uuid.UUID(int=1)
    for extra in ("", "\ud83d"):
        line = encode_line({"m": frozen, "d": Point(1), "u": known, 3: extra})
        assert json.loads(line) == {"m": {"p": "/a/b"}, "d": {"x": 1}, "u": str(known), "3": extra}


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": Opaque()}]}, r"a\[1\]\.b is of type .*Opaque"),
        ({"a": "\ud83d", "b": Opaque()}, r"b is of type .*Opaque"),
        (Opaque(), r"the value itself is of type .*Opaque"),
        ({"a": {(1, 2): 3}}, r"a is of type dict; its key \(1, 2\) is not a string"),
        ([MappingProxyType({"x": 1j})], r"\[0\]\.x is of type complex"),
    ],
)
def test_what_cannot_be_written_is_named_by_its_path(value: object, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        encode_line(value)


@pytest.mark.parametrize("start", [{}, {"s": "\ud83d"}])
def test_a_value_that_contains_itself_is_refused(start: dict[str, Any]) -> None:
    start["again"] = start
    with pytest.raises(UsageError, match="contains itself"):
        encode_line(start)
