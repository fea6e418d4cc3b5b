"""The report: what it says in each form, and that no text of a model becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pilothouse import UsageError
from pilothouse_lab import Report, RunRecord, Verdict, diff_tool_calls
from pilothouse_lab.report import RecordedCall

ATTACK = "<script>alert(1)</script> **bold** | [x](http://x) \x1b[31mred\x1b[0m \u202eevil" + " and on" * 5


def make_record(variant: str, number: int, saw: str = "", case: str = "asks", **fields: object) -> RunRecord:
    verdicts = [Verdict(check="equals", passed=not saw, saw=saw)]
    own = {"case": case, "variant": variant, "number": number, "passed": not saw, "verdicts": verdicts}
    return RunRecord(**(own | fields))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def report() -> Report:
    calls = [RecordedCall("Read", '{"file":"a"}'), RecordedCall("Edit", ATTACK)]
    good = [make_record("baseline", n, cost_usd=0.01 * n, turns=n, tool_calls=calls) for n in range(1, 7)]
    bad = [make_record("candidate", n, ATTACK, cost_usd=0.02, turns=9, tool_calls=calls[:1]) for n in range(1, 7)]
    return Report(["asks", ATTACK], [*good, *bad, make_record("baseline", 1, ATTACK, ATTACK)], 14)


class Tags(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_html_runs_nothing_of_a_model(report: Report, tmp_path: Path) -> None:
    report.write_html(tmp_path / "lab.html")
    text = (tmp_path / "lab.html").read_text()
    found = Tags(text)
    assert "&lt;script&gt;alert(1)" in text
    assert not found.tags & {"script", "a", "img", "iframe", "link", "form"}
    assert not {name for name in found.attributes if name.startswith(("on", "href", "src"))}
    assert "default-src 'none'" in text
    assert "http" not in re.sub(r"http://x|http-equiv", "", text)
    assert found.tags >= {"svg", "circle", "table", "details"}


def test_the_terminal_gets_no_control_characters(report: Report) -> None:
    text = str(report)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "Candidate: worse (p = 0.0022)" in text
    assert "| asks " in text
    assert max(map(len, text.splitlines())) < 400


def test_markdown_escapes_what_a_model_wrote(report: Report) -> None:
    text = report.to_markdown()
    assert r"\<script\>" in text
    assert r"\*\*bold\*\* \| \[x\]" in text
    cases = text.split("## Cases")[1].split("##")[0].strip().splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in cases} == {7}


def test_the_report_says_how_tool_calls_differ(report: Report) -> None:
    before, after = report.get_runs("baseline", "asks")[0], report.get_runs("candidate", "asks")[0]
    assert diff_tool_calls(before, before) == ""
    diff = diff_tool_calls(before, after).splitlines()
    assert diff[:2] == ["--- baseline, run 1", "+++ candidate, run 1"]
    assert diff[-1].startswith("-Edit <script>")
    assert "-Edit" in str(report)


def test_numbers_have_intervals(report: Report) -> None:
    table = report.tables[0]
    assert [row[0] for row in table.rows] == ["success", "cost of a run, US$", "turns of a run"]
    assert table.rows[0][2] == "0% [0%, 39%]"
    assert table.rows[0][3].startswith("-86 points [-")
    assert table.rows[2][3] == "+6.0"  # no interval: one case has a single run


def test_missing_runs_are_said(report: Report) -> None:
    assert "Of 14 runs, 1 did not run, and 0 count for neither side." in report.notes


def test_no_run_that_passes_is_suspicious() -> None:
    records = [make_record(variant, n, "no") for variant in ("baseline", "candidate") for n in range(5)]
    found = Report(["asks"], records, 10)
    assert (found.conclusion, found.exit_code) == ("incomplete", 2)
    assert "No run passed: look at the checks." in found.notes


def test_the_change_that_is_possible_is_told() -> None:
    records = [make_record(variant, n) for variant in ("baseline", "candidate") for n in range(2)]
    text = "With 4 runs, the real change of success could be anything from -66 to +66 points."
    assert text in Report(["asks"], records, 4).notes


def test_unknown_runs_are_told(report: Report) -> None:
    with pytest.raises(UsageError, match=r"there is no variant 'basline'; did you mean 'baseline'\?"):
        report.get_runs("basline", "asks")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"there is no case 'ask'; did you mean 'asks'\?"):
        report.get_runs("baseline", "ask")


def test_a_report_without_runs() -> None:
    found = Report(["asks"], [], 2, stopped="the budget is spent")
    assert found.exit_code == 2
    assert "Stopped: the budget is spent." in str(found)


def test_better_in_each_case_is_never_called_worse() -> None:
    """Runs that were lost may leave one agent most runs of the hard case: its rate of all runs is then lower."""
    records: list[RunRecord] = []
    for case, variant, passed, runs in (
        ("easy", "baseline", 70, 100), ("easy", "candidate", 40, 40),
        ("hard", "baseline", 0, 40), ("hard", "candidate", 20, 100),
    ):  # fmt: skip
        records += [make_record(variant, n, case=case, passed=n <= passed) for n in range(1, runs + 1)]
    report = Report(["easy", "hard"], records, len(records))
    assert report.total.success[2].value < 0
    assert [one.change for one in (report.total, *report.cases)] == [1, 1, 1]
    assert report.conclusion == "better"
