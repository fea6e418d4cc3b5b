"""From samples to a table and a file: medians, spreads, ratios round by round, goals met or missed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cases import FLOOR, INCUMBENT, OURS, Case, Goal, Size
from benchmarks.sampling import Samples

SCALES = {"ms": 1e3, "µs": 1e6, "MB": 1.0, "KB": 1e3}
COLUMNS = ("", "ours", "incumbent", "floor", "ours : incumbent", "ours : floor", "goal")


def summary(values: Sequence[float]) -> dict[str, float]:
    """The median and the middle half of some values."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "low": low, "high": high}


def ratios(samples: Samples, metric: str, of: str) -> list[float]:
    """Ours divided by another subject, round by round: both ran within a moment of each other."""
    ours, other = samples.numbers.get(OURS, []), samples.numbers.get(of, [])
    return [a[metric] / b[metric] for a, b in zip(ours, other, strict=False) if b.get(metric) and metric in a]


def summarize(case: Case, size: Size, samples: Samples) -> dict[str, Any]:
    """One case, as it stands in the results file; times in seconds, memory in MB."""
    metrics: dict[str, Any] = {}
    for metric in case.metrics:
        entry: dict[str, Any] = {
            subject: summary([n[metric] for n in numbers])
            for subject, numbers in samples.numbers.items()
            if numbers and all(metric in n for n in numbers)
        }
        for of in (INCUMBENT, FLOOR):
            if found := ratios(samples, metric, of):
                entry[f"ours/{of}"] = summary(found)
        entry["goals"] = [_judged(goal, entry) for goal in case.goals if goal.metric == metric]
        metrics[metric] = entry
    rounds = max(map(len, samples.numbers.values()), default=0)
    return {
        "title": case.title,
        "parameters": dict(case.sizes[size]),
        "rounds": rounds,
        "metrics": metrics,
        "failed": dict(samples.failed),
    }


def _judged(goal: Goal, entry: dict[str, Any]) -> dict[str, Any]:
    ratio = entry.get(f"ours/{goal.of}")
    return {"of": goal.of, "limit": goal.limit, "met": None if ratio is None else ratio["median"] <= goal.limit}


def rows_of(cases: Sequence[Case], results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The results in words, under `COLUMNS`: a line for each metric of each case that was measured."""
    rows: list[tuple[str, ...]] = []
    for case in cases:
        if (result := results.get(case.name)) is None:
            continue
        rows += [_row(case, metric, unit, result["metrics"][metric]) for metric, unit in case.metrics.items()]
        if case.rate is not None:
            rows.append(_rate_row(case, result))
    return rows


def table(cases: Sequence[Case], results: Mapping[str, Any]) -> str:
    """The results for a terminal."""
    rows = [COLUMNS, *rows_of(cases, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(_cell(text, width, i) for i, (text, width) in enumerate(zip(row, widths, strict=True)))
             for row in rows]  # fmt: skip
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(line.rstrip() for line in [*lines, *_failures(results)])


def _failures(results: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {subject} failed: {why}"
        for name, result in results.items()
        for subject, why in result["failed"].items()
    ]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a page."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.strip() for cell in row) + " |\n" for row in lines)


def _cell(text: str, width: int, index: int) -> str:
    return text.ljust(width) if index in (0, len(COLUMNS) - 1) else text.rjust(width)


def _row(case: Case, metric: str, unit: str, entry: dict[str, Any]) -> tuple[str, ...]:
    scale = SCALES[unit]
    name = case.title if metric == next(iter(case.metrics)) else "    "
    times = [_value(entry.get(subject), scale) for subject in (OURS, INCUMBENT, FLOOR)]
    pairs = [_ratio(entry.get(f"ours/{of}")) for of in (INCUMBENT, FLOOR)]
    goals = ", ".join(_goal(goal) for goal in entry["goals"])
    return (f"{name} {metric}, {unit}", *times, *pairs, goals)


def _rate_row(case: Case, result: dict[str, Any]) -> tuple[str, ...]:
    assert case.rate is not None
    parameter, what = case.rate
    count = float(result["parameters"][parameter])
    wall = result["metrics"]["wall"]
    rates = [f"{count / wall[s]['median']:,.0f}" if s in wall else "-" for s in (OURS, INCUMBENT, FLOOR)]
    return (f"     {what} a second, of {count:,g}", *rates, "", "", "")


def _value(entry: dict[str, float] | None, scale: float) -> str:
    if entry is None:
        return "-"
    median, half = entry["median"] * scale, (entry["high"] - entry["low"]) * scale / 2
    digits = 2 if median < 10 else 1 if median < 100 else 0
    return f"{median:,.{digits}f} ±{half:,.{digits}f}"


def _ratio(entry: dict[str, float] | None) -> str:
    if entry is None:
        return "-"
    digits = 3 if entry["median"] < 0.5 else 2
    return f"{entry['median']:.{digits}f} ({entry['low']:.{digits}f}-{entry['high']:.{digits}f})"


def _goal(goal: dict[str, Any]) -> str:
    verdict = {True: "met", False: "MISSED", None: "?"}[goal["met"]]
    return f"≤ {goal['limit']:.3g} x {goal['of']}: {verdict}"
