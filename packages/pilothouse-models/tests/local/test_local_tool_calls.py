"""The embedded model calls tools: the whole agent loop with a real, if weak, model. What it says is not checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fetched_files import fetched

import pilothouse as ph
from pilothouse.messages import ToolResultBlock, ToolUseBlock
from pilothouse.provision.pinned_files import managed_cli_path, model_path
from pilothouse_models.local import LocalModel
from pilothouse_testing.scripted_model import hermetic_environment

pytestmark = [pytest.mark.local_model, pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture(scope="module")
def running() -> Iterator[LocalModel]:
    with LocalModel(fetched(model_path()), calls_tools=True) as model:
        yield model


def settings(model: LocalModel, home: Path, **more: Any) -> dict[str, Any]:
    (home / "tmp").mkdir()
    options = model.options()
    env = {**hermetic_environment(home, base_url=model.url), **options["env"]}
    return {**options, "cli": fetched(managed_cli_path()), "cwd": home, "inherit_env": False, "env": env, **more}


@pytest.mark.requirement("E83")
async def test_a_tool_is_really_called(running: LocalModel, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The cat is on the roof.\n")
    asked: list[str] = []

    async def allow(request: ph.PermissionRequest) -> bool:
        asked.append(request.tool_name)
        return request.tool_name == "Read"

    given = settings(running, tmp_path, tools=["Read"], can_use_tool=allow, max_turns=6)
    result = await ph.query("Read the file notes.txt and say what is in it.", **given)
    blocks = [block for message in result.messages for block in getattr(message, "content", None) or ()]
    calls = {block.id: block for block in blocks if isinstance(block, ToolUseBlock)}
    answered = [block for block in blocks if isinstance(block, ToolResultBlock)]
    assert calls
    assert {call.name for call in calls.values()} == {"Read"}
    assert all(isinstance(call.input.get("file_path"), str) for call in calls.values())
    assert {block.tool_use_id for block in answered} == set(calls)
    assert result.is_success
    assert result.text


async def test_functions_are_tools_as_well(running: LocalModel, tmp_path: Path) -> None:
    called: list[str] = []

    @ph.tool
    def capital(country: str) -> str:
        """The capital of a country."""
        called.append(country)
        return "Paris"

    given = settings(running, tmp_path, custom_tools=[capital], max_turns=6)
    result = await ph.query("Use the tool to find the capital of France.", **given)
    assert result.is_success
    assert called
    assert all(0 < len(country) <= 120 for country in called)
