"""Failed API requests are not kept from the program: one warning a query, and a timeout that names the last one."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import anyio
import pytest
from failing_api import ask_each
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse.messages import ApiRetryMessage
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

ADDRESS = "http://127.0.0.1:9"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, "pilothouse")
    return lambda: [record.getMessage() for record in caplog.records if "API" in record.getMessage()]


def retry(attempt: int, status: int | None = None, error: str = "unknown", **fields: Any) -> dict[str, Any]:
    return frames.api_retry(attempt, max_retries=10, status=status, error=error, **fields)


def failing(times: int, *, hangs: bool = False, **fields: Any) -> Any:
    async def act(cli: Cli, say: Say, text: str) -> str:
        for attempt in range(1, times + 1):
            await say(retry(attempt, **fields))
        if hangs:
            await anyio.sleep_forever()
        return "here at last"

    return act


ask = partial(ask_each, env={"ANTHROPIC_BASE_URL": ADDRESS})


async def test_the_second_retry_is_logged_once(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = failing(5)
    await ask(cli, kind, "go")
    (text,) = warned()
    assert text.startswith(f"the API at {ADDRESS} could not be reached (retry 2 of 10)")
    assert "network" in text
    assert "ANTHROPIC_BASE_URL" in text
    assert "unknown" not in text


async def test_each_query_has_a_warning_of_its_own(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = failing(2)
    await ask(cli, kind, "go", "fine", "go")
    assert len(warned()) == 2


async def test_one_retry_is_not_worth_a_warning(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = failing(1)
    await ask(cli, kind, "go", "go")
    assert warned() == []


@pytest.mark.parametrize(
    ("status", "error", "reason", "advice"),
    [
        (529, "overloaded", "answered HTTP 529 (overloaded)", "timeout"),
        (429, "rate_limit", "answered HTTP 429 (rate limit)", "fewer"),
        (401, "authentication_failed", "answered HTTP 401 (authentication failed)", "key"),
    ],
)
async def test_the_warning_says_what_failed_and_what_to_do(
    cli: Cli, warned: Any, status: int, error: str, reason: str, advice: str
) -> None:
    cli.acts["go"] = failing(2, status=status, error=error)
    await ask(cli, "session", "go")
    (text,) = warned()
    assert f"the API at {ADDRESS} {reason}" in text
    assert advice in text


async def test_the_warning_shows_no_password_of_the_address(cli: Cli, warned: Any) -> None:
    cli.acts["go"] = failing(2)
    env = {"ANTHROPIC_BASE_URL": "https://ann:hunter2hunter2@gateway.example/v1?key=abcdef123456"}
    await ask(cli, "session", "go", env=env)
    (text,) = warned()
    assert "gateway.example" in text
    assert "hunter2" not in text
    assert "abcdef123456" not in text


@pytest.mark.parametrize(
    ("variable", "name"),
    [("CLAUDE_CODE_USE_BEDROCK", "Amazon Bedrock"), ("CLAUDE_CODE_USE_VERTEX", "Google Vertex AI")],
)
async def test_the_api_of_a_cloud_provider_is_named(cli: Cli, warned: Any, variable: str, name: str) -> None:
    cli.acts["go"] = failing(2)
    await ask(cli, "session", "go", env={variable: "1"})
    (text,) = warned()
    assert f"the API of {name} could not be reached" in text


async def test_an_address_of_a_settings_file_is_not_mistaken_for_the_default(cli: Cli, warned: Any) -> None:
    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(frames.init(served_by_anthropic=False))
        await say(retry(1))
        await say(retry(2))
        return "done"

    cli.acts["go"] = act
    await ask_each(cli, "session", "go")
    (text,) = warned()
    assert "api.anthropic.com" not in text
    assert "settings" in text


@pytest.mark.virtual_time
@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
async def test_a_timeout_names_the_last_retry_and_has_it_as_its_cause(cli: Cli, kind: str, limit: str) -> None:
    cli.acts["go"] = failing(3, hangs=True, delay_ms=0)
    with pytest.raises(ph.QueryTimeout, match=r"option (idle_)?timeout\)") as caught:
        await ask(cli, kind, "go", **{limit: 0.5})
    assert f"the API at {ADDRESS} could not be reached (retry 3 of 10)" in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, ph.ResultError)
    assert str(cause) == f"the API at {ADDRESS} could not be reached"


@pytest.mark.virtual_time
async def test_the_cause_of_a_timeout_has_the_class_of_the_failure(cli: Cli, kind: str) -> None:
    cli.acts["go"] = failing(1, hangs=True, status=529, error="overloaded")
    with pytest.raises(ph.QueryTimeout) as caught:
        await ask(cli, kind, "go", timeout=0.5)
    assert isinstance(caught.value.__cause__, ph.OverloadedError)
    assert caught.value.__cause__.api_error_status == 529


@pytest.mark.virtual_time
async def test_a_timeout_does_not_blame_an_api_that_answered_later(cli: Cli, kind: str) -> None:
    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(retry(1))
        await say(frames.assistant([frames.tool_use("Bash", {"command": "sleep 100"})]))
        await anyio.sleep_forever()
        return ""

    cli.acts["go"] = act
    with pytest.raises(ph.QueryTimeout) as caught:
        await ask(cli, kind, "go", timeout=0.5)
    assert "API" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_retry_is_described_in_words() -> None:
    assert ApiRetryMessage(error="unknown").describe() == "the API could not be reached"
    assert ApiRetryMessage(no_response={"waited_ms": 1}).describe() == "the API did not respond"
    assert ApiRetryMessage(error_status=500, error="unknown").describe() == "the API answered HTTP 500"
    overloaded = ApiRetryMessage(error_status=529, error="overloaded")
    assert overloaded.describe("the proxy") == "the proxy answered HTTP 529 (overloaded)"
