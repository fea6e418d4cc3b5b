"""From samples to a table and a file: medians, spreads, ratios round by round, goals met or missed, changes. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cases import FLOOR, INCUMBENT, OURS, Case, Goal, Size
from benchmarks.sampling import Samples

SCALES = {"ms": 1e3, "µs": 1e6, "MB": 1.0, "KB": 1e3, "": 1.0}
COLUMNS = ("", "ours", "incumbent", "floor", "ours : incumbent", "ours : floor", "goal", "change")
WORDS = {
    "wall": "time",
    "cpu": "CPU time",
    "cold": "a cold start",
    INCUMBENT: "`claude-agent-sdk`",
    FLOOR: "the floor",
}
LEAST_ROUNDS = 3  # with fewer, nobody knows the noise
LEAST_CHANGE = 0.02  # memory has next to no noise: a page more or less is no news


def summary(values: Sequence[float]) -> dict[str, float]:
    """The median and the middle half of some values."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "low": low, "high": high}


def ratios(samples: Samples, metric: str, of: str) -> list[float]:
    """Ours divided by another subject, round by round: both ran within a moment of each other.

    Args:
        samples: of one case.
        metric: what is divided.
        of: the other subject; or another metric of ours.
    """
    ours = samples.numbers.get(OURS, [])
    other = [n.get(metric) for n in samples.numbers[of]] if of in samples.numbers else [n.get(of) for n in ours]
    return [a[metric] / b for a, b in zip(ours, other, strict=False) if b and metric in a]


