"""The report as one HTML file: no scripts, nothing loaded, every text escaped; light and dark, wide and narrow.

Owns the page, whose frame is `page.html`, and the pictures of numbers with their intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import isnan
from pathlib import Path
from string import Template
from typing import NamedTuple, TypeAlias

from pilothouse_lab.evidence import Estimate

PAGE = Path(__file__).with_name("page.html")
LONG_CHARS = 80
"""A longer cell is folded."""
WIDTH, LABEL, ROW = 340, 118, 30
"""Sizes of a picture in pixels: it fits a narrow screen, and its text is as large as that of the page."""

Measure: TypeAlias = tuple[Estimate, Estimate, Estimate]
"""A number of the baseline and of the candidate, and the difference."""


class Table(NamedTuple):
    """A table of a report. Texts may be long, and have several lines."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def render_html(
    notes: Sequence[str],
    pictures: Mapping[str, tuple[Sequence[tuple[str, Measure]], str]],
    tables: Sequence[Table],
    footer: str,
) -> str:
    """Return the page.

    Args:
        notes: texts above all else, the conclusion first.
        pictures: by title, the rows of each, and the format of its numbers.
        tables: the tables.
        footer: the last line.
    """
    return Template(PAGE.read_text("utf-8")).substitute(
        title=escape(notes[0]),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes[1:]),
        pictures="".join(_render_picture(title, rows, form) for title, (rows, form) in pictures.items()),
        tables="".join(map(_render_table, tables)),
        footer=escape(footer),
    )


def _render_table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in table.rows)
    return f'<h2>{escape(table.title)}</h2><div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _render_cell(text: str) -> str:
    if len(text) <= LONG_CHARS and "\n" not in text:
        return f"<td>{escape(text)}</td>"
    first = escape(" ".join(text.split())[:LONG_CHARS])
    return f"<td><details><summary>{first}…</summary><pre>{escape(text)}</pre></details></td>"


def _render_picture(title: str, rows: Sequence[tuple[str, Measure]], form: str) -> str:
    ends = [each.value if each.high is None else each.high for _, one in rows for each in one[:2]]
    most = 1.0 if "%" in form else max((end for end in ends if not isnan(end)), default=0.0) or 1.0
    height = ROW * len(rows) + 20

    def place(value: float) -> float:
        return round(LABEL + (WIDTH - LABEL - 12) * min(max(value / most, 0.0), 1.0), 1)

    parts = [
        f'<line class="axis" x1="{place(at)}" x2="{place(at)}" y1="0" y2="{height - 18}"/>'
        f'<text x="{place(at)}" y="{height - 4}" text-anchor="{anchor}">{form.format(at)}</text>'
        for at, anchor in ((0.0, "middle"), (most / 2, "middle"), (most, "end"))
    ]
    for index, (name, (before, after, _)) in enumerate(rows):
        y, label = index * ROW + ROW // 2, name if len(name) <= 17 else name[:16] + "…"
        parts.append(f'<text x="0" y="{y + 4}">{escape(label)}<title>{escape(name)}</title></text>')
        parts += [_render_mark(before, "baseline", y - 6, place), _render_mark(after, "candidate", y + 6, place)]
    legend = '<span class="baseline">● baseline</span> <span class="candidate">● candidate</span>'
    box = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    caption = f"<figcaption><b>{escape(title)}</b>, 95 % intervals<br>{legend}</figcaption>"
    return f"<figure>{caption}{box}{''.join(parts)}</svg></figure>"


def _render_mark(one: Estimate, name: str, y: float, place: Callable[[float], float]) -> str:
    if isnan(one.value):
        return ""
    low, high = (place(one.value if end is None else end) for end in (one.low, one.high))
    line = f'<line stroke-width="2" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
    return f'<g class="{name}">{line}<circle cx="{place(one.value)}" cy="{y}" r="4"/></g>'
