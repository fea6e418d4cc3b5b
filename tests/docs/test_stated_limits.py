"""No page and no message says that something cannot be done unless that is so."""

from __future__ import annotations

import ast

import pytest
import stated_limits
from places import list_tests
from stated_limits import MESSAGES_SAY, PAGES_SAY, limits_of_messages, limits_of_pages

PROOFS = [
    pytest.param(proof, id=f"{where}: {phrase}")
    for output in (PAGES_SAY, MESSAGES_SAY)
    for where, phrases in output.items()
    for phrase, proof in phrases.items()
]


@pytest.mark.parametrize(
    ("found", "known"),
    [(limits_of_pages, PAGES_SAY), (limits_of_messages, MESSAGES_SAY)],
    ids=["pages", "messages"],
)
def test_every_stated_limit_has_a_proof(found: object, known: dict[str, dict[str, str]]) -> None:
    reported = list(found())  # pyright: ignore[reportCallIssue]
    strange = [(name, text) for name, text in reported if not any(phrase in text for phrase in known.get(name, ()))]
    assert not strange, "prove it in stated_limits.toml, or say what is so"
    gone = [
        (name, phrase)
        for name, phrases in known.items()
        for phrase in phrases
        if not any(phrase in text for where, text in reported if where == name)
    ]
    assert not gone, "nobody says so any more: take it out of stated_limits.toml"


@pytest.mark.parametrize("proof", PROOFS)
def test_the_limit_is_real(proof: str) -> None:
    file, _, name = proof.partition("::")
    if file == "here":
        getattr(stated_limits, name)()
        return
    [path] = [path for path in list_tests() if path.match(file)]
    tree = ast.parse(path.read_text("utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
