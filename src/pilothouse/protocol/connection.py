"""The wire as a state machine: bytes in → messages and events out, calls in → bytes out.

Owns who may do what when, and which question belongs to which answer. Must not know I/O, time, tasks, or what any
control subtype means.

The life of a connection is the table `TRANSITIONS`::

    opening ──feed──► open ──end_input──► input_ended ──end_output──► ended

`opening`: the peer has not said anything yet. `input_ended`: nothing can be sent any more, the peer may still talk.
`ended`: its output is over; nothing is pending. A call that a state does not list raises `SessionClosedError`.

Two rules hold in every state: each question of the peer is answered at most once, and each request of ours leaves
`pending` exactly once: by its answer, by `withdraw`, or by `end_output`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from msgspec import Struct

from pilothouse.errors import MessageParseError, SessionClosedError
from pilothouse.messages import Message
from pilothouse.protocol.envelopes import (
    ENVELOPES,
    ControlCancelRequest,
    ControlRequest,
    ControlResponse,
    KeepAlive,
    Question,
    cancel_line,
    error_line,
    read_id,
    read_request,
    read_response,
    request_line,
    success_line,
    user_message,
)
from pilothouse.protocol.events import BadLine, EndOfOutput, Event, Inbound, Refusal, Reply, Stats, Withdrawn
from pilothouse.protocol.framing import DEFAULT_MAX_LINE_BYTES
from pilothouse.protocol.reader import FrameReader


class State(StrEnum):
    """Where a connection is in its life."""

    OPENING = "opening"
    OPEN = "open"
    INPUT_ENDED = "input_ended"
    ENDED = "ended"


class Call(StrEnum):
    """What can be done with a connection."""

    FEED = "feed"
    REQUEST = "request"
    WITHDRAW = "withdraw"
    ANSWER = "answer"
    REFUSE = "refuse"
    USER = "user"
    END_INPUT = "end_input"
    END_OUTPUT = "end_output"


def _row(here: State, *, moves: Mapping[Call, State], stays: tuple[Call, ...]) -> dict[Call, State]:
    # Late answers and withdrawals are no mistake: a callback cannot know that the peer is gone. They give b"".
    late = (Call.WITHDRAW, Call.ANSWER, Call.REFUSE)
    return {**dict.fromkeys((*late, *stays), here), **moves}


_ENDINGS: Final = {Call.END_INPUT: State.INPUT_ENDED, Call.END_OUTPUT: State.ENDED}
TRANSITIONS: Final[Mapping[State, Mapping[Call, State]]] = {
    State.OPENING: _row(State.OPENING, stays=(Call.REQUEST, Call.USER), moves={Call.FEED: State.OPEN, **_ENDINGS}),
    State.OPEN: _row(State.OPEN, stays=(Call.FEED, Call.REQUEST, Call.USER), moves=_ENDINGS),
    State.INPUT_ENDED: _row(State.INPUT_ENDED, stays=(Call.FEED,), moves=_ENDINGS),
    State.ENDED: _row(State.ENDED, stays=(Call.END_INPUT, Call.END_OUTPUT), moves={}),
}

_SENDING: Final = frozenset({State.OPENING, State.OPEN})
_REMEMBERED_QUESTIONS: Final = 1024
"""So many answered questions at least are remembered, so that one that is repeated is not handled twice."""


class Connection:
    """One conversation with one peer, without the pipes. (R9, R10, R30, R31, G17, G18, G30, G35)

    Args:
        max_line_bytes: longest line accepted, in bytes; default 64 MiB. Longer ones are dropped and reported.
        id_prefix: what the ids of our requests begin with. Ids are unique within a connection; give a prefix of its
            own to each connection when several talk to one peer.

    Attributes:
        events: what happened besides messages, oldest first; the caller takes them out.
        stats: counters.
    """

    def __init__(self, *, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES, id_prefix: str = "ph") -> None:
        self.events: deque[Event] = deque()
        self.stats = Stats()
        self._state = State.OPENING
        self._id_prefix = id_prefix
        self._next_id = 1
        self._pending: dict[str, str] = {}
        self._questions: dict[str, Question] = {}
        self._settled: set[str] = set()
        self._settled_before: set[str] = set()
        self._reader = FrameReader(
            ENVELOPES,
            max_line_bytes=max_line_bytes,
            on_envelope=self._on_envelope,
            events=self.events,
            stats=self.stats,
        )

    @property
    def state(self) -> State:
        """Where the connection is in its life."""
        return self._state

    @property
    def pending(self) -> Mapping[str, str]:
        """Our requests that wait for an answer: id to subtype, oldest first."""
        return MappingProxyType(self._pending)

    @property
    def open_questions(self) -> Mapping[str, str]:
        """The peer's questions that wait for an answer of ours: id to subtype, oldest first."""
        return {request_id: question.subtype for request_id, question in self._questions.items()}

    @property
    def noise(self) -> tuple[bytes, ...]:
        """The last odd lines, oldest first, clipped: what to show when the peer never came to speak. (L28)"""
        return tuple(self._reader.noise)

    @property
    def fragment(self) -> bytes:
        """The beginning of an object that broke off with its line and may still go on; b"" if there is none."""
        return self._reader.fragment

    # -- bytes in --------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes from the peer, cut anywhere. Nothing that they hold raises.

        Returns:
            The messages that are complete now, in order. Everything else is in `events`.

        Raises:
            SessionClosedError: the output has ended.
        """
        if self._state is not State.OPEN:
            self._step(Call.FEED)
        return self._reader.feed(data)

    def end_output(self) -> EndOfOutput:
        """The peer's output is over: take what its last line held and give up on what is pending.

        Nothing is pending and no question is open afterwards. A second call returns an empty `EndOfOutput`.
        """
        already_ended = self._state is State.ENDED
        self._step(Call.END_OUTPUT)
        if already_ended:
            return EndOfOutput()
        messages, fragment = self._reader.flush()
        unanswered = tuple(self._pending)
        self._pending.clear()
        self._questions.clear()
        return EndOfOutput(messages, unanswered, fragment)

    # -- bytes out -------------------------------------------------------------------------------------------------

    def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        """Ask the peer something. (R9)

        Args:
            subtype: what is asked, such as "initialize".
            body: the other fields of the request.

        Returns:
            The id under which the `Reply` or `Refusal` will come, and the bytes to send.

        Raises:
            UsageError: the body cannot be written as JSON; nothing is pending then.
            SessionClosedError: nothing can be sent any more.
        """
        self._step(Call.REQUEST)
        request_id = f"{self._id_prefix}_{self._next_id}"
        line = request_line(request_id, subtype, body)
        self._next_id += 1
        self._pending[request_id] = subtype
        return request_id, line

    def withdraw(self, request_id: str) -> bytes:
        """Stop waiting for the answer to one of our requests.

        Returns:
            Bytes that tell the peer; b"" if the request is not pending or nothing can be sent any more.
        """
        self._step(Call.WITHDRAW)
        if self._pending.pop(request_id, None) is None or self._state not in _SENDING:
            return b""
        return cancel_line(request_id)

    def answer(self, request_id: str, payload: object) -> bytes:
        """Answer a question of the peer.

        Args:
            request_id: the id of its `Inbound`.
            payload: the body of the answer.

        Returns:
            The bytes to send; b"" if the question was withdrawn or answered before, or nothing can be sent any more.

        Raises:
            UsageError: the payload cannot be written as JSON; the question is still open then, and can be refused.
        """
        return self._settle(Call.ANSWER, request_id, success_line, payload)

    def refuse(self, request_id: str, error: str, code: str | None = None) -> bytes:
        """Answer a question of the peer with an error. Arguments and result as in `answer`."""
        return self._settle(Call.REFUSE, request_id, error_line, error, code)

    def user(
        self,
        content: object,
        *,
        uuid: str | None,
        session_id: str = "",
        parent_tool_use_id: str | None = None,
        client_composed: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The bytes of a user message; arguments as in `user_message`. (G15)

        Raises:
            UsageError: it cannot be written as JSON.
            SessionClosedError: nothing can be sent any more.
        """
        self._step(Call.USER)
        return user_message(
            content,
            uuid=uuid,
            session_id=session_id,
            parent_tool_use_id=parent_tool_use_id,
            client_composed=client_composed,
            extra=extra,
        )

    def end_input(self) -> None:
        """Nothing will be sent any more. Idempotent."""
        self._step(Call.END_INPUT)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _step(self, call: Call) -> None:
        state = TRANSITIONS[self._state].get(call)
        if state is None:
            raise SessionClosedError(f"`{call}` came too late: the connection is in state `{self._state}`")
        self._state = state

    def _settle(self, call: Call, request_id: str, line_for: Callable[..., bytes], *said: object) -> bytes:
        self._step(call)
        question = self._questions.get(request_id)
        if question is None:
            return b""
        line = line_for(question.wire_id, *said) if self._state in _SENDING else b""
        self._close_question(request_id)
        return line

    def _close_question(self, request_id: str) -> None:
        del self._questions[request_id]
        self._settled.add(request_id)
        if len(self._settled) >= _REMEMBERED_QUESTIONS:
            self._settled_before, self._settled = self._settled, set()

    def _on_envelope(self, frame: Struct, line: bytes) -> None:
        self._ROUTES[type(frame)](self, frame, line)

    def _on_request(self, frame: ControlRequest, line: bytes) -> None:
        self.stats.control_frames += 1
        question = read_request(frame, line)
        if question is not None:
            self._open_question(question)
            return
        self.stats.bad_lines += 1
        data = {"type": "control_request", "request_id": frame.request_id, "request": frame.request}
        self.events.append(BadLine(MessageParseError("a control request without a usable request_id", data=data)))

    def _open_question(self, question: Question) -> None:
        request_id = question.request_id
        if request_id in self._questions or request_id in self._settled or request_id in self._settled_before:
            self.stats.repeated_questions += 1
            return
        self._questions[request_id] = question
        self.events.append(Inbound(request_id, question.subtype, question.body))

    def _on_response(self, frame: ControlResponse, line: bytes) -> None:
        self.stats.control_frames += 1
        answer = read_response(frame, line)
        subtype = None if answer is None else self._pending.pop(answer.request_id, None)
        if answer is None or subtype is None:
            # The CLI echoes our own answers when it replays user messages, so this is no fault.
            self.stats.unmatched_answers += 1
            return
        if answer.error is None:
            self.events.append(Reply(answer.request_id, subtype, answer.payload))
        else:
            self.events.append(Refusal(answer.request_id, subtype, answer.error, answer.code))
        for question in answer.questions:
            self._open_question(question)

    def _on_cancel(self, frame: ControlCancelRequest, line: bytes) -> None:
        self.stats.control_frames += 1
        request_id = read_id(frame.request_id)
        if request_id is None or request_id not in self._questions:
            self.stats.idle_withdrawals += 1
            return
        self._close_question(request_id)
        self.events.append(Withdrawn(request_id))

    def _on_keep_alive(self, frame: KeepAlive, line: bytes) -> None:
        self.stats.keep_alives += 1

    _ROUTES: ClassVar[Mapping[type[Struct], Callable[..., None]]] = {
        ControlRequest: _on_request,
        ControlResponse: _on_response,
        ControlCancelRequest: _on_cancel,
        KeepAlive: _on_keep_alive,
    }
