"""Cut objects: what can go on is held, what cannot is let go, and nothing takes more than linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.protocol.partial_json import ObjectScanner, PartialObject, ScanResult

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


def verdicts(pieces: list[bytes]) -> list[ScanResult]:
    scanner = ObjectScanner()
    return [scanner.feed(piece) for piece in pieces]


@pytest.mark.requirement("G33", "G34")
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_every_prefix_of_an_object_is_open_and_the_whole_is_complete(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(errors="surrogatepass")
    byte_by_byte = verdicts([text[i : i + 1] for i in range(len(text))])
    assert byte_by_byte == [ScanResult.OPEN] * (len(text) - 1) + [ScanResult.COMPLETE]
    for cut in range(1, len(text)):
        assert verdicts([text[:cut], text[cut:]]) == [ScanResult.OPEN, ScanResult.COMPLETE]


@pytest.mark.parametrize(
    "text",
    [
        b"[1]", b"{this", b"{,", b"{1:2}", b'{"a" 1', b'{"a":1}}', b'{"a":1} x', b'{"a":1,}', b'{"a":[1,]}', b'{"a":]',
        b'{"a":[}', b'{"a":trux', b'{"a":01', b'{"a":--', b'{"a":1.e', b'{"a":.5', b'{"a":nulll', b'{"a":NaN',
        b'{"a":1 2', b'{"a":"\n', b'{"a":"\\\x01', b'{"a"::', b'{"a","b"', b'{"type":"assist{"type":"us',
        b'{"a":' + b"9" * 2000,
    ],
)  # fmt: skip
def test_what_cannot_become_an_object_is_invalid_at_once(text: bytes) -> None:
    assert verdicts([text]) == [ScanResult.INVALID]
    assert ScanResult.INVALID in verdicts([text[i : i + 1] for i in range(len(text))])


@given(st.binary(max_size=60), st.data())
def test_cutting_does_not_change_the_verdict(text: bytes, data: st.DataObject) -> None:
    text = b"{" + text
    cut = data.draw(st.integers(1, len(text)))
    scanner = ObjectScanner()
    first = scanner.feed(text[:cut])
    last = first if first is ScanResult.INVALID else scanner.feed(text[cut:])
    assert last is ObjectScanner().feed(text)


@given(st.text(alphabet='{}[]",:\\ 1-.eEtrufalsn', max_size=24))
def test_complete_means_that_a_json_reader_agrees(text: str) -> None:
    # Escapes are the one thing that is left to the decoder.
    if ObjectScanner().feed(text.encode()) is ScanResult.COMPLETE and "\\" not in text:
        assert isinstance(json.loads(text), dict)


def test_a_cut_object_is_joined_with_nothing_between() -> None:
    cut = PartialObject()
    assert cut.extend(b'{"type":"assist') is ScanResult.OPEN
    assert (cut.size, cut.head) == (15, b'{"type":"assist')
    assert cut.extend(b'ant"}') is ScanResult.COMPLETE
    assert cut.whole == b'{"type":"assistant"}'


def test_a_line_that_does_not_fit_is_not_held() -> None:
    cut = PartialObject()
    assert cut.extend(b'{"a":') is ScanResult.OPEN
    assert cut.extend(b"plain text") is ScanResult.INVALID
    assert cut.whole == b'{"a":'


@pytest.mark.parametrize("piece", [b'a\\"', b"}", b"\xf0\x9f"], ids=["escapes", "braces", "half characters"])
def test_an_object_in_very_many_pieces_takes_linear_time(piece: bytes) -> None:
    def best(count: int) -> float:
        def once() -> float:
            start = time.process_time()
            cut = PartialObject()
            cut.extend(b'{"a":"')
            for _ in range(count):
                assert cut.extend(piece) is ScanResult.OPEN
            return time.process_time() - start

        return min(once() for _ in range(3))

    # Linear is 8, quadratic 64.
    assert best(16_000) < 32 * best(2_000) + 0.01
