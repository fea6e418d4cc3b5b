"""`pilothouse serve --openai --anthropic` with the real CLI, for official clients and for the real CLI itself."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import anyio
import openai
import pytest
from served_host import TOKEN, Program

import pilothouse as ph
from pilothouse_testing import RecordedRequest, ScriptedModel

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OSLO = {"city": "Oslo"}


def answer(request: RecordedRequest) -> str:
    """Call the first tool of the text protocol, then say what it returned."""
    asked = json.dumps(request.messages)  # one prompt, which has the whole conversation
    if found := re.search(r"<result>(.*?)</result>", asked):
        return f"It is {found[1]}."
    nonce = re.search(r"<tool_use-(\w+)>", request.system_text)
    if nonce is None or "Warm" not in asked:
        return f"Said: {request.last_user_text}"
    name = "Bash" if "Bash" in request.system_text else "weather"
    given = {"command": "echo 18 degrees", "description": "d"} if name == "Bash" else OSLO
    call = f"<tool_name>{name}</tool_name><arguments>{json.dumps(given)}</arguments>"
    return f"<tool_use-{nonce[1]}>{call}</tool_use-{nonce[1]}>"


@pytest.fixture
def served(real_cli: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a host with both endpoints."""
    with ScriptedModel() as model:
        model.default = answer
        for name, value in model.env().items():
            monkeypatch.setenv(name, value)
        config = tmp_path / "pilothouse.toml"
        config.write_text('[agents.helper]\ndescription = "Helps."\nprompt = "Help."\n')
        monkeypatch.setenv("PILOTHOUSE_CONFIG", str(config))
        program = Program(tmp_path, real_cli, "--openai", "--anthropic", "--map", "gpt-4o=sonnet")
        with program as host:
            yield f"http://127.0.0.1:{host.port}"
            code, output = program.end(signal.SIGTERM)
        assert (code, TOKEN in output) == (0, False)
        assert "pays" in output


@pytest.mark.real_cli
def test_official_clients_reach_the_real_cli(served: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    connected: Any = openai.OpenAI(base_url=f"{served}/v1", api_key=TOKEN)
    with connected as client:
        asked: list[Any] = [{"role": "user", "content": "Warm?"}]
        said: Any = client.chat.completions.create(model="gpt-4o", messages=asked, tools=tools).choices[0].message
        [call] = said.tool_calls
        assert json.loads(call.function.arguments) == OSLO
        result = {"role": "tool", "tool_call_id": call.id, "content": "18"}
        with client.chat.completions.stream(
            model="gpt-4o", messages=[*asked, said.model_dump(exclude_none=True), result], tools=tools
        ) as stream:
            assert stream.get_final_completion().choices[0].message.content == "It is 18."
        assert "agent:helper" in [model.id for model in client.models.list()]
        with pytest.raises(openai.AuthenticationError) as caught:
            client.with_options(api_key="wrong-but-long-enough").models.list()
        assert (caught.value.code, str(caught.value.request_id)[:4]) == ("invalid_api_key", "req_")
    connected = anthropic.Anthropic(base_url=served, api_key=TOKEN)
    with connected as other:
        message = other.messages.create(model="haiku", max_tokens=99, messages=[{"role": "user", "content": "Hi"}])
        assert message.content[0].text == "Said: Hi"
        assert message.usage.output_tokens > 0
        with pytest.raises(anthropic.AuthenticationError):
            other.with_options(api_key="wrong-but-long-enough").models.list()


@pytest.mark.matrix
@pytest.mark.real_cli
def test_an_agent_answers_and_goes_on(served: str) -> None:
    connected: Any = openai.OpenAI(base_url=f"{served}/v1", api_key=TOKEN)
    with connected as client:
        first = client.responses.create(model="agent:helper", input="One")
        assert first.output_text == "Said: One"
        second = client.responses.create(model="agent:helper", input="Two", previous_response_id=first.id)
        third = client.responses.create(model="agent:helper", input="Three", previous_response_id=second.id)
        assert (second.output_text, third.output_text) == ("Said: Two", "Said: Three")
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="agent:other", input="?")


@pytest.mark.matrix
@pytest.mark.real_cli
def test_the_real_cli_is_a_client(served: str, real_cli: str, tmp_path: Path) -> None:
    """The CLI calls its own tool, because the model behind our endpoint, another CLI, asks for it."""
    env = {"ANTHROPIC_BASE_URL": served, "ANTHROPIC_API_KEY": TOKEN}
    settings: dict[str, Any] = {"cli": real_cli, "cwd": str(tmp_path), "env": env, "tools": ["Bash"], "timeout": 60}

    async def main() -> ph.QueryResult[Any]:
        return await ph.query("Warm?", allowed_tools=["Bash"], **settings)

    result = anyio.run(main)
    assert [use.name for use in result.tool_uses] == ["Bash"], result.messages
    assert result.text.strip() == "It is 18 degrees."
    assert result.is_success
