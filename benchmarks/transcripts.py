"""Sessions on disk to be measured, in the form of CLI 2.1.330: many small ones, or one of a given size.

Owns their shape. Each is the same in every run, so that numbers can be compared.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.subjects.kept_sessions import LONG_SESSION, WANTED

MEGABYTE = 1_000_000
PROJECTS = 40  # that the small sessions are spread over
ROWS_OF_SMALL = (4, 8, 16, 32)
WORDS_OF_SMALL = (5, 40, 200)  # in a row
WORDS_OF_LONG = (5, 60, 400, 1500)
ROWS_OF_SEARCHED = (60, 120, 180)
WORDS_OF_SEARCHED = (5, 60, 400)
SESSIONS_TO_A_HIT = 50


def write_many(number_of: int, config: Path) -> None:
    """Write so many sessions of a few kilobytes to a few hundred below the configuration directory `config`."""
    for number, (file, kept) in enumerate(_make_sessions(number_of, config, WORDS_OF_SMALL, ROWS_OF_SMALL)):
        if number % 3 == 0:
            kept.append({"type": "custom-title", "customTitle": f"Task {number}", "sessionId": file.stem})
        file.write_bytes(b"".join(map(_line, kept)))


def write_searched(number_of: int, config: Path) -> None:
    """Write so many sessions of about 150 kilobytes; every fiftieth has the wanted words once."""
    for number, (file, kept) in enumerate(_make_sessions(number_of, config, WORDS_OF_SEARCHED, ROWS_OF_SEARCHED)):
        if number % SESSIONS_TO_A_HIT == 0:
            kept[-2]["message"]["content"] += f" {WANTED.title()} "
        file.write_bytes(b"".join(map(_line, kept)))


def _make_sessions(
    number_of: int, config: Path, words: tuple[int, ...], lengths: tuple[int, ...]
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Draw sessions: the file of each, whose folder is there, and its rows."""
    draw = random.Random(1)
    for number in range(number_of):
        session = _uuid(draw)
        folder = config / "projects" / f"-home-user-project-{number % PROJECTS}"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder / f"{session}.jsonl", list(islice(rows(session, draw, words), draw.choice(lengths)))


def write_long(size: int, config: Path) -> None:
    """Write one session of about so many bytes."""
    folder = config / "projects" / "-home-user-project"
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    with (folder / f"{LONG_SESSION}.jsonl").open("wb") as file:
        for row in rows(LONG_SESSION, random.Random(1), WORDS_OF_LONG):
            written += file.write(_line(row))
            if written >= size:
                return


def rows(session: str, draw: random.Random, words: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """A conversation without end, in rows as the CLI writes them, each with one of these numbers of `words`."""
    before: str | None = None
    for number in count():
        text = " ".join(draw.choices(WORDS, k=draw.choice(words)))
        is_prompt = number % 2 == 0
        row: dict[str, Any] = {
            "parentUuid": before,
            "isSidechain": False,
            "type": "user" if is_prompt else "assistant",
            "message": {"role": "user", "content": text} if is_prompt else _answer(number, text),
            "uuid": _uuid(draw),
            "timestamp": f"2026-11-{1 + number % 20:02d}T08:{number % 60:02d}:13.987Z",
            "userType": "external",
            "entrypoint": "cli",
            "cwd": "/home/user/project",
            "sessionId": session,
            "version": "2.1.330",
            "gitBranch": "main",
        }
        yield row
        before = row["uuid"]


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


_LETTERS = random.Random(0)
WORDS = ["".join(_LETTERS.choices("abcdefghijklmnop", k=_LETTERS.randint(2, 9))) for _ in range(2000)]


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _line(row: dict[str, object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
