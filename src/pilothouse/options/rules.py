"""Which options do not go together, and what to do instead. Pure data and small tests; knows no rendering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

Values = Mapping[str, Any]


OWN_PLACES = frozenset({"CLAUDE_CONFIG_DIR", "HOME"})
"""Variables that an isolated child has values of its own for."""


class Conflict(Struct, frozen=True):
    """Two options that exclude each other, at least where `holds`; `advice` says what to do instead."""

    first: str
    second: str
    advice: str
    holds: Callable[[Values], bool] = lambda values: True


class Need(Struct, frozen=True):
    """An option that means nothing without one of `any_of`."""

    name: str
    any_of: tuple[str, ...]
    advice: str


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and not value.lstrip().startswith("{")


CONFLICTS = (
    Conflict("resume", "continue_conversation", "pass the id of the session, or ask for the latest one, not both"),
    Conflict(
        "session_id",
        "resume",
        "a resumed session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session"),
    ),
    Conflict(
        "session_id",
        "continue_conversation",
        "a continued session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session"),
    ),
    Conflict(
        "append_system_prompt",
        "system_prompt",
        "the preset has an `append` of its own; use one of the two",
        lambda values: getattr(values["system_prompt"], "append", None) is not None,
    ),
    Conflict(
        "permission_mode",
        "restricted",
        "the CLI refuses 'bypassPermissions' there",
        lambda values: values["permission_mode"] == "bypassPermissions",
    ),
    Conflict(
        "sandbox",
        "settings",
        "the sandbox is a part of the settings, and pilothouse does not read their file: pass the settings as a "
        "mapping, or write the sandbox into the file",
        lambda values: _is_path(values["settings"]),
    ),
    Conflict(
        "wait_for_mcp",
        "prompt_via",
        "the argv form starts with the prompt, and has no control protocol to wait with; use 'stdin'",
        lambda values: values["prompt_via"] == "argv",
    ),
    Conflict("isolation", "setting_sources", "it loads no settings files"),
    Conflict("isolation", "config_dir", "it has a directory of its own"),
    Conflict(
        "isolation",
        "env",
        "HOME and CLAUDE_CONFIG_DIR are its own; leave them out of `env`",
        lambda values: not OWN_PLACES.isdisjoint(name for name, value in values["env"].items() if value is not None),
    ),
    Conflict(
        "session_store",
        "enable_file_checkpointing",
        "what files were before stays on the disk of this machine, so that a session from a store cannot bring it back",
    ),
    Conflict(
        "permission_prompt_tool_name",
        "permission_prompts",
        "'none' denies without asking",
        lambda values: values["permission_prompts"] == "none",
    ),
)

NEEDS = (
    Need("fork_session", ("resume", "continue_conversation"), "a fork needs a session to fork from"),
    Need("resume_session_at", ("resume",), "it is a place in the session that is resumed"),
    Need("resume_drops_turn", ("resume_session_at",), "it is given up by resuming before it"),
)
