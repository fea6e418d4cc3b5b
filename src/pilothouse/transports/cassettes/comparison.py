"""When two frames mean the same although their ids differ, and what differs between two frames or two cassettes. Pure.

Owns the mapping of recorded ids to present ones, which fields may differ between two runs, and the text of a
difference.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from pilothouse.transports.cassettes.format import Cassette, CassetteEntry, RecordedConnection

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
