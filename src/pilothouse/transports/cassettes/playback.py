"""A recorded connection as a state machine: takes what the program sends, gives what the CLI sends.

Compares the frames of the program with the recorded frames; ids are translated, and the order of keys does not
matter. Steps run in the order of the recording. A step that waits for input is an `ExpectedInput`; it opens when an
equivalent frame has arrived. Frames may arrive early, so each frame is matched within its kind: prompts, control
requests by subtype, responses by request id. Pure: no I/O, no clock.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from pilothouse.errors import ReplayMismatch
from pilothouse.messages.json_lines import encode_json
from pilothouse.transports.base import ExitInfo
from pilothouse.transports.cassettes.format import Cassette, CassetteEntry, RecordedConnection, decode_frame

UUID: Final = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_UUID_BYTES: Final = re.compile(UUID.pattern.encode())
REQUEST_ID_FIELD: Final = "request_id"
MAX_DIFF_LINES: Final = 60
"""Lines of a difference that a message shows."""
MAX_DIFF_CHARS: Final = 400
"""Characters of each line."""


class IdMapping:
    """Maps recorded ids to present ones; filled as frames are matched.

    Args:
        ignore: names of fields that are not compared, at any depth.
        moved_paths: present directories → recorded ones; replaced before texts are compared.
    """

    def __init__(self, ignore: Iterable[str] = (), moved_paths: Mapping[str, str] | None = None) -> None:
        self._ignore = frozenset(ignore)
        self._moved_paths = {now: then for now, then in (moved_paths or {}).items() if now != then and len(now) > 1}
        self._live_ids: dict[str, str] = {}  # recorded -> live
        self._recorded_ids: dict[str, str] = {}  # live -> recorded

    def accept(self, recorded: Any, live: Any) -> bool:
        """Return whether both mean the same; if so, map the ids at the same positions to each other."""
        pairs: dict[str, str] = {}
        if not self._matches(recorded, live, pairs):
            return False
        self._add_pairs(pairs)
        return True

    def align(self, recorded: Any, live: Any) -> None:
        """Map the ids at the same positions to each other, as far as they exist; everything else may differ."""
        if isinstance(recorded, dict) and isinstance(live, dict):
            old, new = cast("dict[str, Any]", recorded), cast("dict[str, Any]", live)
            for name in old.keys() & new.keys():
                self.align(old[name], new[name])
        elif isinstance(recorded, list) and isinstance(live, list):
            for before, now in zip(cast("list[Any]", recorded), cast("list[Any]", live), strict=False):
                self.align(before, now)
        else:
            self.accept(recorded, live)

    def _add_pairs(self, pairs: Mapping[str, str]) -> None:
        self._live_ids.update(pairs)
        self._recorded_ids.update({live: recorded for recorded, live in pairs.items()})

    def translate_line(self, line: bytes) -> bytes:
        """Return a recorded line with the present UUIDs."""
        if not self._live_ids:
            return line
        return _UUID_BYTES.sub(lambda found: self._live_ids.get(found[0].decode(), found[0].decode()).encode(), line)

    def find_live_request(self, request_id: str) -> str | None:
        """Return the present request id for a recorded one; None if the request was not sent."""
        return self._live_ids.get("request " + request_id)

    def bind_request(self, recorded: str, live: str) -> None:
        """Map a recorded request id to a present one."""
        self._live_ids["request " + recorded] = live

    def _matches(self, recorded: Any, live: Any, pairs: dict[str, str]) -> bool:
        if isinstance(recorded, dict) and isinstance(live, dict):
            return self._matches_fields(cast("dict[str, Any]", recorded), cast("dict[str, Any]", live), pairs)
        if isinstance(recorded, list) and isinstance(live, list):
            old, new = cast("list[Any]", recorded), cast("list[Any]", live)
            return len(old) == len(new) and all(self._matches(a, b, pairs) for a, b in zip(old, new, strict=True))
        if isinstance(recorded, str) and isinstance(live, str):
            return self._matches_text(recorded, live, pairs)
        return bool(recorded == live) and isinstance(recorded, bool) == isinstance(live, bool)

    def _matches_fields(self, recorded: Mapping[str, Any], live: Mapping[str, Any], pairs: dict[str, str]) -> bool:
        # A null field equals an absent one.
        names = [n for n in {**recorded, **live} if n not in self._ignore]
        return all(self._matches(recorded.get(name), live.get(name), pairs) for name in names)

    def _matches_text(self, recorded: str, live: str, pairs: dict[str, str]) -> bool:
        live = self._replace_paths(live)
        if recorded == live:
            return True
        old, new = UUID.findall(recorded), UUID.findall(live)
        if not old or UUID.sub("", recorded) != UUID.sub("", live) or len(old) != len(new):
            return False
        return all(self._match_ids(a, b, pairs) for a, b in zip(old, new, strict=True))

    def _match_ids(self, recorded: str, live: str, pairs: dict[str, str]) -> bool:
        known = pairs.get(recorded) or self._live_ids.get(recorded)
        if known is not None or live in self._recorded_ids or live in pairs.values():
            return known == live
        pairs[recorded] = live
        return True

    def _replace_paths(self, text: str) -> str:
        for now, then in self._moved_paths.items():
            text = text.replace(now, then)
        return text

    def diff(self, recorded: Any, live: Any) -> str:
        """Show both, line by line: "-" is the recording, "+" is now; fields that are not compared are left out."""
        before = self._format_lines(recorded, translate=False)
        after = self._format_lines(live, translate=True)
        lines = list(difflib.unified_diff(before, after, "recorded", "now", n=3, lineterm=""))
        more = len(lines) - MAX_DIFF_LINES
        shown = [
            line if len(line) <= MAX_DIFF_CHARS else line[:MAX_DIFF_CHARS] + " …" for line in lines[:MAX_DIFF_LINES]
        ]
        return "\n".join([*shown, f"… {more} more lines"] if more > 0 else shown)

    def _format_lines(self, value: Any, *, translate: bool) -> list[str]:
        plain = self._drop_ignored(value)
        text = plain if isinstance(plain, str) else json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False)
        if translate:
            text = UUID.sub(lambda found: self._recorded_ids.get(found[0], found[0]), self._replace_paths(text))
        # Unmapped ids are numbered, so that equal ones are visible.
        places: dict[str, str] = {}

        def name(found: re.Match[str]) -> str:
            return found[0] if found[0] in self._live_ids else places.setdefault(found[0], f"<id {len(places) + 1}>")

        return UUID.sub(name, text).splitlines()

    def _drop_ignored(self, value: Any) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {k: self._drop_ignored(v) for k, v in fields.items() if k not in self._ignore and v is not None}
        if isinstance(value, list):
            return [self._drop_ignored(item) for item in cast("list[Any]", value)]
        return value


def replace_request_ids(frame: Any, new: Mapping[str, str]) -> Any:
    """Return `frame` with other request ids, wherever it has one."""
    if isinstance(frame, dict):
        fields = cast("dict[str, Any]", frame)
        return {
            k: new[v] if k == REQUEST_ID_FIELD and isinstance(v, str) and v in new else replace_request_ids(v, new)
            for k, v in fields.items()
        }
    if isinstance(frame, list):
        return [replace_request_ids(item, new) for item in cast("list[Any]", frame)]
    return frame


def match_arguments(ids: IdMapping, recorded: Sequence[str], live: Sequence[str]) -> bool:
    """Return whether the CLI is started as recorded; ids are matched as in frames."""
    same = ids.accept(list(recorded), list(live))
    if not same:
        ids.align(list(recorded), list(live))
    return same


FrameKind: TypeAlias = tuple[str, str]

PROMPT_KIND: Final[FrameKind] = ("user", "")
RESPONSE_TYPE: Final = "control_response"
REQUEST_TYPE: Final = "control_request"
# Sent or not, and when, depending on timing: on how soon a response came.
OPTIONAL_TYPES: Final = frozenset({"control_cancel_request"})
END_OF_INPUT_KIND: Final[FrameKind] = ("end of input", "")
_KIND_NAMES: Final = {
    "user": "a prompt",
    REQUEST_TYPE: "the control request {!r}",
    RESPONSE_TYPE: "the answer to the question {!r}",
    "end of input": "the end of the input",
    "line": "a line",
}


class EmitLine(Struct, frozen=True):
    """A line that the CLI outputs or, with `to="err"`, writes to standard error."""

    data: bytes
    time: float
    stream: Literal["out", "err"] = "out"
    request_id: str | None = None
    """The recorded id of the request that this line responds to."""
    ends_turn: bool = False


class ExpectedInput:
    """An action of the program that must be repeated."""

    __slots__ = ("frame", "index", "is_skipped", "kind", "line", "time", "was_sent")

    def __init__(self, index: int, lane: FrameKind, frame: Any, time: float, line: int) -> None:
        self.index = index
        self.kind = lane
        self.frame = frame
        self.time = time
        self.line = line
        self.was_sent = False
        self.is_skipped = False

    @property
    def is_open(self) -> bool:
        """Whether the steps after this gate may be taken."""
        return self.was_sent or self.is_skipped


class EmitEndOfOutput(Struct, frozen=True):
    """The end of the CLI's output."""

    time: float


