"""The link as a state machine: whatever happens to the connections, each byte arrives once and in order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilothouse.errors import ProtocolError
from pilothouse_remote.link import WINDOW_BYTES, Link, ReceiveWindow, SendBuffer
from pilothouse_remote.messages import Ack, DataChunk, Ended, EndInput, Ping, Pong, Refused, decode_item, encode_item

SMALL = 64  # bytes of the window


class _Side:
    """One end: what it was given, what it handed on."""

    def __init__(self) -> None:
        self.link = Link(SendBuffer(window=SMALL), ReceiveWindow(window=SMALL), heartbeat_seconds=5.0)
        self.given = bytearray()
        self.waiting = bytearray()
        self.mark_delivered = bytearray()
        self.end_received: int | None = None
        self.wire: list[str | bytes] = []  # to the other side


class LinkMachine(RuleBasedStateMachine):
    """Two sides and the connection between them, which may be lost with any part of what is on it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.client, self.host = _Side(), _Side()
        self.sides = {"client": self.client, "host": self.host}
        self.is_up = False
        self.counter = 0

    def other(self, name: str) -> _Side:
        return self.host if name == "client" else self.client

    @rule(name=st.sampled_from(["client", "host"]), size=st.integers(1, 3 * SMALL))
    def append(self, name: str, size: int) -> None:
        side = self.sides[name]
        assume(not side.link.last_message)
        data = bytes((self.counter + n) % 251 for n in range(size))
        self.counter += size
        side.given += data
        side.link.send_buffer.append(data)

    @rule(name=st.sampled_from(["client", "host"]))
    def finish(self, name: str) -> None:
        side = self.sides[name]
        assume(not side.link.last_message)
        at = len(side.given)
        side.link.last_message = EndInput(at) if name == "client" else Ended(at, exit_code=0)

    @precondition(lambda self: not self.is_up)
    @rule()
    def connect(self) -> None:
        # As the transport does: what was not handed on is forgotten, and comes again.
        self.client.link.receive_window.rewind()
        self.client.waiting.clear()
        self.client.link.start_connection(self.host.link.receive_window.received, self.now)
        self.host.link.start_connection(self.client.link.receive_window.received, self.now)
        self.is_up = True

    @precondition(lambda self: self.is_up)
    @rule()
    def lose(self) -> None:
        for side in self.sides.values():
            side.wire.clear()
        self.is_up = False

    @precondition(lambda self: self.is_up)
    @rule(name=st.sampled_from(["client", "host"]), count=st.integers(1, 20))
    def speak(self, name: str, count: int) -> None:
        side = self.sides[name]
        for _ in range(count):
            if (item := side.link.next_item(self.now)) is None:
                return
            side.wire.append(encode_item(item))

    @precondition(lambda self: self.is_up)
    @rule(name=st.sampled_from(["client", "host"]), count=st.integers(1, 20))
    def listen(self, name: str, count: int) -> None:
        side, peer = self.sides[name], self.other(name)
        for message in peer.wire[:count]:
            match side.link.receive_item(decode_item(message), self.now):
                case DataChunk(offset=offset, data=data):
                    assert bytes(peer.given[offset : offset + len(data)]) == data
                    side.waiting += data
                case EndInput(at=at) | Ended(at=at):
                    side.end_received = at
                case _:
                    pass
        del peer.wire[:count]

    @rule(name=st.sampled_from(["client", "host"]), count=st.integers(1, 2 * SMALL))
    def mark_delivered(self, name: str, count: int) -> None:
        side = self.sides[name]
        data = bytes(side.waiting[:count])
        del side.waiting[:count]
        side.mark_delivered += data
        side.link.mark_delivered(len(data), self.now)

    @rule(seconds=st.floats(0.0, 4.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for name, side in self.sides.items():
            assert self.other(name).given.startswith(side.mark_delivered + side.waiting)

    @invariant()
    def memory_is_bounded(self) -> None:
        for side in self.sides.values():
            assert len(side.waiting) <= SMALL

    def teardown(self) -> None:
        """With a connection that stands, everything arrives."""
        for _ in range(4):
            if not self.is_up:
                self.connect()
        for round_trips in range(10_000):
            before = [len(side.mark_delivered) for side in self.sides.values()]
            for name in self.sides:
                self.speak(name, 20)
                self.listen(name, 100)
                self.mark_delivered(name, 2 * SMALL)
            self.now += 1.0
            done = [len(side.mark_delivered) for side in self.sides.values()]
            whole = all(self.other(name).mark_delivered == side.given for name, side in self.sides.items())
            if done == before and whole and round_trips > 2:
                break
        for name, side in self.sides.items():
            peer = self.other(name)
            assert peer.mark_delivered == side.given
            assert (peer.end_received == len(side.given)) == (side.link.last_message is not None)


LinkMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLinkMachine = pytest.mark.requirement("E84")(LinkMachine.TestCase)


def test_a_gap_is_refused() -> None:
    inbound = ReceiveWindow()
    inbound.accept(0, b"abc")
    with pytest.raises(ProtocolError, match="gap"):
        inbound.accept(4, b"x")


def test_more_than_the_window_is_refused() -> None:
    inbound = ReceiveWindow(window=10)
    inbound.accept(0, b"0123456789")
    with pytest.raises(ProtocolError, match="window"):
        inbound.accept(10, b"x")
    inbound.received = 10
    inbound.announce()
    assert inbound.accept(10, b"x") == b"x"


def test_data_after_the_end_is_refused() -> None:
    inbound = ReceiveWindow()
    inbound.set_end(3)
    inbound.accept(0, b"abc")
    assert inbound.is_complete
    with pytest.raises(ProtocolError, match="the stream ends at byte 3"):
        inbound.accept(3, b"d")
    with pytest.raises(ProtocolError, match="the end was 3"):
        inbound.set_end(2)


def test_more_than_was_sent_cannot_be_acknowledged() -> None:
    outbound = SendBuffer()
    outbound.append(b"abc")
    with pytest.raises(ProtocolError, match="acknowledged"):
        outbound.acknowledge(4)


def test_what_is_not_kept_cannot_be_resumed() -> None:
    outbound = SendBuffer()
    outbound.append(b"abcdef")
    outbound.next_chunk()
    outbound.acknowledge(4)
    for received in (3, 7):
        with pytest.raises(ProtocolError, match="continues at byte"):
            outbound.resume(received)
    outbound.resume(5)
    assert outbound.next_chunk() == DataChunk(5, b"f")


def test_memory_of_what_was_acknowledged_is_freed() -> None:
    outbound = SendBuffer()
    for n in range(100):
        outbound.append(b"x" * 1000)
        outbound.next_chunk()
        outbound.acknowledge((n + 1) * 1000)
    assert (len(outbound._unacknowledged), outbound.free_bytes) == (0, WINDOW_BYTES)


def test_a_chunk_may_span_many_small_pieces() -> None:
    outbound = SendBuffer()
    for n in range(1000):
        outbound.append(bytes([n % 256]) * 3)
    assert outbound.next_chunk() == DataChunk(0, b"".join(bytes([n % 256]) * 3 for n in range(1000)))
    assert outbound.next_chunk() is None


@pytest.mark.requirement("E84")
def test_a_silent_side_is_asked_and_then_lost() -> None:
    link = Link(heartbeat_seconds=10.0)
    link.start_connection(0, 0.0)
    assert link.next_item(9.9) is None
    assert link.next_deadline == 10.0
    assert link.next_item(10.0) == Ping(10.0)
    assert link.next_item(10.0) is None
    link.receive_item(Pong(10.0), 10.5)
    assert (link.round_trip, link.lost_at) == (0.5, 40.5)


def test_a_ping_is_answered_with_the_same_mark() -> None:
    link = Link()
    link.start_connection(0, 0.0)
    assert link.receive_item(Ping(12.5), 1.0) is None
    assert link.next_item(1.0) == Pong(12.5)


def test_little_is_acknowledged_after_a_second_and_much_at_once() -> None:
    link = Link(heartbeat_seconds=0)
    link.start_connection(0, 0.0)
    link.receive_item(DataChunk(0, b"abc"), 0.0)
    link.receive_window.keep_from = 2
    link.mark_delivered(3, 0.0)
    assert link.next_item(0.5) is None
    assert link.next_deadline == 1.0
    assert link.next_item(1.0) == Ack(3, 2)
    link.receive_item(DataChunk(3, b"x" * 70_000), 2.0)
    link.mark_delivered(70_000, 2.0)
    assert link.next_item(2.0) == Ack(70_003, 2)


def test_the_start_position_is_sent_without_data() -> None:
    link = Link(heartbeat_seconds=0)
    link.start_connection(0, 0.0)
    link.receive_window.keep_from = 7
    link.mark_delivered(0, 0.0)
    assert link.next_item(1.5) == Ack(0, 7)
    assert link.next_item(9.0) is None


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{}",
        "[]",
        '{"op":"nothing"}',
        '{"op":"ack"}',
        '{"op":"ack","received":-1}',
        '{"op":"ack","received":"1"}',
        '{"op":"start","version":1,"client":"c","invocation":{"argv":[1]}}',
        '{"op":"end_input","at":1e400}',
        "[" * 100_000,
        "\ud800",
        b"",
        b"1234567",
        b"12345678",
        "x" * 1_100_000,
        b"x" * 1_100_000,
    ],
)
def test_what_is_no_message_of_the_link_is_refused(message: str | bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_item(message)
    assert len(str(caught.value)) < 500


def test_messages_survive_the_wire() -> None:
    for item in (
        Refused("limit", "no"),
        Ack(5, None),
        DataChunk(2**60, b"\x00\n"),
        Ended(3, None, "SIGKILL", "x", "y"),
    ):
        assert decode_item(encode_item(item)) == item
