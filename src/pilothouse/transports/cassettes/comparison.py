"""Compares frames and whole cassettes: whether a program, or another run, says the same as a recording.

Owns the comparison of two frames, the mapping of ids, which fields may differ between runs, and the text of a
difference. The order of keys is irrelevant. Pure. Must not know when a frame is expected, or what follows it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from pilothouse.transports.cassettes.form import Cassette, Entry, Recorded, as_object

UUID: Final = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_UUID_BYTES: Final = re.compile(UUID.pattern.encode())
REQUEST: Final = "request_id"
ANSWER: Final = "control_response"
ASK: Final = "control_request"
Lane: TypeAlias = tuple[str, str]
SHOWN_LINES: Final = 60
"""Lines of a difference that a message shows."""
SHOWN_CHARS: Final = 400
"""Characters of each line."""


class Numbering:
    """Maps recorded ids to present ones; filled as frames are matched.

    Args:
        ignore: names of fields that are not compared, at any depth.
        here: present directories → recorded ones; replaced before texts are compared.
    """

    def __init__(self, ignore: Iterable[str] = (), here: Mapping[str, str] | None = None) -> None:
        self._ignore = frozenset(ignore)
        self._here = {now: then for now, then in (here or {}).items() if now != then and len(now) > 1}
        self._now: dict[str, str] = {}  # recorded -> live
        self._then: dict[str, str] = {}  # live -> recorded

    def accept(self, recorded: Any, live: Any) -> bool:
        """Return whether both mean the same; if so, map the ids at the same positions to each other."""
        pairs: dict[str, str] = {}
        if not self._same(recorded, live, pairs):
            return False
        self._bind(pairs)
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

    def _bind(self, pairs: Mapping[str, str]) -> None:
        self._now.update(pairs)
        self._then.update({live: recorded for recorded, live in pairs.items()})

    def renumbered(self, line: bytes) -> bytes:
        """Return a recorded line with the present UUIDs."""
        if not self._now:
            return line
        return _UUID_BYTES.sub(lambda found: self._now.get(found[0].decode(), found[0].decode()).encode(), line)

    def live(self, request_id: str) -> str | None:
        """Return the present request id for a recorded one; None if the request was not sent."""
        return self._now.get("request " + request_id)

    def bind_request(self, recorded: str, live: str) -> None:
        """Map a recorded request id to a present one."""
        self._now["request " + recorded] = live

    def _same(self, recorded: Any, live: Any, pairs: dict[str, str]) -> bool:
        if isinstance(recorded, dict) and isinstance(live, dict):
            return self._same_fields(cast("dict[str, Any]", recorded), cast("dict[str, Any]", live), pairs)
        if isinstance(recorded, list) and isinstance(live, list):
            old, new = cast("list[Any]", recorded), cast("list[Any]", live)
            return len(old) == len(new) and all(self._same(a, b, pairs) for a, b in zip(old, new, strict=True))
        if isinstance(recorded, str) and isinstance(live, str):
            return self._same_text(recorded, live, pairs)
        return bool(recorded == live) and isinstance(recorded, bool) == isinstance(live, bool)

    def _same_fields(self, recorded: Mapping[str, Any], live: Mapping[str, Any], pairs: dict[str, str]) -> bool:
        # A null field equals an absent one.
        names = [n for n in {**recorded, **live} if n not in self._ignore]
        return all(self._same(recorded.get(name), live.get(name), pairs) for name in names)

    def _same_text(self, recorded: str, live: str, pairs: dict[str, str]) -> bool:
        live = self._moved(live)
        if recorded == live:
            return True
        old, new = UUID.findall(recorded), UUID.findall(live)
        if not old or UUID.sub("", recorded) != UUID.sub("", live) or len(old) != len(new):
            return False
        return all(self._pair(a, b, pairs) for a, b in zip(old, new, strict=True))

    def _pair(self, recorded: str, live: str, pairs: dict[str, str]) -> bool:
        known = pairs.get(recorded) or self._now.get(recorded)
        if known is not None or live in self._then or live in pairs.values():
            return known == live
        pairs[recorded] = live
        return True

    def _moved(self, text: str) -> str:
        for now, then in self._here.items():
            text = text.replace(now, then)
        return text

    def difference(self, recorded: Any, live: Any) -> str:
        """Show both, line by line: "-" is the recording, "+" is now; fields that are not compared are left out."""
        before = self._shown(recorded, translate=False)
        after = self._shown(live, translate=True)
        lines = list(difflib.unified_diff(before, after, "recorded", "now", n=3, lineterm=""))
        more = len(lines) - SHOWN_LINES
        shown = [line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + " …" for line in lines[:SHOWN_LINES]]
        return "\n".join([*shown, f"… {more} more lines"] if more > 0 else shown)

    def _shown(self, value: Any, *, translate: bool) -> list[str]:
        plain = self._pruned(value)
        text = plain if isinstance(plain, str) else json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False)
        if translate:
            text = UUID.sub(lambda found: self._then.get(found[0], found[0]), self._moved(text))
        # Unmapped ids are numbered, so that equal ones are visible.
        places: dict[str, str] = {}

        def name(found: re.Match[str]) -> str:
            return found[0] if found[0] in self._now else places.setdefault(found[0], f"<id {len(places) + 1}>")

        return UUID.sub(name, text).splitlines()

    def _pruned(self, value: Any) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {k: self._pruned(v) for k, v in fields.items() if k not in self._ignore and v is not None}
        if isinstance(value, list):
            return [self._pruned(item) for item in cast("list[Any]", value)]
        return value


def lane_of(frame: Mapping[str, Any]) -> Lane:
    """Return the lane of a frame that the program sends."""
    kind = to_text(frame.get("type"))
    if kind == ASK:
        return ASK, to_text(as_object(frame.get("request")).get("subtype", frame.get("subtype")))
    if kind == ANSWER:
        return ANSWER, to_text(as_object(frame.get("response")).get(REQUEST, frame.get(REQUEST)))
    return kind, ""


def to_text(value: Any) -> str:
    """Return a value of a frame as text; "" for None."""
    return "" if value is None else str(value)


def with_request_ids(frame: Any, new: Mapping[str, str]) -> Any:
    """Return `frame` with other request ids, wherever it has one."""
    if isinstance(frame, dict):
        fields = cast("dict[str, Any]", frame)
        return {
            k: new[v] if k == REQUEST and isinstance(v, str) and v in new else with_request_ids(v, new)
            for k, v in fields.items()
        }
    if isinstance(frame, list):
        return [with_request_ids(item, new) for item in cast("list[Any]", frame)]
    return frame


def same_arguments(numbering: Numbering, recorded: Sequence[str], live: Sequence[str]) -> bool:
    """Return whether the CLI is started as recorded; ids are matched as in frames."""
    same = numbering.accept(list(recorded), list(live))
    if not same:
        numbering.align(list(recorded), list(live))
    return same


_IDS: Final = re.compile(rf"{UUID.pattern}|\b(?:msg|req|toolu|srvtoolu|hook|task)_[A-Za-z0-9_-]+")
_VARYING: Final = re.compile(r"(_ms|_at|_time|_seconds|_socket_path|timestamp|^pid|^request_id|^time)$|^uuid$")
"""Names of fields with a time, a duration or a process."""
_IN_PASSING: Final = frozenset({"keep_alive", "control_cancel_request", "command_lifecycle"})
"""Frames whose number depends on timing."""
Story = dict[str, list[str]]


def difference(recorded: Cassette, now: Cassette, *, ignore: Iterable[str] = ()) -> str:
    """Return what differs between two cassettes, line by line; "" if they are equivalent.

    Frames of one kind are compared in their order. The order of different kinds is not compared: it depends on
    timing.

    Args:
        recorded: the older one.
        now: the newer one.
        ignore: names of fields that are not compared, at any depth.
    """
    ignored = frozenset(ignore)
    parts: list[str] = []
    if len(recorded.connections) != len(now.connections):
        parts.append(f"{len(recorded.connections)} connections were recorded, now there are {len(now.connections)}")
    for number, (old, new) in enumerate(zip(recorded.connections, now.connections, strict=False), 1):
        before, after = _story(old, ignored), _story(new, ignored)
        for kind in {**before, **after}:
            place = f"connection {number}, {kind}"
            lines = difflib.unified_diff(
                "\n".join(before.get(kind, ())).splitlines(),
                "\n".join(after.get(kind, ())).splitlines(),
                f"recorded: {place}",
                f"now: {place}",
                n=3,
                lineterm="",
            )
            parts.extend(line[:SHOWN_CHARS] for line in lines)
    more = len(parts) - SHOWN_LINES
    return "\n".join([*parts[:SHOWN_LINES], f"… {more} more lines"] if more > 0 else parts)


def _story(connection: Recorded, ignored: frozenset[str]) -> Story:
    """Group the texts of a connection's frames by kind."""
    places = _places(connection.event("spawn"))
    story: Story = {}
    story["the arguments"] = [_plain(argument, places) for argument in connection.args]
    for entry in connection.entries:
        if entry.direction in ("in", "out"):
            told = _told(entry, ignored, places)
            if told is not None:
                story.setdefault(told[0], []).append(told[1])
    return story


