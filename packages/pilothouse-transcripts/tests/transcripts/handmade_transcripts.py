"""Transcripts made by hand, row by row, in a configuration directory of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

from pilothouse_transcripts import TranscriptProblem, project_key

MODEL = "claude-opus-5-5"


class File:
    """One transcript. Rows follow one another unless a parent is given."""

    def __init__(self, path: Path, cwd: Path, **fields: Any) -> None:
        self.path = path
        self.id = path.stem
        self.fields = {"sessionId": self.id, "cwd": str(cwd), "gitBranch": "main", "entrypoint": "cli", **fields}
        self.last: str | None = None
        self.count = 0

    def line(self, line: bytes | str) -> Self:
        """Any bytes, with a newline behind them."""
        return self.part((line.encode() if isinstance(line, str) else line) + b"\n")

    def part(self, part: bytes) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(part)
        return self

    def note(self, kind: str, **fields: Any) -> Self:
        """A row about the session."""
        return self.line(json.dumps({"type": kind, **fields, "sessionId": self.id}, separators=(",", ":")))

    def row(self, kind: str, *, parent: str | None = "", uuid: str | None = None, **fields: Any) -> str:
        """A row of the conversation; its id."""
        uuid = uuid or str(UUID(int=uuid4().int, version=4))
        self.count += 1
        whole = {
            "parentUuid": self.last if parent == "" else parent,
            "isSidechain": False,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"2026-11-{1 + self.count // 60:02}T12:{self.count % 60:02}:00.000Z",
            **self.fields,
            **fields,
        }
        self.line(json.dumps(whole, separators=(",", ":"), ensure_ascii=False))
        self.last = uuid
        return uuid

    def user(self, content: Any, **fields: Any) -> str:
        return self.row("user", message={"role": "user", "content": content}, **fields)

    def assistant(self, *content: Any, message_id: str | None = None, usage: Any = None, **fields: Any) -> str:
        blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
        key = message_id or f"msg_{self.id[:8]}_{self.count}"
        body = {"id": key, "type": "message", "role": "assistant", "model": MODEL, "content": blocks}
        return self.row("assistant", message={**body, "usage": usage or {"input_tokens": 1}}, **fields)

    def call(self, key: str, **fields: Any) -> str:
        return self.assistant({"type": "tool_use", "id": key, "name": "Bash", "input": {"command": key}}, **fields)

    def answer(self, key: str, **fields: Any) -> str:
        return self.user([{"type": "tool_result", "tool_use_id": key, "content": f"ran {key}"}], **fields)

    def agent(self, agent_id: str, **meta: Any) -> File:
        """The transcript of a sub-agent."""
        folder = self.path.with_suffix("") / "subagents"
        folder.mkdir(parents=True, exist_ok=True)
        if meta:
            (folder / f"agent-{agent_id}.meta.json").write_text(json.dumps(meta))
        side = {"isSidechain": True, "agentId": agent_id, "sessionId": self.id}
        return File(folder / f"agent-{agent_id}.jsonl", Path(self.fields["cwd"]), **side)


class Disk:
    """A configuration directory, and a directory to work in."""

    def __init__(self, root: Path) -> None:
        self.config = root / "config"
        self.cwd = root / "project"
        self.cwd.mkdir(parents=True)
        self.problems: list[TranscriptProblem] = []

    def session(self, cwd: Path | None = None, *, folder: str | None = None, **fields: Any) -> File:
        cwd = cwd or self.cwd
        return File(self.config / "projects" / (folder or project_key(cwd)) / f"{uuid4()}.jsonl", cwd, **fields)

    def talk(self, *output: str, cwd: Path | None = None) -> File:
        """A session in which prompts and answers alternate."""
        file = self.session(cwd)
        for place, text in enumerate(output):
            (file.assistant if place % 2 else file.user)(text)
        return file

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(problem.line, problem.reason) for problem in self.problems]
