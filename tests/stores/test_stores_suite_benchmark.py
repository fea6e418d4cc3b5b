"""The benchmark of the stores does the work that it claims to have done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("case", "subject", "count"),
    [
        ("append", "sqlite", 5),
        ("list", "disk", 30),
        ("list", "incumbent", 30),
        ("list-store", "memory", 30),
        ("load", "disk", None),
        ("load", "incumbent", None),
    ],
)
def test_a_sample_counts_its_work(
    case: str,
    subject: str,
    count: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.stores import BIG, SIZES, measure, write_disk

    size = SIZES["smoke"]
    write_disk(tmp_path, size)
    transcript = next((tmp_path / "big").rglob(f"{BIG}.jsonl")).read_text()
    assert len(transcript) == pytest.approx(size.bytes, rel=0.3)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / ("big" if case == "load" else "many")))
    measure(case, subject, {"directory": str(tmp_path)}, size)
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == (count or transcript.count("\n"))
    assert found["wall"] > 0
