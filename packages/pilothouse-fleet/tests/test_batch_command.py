"""`pilothouse batch`: what it prints and writes, how it ends, and both Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_processes import LIMIT_S, asked, is_alive, lasting, started, stubborn, until
from rich.console import Console

from pilothouse_cli import main
from pilothouse_cli.arguments import parse
from pilothouse_cli.batch import RunPrinter, format_status
from pilothouse_cli.flags import BatchRequest
from pilothouse_cli.screen import Screen
from pilothouse_fleet import FleetStatus, Run
from pilothouse_testing import FakeCLI

PROMPTS = [{"prompt": "one", "key": "a"}, {"prompt": "two", "id": 7, "options": {"model": "opus"}}, "three"]


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, PROMPTS)) + "\n\n")
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["batch", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_flags() -> None:
    assert parse(["batch", "x.jsonl"]) == BatchRequest(source="x.jsonl")
    request = parse(["batch", "resume", "--journal", "r.db", "-o", "out.csv", "--model", "opus", "--attempts", "0"])
    assert request == BatchRequest(
        source="resume", settings={"model": "opus"}, journal="r.db", output="out.csv", retry=0
    )
    assert isinstance(request, BatchRequest)
    assert request.action == "resume"
    with pytest.raises(SystemExit):
        parse(["batch"])
    with pytest.raises(SystemExit):
        parse(["batch", "x", "--on-interrupted", "cry"])


def test_results_go_to_standard_output_and_all_else_beside_it(run: Any, prompts: Path, fake: FakeCLI) -> None:
    code, out, err = run(str(prompts), "--cli", fake.path)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {(row["key"], row["state"], row["text"], row["error"]) for row in rows} == {
        (key, "succeeded", "Hello", None) for key in ("a", "7", "3")
    }
    assert "3 of 3" in err
    assert "3 succeeded, 0 failed, $0.0008" in err
    assert any("opus" in call.argv or "--model=opus" in call.argv for call in fake.calls)


def test_with_a_journal_nothing_is_run_twice(run: Any, prompts: Path, fake: FakeCLI) -> None:
    arguments = (str(prompts), "--cli", fake.path, "--journal", "runs.db", "--output", "out.csv")
    assert run(*arguments)[:2] == (0, "")
    prompts.write_text(prompts.read_text() + '"four"\n')
    assert run(*arguments)[:2] == (0, "")
    rows = list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))
    assert sorted(row["text"] for row in rows) == ["Hello"] * 4
    assert len(fake.calls) == 4
    code, out, err = run("status", "--journal", "runs.db")
    assert (code, out) == (0, "")
    assert "4 succeeded, 0 failed" in err
    assert json.loads(run("status", "--journal", "runs.db", "--json")[1])["succeeded"] == 4


def test_a_run_without_a_key_is_shown_by_its_prompt(run: Any, prompts: Path, fake: FakeCLI) -> None:
    long = "Tell me\n  everything about the sea, the wind, the tides and the moon above them."
    asked = [{"prompt": "one", "key": "a"}, long, {"prompt": [{"type": "text", "text": "In blocks"}]}]
    prompts.write_text("\n".join(map(json.dumps, asked)))
    _, out, err = run(str(prompts), "--cli", fake.path, "--journal", "r.db")
    assert sorted(line.split("  ")[1] for line in err.splitlines()[:3]) == [
        "In blocks",
        "Tell me everything about the sea, the wind, the tides and t…",
        "a",
    ]
    assert {len(json.loads(line)["key"]) for line in out.splitlines()} == {1, 32}
    _, _, err = run(str(prompts), "--cli", fake.path)
    assert "  3: In blocks  succeeded" in err


@pytest.mark.parametrize(("name", "text"), [("bom.jsonl", '"one"'), ("bom.txt", "one")])
def test_a_byte_order_mark_is_no_part_of_a_prompt(
    run: Any, tmp_path: Path, fake: FakeCLI, name: str, text: str
) -> None:
    (tmp_path / name).write_text(f"{text}\n", "utf-8-sig")
    code, _, err = run(str(tmp_path / name), "--cli", fake.path)
    assert (code, "1: one  succeeded" in err) == (0, True)
    assert [call.prompts for call in fake.calls] == [["one"]]


def test_local_is_for_workers(run: Any, prompts: Path) -> None:
    code, _, err = run(str(prompts), "--enqueue", "--journal", "r.db", "--local")
    assert (code, "give --local to the worker, which executes the runs" in err) == (2, True)
    code, _, err = run(str(prompts), "--local", "--model", "opus")
    assert (code, "--local brings its own model: omit --model" in err) == (2, True)


def test_failed_runs_are_reported_and_run_again(run: Any, prompts: Path, fake: FakeCLI) -> None:
    with FakeCLI().text("no", is_error=True).forever() as failing:
        code, _, err = run(str(prompts), "--cli", failing.path, "--journal", "runs.db", "-o", "out.jsonl")
    assert code == 1
    assert "a  failed" in err
    assert "  a: no" in run("status", "--journal", "runs.db")[2]
    code, out, _ = run("retry-failed", "--journal", "runs.db", "--cli", fake.path)
    assert code == 0
    assert {json.loads(line)["state"] for line in out.splitlines()} == {"succeeded"}
    assert run("resume", "--journal", "runs.db", "--cli", fake.path)[0] == 0


BAD: dict[str, tuple[str, str]] = {
    "not JSON": ('"a"\n\n{oops\n', "line 3: it cannot be read"),
    "not UTF-8": ('"a"\n"\udcff"\n', "line 2: it cannot be read"),
    "no prompt": ('"a"\n{"key": "x"}\n', "line 2: .* missing required field `prompt`"),
    "an empty prompt": ('""\n', "line 1: the prompt of a run is text or a list of content blocks, not empty"),
    "an unknown field": ('{"prompt": "x", "modle": "opus"}\n', "unknown field `modle`.*; expected a JSON string"),
    "wrong options": ('{"prompt": "x", "options": {"max_turns": "many"}}\n', "line 1: .*max_turns"),
    "options that are none": ('{"prompt": "x", "options": 7}\n', r"line 1: .*Expected `object .*\.options"),
    "a key twice": ('{"prompt": "x", "key": 1}\n{"prompt": "y", "key": 1}\n', "line 2: key '1' is used in line 1"),
    "nothing": ("\n", "it has no prompts"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_read_names_the_line(
    run: Any, prompts: Path, fake: FakeCLI, text: str, words: str
) -> None:
    prompts.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = run(str(prompts), "--cli", fake.path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(words, err), err
    assert fake.calls == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.jsonl",), "none.jsonl: No such file"),
        (("prompts.jsonl", "--budget-usd", "0"), "budget_usd must be a number of US dollars above 0"),
        (("prompts.jsonl", "--concurrency", "0"), "concurrency"),
        (("prompts.jsonl", "-o", "no/such/out.jsonl"), "there is no directory"),
        (("prompts.jsonl", "--journal", "prompts.jsonl"), "is not a journal of a fleet"),
        (("resume",), "needs --journal"),
        (("retry-failed", "--journal", "none.db"), "there is no journal none.db"),
        (("status",), "needs --journal"),
        (("status", "--journal", "none.db"), "there is no journal none.db"),
    ],
)
def test_what_cannot_be(run: Any, prompts: Path, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert code in (1, 2)
    assert out == ""
    assert words in err


def test_a_plain_file_has_a_prompt_a_line(run: Any, prompts: Path, fake: FakeCLI) -> None:
    Path("prompts.txt").write_text("first\n\nsecond\n")
    assert run("prompts.txt", "--cli", fake.path)[0] == 0
    assert {str(call.prompts[0]) for call in fake.calls} == {"first", "second"}


def test_ctrl_c_keeps_what_was_begun(run: Any, prompts: Path) -> None:
    arguments = ("batch", str(prompts), "--journal", "runs.db", "--concurrency", "2")
    with lasting() as slow, started(*arguments, "--cli", slow.path) as child:
        until(lambda: asked(slow) == 2)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=LIMIT_S)
        assert child.returncode == 130, err
        assert "stopping the runs" in err
        assert "continue with `pilothouse batch resume --journal runs.db`" in err
        until(lambda: not any(is_alive(call.pid) for call in slow.calls))
    status = json.loads(run("status", "--journal", "runs.db", "--json")[1])
    assert (status["interrupted"], status["queued"], status["running"]) == (2, 1, 0)


def test_a_second_ctrl_c_ends_it_at_once(prompts: Path) -> None:
    with stubborn() as fake, started("batch", str(prompts), "--cli", fake.path) as child:
        until(lambda: asked(fake) == 3)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        assert "press Ctrl-C again" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        child.wait(LIMIT_S)
        assert child.returncode == 130


def test_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    screen = Screen(stream, stream)
    monkeypatch.setattr(screen, "_console", Console(file=stream, force_terminal=True, width=110, highlight=False))
    status = FleetStatus(
        succeeded=3,
        failed=1,
        running=2,
        queued=94,
        cost_usd=0.5,
        input_tokens=1200,
        runs_per_minute=12,
        eta_seconds=480,
    )
    shown = RunPrinter(screen, 100)
    now = 1000.0
    with shown:
        running = [
            Run(key=f"run [b]{n}", prompt="x", started=now - 75, attempts=2, session_id="0" * 36) for n in range(14)
        ]
        shown.show(status, running, now)
        shown.print_ended(Run(key="bad", prompt="x", state="failed", error=ValueError("two\nlines")))
        shown.print_ended(Run(key="good", prompt="x", state="succeeded"))
    text = stream.getvalue()
    for words in (
        "run [b]0", "1 min 15 s", "and 2 more", "3 succeeded, 1 failed, 2 running, 94 queued", "8 min 0 s left",
    ):  # fmt: skip
        assert words in text
    assert "1 of 100  bad  failed" in text
    assert "good" not in text
    assert format_status(status).endswith("$0.5000, 1,200 tokens, 12.0 runs a minute, 8 min 0 s left")
