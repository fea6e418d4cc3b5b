"""What of a run is kept and written: rows of a journal, lines of JSON, CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from scripted_runners import answer

import pilothouse as ph
from pilothouse import errors
from pilothouse.messages import AssistantMessage, InitMessage, ResultMessage, encode
from pilothouse_fleet import Run, RunWriter, run_row
from pilothouse_fleet.journals.rows import OUTCOME_COLUMNS, decode_error, encode_error, encode_outcome
from pilothouse_fleet.run import drop_messages

NAMES = sorted(n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ph.PilothouseError))


@pytest.mark.parametrize("name", NAMES)
def test_every_error_is_read_again(name: str) -> None:
    kind = getattr(errors, name)
    error = kind.__new__(kind, "what happened")
    error.args = ("what happened",)
    again = decode_error(encode_error(error))
    assert type(again) is kind
    assert str(again) == "what happened"


def test_fields_of_errors_are_kept_and_foreign_errors_are_described() -> None:
    error = decode_error(encode_error(ph.RateLimitError("slow", api_error_status=429, resets_at=99.5)))
    assert isinstance(error, ph.RateLimitError)
    assert (error.api_error_status, error.resets_at) == (429, 99.5)
    stranger = decode_error(encode_error(ZeroDivisionError("by zero")))
    assert type(stranger) is ph.PilothouseError
    assert str(stranger) == "ZeroDivisionError: by zero"
    assert decode_error(None) is None


def test_an_answer_is_reduced_to_its_closing_message() -> None:
    whole = answer("yes", cost=0.5)
    small = drop_messages(whole)
    assert (small.text, small.cost_usd, small.session_id, small.is_success) == ("yes", 0.5, whole.session_id, True)
    with pytest.raises(ph.UsageError):
        _ = small.messages
    failed = drop_messages(answer("", error=ph.OverloadedError("busy")))
    assert isinstance(failed.error, ph.OverloadedError)


def test_a_failed_answer_keeps_the_text_of_the_model() -> None:
    output, closing = AssistantMessage.of("Half of it."), ResultMessage(is_error=True, result="API Error: 529")
    small = drop_messages(ph.QueryResult([InitMessage(), AssistantMessage.of("First."), output, closing]))
    run = Run(key="a", prompt="x", state="failed", result=small, error=small.error)
    assert run.text == small.text == "Half of it."
    assert encode_outcome(run)[OUTCOME_COLUMNS.index("lines")] == b"\n".join(map(encode, (output, closing)))


ODD = 'a "quoted", line\nand another; ünïcode \ud800'
RUNS = (
    Run(
        key="a", prompt="x", state="succeeded", result=answer(ODD), attempts=1, cost_usd=0.5, session_id="s", ended=2.5
    ),
    Run(key="b", prompt="x", state="failed", error=ph.OverloadedError("busy, very"), attempts=4),
    Run(key="c", prompt="x", state="cancelled"),
)


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with RunWriter(path) as writer:
        for run in RUNS[:2]:
            writer.write(run)
    with RunWriter(path, append=True) as writer:
        writer.write(RUNS[2])
    a, b, c = (json.loads(line) for line in path.read_text().splitlines())
    assert (a["key"], a["text"], a["error"], a["cost_usd"], a["ended"], a["turns"]) == ("a", ODD, None, 0.5, 2.5, 1)
    assert (b["state"], b["error_type"], b["error"], b["text"]) == ("failed", "OverloadedError", "busy, very", "")
    assert c["state"] == "cancelled"
    assert list(a) == list(run_row(RUNS[0]))


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    plain = replace(RUNS[0], result=answer(ODD[:-1]))
    for run in (plain, *RUNS):
        with RunWriter(path, append=True) as writer:
            writer.write(run)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == ["a", "a", "b", "c"]
    assert rows[0]["text"] == ODD[:-1]
    assert (rows[2]["error"], rows[2]["session_id"]) == ("busy, very", "")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ph.UsageError, match="there is no directory"):
        RunWriter(tmp_path / "none" / "out.csv")
