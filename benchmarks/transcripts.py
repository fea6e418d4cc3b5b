"""Sessions on disk to be measured, in the form of CLI 2.1.330: many small ones, or one of a given size.

Owns their shape. Each is the same in every run, so that numbers can be compared.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

from benchmarks.subjects.kept_sessions import LONG_SESSION

MEGABYTE = 1_000_000
PROJECTS = 40  # that the small sessions are spread over
ROWS_OF_SMALL = (4, 20, 40, 80)
WORDS_OF_ROW = (5, 60, 400, 1500)


def write_many(count: int, config: Path) -> None:
    """Write `count` sessions of a few kilobytes to some hundred below the configuration directory `config`."""
    draw = random.Random(1)
    words = _words(draw)
    for number in range(count):
        session = _uuid(draw)
        folder = config / "projects" / f"-home-user-project-{number % PROJECTS}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = _rows(draw, words, session)
        kept = [next(rows) for _ in range(draw.choice(ROWS_OF_SMALL))]
        if number % 3 == 0:
            kept.append(_line({"type": "custom-title", "customTitle": f"Task {number}", "sessionId": session}))
        (folder / f"{session}.jsonl").write_bytes(b"".join(kept))


def write_long(megabytes: int, config: Path) -> None:
    """Write one session of about so many megabytes."""
    draw = random.Random(1)
    folder = config / "projects" / "-home-user-project"
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    with (folder / f"{LONG_SESSION}.jsonl").open("wb") as file:
        for row in _rows(draw, _words(draw), LONG_SESSION):
            written += file.write(row)
            if written >= megabytes * MEGABYTE:
                return


def _rows(draw: random.Random, words: list[str], session: str) -> Iterator[bytes]:
    before: str | None = None
    number = 0
    while True:
        text = " ".join(draw.choices(words, k=draw.choice(WORDS_OF_ROW)))
        row = _uuid(draw)
        is_prompt = number % 2 == 0
        yield _line(
            {
                "parentUuid": before,
                "isSidechain": False,
                "type": "user" if is_prompt else "assistant",
                "message": {"role": "user", "content": text} if is_prompt else _answer(number, text),
                "uuid": row,
                "timestamp": f"2026-11-{1 + number % 20:02d}T08:{number % 60:02d}:13.987Z",
                "userType": "external",
                "entrypoint": "cli",
                "cwd": "/home/user/project",
                "sessionId": session,
                "version": "2.1.330",
                "gitBranch": "main",
            }
        )
        before = row
        number += 1


def _answer(number: int, text: str) -> dict[str, object]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [{"type": "text", "text": text}],
        "usage": {
            "input_tokens": 5,
            "output_tokens": 7,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 3,
        },
    }


def _words(draw: random.Random) -> list[str]:
    return ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(2000)]


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _line(row: dict[str, object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
