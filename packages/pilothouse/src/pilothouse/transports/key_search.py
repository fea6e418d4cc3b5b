"""Where Claude Code finds a key or a login, before it is started. Never their values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pilothouse.options.credentials import CREDENTIAL_VARIABLES

_SETTINGS = ("apiKeyHelper", *CREDENTIAL_VARIABLES)


def get_claude_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of Claude Code's own settings and login."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - it may not exist
    return Path(environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude"))  # noqa: PTH118


def find_key(environ: Mapping[str, str]) -> str | None:
    """Say where Claude Code finds a key or a login, without its value; None if it finds none. Blocking.

    On macOS a login is in the keychain, where this does not look.

    Args:
        environ: the environment of the child.
    """
    if (variable := next((name for name in CREDENTIAL_VARIABLES if environ.get(name, "").strip()), None)) is not None:
        return f"{variable} is set"
    home = get_claude_directory(environ)
    state = home if environ.get("CLAUDE_CONFIG_DIR") else home.parent  # where a Console account's key is
    places = (
        (home / ".credentials.json", ("claudeAiOauth",), f"a login is stored in {home}"),  # beside those at MCP servers
        (state / ".claude.json", ("primaryApiKey",), f"the key of a login is stored in {state / '.claude.json'}"),
        (home / "settings.json", _SETTINGS, f"{home / 'settings.json'} says where to get one"),
    )
    for path, names, found in places:
        with suppress(OSError):
            text = path.read_text("utf-8", "replace")
            if any(f'"{name}"' in text for name in names):
                return found
    return None
