"""What the CLI authenticates with has a name in texts, and never a value."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pilothouse.options.credentials import find_provider, name_credential

KEY = {"ANTHROPIC_API_KEY": "k1"}
TOKEN = {"ANTHROPIC_AUTH_TOKEN": "t1"}
OAUTH = {"CLAUDE_CODE_OAUTH_TOKEN": "o1"}


@pytest.mark.parametrize(
    ("source", "env", "name"),
    [
        ("ANTHROPIC_API_KEY", KEY, "the key in ANTHROPIC_API_KEY"),
        ("ANTHROPIC_API_KEY", None, "the key in ANTHROPIC_API_KEY"),
        ("ANTHROPIC_API_KEY", KEY | OAUTH, "the key in ANTHROPIC_API_KEY"),
        ("ANTHROPIC_API_KEY", KEY | TOKEN, "the key in ANTHROPIC_API_KEY, or the token in ANTHROPIC_AUTH_TOKEN,"),
        ("apiKeyHelper", {}, "the key of apiKeyHelper"),
        ("none", TOKEN | OAUTH, "the token in ANTHROPIC_AUTH_TOKEN"),
        ("none", OAUTH, "the token in CLAUDE_CODE_OAUTH_TOKEN"),
        ("none", {}, "the login"),
        ("none", None, "the key or the login"),
        (None, None, "the key or the login"),
        (None, {}, "the key or the login"),
        (None, KEY, "the key in ANTHROPIC_API_KEY"),
        (None, TOKEN, "the token in ANTHROPIC_AUTH_TOKEN"),
        ("none", {"CLAUDE_CODE_USE_BEDROCK": "1", **TOKEN}, "the credentials for Amazon Bedrock"),
    ],
)
def test_a_credential_is_named(source: str | None, env: Mapping[str, str] | None, name: str) -> None:
    assert name_credential(source, env) == name


def test_a_provider_counts_if_its_variable_is_on() -> None:
    assert find_provider({"CLAUDE_CODE_USE_VERTEX": "true"}) == "Google Vertex AI"
    assert find_provider({"CLAUDE_CODE_USE_VERTEX": "0"}) is None
    assert find_provider({}) is None
