"""`python -m benchmarks`: measures pilothouse, the incumbent and the floors side by side. `--help` says how.

Owns the command line, the order of a run, and what a case needs beside the fake CLI. Needs only the standard library,
except for the cases with the real CLI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, FLOOR, INCUMBENT, OURS, Case, Need, Size
from benchmarks.environment import (
    HERE,
    build_fake_cli,
    clean_environment,
    draw,
    installed,
    machine_notes,
    prepare_python,
)
from benchmarks.page import main as write_page
from benchmarks.report import summarize, table
from benchmarks.sampling import Bench, Samples, collect


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_const", const="short", dest="size", help="about two minutes")
    size.add_argument("--smoke", action="store_const", const="smoke", dest="size", help="seconds: does it run at all?")
    names = ", ".join(case.name for case in CASES)
    parser.add_argument(
        "--case",
        action="append",
        metavar="NAME",
        help=f"only this, or those that fit 'fleet*'; may be repeated: {names}",
    )
    parser.add_argument(
        "--no-incumbent", action="store_true", help="ours and the floors, with the Python that runs this"
    )
    parser.add_argument("--source", type=Path, help="measure the pilothouse in this directory instead")
    parser.add_argument(
        "--output", type=Path, help="where the numbers go; those of a whole run: benchmarks/results.json"
    )
    parser.set_defaults(size="full")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; 1 if a subject of ours failed."""
    asked = _arguments(argv)
    size: Size = asked.size
    cases = _chosen(asked.case, size)
    if not cases:
        print(f"no case is called {' or '.join(asked.case)} in this size of run; see --help", file=sys.stderr)
        return 2
    python = prepare_python(with_incumbent=not asked.no_incumbent)
    fake, kind = build_fake_cli()
    before = _last_results()
    results: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="pilothouse-bench-") as scratch:
        bench = Bench(python, fake, Path(scratch), asked.source and asked.source.resolve())
        for case in cases:
            with SET_UPS[case.needs](bench) as (ready, problem):
                if problem:
                    left_out[case.name] = problem
                if ready is not None:
                    without = ({INCUMBENT} if asked.no_incumbent else set()) | ({FLOOR} if problem else set())
                    samples = _measure(ready, case, size, without)
                    results[case.name] = summarize(case, size, samples, before.get(case.name))
    print(table(cases, results, left_out))
    notes = {"size": size, "machine": machine_notes(python, kind), "left_out": left_out, "cases": results}
    if output := asked.output or _place_of(asked):
        output.write_text(json.dumps(notes, indent=2, ensure_ascii=False) + "\n")
        if not asked.no_incumbent:
            draw(python, "results", output)
        if output == HERE / "results.json":
            write_page([])
    return int(any(OURS in result["failed"] for result in results.values()))


def _last_results() -> dict[str, dict[str, Any]]:
    """The cases of the last whole run that was stored."""
    place = HERE / "results.json"
    return json.loads(place.read_text())["cases"] if place.exists() else {}


def _measure(bench: Bench, case: Case, size: Size, left_out: set[str]) -> Samples:
    print(f"{case.name}: ", end="", file=sys.stderr, flush=True)
    subjects = [subject for subject in case.subjects if subject not in left_out]
    samples = collect(bench, case, subjects, size, lambda: print(".", end="", file=sys.stderr, flush=True))
    print(file=sys.stderr)
    return samples


def _place_of(asked: argparse.Namespace) -> Path | None:
    """Where the numbers of a run belong by default: one that leaves something out replaces none that did not."""
    whole = asked.size == "full" and asked.case is None and asked.source is None and not asked.no_incumbent
    return HERE / "results.json" if whole else None


def _chosen(patterns: Sequence[str] | None, size: Size) -> list[Case]:
    wanted = ["*"] if patterns is None else patterns
    return [case for case in CASES if size in case.sizes and any(fnmatchcase(case.name, each) for each in wanted)]


Prepared = tuple[Bench | None, str]
"""What the samples of a case have in common, None where it cannot be measured; and what is missing, if anything."""


@contextmanager
def _nothing(bench: Bench) -> Generator[Prepared]:
    yield bench, ""


@contextmanager
def _real_cli(bench: Bench) -> Generator[Prepared]:
    cli = _managed_cli()
    if cli is None:
        yield None, "there is no managed CLI here"
        return
    from pilothouse_testing import ScriptedModel
    from pilothouse_testing.scripted_model import hermetic_environment

    with ScriptedModel(default="Hello.") as model:
        home = bench.scratch / "real"
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        hermetic = hermetic_environment(home, base_url=model.url)
        plain = clean_environment(home)
        extra = {name: value for name, value in hermetic.items() if name not in plain}
        yield replace(bench, extra={**extra, "BENCH_REAL": str(cli)}), ""


@contextmanager
def _ripgrep(bench: Bench) -> Generator[Prepared]:
    path = shutil.which("rg")
    if path is None:
        yield bench, "there is no floor, for ripgrep (rg) is not installed"
    else:
        yield replace(bench, extra={"BENCH_RG": path}), ""


SET_UPS: Mapping[Need | None, Callable[[Bench], AbstractContextManager[Prepared]]] = {
    None: _nothing,
    "cli": _real_cli,
    "ripgrep": _ripgrep,
}


def _managed_cli() -> Path | None:
    if not installed("uvicorn"):  # serves the scripted model
        return None
    try:
        from pilothouse.provision.pinned_files import managed_cli_path

        path = managed_cli_path()
    except Exception:
        return None
    return path if os.access(path, os.X_OK) else None


if __name__ == "__main__":
    sys.exit(main())
