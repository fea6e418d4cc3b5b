"""Draws the pictures of a run: `python -m benchmarks.plot results FROM.json TO.svg`, or `scale` for that of the growth.

Owns how they look. Runs in the environment of the benchmarks, which has matplotlib; the numbers come from the file. The
same numbers give the same bytes. Colours are such that they can be read on white and on black, for the page behind is
the reader's.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import FLOOR, INCUMBENT, OURS

GREY = "#7d7d7d"  # contrast 4:1 with white and 5:1 with black
COLOURS: Mapping[str, str] = {OURS: "#1f83e0", INCUMBENT: "#dd6b10", FLOOR: GREY}
MARKS: Mapping[str, str] = {OURS: "o", INCUMBENT: "s", FLOOR: "|"}
NAMES: Mapping[str, str] = {OURS: "pilothouse", INCUMBENT: "claude-agent-sdk", FLOOR: "floor"}
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 10,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.hashsalt": "pilothouse",
    "svg.fonttype": "path",
}


class Row(NamedTuple):
    """One line of the picture of the results: a metric of a case, in words, and whom it compares ours with."""

    case: str
    metric: str
    words: str
    others: tuple[str, ...] = (INCUMBENT, FLOOR)


BARE = (INCUMBENT,)  # the floor of a round trip is two pipes without JSON: too far away for one picture
ROWS = (
    Row("small", "wall", "stream of short messages"),
    Row("deltas", "wall", "stream of text deltas"),
    Row("blocking", "wall", "the same without async"),
    Row("line-64mb", "wall", "one line of 64 MB"),
    Row("tool", "wall", "in-process tool call", BARE),
    Row("import", "wall", "import"),
    Row("first", "wall", "first assistant message"),
    Row("many", "wall", "hundreds of queries at once"),
    Row("pool", "answer", "answer, real CLI, from a warm pool"),
    Row("host", "wall", "500 viewers of 200 sessions"),
    Row("fleet", "wall", "5,000 runs of a fleet"),
    Row("import", "memory", "memory after import"),
    Row("idle", "memory", "memory of a waiting session"),
    Row("kept", "memory", "memory of a million messages"),
)


def draw_results(data: Mapping[str, Any]) -> Any:
    """Time and memory as multiples of ours, one line a metric: floor, ours and incumbent on one logarithmic axis."""
    pyplot = _pyplot()
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    rows = [row for row in ROWS if _ratios(data, row)]
    figure, axes = pyplot.subplots(figsize=(8.6, 0.36 * len(rows) + 1.1), layout="constrained")
    for index, row in enumerate(rows):
        places = {OURS: 1.0} | {subject: 1 / ratio for subject, ratio in _ratios(data, row).items()}
        axes.plot([min(places.values()), max(places.values())], [index, index], color=GREY, alpha=0.35, zorder=1)
        for subject, place in places.items():
            size = 130 if subject == FLOOR else 60
            axes.scatter(place, index, s=size, marker=MARKS[subject], color=COLOURS[subject], linewidth=2.2, zorder=2)
        if INCUMBENT in places:
            _tell(axes, places, index)
    axes.axvline(1, color=COLOURS[OURS], alpha=0.5, linewidth=1, zorder=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g} x"))
    axes.margins(x=0.09)
    axes.set_yticks(range(len(rows)), [row.words for row in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time or memory as a multiple of that of pilothouse; further left is better")
    marks = [
        axes.scatter([], [], s=130 if each == FLOOR else 60, marker=MARKS[each], color=COLOURS[each], linewidth=2.2)
        for each in MARKS
    ]
    axes.legend(marks, NAMES.values(), loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, frameon=False)
    return figure


def _tell(axes: Any, places: Mapping[str, float], index: int) -> None:
    """Writes the multiple beside the mark of the incumbent; above it where the line to other marks is in the way."""
    place = places[INCUMBENT]
    is_last = place >= max(places.values())
    axes.annotate(
        f"{place:.0f} x" if place >= 9.95 else f"{place:.2g} x",
        (place, index),
        xytext=(7, 0) if is_last else (0, 8),
        textcoords="offset points",
        color=COLOURS[INCUMBENT],
        fontsize=9,
        va="center",
        ha="left" if is_last else "center",
    )


def _ratios(data: Mapping[str, Any], row: Row) -> dict[str, float]:
    """Ours divided by each of the others, as far as both were measured."""
    entry = data["cases"].get(row.case, {}).get("metrics", {}).get(row.metric, {})
    found = {subject: entry.get(f"{OURS}/{subject}") for subject in row.others}
    return {subject: ratio["median"] for subject, ratio in found.items() if ratio and ratio["median"] > 0}


def draw_scale(data: Mapping[str, Any]) -> Any:
    """One small picture an axis of growth, both scales logarithmic, with the slope of each line's right half."""
    pyplot = _pyplot()
    growths: Mapping[str, Any] = data["growths"]
    columns = 3
    lines = -(-len(growths) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(10.5, 3.1 * lines), layout="constrained", squeeze=False)
    for axes in grid.flat[len(growths) :]:
        axes.set_visible(False)
    for axes, growth in zip(grid.flat, growths.values(), strict=False):
        for subject, line in growth["subjects"].items():
            slope = "" if line["slope"] is None else f" {line['slope']:.2f}"
            axes.plot(
                *zip(*line["points"], strict=True),
                color=COLOURS[subject],
                marker="." if subject == FLOOR else MARKS[subject],
                markersize=4,
                linewidth=1.4,
                label=f"{NAMES[subject]}{slope}",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        costs = [cost for line in growth["subjects"].values() for _, cost in line["points"] if cost > 0]
        if costs:  # whole decades, so that what hardly grows looks like it
            axes.set_ylim(10 ** floor(log10(min(costs))), 10 ** ceil(log10(max(costs)) + 0.3))
        axes.minorticks_off()
        axes.set_title(growth["title"], fontsize=10)
        axes.set_xlabel(growth["work"], fontsize=9)
        axes.set_ylabel(growth["unit"], fontsize=9)
        axes.grid(color=GREY, alpha=0.2)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(STYLE)
    from matplotlib import pyplot

    return pyplot


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {"results": draw_results, "scale": draw_scale}


def main(kind: str, source: str, target: str) -> None:
    """Draw one picture; it says of which numbers it is, so that a test can tell when it is not of these."""
    numbers = Path(source).read_bytes()
    figure = KINDS[kind](json.loads(numbers))
    origin = f"{Path(source).name} {hashlib.sha256(numbers).hexdigest()}"
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Source": origin})
    lines = Path(target).read_text().splitlines()
    Path(target).write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
