"""Every line that CLI 2.1.330 printed in the recordings: read without an unknown arm, and written back unchanged."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilothouse import messages
from pilothouse.messages import decoder as decoder_module

CONTROL = ("control_request", "control_response", "control_cancel_request")


class Request(msgspec.Struct, tag_field="type", tag="control_request"):
    """A stand-in for the envelopes of the control protocol, which live in another package."""

    request_id: str
    request: dict[str, Any]


class Response(msgspec.Struct, tag_field="type", tag="control_response"):
    response: dict[str, Any]


class Cancel(msgspec.Struct, tag_field="type", tag="control_cancel_request"):
    request_id: str


UNKNOWN = (messages.UnknownMessage, messages.UnknownBlock, messages.UnknownApiEvent, messages.UnknownWireDelta)
ENVELOPES = (Request, Response, Cancel)


def lines_out(path: Path) -> list[bytes]:
    """What the CLI printed, one JSON object a line; text that is no JSON object is left out."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    found = [record["msg"] for record in records if record["dir"] == "out" and isinstance(record["msg"], dict)]
    return [json.dumps(message).encode() for message in found if "type" in message]


@pytest.fixture(scope="session")
def lines(transcripts: list[Path]) -> list[bytes]:
    return [line for path in transcripts for line in lines_out(path)]


@pytest.fixture(scope="session")
def message_lines(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if json.loads(line)["type"] not in CONTROL]


def unknown_arms(value: Any) -> Iterator[Any]:
    """Everything inside a message that was kept as unknown."""
    if isinstance(value, UNKNOWN) or type(value) is messages.SystemMessage:
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from unknown_arms(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from unknown_arms(item)


def prune(value: Any) -> Any:
    """Drop what says nothing: nulls, false, zeros, and what is empty. Fields at their default are not written."""
    if isinstance(value, dict):
        kept = {key: prune(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, False, 0, "", [], {})}
    return [prune(item) for item in value] if isinstance(value, list) else value


@pytest.mark.requirement("L27", "E81", "R33", "E50", "G5")
def test_every_recorded_line_is_understood(lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, line: bytes) -> None:
        pytest.fail(f"needed the lenient path: {line[:300]!r}")

    monkeypatch.setattr(decoder_module.FrameDecoder, "_decode_leniently", refuse)
    decoder = messages.FrameDecoder(ENVELOPES)
    decoded = [decoder.decode(line) for line in lines]
    assert len(decoded) > 900
    assert [found for message in decoded for found in unknown_arms(message)] == []
    for line, message in zip(lines, decoded, strict=True):
        kind = json.loads(line)["type"]
        assert isinstance(message, ENVELOPES if kind in CONTROL else messages.MESSAGE_TYPES[kind])
    seen = {type(message) for message in decoded}
    assert {messages.InitMessage, messages.UserMessage, messages.AssistantMessage, messages.StreamEvent} < seen
    assert messages.ResultMessage in seen


@pytest.mark.requirement("E81")
def test_recorded_lines_are_written_back_unchanged(message_lines: list[bytes]) -> None:
    for line in message_lines:
        message = messages.decode(line)
        assert message.raw_line is line
        assert json.loads(messages.encode(message)) == json.loads(line) == message.raw == messages.to_dict(message)
        assert messages.decode(messages.encode(message)) == message
        assert messages.from_dict(json.loads(line)) == message


@pytest.mark.requirement("E81")
def test_no_recorded_field_lacks_a_typed_one(message_lines: list[bytes]) -> None:
    """Written from the fields alone, a message still says everything that its line said."""
    for line in message_lines:
        message = messages.decode(line)
        bare = message.replace()
        assert bare.raw_line == b""
        assert bare == message
        written = messages.encode(bare)
        assert prune(json.loads(written)) == prune(json.loads(line))
        assert messages.decode(written) == message


def test_the_lenient_path_reads_good_lines_the_same(message_lines: list[bytes]) -> None:
    decoder = messages.FrameDecoder()
    for line in message_lines:
        assert decoder._decode_leniently(line) == decoder.decode(line)


def test_recorded_messages_pickle_and_copy(message_lines: list[bytes]) -> None:
    for line in message_lines:
        message = messages.decode(line)
        for counterpart in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
            assert counterpart == message
            assert counterpart.raw_line == line
            assert counterpart.raw == message.raw


def test_a_batch_gives_what_single_lines_give(lines: list[bytes]) -> None:
    odd = [b"not json", b"[1]", b'{"type":"new_thing","a":1}', b'{"type":"assistant","content":[{"type":"?"}]}', b""]
    mixed = [line for pair in zip(lines[:100], odd * 20, strict=True) for line in pair]
    decoder = messages.FrameDecoder(ENVELOPES)

    def one(line: bytes) -> Any:
        try:
            return decoder.decode(line)
        except Exception as error:
            return error

    batch, kinds = decoder.decode_lines(mixed)
    assert len(batch) == len(mixed)
    assert {type(item) for item in batch if not isinstance(item, messages.SystemMessage)} == kinds - {
        messages.SystemMessage
    }
    for alone, together in zip(map(one, mixed), batch, strict=True):
        assert type(alone) is type(together)
        assert repr(alone) == repr(together)
        assert getattr(alone, "raw_line", None) == getattr(together, "raw_line", None)
    assert decoder.decode_lines([]) == ([], set())


@pytest.mark.requirement("L37")
def test_thinking_deltas_add_up_to_the_thinking_block(transcripts: list[Path]) -> None:
    path = next(path for path in transcripts if path.stem == "05b_partial_thinking")
    decoded = [messages.decode(line) for line in lines_out(path)]
    streamed = "".join(m.thinking_delta or "" for m in decoded if isinstance(m, messages.StreamEvent))
    blocks = [
        block
        for message in decoded
        if isinstance(message, messages.AssistantMessage)
        for block in message.content
        if isinstance(block, messages.ThinkingBlock)
    ]
    assert streamed == blocks[0].thinking
    assert blocks[0].signature


def test_what_the_host_sends_is_understood_too(transcripts: list[Path]) -> None:
    """User messages on their way in are the same class; a recording is replayed through the same decoder."""
    seen = 0
    for path in transcripts:
        for text in path.read_text().splitlines():
            record = json.loads(text)
            sent = record["msg"]
            if record["dir"] != "in" or not isinstance(sent, dict) or sent.get("type") != "user":
                continue
            if not isinstance(sent.get("message"), dict):
                continue
            message = messages.from_dict(sent)
            assert isinstance(message, messages.UserMessage)
            assert list(unknown_arms(message)) == []
            assert message.content
            seen += 1
    assert seen > 40


def test_kept_messages_share_what_they_repeat_and_stay_equal(message_lines: list[bytes]) -> None:
    fresh = [messages.decode(line) for line in message_lines]
    kept = [messages.decode(line) for line in message_lines]
    half = len(kept) // 2
    last = decoder_module.share_equal_values(kept[:half], None)
    assert decoder_module.share_equal_values(kept[half:], last) is not last
    assert kept == fresh
    assert [message.raw for message in kept] == [message.raw for message in fresh]
    answers = [message for message in kept if isinstance(message, messages.AssistantMessage)]
    pairs = [(one, other) for one, other in itertools.pairwise(answers) if one.usage == other.usage]
    assert pairs
    assert all(one.usage is other.usage for one, other in pairs)
