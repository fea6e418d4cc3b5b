"""The real CLI gives up, and the query is tried again; limits that reset; silence that ends with a saved turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from conversations import both_loops

import pilothouse as ph
from pilothouse.client import retry
from pilothouse.client.retry import CONTINUE_PROMPT
from pilothouse.events import RetryScheduled
from pilothouse.messages import ResultMessage, SystemMessage
from pilothouse.options import RetryPolicy
from pilothouse_testing import Hang, HttpError, Pause, RecordedRequest, ScriptedModel, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

SOON = RetryPolicy(attempts=3, first_delay=0.05, jitter=0.0)
ONCE = RetryPolicy(attempts=1, first_delay=0.01)
LOGIN = {"ANTHROPIC_API_KEY": None, "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-scripted-no-real-token"}


def limited(resets_at: float) -> HttpError:
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(int(resets_at)),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    return HttpError(429, headers=headers)


def texts(request: RecordedRequest) -> list[str]:
    """What the user and the tools have said in a conversation."""
    found: list[str] = []
    for message in request.messages:
        content = message["content"]
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [str(b.get("text") or b.get("content")) for b in blocks if message["role"] == "user"]
    return [text.strip() for text in found if not text.startswith("<system-reminder>")]


@both_loops
@pytest.mark.requirement("E70")
async def test_a_refused_prompt_is_sent_again_in_the_same_child(claude: Any, model: ScriptedModel) -> None:
    for answer in (HttpError(529), HttpError(500), HttpError(429), "Here it is."):
        model.reply(answer)
    query = claude.ask("the question", retry=SOON)
    events = [event async for event in query.events()]
    result = await query.result()
    assert (result.text, result.error) == ("Here it is.", None)
    scheduled = [(e.attempt, e.reason) for e in events if isinstance(e, RetryScheduled)]
    assert scheduled == [(1, "overloaded"), (2, "server"), (3, "rate_limit")]
    assert [r.api_error_status for r in result.messages if isinstance(r, ResultMessage)] == [529, 500, 429, None]
    assert len({r.session_id for r in result.messages if isinstance(r, ResultMessage)}) == 1
    assert texts(model.requests[-1]).count("the question") == 4  # the CLI keeps what failed
    assert result.cost_usd is not None
    assert result.cost_usd > 0


@pytest.mark.requirement("E70")
async def test_work_that_was_begun_goes_on_and_no_tool_runs_twice(claude: Any, model: ScriptedModel) -> None:
    note = Path(claude.cwd) / "note.txt"
    model.reply(ToolUse("Bash", {"command": f"echo once >> {note}"}))
    model.reply(HttpError(529))
    model.reply("All done.")
    result = await claude.ask("write it", retry=SOON, permission_mode="bypassPermissions", env={"IS_SANDBOX": "1"})
    assert result.text == "All done."
    assert note.read_text() == "once\n"
    assert [use.name for use in result.tool_uses] == ["Bash"]
    assert texts(model.requests[-1])[-1] == CONTINUE_PROMPT
    assert result.validate().ok


async def test_an_api_that_cannot_be_reached_is_tried_again(claude: Any) -> None:
    result = await claude.ask(env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, retry=ONCE)
    notes = [m.raw for m in result.messages if isinstance(m, SystemMessage) and m.subtype == "retry_scheduled"]
    assert [note["reason"] for note in notes] == ["network"]
    assert type(result.error) is ph.ExecutionError
    assert "ECONNREFUSED" in str(result.error)
    assert "ANTHROPIC_BASE_URL is http://127.0.0.1:9" in str(result.error)
    assert result.error.api_error_status is None


@pytest.mark.requirement("E70")
async def test_a_used_up_subscription_is_waited_for(
    claude: Any, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "AFTER_RESET_SECONDS", 0.1)
    resets_at = 0

    def reject(_: RecordedRequest) -> HttpError:
        # From now: the CLI reports no limit whose reset has passed, and its start can take seconds.
        nonlocal resets_at
        resets_at = int(time.time()) + 3
        return limited(resets_at)

    model.reply(reject)
    model.reply("after the reset")
    result = await claude.ask(on_usage_limit="wait", env=LOGIN)
    assert result.text == "after the reset"
    assert time.time() >= resets_at
    [note] = [m.raw for m in result.messages if isinstance(m, SystemMessage) and m.subtype == "limit_wait"]
    assert note["until"] >= resets_at


async def test_the_watchdog_knows_that_the_cli_waits_for_the_api(claude: Any, model: ScriptedModel) -> None:
    for answer in (*[HttpError(529)] * 4, "in the end"):
        model.reply(answer)
    # It waits for 0.5, 1, 2 and 4 seconds, the last of them longer than the limit.
    result = await claude.ask(max_retries=4, idle_timeout=3.0, startup_timeout=30)
    assert result.text == "in the end"


@both_loops
async def test_a_stalled_turn_is_saved_and_can_be_resumed(claude: Any, model: ScriptedModel) -> None:
    model.reply(ToolUse("Bash", {"command": "echo found-it"}))
    model.reply(Hang())
    model.default = Text("resumed")
    settings: dict[str, Any] = {"permission_mode": "bypassPermissions", "env": {"IS_SANDBOX": "1"}}
    query = claude.ask("look", idle_timeout=3.0, startup_timeout=30, **settings)
    kinds: list[str] = []

    async def read() -> None:
        async for event in query.events():
            kinds.append(type(event).__name__)

    with pytest.raises(ph.QueryTimeout) as caught:
        await read()
    assert caught.value.kind == "idle_timeout"
    assert "ToolCallFinished" in kinds
    assert kinds[kinds.index("ToolCallFinished") :].count("Stalled") == 1
    await claude.gone()
    assert (await claude.ask("go on", resume=query.session_id, **settings)).text == "resumed"
    assert any("found-it" in text for text in texts(model.requests[-1]))


async def test_a_session_outlives_a_stalled_turn(claude: Any, model: ScriptedModel) -> None:
    model.reply(Pause(60))
    model.default = Text("still here")
    async with claude.session() as session:
        pid = session.pid
        with pytest.raises(ph.QueryTimeout):
            await session.query("one", idle_timeout=1.0, startup_timeout=20)
        assert (await session.query("two")).text == "still here"
        assert session.pid == pid


async def test_a_tool_of_this_process_runs_once(claude: Any, model: ScriptedModel) -> None:
    calls: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        calls.append((a, b))
        return a + b

    model.reply(ToolUse("mcp__tools__add", {"a": 2, "b": 3}))
    model.reply(HttpError(529))
    model.reply("It is 5.")
    result = await claude.ask("2 + 3?", retry=SOON, custom_tools=[add], tool_bridge="deferred")
    assert result.text == "It is 5."
    assert calls == [(2, 3)]
    assert CONTINUE_PROMPT in texts(model.requests[-1])
