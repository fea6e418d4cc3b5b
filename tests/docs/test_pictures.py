"""The pictures are those that the programs make; the recordings show what the command shows today."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from diagrams import CHILD, CHILD_ARROWS, EDITOR_ARROWS, EDITORS, HOST_ARROWS, HOSTS, Arrow, Box, make_pictures
from recordings import DOCS, RECORDINGS, Run, draw, read_last_frame, record

from pilothouse_cli.demo import PLACE_NAMES

STALE = "stale: python -m docs.recordings"


def test_diagrams_are_up_to_date() -> None:
    for name, picture in make_pictures().items():
        assert (DOCS / name).read_text("utf-8") == picture, "stale: python docs/diagrams.py"


@pytest.mark.parametrize(("boxes", "arrows"), [(CHILD, CHILD_ARROWS), (HOSTS, HOST_ARROWS), (EDITORS, EDITOR_ARROWS)])
def test_boxes_do_not_overlap_and_hold_their_texts(boxes: dict[str, Box], arrows: Sequence[Arrow]) -> None:
    assert {name for arrow in arrows for name in (arrow.start, arrow.end)} == set(boxes)
    for box in boxes.values():
        assert all(len(line) * 6.5 < box.width for line in box.lines), box
        for other in boxes.values():
            apart = box.x + box.width < other.x or box.y + box.height < other.y
            assert box is other or apart or other.x + other.width < box.x or other.y + other.height < box.y


def test_a_recording_shows_its_frames_one_after_the_other() -> None:
    first, second = (Run(0, "$ <ask>", "#fff", False, False),), (Run(2, "4.2 s", "#fff", True, False),)
    picture = draw("ask & answer", [([first], 1.0), ([first, second], 3.0)])
    assert read_last_frame(picture) == ["$ <ask>", "0 s"]
    assert "k0{0.00%{visibility:visible}25.00%{visibility:hidden}}" in picture
    assert "k1{0%{visibility:hidden}25.00%{visibility:visible}}" in picture
    assert picture.count("&lt;ask&gt;") == 1  # a line stands once
    assert not re.search(r"(href|src)=\"(?!#)|@import|url\(", picture)  # nothing from elsewhere, no script
    assert "<script" not in picture


@pytest.mark.real_cli
@pytest.mark.parametrize("name", [pytest.param("demo", marks=pytest.mark.matrix), *sorted(set(RECORDINGS) - {"demo"})])
def test_a_recording_is_up_to_date(name: str, real_cli: str) -> None:
    def read(picture: str) -> str:
        """The last characters, without blanks: lines break elsewhere when the demo chooses a longer name."""
        return re.sub("|".join(PLACE_NAMES).replace(" ", ""), "A", "".join("".join(read_last_frame(picture)).split()))[
            -600:
        ]

    assert read(record(name, real_cli)) == read((DOCS / f"terminal-{name}.svg").read_text("utf-8")), STALE
