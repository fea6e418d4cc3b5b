"""What CLI 2.1.330 asked, and how it was answered, in the recordings."""

from __future__ import annotations

import json
from typing import Any

from places import TRANSCRIPTS


def exchanges(name: str, subtype: str = "can_use_tool") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each question of the CLI with the answer that it accepted: the bodies, without the envelopes."""
    (path,) = TRANSCRIPTS.glob(f"{name}_*.ndjson")
    frames = [json.loads(line)["msg"] for line in path.read_text().splitlines()]
    frames = [frame for frame in frames if isinstance(frame, dict)]
    answers = {
        frame["response"]["request_id"]: frame["response"]["response"]
        for frame in frames
        if frame.get("type") == "control_response" and "response" in frame["response"]
    }
    return [
        (frame["request"], answers[frame["request_id"]])
        for frame in frames
        if frame.get("type") == "control_request" and frame["request"]["subtype"] == subtype
    ]


BASH, ALLOWED = exchanges("08")[0]
_, DENIED_AS_RECORDED = exchanges("09")[0]
QUESTION, ANSWERED = exchanges("60")[0]
PLAN, APPROVED = exchanges("61")[0]
