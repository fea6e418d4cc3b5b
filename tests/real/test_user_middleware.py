"""Middlewares of the user on the real CLI: prompts after results, beside retries and typed output."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pilothouse.client import Middleware, NextPrompt
from pilothouse.messages import ResultMessage
from pilothouse.options import RetryPolicy
from pilothouse_testing import HttpError, ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


class AskAgain(Middleware):
    """Sends one more prompt, and keeps what it was asked about."""

    results: ClassVar[list[str | None]] = []  # of all instances

    def __init__(self) -> None:
        self.results.clear()

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        self.results.append(result.result)
        return self.make_next_prompt("Now test it, see @notes.txt") if len(self.results) == 1 else None


async def test_another_prompt_after_a_result(claude: Any, model: ScriptedModel) -> None:
    model.reply("Renamed.")
    model.reply("Tested.")
    (claude.cwd / "notes.txt").write_text("private")
    result = await claude.ask("Rename it", middleware=[AskAgain])
    assert (result.text, result.turns, result.is_success) == ("Tested.", 2, True)
    assert [m.result for m in result.messages if isinstance(m, ResultMessage)] == ["Renamed.", "Tested."]
    last = str(model.requests[-1].messages)
    assert "Rename it" in last
    assert "Now test it, see @notes.txt" in last
    assert "private" not in last


async def test_failures_that_are_retried_reach_no_other_middleware(claude: Any, model: ScriptedModel) -> None:
    for answer in (HttpError(529), "Renamed.", HttpError(529), "Tested."):
        model.reply(answer)
    result = await claude.ask("Rename it", middleware=[AskAgain], retry=RetryPolicy(attempts=3, first_delay=0.05))
    assert result.text == "Tested."
    assert AskAgain.results == ["Renamed.", "Tested."]