def summarize(case: Case, size: Size, samples: Samples, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One case, as it stands in the results file; times in seconds, memory in MB.

    Args:
        case: the case.
        size: of the run.
        samples: what was measured.
        before: the same case in an earlier file. Where a ratio has changed beyond the noise, the entry of the metric
            keeps the earlier one as `before`; where there is no ratio, our number.
    """
    metrics: dict[str, Any] = {}
    rounds = max(map(len, samples.numbers.values()), default=0)
    parameters = dict(case.sizes[size])
    earlier: Mapping[str, Any] = {}
    if before and before["parameters"] == parameters and min(rounds, before["rounds"]) >= LEAST_ROUNDS:
        earlier = before["metrics"]
    for metric in case.metrics:
        entry: dict[str, Any] = {
            subject: summary([n[metric] for n in numbers])
            for subject, numbers in samples.numbers.items()
            if numbers and all(metric in n for n in numbers)
        }
        for of in (INCUMBENT, FLOOR, *{goal.of for goal in case.goals if goal.metric == metric and goal.of}):
            if found := ratios(samples, metric, of):
                entry[f"{OURS}/{of}"] = summary(found)
        if changed := find_changes(entry, earlier.get(metric, {})):
            entry["before"] = changed
        metrics[metric] = entry
    return {
        "title": case.title,
        "parameters": parameters,
        "rounds": rounds,
        "metrics": metrics,
        "failed": dict(samples.failed),
    }


def find_changes(entry: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float]:
    """The earlier medians of the ratios that have changed beyond the noise: their middle halves do not overlap.

    Numbers of ours alone move with the machine; they count only where there are no ratios.
    """
    names = [name for name in entry if name.startswith(f"{OURS}/")] or [OURS]
    found: dict[str, float] = {}
    for name in names:
        now, then = entry.get(name), before.get(name)
        if now is None or then is None or (now["low"] <= then["high"] and now["high"] >= then["low"]):
            continue
        if abs(now["median"] - then["median"]) > LEAST_CHANGE * then["median"]:
            found[name] = then["median"]
    return found


def value_of(case: Case, goal: Goal, result: Mapping[str, Any]) -> float | None:
    """The number that a goal bounds, if it was measured."""
    entry = result["metrics"].get(goal.metric, {})
    found = entry.get(f"{OURS}/{goal.of}" if goal.of else OURS)
    if found is None or goal.of:
        return found and found["median"]
    return found["median"] * SCALES[case.metrics[goal.metric]]


def is_met(case: Case, goal: Goal, result: Mapping[str, Any]) -> bool | None:
    """Whether a goal is met; None if that was not measured."""
    value = value_of(case, goal, result)
    if value is None:
        return None
    return value <= goal.limit


def misses_of(cases: Sequence[Case], results: Mapping[str, Any]) -> list[str]:
    """The goals that are missed, each as a sentence."""
    measured = [(case, goal, results[case.name]) for case in cases if case.name in results for goal in case.goals]
    return [_miss(*each) for each in measured if is_met(*each) is False]


def _miss(case: Case, goal: Goal, result: Mapping[str, Any]) -> str:
    value = value_of(case, goal, result)
    unit = case.metrics[goal.metric]
    words = WORDS.get(goal.metric, goal.metric.replace("_", " "))
    of = WORDS.get(goal.of, goal.of)
    measure = f" x {of}" if goal.of else unit and f" {unit}"
    return f"**{case.title}**, {words}: {value:,.4g}{measure} (goal: ≤ {goal.limit:,.5g})"


def rows_of(cases: Sequence[Case], results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The results in words, under `COLUMNS`: a line for each metric of each case that was measured."""
    rows: list[tuple[str, ...]] = []
    for case in cases:
        if (result := results.get(case.name)) is None:
            continue
        rows += [_row(case, metric, result) for metric in case.metrics if metric in result["metrics"]]
        if case.rate is not None:
            rows.append(_rate_row(case, result))
    return rows


def table(cases: Sequence[Case], results: Mapping[str, Any], left_out: Mapping[str, str] | None = None) -> str:
    """The results for a terminal.

    Args:
        cases: in their order.
        results: what was measured.
        left_out: what was not, and why.
    """
    rows = [COLUMNS, *rows_of(cases, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(_cell(text, width, i) for i, (text, width) in enumerate(zip(row, widths, strict=True)))
             for row in rows]  # fmt: skip
    lines.insert(1, "-" * len(lines[0]))
    absent = [f"{name}: {problem}" for name, problem in (left_out or {}).items()]
    return "\n".join(line.rstrip() for line in [*lines, *_failures(results), *absent])


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
    return text.ljust(width) if index == 0 or COLUMNS[index] in ("goal", "change") else text.rjust(width)


def _row(case: Case, metric: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    entry, unit = result["metrics"][metric], case.metrics[metric]
    name = case.title if metric == next(iter(case.metrics)) else "    "
    words = f"{name} {metric.replace('_', ' ')}" + (f", {unit}" if unit else "")
    numbers = [_value(entry.get(subject), SCALES[unit]) for subject in (OURS, INCUMBENT, FLOOR)]
    pairs = [_ratio(entry.get(f"{OURS}/{of}")) for of in (INCUMBENT, FLOOR)]
    return (words, *numbers, *pairs, _goals(case, metric, result), _changes(entry))


def _rate_row(case: Case, result: Mapping[str, Any]) -> tuple[str, ...]:
    assert case.rate is not None
    parameter, what = case.rate
    wall = result["metrics"]["wall"]
    rates = [f"{_rate(case, result, wall[s]):,.0f}" if s in wall else "-" for s in (OURS, INCUMBENT, FLOOR)]
    words = f"     {what} a second, of {float(result['parameters'][parameter]):,g}"
    return (words, *rates, "", "", "", "")


def _rate(case: Case, result: Mapping[str, Any], wall: Mapping[str, float]) -> float:
    assert case.rate is not None
    return float(result["parameters"][case.rate[0]]) / wall["median"]


def _goals(case: Case, metric: str, result: Mapping[str, Any]) -> str:
    words = {True: "met", False: "MISSED", None: "?"}
    found = [goal for goal in case.goals if goal.metric == metric]
    return ", ".join(f"{bound_of(goal)}: {words[is_met(case, goal, result)]}" for goal in found)


def bound_of(goal: Goal) -> str:
    """A goal without its metric, such as "≤ 0.5 x incumbent"."""
    return f"≤ {goal.limit:,.5g}" + (f" x {goal.of}" if goal.of else "")


def _changes(entry: Mapping[str, Any]) -> str:
    """By how much what has changed beyond the noise did so, and to which other."""
    found: list[str] = []
    for name, before in entry.get("before", {}).items():
        if before > 0:
            of = name.partition("/")[2]
            found.append(f"{entry[name]['median'] / before - 1:+.0%}" + (f" : {of}" if of else ""))
    return ", ".join(found)


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
