"""`query`: one prompt, or a stream of prompts, and the messages that answer it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from ._internal.transport import Transport
from .types import ClaudeAgentOptions, Message


def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: Transport | None = None,
) -> AsyncIterator[Message]:
    """Send a prompt, and iterate over the messages.

    Args:
        prompt: a text, or user messages in the form of the wire, which are sent as they come.
        options: the settings.
        transport: reaches the CLI in another way; settings that are flags of the CLI have no effect then.

    Raises:
        ProcessError: the CLI has failed; a `ResultError` after a message with an error result.
        CLINotFoundError: there is no CLI.
        ValueError, TypeError: a setting cannot work.
    """
    # Here, so that the import of a program stays short.
    from ._internal.client import InternalClient

    return InternalClient().process_query(prompt=prompt, options=options or ClaudeAgentOptions(), transport=transport)
