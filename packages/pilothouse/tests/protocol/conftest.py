"""Recorded wire bytes for the protocol tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


class Recording:
    """What the peer wrote in one transcript: its lines, and which of them are control frames."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.lines: list[bytes] = []
        self.kinds: list[str] = []
        for text in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(text)
            if entry["dir"] != "out":
                continue
            msg = entry["msg"]
            if "_raw" in msg:
                self.lines.append(msg["_raw"].rstrip("\n").encode())
                self.kinds.append("")
            else:
                self.lines.append(json.dumps(msg, ensure_ascii=False, separators=(",", ":")).encode())
                self.kinds.append(msg["type"])

    @property
    def wire(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)


@pytest.fixture(scope="session")
def recordings(transcripts: list[Path]) -> dict[str, Recording]:
    found = {path.stem: Recording(path) for path in transcripts}
    assert len(found) > 100
    return found
