"""Recordings of the real CLI, spoiled: bytes, lines, and the values of every field. Pure; one seed, one mutant."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

from places import TRANSCRIPTS

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1e308, 10**30, -(10**400), 2**63, 0.1, "", "x", "\ud800", "\x00", "null", [], [[]], {},
    {"": None}, [None], ["x", 1], {"type": 1}, {"type": "text"}, "2026-13-45T99:99:99Z", "result", "success",
    "control_request", "tool_deferred",
)  # fmt: skip
DEPTH = 3000
Lines = list[bytes]


class Recording:
    """What one run of the CLI said.

    Args:
        path: of the recording.

    Attributes:
        before: lines up to the answer to the handshake.
        after: the rest.
        ids: those of what was sent to the CLI: of the handshake, and of the first prompt.
    """

    def __init__(self, path: Path) -> None:
        entries = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        output = [_line(entry["msg"]) for entry in entries if entry["dir"] == "out"]
        sent = [entry["msg"] for entry in entries if entry["dir"] == "in" and isinstance(entry["msg"], dict)]
        hello = next((m["request_id"] for m in sent if m.get("type") == "control_request"), "")
        prompt = next((m.get("uuid") or "" for m in sent if m.get("type") == "user"), "")
        at = next((n for n, line in enumerate(output) if hello and b'"control_response"' in line), -1)
        self.name = path.name
        self.before, self.after = output[: at + 1], output[at + 1 :]
        self.ids = (hello, prompt)


def _line(message: Any) -> bytes:
    if isinstance(message, dict) and "_raw" in message:
        raw = cast("dict[str, Any]", message)["_raw"]
        return str(raw).encode("utf-8", "surrogatepass").rstrip(b"\n") + b"\n"
    return json.dumps(message).encode() + b"\n"


@cache
def recordings() -> tuple[Recording, ...]:
    return tuple(Recording(path) for path in sorted(TRANSCRIPTS.glob("*.ndjson")))


# on lines


def flip(random: Random, lines: Lines) -> None:
    at = random.randrange(len(lines))
    line = bytearray(lines[at])
    for _ in range(random.choice((1, 1, 3, 20))):
        line[random.randrange(len(line))] = random.randrange(256)
    lines[at] = bytes(line)


def drop(random: Random, lines: Lines) -> None:
    del lines[random.randrange(len(lines))]


def repeat(random: Random, lines: Lines) -> None:
    at = random.randrange(len(lines))
    lines.insert(random.randrange(len(lines) + 1), lines[at])


def swap(random: Random, lines: Lines) -> None:
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def cut(random: Random, lines: Lines) -> None:
    at = random.randrange(len(lines))
    end = b"\n" if random.random() < 0.5 else b""
    lines[at] = lines[at][: random.randrange(len(lines[at]))] + end


def merge(random: Random, lines: Lines) -> None:
    at = random.randrange(len(lines))
    lines[at] = lines[at].rstrip(b"\n")


def stop(random: Random, lines: Lines) -> None:
    del lines[random.randrange(len(lines)) :]


def borrow(random: Random, lines: Lines) -> None:
    other = random.choice(recordings()).after
    if other:
        lines.insert(random.randrange(len(lines) + 1), random.choice(other))


def nest(random: Random, lines: Lines) -> None:
    at = random.randrange(len(lines))
    deep = b"[" * DEPTH + b"]" * DEPTH
    lines[at] = random.choice((deep + b"\n", lines[at].replace(b"null", deep, 1), lines[at].replace(b'""', deep, 1)))


def inject(random: Random, lines: Lines) -> None:
    lines.insert(random.randrange(len(lines) + 1), bytes(random.randrange(256) for _ in range(random.randrange(40))))


# on values


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value, with every key of it."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, key) for key in cast("dict[str, Any]", value)]
    elif isinstance(value, list):
        found += [(value, at) for at in range(len(cast("list[Any]", value)))]
    for container, key in list(found):
        found += places(container[key])
    return found


def replace(random: Random, frame: Any, container: Any, key: Any) -> None:
    container[key] = random.choice(ODD)


def take_out(random: Random, frame: Any, container: Any, key: Any) -> None:
    del container[key]


def rename(random: Random, frame: Any, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[random.choice(("type", "subtype", "id", "x", key + "_"))] = cast("dict[str, Any]", container).pop(key)


def exchange(random: Random, frame: Any, container: Any, key: Any) -> None:
    other, name = random.choice(places(frame))
    container[key] = json.loads(json.dumps(other[name]))


def wrap(random: Random, frame: Any, container: Any, key: Any) -> None:
    container[key] = random.choice(([container[key]], {"value": container[key]}, json.dumps(container[key])))


VALUES: tuple[Callable[[Random, Any, Any, Any], None], ...] = (replace, replace, take_out, rename, exchange, wrap)
TOP = ("type", "subtype", "request_id", "uuid", "message", "result", "is_error", "event", "request", "response", "id")


def field(random: Random, lines: Lines) -> None:
    at = random.randrange(len(lines))
    try:
        frame: Any = json.loads(lines[at])
    except (ValueError, RecursionError):
        return
    found = places(frame) if lines[at].count(b"[") < DEPTH else []
    top_level = [place for place in found if place[1] in TOP]
    if found:
        container, key = random.choice(top_level if top_level and random.random() < 0.5 else found)
        random.choice(VALUES)(random, frame, container, key)
    lines[at] = json.dumps(frame).encode() + b"\n"


CHANGES: tuple[Callable[[Random, Lines], None], ...] = (
    flip, drop, repeat, swap, cut, merge, stop, borrow, nest, inject, field, field, field, field, field,
)  # fmt: skip


def mutant(seed: int) -> tuple[str, Lines, Lines, tuple[str, str]]:
    """Name of the recording, lines before and after the handshake, and the ids that stand in them."""
    random = Random(seed)
    recording = random.choice(recordings())
    before, after = list(recording.before), list(recording.after)
    for _ in range(random.choice((1, 1, 2, 4, 10))):
        lines = after if random.random() < 0.85 or not before else before
        if lines:
            random.choice(CHANGES)(random, lines)
            lines[:] = filter(None, lines)
    return recording.name, before, after, recording.ids
