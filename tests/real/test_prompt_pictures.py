"""Pictures with the real CLI: it scales those of prompts and tools; `write_history` those of a history."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import pilothouse as ph
from pilothouse_testing import HttpError, ScriptedModel, Steps, ToolUse
from pilothouse_transcripts import write_history

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


def draw(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


WIDE = draw(9000, 90)


def find_pictures(value: Any) -> Iterator[tuple[int, int]]:
    """The sizes of all pictures in a request."""
    if isinstance(value, list):
        for item in value:
            yield from find_pictures(item)
    elif isinstance(value, dict):
        if value.get("type") == "image":
            with Image.open(io.BytesIO(base64.b64decode(value["source"]["data"]))) as picture:
                yield picture.size
        for item in value.values():
            yield from find_pictures(item)


def shown(model: ScriptedModel) -> list[tuple[int, int]]:
    return list(find_pictures(list(model.requests[-1].messages)))


async def test_the_cli_scales_the_picture_of_a_prompt(claude: Any, model: ScriptedModel) -> None:
    model.default = "a line"
    await claude.ask([ph.image(WIDE), "What is this?"], tools=[])
    ((width, height),) = shown(model)
    assert width <= 2000
    assert height < 90


async def test_the_cli_scales_the_picture_of_a_tool(claude: Any, model: ScriptedModel) -> None:
    @ph.tool
    def look() -> bytes:
        """Look."""
        return WIDE

    model.reply(Steps([ToolUse("mcp__tools__look", {})], "a line"))
    await claude.ask(custom_tools=[look], permission_mode="bypassPermissions")
    ((width, _),) = shown(model)
    assert width <= 2000


async def test_a_conversation_goes_on_after_a_picture_that_the_api_refuses(claude: Any, model: ScriptedModel) -> None:
    refused = "messages.0.content.0.image.source.base64.data: Could not process image"
    model.reply(HttpError(400, "invalid_request_error", refused))
    model.default = "fine"
    first = await claude.ask([ph.image(draw(9, 9)), "What is this?"], tools=[])
    assert first.text == "fine"
    await claude.ask("And now?", resume=first.session_id, tools=[])
    assert shown(model) == []


async def test_a_picture_that_nobody_can_read_becomes_a_text(claude: Any, model: ScriptedModel) -> None:
    model.default = "fine"
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"words").decode()}
    assert (await claude.ask([{"type": "image", "source": source}], tools=[])).text == "fine"
    assert shown(model) == []
    assert "[Image could not be processed" in str(model.requests[-1].messages)


async def test_a_picture_of_a_history_is_scaled_before(
    claude: Any, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CLI (2.1.332) resumes it as it is: 9000 pixels are more than the API takes, in each request."""
    model.default = "fine"
    config: Path = claude.home / ".claude"
    history: list[Any] = [{"role": "user", "content": [ph.image(WIDE)]}, {"role": "assistant", "content": "a line"}]
    key = write_history(history, claude.cwd, config_dir=config)
    await claude.ask("How long?", resume=key, tools=[])
    assert shown(model) == [(2000, 20)]
