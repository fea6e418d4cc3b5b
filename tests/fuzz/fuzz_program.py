"""Fuzzes with atheris, guided by coverage: `make fuzz`, or

    python tests/fuzz/fuzz_program.py SECONDS [TARGET...]

Each target gets its share of the time, in a process of its own, since libFuzzer ends the process. What breaks a
promise is written to `.cache/fuzz/TARGET/`, with its traceback on the screen; once it is mended, the input belongs into
`corpus/TARGET/`. Ends with 1 if anything was found.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuzz_seeds import WORDS, seeds

HERE = Path(__file__).parent
FOUND = HERE.parents[1] / ".cache" / "fuzz"
TARGETS = ("connection", "decoder", "framing", "jsontext", "query", "xml")
HANG = 20  # seconds for one input
MEMORY = 1024  # MiB for a process
LONGEST = 32_768  # bytes of an input


def fuzz(target: str, seconds: int, corpus: Path) -> None:
    """In the process of one target: never returns."""
    atheris: Any = import_module("atheris")  # there is none for every platform

    logging.disable(logging.CRITICAL)  # each odd line is logged
    with atheris.instrument_imports(include=["pilothouse"]):
        import fuzz_targets
    fuzz_targets.shorten_waits()
    words = corpus.with_name("words")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS))
    flags = {"max_total_time": seconds, "timeout": HANG, "rss_limit_mb": MEMORY, "max_len": LONGEST, "dict": words}
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    quiet = {"artifact_prefix": f"{found}/", "verbosity": 1, "print_final_stats": 1}
    arguments = [f"-{name}={value}" for name, value in {**flags, **quiet}.items()]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], fuzz_targets.TARGETS[target])
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogatepass"))


def main(seconds: int, targets: tuple[str, ...]) -> int:
    if find_spec("atheris") is None:
        print("atheris is not here: there is none for this platform or this Python, or `fuzz` was not installed")
        return 2
    bad: list[str] = []
    for target in targets:
        with tempfile.TemporaryDirectory() as place:
            corpus = Path(place) / "corpus"
            corpus.mkdir()
            for number, seed in enumerate(seeds(target)):
                (corpus / f"seed{number}").write_bytes(seed)
            share = max(1, seconds // len(targets))
            command = [sys.executable, __file__, "--one", target, str(share), str(corpus)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            known = len(list(corpus.iterdir()))
        runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
        print(f"{target}: {runs} inputs in {share} s, {known} of them kept, ended with {done.returncode}", flush=True)
        if done.returncode:
            bad.append(target)
            print(done.stderr[-6000:], done.stdout[-4000:], sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        fuzz(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    raise SystemExit(main(int(sys.argv[1]), tuple(sys.argv[2:]) or TARGETS))
