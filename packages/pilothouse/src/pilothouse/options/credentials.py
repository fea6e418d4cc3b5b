"""What the CLI authenticates with: names for texts, never a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pilothouse.options.value_types import TRUE_WORDS

PROVIDER_NAMES: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}
"""The variables that choose a cloud provider, and its name."""
KEY_VARIABLE: Final = "ANTHROPIC_API_KEY"
TOKEN_VARIABLES: Final = ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
"""The variables with a token, the one that counts first."""
CREDENTIAL_VARIABLES: Final = (KEY_VARIABLE, *TOKEN_VARIABLES, *PROVIDER_NAMES)
"""The variables by which the CLI finds a key, a token or a cloud provider, the first one that counts first."""


def find_provider(env: Mapping[str, str]) -> str | None:
    """Return the name of the cloud provider that the environment of a child chooses, if any."""
    chosen = (name for variable, name in PROVIDER_NAMES.items() if _is_on(env.get(variable, "")))
    return next(chosen, None)


def _is_on(value: str) -> bool:
    return value.strip().lower() in TRUE_WORDS


def name_credential(source: str | None, env: Mapping[str, str] | None) -> str:
    """Name what a request was sent with, such as "the key in ANTHROPIC_API_KEY".

    Args:
        source: `api_key_source` of the init message; None: not known.
        env: the environment of the child; None: not known.
    """
    known = env or {}
    provider = find_provider(known)
    if provider is not None:
        return f"the credentials for {provider}"
    if source is None and known.get(KEY_VARIABLE):
        source = KEY_VARIABLE
    token = next((f"the token in {name}" for name in TOKEN_VARIABLES if known.get(name)), None)
    if source is None or source == "none":
        return token or ("the login" if source is not None and env is not None else "the key or the login")
    key = f"the key in {source}" if source.isupper() else f"the key of {source}"
    return f"{key}, or {token}," if known.get(TOKEN_VARIABLES[0]) else key  # the CLI sends both
