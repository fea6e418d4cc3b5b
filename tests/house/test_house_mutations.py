"""The list of mutations fits the source: `make test-matrix` runs it, and what moved is noticed here."""

from __future__ import annotations

import shlex

from mutate import LIST, ROOT, read_mutations


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
            assert (ROOT / "tests" / file).is_file(), f"{mutation}: there is no {file}"
