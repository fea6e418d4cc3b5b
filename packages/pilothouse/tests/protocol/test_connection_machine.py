"""A state machine plays peer and engine against a connection, with the wire cut anywhere between them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pilothouse.protocol import (
    Connection,
    ErrorReceived,
    NonJsonLine,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
)


class Wire(RuleBasedStateMachine):
    """The model keeps what must be true; lines take effect in it when their last byte is delivered."""

    requests = Bundle("requests")
    questions = Bundle("questions")

    def __init__(self) -> None:
        super().__init__()
        self.connection = Connection()
        self.line_ends: deque[tuple[int, Callable[[], None]]] = deque()
        self.unsent = b""
        self.written = 0
        self.delivered = 0
        self.serial = 0
        self.pending: set[str] = set()
        self.open: set[str] = set()
        self.settled: set[str] = set()
        self.answers: dict[str, int] = {}
        self.expected_events: list[object] = []
        self.expected_messages: list[str] = []
        self.events: list[object] = []
        self.messages: list[str] = []

    # -- the peer writes -------------------------------------------------------------------------------------------

    def write(self, line: bytes, effect: Callable[[], None]) -> None:
        self.unsent += line + b"\n"
        self.written += len(line) + 1
        self.line_ends.append((self.written, effect))

    def frame(self, frame: dict[str, Any], effect: Callable[[], None]) -> None:
        self.write(json.dumps(frame).encode(), effect)

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def settle_request(self, request_id: str, event: object) -> None:
        if request_id in self.pending:
            self.pending.remove(request_id)
            self.expected_events.append(event)

    @rule(request_id=requests | st.just("stranger"), good=st.booleans(), flat=st.booleans())
    def peer_answers(self, request_id: str, good: bool, flat: bool) -> None:
        n = self.number()
        if good:
            event: object = ResponseReceived(request_id, "ask", {"n": n})
            response: dict[str, Any] = {"subtype": "success", "request_id": request_id, "response": {"n": n}}
            short: dict[str, Any] = {"request_id": request_id, "success": True, "n": n}
        else:
            event = ErrorReceived(request_id, "ask", f"no {n}")
            response = {"subtype": "error", "request_id": request_id, "error": f"no {n}"}
            short = {"request_id": request_id, "success": False, "error": f"no {n}"}
        body = short if flat else {"response": response}
        self.frame({"type": "control_response", **body}, lambda: self.settle_request(request_id, event))

    @rule(target=questions)
    def peer_asks(self) -> str:
        request_id = f"q{self.number()}"
        self.repeat(request_id)
        return request_id

    @rule(request_id=questions)
    def peer_asks_again(self, request_id: str) -> None:
        self.repeat(request_id)

    def repeat(self, request_id: str) -> None:
        def effect() -> None:
            if request_id not in self.open | self.settled:
                self.open.add(request_id)
                self.expected_events.append(RequestReceived(request_id, "can_use_tool", {"tool_name": "T"}))

        request = {"subtype": "can_use_tool", "tool_name": "T"}
        self.frame({"type": "control_request", "request_id": request_id, "request": request}, effect)

    @rule(request_id=questions)
    def peer_withdraws(self, request_id: str) -> None:
        def effect() -> None:
            if request_id in self.open:
                self.open.remove(request_id)
                self.settled.add(request_id)
                self.expected_events.append(RequestCancelled(request_id))

        self.frame({"type": "control_cancel_request", "request_id": request_id}, effect)

    @rule()
    def peer_speaks(self) -> None:
        uuid = f"m{self.number()}"
        event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "é\u2028"}}
        message = {"type": "stream_event", "uuid": uuid, "event": event}
        self.frame(message, lambda: self.expected_messages.append(uuid))

    @rule(line=st.sampled_from([b"Loading", b"\xff\x00", b"{oops"]))
    def peer_mumbles(self, line: bytes) -> None:
        self.write(line, lambda: self.expected_events.append(NonJsonLine(line)))

    # -- the engine acts -------------------------------------------------------------------------------------------

    def can_send(self) -> bool:
        return self.connection.can_send

    def ended(self) -> bool:
        return self.connection.is_output_ended

    @precondition(can_send)
    @rule(target=requests, count=st.integers(1, 3))
    def ask(self, count: int) -> Any:
        ids: list[str] = []
        for _ in range(count):
            request_id, line = self.connection.request("ask", {"x": 1})
            assert json.loads(line)["request_id"] == request_id
            assert request_id not in self.answers
            self.answers[request_id] = 0
            self.pending.add(request_id)
            ids.append(request_id)
        return multiple(*ids)

    @rule(request_id=consumes(requests))
    def withdraw(self, request_id: str) -> None:
        reported = self.connection.cancel_request(request_id)
        assert bool(reported) == (request_id in self.pending and self.can_send())
        self.pending.discard(request_id)

    @rule(request_id=questions | st.just("stranger"), good=st.booleans())
    def reply(self, request_id: str, good: bool) -> None:
        line = self.connection.respond(request_id, {}) if good else self.connection.respond_error(request_id, "no")
        assert bool(line) == (request_id in self.open and self.can_send())
        if line:
            self.answers[request_id] = self.answers.get(request_id, 0) + 1
        if request_id in self.open:
            self.open.remove(request_id)
            self.settled.add(request_id)

    @precondition(lambda self: bool(self.unsent) and not self.ended())
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(1, len(self.unsent)))
        chunk, self.unsent = self.unsent[:size], self.unsent[size:]
        self.delivered += size
        self.collect(self.connection.feed(chunk))

    def collect(self, messages: list[Any]) -> None:
        while self.line_ends and self.line_ends[0][0] <= self.delivered:
            self.line_ends.popleft()[1]()
        self.messages += [message.uuid for message in messages]
        self.events += self.connection.events
        self.connection.events.clear()

    @precondition(lambda self: not self.ended() and self.serial > 6)
    @rule()
    def end_input(self) -> None:
        self.connection.end_input()

    @precondition(lambda self: not self.ended() and self.serial > 12)
    @rule(terminated=st.booleans())
    def end_output(self, terminated: bool) -> None:
        rest = self.unsent if terminated else self.unsent[:-1]
        self.delivered = self.written
        messages = self.connection.feed(rest)
        end = self.connection.end_output()
        self.collect([*messages, *end.messages])
        assert set(end.unanswered) == self.pending
        assert end.fragment == b""
        self.unsent = b""
        self.pending.clear()
        self.settled |= self.open
        self.open.clear()

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_doubled_or_out_of_order(self) -> None:
        assert self.messages == self.expected_messages
        assert self.events == self.expected_events
        assert set(self.connection.pending) == self.pending
        assert set(self.connection.open_requests) == self.open
        assert max(self.answers.values(), default=0) <= 1


@pytest.mark.requirement("R9", "R10", "G17", "G30", "G35")
def test_the_books_of_a_connection_always_balance() -> None:
    run_state_machine_as_test(Wire, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
