"""Recorded transcripts as steps of a fake CLI.

Owns what each entry of a recording means for a child that plays it. How a recording is read is in
`pilothouse.transports.cassettes.form`. Pure: entries in, steps out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, TypeAlias

from pilothouse.transports.cassettes.form import Entry, read_cassette

Step: TypeAlias = tuple[str, list[Any], dict[str, Any]]


def steps_from_transcript(data: bytes, name: str = "the recording") -> list[Step]:
    """The steps that play a recording: waiting for what was sent to the CLI, saying what it said.

    Args:
        data: the recording; the first connection of it is played.
        name: the name of the file, for messages.

    Raises:
        CassetteError: it is no recording, or damaged.
    """
    entries = read_cassette(data, name).connections[0].entries
    steps: list[Step] = []
    # A prompt that was an argument then may come through stdin now.
    if _says(entries, "result") and not any(entry.direction == "in" for entry in entries):
        steps.append(("expect", ["user", None], {}))
    for entry in entries:
        steps.extend(_PLAYED[entry.direction](entry))
    return [*steps, *_ending(entries)]


def _ending(entries: tuple[Entry, ...]) -> list[Step]:
    """How the recorded process ended; a healthy one waited for the end of its stdin."""
    events = {entry.event.get("event"): entry.event for entry in entries if entry.direction == "meta"}
    how = events.get("exit", {})
    code, name = int(how.get("returncode") or 0), how.get("signal")
    if code < 0:
        name = signal.Signals(-code).name
    if name is not None:
        return [("kill", [name], {})]
    spoken = any(entry.direction == "in" for entry in entries)
    waited = "stdin_eof" in events or (not spoken and _says(entries, "result"))
    return [("wait_eof", [], {}), ("exit", [code], {})] if waited else [("exit", [code], {})]


def _says(entries: tuple[Entry, ...], kind: str) -> bool:
    frames = (entry.frame for entry in entries if entry.direction == "out")
    return any(frame is not None and frame["type"] == kind for frame in frames)


def _sent(entry: Entry) -> list[Step]:
    """What was written to the CLI: wait for its like. Lines that were no frames are not waited for."""
    frame = entry.frame or {}
    match frame.get("type"):
        case "user":
            return [("expect", ["user", None], {"rename": frame.get("uuid")})]
        case "control_request":
            subtype = frame["request"].get("subtype")
            return [("expect", ["control_request", subtype], {"rename": frame.get("request_id")})]
        case "control_response":
            return [("expect", ["control_response", None], {})]
        case _:
            return []


def _said(entry: Entry) -> list[Step]:
    frame = entry.frame
    return [("raw", [entry.data.decode("latin-1")], {})] if frame is None else [("emit", [frame], {})]


def _complained(entry: Entry) -> list[Step]:
    return [("stderr", [entry.text.rstrip("\n") + "\n"], {})]


def _nothing(entry: Entry) -> list[Step]:
    return []


_PLAYED: dict[str, Callable[[Entry], list[Step]]] = {
    "in": _sent,
    "out": _said,
    "err": _complained,
    "meta": _nothing,
}
