"""Compares two cassettes: the same messages both ways, except for ids, times and directories.

Owns which fields of a frame may differ between runs, and the text of a difference. Pure.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from pilothouse.transports.cassettes.format import Cassette, CassetteEntry, RecordedConnection
from pilothouse.transports.cassettes.playback import MAX_DIFF_CHARS, MAX_DIFF_LINES, UUID, find_frame_kind

_IDS: Final = re.compile(rf"{UUID.pattern}|\b(?:msg|req|toolu|srvtoolu|hook|task)_[A-Za-z0-9_-]+")
_VARYING_FIELDS: Final = re.compile(r"(_ms|_at|_time|_seconds|_socket_path|timestamp|^pid|^request_id|^time)$|^uuid$")
"""Names of fields with a time, a duration or a process."""
_IGNORED_TYPES: Final = frozenset({"keep_alive", "control_cancel_request", "command_lifecycle"})
"""Frames whose number depends on timing."""
Summary = dict[str, list[str]]


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
        before, after = _make_summary(old, ignored), _make_summary(new, ignored)
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
            parts.extend(line[:MAX_DIFF_CHARS] for line in lines)
    more = len(parts) - MAX_DIFF_LINES
    return "\n".join([*parts[:MAX_DIFF_LINES], f"… {more} more lines"] if more > 0 else parts)


def _make_summary(connection: RecordedConnection, ignored: frozenset[str]) -> Summary:
    """Group the texts of a connection's frames by kind."""
    places = _find_directories(connection.event("spawn"))
    texts: Summary = {}
    texts["the arguments"] = [_replace_paths(argument, places) for argument in connection.args]
    for entry in connection.entries:
        if entry.direction in ("in", "out"):
            summary = _summarize_entry(entry, ignored, places)
            if summary is not None:
                texts.setdefault(summary[0], []).append(summary[1])
    return texts


def _summarize_entry(
    entry: CassetteEntry, ignored: frozenset[str], places: Mapping[str, str]
) -> tuple[str, str] | None:
    frame = entry.frame
    side = "the program's" if entry.direction == "in" else "the CLI's"
    if frame is None:
        return f"{side} lines", _replace_paths(entry.data.decode("utf-8", "backslashreplace"), places)
    kind, name = find_frame_kind(frame)
    if kind in _IGNORED_TYPES:
        return None
    if kind != "control_request":
        name = str(frame.get("subtype") or "")
    text = json.dumps(_mask_varying(frame, ignored, places), indent=2, sort_keys=True, ensure_ascii=False)
    return f"{side} {kind} {name}".rstrip(), text


def _mask_varying(value: Any, ignored: frozenset[str], places: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {
            _replace_paths(name, places): "<varies>"
            if _VARYING_FIELDS.search(name)
            else _mask_varying(item, ignored, places)
            for name, item in fields.items()
            if name not in ignored and item is not None
        }
    if isinstance(value, list):
        return [_mask_varying(item, ignored, places) for item in cast("list[Any]", value)]
    return _replace_paths(value, places) if isinstance(value, str) else value


def _replace_paths(text: str, places: Mapping[str, str]) -> str:
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
