"""Streaming and not streaming tell the same, whatever happens to the stream on its way."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_model_fixtures import (
    NONCE,
    WEATHER,
    Frame,
    block,
    call_text,
    meaning,
    model_of,
    read_stream,
    recorded,
    started,
    stopped,
    streamed,
    whole_only,
)

from pilothouse.errors import PilothouseError
from pilothouse.events import ToolCallStarted
from pilothouse_models import AnswerFailed, AnswerFinished, GenerateResult
from pilothouse_testing import frames

SEGMENTS = (
    "Hello ", "a < b & c ", "<b>bold</b> ", "```\n<tool_use>\n```\n", "<thinking>hm </thinking>", "<", "\n\n",
    call_text(city="Oslo"), call_text(city="Rome", extra=1), call_text(city=7), call_text("wether"),
    call_text("", city="Oslo"), call_text(inside="{broken"), call_text(inside="[1]"), f"<tool_use-{NONCE}><tool_na",
    f"<tool_result-{NONCE}>made up</tool_result-{NONCE}>",
)  # fmt: skip


FATES = ("plain", "retried", "fallback", "contradicted", "unstreamed", "retracted", "resumed")


def retraction(uuid: str) -> Frame:
    """The CLI asks the model again, and takes back what it said."""
    return goes_on("Please retry.") | {"retracted_message_uuids": [uuid]}


def goes_on(text: str = "Output token limit hit. Resume directly.") -> Frame:
    body = {"role": "user", "content": [frames.text(text)]}
    return {"type": "user", "message": body, "isSynthetic": True, "parent_tool_use_id": None, "session_id": "s"}


@pytest.fixture(autouse=True)
def _known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)


def cut(draw: st.DrawFn, text: str, most: int) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=most)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def replies(draw: st.DrawFn, message_id: str) -> list[Frame]:
    """One answer: blocks, cut into deltas; streamed, or abandoned and told again, or given without a stream."""
    text = "".join(draw(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=5)))
    blocks = [("text", part) for part in cut(draw, text, 2) if part]
    if draw(st.booleans()):
        blocks.insert(0, ("thinking", "native thought"))
    reported = [(kind, part, cut(draw, part, 6)) for kind, part in blocks]
    fate = draw(st.sampled_from(FATES))
    made: list[Frame] = []
    if fate == "retracted":
        gone, uuid = f"{message_id}_gone", f"uuid of {message_id}"
        made += [started(gone), *streamed("text", ["Never ", call_text(city="Rome")], 0, gone)]
        made[-2] |= {"uuid": uuid}
        made += [*stopped(gone), retraction(uuid)]
    if fate == "resumed":
        first = f"{message_id}_first"
        made += [started(first), *streamed("text", ["Begun ", call_text(city="Rome")[:20]], 0, first)]
        made += [*stopped(first, "max_tokens"), goes_on()]
    if fate in ("retried", "fallback"):
        first = f"{message_id}_first"
        made.append(started(first))
        gone = draw(st.integers(0, len(reported) - 1))
        for at, (kind, _, pieces) in enumerate(reported[: gone + 1]):
            made += streamed(kind, pieces[: 1 + len(pieces) // 2], at, first, whole=False)
        abandoned = {"api_message_id": first, "from_block_index": 0}
        made += stopped(first, None, abandoned_blocks=abandoned)
    if fate in ("unstreamed", "fallback"):
        made += [frames.assistant([block(kind, part)], message_id=message_id) for kind, part, _ in reported]
    else:
        begun = started(message_id)
        made.append(begun | ({"resume_reason": "max_output_tokens"} if fate == "resumed" else {}))
        for at, (kind, part, pieces) in enumerate(reported):
            if fate == "contradicted" and at == len(reported) - 1:
                pieces = [*pieces[:-1], "something else "]
            stream = streamed(kind, pieces, at, message_id)
            for each in stream:
                if each["type"] == "assistant":
                    each["message"]["content"] = [block(kind, part)]
                    each |= {"resume_reason": "max_output_tokens"} if fate == "resumed" and at == 0 else {}
            made += stream
        made += stopped(message_id)
    usage = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1}
    return [frames.init(), *made, frames.result(blocks[-1][1], usage=usage)]


async def looked_up(city: str) -> str:
    """The weather in a city."""
    return f"18 in {city}"


@pytest.mark.matrix
@pytest.mark.requirement("S11", "S15", "S33")
@settings(max_examples=150, deadline=None)
@given(turns=st.tuples(replies("msg_1"), replies("msg_2"), replies("msg_3")), runs_here=st.booleans())
def test_they_agree(turns: tuple[list[Frame], ...], runs_here: bool) -> None:
    tools = {"weather": WEATHER | ({"execute": looked_up} if runs_here else {})}

    async def main() -> None:
        listener = await read_stream(model_of(*turns).stream("go", tools, max_steps=3))
        whole = await model_of(*whole_only(turns)).generate("go", tools, max_steps=3)
        assert isinstance(listener.end, AnswerFinished)
        result = listener.result
        assert meaning(result) == meaning(whole)
        assert (listener.text, listener.reasoning) == (result.text, result.reasoning)
        assert tuple(listener.calls) == result.tool_calls
        assert tuple(listener.results) == result.tool_results
        assert not listener.retracted & {call.id for call in result.tool_calls}
        assert {call.id for call in result.pending_calls} <= set(listener.begun)
        assert all(call.name == "weather" and call.error is None for call in result.pending_calls)
        assert len({call.id for call in result.tool_calls}) == len(result.tool_calls)

    anyio.run(main)


@pytest.mark.sample(6)
@pytest.mark.requirement("S33", "S43")
@pytest.mark.anyio
@pytest.mark.parametrize(
    "name",
    [
        "01_oneshot_text", "05_partial_messages", "05b_partial_thinking", "30_http_401", "30_http_413", "30_http_429",
        "30_http_529", "30_http_529_recovers", "31c_overloaded_at_start", "33_malformed_sse_json", "33d_empty_sse",
        "34_overloaded_mid_stream_nofallback", "34b_midclose_nofallback", "35b_max_budget", "38_invalid_model",
        "50_xml_sylphx_style", "51_xml_tools_empty", "53_xml_antml_invoke_text_end_turn", "53e_empty_completion",
        "53f_stop_sequence", "55_text_thinking_text_blocks", "83_image_and_blocks",
    ],
)  # fmt: skip
async def test_recordings_give_the_same_both_ways(name: str) -> None:
    frames_of = recorded(name)
    listener = await read_stream(model_of(frames_of).stream("go", [WEATHER]))
    outcome: GenerateResult | PilothouseError
    try:
        outcome = await model_of(*whole_only([frames_of])).generate("go", [WEATHER])
    except PilothouseError as error:
        outcome = error
    if isinstance(listener.end, AnswerFailed):
        assert type(outcome) is type(listener.end.error)
        assert str(outcome) == str(listener.end.error)
    else:
        assert isinstance(outcome, GenerateResult)
        assert meaning(outcome) == meaning(listener.result)
        assert (listener.text, listener.reasoning) == (outcome.text, outcome.reasoning)


@pytest.mark.requirement("S33")
@pytest.mark.anyio
async def test_a_call_that_was_retracted_never_counts() -> None:
    ran: list[str] = []

    async def weather(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return "18"

    abandoned = {"api_message_id": "msg_0", "from_block_index": 0}
    turn = [
        frames.init(),
        started("msg_0"),
        *streamed("text", ["Look. ", call_text(city="Oslo")], 0, "msg_0", whole=False),
        *stopped("msg_0", None, abandoned_blocks=abandoned),
        frames.assistant("Look. No need.", message_id="msg_1"),
        frames.result("Look. No need."),
    ]
    listener = await read_stream(model_of(turn).stream("go", [weather]))
    assert ran == []
    assert [part.name for part in listener.parts if isinstance(part, ToolCallStarted)] == ["weather"]
    assert listener.retracted == set(listener.begun)
    assert (listener.calls, listener.text) == ([], "Look. No need.")
    assert listener.result.finish_reason == "stop"
