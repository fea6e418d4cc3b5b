"""A recorded connection as a state machine: the program's messages go in, the CLI's output comes out.

Owns the order: output recorded before a message of the program is emitted without waiting for the message; output
recorded after it is emitted once the message has come. Pure: no I/O, no clock. `comparison` decides whether two frames
mean the same.

Steps are taken from the recording in order. A step that expects a message of the program is a gate: it opens when an
equivalent frame has come. Frames may come early, and responses to simultaneous requests in any order. So each frame
is searched in its lane: one for prompts, one per subtype of control requests, one per request for responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from pilothouse.errors import ReplayMismatch
from pilothouse.messages.json_lines import encode_json
from pilothouse.transports.base import Ending
from pilothouse.transports.cassettes.comparison import (
    ANSWER,
    ASK,
    REQUEST,
    Lane,
    Numbering,
    lane_of,
    same_arguments,
    to_text,
    with_request_ids,
)
from pilothouse.transports.cassettes.form import Cassette, Entry, Recorded, frame_of

PROMPTS: Final[Lane] = ("user", "")
# Sent or not, and when, depending on timing: on how soon a response came.
OPTIONAL: Final = frozenset({"control_cancel_request"})
END_OF_INPUT: Final[Lane] = ("end of input", "")
_WORDS: Final = {
    "user": "a prompt",
    ASK: "the control request {!r}",
    ANSWER: "the answer to the question {!r}",
    "end of input": "the end of the input",
    "line": "a line",
}


class Say(Struct, frozen=True):
    """A line that the CLI outputs or, with `to="err"`, writes to standard error."""

    data: bytes
    time: float
    to: Literal["out", "err"] = "out"
    answers: str | None = None
    """The recorded id of the request that this line responds to."""
    ends_turn: bool = False


class Gate:
    """An action of the program that must be repeated."""

    __slots__ = ("frame", "index", "is_skipped", "lane", "line", "time", "was_sent")

    def __init__(self, index: int, lane: Lane, frame: Any, time: float, line: int) -> None:
        self.index = index
        self.lane = lane
        self.frame = frame
        self.time = time
        self.line = line
        self.was_sent = False
        self.is_skipped = False

    @property
    def is_open(self) -> bool:
        """Whether the steps after this gate may be taken."""
        return self.was_sent or self.is_skipped


class EndOfOutput(Struct, frozen=True):
    """The end of the CLI's output."""

    time: float


Step: TypeAlias = Say | Gate | EndOfOutput