def _told(entry: Entry, ignored: frozenset[str], places: Mapping[str, str]) -> tuple[str, str] | None:
    frame = entry.frame
    who = "the program's" if entry.direction == "in" else "the peer's"
    if frame is None:
        return f"{who} lines", _plain(entry.data.decode("utf-8", "backslashreplace"), places)
    kind, name = lane_of(frame)
    if kind in _IN_PASSING:
        return None
    if kind != "control_request":
        name = str(frame.get("subtype") or "")
    text = json.dumps(_masked(frame, ignored, places), indent=2, sort_keys=True, ensure_ascii=False)
    return f"{who} {kind} {name}".rstrip(), text


def _masked(value: Any, ignored: frozenset[str], places: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {
            _plain(name, places): "<varies>" if _VARYING.search(name) else _masked(item, ignored, places)
            for name, item in fields.items()
            if name not in ignored and item is not None
        }
    if isinstance(value, list):
        return [_masked(item, ignored, places) for item in cast("list[Any]", value)]
    return _plain(value, places) if isinstance(value, str) else value


def _plain(text: str, places: Mapping[str, str]) -> str:
    for place, word in places.items():
        text = text.replace(place, word)
    return _IDS.sub("<id>", text)


def _places(spawn: Mapping[str, Any]) -> dict[str, str]:
    """Map directories of the run to placeholders, longest first, because one may contain another."""
    found = {str(spawn.get(name) or ""): f"<{name}>" for name in ("cwd", "home")}
    # The CLI names directories of its own after those of the project.
    slugs = {re.sub(r"[^A-Za-z0-9]", "-", place): f"{word[:-1]}-slug>" for place, word in found.items()}
    everything = {place: word for place, word in {**found, **slugs}.items() if len(place) > 1}
    return dict(sorted(everything.items(), key=lambda item: -len(item[0])))
