"""The conversation of a session: the messages for the model, and the rows of its transcript.

Owns the order of messages, the rows in the CLI's own format, and when they are written. The engine reads
sessions that the CLI wrote, and the CLI reads those of the engine. Knows no turn and no frames.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from pilothouse.support import decode_line, encode_json
from pilothouse_native.wire import JsonObject, as_object
from pilothouse_transcripts.conversation import read_conversation
from pilothouse_transcripts.edits import make_timestamp
from pilothouse_transcripts.paths import SUFFIX, find_file, get_projects_directory, project_key
from pilothouse_transcripts.rows import SPOKEN_TYPES, list_visible, open_transcript, read_part

CLI_VERSION: Final = "2.1.332"
"""The CLI version whose wire and transcript formats this engine uses."""
ENTRYPOINT: Final = "sdk-pilothouse"
MISSING_TOOL_RESULT: Final = "[Tool result missing due to internal error]"
_METADATA_TYPES: Final = frozenset({"custom-title", "ai-title", "tag", "cost-state"})
"""Types of rows outside the conversation that a fork copies."""


class History:
    """One conversation. Create it in a thread: the constructor looks for its place on disk.

    `cost_row` is the last row of costs that was read.
    """

    def __init__(self, session_id: str, cwd: Path, config_dir: Path, *, persists: bool) -> None:
        self.session_id = session_id
        self.messages: list[JsonObject] = []
        self.prompt_id = ""
        self.cost_row: JsonObject = {}
        self._cwd = cwd
        self._config_dir = config_dir
        self._folder = get_projects_directory(config_dir) / project_key(cwd)
        self._is_persistent = persists
        self._pending: list[JsonObject] = []
        self._last_uuid: str | None = None
        self._file: Path | None = None

    @property
    def path(self) -> Path:
        """The file of the transcript, even if it is not written."""
        return self._file or self._folder / f"{self.session_id}{SUFFIX}"

    def restart(self, session_id: str) -> None:
        """Start another session in place of this one."""
        self.session_id, self.messages, self._last_uuid, self._file = session_id, [], None, None

    # Messages.

    def add_prompt(self, content: str | Sequence[JsonObject], mode: str, name: str | None = None) -> str:
        """Add a prompt of the user; returns the uuid of its row."""
        self.prompt_id = str(uuid.uuid4())
        return self.add_user_message(content, name, permissionMode=mode, promptSource="sdk")

    def add_user_message(self, content: str | Sequence[JsonObject], name: str | None = None, **fields: Any) -> str:
        """Add a user message for the model."""
        self._add_message("user", content)
        message = {"role": "user", "content": content if isinstance(content, str) else list(content)}
        row = {"promptId": self.prompt_id, "type": "user", "message": message, **fields}
        return self._append_row(row, name)

    def add_reply(
        self, blocks: Sequence[JsonObject], message: Mapping[str, Any], names: Sequence[str], **fields: Any
    ) -> None:
        """Add a reply of the model: one row for each block, as in the CLI."""
        # The API rejects messages without content and blank texts.
        kept = [(b, n) for b, n in zip(blocks, names, strict=True) if b.get("type") != "text" or b["text"].strip()]
        if kept:
            self._add_message("assistant", [block for block, _ in kept])
        for place, (block, name) in enumerate(kept):
            row = {"message": {**message, "content": [block]}, "apiBlockIndex": place, "type": "assistant"}
            self._append_row(row | fields, name)

    def add_failure(self, message: Mapping[str, Any], name: str, **fields: Any) -> None:
        """Add an API failure, which is in the transcript but never sent to the model."""
        self._append_row({"message": message, "type": "assistant", "isApiErrorMessage": True, **fields}, name)

    def replace_with_summary(self, summary: str, metadata: Mapping[str, Any]) -> str:
        """Replace all messages by a summary; returns the uuid of the boundary row."""
        before, self._last_uuid = self._last_uuid, None
        self.messages = []
        boundary = {"logicalParentUuid": before, "type": "system", "subtype": "compact_boundary", "isMeta": False}
        fields = {"content": "Conversation compacted", "level": "info", "compactMetadata": dict(metadata)}
        name = self._append_row(boundary | fields)
        self.add_user_message(summary, isVisibleInTranscriptOnly=True, isCompactSummary=True)
        return name

    def add_metadata(self, kind: str, **fields: Any) -> None:
        """Add a row outside the conversation."""
        self._pending.append({"type": kind, **fields, "sessionId": self.session_id})

    def _add_message(self, role: str, content: str | Sequence[JsonObject]) -> None:
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != role:
            self.messages.append({"role": role, "content": _to_blocks(content)})
        else:
            last["content"] += _to_blocks(content)

    def _append_row(self, row: JsonObject, name: str | None = None) -> str:
        name = name or str(uuid.uuid4())
        head = {"parentUuid": self._last_uuid, "isSidechain": False}
        tail = {"userType": "external", "entrypoint": ENTRYPOINT, "cwd": str(self._cwd), "sessionId": self.session_id}
        about = {"uuid": name, "timestamp": make_timestamp()}
        self._pending.append(head | row | about | tail | {"version": CLI_VERSION})
        self._last_uuid = name
        return name

    def make_request_messages(self) -> list[JsonObject]:
        """Make the messages for a request; a call without a result gets one that says so."""
        found: list[JsonObject] = []
        open_calls: list[str] = []
        for message in self.messages:
            blocks: list[JsonObject] = list(message["content"])
            if message["role"] == "user":
                given = {block.get("tool_use_id") for block in blocks}
                blocks = [*_make_missing_results(key for key in open_calls if key not in given), *blocks]
                open_calls = []
            elif open_calls:
                found.append({"role": "user", "content": _make_missing_results(open_calls)})
            if message["role"] == "assistant":
                open_calls = [block["id"] for block in blocks if block.get("type") == "tool_use"]
            found.append({"role": message["role"], "content": blocks})
        return found

    # The file.

    def take_pending(self) -> list[JsonObject]:
        """Return the pending rows and clear them."""
        rows, self._pending = self._pending, []
        return rows

    def write(self, rows: Sequence[JsonObject]) -> None:
        """Append rows to the transcript. Blocking; raises OSError."""
        if not self._is_persistent or not rows:
            return
        path = self.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = b"".join(encode_json(row) + b"\n" for row in rows)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(28, "no space left on device: a row is not whole", str(path))
        finally:
            os.close(descriptor)

    def exists(self) -> bool:
        """Whether a session with this id exists already. Blocking."""
        return find_file(self.session_id, self._cwd, self._config_dir) is not None

    def resume(self, session_id: str, *, up_to: str | None = None, fork: bool = False) -> bool:
        """Resume a session, up to the row with the uuid `up_to`; returns False if it does not exist. Blocking.

        A `fork` leaves the old session unchanged: its rows are copied to this session's own id.
        """
        path = find_file(session_id, self._cwd, self._config_dir)
        if path is None:
            return False
        with open_transcript(path) as file:
            rows = read_conversation(file, path, up_to=up_to)
            lines = [cast("JsonObject", decode_line(read_part(file, row))) for row in rows]
        notes = [row for row in _read_metadata(path) if row.get("type") in _METADATA_TYPES]
        self.cost_row = next((row for row in reversed(notes) if row["type"] == "cost-state"), dict[str, Any]())
        steering = {row.uuid for row in list_visible(rows) if row.is_steering}
        for row in lines:
            if row.get("uuid") in steering:
                if words := row["attachment"].get("prompt"):  # the API rejects blank texts
                    self._add_message("user", words)
            elif row.get("type") in SPOKEN_TYPES and not row.get("isApiErrorMessage"):
                message: JsonObject = row["message"]
                self._add_message(message["role"], message["content"])
        self._last_uuid = next((str(row["uuid"]) for row in reversed(lines) if row.get("uuid")), None)
        if fork:
            self._pending += [{**row, "sessionId": self.session_id} for row in [*notes, *lines]]
        else:
            self.session_id, self._file = session_id, path
        return True


def _to_blocks(content: str | Sequence[JsonObject]) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _make_missing_results(keys: Any) -> list[JsonObject]:
    return [
        {"type": "tool_result", "tool_use_id": key, "content": MISSING_TOOL_RESULT, "is_error": True} for key in keys
    ]


def _read_metadata(path: Path) -> list[JsonObject]:
    """Read the rows outside the conversation; broken lines are skipped."""
    found: list[JsonObject] = []
    for line in path.read_bytes().split(b"\n"):
        if b'"parentUuid"' not in line[:200]:
            with suppress(ValueError):
                found.append(as_object(json.loads(line)))
    return found
