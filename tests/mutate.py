"""Change one line of the source at a time, and see that the tests notice: `python -m tests.mutate [words]`.

`tests/mutations.toml` lists the mutations. Each has `file` (below the `src` of a package), `old` (text that the file
contains exactly once), `new`, and `tests` (arguments for pytest: files, node ids, `-k`). With words, the
program runs only the mutations whose file, text or tests contain one of the words.

The program changes nothing in this tree. Each worker has a copy of the tree in a temporary directory, and a virtual
environment that leads to the source of the copy: programs that tests start see the mutation too, whatever their
environment is. The tests have to pass without the mutation, and to fail with it (pytest ends with 1) or to wait for
something that never comes until their time is over; what does not is run once more, and marked `second` if it is as it
should be then. Anything else, such as an error of the import or of the collection, does not count.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.tree_copies import copy_tree

from pilothouse.provision.artifacts import cache_root

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutations.toml"
COPIED = (
    "packages", "tests", "docs", "benchmarks", "conftest.py", "pyproject.toml", "README.md", "CHANGELOG.md",
    "CONTRIBUTING.md", "Makefile", ".ci",
)  # fmt: skip
SECONDS = 120  # for the tests of one mutation
PASSED = frozenset({0})
NOTICED = frozenset({1, None})  # pytest's exit code of a failed test, or the time was over
UNCHANGED_SECONDS = 400  # for the unchanged tests of several
JOINED_FILES = 12  # whose unchanged tests run together
WORKERS = min(os.cpu_count() or 2, 3) + 1  # a third of the time, a test waits


class Mutation(NamedTuple):
    """One line of the list."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def source(self) -> Path:
        distribution = self.file.partition("/")[0].replace("_", "-")
        return Path("packages", distribution, "src", self.file)

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"


def read_mutations(path: Path, words: Iterable[str] = ()) -> list[Mutation]:
    """The list, or what of it contains one of the words. Ends the program when a text is not there exactly once."""
    found = [Mutation(**table) for table in tomllib.loads(path.read_text())["mutation"]]
    counts = [(mutation, (ROOT / mutation.source).read_text().count(mutation.old)) for mutation in found]
    wrong = [f"{mutation}: the old text is in the file {count} times" for mutation, count in counts if count != 1]
    if wrong:
        sys.exit("\n".join([*wrong, "each has to be there once"]))
    words = list(words)
    return [m for m in found if not words or any(word in "\n".join(m) for word in words)]


class Copy:
    """A copy of the tree with its own virtual environment."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.python = copy_tree(directory, COPIED, [path.name for path in (ROOT / "packages").iterdir()])
        bin_ = self.python.parent
        for script in Path(sys.executable).parent.iterdir():
            if script.name.startswith("pilothouse"):
                (bin_ / script.name).write_text(script.read_text().replace(sys.executable, str(self.python)))
                (bin_ / script.name).chmod(0o755)
            elif not (bin_ / script.name).exists() and script.is_file():
                (bin_ / script.name).symlink_to(script)

    def run(self, tests: str, seconds: float = SECONDS) -> int | None:
        """Run tests; returns pytest's exit code, or None when the time was over."""
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"--basetemp={self.root}-tmp",  # of two runs with one directory, each may clean up what the other looks at
            *shlex.split(tests),
        ]
        env = {"PILOTHOUSE_CACHE": str(cache_root()), **os.environ, "PILOTHOUSE_REQUIRE_CLI": "1"}
        env.pop("PYTHONPATH", None)
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # to compile all again takes half of the time of most runs
        with (self.root / "output").open("wb") as output:
            child = subprocess.Popen(
                command, cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            try:
                return child.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if child.returncode is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()

    def run_mutated(self, mutation: Mutation, number: int) -> int | None:
        """The same, with one line changed meanwhile."""
        path = self.root / mutation.source
        text, times = path.read_text(), path.stat()
        try:
            path.write_text(text.replace(mutation.old, mutation.new))
            os.utime(
                path, (number, number)
            )  # the bytecode of a change of equal length in the same second is not its own
            return self.run(mutation.tests)
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def join_tests(mutations: Iterable[Mutation]) -> list[str]:
    """What all mutations run, in few runs: to start pytest takes longer than most of the tests."""
    groups: dict[str, dict[str, set[str]]] = {}  # by marker and by file, what `-k` chooses of it
    for mutation in mutations:
        paths, chosen = shlex.split(mutation.tests), {"-m": "", "-k": ""}
        for option in chosen:
            if option in paths:
                at = paths.index(option)
                _, chosen[option] = paths[at : at + 2]
                del paths[at : at + 2]
        files = groups.setdefault(chosen["-m"], {})
        for path in paths:
            names = [
                *Path(path.partition("::")[0]).parts,
                *path.split("::")[1:],
            ]  # `-k` knows those of directories, too
            words = [*names, f"({chosen['-k']})"] if chosen["-k"] else names
            files.setdefault(path.partition("::")[0], set()).add(f"({' and '.join(words)})")
    joined: list[str] = []
    for marker, files in groups.items():
        names = sorted(files)
        for some in (names[n : n + JOINED_FILES] for n in range(0, len(names), JOINED_FILES)):
            expression = " or ".join(each for file in some for each in sorted(files[file]))
            joined.append(shlex.join([*some, "-k", expression, *(["-m", marker] if marker else [])]))
    return joined


def main(words: list[str]) -> int:
    """Run the mutations; returns the exit code, 1 when one was not noticed."""
    mutations = read_mutations(LIST, words)
    begun = time.monotonic()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory, ThreadPoolExecutor(WORKERS) as threads:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for n in range(WORKERS):
            copies.put(Copy(Path(directory).resolve() / str(n)))

        def report(what: str, wanted: frozenset[int | None], run: Callable[[Copy], int | None]) -> None:
            copy, start = copies.get(), time.monotonic()
            try:
                code = run(copy)
                is_second = code not in wanted  # a pause of the machine, or a test that does not always notice
                code = run(copy) if is_second else code
                word = "time over" if code is None else "second" if is_second else "ok"
                word = word if code in wanted else f"NOT ({code})"
                print(f"{time.monotonic() - start:5.1f} s  {word:9}  {what}", flush=True)
                if code not in wanted:
                    failed.append(what)
                    if wanted is PASSED:
                        print((copy.root / "output").read_text(errors="replace")[-3000:])
            finally:
                copies.put(copy)

        def check_unchanged(tests: str) -> None:
            report(f"unchanged: {tests.partition(' -k ')[0]}", PASSED, lambda copy: copy.run(tests, UNCHANGED_SECONDS))

        list(threads.map(check_unchanged, join_tests(mutations)))
        list(
            threads.map(
                lambda nm: report(str(nm[1]), NOTICED, lambda c: c.run_mutated(nm[1], nm[0])), enumerate(mutations, 1)
            )
        )
    print(f"{len(mutations)} mutations in {time.monotonic() - begun:.0f} s, not as they should be: {len(failed)}")
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
