"""The real CLI fails: every failure of the API, of its stream and of the CLI itself has its own typed error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.client.event_reader import EventReader
from pilothouse.errors import RefusalError, StartupRefusedError
from pilothouse.events import ApiRetry, TextRetracted
from pilothouse.messages import ApiRetryMessage, RateLimitEvent
from pilothouse_testing import (
    BrokenSse,
    Hang,
    HttpError,
    Reply,
    ScriptedModel,
    Steps,
    StreamError,
    Text,
    Times,
    ToolUse,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

RESETS_AT = 4102444800
LIMITED = {
    "anthropic-ratelimit-unified-status": "rejected",
    "anthropic-ratelimit-unified-reset": str(RESETS_AT),
    "anthropic-ratelimit-unified-representative-claim": "five_hour",
}
ANSWER = "This is the whole answer."


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (HttpError(400, message="prompt is too long: 9 tokens > 8"), ph.ContextOverflowError, "shorten"),
        (HttpError(400), ph.ExecutionError, "not valid"),
        (HttpError(401), ph.AuthenticationError, "ANTHROPIC_API_KEY"),
        (HttpError(402), ph.QuotaError, "balance"),
        (HttpError(403), ph.AuthenticationError, "permission"),
        (HttpError(404), ph.InvalidModelError, "option model"),
        (HttpError(413), ph.ContextOverflowError, "shorten"),
        (HttpError(429), ph.RateLimitError, "rate limit"),
        (HttpError(500), ph.ExecutionError, "Internal server error"),
        (HttpError(529), ph.OverloadedError, "Overloaded"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, HttpError) else None,
)
@pytest.mark.requirement("E67", "L43")
async def test_each_failure_of_the_api_has_its_error(
    claude: Any, model: ScriptedModel, failure: HttpError, kind: type[ph.ResultError], words: str
) -> None:
    model.default = failure
    result = await claude.ask()
    assert type(result.error) is kind
    assert words in str(result.error)
    assert result.outcome == "error"
    assert result.validate().ok
    # The CLI keeps the status to itself when it has words of its own for what happened.
    assert result.error.api_error_status in (failure.status, None)
    with pytest.raises(kind):
        result.raise_for_error()


TOKEN = "sk-ant-oat01-scripted-no-real-token"
REFUSED_KEYS: dict[str, dict[str, Any]] = {
    "the key in ANTHROPIC_API_KEY": {},
    "the token in ANTHROPIC_AUTH_TOKEN": {"env": {"ANTHROPIC_API_KEY": None, "ANTHROPIC_AUTH_TOKEN": TOKEN}},
    "the token in CLAUDE_CODE_OAUTH_TOKEN": {"env": {"ANTHROPIC_API_KEY": None}, "oauth_token": TOKEN},
    "the key of apiKeyHelper": {"env": {"ANTHROPIC_API_KEY": None}, "settings": {"apiKeyHelper": f"echo {TOKEN}"}},
    "the key in ANTHROPIC_API_KEY, or the token in ANTHROPIC_AUTH_TOKEN,": {"auth_token": TOKEN},
}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("name", REFUSED_KEYS)
async def test_a_refused_key_is_named_by_its_variable(
    claude: Any, model: ScriptedModel, name: str, status: int
) -> None:
    model.default = HttpError(status)
    result = await claude.ask(**REFUSED_KEYS[name])
    assert type(result.error) is ph.AuthenticationError
    text = str(result.error)
    assert result.error.api_error_status == status
    verb = "the API refused" if status == 401 else "the API does not permit this with"
    assert f"{verb} {name}" in text
    assert "Not logged in" not in text
    assert "log in by running" not in text
    assert TOKEN not in text


async def test_a_session_names_the_refused_token(claude: Any, model: ScriptedModel) -> None:
    model.default = HttpError(401)
    env = {**model.env(max_retries=0), "ANTHROPIC_API_KEY": None}
    async with claude.session(env=env, auth_token=TOKEN) as session:
        result = await session.query("go")
        assert "the API refused the token in ANTHROPIC_AUTH_TOKEN" in str(result.error)


@pytest.mark.requirement("E70")
async def test_retries_are_reported_and_may_succeed(claude: Any, model: ScriptedModel) -> None:
    model.on(reply=Steps(Times(2, HttpError(529)), ANSWER))
    query = claude.ask(max_retries=2)
    events = [event async for event in query.events()]
    retries = [e.message for e in events if isinstance(e, ApiRetry)]
    assert [(r.attempt, r.error_status, r.error) for r in retries] == [(1, 529, "overloaded"), (2, 529, "overloaded")]
    assert all(isinstance(r, ApiRetryMessage) and r.retry_delay_ms > 0 for r in retries)
    assert (await query.result()).text == ANSWER


@pytest.mark.requirement("E70")
async def test_a_used_up_subscription_says_when_it_resets(claude: Any, model: ScriptedModel) -> None:
    model.default = HttpError(429, headers=LIMITED)
    login = {"ANTHROPIC_API_KEY": None, "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-scripted-no-real-token"}
    result = await claude.ask(env=login)
    assert type(result.error) is ph.QuotaError
    assert result.error.resets_at == RESETS_AT
    (limit,) = [m for m in result.messages if isinstance(m, RateLimitEvent)]
    assert limit.rate_limit_info.status == "rejected"


@pytest.mark.parametrize(
    "broken",
    [
        StreamError(Text(ANSWER, chunks=5)),
        StreamError([Text(ANSWER, chunks=5)], after=0, type="api_error", message="boom"),
        BrokenSse("bad_json", Text(ANSWER, chunks=5)),
        BrokenSse("no_stop", Text(ANSWER, chunks=5)),
        BrokenSse("cut", Text(ANSWER, chunks=5)),
        BrokenSse("empty", ANSWER),
        BrokenSse("html", ANSWER),
        BrokenSse("no_response", ANSWER),
    ],
    ids=lambda broken: getattr(broken, "kind", "stream_error"),
)
async def test_a_broken_stream_is_reported_once(claude: Any, model: ScriptedModel, broken: Any) -> None:
    model.reply(broken)
    model.default = Text(ANSWER, chunks=2)
    query = claude.ask(max_retries=1)
    assert "".join([text async for text in query.text_stream()]) == ANSWER
    result = await query.result()
    assert (result.text, result.full_text) == (ANSWER, ANSWER)
    assert standing_text(result) == ANSWER


def standing_text(result: ph.QueryResult) -> str:
    """The text that the events leave standing: what was added, less what was withdrawn."""
    reader, text = EventReader(), ""
    for message in result.messages:
        for event in reader.read(message):
            if isinstance(event, ph.TextDelta):
                text += event.text
            elif isinstance(event, TextRetracted):
                assert text.endswith(event.text)
                text = text.removesuffix(event.text)
    return text


async def test_a_stream_that_breaks_three_times_is_reported_once(claude: Any, model: ScriptedModel) -> None:
    model.reply(BrokenSse("no_stop", Text(ANSWER, chunks=[ANSWER[:9], ANSWER[9:15], "", ""])))
    model.reply(BrokenSse("no_stop", Text(ANSWER, chunks=[ANSWER[:4], ANSWER[4:]])))
    model.reply(Text(ANSWER, chunks=3))
    query = claude.ask(max_retries=3)
    texts = [text async for text in query.text_stream()]
    assert "".join(texts) == ANSWER
    assert standing_text(await query.result()) == ANSWER
    assert len(model.requests) == 3


async def test_an_error_in_the_stream_without_a_second_try(claude: Any, model: ScriptedModel) -> None:
    model.default = StreamError(Text(ANSWER, chunks=5))
    query = claude.ask(env={"CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1"})
    texts: list[str] = []
    with pytest.raises(ph.OverloadedError):  # noqa: PT012 - raised by the loop
        async for text in query.text_stream():
            texts.append(text)
    result = await query.result()
    assert isinstance(result.error, ph.OverloadedError)
    assert "".join(texts).startswith(ANSWER[:8])
    assert result.text in ("".join(texts), "")


@pytest.mark.requirement("E67")
async def test_without_any_key(claude: Any) -> None:
    result = await claude.ask(env={"ANTHROPIC_API_KEY": None})
    assert type(result.error) is ph.AuthenticationError
    assert result.error.api_error_status is None
    assert "Not logged in (set ANTHROPIC_API_KEY, pass api_key=" in str(result.error)
    assert (result.text, result.full_text) == ("", "")


@pytest.mark.requirement("L10", "L11", "E7")
async def test_limits(claude: Any, model: ScriptedModel) -> None:
    model.default = ToolUse("Bash", {"command": "true"})
    settings = {"permission_mode": "bypassPermissions"}
    result = await claude.ask(max_turns=2, **settings)
    assert type(result.error) is ph.MaxTurnsError
    assert "max_turns" in str(result.error)
    assert result.session_id
    poor = await claude.ask(max_budget_usd=0.000001, **settings)
    assert type(poor.error) is ph.BudgetError
    assert poor.result is not None
    assert poor.result.errors


async def test_a_refusal(claude: Any, model: ScriptedModel) -> None:
    model.default = Reply("", stop_reason="refusal")
    result = await claude.ask()
    assert type(result.error) is RefusalError


@pytest.mark.requirement("G41")
async def test_what_the_cli_refuses_at_the_start(claude: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ph.CLIExitedError) as caught:
        await claude.ask(mcp_servers=str(tmp_path / "broken.json"))
    assert caught.value.exit_code == 1
    words = "MCP config is not a valid JSON"
    assert words in str(caught.value)
    assert words in caught.value.stderr


async def refused_query(claude: Any, **settings: Any) -> Any:
    return (await claude.ask(**settings)).error


async def refused_session(claude: Any, env: dict[str, str], **settings: Any) -> Any:
    with pytest.raises(StartupRefusedError) as caught:
        await claude.session(env={**claude.model.env(), **env}, **settings).start()
    return caught.value


REFUSED: dict[str, dict[str, Any]] = {
    "proxy_invalid": {"env": {"HTTPS_PROXY": "::nonsense::"}},
    "temp_dir_unusable": {"env": {"CLAUDE_CODE_TMPDIR": "/proc/none"}},
    "config_file_invalid": {"env": {}},
    "sideload_flags_disabled": {
        "env": {},
        "managed_settings": {"disableSideloadFlags": True},
        "plugins": ["/tmp"],
    },
    "org_pin_api_key_conflict": {
        "env": {},
        "managed_settings": {"forceLoginOrgUUID": "11111111-1111-4111-8111-111111111111"},
    },
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("ask", [refused_query, refused_session])
@pytest.mark.parametrize("reason", REFUSED)
async def test_a_refused_start_has_its_reason(reason: str, ask: Any, claude: Any) -> None:
    if claude.version < (2, 1, 332):
        pytest.skip("this CLI has fewer reasons")
    config = claude.home / ".claude" / ".claude.json"
    if reason == "config_file_invalid":
        config.parent.mkdir(exist_ok=True)
        config.write_text("{broken")
    error = await ask(claude, **REFUSED[reason])
    assert type(error) is StartupRefusedError
    assert error.reason == error.result.startup_failure_reason == reason
    assert (error.result.invalid_config_file or {}).get("path") == (str(config) if "config" in reason else None)
    assert not claude.model.requests


@pytest.mark.requirement("R1", "G41")
async def test_a_flag_that_the_cli_does_not_know(claude: Any) -> None:
    with pytest.raises(ph.CLIVersionError, match=r"does not know the flag --no-such-flag: update it") as caught:
        await claude.ask(extra_args={"no-such-flag": "hunter2"})
    assert "hunter2" not in f"{caught.value} {caught.value.stderr}"


@pytest.mark.requirement("L30", "E10", "G46", "G47")
async def test_timeouts_end_the_child(claude: Any, model: ScriptedModel) -> None:
    model.default = Hang()
    with pytest.raises(ph.QueryTimeout) as caught:
        await claude.ask(timeout=1.5)
    assert caught.value.kind == "timeout"
    assert not claude.processes()
    with pytest.raises(ph.QueryTimeout) as caught:
        await claude.ask(idle_timeout=1.0)
    assert caught.value.kind == "idle_timeout"
    assert not claude.processes()
