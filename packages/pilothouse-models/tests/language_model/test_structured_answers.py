"""Structured output of a `LanguageModel`: how the model gives it, what is accepted, when the model is asked again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from language_model_fixtures import NONCE, WEATHER, call_text, meaning, read_stream, turn

import pilothouse as ph
from pilothouse_models import LanguageModel
from pilothouse_testing import frames, mock_transport

pytestmark = pytest.mark.anyio

CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}
OSLO: dict[str, Any] = {"name": "Oslo", "people": 717710}


@dataclass
class City:
    name: str
    people: int


@pytest.fixture(autouse=True)
def _known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)


def output(**arguments: Any) -> str:
    return call_text("StructuredOutput", json.dumps(arguments))


class Spoken:
    """A model whose CLI says one text after the other; `prompts` has what it was sent."""

    def __init__(self, *texts: str, **result: Any) -> None:
        self.transport = mock_transport(*(turn(text, **result) for text in texts))
        self.model = LanguageModel(transport=lambda: self.transport)

    @property
    def prompts(self) -> list[str]:
        users = [frame for frame in self.transport.sent_frames if frame.get("type") == "user"]
        return [json.dumps(frame["message"]["content"]) for frame in users]


async def test_an_output_in_its_type() -> None:
    result = await Spoken(f"Here it is.\n{output(**OSLO)}").model.generate("Which city?", output_type=City)
    assert result.output == City("Oslo", 717710)
    assert json.loads(result.text) == OSLO  # JSON alone, as frameworks parse it
    assert (result.finish_reason, result.tool_calls) == ("stop", ())
    assert [json.loads(part["text"]) for part in result.messages[0]["content"]] == [OSLO]


async def test_an_output_by_schema_in_a_stream() -> None:
    texts = [f"Let me see. {output(**OSLO)}"]
    stream = await read_stream(Spoken(*texts).model.stream("Which city?", json_schema=CITY_SCHEMA))
    assert stream.kinds == ["text-delta", "finish"]
    assert json.loads(stream.text) == OSLO
    assert meaning(stream.result) == meaning(await Spoken(*texts).model.generate("?", json_schema=CITY_SCHEMA))
    assert stream.result.output == OSLO


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        (list[int], output(value=[1, 2]), [1, 2]),
        (City, json.dumps(OSLO), City(**OSLO)),
        (City, f"```json\n{json.dumps(OSLO)}\n```", City(**OSLO)),
    ],
)
async def test_other_forms_of_an_output(kind: Any, said: str, expected: Any) -> None:
    assert (await Spoken(said).model.generate("?", output_type=kind)).output == expected


async def test_the_model_is_asked_again_for_an_output_that_does_not_fit() -> None:
    spoken = Spoken(output(name="Oslo", people="many"), output(**OSLO))
    result = await spoken.model.generate("?", output_type=City)
    assert result.output == City(**OSLO)
    assert json.loads(result.text) == OSLO
    assert "people" in spoken.prompts[1]
    assert result.pending_calls == ()


async def test_the_model_is_asked_again_for_a_text_without_an_output() -> None:
    spoken = Spoken("Oslo, I think.", output(**OSLO))
    stream = await read_stream(spoken.model.stream("?", output_type=City))
    assert stream.result.output == City(**OSLO)
    assert json.loads(stream.text) == OSLO
    assert "StructuredOutput" in spoken.prompts[1]


async def test_without_an_output_that_fits_the_request_fails() -> None:
    for texts in (["Oslo.", "Really, Oslo."], [output(name=1), output(name=2)]):
        spoken = Spoken(*texts, "never asked for")
        with pytest.raises(ph.StructuredOutputError) as caught:
            await spoken.model.generate("?", output_type=City)
        assert caught.value.attempts == 2
        assert len(spoken.prompts) == 2
    with pytest.raises(ph.StructuredOutputError):
        await Spoken("Oslo.", "never asked for").model.generate("?", output_type=City, output_repairs=0)


async def test_an_output_after_calls() -> None:
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"18 degrees in {city}"

    spoken = Spoken(call_text(city="Oslo"), output(**OSLO))
    result = await spoken.model.generate("?", [weather], output_type=City)
    assert result.output == City(**OSLO)
    assert [each.output for each in result.tool_results] == ["18 degrees in Oslo"]
    assert json.loads(result.text) == OSLO


async def test_calls_for_the_caller_come_before_the_output() -> None:
    result = await Spoken(call_text(city="Oslo")).model.generate("?", [WEATHER], output_type=City)
    assert (result.finish_reason, result.output) == ("tool-calls", None)
    assert [call.name for call in result.pending_calls] == ["weather"]


async def test_an_output_beside_calls_is_not_accepted() -> None:
    result = await Spoken(call_text(city="Oslo") + output(**OSLO)).model.generate("?", [WEATHER], output_type=City)
    assert result.output is None
    assert [call.name for call in result.pending_calls] == ["weather"]


async def test_a_refusal_has_no_output_and_is_no_error() -> None:
    said = [frames.init(), frames.assistant("I can not."), frames.result("I can not.", stop_reason="refusal")]
    model = LanguageModel(transport=lambda: mock_transport(said))
    result = await model.generate("?", output_type=City)
    assert (result.finish_reason, result.output, result.text) == ("content-filter", None, "I can not.")


async def test_what_cannot_be_requested() -> None:
    model = Spoken("never").model
    with pytest.raises(ph.OptionsError, match="output_type or json_schema, not both"):
        await model.generate("?", output_type=City, json_schema=CITY_SCHEMA)
    with pytest.raises(ph.OptionsError, match="not a valid JSON Schema"):
        await model.generate("?", json_schema={"type": "nothing"})


async def test_tools_that_another_provider_runs_are_left_out() -> None:
    search = {"type": "provider-defined", "id": "openai.web_search", "name": "web_search", "args": {}}
    result = await Spoken("None.").model.generate("?", [search])
    assert [warning.kind for warning in result.warnings] == ["unsupported-tool"]
    assert "tools[0]" in result.warnings[0].message
