"""Version numbers of Claude Code: parsing and comparing. Pure; knows no files and no processes."""

from __future__ import annotations

import re
from functools import lru_cache

OLDEST_SUPPORTED = (2, 0, 0)
OLDEST_SUPPORTED_TEXT = ".".join(map(str, OLDEST_SUPPORTED))


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Return the first version number in `text`, such as (2, 1, 330) in "2.1.330 (Claude Code)"."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


@lru_cache(maxsize=64)  # every query of a process passes the same one
def is_old(version: str) -> bool:
    """Return whether `version` is known and older than the oldest supported version."""
    parsed = parse_version(version)
    return parsed is not None and parsed < OLDEST_SUPPORTED
