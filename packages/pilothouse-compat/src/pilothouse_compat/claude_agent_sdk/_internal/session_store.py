"""Stores of sessions: `InMemorySessionStore`, the summary of a session, and the names of projects."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from pilothouse_transcripts import project_key
from pilothouse_transcripts.stores import fold_summary

from ..types import (
    SDKSessionInfo,
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
)


def project_key_for_directory(directory: str | Path | None = None) -> str:
    """Return the name of a directory's project in stores and on the disk; None: the current directory."""
    return project_key("." if directory is None else directory)


def fold_session_summary(
    prev: SessionSummaryEntry | None, key: SessionKey, entries: list[SessionStoreEntry]
) -> SessionSummaryEntry:
    """Return the summary of a session with these entries added; the store sets `mtime`."""
    added = cast("list[dict[str, Any]]", entries)
    if prev is None:
        return {"session_id": key["session_id"], "mtime": 0, "data": fold_summary(None, added)}
    return {"session_id": prev["session_id"], "mtime": prev["mtime"], "data": fold_summary(prev["data"], added)}


def summary_entry_to_sdk_info(entry: SessionSummaryEntry, project_path: str | None) -> SDKSessionInfo | None:
    """Return what lists show of a session; None for an empty one, and for one of a sub-agent."""
    data = entry["data"]
    prompt = (data.get("first_prompt") if data.get("first_prompt_locked") else data.get("command_fallback")) or None
    title = data.get("custom_title") or data.get("ai_title") or None
    summary = title or data.get("last_prompt") or data.get("summary_hint") or prompt or data.get("content_hint")
    if not summary or data.get("is_sidechain"):
        return None
    return SDKSessionInfo(
        session_id=entry["session_id"],
        summary=summary,
        last_modified=entry["mtime"],
        custom_title=title,
        first_prompt=prompt,
        git_branch=data.get("git_branch") or None,
        cwd=data.get("cwd") or project_path or None,
        tag=data.get("tag") or None,
        created_at=data.get("created_at"),
    )


class InMemorySessionStore(SessionStore):
    """Sessions in the memory of this process."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str], list[SessionStoreEntry]] = {}
        self._summaries: dict[tuple[str, str, str], SessionSummaryEntry] = {}
        self._times: dict[tuple[str, str, str], int] = {}

    @staticmethod
    def _get_place(key: Any) -> tuple[str, str, str]:
        return key["project_key"], key["session_id"], key.get("subpath") or ""

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        if not entries:
            return
        place = self._get_place(key)
        self._entries.setdefault(place, []).extend(entries)
        now = max(int(time.time() * 1000), max(self._times.values(), default=0) + 1)  # no two are the same
        if not place[2]:
            self._times[place] = now
            folded = fold_session_summary(self._summaries.get(place), key, entries)
            self._summaries[place] = {**folded, "mtime": now}

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        found = self._entries.get(self._get_place(key))
        return None if found is None else list(found)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        return [{"session_id": place[1], "mtime": at} for place, at in self._times.items() if place[0] == project_key]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        return [found for place, found in self._summaries.items() if place[0] == project_key]

    async def delete(self, key: SessionKey) -> None:
        place = self._get_place(key)
        gone = [each for each in self._entries if each == place or (not place[2] and each[:2] == place[:2])]
        for each in gone:
            for kept in (self._entries, self._summaries, self._times):
                cast("dict[Any, Any]", kept).pop(each, None)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        main = self._get_place(key)[:2]
        return [place[2] for place in self._entries if place[:2] == main and place[2]]

    def get_entries(self, key: SessionKey) -> list[SessionStoreEntry]:
        """Return a copy of the entries, none for an unknown key."""
        return list(self._entries.get(self._get_place(key), []))

    @property
    def size(self) -> int:
        return len(self._times)

    def clear(self) -> None:
        for kept in (self._entries, self._summaries, self._times):
            kept.clear()
