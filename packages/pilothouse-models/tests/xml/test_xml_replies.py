"""Replies of the text protocol: streams, whole messages, what was abandoned or retracted, and what a reader sees."""

from __future__ import annotations

from typing import Any

import pytest
from xml_fixtures import (
    OPEN,
    OSLO,
    ROME,
    Listener,
    call_text,
    cities,
    delta,
    ended,
    event,
    limit,
    opened,
    read_reply,
    recorded,
    result,
    retraction,
    started,
    stopped,
    streamed,
    whole,
)

from pilothouse.events import TextDelta, TextRetracted, ToolCall, ToolCallError, ToolCallStarted
from pilothouse.messages import StreamEvent, from_dict
from pilothouse_models.xml.reply_reader import ParsedReply, ReplyReader
from pilothouse_models.xml.turn_state import ReplySplice, find_splice
from pilothouse_testing import frames

# --- the two ways to be told


@pytest.mark.requirement("S33")
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_streaming_and_not_streaming_agree(size: int) -> None:
    text = f"Looking, a < b. {OSLO} And {ROME} done <"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    _, plain = read_reply([whole(text), result(text)])
    listener, live = read_reply([started("msg_1"), *streamed(pieces), ended(), result(text)])
    assert (live.text, cities(live)) == (plain.text, cities(plain))
    assert live.text == "Looking, a < b.  And  done <"
    assert cities(live) == ["Oslo", "Rome"]
    assert not listener.retracted
    assert [each.reason for each in listener.finishes] == ["tool-calls"]


def test_deltas_arrive_before_the_message_is_complete() -> None:
    reader = ReplyReader()
    for message in (started("msg_1"), opened()):
        assert reader.read(message) == []
    assert reader.read(delta("Hello ")) == [TextDelta("Hello ")]
    (start,) = reader.read(delta(f"{OPEN}<tool_name>weather</tool_name>"))
    assert isinstance(start, ToolCallStarted)
    assert start.name == "weather"


@pytest.mark.requirement("S33")
def test_missing_deltas_come_from_the_message() -> None:
    listener, reply = read_reply([started("msg_1"), opened(), delta("Hel"), whole(f"Hello{OSLO}"), stopped(), result()])
    assert reply.text == "Hello"
    assert cities(reply) == ["Oslo"]
    assert not listener.retracted


@pytest.mark.requirement("S33")
def test_a_message_that_contradicts_its_deltas_wins() -> None:
    listener, reply = read_reply(
        [started("msg_1"), opened(), delta(f"Hi there {OSLO}"), whole(f"Hi you {ROME}"), result()]
    )
    assert reply.text == "Hi you "
    assert cities(reply) == ["Rome"]
    assert listener.retracted[0].text == "there "
    assert len(listener.retracted[0].call_ids) == 1


@pytest.mark.requirement("S33")
@pytest.mark.parametrize("name", ["50_xml_sylphx_style", "55_text_thinking_text_blocks", "51_xml_tools_empty"])
def test_recordings_give_the_same_with_and_without_their_stream(name: str) -> None:
    messages = recorded(name)
    _, live = read_reply(messages)
    _, plain = read_reply([each for each in messages if not isinstance(each, StreamEvent)])
    assert (live.text, live.thinking) == (plain.text, plain.thinking)
    assert [structure(each) for each in live.calls] == [structure(each) for each in plain.calls]
    assert len(live.calls) == 1


def structure(call: ToolCall | ToolCallError) -> tuple[Any, ...]:
    return call.type, call.name, call.raw


@pytest.mark.requirement("S29")
def test_a_call_split_over_text_blocks_comes_out_around_the_thinking() -> None:
    listener, reply = read_reply(recorded("55_text_thinking_text_blocks"))
    (call,) = reply.calls
    assert (call.name, call.raw) == ("x", "<tool_use><tool_name>x</tool_name></tool_use>")
    assert (reply.text, reply.thinking) == ("", "hmm")
    assert not listener.retracted


