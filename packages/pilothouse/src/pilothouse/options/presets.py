"""The presets: settings to start from, for `Options.preset`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pilothouse.errors import OptionsError
from pilothouse.similar_names import find_similar_name

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings

PresetName: TypeAlias = Literal["read_only", "edit", "full", "untrusted_repository"]

PRESETS: dict[str, Settings] = {
    "read_only": {"tools": ["Read", "Glob", "Grep"], "allowed_tools": [], "permission_mode": "default"},
    "edit": {
        "tools": ["Read", "Glob", "Grep", "Edit", "Write", "NotebookEdit", "Bash"],
        "allowed_tools": ["Edit(**)"],
        "permission_mode": "default",
    },
    "full": {"tools": "default", "allowed_tools": [], "permission_mode": "bypassPermissions"},
    "untrusted_repository": {
        "setting_sources": ["user"],
        "strict_mcp_config": True,
        "permission_mode": "default",
        # In `managed_settings`, `settings` of the caller add to them and do not replace them. Without the rule, the CLI
        # runs `git status` unasked, and git runs programs that the configuration of the repository names.
        "managed_settings": {"disableSkillShellExecution": True, "permissions": {"ask": ["Bash(git:*)"]}},
    },
}
"""The settings of each preset."""


def get_preset(name: str) -> Settings:
    """Return the settings of a preset. Raises OptionsError if there is no such preset."""
    settings = PRESETS.get(name)
    if settings is None:
        near = find_similar_name(str(name), PRESETS, 0.5)
        hint = f"; did you mean {near!r}?" if near else ""
        raise OptionsError(f"there is no preset {name!r}{hint} ({', '.join(PRESETS)})")
    return settings
