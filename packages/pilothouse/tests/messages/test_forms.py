"""The forms that messages may take on the wire: nested, flat, loose, unknown."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pilothouse import messages
from pilothouse.errors import LineDecodeError, MessageParseError

TEXT = {"type": "text", "text": "Hello"}


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.requirement("L40", "G38", "L36")
def test_flat_and_nested_assistant_forms_are_equal() -> None:
    flat = messages.decode(dumps({"type": "assistant", "content": [TEXT], "model": "m", "session_id": "s"}))
    nested = messages.decode(
        dumps({"session_id": "s", "message": {"content": [TEXT], "model": "m"}, "type": "assistant"})
    )
    assert isinstance(flat, messages.AssistantMessage)
    assert flat == nested
    assert (flat != nested) is False
    assert flat.raw_line != nested.raw_line
    assert flat.content == [messages.TextBlock("Hello")]
    assert flat.text == "Hello"
    assert flat.raw == {"type": "assistant", "content": [TEXT], "model": "m", "session_id": "s"}


@pytest.mark.requirement("L40")
def test_flat_and_nested_user_forms_are_equal() -> None:
    flat = messages.decode(dumps({"type": "user", "content": "hi"}))
    assert flat == messages.decode(dumps({"type": "user", "message": {"role": "user", "content": "hi"}}))
    assert isinstance(flat, messages.UserMessage)
    assert flat.text == "hi"
    assert flat.content == [messages.TextBlock("hi")]


@pytest.mark.requirement("E55")
def test_loose_assistant_and_user_messages() -> None:
    loose = messages.decode(dumps({"type": "message", "role": "assistant", "content": [TEXT]}))
    assert loose == messages.AssistantMessage.of("Hello")
    assert messages.decode(dumps({"type": "message", "role": "user", "content": "x"})) == messages.UserMessage.of("x")
    other = messages.decode(dumps({"type": "message", "role": "narrator", "content": "x"}))
    assert isinstance(other, messages.UnknownMessage)
    assert other.raw["role"] == "narrator"


@pytest.mark.requirement("E55", "L38")
def test_a_tool_call_on_a_line_of_its_own() -> None:
    line = {"type": "tool_use", "id": "123", "name": "read_file", "input": {"path": "file.ex"}}
    message = messages.decode(dumps(line))
    assert isinstance(message, messages.AssistantMessage)
    assert message.tool_uses == [messages.ToolUseBlock("123", "read_file", {"path": "file.ex"})]
    assert message.raw == line


@pytest.mark.requirement("E55", "L39")
def test_a_tool_result_that_calls_itself_result() -> None:
    message = messages.decode(dumps({"type": "result", "tool_use_id": "123", "output": "file contents..."}))
    assert isinstance(message, messages.UserMessage)
    assert message.tool_results == [messages.ToolResultBlock("123", "file contents...")]
    assert not messages.is_terminal(message)


def test_a_real_result_that_mentions_tool_output_stays_a_result() -> None:
    denial = {"tool_name": "Bash", "tool_use_id": "t", "tool_input": {"output": 1}}
    message = messages.decode(dumps({"type": "result", "result": "ok", "permission_denials": [denial]}))
    assert isinstance(message, messages.ResultMessage)
    assert message.permission_denials == [messages.PermissionDenial("Bash", "t", {"output": 1})]


@pytest.mark.requirement("E55")
def test_done_ends_a_mock_stream() -> None:
    done = messages.decode(b'{"type": "done"}')
    assert isinstance(done, messages.DoneMessage)
    assert messages.is_terminal(done)
    assert messages.is_terminal(messages.ResultMessage())
    assert not messages.is_terminal(messages.decode(b'{"type":"system"}'))


@pytest.mark.requirement("L35")
def test_an_unknown_type_keeps_everything() -> None:
    data = {"a": [1, {"b": None}], "type": "hologram", "session_id": "s", "uuid": "u"}
    message = messages.decode(dumps(data))
    assert isinstance(message, messages.UnknownMessage)
    assert (message.type, message.session_id, message.uuid, message.raw) == ("hologram", "s", "u", data)
    assert messages.decode(messages.encode(message)) == message
    assert message == messages.from_dict({"type": "hologram", "uuid": "u", "session_id": "s", "a": [1, {"b": None}]})
    assert message != messages.from_dict({**data, "a": 2})


@pytest.mark.requirement("L35", "L31")
def test_an_unknown_subtype_keeps_everything() -> None:
    message = messages.decode(b'{"type":"system","subtype":"weather","sky":"blue","session_id":"s"}')
    assert type(message) is messages.SystemMessage
    assert (message.subtype, message.session_id, message.raw["sky"]) == ("weather", "s", "blue")
    assert message == messages.decode(b'{"session_id":"s","sky":"blue","subtype":"weather","type":"system"}')
    assert message != messages.decode(b'{"type":"system","subtype":"weather","sky":"grey","session_id":"s"}')


@pytest.mark.requirement("L35", "G37")
def test_unknown_and_broken_blocks_stay_in_their_place() -> None:
    blocks: list[Any] = [
        TEXT,
        {"type": "dream", "about": ["sheep"]},
        {"type": "text"},
        {"type": "tool_use", "id": "t"},
        {"no": "type"},
        7,
        "bare text",
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "smell"}, TEXT]},
        {"type": "text", "text": "kept", "citations": "nonsense"},
    ]
    message = messages.decode(dumps({"type": "user", "message": {"content": blocks}}))
    assert isinstance(message, messages.UserMessage)
    assert message.content == [
        messages.TextBlock("Hello"),
        messages.UnknownBlock("dream", blocks[1]),
        messages.UnknownBlock("text", blocks[2]),
        messages.UnknownBlock("tool_use", blocks[3]),
        messages.UnknownBlock("", blocks[4]),
        messages.UnknownBlock("", 7),
        messages.TextBlock("bare text"),
        messages.ToolResultBlock("t", [messages.UnknownBlock("smell", {"type": "smell"}), messages.TextBlock("Hello")]),
        messages.TextBlock("kept"),
    ]
    written = json.loads(messages.encode(message.replace()))["message"]["content"]
    assert [written[1], written[2], written[4], written[5]] == [blocks[1], blocks[2], blocks[4], blocks[5]]


@pytest.mark.requirement("G36", "L35")
def test_unknown_events_and_deltas_are_kept() -> None:
    event = messages.decode(b'{"type":"stream_event","event":{"type":"aurora","hue":1},"uuid":"u"}')
    assert isinstance(event, messages.StreamEvent)
    assert event.event == messages.UnknownApiEvent("aurora", {"type": "aurora", "hue": 1})
    delta = messages.decode(
        b'{"type":"stream_event","event":{"type":"content_block_delta","index":2,"delta":{"type":"taste","salt":1}}}'
    )
    match delta:
        case messages.StreamEvent(
            event=messages.ContentBlockDelta(index=2, delta=messages.UnknownWireDelta("taste", data))
        ):
            assert data == {"type": "taste", "salt": 1}
        case _:
            pytest.fail(repr(delta))
    assert delta.text_delta is None
    assert delta.thinking_delta is None
    empty = messages.decode(b'{"type":"stream_event"}')
    assert isinstance(empty, messages.StreamEvent)
    assert empty.event == messages.UnknownApiEvent("", None)


def test_extra_structs_share_the_decoder() -> None:
    class Ask(msgspec.Struct, tag_field="type", tag="control_request"):
        request_id: str
        request: msgspec.Raw
        retries: int = 0

    class Alive(msgspec.Struct, tag_field="type", tag="keep_alive"):
        raw_line: Any = b""

    decoder = messages.FrameDecoder([Ask, Alive])
    ask = decoder.decode(b'{"type":"control_request","request_id":"r","request":{"subtype":"x"}}')
    assert isinstance(ask, Ask)
    assert bytes(ask.request) == b'{"subtype":"x"}'
    # An odd optional field needs the lenient path, where the body must stay raw.
    odd = decoder.decode(b'{"type":"control_request","request_id":"r","request":{"subtype":"x"},"retries":[]}')
    assert isinstance(odd, Ask)
    assert msgspec.json.decode(bytes(odd.request)) == {"subtype": "x"}
    # One that takes the place of a message, and has room for the line.
    alive = decoder.decode(b'{"type":"keep_alive"}')
    assert isinstance(alive, Alive)
    assert alive.raw_line == b'{"type":"keep_alive"}'
    with pytest.raises(MessageParseError) as caught:
        decoder.decode(b'{"type":"control_request","request":{}}')
    assert caught.value.data == {"type": "control_request", "request": {}}
    assert isinstance(messages.decode(b'{"type":"control_request","request_id":"r"}'), messages.UnknownMessage)


@pytest.mark.requirement("G43")
@pytest.mark.parametrize("line", ["[1,2]", "3", "null", '"text"', "{}", '{"type":null}', '{"type":7}', '{"kind":"a"}'])
def test_json_that_is_no_message_carries_its_data(line: str) -> None:
    with pytest.raises(MessageParseError) as caught:
        messages.decode(line.encode())
    assert caught.value.data == json.loads(line)


@pytest.mark.parametrize(
    "line",
    [b"", b"   ", b"Starting up...", b'{"type":"assistant"', b"{'type':'x'}", b"\xff\xfe", b'{"type":"x"} trailing'],
)
def test_invalid_json_is_reported(line: bytes) -> None:
    with pytest.raises(LineDecodeError) as caught:
        messages.decode(line)
    assert caught.value.line == line
    long = b"x" * 5000
    with pytest.raises(LineDecodeError) as caught:
        messages.decode(long)
    assert long.startswith(caught.value.line)
    assert len(caught.value.line) < 1000
