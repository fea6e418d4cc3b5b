"""Tests of a program that asks Claude Code, without a key or a network.

pytest test_reviewer.py
"""

import pytest

import pilothouse as ph
from pilothouse_testing import HttpError, ScriptedModel, Steps, ToolUse

reviewer = ph.Agent(tools=["Read"], allowed_tools=["Read"], max_turns=4)


async def review(path: str, options: ph.Options | None = None) -> str:
    """The program under test: it lets the model read a file and returns the verdict."""
    result = await reviewer.query(f"Review {path}", options)
    return result.raise_for_error().text


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def options(scripted_model: ScriptedModel, real_cli: str) -> ph.Options:
    """Options that lead the real CLI to the scripted model, and keep it from everything else on this machine."""
    env = scripted_model.env(max_retries=0)
    return ph.Options(cli=real_cli, env=env, inherit_env=False, cwd=scripted_model.home)


@pytest.mark.anyio
async def test_the_model_gets_the_file(scripted_model: ScriptedModel, options: ph.Options) -> None:
    path = scripted_model.home / "app.py"
    path.write_text("print(1 / 0)\n")
    plan = Steps([ToolUse("Read", {"file_path": str(path)})], "It divides by zero.")
    scripted_model.on("Review", reply=plan)
    assert await review(str(path), options) == "It divides by zero."
    assert "print(1 / 0)" in scripted_model.requests[-1].tool_text
    scripted_model.assert_done()


@pytest.mark.anyio
async def test_an_overloaded_api(scripted_model: ScriptedModel, options: ph.Options) -> None:
    scripted_model.default = HttpError(529)
    with pytest.raises(ph.OverloadedError):
        await review("app.py", options)
