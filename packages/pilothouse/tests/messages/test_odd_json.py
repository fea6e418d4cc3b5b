"""Odd JSON: whatever a peer sends, only the two typed errors come out, and nothing gets lost."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import TRANSCRIPTS

from pilothouse import messages
from pilothouse.errors import LineDecodeError, MessageParseError

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud83d", "5", "true", "text", "", "type", "1e5"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "content", "message", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
types = st.sampled_from([*messages.MESSAGE_TYPES, "message", "tool_use", "hologram", "control_request"])
FIELDS = (
    "subtype message content event session_id uuid role usage modelUsage tool_use_id output is_error num_turns",
    "user_message_uuids permission_denials rate_limit_info raw_line",
)
keys = st.sampled_from([*" ".join(FIELDS).split(), "<raw line>"])


def samples() -> list[dict[str, Any]]:
    """One recorded message of each shape."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(TRANSCRIPTS.glob("*.ndjson")):
        for text in path.read_text().splitlines():
            record = json.loads(text)
            data = record["msg"]
            if record["dir"] == "out" and isinstance(data, dict) and data.get("type") in messages.MESSAGE_TYPES:
                event = data.get("event", {})
                kind = event.get("type") if isinstance(event, dict) else None
                found.setdefault((data["type"], data.get("subtype"), kind), data)
    return list(found.values())


SAMPLES = samples()
DECODER = messages.FrameDecoder()


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [p for key, item in value.items() for p in ((*here, key), *paths(item, (*here, key)))]
    if isinstance(value, list):
        return [p for index, item in enumerate(value) for p in ((*here, index), *paths(item, (*here, index)))]
    return []


def check(line: bytes) -> messages.Message | None:
    """Decode a line; whatever comes out must hold together."""
    kind: type = messages.Message
    try:
        message = messages.decode(line)
    except (LineDecodeError, MessageParseError) as error:
        kind = type(error)
        message = None
    if message is None:
        assert [type(item) for item in DECODER.decode_lines([line])[0]] == [kind]
        return None
    assert message.raw_line == line
    assert repr(message.raw) == repr(json.loads(line))  # by repr, since NaN differs from itself
    assert messages.decode(messages.encode(message)) == message
    assert pickle.loads(pickle.dumps(message)).raw_line == line
    assert copy.copy(message) == message
    assert len(repr(message)) < 5000
    again = messages.decode(messages.encode(message.replace()))
    assert type(again) is type(message) or isinstance(message, messages.UnknownMessage)
    return message


@quick
@given(data=st.dictionaries(keys, values, max_size=5), kind=types)
def test_any_object_with_a_type_becomes_a_message(data: dict[str, Any], kind: str) -> None:
    assert check(json.dumps({**data, "type": kind}).encode()) is not None


@quick
@given(value=values)
def test_any_json_gives_a_message_or_a_typed_error(value: Any) -> None:
    message = check(json.dumps(value).encode())
    assert (message is not None) == (isinstance(value, dict) and isinstance(value.get("type"), str))


@quick
@given(line=st.binary(max_size=60))
def test_any_bytes_give_a_message_or_a_typed_error(line: bytes) -> None:
    check(line)


@settings(quick, max_examples=300)
@given(st.data())
def test_a_recorded_message_with_one_odd_value_keeps_its_class(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(SAMPLES))
    path = data.draw(st.sampled_from([p for p in paths(original) if p not in (("type",), ("subtype",))]))
    damaged = copy.deepcopy(original)
    spot = damaged
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = data.draw(values)
    message = check(json.dumps(damaged).encode())
    whole = messages.from_dict(original)
    assert message is not None
    assert type(message) is type(whole)
    if path[0] not in ("session_id", "uuid"):
        assert (message.session_id, message.uuid) == (whole.session_id, whole.uuid)


@quick
@given(blocks=st.lists(values, max_size=5), kind=st.sampled_from(["assistant", "user"]))
def test_no_block_is_ever_dropped(blocks: list[Any], kind: str) -> None:
    message = check(json.dumps({"type": kind, "message": {"content": blocks}}).encode())
    assert isinstance(message, messages.AssistantMessage | messages.UserMessage)
    assert len(message.content) == len(blocks)
    for value, block in zip(blocks, message.content, strict=True):
        if isinstance(block, messages.UnknownBlock):
            assert repr(block.data) == repr(value)


