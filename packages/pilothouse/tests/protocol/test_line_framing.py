"""Lines are the same however the bytes are cut; long ones cost no memory; the work is linear."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.protocol.control_frames import HEAD_BYTES
from pilothouse.protocol.frame_reader import LineFramer, OversizeLine


def frame(chunks: list[bytes], limit: int = 1 << 20) -> tuple[list[bytes], list[tuple[int, bytes]], bytes]:
    """All lines, all dropped lines, and the rest."""
    framer = LineFramer(limit)
    lines: list[bytes] = []
    dropped: list[tuple[int, bytes]] = []
    for chunk in chunks:
        lines += framer.feed(chunk)
        dropped += [(gap.size, gap.head) for gap in framer.oversize]
    rest = framer.flush()
    dropped += [(gap.size, gap.head) for gap in framer.oversize]
    return lines, dropped, rest


def best_time(work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(once() for _ in range(3))


@pytest.mark.requirement("E54", "R30", "L27")
def test_incomplete_lines_wait_for_their_end() -> None:
    framer = LineFramer()
    assert framer.feed(b'{"a"') == []
    assert framer.feed(b":1}") == []
    assert framer.feed(b'\n{"b":2}\n{"c"') == [b'{"a":1}\n', b'{"b":2}\n']
    assert framer.feed(b"\n\n") == [b'{"c"\n', b"\n"]
    assert framer.flush() == b""


def test_only_the_newline_byte_ends_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh"
    assert LineFramer().feed(text.encode() + b"\n") == [text.encode() + b"\n"]


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xe2\x80\xa8", b"{}", b"xyz" * 5]), max_size=30), st.data())
def test_cutting_changes_nothing(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    limit = data.draw(st.sampled_from([3, 10, 1000]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert frame(chunks, limit) == frame([whole], limit)
    assert frame([whole[i : i + 1] for i in range(len(whole))], limit) == frame([whole], limit)


@given(st.binary(max_size=200))
def test_nothing_is_lost_or_added(whole: bytes) -> None:
    lines, dropped, rest = frame([whole])
    assert dropped == []
    assert b"".join([*lines, rest]) == whole
    assert [line.removesuffix(b"\n") for line in [*lines, rest]] == whole.split(b"\n")


@pytest.mark.requirement("G31", "G32")
def test_a_line_over_the_limit_is_one_event_and_the_stream_goes_on() -> None:
    framer = LineFramer(10)
    assert framer.feed(b"1234567890\n12345678901\nafter\n") == [b"1234567890\n", b"after\n"]
    assert framer.oversize == [OversizeLine(1, 11, b"12345678901")]
    assert framer.feed(b"1234567890\n") == [b"1234567890\n"]
    assert framer.feed(b"12345678901\n") == []
    assert [(gap.size, gap.head) for gap in framer.oversize] == [(11, b"12345678901")]
    assert framer.feed(b"x" * 9) == []
    assert framer.oversize == []
    assert framer.feed(b"y" * 9) == []
    assert framer.feed(b"z\nok\n") == [b"ok\n"]
    assert framer.oversize == [OversizeLine(0, 19, b"x" * 9 + b"y" * 9 + b"z")]
    assert framer.feed(b"q" * 2000) == []
    assert framer.flush() == b""
    assert framer.oversize == [OversizeLine(0, 2000, b"q" * HEAD_BYTES)]
    assert framer.feed(b"fine\n") == [b"fine\n"]
    assert framer.feed(b"12345") + framer.feed(b"67890\n") == [b"1234567890\n"]  # the limit itself, in two pieces


@pytest.mark.requirement("G32")
def test_a_line_over_the_limit_needs_no_memory() -> None:
    framer = LineFramer(64 * 1024)
    tracemalloc.start()
    try:
        for _ in range(2500):
            framer.feed(bytes(4096))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024
    framer.feed(b"\n")
    assert [gap.size for gap in framer.oversize] == [2500 * 4096]


def test_tiny_chunks_of_a_long_line_do_not_cost_an_object_each() -> None:
    # Two byte chunks, because single bytes are shared objects. An object each would be about 20 MB.
    framer = LineFramer()
    line = b"ab" * 300_000
    tracemalloc.start()
    try:
        for i in range(0, len(line), 2):
            framer.feed(line[i : i + 2])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert framer.feed(b"\n") == [line + b"\n"]
    assert peak < 3 * len(line)


@pytest.mark.parametrize("chunk_bytes", [16, 4096, 65536])
def test_the_time_for_one_long_line_grows_linearly(chunk_bytes: int) -> None:
    def feed(count: int) -> None:
        framer = LineFramer(1 << 30)
        chunk = b"x" * chunk_bytes
        for _ in range(count):
            framer.feed(chunk)
        framer.feed(b"\n")

    count = {16: 40_000, 4096: 2_000, 65536: 128}[chunk_bytes]
    # Linear is 8, quadratic 64. Fresh memory for the longer line may cost more than its bytes; the square would cost
    # many seconds.
    assert best_time(lambda: feed(8 * count)) < 32 * best_time(lambda: feed(count)) + 0.5
