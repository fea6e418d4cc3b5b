"""A recorded connection as a state machine: takes what the program sends, gives what the CLI sends.

Steps run in the order of the recording. A step that waits for input is an `ExpectedInput`; it opens when an equivalent
frame has arrived. Frames may arrive early, so each frame is matched within its kind: prompts, control requests by
subtype, responses by request id. Two frames are equivalent when they mean the same although their ids differ. Pure:
no I/O, no clock.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from pilothouse.errors import ReplayMismatch
from pilothouse.support import encode_json
from pilothouse.transports import ExitInfo
from pilothouse_testing.cassettes.format import Cassette, CassetteEntry, RecordedConnection, decode_frame

UUID: Final = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_UUID_BYTES: Final = re.compile(UUID.pattern.encode())
_REQUEST_ID: Final = re.compile(rb'("request_id"\s*:\s*")([^"\\]*)"')
MAX_DIFF_LINES: Final = 60
"""Lines of a difference that a message shows."""
MAX_DIFF_CHARS: Final = 400
"""Characters of each line."""

FrameKind: TypeAlias = tuple[str, str]
"""The type of a frame, and what tells it apart from others: the subtype of a request, the request that is answered."""
REQUEST_ID_FIELD: Final = "request_id"
REQUEST_TYPE: Final = "control_request"
RESPONSE_TYPE: Final = "control_response"
_NAMES: Final = {REQUEST_TYPE: ("request", "subtype"), RESPONSE_TYPE: ("response", REQUEST_ID_FIELD)}
Leaf: TypeAlias = tuple[tuple[str | int, ...], Any]


def find_frame_kind(frame: Mapping[str, Any]) -> FrameKind:
    """Return the kind of a frame."""
    kind = str(frame.get("type", ""))
    if kind not in _NAMES:
        return kind, ""
    body, field = _NAMES[kind]
    inner = frame.get(body)
    name: Any = cast("dict[str, Any]", inner).get(field) if isinstance(inner, dict) else None
    return kind, str(frame.get(field, "") if name is None else name)


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
        self._live_requests: dict[str, str] = {}  # recorded request id -> live

    def accept(self, recorded: Any, live: Any, *, partial: bool = False) -> bool:
        """Return whether both mean the same; if so, map the ids at the same positions to each other.

        Args:
            recorded: a value of the recording.
            live: the present value.
            partial: whether to map ids also where the rest differs.
        """
        old, new = dict(_iterate_leaves(self._clean(recorded))), dict(_iterate_leaves(self._clean(live)))
        pairs: dict[str, str] = {}
        is_same = old.keys() == new.keys()
        for place in old:
            is_same = place in new and self._match_leaf(old[place], new[place], pairs) and is_same
        if is_same or partial:
            self._live_ids.update(pairs)
            self._recorded_ids.update({now: then for then, now in pairs.items()})
        return is_same

    def _match_leaf(self, recorded: Any, live: Any, pairs: dict[str, str]) -> bool:
        live = self._replace_paths(live) if isinstance(live, str) else live
        if recorded == live:
            return isinstance(recorded, bool) == isinstance(live, bool)
        if (
            not isinstance(recorded, str)
            or not isinstance(live, str)
            or UUID.sub("\0", recorded) != UUID.sub("\0", live)
        ):
            return False
        found = dict(zip(UUID.findall(recorded), UUID.findall(live), strict=True))
        for then, now in found.items():
            known = pairs.get(then) or self._live_ids.get(then)
            if known != now and (known is not None or now in self._recorded_ids or now in pairs.values()):
                return False
        pairs.update(found)
        return True

    def bind_request(self, recorded: str, live: str) -> None:
        """Map a recorded request id to a present one."""
        self._live_requests[recorded] = live

    def has_request(self, recorded: str) -> bool:
        """Return whether a recorded request was sent."""
        return recorded in self._live_requests

    def translate_line(self, line: bytes, *, is_response: bool = False) -> bytes:
        """Return a recorded line with the present UUIDs and, for a response, the present request id."""
        if is_response:
            requests = self._live_requests
            line = _REQUEST_ID.sub(lambda m: m[1] + requests.get(m[2].decode(), m[2].decode()).encode() + b'"', line)
        if not self._live_ids:
            return line
        return _UUID_BYTES.sub(lambda m: self._live_ids.get(m[0].decode(), m[0].decode()).encode(), line)

    def diff(self, recorded: Any, live: Any) -> str:
        """Show both, line by line: "-" is the recording, "+" is now; fields that are not compared are left out."""
        after = UUID.sub(lambda m: self._recorded_ids.get(m[0], m[0]), self._replace_paths(self._format(live)))
        return diff_lines(self._number_ids(self._format(recorded)), self._number_ids(after), "recorded", "now")

    def _format(self, value: Any) -> str:
        value = self._clean(value)
        return value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)

    def _number_ids(self, text: str) -> str:
        """Number the unmapped ids, so that equal ones are visible."""
        numbers: dict[str, str] = dict(zip(self._live_ids, self._live_ids, strict=True))
        return UUID.sub(lambda m: numbers.setdefault(m[0], f"<id {len(numbers) - len(self._live_ids) + 1}>"), text)

    def _clean(self, value: Any) -> Any:
        """Return a value without the fields that are not compared; a null field equals an absent one."""
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {k: self._clean(v) for k, v in fields.items() if k not in self._ignore and v is not None}
        if isinstance(value, list):
            return [self._clean(item) for item in cast("list[Any]", value)]
        return value

    def _replace_paths(self, text: str) -> str:
        for now, then in self._moved_paths.items():
            text = text.replace(now, then)
        return text


def _iterate_leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """Yield the values inside a value that contain no others, each with its place."""
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        inner = enumerate(cast("list[Any]", value))
    is_leaf = True
    for name, item in inner:
        is_leaf = False
        yield from _iterate_leaves(item, (*place, name))
    if is_leaf:
        yield place, value


def diff_lines(before: str, after: str, before_name: str, after_name: str) -> str:
    """Return a difference of two texts, cut to what a message shows."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), before_name, after_name, n=3, lineterm="")
    return _cut_diff(list(lines))


