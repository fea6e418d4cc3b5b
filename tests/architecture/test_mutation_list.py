"""The list of mutations fits the source: `make test-matrix` runs it, and what moved is noticed here."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from mutate import LIST, ROOT, Copy, Mutation, read_mutations


def test_every_mutation_changes_a_line_that_is_there_once() -> None:
    mutations = read_mutations(LIST)
    assert len(set(mutations)) == len(mutations)
    for mutation in mutations:
        assert mutation.old != mutation.new
        assert mutation.new == "" or mutation.old.count("\n") == mutation.new.count("\n")


def test_every_mutation_names_tests_that_are_there() -> None:
    for mutation in read_mutations(LIST):
        files = [word.partition("::")[0] for word in shlex.split(mutation.tests) if ".py" in word]
        assert files, f"{mutation}: names no file of tests"
        for file in files:
            assert (ROOT / file).is_file(), f"{mutation}: there is no {file}"


@pytest.mark.parametrize("old", ["STOP_AFTER = 7", "import"], ids=["gone", "twice"])
def test_a_mutation_that_has_no_place_ends_the_run_and_is_named(old: str, tmp_path: Path) -> None:
    path = tmp_path / "mutations.toml"
    path.write_text(f'[[mutation]]\nfile = "pilothouse_fleet/limits.py"\nold = "{old}"\nnew = "x"\ntests = "none"\n')
    with pytest.raises(SystemExit, match=f"pilothouse_fleet/limits.py: {old} -> x: the old text is in the file"):
        read_mutations(path)


@pytest.mark.matrix
@pytest.mark.parametrize(("new", "code"), [("STOP_AFTER = 5", 1), ("STOP_AFTER  = 3", 0), ("STOP_AFTER = ", 2)])
def test_a_copy_sees_the_change_and_the_tree_does_not(new: str, code: int, tmp_path: Path) -> None:
    before = (ROOT / "packages/pilothouse-fleet/src/pilothouse_fleet/limits.py").read_bytes()
    tests = "packages/pilothouse-fleet/tests/test_circuit_breaker.py -k stops_the_fleet"
    mutation = Mutation("pilothouse_fleet/limits.py", "STOP_AFTER = 3", new, tests)
    copy = Copy(tmp_path)
    program = [copy.python, "-c", "import pilothouse; print(pilothouse.__file__)"]
    where = subprocess.run(program, env={}, cwd="/", capture_output=True, text=True, check=True).stdout
    assert Path(where).is_relative_to(tmp_path)
    assert copy.run_mutated(mutation, 1) in ({code} if code < 2 else {2, 4})
    assert (ROOT / "packages/pilothouse-fleet/src/pilothouse_fleet/limits.py").read_bytes() == before
    assert copy.run(mutation.tests) == 0
