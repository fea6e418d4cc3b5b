"""The parser of replies: its events, its settings, its accounting, and the work that it does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xml_fixtures import merge_deltas, parse

from pilothouse.errors import UsageError
from pilothouse.events import (
    ParserEvent,
    ReplyFinished,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
)
from pilothouse.messages import ToolUseBlock
from pilothouse.tools import tool
from pilothouse_models.xml import StreamParser
from pilothouse_models.xml.scanner import TextBuffer

SEED = """<tool_use>
  <tool_name>getWeather</tool_name>
  <parameters>
    <city>San Francisco</city>
    <units>celsius</units>
  </parameters>
</tool_use>"""
FRAGMENTS = [
    "<tool_use>", "</tool_use>", "<tool_use-ab>", "</tool_use-ab>", "<tool_name>w</tool_name>", "<tool_name>",
    "</tool_name>", "<tool_call_id>i</tool_call_id>", "<arguments>", "</arguments>", "<parameters>", "</parameters>",
    "<c>", "</c>", "<a>", "</a>", "<item>", "</item>", "<![CDATA[", "]]>", "]", "{", "}", '"', "\\", '{"c":"x"}', ":",
    ",", "\n", "`", "```", "~~~", "\n> ", " ", "<thinking>", "</thinking>", "<tool_result>", "</tool_result>", "<",
    "</", "<tool_u", "< tool_use a='>' >", "&lt;", "\ud83d", "\ude00", "w", "1",
]  # fmt: skip
SCHEMAS: dict[str, Any] = {"w": {"properties": {"c": {"type": "string"}, "a": {"type": "array"}}}}


def call_of(events: list[ParserEvent]) -> ToolCall:
    return next(event for event in events if isinstance(event, ToolCall))


@pytest.mark.requirement("S10", "S14", "S15", "S18")
def test_events_come_before_the_end_tag_and_in_order() -> None:
    parser = StreamParser()
    (_, begun) = parser.feed("Let me see. <tool_use><tool_name>w</tool_name>")
    assert begun == ToolCallStarted(ToolUseBlock("call_1", "w"))
    assert parser.feed('<arguments>{"c": ') == [ToolCallDelta("call_1", '{"c": ')]
    assert parser.feed("1}</arguments>") == [ToolCallDelta("call_1", "1}")]
    last = parser.feed("</tool_use>")
    assert [event.type for event in last] == ["tool-call"]
    assert call_of(last).input == {"c": 1}
    assert parser.close() == [ReplyFinished("tool-calls")]
    assert parser.close() == []
    with pytest.raises(UsageError):
        parser.feed("x")


@pytest.mark.requirement("S18", "S26")
def test_the_weather_call_of_the_requirement() -> None:
    @tool
    def getWeather(city: str, units: str = "celsius") -> str:
        return f"{city} {units}"

    events = parse(SEED, [getWeather])
    assert call_of(events).input == {"city": "San Francisco", "units": "celsius"}
    assert call_of(events).raw == SEED
    assert parse(SEED, [{"name": "getWeather", "input_schema": getWeather.input_schema}]) == events
    assert call_of(parse(SEED)).input == {"city": "San Francisco", "units": "celsius"}


@pytest.mark.requirement("S17", "S24", "S25")
@pytest.mark.parametrize(
    ("text", "code", "output"),
    [
        ("<tool_use></tool_use>", "missing_name", "Tool call missing name"),
        ("<tool_use><tool_name> </tool_name></tool_use>", "missing_name", "Tool call missing name"),
        ("<tool_use><tool_name>w</tool_name><arguments>[]</arguments></tool_use>", "invalid_call", "Invalid tool call"),
        ("<tool_use><tool_name>w</tool_name><arguments>{]</arguments></tool_use>", "invalid_json", "line 1 column 2"),
        ("<tool_use><tool_name>ww</tool_name></tool_use>", "unknown_tool", "did you mean 'w'?"),
        ("<tool_use><tool_name>w</tool_name>", "truncated", "cut off"),
    ],
)
def test_faults_have_a_code_and_a_text_for_the_model(text: str, code: str, output: str) -> None:
    error = next(event for event in parse(text, SCHEMAS) if isinstance(event, ToolCallError))
    assert error.code == code
    assert output in error.message
    assert error.raw == text


@pytest.mark.parametrize(
    "settings_", [{"nonce": ""}, {"nonce": "a b"}, {"max_call_chars": 0}, {"tools": {"a": 1}}, {"tools": ["a"]}]
)
def test_settings_that_cannot_be_used(settings_: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        StreamParser(**settings_)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.sampled_from([None, "ab"]), st.integers(1, 9), st.booleans()
)
def test_documents_of_fragments_lose_nothing_whatever_the_chunks(
    parts: list[str], nonce: str | None, size: int, refuse_bare: bool
) -> None:
    text = "".join(parts)
    all_at_once = StreamParser(SCHEMAS, nonce, refuse_bare=refuse_bare)
    whole = merge_deltas(all_at_once.feed(text) + all_at_once.close())
    parser = StreamParser(SCHEMAS, nonce, refuse_bare=refuse_bare)
    chunks = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
    assert merge_deltas(chunks + parser.close()) == whole
    assert [event for event in whole if isinstance(event, ReplyFinished)] == [whole[-1]]
    open_call = None
    output = ""
    for event in whole:
        if isinstance(event, ToolCallStarted):
            assert open_call is None
            open_call = event.id
        elif isinstance(event, ToolCallDelta):
            assert event.id == open_call
        elif isinstance(event, ToolCall | ToolCallError):
            assert open_call in (None, event.id)
            open_call, output = None, output + event.raw
        elif isinstance(event, TextDelta | ThinkingDelta):
            output += event.text
    assert open_call is None
    thinking = re.compile("</?thinking>")
    assert thinking.sub("", output) == thinking.sub("", text)


HOSTILE = {
    "angles": "<", "ends": "</", "spaces": "< ", "prefixes": "<tool_us", "open quotes": '<tool_use a="',
    "ticks": "`a\n",
    "lone tags": "<tool_use>", "cdata": "<![CDATA[",
    "unclosed": "<tool_use><tool_name>w</tool_name><parameters><c>x</parameters></tool_use>",
    "others": "<tool_use><tool_name>v</tool_name><parameters><p{n}></parameters></tool_use>",
    "strings": '<tool_use><tool_name>w</tool_name><arguments>{"a":"</arguments></tool_use>\n',
    "escapes": '<tool_use><tool_name>w</tool_name><arguments>\\"</arguments></tool_use>',
    "sections": "<tool_use><tool_name>w</tool_name><parameters><c><![CDATA[</c></tool_use>",
}  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_hard_case_20_no_input_is_read_more_than_a_few_times(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    take = TextBuffer.take

    def counted(self: TextBuffer, to: int) -> str:
        nonlocal taken
        piece = take(self, to)
        taken += len(piece)
        return piece

    monkeypatch.setattr(TextBuffer, "take", counted)
    text = "".join([unit.replace("{n}", str(n)) for n in range(500)])
    parser = StreamParser()
    held = 0
    for at in range(0, len(text), 5):
        parser.feed(text[at : at + 5])
        source = parser._buffer  # pyright: ignore[reportPrivateUsage]
        held = max(held, len(source.data) - source.pos)
    parser.close()
    assert len(text) <= taken <= 6 * len(text)
    assert held <= 512
