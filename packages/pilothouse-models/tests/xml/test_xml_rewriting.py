"""What a reader sees who knows no protocol: calls as blocks, and no markup."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from xml_fixtures import (
    CLOSE,
    OPEN,
    OSLO,
    ROME,
    call_text,
    cities,
    delta,
    ended,
    event,
    limit,
    opened,
    read_reply,
    result,
    retraction,
    rewritten,
    started,
    streamed,
    whole,
)

from pilothouse.messages import AssistantMessage, Message, StreamEvent, TextBlock, ThinkingBlock
from pilothouse_models.xml.reply_reader import ParsedReply, ReplyReader
from pilothouse_testing import frames

# --- for a reader without a protocol


def deltas_of(messages: Iterable[Message]) -> str:
    return "".join([each.text_delta or "" for each in messages if isinstance(each, StreamEvent)])


def assistants(messages: Iterable[Message]) -> list[AssistantMessage]:
    return [each for each in messages if isinstance(each, AssistantMessage)]


@pytest.mark.requirement("S33")
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_rewritten_messages_show_calls_as_blocks_and_no_markup(size: int) -> None:
    text = f"Looking, a < b. {OSLO} And {ROME} done <"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    messages, reader = rewritten([started("msg_1"), *streamed(pieces), ended(), result(text)])
    (message,) = assistants(messages)
    assert [each.type for each in message.content] == ["text", "tool_use", "text", "tool_use", "text"]
    assert [(each.name, each.input) for each in message.tool_uses] == [
        ("weather", {"city": "Oslo"}),
        ("weather", {"city": "Rome"}),
    ]
    assert message.text == deltas_of(messages) == messages[-1].result == "Looking, a < b.  And  done <"  # type: ignore[attr-defined]
    reply = reader.end(messages[-1])  # type: ignore[arg-type]
    assert [each.id for each in reply.calls] == [each.id for each in message.tool_uses]


def test_every_delta_is_out_before_its_message() -> None:
    messages, _ = rewritten([started("msg_1"), *streamed(["a <", "too"]), ended(), result("a <too")])
    at = next(at for at, each in enumerate(messages) if isinstance(each, AssistantMessage))
    assert deltas_of(messages[:at]) == "a <too"
    assert deltas_of(messages[at:]) == ""


def test_raw_lines_and_everything_else_are_kept() -> None:
    given = [started("msg_1"), *streamed([f"Hi {OSLO}"], uuid="u7"), ended(), result(f"Hi {OSLO}")]
    messages, _ = rewritten(given)
    message = assistants(messages)[0]
    assert (message.uuid, message.message_id, message.model) == ("u7", "msg_1", frames.MODEL)
    assert messages[-1].raw_line == given[-1].raw_line
    assert [each.type for each in messages] == [each.type for each in given]


def test_a_delta_of_markup_only_is_left_out() -> None:
    given = [started("msg_1"), *streamed(["Hi ", OSLO]), result()]
    messages, _ = rewritten(given)
    assert len(messages) == len(given) - 1
    assert deltas_of(messages) == "Hi "


@pytest.mark.sample(12)
@pytest.mark.parametrize("at", range(1, len(OSLO)))
def test_a_split_call_is_shown_where_it_ends(at: int) -> None:
    given = [started("msg_1"), *streamed([f"Hi {OSLO[:at]}"]), *streamed([f"{OSLO[at:]} bye"], index=1), result(" bye")]
    messages, reader = rewritten(given)
    first, second = assistants(messages)
    assert [each.name for each in second.tool_uses] == ["weather"]
    assert first.tool_uses == []
    assert second.text == " bye"
    assert first.text.startswith("Hi ")
    assert deltas_of(messages) == first.text + second.text
    assert reader.end(result()).text == "Hi  bye"


def test_broken_calls_are_shown_too_and_those_cut_off_before_the_result() -> None:
    bad = f"{OPEN}<tool_name>weather</tool_name><arguments>{{'a'}}</arguments>{CLOSE}"
    messages, reader = rewritten([whole(f"{bad} and {OSLO[:25]}"), result("x")])
    first, late = assistants(messages)
    assert [(each.name, each.input) for each in first.tool_uses] == [("weather", {"unreadable": bad})]
    assert [each.input for each in late.tool_uses] == [{"unreadable": OSLO[:25]}]
    assert messages.index(late) == len(messages) - 2
    shown = [each.id for message in (first, late) for each in message.tool_uses]
    assert [each.id for each in reader.end(result()).calls] == shown


def test_the_result_of_another_block_and_of_a_failure() -> None:
    messages, _ = rewritten([whole(f"One {OSLO}"), result(f"Two {ROME}")])
    assert messages[-1].result == "Two "  # type: ignore[attr-defined]
    failure = result(f"API Error {ROME}", is_error=True)
    messages, _ = rewritten([whole(f"One {OSLO}"), failure])
    assert messages[-1] is failure


def test_text_in_a_block_start_is_text() -> None:
    begun = event({"type": "content_block_start", "index": 0, "content_block": frames.text(f"Hi {OSLO[:20]}")})
    messages, reader = rewritten([started("msg_1"), begun, delta(OSLO[20:]), whole(f"Hi {OSLO}"), result()])
    assert deltas_of(messages) == "Hi "
    assert cities(reader.end(result())) == ["Oslo"]


def test_abandoned_streams_are_rewritten_like_any_other() -> None:
    broken = {"api_message_id": "msg_1", "from_block_index": 0}
    given = [started("msg_1"), opened(), delta("Hi <"), ended(abandoned_blocks=broken), whole("<b> Hi", "msg_2")]
    messages, _ = rewritten([*given, result("<b> Hi")])
    assert [each.text for each in assistants(messages)] == ["<b> Hi"]
    assert deltas_of(messages) == "Hi "
    assert any(isinstance(each, StreamEvent) and each.abandoned_blocks for each in messages)


def test_any_order_of_streams_and_messages_is_survived() -> None:
    broken = {"api_message_id": "msg_1", "from_block_index": 0}
    parts = [
        started("msg_1"), delta(OSLO), whole(OSLO, uuid="u1"), ended(abandoned_blocks=broken),
        retraction("u1"), whole(ROME, "msg_2", uuid="u2", supersedes=["u1"]),
    ]  # fmt: skip
    for order in itertools.permutations(parts):
        _, reply = read_reply([*order, result()])
        assert len(reply.calls) <= 2
        assert "Rome" in cities(reply)
        rewritten([*order, result()])


# --- the parser of a real conversation

NONCE = "k3v9x0q2zz"


def test_with_a_nonce_only_calls_with_it_count() -> None:
    reader = ReplyReader(nonce=NONCE)
    own = OSLO.replace("tool_use", f"tool_use-{NONCE}")
    first, second = whole(f"{ROME}{own[:-30]}"), whole(own, "msg_2")
    shown = [each for message in (first, limit(), second, result()) for each in reader.rewrite(message)]
    assert cities(reader.end(result())) == ["Oslo"]
    assert [each.text for each in assistants(shown)] == [ROME, ""]


def test_tagged_thinking_is_shown_as_thinking() -> None:
    text = "<thinking>hm</thinking>Hi"
    messages, reader = rewritten([started("msg_1"), *streamed([text]), result(text)])
    assert reader.end(result()) == ParsedReply((), "Hi", "hm")
    assert assistants(messages)[0].content == [ThinkingBlock("hm"), TextBlock("Hi")]
    assert [each.thinking_delta for each in messages if isinstance(each, StreamEvent) and each.thinking_delta] == ["hm"]


def test_an_invented_result_is_no_text_and_an_error_for_the_model() -> None:
    text = f"{OSLO}\n<tool_result><result>sunny</result></tool_result> It is sunny."
    _, reply = read_reply([whole(text), result(text)])
    assert [each.type for each in reply.calls] == ["tool-call", "error"]
    assert "sunny</result>" not in reply.text


@pytest.mark.sample(6)
@pytest.mark.parametrize("at", range(1, 120, 3))
def test_every_cut_between_messages_gives_the_same_calls(at: int) -> None:
    text = f"Hi, a < b {OSLO}\n```\n{ROME}\n```\n<thinking>so</thinking> {call_text(city='Bonn')} bye"
    expected = read_reply([whole(text), result(text)])[1]
    for second in (streamed([text[at:]], "msg_2"), streamed(list(text[at:]), "msg_2"), [whole(text[at:], "msg_2")]):
        listener, reply = read_reply([whole(text[:at]), *second, result(text)])
        assert [(each.name, each.raw) for each in reply.calls] == [(each.name, each.raw) for each in expected.calls]
        assert (reply.text, reply.thinking) == (expected.text, expected.thinking)
        assert not listener.retracted


PIECES = [
    "a < b ",
    "<",
    "\n",
    "```\n",
    "`x` ",
    "<b>",
    "<tool_",
    "use>",
    "<thinking>",
    "</thinking>",
    OSLO,
    ROME,
    OSLO[:30],
    " ok",
]


def without_ids(reply: ParsedReply) -> ParsedReply:
    return structs.replace(reply, calls=tuple(structs.replace(each, id="") for each in reply.calls))


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=5), max_size=3), st.integers(1, 9))
def test_any_reply_reads_the_same_streamed_or_not_and_rewritten(blocks: list[list[str]], size: int) -> None:
    texts = ["".join(each) for each in blocks]
    plain: list[Message] = [whole(text) for text in texts]
    live = [started("msg_1")]
    for index, text in enumerate(texts):
        live += streamed([text[at : at + size] for at in range(0, len(text), size)], index=index)
    end = result(texts[-1] if texts else "")
    expected = read_reply([*plain, end])[1]
    listener, reply = read_reply([*live, end])
    assert without_ids(reply) == without_ids(expected)
    assert not listener.retracted
    for messages in (plain, live):
        shown, reader = rewritten([*messages, end])
        reply = reader.end(end)
        assert without_ids(reply) == without_ids(expected)
        text = "".join([each.text for each in assistants(shown)])
        if len(texts) == 1:
            assert text == expected.text
        uses = [use for each in assistants(shown) for use in each.tool_uses]
        assert [use.id for use in uses] == [each.id for each in reply.calls]
        if messages is live:
            assert deltas_of(shown) == text
