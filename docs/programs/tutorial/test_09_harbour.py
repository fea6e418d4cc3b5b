"""Test a program that uses an agent, without a key and without a network.

pytest test_09_harbour.py
"""

import pytest

import pilothouse as ph
from pilothouse_testing import HttpError, ScriptedModel, Steps, ToolUse

# The program under test; yours is in a module of its own.
PIERS = {"Fram": 3, "Gjoa": 7}


def find_pier(ship: str) -> int:
    """The pier at which a ship lies."""
    return PIERS[ship]


harbour = ph.Agent(tools=[], custom_tools=[find_pier], max_turns=5)


async def answer(question: str, options: ph.Options | None = None) -> str:
    result = await harbour.query(question, options)
    if isinstance(result.error, ph.OverloadedError):
        return "Please ask again in a minute."
    return result.raise_for_error().text


# The tests
@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def options(scripted_model: ScriptedModel, real_cli: str) -> ph.Options:
    """The real CLI with the scripted model, and nothing else of this machine."""
    return ph.Options(
        cli=real_cli,
        env=scripted_model.env(max_retries=0),
        inherit_env=False,
        cwd=scripted_model.home,
    )


@pytest.mark.anyio
async def test_the_model_learns_the_pier(
    scripted_model: ScriptedModel,
    options: ph.Options,
) -> None:
    call = ToolUse("mcp__tools__find_pier", {"ship": "Gjoa"})
    scripted_model.on("Where is the Gjoa?", reply=Steps([call], "At pier 7."))
    assert await answer("Where is the Gjoa?", options) == "At pier 7."
    assert scripted_model.requests[-1].tool_text == "7"
    scripted_model.assert_done()


@pytest.mark.anyio
async def test_an_overloaded_model_is_no_crash(
    scripted_model: ScriptedModel,
    options: ph.Options,
) -> None:
    scripted_model.default = HttpError(529)
    said = await answer("Where is the Gjoa?", options)
    assert said == "Please ask again in a minute."
