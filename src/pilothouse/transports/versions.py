"""Version numbers of Claude Code: reading and comparing them. Pure; knows no files and no processes."""

from __future__ import annotations

import re
from functools import lru_cache

OLDEST_VERSION = (2, 0, 0)
OLDEST = ".".join(map(str, OLDEST_VERSION))


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The first version number in `text`, such as (2, 1, 330) in "2.1.330 (Claude Code)"."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


@lru_cache(maxsize=64)  # every query of a process asks for the same one
def is_old(version: str) -> bool:
    """Whether `version` is known and older than the oldest that is supported. (R1)"""
    parsed = parse_version(version)
    return parsed is not None and parsed < OLDEST_VERSION
