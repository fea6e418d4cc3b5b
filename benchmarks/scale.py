"""`python -m benchmarks.scale`: what does twice the work cost, for ours, the incumbent and the floor?

Owns the axes and the slopes. It counts CPU time, which a busy machine changes less than wall time. A slope is that of
the right half of a line with both scales logarithmic: 1 is linear, 0 is for nothing, 2 is what must not be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from benchmarks.cases import INCUMBENT, OURS, SUBJECTS, Case
from benchmarks.environment import HERE, build_fake_cli, draw, machine_notes, prepare_python
from benchmarks.page import main as write_page
from benchmarks.sampling import Bench, MeasureError, Numbers, run_once
from benchmarks.scenarios import write_scenario

ROUNDS = 3
LINEAR = 1.1  # a slope up to this counts as linear: the measurement is no finer
POINT_TIMEOUT = 300.0  # seconds
LEAST_BYTES = 4_000_000  # short lines are sent often enough to be seen by the clock
OPEN_FILES = 8192  # 500 children with three pipes each are more than the usual 1024


@dataclass(frozen=True, slots=True)
class View:
    """One picture: a metric against the work, both as they are shown.

    Args:
        title: what it shows.
        metric: which of the numbers of a sample.
        unit: of the metric, after `scale`.
        scale: what the metric is multiplied with.
        each: whether the number is that of one unit of the work, and the picture is to show all of it.
        of_many: a parameter that says how often the work was done in a sample, if the picture is to show it once.
    """

    title: str
    metric: str
    unit: str
    scale: float = 1.0
    each: bool = False
    of_many: str | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """Work that grows.

    Args:
        work: what is counted.
        measure: the function of each subject that does it.
        scenario: what the fake CLI says; `{}` stands for the amount.
        parameters: of the measure; `{}` stands for the amount, or they are made by a function of it.
        amounts: how much of it.
        views: what is shown of the samples.
        subjects: who can do it.
    """

    work: str
    measure: str
    scenario: str
    parameters: Mapping[str, str]
    amounts: tuple[int, ...]
    views: Mapping[str, View]
    subjects: tuple[str, ...] = SUBJECTS

    def parameters_for(self, amount: int) -> dict[str, str]:
        given = {name: value.format(amount) for name, value in self.parameters.items()}
        if self.scenario.startswith("line-"):
            given["COUNT"] = str(max(1, LEAST_BYTES // amount))
        return given


AXES: tuple[Axis, ...] = (
    Axis(
        "messages",
        "stream",
        "small",
        {"COUNT": "{}", "PARTIAL": "0"},
        (1_000, 10_000, 100_000, 1_000_000),
        {
            "messages": View("a stream of messages", "cpu", "CPU, s"),
            "messages-memory": View("the same, memory", "memory", "MB"),
        },
    ),
    Axis(
        "bytes in a line",
        "stream",
        "line-{}",
        {"PARTIAL": "0"},
        (1_000, 16_000, 250_000, 4_000_000, 16_000_000, 64_000_000),
        {"line": View("one line", "cpu", "CPU, ms", 1e3, of_many="COUNT")},
    ),
    Axis(
        "queries",
        "many",
        "small",
        {"QUERIES": "{}", "COUNT": "1"},
        (1, 10, 50, 150, 500),
        {"queries": View("queries at once", "cpu", "CPU, s")},
    ),
    Axis(
        "sessions",
        "idle",
        "small",
        {"SESSIONS": "{}", "COUNT": "1"},
        (1, 10, 50, 150, 500),
        {
            "sessions": View("sessions open at once", "cpu", "CPU, s"),
            "sessions-memory": View("the same, memory added", "memory", "MB", each=True),
        },
    ),
    Axis(
        "tools",
        "declare",
        "tool",
        {"TOOLS": "{}", "CALLS": "1"},
        (1, 10, 50, 150, 500),
        {"declare": View("tools declared", "cpu", "CPU, ms", 1e3)},
        (OURS, INCUMBENT),
    ),
    Axis(
        "tools",
        "tool",
        "tool",
        {"TOOLS": "{}", "CALLS": "500"},
        (1, 10, 50, 150, 500),
        {"call": View("a call, of so many tools", "cpu", "CPU, µs", 1e6)},
        (OURS, INCUMBENT),
    ),
    Axis(
        "sessions",
        "sessions",
        "sessions-{}",
        {"COUNT": "{}", "LIMIT": "0"},
        (10, 100, 1_000, 10_000),
        {"listed": View("sessions on disk, listed", "cpu", "CPU, s")},
        (OURS, INCUMBENT),
    ),
    Axis(
        "MB",
        "transcript",
        "transcript-{}",
        {"LEAST": "{}"},
        (1, 4, 16, 64, 100),
        {
            "transcript": View("a transcript, read", "cpu", "CPU, s"),
            "transcript-memory": View("the same, memory", "memory", "MB"),
        },
        (OURS, INCUMBENT),
    ),
)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of the line through the right half of the points, both scales logarithmic; None with fewer than two above 0."""
    usable = [(log(amount), log(cost)) for amount, cost in points if cost > 0]
    usable = usable[(len(usable) - 1) // 2 :]
    if len(usable) < 2:
        return None
    return statistics.linear_regression(*zip(*usable, strict=True)).slope


def shown(axis: Axis, view: View, amount: int, samples: Sequence[Numbers]) -> float:
    """The middle of some samples as a picture shows it."""
    value = statistics.median(sample[view.metric] for sample in samples) * view.scale
    many = int(axis.parameters_for(amount)[view.of_many]) if view.of_many else 1
    return value * (amount if view.each else 1) / many


def grow(bench: Bench, axis: Axis, subjects: Sequence[str], rounds: int) -> dict[str, dict[int, list[Numbers]]]:
    """All samples of an axis: subject -> amount -> samples. One that fails says so and has no more points."""
    samples: dict[str, dict[int, list[Numbers]]] = {subject: {} for subject in subjects}
    failed: set[str] = set()
    for amount in axis.amounts:
        given = axis.parameters_for(amount)
        scenario = axis.scenario.format(amount)
        case = Case(axis.measure, axis.work, axis.measure, scenario, {}, {}, timeout=POINT_TIMEOUT)
        environment = {f"BENCH_{name}": value for name, value in given.items()}
        environment["BENCH_SCENARIO"] = str(write_scenario(scenario, bench.scratch / "scenarios"))
        for _ in range(rounds):
            for subject in subjects:
                if subject in failed:
                    continue
                try:
                    samples[subject].setdefault(amount, []).append(run_once(bench, case, subject, environment))
                except MeasureError as error:
                    failed.add(subject)
                    samples[subject].pop(amount, None)
                    print(f"\n{subject}, {amount} {axis.work}: {error}", file=sys.stderr)
                print(".", end="", file=sys.stderr, flush=True)
    return samples


def lines_of(axis: Axis, samples: Mapping[str, Mapping[int, Sequence[Numbers]]]) -> dict[str, Any]:
    """What the file says of an axis: for each picture the line of each subject, with its slope."""
    growths: dict[str, Any] = {}
    for name, view in axis.views.items():
        subjects: dict[str, Any] = {}
        for subject, amounts in samples.items():
            points = [(amount, shown(axis, view, amount, found)) for amount, found in amounts.items()]
            subjects[subject] = {"points": points, "slope": slope(points)}
        growths[name] = {"title": view.title, "work": axis.work, "unit": view.unit, "subjects": subjects}
    return growths


def table(growths: Mapping[str, Any]) -> str:
    """For a terminal: what the largest amount costs, and the slope."""
    rows: list[str] = []
    for growth in growths.values():
        rows.append(f"{growth['title']} ({growth['unit']} by {growth['work']})")
        for subject, line in growth["subjects"].items():
            if not line["points"]:
                continue
            told = "  ".join(f"{amount:g}: {cost:.3g}" for amount, cost in line["points"])
            verdict = (
                "" if subject != OURS or line["slope"] is None or line["slope"] <= LINEAR else "  WORSE THAN LINEAR"
            )
            bend = "-" if line["slope"] is None else f"{line['slope']:.2f}"
            rows.append(f"  {subject:10} slope {bend}{verdict}   {told}")
    return "\n".join(rows)


def main() -> int:
    """Measure the growth; 1 if something of ours grows faster than the work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--no-incumbent", action="store_true", help="ours and the floors; installs nothing, draws nothing"
    )
    parser.add_argument("--source", type=Path, help="measure the pilothouse in this directory instead")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each point")
    parser.add_argument("--axis", action="append", help="only this measure; may be repeated")
    parser.add_argument("--output", type=Path, help="where the numbers go; those of all axes: benchmarks/scale.json")
    asked = parser.parse_args()
    python = prepare_python(with_incumbent=not asked.no_incumbent)
    fake, kind = build_fake_cli()
    _allow_open_files()
    growths: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pilothouse-bench-") as scratch:
        bench = Bench(python, fake, Path(scratch), asked.source and asked.source.resolve())
        for axis in AXES:
            if asked.axis is None or axis.measure in asked.axis:
                subjects = [each for each in axis.subjects if each != INCUMBENT or not asked.no_incumbent]
                growths |= lines_of(axis, grow(bench, axis, subjects, asked.rounds))
    print("\n" + table(growths))
    is_whole = asked.axis is None and asked.source is None and not asked.no_incumbent
    if output := asked.output or (HERE / "scale.json" if is_whole else None):
        notes = {"machine": machine_notes(python, kind), "rounds": asked.rounds, "growths": growths}
        output.write_text(json.dumps(notes, indent=2, ensure_ascii=False) + "\n")
        if not asked.no_incumbent:
            draw(python, "scale", output)
        if output == HERE / "scale.json":
            write_page([])
    return int(any((growth["subjects"][OURS]["slope"] or 0) > LINEAR for growth in growths.values()))


def _allow_open_files() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


if __name__ == "__main__":
    sys.exit(main())