def _cut_diff(lines: list[str]) -> str:
    shown = [line if len(line) <= MAX_DIFF_CHARS else line[:MAX_DIFF_CHARS] + " …" for line in lines[:MAX_DIFF_LINES]]
    more = len(lines) - MAX_DIFF_LINES
    return "\n".join([*shown, f"… {more} more lines"] if more > 0 else shown)


# Two cassettes.

_IDS: Final = re.compile(rf"{UUID.pattern}|\b(?:msg|req|toolu|srvtoolu|hook|task)_[A-Za-z0-9_-]+")
_VARYING_FIELDS: Final = re.compile(r"(_ms|_at|_time|_seconds|_socket_path|timestamp|^pid|^request_id|^time)$|^uuid$")
"""Names of fields with a time, a duration or a process."""
_IGNORED_TYPES: Final = frozenset({"keep_alive", "control_cancel_request", "command_lifecycle"})
"""Frames whose number depends on timing."""


def diff_cassettes(recorded: Cassette, current: Cassette, *, ignore: Iterable[str] = ()) -> str:
    """Return what differs between two cassettes, line by line; "" if they are equivalent.

    Frames of one kind are compared in their order. The order of different kinds is not compared: it depends on
    timing.

    Args:
        recorded: the older one.
        current: the newer one.
        ignore: names of fields that are not compared, at any depth.
    """
    ignored = frozenset(ignore)
    parts: list[str] = []
    if len(recorded.connections) != len(current.connections):
        parts.append(f"{len(recorded.connections)} connections were recorded, now there are {len(current.connections)}")
    for number, (old, new) in enumerate(zip(recorded.connections, current.connections, strict=False), 1):
        before, after = _summarize(old, ignored), _summarize(new, ignored)
        for kind in {**before, **after}:
            name = f"connection {number}, {kind}"
            texts = ("\n".join(before.get(kind, ())), "\n".join(after.get(kind, ())))
            parts.extend(diff_lines(*texts, f"recorded: {name}", f"now: {name}").splitlines())
    return _cut_diff(parts)


