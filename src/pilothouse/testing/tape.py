"""Recorded transcripts as steps of a fake CLI.

Owns reading the recording format, one JSON object `{"t", "dir", "msg"}` a line, and what each line means for a child
that plays it. Pure: text in, steps out.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any, TypeAlias, cast

Step: TypeAlias = tuple[str, list[Any], dict[str, Any]]


def steps_from_transcript(text: str) -> list[Step]:
    """The steps that play a recording: waiting for what was sent to the CLI, saying what it said.

    Args:
        text: the recording.
    """
    entries = [cast("dict[str, Any]", json.loads(line)) for line in text.splitlines() if line.strip()]
    steps: list[Step] = []
    # A prompt that was an argument then may come through stdin now.
    if _says(entries, "result") and not any(entry["dir"] == "in" for entry in entries):
        steps.append(("expect", ["user", None], {}))
    for entry in entries:
        steps.extend(_PLAYED[entry["dir"]](entry["msg"]))
    return [*steps, *_ending(entries)]


def _ending(entries: list[dict[str, Any]]) -> list[Step]:
    """How the recorded process ended; a healthy one waited for the end of its stdin."""
    events = {entry["msg"]["event"]: entry["msg"] for entry in entries if entry["dir"] == "meta"}
    code = int(events.get("exit", {}).get("returncode", 0))
    if code < 0:
        return [("kill", [signal.Signals(-code).name], {})]
    spoken = any(entry["dir"] == "in" for entry in entries)
    waited = "stdin_eof" in events or (not spoken and _says(entries, "result"))
    return [("wait_eof", [], {}), ("exit", [code], {})] if waited else [("exit", [code], {})]


def _says(entries: list[dict[str, Any]], kind: str) -> bool:
    return any(e["dir"] == "out" and _is_frame(e["msg"]) and e["msg"]["type"] == kind for e in entries)


def _is_frame(message: Any) -> bool:
    return isinstance(message, dict) and "type" in message


def _sent(message: Any) -> list[Step]:
    """What was written to the CLI: wait for its like. Lines that were no frames are not waited for."""
    if not _is_frame(message):
        return []
    match message["type"]:
        case "user":
            return [("expect", ["user", None], {"rename": message.get("uuid")})]
        case "control_request":
            subtype = message["request"].get("subtype")
            return [("expect", ["control_request", subtype], {"rename": message.get("request_id")})]
        case "control_response":
            return [("expect", ["control_response", None], {})]
        case _:
            return []


def _said(message: Any) -> list[Step]:
    if _is_frame(message):
        return [("emit", [message], {})]
    # A line that was no JSON is recorded under "_raw".
    line: Any = cast("dict[str, Any]", message).get("_raw", "") if isinstance(message, dict) else message
    data = (str(line).rstrip("\n") + "\n").encode("utf-8", "surrogatepass")
    return [("raw", [data.decode("latin-1")], {})]


def _complained(message: Any) -> list[Step]:
    return [("stderr", [str(message).rstrip("\n") + "\n"], {})]


def _nothing(message: Any) -> list[Step]:
    return []


_PLAYED: dict[str, Callable[[Any], list[Step]]] = {
    "in": _sent,
    "out": _said,
    "err": _complained,
    "meta": _nothing,
}
