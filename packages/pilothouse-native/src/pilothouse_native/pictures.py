"""Pictures of prompts and tool results: each is one that the API takes, or, as in the CLI, a text in its place."""

from __future__ import annotations

from pilothouse.errors import UsageError
from pilothouse.support import run_blocking
from pilothouse_native.wire import JsonObject
from pilothouse_transcripts.pictures import fit_picture_block


async def fit_pictures(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Return content whose pictures the API takes; a text says why a picture is left out."""
    if isinstance(content, str) or not any(block.get("type") == "image" for block in content):
        return content
    return await run_blocking(lambda: [_fit(block) for block in content])


def _fit(block: JsonObject) -> JsonObject:
    if block.get("type") != "image":
        return block
    try:
        return fit_picture_block(block)
    except UsageError as error:
        return {"type": "text", "text": f"[Image could not be processed: {error}]"}
