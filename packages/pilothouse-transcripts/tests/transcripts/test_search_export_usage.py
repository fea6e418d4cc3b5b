"""Searching, exporting and counting: across sessions, and each thing once."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from handmade_transcripts import MODEL, Disk, File

from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse_transcripts import export_session, fork_session, search_sessions, usage_report

TOKENS = {
    "input_tokens": 10, "output_tokens": 20, "cache_creation_input_tokens": 4, "cache_read_input_tokens": 100,
}  # fmt: skip
WEIGHT = 10 + 20 * 5 + 4 * 1.25 + 100 * 0.1


def test_every_kind_of_content_is_searched(disk: Disk) -> None:
    file = disk.session()
    file.user("the Needle, asked")
    file.assistant({"type": "thinking", "thinking": "a needle?", "signature": ""}, "my needle")
    file.assistant({"type": "tool_use", "id": "t", "name": "Grep", "input": {"pattern": "needle"}})
    file.user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "one NEEDLE\nfound"}]}])
    file.note("last-prompt", lastPrompt="needle")
    file.user("needle", isMeta=True)
    agent = file.agent("ab")
    agent.user("needle below")
    hits = list(search_sessions("needle"))
    assert [hit.where for hit in hits] == ["prompt", "thinking", "text", "tool", "result", "prompt"]
    assert hits[4].excerpt == "one NEEDLE found"
    assert (hits[4].line, hits[4].match, hits[4].session_id) == (4, "NEEDLE", file.id)
    assert hits[5].agent_id == "ab"
    assert len(list(search_sessions("needle", include_subagents=False))) == 5
    assert [hit.match for hit in search_sessions("Needle", ignore_case=False)] == ["Needle"]


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("Grüße", "GRÜSSE", False),
        ("Grüße", "grüße", True),
        ("a \u212aelvin", "kelvin", True),
        ("\u017fchool", "School", True),
        ('say "hi"', '"hi"', True),
        ("tab\there", "tab\there", True),
        ("back\\slash", "back\\slash", True),
        ("1+1", "1+1", True),
        ("11", "1+1", False),
        ("one ki\u017fs", "KISS", True),
        ("one \u212aI\u017fS", "kiss", True),
        ("\u0131s \u0130t", "is it", True),
        ("one kiss – or two", "Kiss", True),
        ("one kis – or two", "Kiss", False),
        ("one kiss", "\u212ai\u017fs", True),
        ("one kiss", "one k\u0131ss", True),
        ("half of it", "\ud83d", False),
        ("漢字で書く", "漢字", True),
        ("kanji", "漢字", False),
    ],
)
@pytest.mark.parametrize("escaped", [False, True])
def test_text_is_found_however_it_was_written(disk: Disk, text: str, pattern: str, found: bool, escaped: bool) -> None:
    file = disk.session()
    file.user(text)
    if escaped:
        file.path.write_text(
            json.dumps(json.loads(file.path.read_text()), separators=(",", ":"), ensure_ascii=True) + "\n"
        )
    assert len(list(search_sessions(pattern))) == found


def test_a_word_that_every_line_has_is_found_only_where_it_was_said(disk: Disk) -> None:
    file = disk.talk("a new Session", "of a user", "about – sessions")
    assert [hit.line for hit in search_sessions("session")] == [1, 3]
    assert [hit.line for hit in search_sessions("session", ignore_case=False)] == [3]
    assert [(hit.line, hit.match, hit.path) for hit in search_sessions("User")] == [(2, "user", str(file.path))]


def test_patterns_progress_and_one_directory(disk: Disk, tmp_path: Any) -> None:
    disk.talk("error 42")
    other = tmp_path / "other"
    other.mkdir()
    disk.talk("error 43", cwd=other)
    assert len(list(search_sessions(r"error \d+", regex=True))) == 2
    assert len(list(search_sessions(re.compile("ERROR")))) == 0
    assert [hit.excerpt for hit in search_sessions("error", other)] == ["error 43"]
    seen: list[tuple[int, int]] = []
    list(search_sessions("x", on_progress=lambda *now: seen.append(now)))
    assert seen[-1][0] == seen[-1][1] > 0
    for bad in ("", "("):
        with pytest.raises(UsageError):
            search_sessions(bad, regex=True)


def test_hits_come_one_by_one(disk: Disk) -> None:
    for _ in range(3):
        disk.talk("needle", "needle")
    done: list[int] = []
    hits = search_sessions("needle", on_progress=lambda now, _: done.append(now))
    next(hits)
    assert done == []


def test_an_excerpt_shows_what_stands_around(disk: Disk) -> None:
    disk.talk("a" * 500 + " needle " + "b" * 500)
    (hit,) = search_sessions("needle")
    assert hit.excerpt == "…" + "a" * 59 + " needle " + "b" * 59 + "…"


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile(disk: Disk) -> File:
    file = disk.session()
    file.user("</pre><script>alert(1)</script>")
    file.assistant({"type": "thinking", "thinking": "hm", "signature": ""}, "**bold** answer")
    file.assistant({"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "cat ```x"}})
    file.user([{"type": "tool_result", "tool_use_id": "t", "content": "````\n<img src=x>", "is_error": True}])
    file.note("custom-title", customTitle="<b>Title</b> # `x`")
    return file


def test_html_shows_everything_and_runs_nothing(disk: Disk) -> None:
    page = Page()
    page.feed(export_session(hostile(disk).id, format="html"))
    assert not {"script", "img", "b"} & set(page.tags)
    for text in ("</pre><script>alert(1)</script>", "**bold** answer", "cat ```x", "<img src=x>", "<b>Title</b>"):
        assert text in page.text


def test_markdown_fences_hold(disk: Disk) -> None:
    text = export_session(hostile(disk).id)
    assert text.startswith("# \\<b\\>Title\\</b\\> \\# \\`x\\`\n")
    assert "\n````\ncat ```x\n````\n" in text
    assert "\n`````\n````\n<img src=x>\n`````\n" in text
    assert "> </pre><script>" in text
    assert "## Thinking" not in export_session(hostile(disk).id, thinking=False)
    assert "cat ```x" not in export_session(hostile(disk).id, tools=False)


def test_json_has_every_row(disk: Disk) -> None:
    file = hostile(disk)
    found = json.loads(export_session(file.id, format="json", thinking=False))
    assert found["session"]["session_id"] == file.id
    assert [message["type"] for message in found["messages"]] == ["user", "assistant", "assistant", "user"]
    assert found["messages"][0]["cwd"] == str(disk.cwd)


def test_what_cannot_be_exported(disk: Disk) -> None:
    file = disk.talk("hello")
    with pytest.raises(UsageError, match="format"):
        export_session(file.id, format="pdf")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SessionNotFoundError):
        export_session("0f0e0d0c-0000-4000-8000-000000000001")


def cost_state(file: File, answers: int, usd: float) -> None:
    usage = {
        "inputTokens": 10 * answers,
        "outputTokens": 20 * answers,
        "cacheCreationInputTokens": 4 * answers,
        "cacheReadInputTokens": 100 * answers,
        "costUSD": usd,
    }
    file.note("cost-state", totalCostUSD=usd, modelUsage={MODEL: usage})


def test_each_answer_counts_once_at_the_price_that_was_noted(disk: Disk) -> None:
    file = disk.session()
    file.user("go")
    grown = {**TOKENS, "output_tokens": 1}
    file.assistant("one", message_id="m1", usage=grown)
    file.assistant("two", message_id="m1", usage=TOKENS)
    file.assistant("three", message_id="m2", usage=TOKENS, timestamp="2026-11-05T12:00:00Z")
    agent = file.agent("ab")
    agent.assistant("below", message_id="m3", usage=TOKENS)
    cost_state(file, 3, 0.3)
    fork_session(file.id)
    os.utime(file.path)  # the origin is the newest: it went on
    report = usage_report(utc=True)
    assert report.total.messages == 3
    assert report.total.total_tokens == 3 * 134
    assert report.total.cost_usd == pytest.approx(0.3)
    assert report.total.unpriced_tokens == 0
    assert [spent.session_id for spent in report.sessions] == [file.id]
    assert report.sessions[0].reported_usd == 0.3
    assert {day: spent.messages for day, spent in report.days.items()} == {date(2026, 11, 1): 2, date(2026, 11, 5): 1}
    assert list(report.models) == [MODEL]
    late = usage_report(since=date(2026, 11, 3), until=date(2026, 11, 5), utc=True)
    assert (late.total.messages, late.total.cost_usd) == (1, pytest.approx(0.1))
    assert usage_report(session_id=file.id).total.messages == 3


def test_what_a_session_did_not_note_is_priced_by_another_one_or_not_at_all(disk: Disk) -> None:
    reported, untold = disk.session(), disk.session()
    untold.assistant("x", usage=TOKENS)
    assert usage_report().total.unpriced_tokens == 134
    reported.assistant("x", usage=TOKENS)
    cost_state(reported, 1, WEIGHT)
    report = usage_report()
    assert report.total.unpriced_tokens == 0
    assert report.total.cost_usd == pytest.approx(2 * WEIGHT)
    assert usage_report(session_id=untold.id).total.cost_usd == 0


@pytest.mark.parametrize("name", ["claude-opus-5-5-20260901", "gateway/large"])
def test_an_answer_under_another_name_has_the_price_of_its_model(disk: Disk, name: str) -> None:
    file = disk.talk("hi", "hello")
    cost_state(file, 1, 0.5)
    before, mark, after = file.path.read_text().partition('"cost-state"')
    file.path.write_text(before.replace(MODEL, name) + mark + after)
    total = usage_report(config_dir=disk.config, session_id=file.id).total
    assert (total.cost_usd, total.unpriced_tokens) == (pytest.approx(0.5 / 125), 0)


@pytest.mark.parametrize("damage", ["NaN", "1e999", "1e308", "-3"])
def test_a_damaged_cost_spoils_no_sum(disk: Disk, damage: str) -> None:
    good = disk.talk("hi", "hello")
    cost_state(good, 1, 0.5)
    bad = disk.talk("hi", "hello")
    cost_state(bad, 1, 0.123)
    bad.path.write_text(bad.path.read_text().replace("0.123", damage))
    report = usage_report(config_dir=disk.config)
    assert [one.reported_usd for one in report.sessions if one.session_id == bad.id] == [None]
    assert (report.total.cost_usd, report.total.unpriced_tokens) == (pytest.approx(2 * 0.5 / 125), 0)


def test_text_of_the_cli_itself_costs_nothing(disk: Disk) -> None:
    file = disk.session()
    body = {"id": "x", "role": "assistant", "model": "<synthetic>", "content": [], "usage": TOKENS}
    file.row("assistant", message=body)
    assert usage_report().total.messages == 0
    assert usage_report().sessions == []


@pytest.mark.parametrize("wrong", ["2026-11-01", 1.0, datetime(2026, 11, 1, tzinfo=UTC)])
def test_a_day_is_a_date(disk: Disk, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"since: expected a datetime.date, such as .*, got"):
        usage_report(since=wrong)
    with pytest.raises(UsageError, match=r"until: expected a datetime.date"):
        usage_report(until=wrong)