@pytest.mark.sample(12)
@pytest.mark.parametrize("at", range(1, len(OSLO)))
def test_a_call_split_anywhere_between_two_blocks(at: int) -> None:
    _, reply = read_reply([whole(OSLO[:at]), whole([frames.thinking("hm")]), whole(OSLO[at:]), result()])
    assert cities(reply) == ["Oslo"]
    assert reply.text == ""


@pytest.mark.requirement("S29", "S30")
def test_native_thinking_is_never_read_as_protocol() -> None:
    thought = {"type": "thinking_delta", "thinking": OSLO}
    live = [
        started("msg_1"),
        opened(kind="thinking"),
        event({"type": "content_block_delta", "index": 0, "delta": thought}),
        whole([frames.thinking(OSLO)]),
        stopped(),
        *streamed(["Hi"], index=1),
        result("Hi"),
    ]
    for messages in (live, [each for each in live if not isinstance(each, StreamEvent)]):
        _, reply = read_reply(messages)
        assert reply == ParsedReply((), "Hi", OSLO)


# --- what does not count


@pytest.mark.requirement("S33")
def test_an_abandoned_stream_is_retracted_and_replaced_by_the_fallback() -> None:
    listener, reply = read_reply(recorded("33_malformed_sse_json"))
    assert listener.retracted == [TextRetracted("partial before bad json ")]
    assert reply.text == "Non-stream reply."


def test_a_call_in_an_abandoned_stream_never_counts_and_its_replay_counts_once() -> None:
    broken = {"api_message_id": "msg_1", "from_block_index": 0}
    messages = [
        started("msg_1"), opened(), delta(f"First {OSLO} and"), stopped(), ended(abandoned_blocks=broken),
        whole(f"First {OSLO} and then", "msg_2"), result(),
    ]  # fmt: skip
    listener, reply = read_reply(messages)
    assert cities(reply) == ["Oslo"]
    assert reply.text == "First  and then"
    (gone,) = listener.retracted
    assert gone.text == "First  and"
    assert reply.calls[0].id not in gone.call_ids


def test_a_silently_repeated_stream_is_not_doubled() -> None:
    messages = [started("msg_1"), opened(), delta(f"One {OSLO}"), started("msg_2"), *streamed([f"One {OSLO}"], "msg_2")]
    listener, reply = read_reply([*messages, result()])
    assert cities(reply) == ["Oslo"]
    assert reply.text == "One "
    assert len(listener.retracted) == 1


def test_the_same_message_streamed_again_does_not_double() -> None:
    once = [started("msg_1"), *streamed(["One ", OSLO]), ended()]
    listener, reply = read_reply([*once, *once, result()])
    assert cities(reply) == ["Oslo"]
    assert not listener.retracted


def test_a_message_that_comes_twice_counts_once() -> None:
    message = whole(OSLO)
    _, reply = read_reply([message, message, result()])
    assert cities(reply) == ["Oslo"]


def test_complete_blocks_of_a_broken_stream_come_again_with_the_rest() -> None:
    broken = {"api_message_id": "msg_1", "from_block_index": 1}
    messages = [
        started("msg_1"), *streamed([OSLO]), opened(1), delta("mo", 1), ended(abandoned_blocks=broken),
        whole(f"{OSLO}more", "msg_2"), result(),
    ]  # fmt: skip
    _, reply = read_reply(messages)
    assert cities(reply) == ["Oslo"]
    assert reply.text == "more"


@pytest.mark.parametrize("streams", [True, False])
def test_retracted_and_superseded_replies_do_not_count(streams: bool) -> None:
    messages = recorded("53d_stop_tool_use_text_only")
    messages = messages if streams else [each for each in messages if not isinstance(each, StreamEvent)]
    listener, reply = read_reply(messages)
    assert reply.is_failed
    assert reply.calls == ()
    assert len(listener.retracted) == 2
    assert len(listener.calls) == 1  # the last attempt stands, but its turn failed


