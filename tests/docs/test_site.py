"""The pages of the site, as they are made from those of the repository. `make check` builds all of it."""

from __future__ import annotations

import hashlib

import pytest
from api_text import make_api_text
from build_site import PARTS, link_pages
from docstrings import fence_examples
from markdown_pages import ROOT


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("README.md", "[Hooks](docs/hooks.md#gates)", "[Hooks](hooks.md#gates)"),
        ("README.md", "![Map](docs/architecture.svg)", "![Map](architecture.svg)"),
        ("README.md", "[Changes](CHANGELOG.md)", "[Changes](changelog.md)"),
        ("README.md", "[how](https://example.org/docs/x.md)", "[how](https://example.org/docs/x.md)"),
        ("README.md", "[programs](docs/programs)", "programs"),
        ("docs/speed.md", "[how](../benchmarks/README.md)", "[how](benchmarks/README.md)"),
        ("docs/tutorial/01.md", "[Hooks](../hooks.md)", "[Hooks](../hooks.md)"),
        ("docs/hooks.md", "[the tests](../tests/hooks/test_x.py)", "the tests"),
        ("docs/hooks.md", "[below](#below)", "[below](#below)"),
        ("docs/hooks.md", "```python no-run\nx\n```", "```python\nx\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(place: str, text: str, expected: str) -> None:
    assert link_pages(text, place) == expected


def test_the_api_as_text() -> None:
    text = make_api_text("pilothouse", ["Deny", "Agent", "query"])
    assert text.startswith("# pilothouse\n\n## Deny\n\n```python\nDeny(")
    assert "## query\n\n```python\nquery(prompt" in text
    [line] = [line for line in text.splitlines() if line.startswith("- `.with_options(")]
    assert line.endswith(".")
    assert "`._" not in text


def test_examples_of_docstrings_become_code() -> None:
    text = "Ask. ::\n\n    await ask()\n\n    again()\n\nArgs:\n    x: y."
    assert fence_examples(text) == "Ask.\n\n```python\nawait ask()\n\nagain()\n```\n\nArgs:\n    x: y."
    assert fence_examples("Add.\n\n>>> 1 + 1\n2").endswith("```pycon\n>>> 1 + 1\n2\n```")


def test_the_vendored_script_is_the_published_one() -> None:
    head, _, code = (ROOT / "docs/assets/iframe-worker.js").read_bytes().partition(b" */\n")
    assert hashlib.sha256(code).hexdigest() in head.decode()


def test_no_page_has_two_places() -> None:
    places = [place for pages in PARTS.values() for place in pages]
    assert len(places) == len(set(places))
