"""The page and the pictures show the numbers that are in the files."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from benchmarks import page
from benchmarks.cases import CASES
from benchmarks.page import PAGES, PARTS, fresh
from places import ROOT

BENCHMARKS = ROOT / "benchmarks"


def test_the_pages_show_the_measured_numbers() -> None:
    texts = [page.read_text("utf-8") for page in PAGES]
    for text in texts:
        assert fresh(text) == text, "run python -m benchmarks.page"
    for name in PARTS:
        assert sum(text.count(f"<!-- measured: {name} -->") for text in texts) == 1
    text = texts[0]
    small = json.loads((BENCHMARKS / "results.json").read_text())["cases"]["small"]["metrics"]["wall"]
    assert f"{small['ours/incumbent']['median']:.3f} (" in text
    assert fresh(text.replace(f"{small['ours/incumbent']['median']:.3f} (", "0.001 (")) == text


@pytest.mark.parametrize("name", ["results", "scale"])
def test_a_picture_is_of_the_numbers_beside_it(name: str) -> None:
    numbers = (BENCHMARKS / f"{name}.json").read_bytes()
    picture = (BENCHMARKS / f"{name}.svg").read_text("utf-8")
    assert f"{name}.json {hashlib.sha256(numbers).hexdigest()}" in picture, "run python -m benchmarks.plot"


@pytest.mark.parametrize("name", ["results", "scale"])
def test_no_file_of_numbers_names_a_machine(name: str) -> None:
    for suffix in ("json", "svg"):
        text = (BENCHMARKS / f"{name}.{suffix}").read_text("utf-8")
        assert str(ROOT) not in text
        assert "/home/" not in text


def test_the_results_have_every_case() -> None:
    results = json.loads((BENCHMARKS / "results.json").read_text())
    for case in CASES:
        entry = results["cases"][case.name]
        assert not entry["failed"]
        assert entry["rounds"] >= case.samples[results["size"]]
        assert set(entry["metrics"]) == set(case.metrics)


@pytest.mark.parametrize(
    ("wall", "left_out", "words"),
    [
        (3.0, {}, ["1 of 2 goals is missed:", "- **hundreds of queries at once**, time: 3 x the floor"]),
        (1.0, {"search": "no rg"}, ["None of 2 goals are missed.", "350 MB of transcripts, searched (no rg)"]),
    ],
    ids=["missed", "met"],
)
def test_the_misses_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch, wall: float, left_out: dict[str, str], words: list[str]
) -> None:
    ratio = {name: {"median": value, "low": value, "high": value} for name, value in
             {"ours/floor": wall, "ours/incumbent": 0.5}.items()}  # fmt: skip
    found = {"cases": {"many": {"metrics": {"wall": ratio, "cpu": ratio}}}, "left_out": left_out}
    monkeypatch.setattr(page, "_read", lambda name: found)
    for each in words:
        assert each in page.missed()
    assert "Not measured in the last whole run: " in page.missed()


def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: dict[str, Any] = {
        "system": "Linux",
        "processor": "",
        "machine": "x86_64",
        "cores": 2,
        "python": "3.11",
        "packages": {},
    }
    found: dict[str, dict[str, Any]] = {
        "machine": {**noted, "load": 9.0, "scheduling": "normal"},
        "cases": {"a": {"rounds": 3}, "b": {"rounds": 7}},
    }
    monkeypatch.setattr(page, "_read", lambda name: found)
    assert "the load was 9" in page.machine()
    assert "3 to 7 rounds" in page.machine()
    found["machine"]["load"] = 1.5
    assert "busy" not in page.machine()