class Playback:
    """Replays one connection.

    Args:
        cassette: where it is from, for messages.
        recorded: the connection.
        strict: whether messages of the program must mean what was recorded. False: only their kind counts, and
            missing or additional messages are ignored where the recording can continue.
        ignore: names of fields that are not compared.
        here: present directories → recorded ones.
        hide: removes keys from a line.
    """

    def __init__(
        self,
        cassette: Cassette,
        recorded: Recorded,
        *,
        strict: bool = True,
        ignore: Iterable[str] = (),
        here: Mapping[str, str] | None = None,
        hide: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._cassette = cassette
        self._recorded = recorded
        self._strict = strict
        self._hide = hide
        self._numbering = Numbering(ignore, here)
        self._expected: dict[Lane, list[Gate]] = {}
        self._questions: set[str] = set()
        self._requests: set[str] = set()  # ids of the program's requests in the recording
        self._answers: dict[str, list[Say]] = {}  # recorded responses that were passed before their requests
        self._ready: deque[Say] = deque()
        self._steps: list[Step] = []
        self._at = 0
        self._read(recorded)
        self.busy = False
        """Whether the CLI is processing a prompt."""
        self.passed = 0.0
        """The recorded time of the last gate that was passed."""
        self.input_ended = False
        self.output_ended = False

    # Reading the recording.

    def _read(self, recorded: Recorded) -> None:
        entries = recorded.entries
        sent = [e for e in entries if e.direction == "in"]
        if not sent and any(self._ends_turn(e.frame) for e in entries if e.direction == "out"):
            # The prompt was an argument: it may come through stdin now.
            self._steps.append(self._gate(PROMPTS, None, Entry(0.0, "in", b"", entries[0].line)))
        readers = {
            "in": self._read_sent,
            "out": self._read_said,
            "err": self._read_complaint,
            "meta": self._read_event,
        }
        for entry in entries:
            self._steps.extend(readers[entry.direction](entry))

    def _gate(self, lane: Lane, frame: Any, entry: Entry) -> Gate:
        gate = Gate(len(self._steps), lane, frame, entry.time, entry.line)
        self._expected.setdefault(lane, []).append(gate)
        return gate

    def _read_sent(self, entry: Entry) -> list[Step]:
        frame = entry.frame
        if frame is None:  # a lenient replay does not expect lines that were not frames
            return [self._gate(("line", ""), entry.data, entry)] if self._strict else []
        lane = lane_of(frame)
        if lane[0] == ASK:
            self._requests.add(to_text(frame.get(REQUEST)))
        return [] if lane[0] in OPTIONAL else [self._gate(lane, frame, entry)]

    def _read_said(self, entry: Entry) -> list[Step]:
        frame = entry.frame or {}
        kind, name = lane_of(frame)
        if kind == ASK:
            self._questions.add(to_text(frame.get(REQUEST)))
        return [Say(entry.data, entry.time, "out", name if kind == ANSWER else None, self._ends_turn(frame))]

    def _read_complaint(self, entry: Entry) -> list[Step]:
        return [Say(entry.data.rstrip(b"\n") + b"\n", entry.time, "err")]

    def _read_event(self, entry: Entry) -> list[Step]:
        event = entry.event.get("event")
        if event == "stdin_eof":
            return [self._gate(END_OF_INPUT, None, entry)]
        return [EndOfOutput(entry.time)] if event == "stdout_eof" else []

    @staticmethod
    def _ends_turn(frame: Mapping[str, Any] | None) -> bool:
        return bool(frame) and frame.get("type") == "result"

    # Actions of the program.

    def begin(self, args: Iterable[str], *, handshake: bool) -> None:
        """Check how the program starts the CLI.

        Raises:
            ReplayMismatch: the CLI was started differently in the recording.
        """
        now = tuple(args)
        same = same_arguments(self._numbering, self._recorded.args, now)
        if self._strict and not same and self._cassette.version:
            old = "\n".join(self._recorded.args)
            raise self._mismatch(
                "the peer is started with other arguments than it was",
                self._recorded.entries[0].line,
                self._numbering.difference(old, "\n".join(now)),
            )
        if not handshake:  # the prompt is in the arguments
            for lane in (PROMPTS, (ASK, "initialize")):
                for gate in self._expected.get(lane, ())[:1]:
                    gate.was_sent = True

    def send(self, line: bytes) -> None:
        """Match a line that the program sends.

        Raises:
            ReplayMismatch: the line differs from the recording.
        """
        shown = self._hide(line.removesuffix(b"\n"))
        frame = frame_of(shown)
        lane = ("line", "") if frame is None else lane_of(frame)
        value: Any = shown + (b"\n" if line.endswith(b"\n") else b"") if frame is None else frame
        gates = self._expected.get(lane, ())
        # A skipped request may come late: the program waits for its response.
        awaited = [gate for gate in gates if not (gate.was_sent if lane[0] == ASK else gate.is_open)]
        gate = self._match(lane, value, awaited)
        if gate is None:
            self._unexpected(lane, value)
            return
        gate.was_sent = True
        if frame is not None and lane[0] == ASK:
            self._ask(to_text(gate.frame.get(REQUEST)), to_text(frame.get(REQUEST)))
        if not self._strict and lane == PROMPTS:
            for step in self._steps[self._at : gate.index]:
                if isinstance(step, Gate):
                    step.is_skipped = True

    def _ask(self, recorded: str, live: str) -> None:
        self._numbering.bind_request(recorded, live)
        for say in self._answers.pop(recorded, ()):
            self._ready.append(Say(self._answer(say), say.time))

    def _match(self, lane: Lane, value: Any, gates: list[Gate]) -> Gate | None:
        if not gates:
            return None
        # Prompts are matched in order; other messages may have overtaken each other.
        candidates = gates[:1] if lane == PROMPTS else gates
        for gate in candidates:
            if gate.frame is None or self._numbering.accept(_bare(gate.frame), _bare(value)):
                return gate
        first = gates[0]
        if self._strict:
            words = f"the program sends {_named(lane)} that differs from the recorded one"
            raise self._mismatch(words, first.line, self._numbering.difference(_bare(first.frame), _bare(value)))
        self._numbering.align(_bare(first.frame), _bare(value))
        return first

    def _unexpected(self, lane: Lane, value: Any) -> None:
        kind, name = lane
        if kind in OPTIONAL or (kind == ANSWER and name in self._questions):
            return  # timing again: the request was cancelled, or the recording ended, before the response
        if not self._strict and kind != "user":
            if kind == ASK:
                self._ready.append(_refusal(name, to_text(value.get(REQUEST))))
            return
        gates = self._expected.get(lane, ())
        count = f"; the recording has {len(gates)} of its kind" if gates else ""
        words = f"the program sends {_named(lane)}, which was not recorded{count}"
        raise self._mismatch(words, None, self._numbering.difference("", _bare(value)))

    def end_input(self) -> None:
        """Record that the program has ended the input."""
        self.input_ended = True
        for gate in self._expected.get(END_OF_INPUT, ()):
            gate.was_sent = True

    def give_up(self) -> None:
        """Stop waiting for the message that the next gate expects.

        Raises:
            ReplayMismatch: that message is needed.
        """
        gate = self.waits_for
        if gate is not None and not self._strict:
            gate.is_skipped = True
            return
        if gate is None:
            last = self._recorded.entries[-1].line
            cut = "it was cut off by a crash" if self._cassette.cut else "there the program had left"
            raise self._mismatch(f"the recording ends here, in the middle of a turn: {cut}", last, "")
        words = f"the recording goes on with {_named(gate.lane)} from the program, and none comes"
        raise self._mismatch(words, gate.line, self._numbering.difference(_bare(gate.frame), ""))

    # Actions of the CLI.

    @property
    def waits_for(self) -> Gate | None:
        """The gate that blocks the replay; None if there is none."""
        step = self._steps[self._at] if self._at < len(self._steps) else None
        return step if isinstance(step, Gate) and not step.is_open else None

    @property
    def waits_for_answer(self) -> bool:
        """Whether the CLI has sent a request, so that a callback of the program is running."""
        gate = self.waits_for
        return gate is not None and gate.lane[0] == ANSWER

    def next(self) -> Say | EndOfOutput | None:
        """Return the next step of the CLI; None while it waits. `done` takes the step.

        Raises:
            ReplayMismatch: the program has ended the input during a turn that continued in the recording.
        """
        if self._ready:
            return self._ready[0]
        while self._at < len(self._steps):
            step = self._steps[self._at]
            if isinstance(step, Gate):
                if not step.is_open and not self._leave_out(step):
                    return EndOfOutput(step.time) if self.input_ended else None
                self.passed = step.time
                self.busy = self.busy or step.lane == PROMPTS
            elif isinstance(step, EndOfOutput) or not self._is_unasked(step):
                return step
            self._at += 1
        return EndOfOutput(self.passed) if self.input_ended else None

    def _leave_out(self, gate: Gate) -> bool:
        """Return whether to skip this gate because the input has ended."""
        if not self.input_ended or not self.busy:
            return False
        if self._strict:
            words = f"the program ends the input, but the recording goes on with {_named(gate.lane)} from it"
            raise self._mismatch(words, gate.line, self._numbering.difference(_bare(gate.frame), ""))
        gate.is_skipped = gate.lane != PROMPTS
        return gate.is_skipped

    def done(self, step: Say | EndOfOutput) -> bytes:
        """Take the step that `next` returned. Returns the bytes to output, with the present ids."""
        if self._ready and step is self._ready[0]:
            return self._ready.popleft().data
        self._at += 1
        if isinstance(step, EndOfOutput):
            self.output_ended = True
            return b""
        if step.ends_turn:
            self.busy = False
        if step.answers is not None:
            return self._answer(step)
        return step.data if step.to == "err" else self._numbering.renumbered(step.data)

    def _is_unasked(self, step: Say) -> bool:
        """Return whether the step responds to a request not sent yet; such a response is kept for later."""
        if step.answers not in self._requests or self._numbering.live(step.answers) is not None:
            return False
        self._answers.setdefault(step.answers, []).append(step)
        return True

    def _answer(self, step: Say) -> bytes:
        live = self._numbering.live(step.answers or "")
        if live is None:
            return step.data
        frame = with_request_ids(frame_of(step.data), {step.answers or "": live})
        return self._numbering.renumbered(encode_json(frame)) + b"\n"

    def ending(self) -> tuple[Ending, list[bytes]]:
        """Return how the CLI ended, and the rest of its standard error."""
        rest = [step.data for step in self._steps[self._at :] if isinstance(step, Say) and step.to == "err"]
        ending = self._recorded.ending()
        if self._cassette.cut and not ending.detail:
            ending = Ending(ending.exit_code, ending.signal, detail="the recording was cut off here, by a crash")
        return ending, rest

    @property
    def has_exited(self) -> bool:
        """Whether the CLI has exited."""
        ending = self._recorded.ending()
        return self.output_ended and (ending.exit_code is not None or ending.signal is not None)

    def missing(self) -> Gate | None:
        """Return the first recorded message that the program has not sent."""
        gates = (step for step in self._steps if isinstance(step, Gate) and step.lane != END_OF_INPUT)
        return next((gate for gate in gates if not gate.is_open), None)

    def check_complete(self) -> None:
        """Check that the program sent everything that was recorded.

        Raises:
            ReplayMismatch: it sent less.
        """
        gate = self.missing()
        if gate is not None and self._strict:
            words = f"the program has ended, but the recording goes on with {_named(gate.lane)} from it"
            raise self._mismatch(words, gate.line, self._numbering.difference(_bare(gate.frame), ""))

    def _mismatch(self, words: str, line: int | None, diff: str) -> ReplayMismatch:
        return mismatch(self._cassette, words, line, diff)


def mismatch(cassette: Cassette, words: str, line: int | None = None, diff: str = "") -> ReplayMismatch:
    """Build the error, with advice."""
    place = cassette.path if line is None else f"{cassette.path}, line {line}"
    advice = "change the program back, or record again"
    text = f"{place}: {words}; {advice}" + (f":\n{diff}" if diff else "")
    return ReplayMismatch(text, path=cassette.path, line=line, diff=diff)


def _named(lane: Lane) -> str:
    return _WORDS.get(lane[0], "a frame of type {!r}").format(lane[1] or lane[0])


def _bare(value: Any) -> Any:
    """Return the part of a frame that is compared: everything but its request id."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: item for key, item in cast("dict[str, Any]", value).items() if key != REQUEST}
    return value


def _refusal(subtype: str, request_id: str) -> Say:
    """Build the response to a request that was not recorded; a handshake succeeds."""
    response: dict[str, Any] = {"subtype": "success", REQUEST: request_id, "response": {}}
    if subtype != "initialize":
        response = {"subtype": "error", REQUEST: request_id, "error": "this was not recorded"}
    return Say(encode_json({"type": ANSWER, "response": response}) + b"\n", 0.0)
