"""The pages of the site, as they are made from those of the repository. `make check` builds all of it."""

from __future__ import annotations

import re

import pytest
from api_text import make_api_text
from build_site import PARTS, link_pages, make_tabs, requests_elsewhere, stop_motion
from docstrings import fence_examples
from markdown_pages import ROOT
from recordings import read_last_frame


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("README.md", "[Hooks](docs/hooks.md#gates)", "[Hooks](hooks.md#gates)"),
        ("README.md", "![Map](docs/architecture.svg)", "![Map](architecture.svg)"),
        ("README.md", "[Changes](CHANGELOG.md)", "[Changes](changelog.md)"),
        ("README.md", "[how](https://example.org/docs/x.md)", "[how](https://example.org/docs/x.md)"),
        ("README.md", "[programs](docs/programs)", "programs"),
        ("docs/speed.md", "[how](../benchmarks/README.md)", "[how](benchmarks.md)"),
        ("docs/tutorial/01.md", "[Hooks](../hooks.md)", "[Hooks](../hooks.md)"),
        ("docs/hooks.md", "[the tests](../tests/hooks/test_x.py)", "the tests"),
        ("docs/hooks.md", "[below](#below)", "[below](#below)"),
        ("docs/hooks.md", "```python no-run\nx\n```", "```python\nx\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(place: str, text: str, expected: str) -> None:
    assert link_pages(text, place) == expected


def test_blocks_below_their_names_become_tabs() -> None:
    blocks = "**One**\n\n```python\n1\n```\n\n**Two**\n\n```bash\n2\n```\n"
    made = make_tabs(f"Before\n\n<!-- tabs -->\n{blocks}\n<!-- end of tabs -->\nafter")
    assert re.findall(r"^/// tab \| (.*)$", made, re.MULTILINE) == ["One", "Two"]
    assert made.count("\n///\n") == 2
    assert (made.startswith("Before\n\n///"), made.endswith("\nafter")) == (True, True)
    assert make_tabs(blocks) == blocks


def test_a_reader_sees_a_dozen_entries_at_once() -> None:
    for groups in PARTS.values():
        assert len(groups.get("", ())) + len(groups) <= 12
        assert all(len(pages) <= 12 for pages in groups.values())


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


def test_a_recording_without_motion_shows_its_last_frame() -> None:
    recording = (ROOT / "docs" / "terminal-first.svg").read_text("utf-8")
    assert "animation" in recording
    still = stop_motion(recording)
    assert "animation" not in still
    assert read_last_frame(still) == read_last_frame(recording)


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ('<script src="https://unpkg.com/x.js">', True),
        ("<script defer src='//unpkg.com/x.js'>", True),
        ("<img alt=x src=https://img.shields.io/x.svg>", True),
        ('<link rel="stylesheet" href="https://fonts.googleapis.com/css">', True),
        ('<iframe src="https://example.com">', True),
        ('<source srcset="https://example.com/a.png">', True),
        ('@import "https://fonts.googleapis.com/css";', True),
        ("a { background: url(//example.com/a.png) }", True),
        ('<a class="x" href="https://example.com">', False),
        ('<svg xmlns="http://www.w3.org/2000/svg"><path d="M1 1">', False),
        ('<script src="assets/search.js">', False),
    ],
)
def test_what_a_page_requests_from_elsewhere_is_seen(text: str, does: bool) -> None:
    assert requests_elsewhere(text) is does


def test_no_page_has_two_places() -> None:
    places = [place for groups in PARTS.values() for pages in groups.values() for place in pages]
    assert len(places) == len(set(places))
