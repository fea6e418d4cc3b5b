"""Comparisons: what is found, what is repeated, what counts, and what they may cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mock_agents import make_agent, make_turn, says_yes

import pilothouse as ph
from pilothouse.errors import ReplayMismatch
from pilothouse_lab import Case, CaseRun, RunRecord, Verdict, calls, compare, replay
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

CASE = Case("asks", "Well?", [says_yes])


@pytest.fixture
def anyio_backend() -> str:
    """Both event loops are tested with the fleet."""
    return "asyncio"


async def test_equal_agents_show_no_difference_in_40_runs(tmp_path: Path) -> None:
    """Each agent passes now and then, in another order."""
    answers = ["yes", "yes", "no", "yes", "no"]
    baseline, candidate = make_agent(answers), make_agent(answers[::-1])
    report = await compare([CASE], baseline=baseline, candidate=candidate, runs=20, directory=tmp_path)
    assert (report.conclusion, report.exit_code, len(report.records)) == ("no difference found", 0, 40)
    assert report.total.counts == (12, 20, 12, 20)
    report.assert_no_regression()


async def test_a_loss_is_found_in_its_case_alone(tmp_path: Path) -> None:
    def well(run: CaseRun) -> bool:
        return "yes" in run.result.text or "How" in run.prompt

    cases = [Case("asks", "Well?", [well]), Case("greets", "How are you?", [well])]
    report = await compare(cases, baseline=make_agent(), candidate=make_agent("no"), runs=6, directory=tmp_path)
    assert [(one.name, one.change) for one in report.cases] == [("asks", -1), ("greets", 0)]
    assert (report.conclusion, report.exit_code) == ("worse", 1)
    with pytest.raises(AssertionError, match="Worse in: asks"):
        report.assert_no_regression()


async def test_half_of_a_surrogate_pair_loses_no_run(tmp_path: Path) -> None:
    turn = make_turn("yes \ud800", ("Bash", {"command": "\ud800"}))
    report = await compare([CASE], baseline=make_agent([turn]), candidate=make_agent(), runs=2, directory=tmp_path)
    assert report.total.counts == (2, 2, 2, 2)
    assert report.get_runs("baseline", "asks")[0].text == "yes ?"
    report.write_html(tmp_path / "lab.html")


async def test_without_runs_of_an_agent_nothing_is_claimed(tmp_path: Path) -> None:
    """The report said that any change from 0 % to 0 % was possible: that there is none."""
    overloaded = [frames.init(), frames.result("API Error: 529", is_error=True, api_error_status=529)]
    report = await compare(
        [CASE], baseline=make_agent([overloaded], retry=None), candidate=make_agent(), runs=1, directory=tmp_path
    )
    assert (report.conclusion, report.total.counts) == ("incomplete", (0, 0, 1, 1))
    assert "compatible with" not in str(report)
    assert "nothing is known of the difference" in str(report)


async def test_a_gain_is_called_better(tmp_path: Path) -> None:
    report = await compare([CASE], baseline=make_agent("no"), candidate=make_agent(), runs=6, directory=tmp_path)
    assert (report.conclusion, report.exit_code) == ("better", 0)


async def test_the_agents_take_turns(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(run: RunRecord) -> None:
        seen.append(run.variant[0])

    await compare(
        [CASE], baseline=make_agent(), candidate=make_agent(), runs=4, concurrency=1, directory=tmp_path, on_run=note
    )
    assert "".join(seen) == "bccbbccb"


async def test_an_interrupted_comparison_goes_on(tmp_path: Path) -> None:
    asked: list[str] = []

    def count(run: CaseRun) -> None:
        asked.append(run.prompt)

    def stop(run: RunRecord) -> None:
        if len(asked) >= 3:
            raise TimeoutError

    case = Case("asks", "Well?", [count])
    how: dict[str, Any] = {"runs": 4, "concurrency": 1, "directory": tmp_path}
    with pytest.raises(TimeoutError):
        await compare([case], baseline=make_agent(), candidate=make_agent(), on_run=stop, **how)
    assert 3 <= len(asked) <= 4
    report = await compare([case], baseline=make_agent(), candidate=make_agent(), **how)
    assert report.total.counts == (4, 4, 4, 4)
    assert len(asked) <= 9  # one may have been under way
    again = await compare([case], baseline=make_agent(), candidate=make_agent(), **how)
    assert len(asked) <= 9
    assert again.records == report.records


async def test_a_changed_prompt_or_setting_runs_again(tmp_path: Path) -> None:
    asked: list[str] = []
    case = Case("asks", "Well?", [lambda run: asked.append(run.prompt)])
    how: dict[str, Any] = {"runs": 1, "directory": tmp_path}
    await compare([case], baseline=make_agent(), candidate=make_agent(), **how)
    await compare([case], baseline=make_agent(), candidate=make_agent(model="haiku"), **how)
    assert len(asked) == 3
    other = Case("asks", "Well, then?", case.checks)
    await compare([other], baseline=make_agent(), candidate=make_agent(), **how)
    assert len(asked) == 5


async def test_the_budget_stops_a_comparison(tmp_path: Path) -> None:
    cheap = [make_turn("yes", cost_usd=0.1)]
    report = await compare(
        [CASE],
        baseline=make_agent(cheap),
        candidate=make_agent(cheap),
        runs=10,
        concurrency=1,
        max_budget_usd=0.45,
        directory=tmp_path,
    )
    assert (report.conclusion, report.exit_code) == ("incomplete", 2)
    assert 4 <= len(report.records) <= 6
    assert "budget" in str(report)


async def test_judges_count_against_the_budget(tmp_path: Path) -> None:
    case = Case("asks", "Well?", [lambda run: Verdict(passed=True, cost_usd=1.0)])
    report = await compare(
        [case], baseline=make_agent(), candidate=make_agent(), concurrency=1, max_budget_usd=2.5, directory=tmp_path
    )
    assert 3 <= len(report.records) <= 4
    assert report.cost_usd > 3
    assert max(one.cost_usd or 0.0 for one in report.records) < 1


async def test_a_limit_of_the_agent_is_its_failure(tmp_path: Path) -> None:
    spent = [frames.init(), frames.result(None, subtype="error_max_turns", is_error=True, errors=["too many turns"])]
    report = await compare([CASE], baseline=make_agent(), candidate=make_agent([spent]), runs=6, directory=tmp_path)
    assert report.conclusion == "worse"
    assert "MaxTurnsError: too many turns" in str(report)


async def test_a_cost_that_nobody_knows_is_not_zero(tmp_path: Path) -> None:
    """A candidate that only timed out was shown as the cheaper one, for $0.0000."""
    dear, hanging = make_agent([make_turn("yes", cost_usd=0.1)]), make_agent([[frames.init()]], timeout=0.05)
    report = await compare([CASE], baseline=dear, candidate=hanging, runs=2, directory=tmp_path)
    assert [one.cost_usd for one in report.get_runs("candidate", "asks")] == [None, None]
    text = str(report)
    assert "Runs of unknown cost, left out of all costs: 2." in text
    assert re.search(r"cost of a run, US\$ \| 0\.1000 .*\| - +\| - ", text)
    assert "0.1000 → -" in text
    report.write_html(tmp_path / "lab.html")


async def test_a_failure_of_the_api_counts_for_neither(tmp_path: Path) -> None:
    down = [frames.init(), frames.result("API Error: 403", is_error=True, api_error_status=403)]
    how: dict[str, Any] = {"runs": 4, "concurrency": 1, "directory": tmp_path}
    report = await compare([CASE], baseline=make_agent(), candidate=make_agent(["yes", down]), **how)
    assert report.conclusion == "incomplete"
    assert report.total.counts == (4, 4, 2, 2)
    assert [one.lost.partition(":")[0] for one in report.records if one.lost] == ["AuthenticationError"] * 2


async def test_a_typed_output_has_to_fit(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
    good = make_turn("", structured_output={"price": 3})
    case = Case("prices", "How much?", [lambda run: run.result.output == {"price": 3}], output_type=schema)
    bad = make_agent([make_turn("cheap")], output_repairs=0)
    report = await compare([case], baseline=make_agent([good]), candidate=bad, runs=4, directory=tmp_path)
    assert report.total.counts == (4, 4, 0, 4)
    assert "StructuredOutputError" in str(report)


async def test_each_run_has_a_fresh_workspace(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("one")
    seen: set[Path] = set()

    def change(run: CaseRun) -> bool:
        seen.add(run.workspace)
        text = (run.workspace / "file").read_text()
        (run.workspace / "file").write_text("changed")
        return text == "one"

    case = Case("works", "Work", [change], workspace=source)
    how: dict[str, Any] = {"baseline": make_agent(), "candidate": make_agent(), "runs": 2}
    report = await compare([case], **how, directory=tmp_path / "lab", keep_workspaces=True)
    assert report.total.counts == (2, 2, 2, 2)
    assert len(seen) == 4
    assert all((path / "file").read_text() == "changed" for path in seen)
    assert (source / "file").read_text() == "one"
    await compare([case], **how, directory=tmp_path / "other")
    assert not list((tmp_path / "other" / "workspaces").glob("works*"))


async def test_a_run_can_be_replayed(tmp_path: Path) -> None:
    agent = make_agent([make_turn("yes", ("Read", {"file_path": "a"}))])
    report = await compare([CASE], baseline=agent, candidate=agent, runs=1, max_budget_usd=5, directory=tmp_path)
    [record] = report.get_runs("baseline", "asks")
    assert (await replay(record, agent, CASE)).text == record.text == "yes"
    with pytest.raises(ReplayMismatch, match="Really"):
        await replay(record, agent, Case("asks", "Really?"))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cases": ["x"]}, "cases: expected a list of Case, got a list with 'x'"),
        ({"cases": CASE}, "cases: expected a list of Case, got one Case; write [case]"),
        ({"cases": "x"}, "cases: expected a list of Case, got str"),
        ({"cases": []}, "there are no cases"),
        ({"cases": [CASE, CASE]}, "two cases are named 'asks'"),
        ({"runs": 0}, "runs: expected a whole number from 1, got 0"),
        ({"runs": "2"}, "runs: expected a whole number from 1, got '2'"),
        ({"concurrency": 0}, "concurrency: expected a whole number from 1, got 0"),
        ({"baseline": {}}, "baseline: expected an Agent, got dict"),
    ],
)
async def test_wrong_arguments_are_told(wrong: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"cases": [CASE], "baseline": make_agent(), "candidate": make_agent()} | wrong
    with pytest.raises(ph.UsageError, match=f"^compare: {re.escape(text)}$"):
        await compare(given.pop("cases"), **given)


@pytest.mark.parametrize(
    ("checks", "got"),
    [
        ("pytest -q", "'pytest -q'; for a command: [passes('pytest -q')]"),
        (["pytest"], "'pytest'; for a command: [passes('pytest')]"),
        (says_yes, "a function; write [f]"),
        (calls("Bash"), "one check; write [check]"),
        ([3], "3"),
        (None, "None"),
    ],
)
def test_checks_are_a_list(checks: Any, got: str) -> None:
    text = f"Case 'a': checks: expected a list of functions or checks, got {got}"
    with pytest.raises(ph.UsageError, match=f"^{re.escape(text)}$"):
        Case("a", "Fix", checks)
    with pytest.raises(ph.UsageError, match="Case: prompt: expected text, got 3"):
        Case("a", 3)  # pyright: ignore[reportArgumentType]


async def test_a_missing_workspace_names_its_case(tmp_path: Path) -> None:
    case = Case("a", "Fix", workspace=tmp_path / "gone")
    with pytest.raises(ph.UsageError, match=r"^Case 'a': workspace: there is no directory or archive .*gone$"):
        await compare([case], baseline=make_agent(), candidate=make_agent(), directory=tmp_path / "lab")


@pytest.mark.parametrize("name", ["two\nlines", "half of a pair \ud800", "x" * 401])
def test_a_name_that_no_run_can_have_is_refused(name: str) -> None:
    wanted = "Case: name: expected one line of printable text, 400 characters at most, got"
    with pytest.raises(ph.UsageError, match=f"^{wanted} "):
        Case(name, "Fix")
    Case("ärgert 🎉 " + "x" * 391, "Fix")


async def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    how: dict[str, Any] = {"baseline": make_agent(), "candidate": make_agent(), "runs": 1, "directory": tmp_path}
    await compare([CASE], **how)
    record = next(tmp_path.glob("runs/*/run.json"))
    record.write_bytes(record.read_bytes()[:50])
    with pytest.raises(ph.UsageError, match=rf"the record {record} is damaged \(.*\); name a new directory"):
        await compare([CASE], **how)


async def test_a_broken_check_is_no_result(tmp_path: Path) -> None:
    case = Case("asks", "Well?", [lambda run: run.no_such_field])  # pyright: ignore[reportAttributeAccessIssue]
    report = await compare([case], baseline=make_agent(), candidate=make_agent(), runs=2, directory=tmp_path)
    assert (report.conclusion, report.exit_code) == ("incomplete", 2)
    with pytest.raises(AssertionError, match=r"No run passed: look at the checks\."):
        report.assert_no_regression()


async def test_without_a_login_a_comparison_stops(tmp_path: Path) -> None:
    out = [frames.init(), frames.result("Not logged in", is_error=True, api_error_status=401)]
    how: dict[str, Any] = {"runs": 4, "concurrency": 1, "directory": tmp_path}
    with pytest.raises(ph.AuthenticationError) as caught:
        await compare([CASE], baseline=make_agent([out]), candidate=make_agent([out]), **how)
    text = str(caught.value)
    assert text.startswith("compare: stopped after 3 runs failed in a row: ")
    again = f"call compare again; with directory={str(tmp_path)!r} only missing runs are made"
    assert text.endswith(f". Log in, or correct the key, and {again}")
    report = await compare([CASE], baseline=make_agent(), candidate=make_agent(), **how)
    assert report.total.counts == (4, 4, 4, 4)
