"""Cut objects: what can go on is held, what cannot is let go, and nothing takes more than linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire_frames import drain

from pilothouse.protocol import Connection, InvalidFrame, NonJsonLine
from pilothouse.protocol.frame_reader import CHECKED_BYTES, CutObject

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


@pytest.mark.requirement("G33", "G34")
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
@example({"a}{": '}\\"{', "b": {}}, True, None)
def test_every_beginning_of_an_object_goes_on_until_it_is_whole(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(errors="surrogatepass")
    cut = CutObject(text[:1])
    for at in range(1, len(text)):
        piece = text[at : at + 1]
        assert cut.accepts(piece), text[: at + 1]
        assert cut.add(piece) == (at == len(text) - 1)
    assert cut.text == text


@pytest.mark.parametrize(
    "line",
    [
        b"{this", b"{,", b"{1:2}", b'{"a" 1', b'{"a":1}}', b'{"a":1} x', b'{"a":1,}', b'{"a":[1,]}', b'{"a":]',
        b'{"a":[}', b'{"a":trux', b'{"a":01', b'{"a":.5', b'{"a":nulll', b'{"a":1 2', b'{"a":"\x01', b'{"a"::',
        b'{"a","b"', b'{"type":"assist{"type":"us',
    ],
)  # fmt: skip
def test_what_cannot_become_an_object_is_not_held(line: bytes) -> None:
    connection = Connection()
    assert connection.feed(line + b"\n") == []
    assert drain(connection) == [NonJsonLine(line)]
    connection.feed(line[:1] + b"\n")
    connection.feed(line[1:] + b"\n")
    assert connection.fragment == b""


def test_a_line_that_does_not_fit_is_not_held() -> None:
    assert not CutObject(b'{"a":').accepts(b"plain text")


def test_a_long_object_takes_any_line_until_a_whole_frame_comes() -> None:
    connection = Connection()
    start = b'{"type":"x","text":"' + b"y" * CHECKED_BYTES + b'",'
    assert connection.feed(start + b"\nplain text\n" + b'{"type":"done"}\n') != []
    (bad,) = drain(connection)
    assert isinstance(bad, InvalidFrame)
    assert f"after {len(start) + 10} bytes" in str(bad.error)


@pytest.mark.parametrize("piece", [b'a\\"', b"}", b"\xf0\x9f"], ids=["escapes", "braces", "half characters"])
def test_an_object_in_very_many_pieces_takes_linear_time(piece: bytes) -> None:
    def best(count: int) -> float:
        def once() -> float:
            start = time.process_time()
            cut = CutObject(b'{"a":"')
            for _ in range(count):
                assert cut.accepts(piece)
                assert not cut.add(piece)
            return time.process_time() - start

        return min(once() for _ in range(3))

    # Linear is 8, quadratic 64.
    assert best(64_000) < 32 * best(8_000) + 0.01
