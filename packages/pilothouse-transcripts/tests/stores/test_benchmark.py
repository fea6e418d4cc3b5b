"""The benchmark of the stores does the work that it claims to have done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from places import ROOT


@pytest.mark.parametrize(
    ("case", "subject", "count"),
    [
        ("append", "sqlite", 5),
        ("append", "incumbent", 5),
        ("list", "memory", 30),
        ("list", "incumbent", 30),
        ("load", "sqlite", None),
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
    from benchmarks.stores import SIZES, fill, measure, use_store, write_disk
    from benchmarks.subjects.kept_sessions import LONG_SESSION

    size = SIZES["smoke"]
    write_disk(tmp_path, size)
    transcript = next((tmp_path / "big").rglob(f"{LONG_SESSION}.jsonl")).read_text()
    assert len(transcript) == pytest.approx(size.bytes, rel=0.3)
    where = {"directory": str(tmp_path)}
    if case == "load":
        use_store(subject, where, lambda store: fill(store, tmp_path))
    measure(case, subject, where, size)
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == (count or transcript.count("\n"))
    assert found["wall"] > 0
