"""Runs pip for make, and shows what it is doing: in a terminal in one line, elsewhere a line every few seconds.

`python tests/run_pip.py install …`. Pip's own output appears only if it fails. Needs nothing that is installed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable

LINE_SECONDS = 5.0
"""Seconds between two lines where there is no terminal."""
MAX_CHARS = 78
FAILURE_LINES = 30
_STEPS = (
    ("Obtaining", "reading"),
    ("Collecting", "collecting"),
    ("Downloading", "downloading"),
    ("Building", "building"),
    ("Installing build dependencies", "preparing a build"),
    ("Installing collected packages:", "installing all of them"),
)


def describe_step(line: str) -> str | None:
    """Return what pip is doing in words, for a line of its output; None if the line says nothing new."""
    line = line.strip()
    for begin, words in _STEPS:
        if line.startswith(begin):
            rest = line.removeprefix(begin).split()
            name = rest[0].rpartition("/")[2] if rest and begin.isalpha() else ""
            return f"{words} {name}".rstrip()
    return None


def show_steps(lines: Iterable[str], *, is_terminal: bool) -> None:
    """Print the steps of pip as it takes them."""
    started = last = time.monotonic()
    packages, reading = 0, ""
    for line in lines:
        step = describe_step(line)
        packages += line.startswith(("Collecting", "Obtaining"))
        if line.startswith("Obtaining"):
            reading = line.partition(" (")[0].rpartition("/")[2].strip()
        elif step == "preparing a build":
            step = f"{step} of {reading}"
        now = time.monotonic()
        if step is None or not (is_terminal or now - last >= LINE_SECONDS):
            continue
        last = now
        text = f"  pip, {now - started:.0f} s, {packages} packages: {step}"[:MAX_CHARS]
        print(f"\r\x1b[K{text}" if is_terminal else text, end="" if is_terminal else "\n", flush=True)
    if is_terminal:
        print("\r\x1b[K", end="", flush=True)


def main(arguments: list[str]) -> int:
    """Run pip with these arguments, and return its exit code."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if arguments[:1] == ["install"]:
        command.append("--progress-bar=off")
    output: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        show_steps((output.append(line) or line for line in pip.stdout), is_terminal=sys.stdout.isatty())
    if pip.returncode:
        sys.stderr.write("".join(output[-FAILURE_LINES:]))
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
