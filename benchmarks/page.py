"""`python -m benchmarks.page` writes what was measured into README.md here, docs/speed.md and README.md; `--check` ends
with 1 if it is stale there.

Owns the parts of the pages between `<!-- measured: name -->` and `<!-- end -->`. The numbers come from the files of the
last whole runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.cases import CASES, FLOOR, INCUMBENT, OURS, SUBJECTS
from benchmarks.environment import HERE, ROOT
from benchmarks.report import COLUMNS, is_met, markdown, misses_of, rows_of

GOAL = COLUMNS.index("goal")
PAGES = (HERE / "README.md", ROOT / "docs" / "speed.md", ROOT / "README.md")
CHOSEN = {  # what a person waits for, on the first page: case and metric
    "an answer from the real CLI": ("real", "wall"),
    "the same, from a process that was started in advance": ("pool", "answer"),
    "first assistant message, imports included": ("first", "cold"),
    "text deltas, streamed": ("deltas", "wall"),
    "a call of an in-process tool": ("tool", "wall"),
    "300 queries at once": ("many", "wall"),
    "a million messages kept, memory": ("kept", "memory"),
}
_SPREAD = re.compile(r" ±[\d.,]+")
_PART = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _read(name: str) -> dict[str, Any]:
    return json.loads((HERE / name).read_text())


def machine() -> str:
    """What a reader must know to judge the numbers, a busy machine included."""
    found = _read("results.json")
    noted: Mapping[str, Any] = found["machine"]
    rounds = sorted({case["rounds"] for case in found["cases"].values()})
    packages = ", ".join(f"{name} {version}" for name, version in noted["packages"].items())
    where = f"{noted['system']} on {noted['cores']} cores of {noted['processor'] or noted['machine']}"
    counted = " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))
    lines = [f"Measured with Python {noted['python']}, {packages}; {where}; {counted} rounds."]
    if (load := noted.get("load") or 0) > noted["cores"]:
        scheduling = noted["scheduling"]
        lines.append(
            f"**The machine was busy: the load was {load:g}**, the scheduling {scheduling}. Trust the ratios only."
        )
    return "".join(f"{line}\n" for line in lines)


def missed() -> str:
    """The goals that are missed, in words; and what is not known."""
    found = _read("results.json")
    results, left_out = found["cases"], found.get("left_out", {})
    misses = misses_of(CASES, results)
    judged = [is_met(case, goal, results[case.name]) for case in CASES if case.name in results for goal in case.goals]
    known = sum(verdict is not None for verdict in judged)
    count = f"{len(misses) or 'None'} of {known} goals {'is' if len(misses) == 1 else 'are'} missed"
    lines = [f"{count}:" if misses else f"{count}.", "", *(f"- {miss}" for miss in misses)]
    unknown = [case for case in CASES if case.name in left_out or case.name not in results]
    reasons = [f"{case.title} ({left_out.get(case.name, 'new')})" for case in unknown]
    if reasons:
        lines += ["", f"Not measured in the last whole run: {'; '.join(reasons)}."]
    return "\n".join(lines).rstrip() + "\n"


def results() -> str:
    """Medians of the first metric of each case and of those that have a goal, without goals and changes."""
    found = _read("results.json")["cases"]
    rows = [row for case in CASES for at, row in enumerate(rows_of([case], found)) if at == 0 or row[GOAL]]
    return markdown(COLUMNS[:GOAL], [[_SPREAD.sub("", cell) for cell in row[:GOAL]] for row in rows])


def _median(entry: Mapping[str, float] | None) -> str:
    return "-" if entry is None else f"{entry['median']:.{3 if entry['median'] < 0.01 else 2}f}"


def chosen() -> str:
    cases = _read("results.json")["cases"]
    rows = [
        [title, *(_median(cases[case]["metrics"][metric].get(f"ours/{of}")) for of in (INCUMBENT, FLOOR))]
        for title, (case, metric) in CHOSEN.items()
        if case in cases
    ]
    return markdown(("", "vs. `claude-agent-sdk`", "vs. the bare program"), rows)


def scale() -> str:
    rows: list[list[str]] = []
    for growth in _read("scale.json")["growths"].values():
        lines: Mapping[str, Any] = growth["subjects"]
        (least, *_, most) = [amount for amount, _ in lines[OURS]["points"]]
        slopes = [_slope(lines.get(subject)) for subject in SUBJECTS]
        rows.append([growth["title"], f"{least:,} to {most:,} {growth['work']}", growth["unit"], *slopes])
    return markdown(("", "work", "cost", *(f"slope, {subject}" for subject in SUBJECTS)), rows)


def _slope(line: Mapping[str, Any] | None) -> str:
    return "-" if line is None or line["slope"] is None else f"{line['slope']:.2f}"


PARTS: Mapping[str, Callable[[], str]] = {work.__name__: work for work in (machine, missed, results, chosen, scale)}


def fresh(text: str) -> str:
    """The page with the numbers that the files have now."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


def main(argv: list[str]) -> int:
    texts = {page: page.read_text("utf-8") for page in PAGES}
    made = {page: fresh(text) for page, text in texts.items()}
    if "--check" in argv:
        return int(made != texts)
    for page, text in made.items():
        page.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