def _summarize(connection: RecordedConnection, ignored: frozenset[str]) -> dict[str, list[str]]:
    """Group the texts of a connection's frames by kind."""
    places = _find_directories(connection.event("spawn"))
    texts = {"the arguments": [_mask_text(argument, places) for argument in connection.args]}
    for entry in connection.entries:
        if entry.direction in ("in", "out"):
            kind, text = _summarize_entry(entry, ignored, places)
            if kind:
                texts.setdefault(kind, []).append(text)
    return texts


def _summarize_entry(entry: CassetteEntry, ignored: frozenset[str], places: Mapping[str, str]) -> FrameKind:
    frame = entry.frame
    side = "the program's" if entry.direction == "in" else "the CLI's"
    if frame is None:
        return f"{side} lines", _mask_text(entry.data.decode("utf-8", "backslashreplace"), places)
    kind, name = find_frame_kind(frame)
    if kind in _IGNORED_TYPES:
        return "", ""
    if kind != REQUEST_TYPE:
        name = str(frame.get("subtype") or "")
    text = json.dumps(_mask_varying(frame, ignored, places), indent=2, sort_keys=True, ensure_ascii=False)
    return f"{side} {kind} {name}".rstrip(), text


def _mask_varying(value: Any, ignored: frozenset[str], places: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            _mask_text(name, places): "<varies>"
            if _VARYING_FIELDS.search(name)
            else _mask_varying(item, ignored, places)
            for name, item in cast("dict[str, Any]", value).items()
            if name not in ignored and item is not None
        }
    if isinstance(value, list):
        return [_mask_varying(item, ignored, places) for item in cast("list[Any]", value)]
    return _mask_text(value, places) if isinstance(value, str) else value


def _mask_text(text: str, places: Mapping[str, str]) -> str:
    for place, word in places.items():
        text = text.replace(place, word)
    return _IDS.sub("<id>", text)


def _find_directories(spawn: Mapping[str, Any]) -> dict[str, str]:
    """Map directories of the run to placeholders, longest first, because one may contain another."""
    found = {str(spawn.get(name) or ""): f"<{name}>" for name in ("cwd", "home")}
    # The CLI names directories of its own after those of the project.
    slugs = {re.sub(r"[^A-Za-z0-9]", "-", place): f"{word[:-1]}-slug>" for place, word in found.items()}
    everything = {place: word for place, word in {**found, **slugs}.items() if len(place) > 1}
    return dict(sorted(everything.items(), key=lambda item: -len(item[0])))


PROMPT_KIND: Final[FrameKind] = ("user", "")
LINE_KIND: Final[FrameKind] = ("line", "")
END_OF_INPUT_KIND: Final[FrameKind] = ("end of input", "")
SETTINGS_KIND: Final[FrameKind] = (REQUEST_TYPE, "get_settings")
"""What a client asks before its first prompt if it sends settings; older recordings are without it."""
# Sent or not, and when, depending on timing: on how soon a response came.
OPTIONAL_TYPES: Final = frozenset({"control_cancel_request"})
# pilothouse sends these by itself: older recordings may lack them, and how often they are sent depends on timing.
USAGE_KIND: Final[FrameKind] = (REQUEST_TYPE, "get_usage")
OPTIONAL_REQUESTS: Final = frozenset({USAGE_KIND, (REQUEST_TYPE, "mcp_status")})
_KIND_NAMES: Final = {
    "user": "a prompt",
    REQUEST_TYPE: "the control request {!r}",
    RESPONSE_TYPE: "the answer to the question {!r}",
    "end of input": "the end of the input",
    "line": "a line",
}


class Emit(Struct, frozen=True):
    """A line that the CLI outputs or, with `stream="err"`, writes to standard error; "end": the end of its output.

    `request_id` is the recorded id of the request that the line responds to.
    """

    stream: Literal["out", "err", "end"]
    time: float
    data: bytes = b""
    request_id: str | None = None
    ends_turn: bool = False


