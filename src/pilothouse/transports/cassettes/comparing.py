"""Compares two cassettes: the same messages both ways, except for ids, times and directories.

Owns which fields of a frame may differ between runs, and the text of a difference. Pure.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from pilothouse.transports.cassettes.form import Cassette, Entry, Recorded
from pilothouse.transports.cassettes.matching import SHOWN_CHARS, SHOWN_LINES, UUID
from pilothouse.transports.cassettes.playback import lane_of

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
