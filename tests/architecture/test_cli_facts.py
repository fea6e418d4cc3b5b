"""`cli_facts.toml` names lines and tests that exist; the source names a version of the CLI only where it needs one."""

from __future__ import annotations

import re
from pathlib import Path

from cli_facts import ROOT, list_checks, read_facts

from pilothouse.provision.artifacts import load_pins

NEEDED = re.compile(
    r'min_cli_version="|Needs Claude Code 2|CLI before 2|up to 2|update it to 2|can refuse them \(Claude Code 2'
    r'|VERSION(: Final)? = "|"2\.1\.\d+( \(Claude Code\))?"|`cli/2'  # what a version looks like, and formats
)
GENERATED = {"builtin_generated.py"}


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_each_fact_is_told_once_in_its_file() -> None:
    counts = {fact: fact.source.read_text("utf-8").count(fact.text) for fact in read_facts()}
    assert [fact for fact, count in counts.items() if count != 1] == []


def test_no_fact_is_newer_than_the_pinned_version() -> None:
    pinned = _number(load_pins().cli.version)
    assert [fact for fact in read_facts() if _number(fact.seen) > pinned] == []


def test_each_proof_runs_the_real_cli() -> None:
    wrong: list[str] = []
    for fact in read_facts():
        if fact.tests:
            path, _, name = fact.tests.partition("::")
            text = (ROOT / path).read_text("utf-8")
            is_there = re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)
            if not is_there or not (path.startswith("tests/real/") or "mark.real_cli" in text):
                wrong.append(fact.tests)
    assert wrong == []


def test_a_new_version_lists_what_no_test_proves() -> None:
    facts = read_facts()
    lines = list_checks("2.1.999")
    assert len(lines) == 2 + sum(not fact.tests for fact in facts)
    assert lines[-1].startswith(f"{sum(bool(fact.tests) for fact in facts)} facts")


def test_comments_name_no_version_of_the_cli() -> None:
    """A fact that a version may change belongs into `cli_facts.toml`."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(Path(ROOT, "packages").glob("*/src/**/*.py"))
        if path.name not in GENERATED
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"\b2\.1\.\d\d", line) and not NEEDED.search(line)
    ]
    assert found == []