class ExpectedInput(Struct, eq=False):
    """An action of the program that must be repeated. `is_skipped`: the steps after it may be taken without it."""

    index: int
    kind: FrameKind
    frame: Any
    time: float
    line: int
    was_sent: bool = False
    is_skipped: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the steps after it may be taken."""
        return self.was_sent or self.is_skipped


Step: TypeAlias = Emit | ExpectedInput


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

    Attributes:
        is_busy: whether the CLI is processing a prompt.
        last_input_time: the recorded time of the last expected input that was passed.
        output_ended: whether the CLI's output has ended.
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
        self._client_requests: set[str] = set()  # ids of the program's requests in the recording
        self._peer_requests: set[str] = set()
        self._early_responses: list[Emit] = []  # passed before their requests came
        self._ready: deque[Emit] = deque()
        self._steps: list[Step] = []
        self._position = 0
        self._input_ended = False
        self.is_busy = False
        self.last_input_time = 0.0
        self.output_ended = False
        self._read_entries(recorded.entries)

    # Reading the recording.

    def _read_entries(self, entries: Sequence[CassetteEntry]) -> None:
        if not any(entry.direction == "in" for entry in entries) and any(
            _ends_turn(entry.frame) for entry in entries if entry.direction == "out"
        ):
            # The prompt was an argument: it may come through stdin now.
            self._expect(PROMPT_KIND, None, CassetteEntry(0.0, "in", b"", entries[0].line))
        for entry in entries:
            if entry.direction == "in":
                self._read_sent(entry)
            elif entry.direction == "out":
                self._read_output(entry)
            elif entry.direction == "err":
                self._steps.append(Emit("err", entry.time, entry.data.rstrip(b"\n") + b"\n"))
            elif (event := entry.event.get("event")) == "stdin_eof":
                self._expect(END_OF_INPUT_KIND, None, entry)
            elif event == "stdout_eof":
                self._steps.append(Emit("end", entry.time))

    def _expect(self, kind: FrameKind, frame: Any, entry: CassetteEntry) -> None:
        expected = ExpectedInput(len(self._steps), kind, frame, entry.time, entry.line, is_skipped=kind == USAGE_KIND)
        self._expected.setdefault(kind, []).append(expected)
        self._steps.append(expected)

    def _read_sent(self, entry: CassetteEntry) -> None:
        frame = entry.frame
        if frame is None:
            if self._strict:  # a lenient replay does not expect lines that were not frames
                self._expect(LINE_KIND, entry.data, entry)
            return
        kind = find_frame_kind(frame)
        if kind[0] == REQUEST_TYPE:
            self._client_requests.add(_find_request_id(frame))
        if kind[0] not in OPTIONAL_TYPES:
            self._expect(kind, frame, entry)

    def _read_output(self, entry: CassetteEntry) -> None:
        frame = entry.frame or {}
        kind, name = find_frame_kind(frame)
        if kind == REQUEST_TYPE:
            self._peer_requests.add(_find_request_id(frame))
        request = name if kind == RESPONSE_TYPE else None
        self._steps.append(Emit("out", entry.time, entry.data, request, _ends_turn(frame)))

    # Actions of the program.

    def begin(self, args: Iterable[str], *, handshake: bool) -> None:
        """Check how the program starts the CLI.

        Raises:
            ReplayMismatch: the CLI was started differently in the recording.
        """
        recorded, now = list(self._recorded.args), list(args)
        same = self._ids.accept(recorded, now, partial=True)
        if self._strict and not same and self._cassette.version:
            problem = "the program starts the CLI with other arguments than were recorded"
            diff = self._ids.diff("\n".join(recorded), "\n".join(now))
            raise make_mismatch(self._cassette, problem, self._recorded.entries[0].line, diff)
        if not handshake:  # the prompt is in the arguments
            for kind in (PROMPT_KIND, (REQUEST_TYPE, "initialize")):
                for expected in self._expected.get(kind, ())[:1]:
                    expected.was_sent = True

    def send(self, line: bytes) -> None:
        """Match a line that the program sends.

        Raises:
            ReplayMismatch: the line differs from the recording.
        """
        shown = self._redact(line.removesuffix(b"\n"))
        frame = decode_frame(shown)
        kind = LINE_KIND if frame is None else find_frame_kind(frame)
        value: Any = shown + (b"\n" if line.endswith(b"\n") else b"") if frame is None else frame
        expected = self._match(kind, value)
        if expected is None:
            self._handle_unexpected(kind, value)
            return
        expected.was_sent = True
        if frame is not None and kind[0] == REQUEST_TYPE:
            recorded = _find_request_id(expected.frame)
            self._ids.bind_request(recorded, _find_request_id(frame))
            self._ready.extend(early for early in self._early_responses if early.request_id == recorded)
            self._early_responses = [early for early in self._early_responses if early.request_id != recorded]
        if not self._strict and kind == PROMPT_KIND:
            for step in self._steps[self._position : expected.index]:
                if isinstance(step, ExpectedInput):
                    step.is_skipped = True

    def _match(self, kind: FrameKind, value: Any) -> ExpectedInput | None:
        # A skipped request may come late: the program waits for its response.
        is_request = kind[0] == REQUEST_TYPE
        waiting = [e for e in self._expected.get(kind, ()) if not (e.was_sent if is_request else e.is_open)]
        if not waiting:
            return None
        # Prompts are matched in order; other messages may have overtaken each other.
        now = _strip_request_id(value)
        for expected in waiting[:1] if kind == PROMPT_KIND else waiting:
            if expected.frame is None or self._ids.accept(_strip_request_id(expected.frame), now):
                return expected
        if self._strict:
            self._raise_mismatch(
                f"the program sends {_describe_kind(kind)} that differs from the recorded one", waiting[0], now
            )
        self._ids.accept(_strip_request_id(waiting[0].frame), now, partial=True)
        return waiting[0]

    def _handle_unexpected(self, kind: FrameKind, value: Any) -> None:
        if kind[0] in OPTIONAL_TYPES or (kind[0] == RESPONSE_TYPE and kind[1] in self._peer_requests):
            return  # timing again: the request was cancelled, or the recording ended, before the response
        is_optional = kind in OPTIONAL_REQUESTS or (kind == SETTINGS_KIND and kind not in self._expected)
        if is_optional or (not self._strict and kind != PROMPT_KIND):
            if kind[0] == REQUEST_TYPE:
                self._ready.append(_make_unrecorded_response(kind[1], _find_request_id(value)))
            return
        others = len(self._expected.get(kind, ()))
        count = f"; the recording has {others} of its kind" if others else ""
        problem = f"the program sends {_describe_kind(kind)}, which was not recorded{count}"
        raise make_mismatch(self._cassette, problem, None, self._ids.diff("", _strip_request_id(value)))

    def end_input(self) -> None:
        """Record that the program has ended the input."""
        self._input_ended = True
        for expected in self._expected.get(END_OF_INPUT_KIND, ()):
            expected.was_sent = True

    def on_timeout(self) -> None:
        """Stop waiting for the message that is expected now.

        Raises:
            ReplayMismatch: that message is needed.
        """
        expected = self._awaited_input
        if expected is None:
            cut = "it was cut off by a crash"
            if not self._cassette.is_truncated:
                cut = "the program had closed the connection there"
            problem = f"the recording ends here, in the middle of a turn: {cut}"
            raise make_mismatch(self._cassette, problem, self._recorded.entries[-1].line)
        if self._strict:
            name = _describe_kind(expected.kind)
            self._raise_mismatch(
                f"the recording continues with {name} from the program, but the program sends none", expected
            )
        expected.is_skipped = True

    def check_complete(self) -> None:
        """Check that the program sent everything that was recorded.

        Raises:
            ReplayMismatch: it sent less.
        """
        for step in self._steps if self._strict else ():
            if isinstance(step, ExpectedInput) and not step.is_open and step.kind != END_OF_INPUT_KIND:
                name = _describe_kind(step.kind)
                self._raise_mismatch(f"the program has ended, but the recording continues with {name} from it", step)

    def _raise_mismatch(self, problem: str, expected: ExpectedInput, live: Any = "") -> None:
        diff = self._ids.diff(_strip_request_id(expected.frame), live)
        raise make_mismatch(self._cassette, problem, expected.line, diff)

    # Actions of the CLI.

    @property
    def _awaited_input(self) -> ExpectedInput | None:
        step = self._steps[self._position] if self._position < len(self._steps) else None
        return step if isinstance(step, ExpectedInput) and not step.is_open else None

    @property
    def is_input_late(self) -> bool:
        """Whether the program should have sent the expected message by now.

        It should during a turn, and once it has sent a later message. While a callback of the program runs, no
        response is late.
        """
        expected = self._awaited_input
        if expected is not None and expected.kind[0] == RESPONSE_TYPE:
            return False
        later = self._steps[self._position + 1 :]
        return self.is_busy or any(isinstance(step, ExpectedInput) and step.was_sent for step in later)

    def next_step(self) -> Emit | None:
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
                    return Emit("end", step.time) if self._input_ended else None
                self.last_input_time = step.time
                self.is_busy = self.is_busy or step.kind == PROMPT_KIND
            elif step.request_id in self._client_requests and not self._ids.has_request(step.request_id or ""):
                self._early_responses.append(step)
            else:
                return step
            self._position += 1
        return Emit("end", self.last_input_time) if self._input_ended else None

    def _skip_expected(self, expected: ExpectedInput) -> bool:
        """Return whether to skip this input because the program has ended its input."""
        if not self._input_ended or not self.is_busy:
            return False
        if self._strict:
            name = _describe_kind(expected.kind)
            self._raise_mismatch(
                f"the program ends the input, but the recording continues with {name} from it", expected
            )
        expected.is_skipped = expected.kind != PROMPT_KIND
        return expected.is_skipped

    def complete_step(self, step: Emit) -> bytes:
        """Take the step that `next_step` returned. Returns the bytes to output, with the present ids."""
        if self._ready and step is self._ready[0]:
            self._ready.popleft()
        else:
            self._position += 1
            self.output_ended = self.output_ended or step.stream == "end"
            self.is_busy = self.is_busy and not step.ends_turn
        if step.stream != "out":
            return step.data
        return self._ids.translate_line(step.data, is_response=step.request_id is not None)

    def exit_info(self) -> tuple[ExitInfo, list[bytes]]:
        """Return how the CLI ended, and the rest of its standard error."""
        left = self._steps[self._position :]
        rest = [step.data for step in left if isinstance(step, Emit) and step.stream == "err"]
        ending = self._recorded.exit_info()
        if self._cassette.is_truncated and not ending.detail:
            ending = ExitInfo(ending.exit_code, ending.signal, detail="a crash cut the recording off here")
        return ending, rest

    @property
    def has_exited(self) -> bool:
        """Whether the CLI has exited."""
        ending = self._recorded.exit_info()
        return self.output_ended and (ending.exit_code is not None or ending.signal is not None)


def make_mismatch(cassette: Cassette, problem: str, line: int | None = None, diff: str = "") -> ReplayMismatch:
    """Build the error, with advice."""
    place = cassette.path if line is None else f"{cassette.path}, line {line}"
    advice = "change the program back, or record again"
    text = f"{place}: {problem}; {advice}" + (f":\n{diff}" if diff else "")
    return ReplayMismatch(text, path=cassette.path, line=line, diff=diff)


def _ends_turn(frame: Mapping[str, Any] | None) -> bool:
    return frame is not None and frame.get("type") == "result"


def _describe_kind(kind: FrameKind) -> str:
    return _KIND_NAMES.get(kind[0], "a frame of type {!r}").format(kind[1] or kind[0])


def _find_request_id(frame: Mapping[str, Any]) -> str:
    return str(frame.get(REQUEST_ID_FIELD) or "")


def _strip_request_id(value: Any) -> Any:
    """Return the part of a frame that is compared: everything but its request id."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: item for key, item in cast("dict[str, Any]", value).items() if key != REQUEST_ID_FIELD}
    return value


def _make_unrecorded_response(subtype: str, request_id: str) -> Emit:
    """Build the response to a request that was not recorded; a handshake succeeds, and no tokens were used."""
    answer: dict[str, Any] = {"session": {"model_usage": {}}} if subtype == USAGE_KIND[1] else {}
    response: dict[str, Any] = {"subtype": "success", REQUEST_ID_FIELD: request_id, "response": answer}
    if subtype not in ("initialize", USAGE_KIND[1]):
        response = {"subtype": "error", REQUEST_ID_FIELD: request_id, "error": "this was not recorded"}
    return Emit("out", 0.0, encode_json({"type": RESPONSE_TYPE, "response": response}) + b"\n")
