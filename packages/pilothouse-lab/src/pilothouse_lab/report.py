"""`Report`: what a comparison found, from the records of its runs, as text, Markdown and HTML.

Owns the record of a run, which of the two agents is called better, and the tables that every form of the report shows.
The method is in `evidence`, the page in `html_report`. Texts in records are those of a model: nothing in them is taken
for markup, and characters that steer a terminal are left out.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from pilothouse import UsageError
from pilothouse.support import find_similar_name
from pilothouse_lab import evidence
from pilothouse_lab.checks import Verdict
from pilothouse_lab.html_report import Measure, Table, render_html

Variant: TypeAlias = Literal["baseline", "candidate"]
Conclusion: TypeAlias = Literal["worse", "better", "no difference found", "incomplete"]
EXIT_CODES: dict[Conclusion, int] = {"worse": 1, "incomplete": 2, "better": 0, "no difference found": 0}
VARIANTS: tuple[Variant, Variant] = ("baseline", "candidate")
CELL_CHARS = 200
"""Characters of a cell, except in HTML."""
DIFF_LINES = 40
"""Lines of a diff of tool calls."""
_MARKUP = r"\`*_{}[]()<>#|!~@&"


class RecordedCall(Struct, frozen=True):
    """A tool call of a run.

    Args:
        name: name of the tool.
        input: its input as JSON; the path of the workspace is written as ".".
    """

    name: str
    input: str


class RunRecord(Struct, kw_only=True):
    """What is kept of a run.

    Args:
        case: name of its case.
        variant: "baseline" or "candidate".
        number: its number, from 1.
        passed: whether it ended with an answer, and all checks passed.
        lost: why it counts for neither side, such as an overloaded API; "": it counts.
        verdicts: what each check says.
        text: the answer.
        cost_usd: cost in US dollars, without judges; None: not known, such as that of a run that timed out.
        turns: turns of the model.
        tool_calls: the tool calls, in order.
        recording: path of the recording of its protocol; see `replay`.
        workspace: path of the directory it worked in.
        session_id: id of its conversation.
        limit_usd: the most that it was allowed to cost.
    """

    case: str
    variant: Variant
    number: int
    passed: bool = False
    lost: str = ""
    verdicts: list[Verdict] = []
    text: str = ""
    cost_usd: float | None = 0.0
    turns: int = 0
    tool_calls: list[RecordedCall] = []
    recording: str = ""
    workspace: str = ""
    session_id: str | None = None
    limit_usd: float | None = None


def diff_tool_calls(before: RunRecord, after: RunRecord) -> str:
    """Return how the tool calls of two runs differ, as a unified diff of names and inputs; "" if they do not."""
    old, new = ([f"{call.name} {call.input}" for call in run.tool_calls] for run in (before, after))
    old_name, new_name = (f"{run.variant}, run {run.number}" for run in (before, after))
    return "\n".join(difflib.unified_diff(old, new, old_name, new_name, lineterm=""))


class CaseResult(Struct, frozen=True):
    """What a comparison found in one case, or in all of them.

    Args:
        name: name of the case, or "all cases".
        counts: successes and runs.
        p: of the exact test that the agent makes no difference to success; for one case, corrected for the number of
            cases.
        excess: how many more runs of the candidate passed than if the agent made no difference, case by case.
        success: rate of runs that passed, from 0 to 1: of the baseline, of the candidate, and the difference.
        cost_usd: cost of a run in US dollars, in the same way, of the runs whose cost is known.
        turns: turns of a run, in the same way.
    """

    name: str
    counts: evidence.Counts
    p: float
    excess: float
    success: Measure
    cost_usd: Measure
    turns: Measure

    @property
    def change(self) -> Literal[-1, 0, 1]:
        """-1: worse than the baseline, 1: better, 0: no difference found."""
        return 0 if self.p >= evidence.ALPHA else 1 if self.excess > 0 else -1


@dataclass(frozen=True)
class Report:
    """What a comparison found; `print(report)` shows it.

    Args:
        case_names: names of the cases, in order.
        records: the records of all runs that have ended.
        planned: number of runs that were asked for.
        stopped: why runs are missing; "": nothing stopped them.
        cost_usd: cost of all runs and judges, in US dollars, as far as it is known; with earlier runs in `directory`.
        directory: where the records and recordings are.
    """

    case_names: Sequence[str]
    records: Sequence[RunRecord] = field(repr=False)
    planned: int
    stopped: str = ""
    cost_usd: float = 0.0
    directory: Path = Path()

    def get_runs(self, variant: Variant, case: str) -> list[RunRecord]:
        """Return the runs of an agent in a case that count.

        Raises:
            UsageError: there is no such agent or case.
        """
        for what, given, known in (("variant", variant, VARIANTS), ("case", case, self.case_names)):
            if given not in known:
                near = find_similar_name(str(given), known)
                hint = f"; did you mean {near!r:.80}?" if near else ""
                raise UsageError(f"get_runs: there is no {what} {given!r:.80}{hint}")
        return [one for one in self.records if one.variant == variant and one.case == case and not one.lost]

    @cached_property
    def cases(self) -> list[CaseResult]:
        """What was found in each case."""
        corrected = evidence.correct_by_holm([evidence.compare_success([self._count(one)]) for one in self.case_names])
        return [self._summarize(name, [name], p) for name, p in zip(self.case_names, corrected, strict=True)]

    @cached_property
    def total(self) -> CaseResult:
        """What was found in all cases together."""
        return self._summarize(
            "all cases", self.case_names, evidence.compare_success(map(self._count, self.case_names))
        )

    def _count(self, case: str) -> evidence.Counts:
        before, after = ([one.passed for one in self.get_runs(variant, case)] for variant in VARIANTS)
        return evidence.Counts(sum(before), len(before), sum(after), len(after))

    def _summarize(self, name: str, cases: Sequence[str], p: float) -> CaseResult:
        counts = evidence.Counts(*map(sum, zip(*map(self._count, cases), strict=True)))
        old, new = evidence.estimate_rate(*counts[:2]), evidence.estimate_rate(*counts[2:])

        def measure(read: Callable[[RunRecord], float | None]) -> Measure:
            before, after = (
                [[value for run in self.get_runs(side, case) if (value := read(run)) is not None] for case in cases]
                for side in VARIANTS
            )
            difference = evidence.estimate_mean_difference(before, after)
            return evidence.estimate_mean(before), evidence.estimate_mean(after), difference

        success = old, new, evidence.estimate_rate_difference(old, new)
        excess = evidence.count_excess(map(self._count, cases))
        cost, turns = measure(lambda run: run.cost_usd), measure(lambda run: run.turns)
        return CaseResult(name, counts, p, excess, success, cost, turns)

    @property
    def conclusion(self) -> Conclusion:
        """Worse if all cases together or one case alone got worse; else incomplete if runs are missing or none passed.

        Checks that no run of either agent passes say nothing about the difference, and are often wrong themselves.
        """
        changes = {one.change for one in (self.total, *self.cases)}
        if -1 in changes:
            return "worse"
        if self._count_missing() or any(one.lost for one in self.records) or not any(self.total.counts[::2]):
            return "incomplete"
        return "better" if 1 in changes else "no difference found"

    def _count_missing(self) -> int:
        return self.planned - len(self.records)

    @property
    def exit_code(self) -> int:
        """For CI: 1 if the candidate is worse, 2 if runs are missing or none passed, else 0."""
        return EXIT_CODES[self.conclusion]

    def assert_no_regression(self) -> None:
        """For tests: raise AssertionError, with the report as text, unless `exit_code` is 0."""
        if self.exit_code:
            raise AssertionError(f"\n{self}")

    @property
    def notes(self) -> list[str]:
        """The conclusion, and what a reader has to know besides the numbers."""
        total, missing, lost = self.total, self._count_missing(), sum(bool(one.lost) for one in self.records)
        unpriced = sum(one.cost_usd is None for one in self.records)
        difference, runs = total.success[2], sum(total.counts[1::2])
        is_known = difference.low is not None and difference.high is not None
        low, high = (f"{100 * (value or 0):+.0f}" for value in (difference.low, difference.high))
        worse = ", ".join(one.name for one in self.cases if one.change < 0)
        notes = {
            f"Candidate: {self.conclusion} (p = {total.p:.2g})": True,
            f"Worse in: {worse}.": worse,
            f"With {runs} runs, the real change of success could be anything from {low} to {high} points.": (
                is_known and not total.change
            ),
            "One of the agents has no run that counts: nothing is known of the difference.": not is_known,
            "No run passed: look at the checks.": runs and not any(total.counts[::2]),
            f"Of {self.planned} runs, {missing} did not run, and {lost} count for neither side.": missing or lost,
            f"Runs of unknown cost, left out of all costs: {unpriced}.": unpriced,
            f"Stopped: {self.stopped}.": self.stopped,
        }
        return [text for text, applies in notes.items() if applies]

    @property
    def tables(self) -> list[Table]:
        """The tables of the report, without those that have no rows."""
        total = self.total
        measures = [
            ("success", *_show(total.success, "{:.0%}".format, _write_points, " points")),
            ("cost of a run, US$", *_show(total.cost_usd, "{:.4f}".format, "{:+.4f}".format)),
            ("turns of a run", *_show(total.turns, "{:.1f}".format, "{:+.1f}".format)),
        ]
        cases = [_write_case(one) for one in self.cases]
        lost = [(one.case, f"{one.variant}, run {one.number}", one.lost) for one in self.records if one.lost]
        tables = (
            Table("All cases", ("", *VARIANTS, "difference"), measures),
            Table("Cases", ("case", *VARIANTS, "p (corrected)", "cost, US$", "turns"), cases),
            Table("Failed checks", ("case", "check", *VARIANTS, "what it saw"), self._list_failed_checks()),
            Table("Runs that count for neither side", ("case", "run", "why"), lost),
            Table("Tool calls", ("case", "how they differ"), self._diff_cases()),
        )
        return [table for table in tables if table.rows]

    def _list_failed_checks(self) -> list[Sequence[str]]:
        failed: dict[tuple[str, str], dict[Variant, list[str]]] = {}
        for one in sorted(self.records, key=lambda one: one.variant == "baseline"):  # what broke is shown first
            for verdict in one.verdicts:
                if not verdict.passed and not one.lost:
                    sides = failed.setdefault((one.case, verdict.check), {"baseline": [], "candidate": []})
                    sides[one.variant].append(verdict.saw)
        return [
            (*which, str(len(saw["baseline"])), str(len(saw["candidate"])), (saw["candidate"] or saw["baseline"])[0])
            for which, saw in failed.items()
        ]

    def _diff_cases(self) -> list[Sequence[str]]:
        """What only one of two runs of a case called: of one that passed and one that failed, if there are."""
        rows: list[Sequence[str]] = []
        for case in self.case_names:
            before = sorted(self.get_runs("baseline", case), key=lambda one: not one.passed)
            after = sorted(self.get_runs("candidate", case), key=lambda one: one.passed)
            diff = diff_tool_calls(before[0], after[0]) if before and after else ""
            lines = [line for line in diff.splitlines()[2:] if line.startswith(("+", "-"))]
            more = [f"… {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
            rows += [(case, "\n".join(lines[:DIFF_LINES] + more))] if lines else []
        return rows

    def __str__(self) -> str:
        return self._render(str)

    def to_markdown(self) -> str:
        """Return the report as Markdown, such as for a comment on a pull request."""
        return self._render(lambda text: "".join(f"\\{char}" if char in _MARKUP else char for char in text))

    def _render(self, escape: Callable[[str], str]) -> str:
        parts = ["\n\n".join(escape(_clean(note)) for note in self.notes)]
        for table in self.tables:
            cells = [table.columns, *([escape(_clean(cell)) for cell in row] for row in table.rows)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells]
            rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
            parts.append("\n".join([f"## {table.title}\n", lines[0], rule, *lines[1:]]))
        return "\n\n".join([*parts, escape(self._footer)]) + "\n"

    @property
    def _footer(self) -> str:
        return f"${self.cost_usd:.4f} in all. Recordings: {self.directory}"

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file, without scripts."""
        results = [self.total, *(self.cases if len(self.cases) > 1 else [])]
        pictures = {
            "Success": ([(one.name, one.success) for one in results], "{:.0%}"),
            "Cost of a run, US$": ([(one.name, one.cost_usd) for one in results], "{:.2g}"),
            "Turns of a run": ([(one.name, one.turns) for one in results], "{:.2g}"),
        }
        Path(path).write_text(render_html(self.notes, pictures, self.tables, self._footer), "utf-8")


def _write_case(one: CaseResult) -> list[str]:
    rates = ["{}/{}".format(*one.counts[:2]), "{}/{}".format(*one.counts[2:])]
    measures = (one.cost_usd, "{:.4f}"), (one.turns, "{:.1f}")
    changes = (
        " → ".join("-" if isnan(each.value) else form.format(each.value) for each in measure[:2])
        for measure, form in measures
    )
    return [one.name, *rates, f"{one.p:.2g}", *changes]


def _write_points(difference: float) -> str:
    return f"{100 * difference:+.0f}"


def _show(
    one: Measure, write: Callable[[float], str], write_difference: Callable[[float], str], unit: str = ""
) -> list[str]:
    def show(each: evidence.Estimate, write: Callable[[float], str], unit: str = "") -> str:
        interval = "" if each.low is None or each.high is None else f" [{write(each.low)}, {write(each.high)}]"
        return "-" if isnan(each.value) else write(each.value) + unit + interval

    return [show(one[0], write), show(one[1], write), show(one[2], write_difference, unit)]


def _clean(text: str) -> str:
    """Return a text as one short line, without characters that steer a terminal."""
    words = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return words if len(words) <= CELL_CHARS else words[: CELL_CHARS - 1] + "…"
