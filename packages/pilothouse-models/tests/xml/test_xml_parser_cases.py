"""The twenty hard cases of a streaming parser of tool calls: what each gives, and that no split changes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xml_fixtures import merge_deltas, parse

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
from pilothouse_models.xml import StreamParser

WEATHER = {
    "properties": {
        "city": {"type": "string"},
        "units": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
    }
}
TOOLS: dict[str, Any] = {"getWeather": WEATHER, "write": {"properties": {"code": {"type": "string"}}}, "stop": {}}
NONCE = "k3x9"


def call(body: str = "<city>Oslo</city>", *, name: str = "getWeather", outer: str = "tool_use") -> str:
    return f"<{outer}><tool_name>{name}</tool_name><parameters>{body}</parameters></{outer}>"


def json_call(text: str, *, name: str = "write", call_id: str = "a1") -> str:
    return (
        f"<tool_use><tool_name>{name}</tool_name><tool_call_id>{call_id}</tool_call_id>"
        f"<arguments>{text}</arguments></tool_use>"
    )


def run(parts: Iterable[str], *, nonce: str | None = None) -> list[ParserEvent]:
    parser = StreamParser(TOOLS, nonce)
    events = [event for part in parts for event in parser.feed(part)]
    return merge_deltas(events + parser.close())


def brief(events: Iterable[ParserEvent]) -> list[Any]:
    """Text as itself, thinking as `~text`, calls as name and arguments, errors as their code."""
    found: list[Any] = []
    for event in events:
        match event:
            case TextDelta(text):
                found.append(text)
            case ThinkingDelta(text):
                found.append(f"~{text}")
            case ToolCall(_, name, arguments):
                found.append((name, arguments))
            case ToolCallError(_, _, code):
                found.append({code})
            case ReplyFinished() | ToolCallStarted() | ToolCallDelta():
                pass
    return found


OSLO = ("getWeather", {"city": "Oslo"})
FENCED = f"```xml\n{call()}\n```\n"
NONCED = call(outer=f"tool_use-{NONCE}")

CASES: list[tuple[str, str, list[Any], str | None]] = [
    ("01 everything that a cut may hit", f"é😀\ud83d{call('<city>a&amp;b<![CDATA[]]]]></city>')}\ude00",
     ["é😀\ud83d", ("getWeather", {"city": "a&b]]"}), "\ude00"], None),
    ("02 angles in prose", "a < b, List<int>, <b>x</b> <!-- c --> <!DOCTYPE html> 1<2",
     ["a < b, List<int>, <b>x</b> <!-- c --> <!DOCTYPE html> 1<2"], None),
    ("02 thinking", "a<thinking>b < c <tool_use></thinking>d</thinking>",
     ["a", "~b < c <tool_use>", "d</thinking>"], None),
    ("03 false starts", "<tool <tool_user> <tool_use_x> </tool_use> <toolbox/> <tool_use",
     ["<tool <tool_user> <tool_use_x> </tool_use> <toolbox/> <tool_use"], None),
    ("04 end tags in a string of JSON", json_call('{"code": "</arguments></tool_use>\\"</arguments>"}'),
     [("write", {"code": '</arguments></tool_use>"</arguments>'})], None),
    ("04 end tags in a parameter", call("<code></parameters></tool_use> </codex></code>", name="write"),
     [("write", {"code": "</parameters></tool_use> </codex>"})], None),
    ("05 in a fence", f"{FENCED}{call()}", [FENCED, OSLO], None),
    ("05 in tildes", f"~~~\n{call()}\n~~~\n", [f"~~~\n{call()}\n~~~\n"], None),
    ("05 inline", f"`{call()}` and ``x`{call()}`` {call()}", [f"`{call()}` and ``x`{call()}`` ", OSLO], None),
    ("05 quoted line", f"> {call()}\n{call()}", [f"> {call()}\n", OSLO], None),
    ("05 a lone backtick", f"don`t\n{call()}", ["don`t\n", OSLO], None),
    ("06 a real call in a fence", f"```xml\n{NONCED}\n{NONCED}\n```\n",
     ["```xml\n", OSLO, "\n", OSLO, "\n```\n"], NONCE),
    ("06 not the first thing", f"```\nso: {NONCED}\n```\n", [f"```\nso: {NONCED}\n```\n"], NONCE),
    ("07 CDATA", call("<code><![CDATA[a]]]]><![CDATA[>&lt;</code>]]>&lt;</code>", name="write"),
     [("write", {"code": "a]]>&lt;</code><"})], None),
    ("07 CDATA around JSON", json_call('<![CDATA[{"code": "</arguments>]]]]><![CDATA[>"}]]>'),
     [("write", {"code": "</arguments>]]>"})], None),
    ("07 unclosed CDATA", call("<code><![CDATA[x</code>", name="write"), [{"truncated"}], None),
    ("08 entities", call("<code>&lt;&amp;lt;&quot;&#x27;&#10;&nbsp;?a=1&b&#xD800;&e;</code>", name="write"),
     [("write", {"code": "<&lt;\"'\n&nbsp;?a=1&b&#xD800;&e;"})], None),
    ("09 attributes", "<tool_use b='2' a=\"x>y\" a='z'><tool_name x>stop</tool_name></tool_use>", [("stop", {})], None),
    ("09 empty tags", "<tool_use name='x'/>" + "<tool_use><tool_name>stop</tool_name><parameters/></tool_use>",
     [{"missing_name"}, ("stop", {})], None),
    ("10 case, space, prefix", "< Tool_Use\n><x:TOOL_NAME> stop </ tool_name ></tool_use >", [("stop", {})], None),
    ("11 ids", json_call("{}", call_id="a") + json_call("{}", call_id="a") + json_call("{}", call_id=" "),
     [("write", {})] * 3, None),
    ("12 another order", "<tool_use><arguments>{}</arguments><why>so</why><tool_name>stop</tool_name></tool_use>",
     [("stop", {})], None),
    ("12 said twice", "<tool_use><tool_name>stop</tool_name><tool_name>write</tool_name></tool_use>",
     [{"invalid_call"}], None),
    ("12 parameters in the wrong place", "<tool_use><tool_name>stop</tool_name><city>x</city></tool_use>",
     [{"invalid_call"}], None),
    *[(f"13 JSON {text[:8]!r}", f"{json_call(text)}ok", [{"invalid_json"}, "ok"], None)
      for text in ("{,}", "{'a': 1}", '{"a": 1,}', "{} // c", "```json\n{}\n```", '{"a": NaN}', '{"a": "x\ny"}', "",
                   '{"a": 1e999}', '{"a": "x', "[" * 100_000, "{} {}")],
    *[(f"13 no object {text}", f"{json_call(text)}ok", [{"invalid_call"}, "ok"], None)
      for text in ("[1,2]", '"a"', "1", "null")],
    ("14 nested", f"<tool_use><tool_name>stop</tool_name>{call()}", [{"unclosed"}, OSLO], None),
    ("14 before the last one closed", f"<tool_use><tool_name>stop</tool_name><parameters>{call()}",
     [{"unclosed"}, OSLO], None),
    ("14 a parameter never closed", f"{call('<city>Oslo')} after", [{"unclosed"}, " after"], None),
    ("14 with a nonce", f"<tool_use-{NONCE}><tool_name>write</tool_name><parameters><code>x{NONCED}",
     [{"unclosed"}, OSLO], NONCE),
    ("15 several calls", f"a{call()}b{json_call('{}')}{call()}c", ["a", OSLO, "b", ("write", {}), OSLO, "c"], None),
    *[(f"16 cut off {tail}", f"a<tool_use>{tail}", ["a", {"truncated"}], None)
      for tail in ("", "<tool_name>wri", '<tool_name>write</tool_name><arguments>{"code', "<tool_name>stop</tool_na",
                   "<tool_name>stop</tool_name><parameters><city>O</ci", "<tool_name>stop</tool_name></tool_use")],
    ("16 thinking is cut off", "<thinking>so </think", ["~so </think"], None),
    ("20 an invented result", f"{call()}<tool_result><r>1</r></tool_result> so",
     [OSLO, {"invented_result"}, " so"], None),
    ("20 a result with the nonce", f"x<tool_result-{NONCE}>9", ["x", {"invented_result"}], NONCE),
    ("20 a call without the nonce", f"{call()}<tool_result>", [f"{call()}<tool_result>"], NONCE),
    ("20 an unknown tool", f"{call(name='getWether')}ok", [{"unknown_tool"}, "ok"], None),
]  # fmt: skip


@pytest.mark.requirement("S11", "S12", "S13", "S17", "S18", "S19", "S24", "S25", "S29")
@pytest.mark.parametrize(("text", "expected", "nonce"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_hard_case(text: str, expected: list[Any], nonce: str | None) -> None:
    whole = run([text], nonce=nonce)
    assert brief(whole) == expected
    assert whole[-1] == ReplyFinished("tool-calls" if any(isinstance(event, ToolCall) for event in whole) else "stop")
    if len(text) > 1000:
        assert run([text[:500], text[500:]], nonce=nonce) == whole
        return
    assert run(text, nonce=nonce) == whole
    for at in range(len(text)):
        assert run([text[:at], text[at:]], nonce=nonce) == whole


BARE = call()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BARE, [{"missing_suffix"}]),
        (f"Let me look.\n{BARE}\nDone", ["Let me look.\n", {"missing_suffix"}, "\nDone"]),
        ("< Tool_Use >\n <tool_name> getWeather </tool_name></tool_use>", [{"missing_suffix"}]),
        (f"<tool_use><tool_name>getWeather</tool_name></tool_use-{NONCE}>.", [{"missing_suffix"}, "."]),
        (BARE + BARE, [{"missing_suffix"}, {"missing_suffix"}]),
        ("<tool_use><tool_name>getWeather</tool_name>", [{"missing_suffix"}]),
        (f"<tool_use><tool_name>stop</tool_name> {call(outer=f'tool_use-{NONCE}')}",
         [{"missing_suffix"}, ("getWeather", {"city": "Oslo"})]),
        (call(name="other"), [call(name="other")]),
        (f"Quoted: {BARE}", [f"Quoted: {BARE}"]),
        ("<tool_use> is the tag", ["<tool_use> is the tag"]),
        ("<tool_use>" + " " * 600 + "<tool_name>getWeather</tool_name>",
         ["<tool_use>" + " " * 600 + "<tool_name>getWeather</tool_name>"]),
        (f"`{BARE}`", [f"`{BARE}`"]),
        (f"```\n{BARE}\n```", [f"```\n{BARE}\n```"]),
        (f"> {BARE}", [f"> {BARE}"]),
    ],
)  # fmt: skip
def test_a_call_without_the_nonce_is_refused_and_never_run(text: str, expected: list[Any]) -> None:
    for size in (1, 7, len(text)):
        parser = StreamParser(TOOLS, NONCE, refuse_bare=True)
        events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
        assert brief(merge_deltas(events + parser.close()))[: len(expected)] == expected
    assert not any(isinstance(event, ToolCallError) for event in parse(text, TOOLS, NONCE))  # refused only if asked


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.sampled_from(["</arguments></tool_use>", "<tool_use>\\"]))))
def test_hard_case_04_every_string_survives_the_json_dialect(value: dict[str, str]) -> None:
    text = json.dumps(value)
    assert brief(parse(json_call(text, name="stop"), TOOLS)) == [("stop", value)]
    assert brief(run(json_call(text, name="stop"))) == [("stop", value)]


def test_hard_case_03_only_what_may_become_a_tag_is_held_back() -> None:
    parser = StreamParser()
    assert parser.feed("a <tool_us") == [TextDelta("a ")]
    assert parser.feed("er") == []  # may still be a namespace prefix
    assert merge_deltas(parser.feed(" b")) == [TextDelta("<tool_user b")]
    assert parser.feed("c <") == [TextDelta("c ")]
    assert merge_deltas(parser.feed(" 5 ")) == [TextDelta("< 5 ")]
    assert "".join(event.text for event in parser.feed("<tool_use " + "x" * 600) if isinstance(event, TextDelta))


@pytest.mark.parametrize("size", [512, 513])
def test_hard_case_03_the_longest_tag_is_the_same_for_every_split(size: int) -> None:
    text = f"<tool_use{' ' * (size - 11)}/>"
    whole = run([text])
    assert brief(whole) == [{"missing_name"} if size == 512 else text]
    for at in (1, 511, 512):
        assert run([text[:at], text[at:]]) == whole


def test_hard_case_11_ids_are_new_and_come_with_the_name() -> None:
    used = {"call_1"}
    calls = json_call("{}", call_id="mine") + json_call("{}", call_id="mine") + json_call("{}", call_id="call_1")
    late = "<tool_use><tool_name>stop</tool_name><tool_call_id>late</tool_call_id></tool_use>"
    parser = StreamParser(TOOLS, used=used)
    events = parser.feed(
        "<tool_use><tool_call_id>x</tool_call_id><tool_name>stop</tool_name></tool_use>" + late + calls
    )
    starts = [event.id for event in events if isinstance(event, ToolCallStarted)]
    assert starts == [event.id for event in events if isinstance(event, ToolCall)]
    assert starts == ["x", "call_2", "call_3", "call_4", "call_5"]
    assert used == {"call_1", *starts}
    again = StreamParser(TOOLS, used=used, mint=lambda: "call_1").feed(call())
    assert isinstance(again[0], ToolCallStarted)
    assert again[0].id == "call_1-2"


@pytest.mark.requirement("S16")
def test_hard_case_17_a_replayed_reply_is_read_by_a_parser_of_its_own() -> None:
    used: set[str] = set()
    abandoned = StreamParser(TOOLS, used=used)
    assert brief(abandoned.feed(call()[:-3])) == []
    replayed = StreamParser(TOOLS, used=used)
    events = replayed.feed(call()) + replayed.close()
    assert brief(events) == [OSLO]
    assert isinstance(events[0], ToolCallStarted)
    assert events[0].id == "call_2"


def test_hard_case_20_a_call_over_the_limit_is_one_error_and_the_reply_goes_on() -> None:
    text = f"a{json_call(json.dumps({'code': 'x' * 5000 + '</tool_use>'}))}b{call()}"
    for size in (1, 7, 1000, len(text)):
        parser = StreamParser(TOOLS, max_call_chars=2000)
        events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
        events = merge_deltas(events + parser.close())
        assert brief(events) == ["a", {"too_large"}, "b", OSLO]
        assert sum(len(event.text) for event in events[:3] if isinstance(event, ToolCallDelta)) < 2000