Step: TypeAlias = EmitLine | ExpectedInput | EmitEndOfOutput


class PlaybackState:
    """Replays one connection.

    Args:
        cassette: where it is from, for messages.
        recorded: the connection.
        strict: whether messages of the program must mean what was recorded. False: only their kind counts, and
            missing or additional messages are ignored where the recording can continue.
        ignore: names of fields that are not compared.
        moved_paths: present directories → recorded ones.
        redact: removes keys from a line.
    """

    def __init__(
        self,
        cassette: Cassette,
        recorded: RecordedConnection,
        *,
        strict: bool = True,
        ignore: Iterable[str] = (),
        moved_paths: Mapping[str, str] | None = None,
        redact: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._cassette = cassette
        self._recorded = recorded
        self._strict = strict
        self._redact = redact
        self._ids = IdMapping(ignore, moved_paths)
        self._expected: dict[FrameKind, list[ExpectedInput]] = {}
        self._peer_request_ids: set[str] = set()
        self._client_request_ids: set[str] = set()  # ids of the program's requests in the recording
        self._early_responses: dict[
            str, list[EmitLine]
        ] = {}  # recorded responses that were passed before their requests
        self._ready: deque[EmitLine] = deque()
        self._steps: list[Step] = []
        self._position = 0
        self._read_entries(recorded)
        self.is_busy = False
        """Whether the CLI is processing a prompt."""
        self.last_input_time = 0.0
        """The recorded time of the last gate that was passed."""
        self.input_ended = False
        self.output_ended = False

    # Reading the recording.

    def _read_entries(self, recorded: RecordedConnection) -> None:
        entries = recorded.entries
        sent = [e for e in entries if e.direction == "in"]
        if not sent and any(self._ends_turn(e.frame) for e in entries if e.direction == "out"):
            # The prompt was an argument: it may come through stdin now.
            self._steps.append(self._add_expected(PROMPT_KIND, None, CassetteEntry(0.0, "in", b"", entries[0].line)))
        readers = {
            "in": self._read_sent,
            "out": self._read_output,
            "err": self._read_stderr,
            "meta": self._read_event,
        }
        for entry in entries:
            self._steps.extend(readers[entry.direction](entry))

    def _add_expected(self, kind: FrameKind, frame: Any, entry: CassetteEntry) -> ExpectedInput:
        gate = ExpectedInput(len(self._steps), kind, frame, entry.time, entry.line)
        self._expected.setdefault(kind, []).append(gate)
        return gate

    def _read_sent(self, entry: CassetteEntry) -> list[Step]:
        frame = entry.frame
        if frame is None:  # a lenient replay does not expect lines that were not frames
            return [self._add_expected(("line", ""), entry.data, entry)] if self._strict else []
        lane = find_frame_kind(frame)
        if lane[0] == REQUEST_TYPE:
            self._client_request_ids.add(_as_text(frame.get(REQUEST_ID_FIELD)))
        return [] if lane[0] in OPTIONAL_TYPES else [self._add_expected(lane, frame, entry)]

    def _read_output(self, entry: CassetteEntry) -> list[Step]:
        frame = entry.frame or {}
        kind, name = find_frame_kind(frame)
        if kind == REQUEST_TYPE:
            self._peer_request_ids.add(_as_text(frame.get(REQUEST_ID_FIELD)))
        return [
            EmitLine(entry.data, entry.time, "out", name if kind == RESPONSE_TYPE else None, self._ends_turn(frame))
        ]

    def _read_stderr(self, entry: CassetteEntry) -> list[Step]:
        return [EmitLine(entry.data.rstrip(b"\n") + b"\n", entry.time, "err")]

    def _read_event(self, entry: CassetteEntry) -> list[Step]:
        event = entry.event.get("event")
        if event == "stdin_eof":
            return [self._add_expected(END_OF_INPUT_KIND, None, entry)]
        return [EmitEndOfOutput(entry.time)] if event == "stdout_eof" else []

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
        same = match_arguments(self._ids, self._recorded.args, now)
        if self._strict and not same and self._cassette.version:
            old = "\n".join(self._recorded.args)
            raise self._make_mismatch(
                "the program starts the CLI with other arguments than were recorded",
                self._recorded.entries[0].line,
                self._ids.diff(old, "\n".join(now)),
            )
        if not handshake:  # the prompt is in the arguments
            for lane in (PROMPT_KIND, (REQUEST_TYPE, "initialize")):
                for gate in self._expected.get(lane, ())[:1]:
                    gate.was_sent = True

    def send(self, line: bytes) -> None:
        """Match a line that the program sends.

        Raises:
            ReplayMismatch: the line differs from the recording.
        """
        shown = self._redact(line.removesuffix(b"\n"))
        frame = decode_frame(shown)
        lane = ("line", "") if frame is None else find_frame_kind(frame)
        value: Any = shown + (b"\n" if line.endswith(b"\n") else b"") if frame is None else frame
        gates = self._expected.get(lane, ())
        # A skipped request may come late: the program waits for its response.
        awaited = [gate for gate in gates if not (gate.was_sent if lane[0] == REQUEST_TYPE else gate.is_open)]
        gate = self._match(lane, value, awaited)
        if gate is None:
            self._handle_unexpected(lane, value)
            return
        gate.was_sent = True
        if frame is not None and lane[0] == REQUEST_TYPE:
            self._bind_request(_as_text(gate.frame.get(REQUEST_ID_FIELD)), _as_text(frame.get(REQUEST_ID_FIELD)))
        if not self._strict and lane == PROMPT_KIND:
            for step in self._steps[self._position : gate.index]:
                if isinstance(step, ExpectedInput):
                    step.is_skipped = True

    def _bind_request(self, recorded: str, live: str) -> None:
        self._ids.bind_request(recorded, live)
        for response in self._early_responses.pop(recorded, ()):
            self._ready.append(EmitLine(self._translate_response(response), response.time))

    def _match(self, kind: FrameKind, value: Any, candidates_left: list[ExpectedInput]) -> ExpectedInput | None:
        if not candidates_left:
            return None
        # Prompts are matched in order; other messages may have overtaken each other.
        candidates = candidates_left[:1] if kind == PROMPT_KIND else candidates_left
        for gate in candidates:
            if gate.frame is None or self._ids.accept(_strip_request_id(gate.frame), _strip_request_id(value)):
                return gate
        first = candidates_left[0]
        if self._strict:
            words = f"the program sends {_describe_kind(kind)} that differs from the recorded one"
            raise self._make_mismatch(
                words, first.line, self._ids.diff(_strip_request_id(first.frame), _strip_request_id(value))
            )
        self._ids.align(_strip_request_id(first.frame), _strip_request_id(value))
        return first

    def _handle_unexpected(self, frame_kind: FrameKind, value: Any) -> None:
        kind, name = frame_kind
        if kind in OPTIONAL_TYPES or (kind == RESPONSE_TYPE and name in self._peer_request_ids):
            return  # timing again: the request was cancelled, or the recording ended, before the response
        if not self._strict and kind != "user":
            if kind == REQUEST_TYPE:
                self._ready.append(_make_unrecorded_response(name, _as_text(value.get(REQUEST_ID_FIELD))))
            return
        gates = self._expected.get(frame_kind, ())
        count = f"; the recording has {len(gates)} of its kind" if gates else ""
        words = f"the program sends {_describe_kind(frame_kind)}, which was not recorded{count}"
        raise self._make_mismatch(words, None, self._ids.diff("", _strip_request_id(value)))

    def end_input(self) -> None:
        """Record that the program has ended the input."""
        self.input_ended = True
        for gate in self._expected.get(END_OF_INPUT_KIND, ()):
            gate.was_sent = True

    def on_timeout(self) -> None:
        """Stop waiting for the message that the next gate expects.

        Raises:
            ReplayMismatch: that message is needed.
        """
        gate = self.awaited_input
        if gate is not None and not self._strict:
            gate.is_skipped = True
            return
        if gate is None:
            last = self._recorded.entries[-1].line
            cut = (
                "it was cut off by a crash"
                if self._cassette.is_truncated
                else "the program had closed the connection there"
            )
            raise self._make_mismatch(f"the recording ends here, in the middle of a turn: {cut}", last, "")
        words = f"the recording continues with {_describe_kind(gate.kind)} from the program, but the program sends none"
        raise self._make_mismatch(words, gate.line, self._ids.diff(_strip_request_id(gate.frame), ""))

    # Actions of the CLI.

    @property
    def awaited_input(self) -> ExpectedInput | None:
        """The gate that blocks the replay; None if there is none."""
        step = self._steps[self._position] if self._position < len(self._steps) else None
        return step if isinstance(step, ExpectedInput) and not step.is_open else None

    @property
    def is_awaiting_response(self) -> bool:
        """Whether the CLI has sent a request, so that a callback of the program is running."""
        gate = self.awaited_input
        return gate is not None and gate.kind[0] == RESPONSE_TYPE

    def next_step(self) -> EmitLine | EmitEndOfOutput | None:
        """Return the next step of the CLI; None while it waits. `complete_step` takes the step.

        Raises:
            ReplayMismatch: the program has ended the input during a turn that continued in the recording.
        """
        if self._ready:
            return self._ready[0]
        while self._position < len(self._steps):
            step = self._steps[self._position]
            if isinstance(step, ExpectedInput):
                if not step.is_open and not self._skip_expected(step):
                    return EmitEndOfOutput(step.time) if self.input_ended else None
                self.last_input_time = step.time
                self.is_busy = self.is_busy or step.kind == PROMPT_KIND
            elif isinstance(step, EmitEndOfOutput) or not self._defer_response(step):
                return step
            self._position += 1
        return EmitEndOfOutput(self.last_input_time) if self.input_ended else None

    def _skip_expected(self, gate: ExpectedInput) -> bool:
        """Return whether to skip this gate because the input has ended."""
        if not self.input_ended or not self.is_busy:
            return False
        if self._strict:
            words = f"the program ends the input, but the recording continues with {_describe_kind(gate.kind)} from it"
            raise self._make_mismatch(words, gate.line, self._ids.diff(_strip_request_id(gate.frame), ""))
        gate.is_skipped = gate.kind != PROMPT_KIND
        return gate.is_skipped

    def complete_step(self, step: EmitLine | EmitEndOfOutput) -> bytes:
        """Take the step that `next` returned. Returns the bytes to output, with the present ids."""
        if self._ready and step is self._ready[0]:
            return self._ready.popleft().data
        self._position += 1
        if isinstance(step, EmitEndOfOutput):
            self.output_ended = True
            return b""
        if step.ends_turn:
            self.is_busy = False
        if step.request_id is not None:
            return self._translate_response(step)
        return step.data if step.stream == "err" else self._ids.translate_line(step.data)

    def _defer_response(self, step: EmitLine) -> bool:
        """Return whether the step responds to a request not sent yet; such a response is kept for later."""
        if step.request_id not in self._client_request_ids or self._ids.find_live_request(step.request_id) is not None:
            return False
        self._early_responses.setdefault(step.request_id, []).append(step)
        return True

    def _translate_response(self, step: EmitLine) -> bytes:
        live = self._ids.find_live_request(step.request_id or "")
        if live is None:
            return step.data
        frame = replace_request_ids(decode_frame(step.data), {step.request_id or "": live})
        return self._ids.translate_line(encode_json(frame)) + b"\n"

    def exit_info(self) -> tuple[ExitInfo, list[bytes]]:
        """Return how the CLI ended, and the rest of its standard error."""
        rest = [
            step.data for step in self._steps[self._position :] if isinstance(step, EmitLine) and step.stream == "err"
        ]
        ending = self._recorded.exit_info()
        if self._cassette.is_truncated and not ending.detail:
            ending = ExitInfo(ending.exit_code, ending.signal, detail="a crash cut the recording off here")
        return ending, rest

    @property
    def has_exited(self) -> bool:
        """Whether the CLI has exited."""
        ending = self._recorded.exit_info()
        return self.output_ended and (ending.exit_code is not None or ending.signal is not None)

    def find_missing(self) -> ExpectedInput | None:
        """Return the first recorded message that the program has not sent."""
        gates = (step for step in self._steps if isinstance(step, ExpectedInput) and step.kind != END_OF_INPUT_KIND)
        return next((gate for gate in gates if not gate.is_open), None)

    def check_complete(self) -> None:
        """Check that the program sent everything that was recorded.

        Raises:
            ReplayMismatch: it sent less.
        """
        gate = self.find_missing()
        if gate is not None and self._strict:
            words = f"the program has ended, but the recording continues with {_describe_kind(gate.kind)} from it"
            raise self._make_mismatch(words, gate.line, self._ids.diff(_strip_request_id(gate.frame), ""))

    def _make_mismatch(self, problem: str, line: int | None, diff: str) -> ReplayMismatch:
        return make_mismatch(self._cassette, problem, line, diff)


def make_mismatch(cassette: Cassette, problem: str, line: int | None = None, diff: str = "") -> ReplayMismatch:
    """Build the error, with advice."""
    place = cassette.path if line is None else f"{cassette.path}, line {line}"
    advice = "change the program back, or record again"
    text = f"{place}: {problem}; {advice}" + (f":\n{diff}" if diff else "")
    return ReplayMismatch(text, path=cassette.path, line=line, diff=diff)


def find_frame_kind(frame: Mapping[str, Any]) -> FrameKind:
    """Return the lane of a frame that the program sends."""
    kind = _as_text(frame.get("type"))
    if kind == REQUEST_TYPE:
        return REQUEST_TYPE, _as_text(_as_mapping(frame.get("request")).get("subtype", frame.get("subtype")))
    if kind == RESPONSE_TYPE:
        return RESPONSE_TYPE, _as_text(
            _as_mapping(frame.get("response")).get(REQUEST_ID_FIELD, frame.get(REQUEST_ID_FIELD))
        )
    return kind, ""


def _describe_kind(kind: FrameKind) -> str:
    return _KIND_NAMES.get(kind[0], "a frame of type {!r}").format(kind[1] or kind[0])


def _strip_request_id(value: Any) -> Any:
    """Return the part of a frame that is compared: everything but its request id."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: item for key, item in cast("dict[str, Any]", value).items() if key != REQUEST_ID_FIELD}
    return value


def _make_unrecorded_response(subtype: str, request_id: str) -> EmitLine:
    """Build the response to a request that was not recorded; a handshake succeeds."""
    response: dict[str, Any] = {"subtype": "success", REQUEST_ID_FIELD: request_id, "response": {}}
    if subtype != "initialize":
        response = {"subtype": "error", REQUEST_ID_FIELD: request_id, "error": "this was not recorded"}
    return EmitLine(encode_json({"type": RESPONSE_TYPE, "response": response}) + b"\n", 0.0)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)
