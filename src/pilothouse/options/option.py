"""One row of the table of options, and the CLI version that first accepts each flag.

Plain data; this module must not know single options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from pilothouse.options.secrets import MASK
from pilothouse.options.targets import Internal, Target, list_flags, list_initialize_keys
from pilothouse.options.value_types import ValueType


class Option(Struct, frozen=True):
    """One row of the table.

    Args:
        name: the name in Python.
        value_type: what a valid value is.
        target: where the value goes.
        doc: what the option does, in sentences.
        default: the value while the option is not set.
        secret: its values are never shown.
        in_files: whether a configuration file may set it.
        untrusted: None: an untrusted configuration file cannot set this option. Otherwise the option only restricts
            or tunes, and this function returns whether the value of the file (first) may replace the value of a
            variable (second). An option that can run, redirect or permit something, that reads or writes a file, that
            puts text before the model, or that removes the user's own rules, stays None.
        group: its title in the docs and the help.
    """

    name: str
    value_type: ValueType
    target: Target
    doc: str
    default: Any = None
    secret: bool = False
    in_files: bool = True
    untrusted: Callable[[Any, Any], bool] | None = None
    group: str = ""

    @property
    def min_cli_version(self) -> str:
        """The version of the CLI that first accepts the option; "" if it is not known, or if any version does."""
        names = (*list_flags(self.target), *list_initialize_keys(self.target))
        if isinstance(self.target, Internal):
            names = (self.target.wire_name,)
        return MIN_CLI_VERSIONS.get(names[0], "") if names else ""

    def format_value(self, value: Any) -> str:
        """Return `value` as text, with possible keys masked."""
        return MASK if self.secret else self.value_type.format_value(value)


def allow_any(value: Any, other: Any) -> bool:
    """Accept every value, for options that neither loosen nor restrict anything."""
    return True


def is_not_greater(value: Any, other: Any) -> bool:
    """Whether a limit is not loosened."""
    return value <= other


def is_on(value: Any, other: Any) -> bool:
    """Whether a switch that takes something away is on."""
    return bool(value)


def is_subset(value: Collection[str] | str, other: Collection[str] | str) -> bool:
    """Whether a list of available things gains nothing; a word stands for an unknown list."""
    return value == other or not (isinstance(value, str) or isinstance(other, str) or set(value) - set(other))


def is_superset(value: Collection[str], other: Collection[str]) -> bool:
    """Whether a list of forbidden things loses nothing."""
    return set(value) >= set(other)


MIN_CLI_VERSIONS: dict[str, str] = {
    # Flags, found by running releases with each of them. "2.0.20 (2.0.0)" means: 2.0.20 accepts it, 2.0.0 does not,
    # and the releases between were not tried. Flags that 2.0.0 accepts are not listed.
    "max-thinking-tokens": "2.0.20",  # (2.0.0)
    "allow-dangerously-skip-permissions": "2.0.28",  # (2.0.20)
    "plugin-dir": "2.0.28",  # (2.0.20)
    "max-budget-usd": "2.0.32",  # (2.0.28)
    "tools": "2.0.32",  # (2.0.28)
    "append-system-prompt-file": "2.0.37",  # (2.0.32)
    "json-schema": "2.0.45",  # (2.0.37)
    "agent": "2.0.64",  # (2.0.56)
    "betas": "2.0.64",  # (2.0.56)
    "disable-slash-commands": "2.0.64",  # (2.0.56)
    "no-session-persistence": "2.0.64",  # (2.0.56)
    "rewind-files": "2.0.72",  # (2.0.56)
    "debug-file": "2.1.30",  # (2.1.0)
    "effort": "2.1.40",  # (2.1.30)
    "thinking": "2.1.50",  # (2.1.40)
    "bare": "2.1.83",  # (2.1.50)
    "name": "2.1.83",  # (2.1.50)
    "exclude-dynamic-system-prompt-sections": "2.1.98",  # (2.1.83)
    "include-hook-events": "2.1.98",  # (2.1.83)
    "session-mirror": "2.1.98",  # (2.1.83)
    "task-budget": "2.1.98",  # (2.1.83)
    "thinking-display": "2.1.98",  # (2.1.83)
    "managed-settings": "2.1.119",  # (2.1.112)
    "plan-mode-instructions": "2.1.119",  # (2.1.112)
    "plugin-dir-no-mcp": "2.1.172",  # (2.1.150)
    "prompt-suggestions": "2.1.172",  # (2.1.150)
    "safe-mode": "2.1.172",  # (2.1.150)
    "append-subagent-system-prompt": "2.1.223",  # (2.1.200)
    "forward-subagent-text": "2.1.223",  # (2.1.200)
    "resume-drops-turn": "2.1.223",  # (2.1.200)
    "restricted": "2.1.250",  # (2.1.223)
    "append-subagent-system-prompt-file": "2.1.270",  # (2.1.250)
    "await-initialize": "2.1.270",  # (2.1.250)
    "permission-prompts": "2.1.270",  # (2.1.250)
    "system-prompt-snapshot": "2.1.270",  # (2.1.250)
    "project-config-root": "2.1.290",  # (2.1.270)
    "managed-settings-in-initialize": "2.1.330",  # (2.1.310)
    # Keys of the initialize request, read from the code of the same releases: older releases ignore them silently.
    "appendSystemPrompt": "2.0.45",  # (2.0.37)
    "jsonSchema": "2.0.45",  # (2.0.37)
    "systemPrompt": "2.0.45",  # (2.0.37)
    "promptSuggestions": "2.1.50",  # (2.1.40)
    "agentProgressSummaries": "2.1.83",  # (2.1.50)
    "excludeDynamicSections": "2.1.98",  # (2.1.83)
    "forwardSubagentText": "2.1.119",  # (2.1.112)
    "planModeInstructions": "2.1.119",  # (2.1.112)
    "skills": "2.1.119",  # (2.1.112)
    "title": "2.1.119",  # (2.1.112)
    "toolAliases": "2.1.150",  # (2.1.119)
    "supportedDialogKinds": "2.1.172",  # (2.1.150)
    "perTaskStopAffordance": "2.1.250",  # (2.1.223)
    "sdkMcpServerConfigs": "2.1.250",  # (2.1.223)
    "plugins": "2.1.270",  # (2.1.250)
    "sdkMcpServerManifests": "2.1.270",  # (2.1.250)
    "systemPromptSnapshot": "2.1.270",  # (2.1.250)
    "sdkMcpServerManifestsOrigin": "2.1.290",  # (2.1.270)
    "managedSettings": "2.1.330",  # (2.1.310)
    "mcpServers": "2.1.330",  # (2.1.310)
    # Protocol words, read in the same way.
    "client_composed": "2.1.248",
}
"""A flag without dashes, a key of the initialize request or a protocol word, and the first version with it."""