def test_a_retracted_call_does_not_run_and_the_second_attempt_does() -> None:
    first, second = whole(f"A {OSLO}", uuid="u1"), whole(f"B {ROME}", "msg_2", uuid="u2", supersedes=["u1"])
    listener, reply = read_reply([first, retraction("u1"), second, result()])
    assert cities(reply) == ["Rome"]
    assert reply.text == "B "
    assert listener.retracted[0].text == "A "
    _, reply = read_reply([first, second, result()])
    assert (cities(reply), reply.text) == (["Rome"], "B ")


def test_a_reply_superseded_after_its_successor_was_streamed() -> None:
    messages = [whole(f"A {OSLO}", uuid="u1"), started("msg_2"), opened(message_id="msg_2")]
    messages += [delta(f"B {ROME}", message_id="msg_2"), whole(f"B {ROME}", "msg_2", uuid="u2", supersedes=["u1"])]
    _, reply = read_reply([*messages, result()])
    assert (cities(reply), reply.text) == (["Rome"], "B ")


@pytest.mark.parametrize(
    "extra",
    [
        {"parent_tool_use_id": "toolu_1"}, {"is_api_error_message": True}, {"error": "unknown"},
        {"historical": True}, {"local_command_source": "x"}, {"model": "<synthetic>"},
    ],
)  # fmt: skip
def test_text_of_other_roles_is_not_protocol(extra: dict[str, Any]) -> None:
    message = whole(f"Hi {OSLO}", **extra)
    reader = ReplyReader()
    assert reader.read(message) == []
    assert reader.rewrite(message) == [message]
    assert reader.end(result()) == ParsedReply()


def test_frames_of_sub_agents_and_users_are_left_alone() -> None:
    body = {"role": "user", "content": [frames.text(OSLO)]}
    others = [
        delta(OSLO, parent_tool_use_id="toolu_1"),
        from_dict({"type": "user", "message": body, "isSynthetic": True}),
        from_dict({"type": "user", "message": body}),
    ]
    reader = ReplyReader()
    assert [reader.read(each) for each in others] == [[], [], []]
    assert [reader.rewrite(each) for each in others] == [[each] for each in others]


@pytest.mark.parametrize("name", ["34_overloaded_mid_stream_nofallback", "16_interrupt_mid_stream"])
def test_a_failed_turn_gives_no_calls(name: str) -> None:
    messages = recorded(name)
    end = next(at for at, each in enumerate(messages) if each.type == "result")
    reader = ReplyReader()
    listener = Listener([each for message in messages[: end + 1] for each in reader.read(message)])
    reply = reader.end(messages[end])  # type: ignore[arg-type]
    assert reply.is_failed
    assert reply.calls == ()
    assert listener.finishes == []
    assert listener.text == reply.text


def test_nothing_runs_after_an_interrupt_or_without_a_result() -> None:
    aborted = [started("msg_1"), opened(), delta(OSLO), whole(OSLO, aborted=True), stopped()]
    _, reply = read_reply([*aborted, result()])
    assert (reply.calls, reply.is_failed) == ((), True)
    reader = ReplyReader()
    reader.read(whole(OSLO))
    assert reader.end() == ParsedReply(is_failed=True)


# --- going on after the output limit


@pytest.mark.sample(6)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("at", range(1, len(OSLO), 5))
def test_a_call_cut_by_the_output_limit_goes_on_in_the_next_message(at: int, streams: bool) -> None:
    first, second = f"Well, {OSLO[:at]}", f"{OSLO[at:]} Done."
    messages = [started("msg_1"), *streamed([first]), ended(), limit()]
    messages += [started("msg_2"), *streamed(list(second), "msg_2"), ended("msg_2"), result(second)]
    listener, reply = read_reply(
        messages if streams else [each for each in messages if not isinstance(each, StreamEvent)]
    )
    assert cities(reply) == ["Oslo"]
    assert reply.text == "Well,  Done."
    assert not listener.retracted


