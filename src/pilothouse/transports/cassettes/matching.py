"""Compares what a program sends now with the recording: ids are mapped, the order of keys is irrelevant.

Owns the comparison of two frames, the mapping of ids, and the text of a difference. Pure. Must not know when a frame
is expected, or what follows it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

UUID: Final = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_UUID_BYTES: Final = re.compile(UUID.pattern.encode())
REQUEST: Final = "request_id"
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