def test_lone_surrogates_come_in_and_go_out() -> None:
    line = b'{"type":"assistant","message":{"content":[{"type":"text","text":"half \\ud83d"}]},"session_id":"s"}'
    message = messages.decode(line)
    assert isinstance(message, messages.AssistantMessage)
    assert message.text == "half \ud83d"
    assert messages.encode(message) == line
    assert messages.decode(messages.encode(message.replace())) == message
    assert messages.from_dict(message.raw) == message


def test_broken_utf8_is_repaired_and_the_bytes_are_kept() -> None:
    line = b'\xef\xbb\xbf{"type":"user","message":{"content":"caf\xe9"}}'
    message = messages.decode(line)
    assert isinstance(message, messages.UserMessage)
    assert message.text == "caf\ufffd"
    assert message.raw_line == line


def test_numbers_of_other_kinds() -> None:
    message = messages.decode(
        b'{"type":"result","num_turns":"5","duration_ms":12.5,"total_cost_usd":"0.25","is_error":"true",'
        b'"queued_turn_count":3.0,"ttft_ms":NaN,"result_index":1e400,"session_id":42,'
        b'"usage":{"input_tokens":null,"output_tokens":7.0,"cache_read_input_tokens":123456789012345678901234567890},'
        b'"modelUsage":{"a":{"inputTokens":null,"costUSD":1},"b":null},"errors":["x",null,3]}'
    )
    assert isinstance(message, messages.ResultMessage)
    assert (message.num_turns, message.duration_ms, message.total_cost_usd, message.is_error) == (5, 12.5, 0.25, True)
    assert message.queued_turn_count == 3
    assert message.ttft_ms is not None
    assert math.isnan(message.ttft_ms)
    assert message.result_index is None
    assert message.session_id == "42"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (0, 7)
    assert message.usage.cache_read_input_tokens == 123456789012345678901234567890
    assert list(message.model_usage) == ["a"]
    assert message.model_usage["a"].cost_usd == 1.0
    assert message.errors == ["x", "3"]
    assert messages.decode(messages.encode(message)) == message


def test_integers_too_long_to_convert() -> None:
    message = messages.decode(b'{"type":"hologram","n":' + b"9" * 6000 + b"}")
    assert message.raw["n"] == math.inf


@pytest.mark.parametrize("depth", [200_000, 500_000])  # newer Pythons read what is less deep
@pytest.mark.parametrize("head", [b'{"type":"assistant","x":', b'{"type":"user","message":{"content":', b""])
def test_deep_nesting_is_a_typed_error(head: bytes, depth: int) -> None:
    closing = b"}" * head.count(b"{")
    for line in (head + b"[" * depth + b"]" * depth + closing, head + b'{"a":' * depth + b"1" + b"}" * depth + closing):
        with pytest.raises((LineDecodeError, MessageParseError)):
            messages.decode(line)


def test_the_last_of_two_equal_keys_counts() -> None:
    for prefix in (b"", b'"message":{"content":[]},'):
        line = b'{"type":"assistant",' + prefix + b'"session_id":"a","session_id":"b"}'
        assert messages.decode(line).session_id == "b"
        assert messages.decode(line).raw["session_id"] == "b"


def test_nothing_on_the_wire_reaches_the_raw_line() -> None:
    for odd in (b"5", b'"eA=="', b"{}"):
        line = b'{"type":"prompt_suggestion","suggestion":"s","<raw line>":' + odd + b"}"
        assert messages.decode(line).raw_line == line


def test_values_that_are_not_json_are_refused() -> None:
    for bad in (object(), {1, 2}):
        if isinstance(bad, set):
            assert messages.from_dict({"type": "hologram", "x": bad}).raw["x"]
        else:
            with pytest.raises(MessageParseError):
                messages.from_dict({"type": "hologram", "x": bad})
    endless: dict[str, Any] = {"type": "hologram"}
    endless["self"] = endless
    with pytest.raises(MessageParseError):
        messages.from_dict(endless)


def test_a_line_over_several_lines_is_written_as_one() -> None:
    message = messages.decode(b'{\n "type": "prompt_suggestion",\n "suggestion": "a\\nb"\n}\n')
    written = messages.encode(message)
    assert b"\n" not in written
    assert messages.decode(written) == message
    assert messages.encode(messages.decode(b'{"type":"done"}\r\n')) == b'{"type":"done"}'