@pytest.mark.parametrize("streams", [True, False])
def test_a_continuation_that_repeats_the_end_or_the_whole_call(streams: bool) -> None:
    call = call_text(city="Oslo", note="the quick brown fox jumps over")
    for first, second in (
        (call[:-20], call[-50:]),  # the last words again
        (call[:-20], call),  # the call anew
        (f"Hi {call[:12]}", f"\n{call}"),
    ):
        messages = [started("msg_1"), *streamed([first]), limit(), started("msg_2"), *streamed(list(second), "msg_2")]
        chosen = messages if streams else [each for each in messages if not isinstance(each, StreamEvent)]
        _, reply = read_reply([*chosen, result(second)])
        assert cities(reply) == ["Oslo"], second
        assert reply.calls[0].input["note"] == "the quick brown fox jumps over"  # type: ignore[union-attr]
        assert reply.text.strip() in ("", "Hi")


def test_text_that_only_looks_repeated_is_kept() -> None:
    _, reply = read_reply([whole("-" * 60 + "\nEnd of one.\n}\n}\n"), whole("}\n}\n" + "-" * 60, "msg_2"), result()])
    assert reply.text == "-" * 60 + "\nEnd of one.\n}\n}\n}\n}\n" + "-" * 60


def test_a_repetition_counts_again_when_what_it_repeats_is_retracted() -> None:
    words = "The quick brown fox jumps over the lazy dog."
    messages = [whole(f"A. {words}", uuid="u1"), whole(f"{words} B.", "msg_2", uuid="u2")]
    assert read_reply([*messages, result()])[1].text == f"A. {words} B."
    assert read_reply([*messages, retraction("u1"), result()])[1].text == f"{words} B."
    first, anew = whole(OSLO[:-9], uuid="u1"), whole(OSLO, "msg_2", uuid="u2")
    _, reply = read_reply([first, anew, retraction("u2"), whole(OSLO[-9:], "msg_3"), result()])
    assert cities(reply) == ["Oslo"]


# --- ids and turns


@pytest.mark.requirement("S16")
def test_ids_are_unique_over_turns_and_attempts() -> None:
    reader = ReplyReader()
    seen: list[str] = []
    for turn in range(3):
        for message in (whole(f"{OSLO}{ROME}", f"msg_{turn}"), result()):
            reader.read(message)
        seen += [each.id for each in reader.end(result()).calls]
    assert len(set(seen)) == len(seen) == 6


@pytest.mark.requirement("S16")
def test_nothing_of_a_turn_reaches_the_next() -> None:
    reader = ReplyReader()
    for message in (whole(f"One {OSLO[:20]}"), result()):
        reader.read(message)
    assert [each.type for each in reader.end(result()).calls] == ["error"]
    for message in (whole(f"{OSLO[20:]} two", "msg_2"), result()):
        reader.read(message)
    reply = reader.end(result())
    assert reply.calls == ()
    assert reply.text == f"{OSLO[20:]} two"


# --- joins


@pytest.mark.parametrize(
    ("written", "more", "join"),
    [
        ("abc", "def", ReplySplice(3)),
        ("", "def", ReplySplice(0)),
        ("The quick brown fox jumps over", "quick brown fox jumps over it", ReplySplice(30, 26)),
        ("The quick brown fox", "fox jumps", ReplySplice(19)),
        ("=" * 40, "=" * 40, ReplySplice(40)),
        ("a<tool_use><x>", "<tool_use><x>1", ReplySplice(1)),
        ("a<tool_use>1</tool_use>", "<tool_use><x>1", ReplySplice(23)),
        ("a<tool_use-n1>", "\n<tool_use-n1>", ReplySplice(1)),
        ("a<tool_use-n1>", "<tool_use-n2>", ReplySplice(14)),
    ],
)
def test_joins(written: str, more: str, join: ReplySplice) -> None:
    assert find_splice(written, more, final=True) == join
    steps = [find_splice(written, more[:end], final=False) for end in range(len(more))]
    decided = [each for each in steps if each is not None]
    assert all(each == join for each in decided)
