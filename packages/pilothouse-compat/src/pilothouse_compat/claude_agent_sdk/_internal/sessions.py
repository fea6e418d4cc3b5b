"""Sessions on the disk of this machine: list, read, and change them."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pilothouse_transcripts as transcripts
from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse_transcripts import SessionInfo, project_key
from pilothouse_transcripts.paths import (
    find_project_directories,
    get_config_directory,
    get_projects_directory,
    resolve_directory,
)

from ..types import SDKSessionInfo, SessionMessage
from .session_store import (
    project_key_for_directory as project_key_for_directory,
)

# Programs import these from here to find files of sessions.
_canonicalize_path = resolve_directory
_sanitize_path = project_key
_get_claude_config_home_dir = get_config_directory


@dataclass
class ForkSessionResult:
    """The id of a fork."""

    session_id: str


def list_sessions(
    directory: str | None = None, limit: int | None = None, offset: int = 0, include_worktrees: bool = True
) -> list[SDKSessionInfo]:
    """List the sessions of a directory, or of all, newest first."""
    found = transcripts.list_sessions(directory or None, limit, offset, include_worktrees)
    return [make_info(each, directory) for each in found]


def get_session_info(session_id: str, directory: str | None = None) -> SDKSessionInfo | None:
    """Return what lists show of a session; None if there is none."""
    found = transcripts.get_session_info(session_id, directory or None) if is_id(session_id) else None
    return None if found is None else make_info(found, directory)


def get_session_messages(
    session_id: str, directory: str | None = None, limit: int | None = None, offset: int = 0
) -> list[SessionMessage]:
    """Return the messages of a session, in order."""
    if not is_id(session_id):
        return []
    return make_messages(transcripts.get_session_messages(session_id, directory or None, limit, offset))


def list_subagents(session_id: str, directory: str | None = None) -> list[str]:
    """Return the ids of the sub-agents of a session."""
    return transcripts.list_subagents(session_id, directory or None) if is_id(session_id) else []


def get_subagent_messages(
    session_id: str, agent_id: str, directory: str | None = None, limit: int | None = None, offset: int = 0
) -> list[SessionMessage]:
    """Return the messages of a sub-agent, in order."""
    if not is_id(session_id) or not agent_id:
        return []
    found = transcripts.get_subagent_messages(session_id, agent_id, directory or None, limit, offset)
    return make_messages(found, is_subagent=True)


def rename_session(session_id: str, title: str, directory: str | None = None) -> None:
    """Set the title of a session.

    Raises ValueError if the id is not valid or the title is empty, and FileNotFoundError if there is no such session.
    """
    if is_checked(session_id) and not title.strip():
        raise ValueError("title must be non-empty")
    with explain_errors(session_id, directory):
        transcripts.rename_session(session_id, title, directory or None)


def tag_session(session_id: str, tag: str | None, directory: str | None = None) -> None:
    """Set the tag of a session; None removes it. Raises as `rename_session` does."""
    is_checked(session_id)
    with explain_errors(session_id, directory):
        transcripts.tag_session(session_id, tag, directory or None)


def delete_session(session_id: str, directory: str | None = None) -> None:
    """Remove a session. Raises as `rename_session` does."""
    is_checked(session_id)
    with explain_errors(session_id, directory):
        transcripts.delete_session(session_id, directory or None)


def fork_session(
    session_id: str, directory: str | None = None, up_to_message_id: str | None = None, title: str | None = None
) -> ForkSessionResult:
    """Copy a session up to a message. Raises FileNotFoundError if there is no such session.

    Raises ValueError if an id is not valid, there is no such message, or the session is empty.
    """
    is_checked(session_id)
    check_message_id(up_to_message_id)
    with explain_errors(session_id, directory):
        made = transcripts.fork_session(session_id, directory or None, up_to_message_id or None, title)
    return ForkSessionResult(made.session_id)


def is_id(text: Any) -> bool:
    try:
        return isinstance(text, str) and str(UUID(text)) == text.lower()
    except ValueError:
        return False


def is_checked(session_id: Any) -> bool:
    """Return True for a session id; raise ValueError for any other value."""
    if not is_id(session_id):
        raise ValueError(f"Invalid session_id: {session_id}")
    return True


def check_message_id(message_id: str | None) -> None:
    """Raise ValueError if this is neither empty nor the id of a message."""
    if message_id and not is_id(message_id):
        raise ValueError(f"Invalid up_to_message_id: {message_id}")


@contextmanager
def explain_errors(session_id: str, directory: str | None) -> Generator[None]:
    """Turn errors of the block into those that programs expect: ValueError and FileNotFoundError."""
    try:
        yield
    except SessionNotFoundError as error:
        where = f" in project directory for {directory}" if directory else _describe_projects()
        raise FileNotFoundError(f"Session {session_id} not found{where}") from error
    except UsageError as error:
        known = (text for words, text in _TEXTS.items() if words in str(error))
        raise ValueError(next(known, "{error}").format(id=session_id, error=error)) from error


_TEXTS: Final = {
    "nothing to fork": "Session {id} has no messages to fork",
    "no message": "Message not found in session {id}: {error}",
    "a tag": "tag must be non-empty (use None to clear)",
}
"""Texts that programs match, by words of the error of pilothouse."""


def _describe_projects() -> str:
    config = Path(os.path.expanduser(os.environ.get("CLAUDE_CONFIG_DIR") or "~/.claude"))  # noqa: PTH111 - may be no home
    return "" if (config / "projects").is_dir() else " (no projects directory)"


def resolve(directory: str | None) -> str:
    """Return the real path of a directory; None: of the current one."""
    return os.path.realpath(directory or ".")


def make_info(found: SessionInfo, directory: str | None) -> SDKSessionInfo:
    title = found.custom_title or found.ai_title
    return SDKSessionInfo(
        session_id=found.session_id,
        summary=found.summary,
        last_modified=found.last_modified,
        file_size=found.file_size,
        custom_title=title,
        first_prompt=found.first_prompt,
        git_branch=found.git_branch,
        cwd=found.cwd or (resolve(directory) if directory else None),
        tag=found.tag,
        created_at=found.created_at,
    )


def make_messages(
    found: list[Any], *, is_subagent: bool = False, parent_agent_id: str | None = None
) -> list[SessionMessage]:
    """Return messages of a transcript in the form of this package."""
    made: list[SessionMessage] = []
    for each in found:
        row: Mapping[str, Any] = each.raw
        made.append(
            SessionMessage(
                type=row["type"],
                uuid=row.get("uuid", ""),
                session_id=row.get("sessionId") or row.get("session_id") or "",
                message=row.get("message"),
                parent_tool_use_id=each.parent_tool_use_id if is_subagent else None,
                parent_agent_id=parent_agent_id,
            )
        )
    return made


def _get_projects_dir(env_override: Mapping[str, str] | None = None) -> Path:
    return get_projects_directory((env_override or {}).get("CLAUDE_CONFIG_DIR"))


def _get_project_dir(project_path: str) -> Path:  # pyright: ignore[reportUnusedFunction]
    return _get_projects_dir() / project_key(project_path)


def _find_project_dir(project_path: str) -> Path | None:  # pyright: ignore[reportUnusedFunction]
    return next(iter(find_project_directories(project_path)), None)
